"""What a training is told and what it tells: config, task and outcome."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ml_pipelines.errors import InvalidInput
from ml_pipelines.workloads.ads_ranking.data import LANES
from ml_pipelines.workloads.ads_ranking.schema import FEATURES_DATASET
from ml_pipelines.workloads.params import bounded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ml_pipelines.workloads.checkpoint import Saved


@dataclass(frozen=True)
class TrainConfig:
    """What the model's maker chooses. `batch_size` counts over all workers."""

    day: str
    model_name: str = "ads_ranking"
    features: str = FEATURES_DATASET
    window_days: int = bounded(7, 1, 365)
    epochs: int = bounded(1, 1, 100)
    batch_size: int = bounded(2048, LANES, 1_048_576)
    learning_rate: float = bounded(0.5, 1e-6, 10.0)
    dense_learning_rate: float = bounded(0.015, 1e-6, 1.0)
    embedding_dim: int = bounded(16, 1, 512)
    hash_buckets: int = bounded(2**20, 1024, 2**31 - 1)
    workers: int = bounded(2, 1, LANES)
    checkpoint_steps: int = bounded(500, 1, 1_000_000)
    seed: int = bounded(0, 0, 2**31 - 1)
    image: str = ""  # only remembered

    def __post_init__(self) -> None:
        if self.batch_size % LANES:
            raise InvalidInput(
                "params.batch_size",
                self.batch_size,
                f"is not a multiple of {LANES}",
                remedy=f"Use {self.batch_size // LANES * LANES}.",
            )


@dataclass(frozen=True)
class Task:
    """What every worker is told: the config, what to read, where to write, where to resume.

    `prefix` is this driver's own in run storage; `resume` are the committed checkpoints, newest
    first; `provenance` goes into the model's manifest.
    """

    config: TrainConfig
    urls: tuple[str, ...]
    base_rate: float
    prefix: str
    cuda: bool = False
    resume: tuple[Saved, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a finished training tells: the model, and the numbers of its last epoch."""

    model: Saved
    steps: int
    resumed_from: int | None
    loss: float
    auc: float
    samples_per_s: float
    seconds: float
    table_bytes: int
    curve: list[dict[str, float]]
