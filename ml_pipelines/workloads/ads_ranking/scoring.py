"""Scores rows with a trained model or with the baseline, whichever serves."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ml_pipelines.storage import open_store
from ml_pipelines.workloads.ads_ranking import baseline, data
from ml_pipelines.workloads.checkpoint import Folder, Saved

if TYPE_CHECKING:
    from ml_pipelines.workloads.ads_ranking.window import Window


class Scorer(Protocol):
    """Anything that knows the probability of a click of each row, (n,) float32."""

    def score(self, rows: data.Rows) -> NDArray[np.float32]:
        """The probabilities."""


class TrainedModel:
    """A model read whole onto the CPU, every file checked; `meta` is its manifest."""

    def __init__(self, url: str) -> None:
        import torch

        from ml_pipelines.workloads.ads_ranking.model import ClickModel

        folder = Folder(open_store(url), Saved("", ""))
        self.url, self.version, self.meta = url, folder.version, folder.meta
        config = self.meta["config"]
        self._buckets, dim = int(config["hash_buckets"]), int(config["embedding_dim"])
        self._table = torch.from_numpy(folder.rows(0, self._buckets, dim))
        self._dense = ClickModel(dim)
        state = torch.load(io.BytesIO(folder.dense()), map_location="cpu", weights_only=True)
        self._dense.load_state_dict(state["model"])
        self._dense.eval()

    def score(self, rows: data.Rows) -> NDArray[np.float32]:
        import torch

        ids = torch.from_numpy(rows.ids).long() % self._buckets
        with torch.inference_mode():
            logits = self._dense(self._table[ids], torch.from_numpy(rows.dense))
        return torch.sigmoid(logits).numpy()


def fitted_baseline(window: Window) -> baseline.Baseline:
    """The smoothed-CTR baseline of a window."""
    return baseline.fit(_rows(window), _rows(window))


def _rows(window: Window) -> Iterator[data.Rows]:
    for url in window.files:
        yield from data.read_file(url)
