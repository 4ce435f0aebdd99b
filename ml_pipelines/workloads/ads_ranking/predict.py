"""Score a day's impressions with whoever serves, by Ray Data, file by file.

    python -m ml_pipelines.workloads.ads_ranking.predict         (in a job; see `PredictParams`)

Without a model the smoothed-CTR baseline scores, fitted on the window before the day. The day of
`output` is replaced atomically, and its marker names the model.

The result: {"day", "rows", "url", "data_version", "model", "dataset"}.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ml_pipelines.storage import arrow_filesystem, open_store
from ml_pipelines.workloads.ads_ranking import data
from ml_pipelines.workloads.ads_ranking.schema import (
    FEATURES_DATASET,
    PREDICTIONS,
    arrow_schema,
)
from ml_pipelines.workloads.ads_ranking.scoring import Scorer, TrainedModel, fitted_baseline
from ml_pipelines.workloads.ads_ranking.window import features_day, window_before
from ml_pipelines.workloads.joining import join_ray
from ml_pipelines.workloads.params import bounded, parse
from ml_pipelines.workloads.report import Run, driver

Execute = Callable[[Sequence[Mapping[str, str]], Scorer | str], None]


@dataclass(frozen=True)
class PredictParams:
    """Which day, and who scores it: a model's URL, or "" for the baseline of the window."""

    day: str
    model_url: str = ""
    window_days: int = bounded(7, 1, 365)
    features: str = FEATURES_DATASET
    output: str = "predictions_ads_ranking"


def main() -> None:
    """The driver of a prediction job."""
    with driver() as run:
        run.result(predict(run, parse(PredictParams, run.params)))


def predict(run: Run, params: PredictParams, *, execute: Execute | None = None) -> dict[str, Any]:
    """The result described above. `execute` scores each item; by default Ray Data does."""
    execute = execute or by_ray_data
    source = features_day(run.lake, params.features, params.day)
    scorer, model = _scorer(run, params)
    run.progress(f"scoring {source.rows} impressions of {params.day} with {model['kind']}")
    stage = run.lake.stage(params.output, params.day)
    items = [
        {"source": url, "lake": run.lake.store.url, "path": f"{stage.path}/{number:05d}"}
        for number, url in enumerate(source.files)
    ]
    execute(items, scorer)
    extra = {"model": model, "made_from": {"data_version": source.data_version}}
    made = run.lake.commit(stage, extra=extra)
    return {
        "day": params.day,
        "dataset": params.output,
        "rows": made.rows,
        "url": made.url,
        "data_version": made.data_version,
        "model": model,
    }


class ScoreFiles:
    """What an actor of Ray Data does: it has the model, and scores one file after the other."""

    def __init__(self, scorer: Scorer | str) -> None:
        self._scorer = TrainedModel(scorer) if isinstance(scorer, str) else scorer

    def __call__(self, batch: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        rows = [
            write_predictions(self._scorer, source=source, lake=lake, path=path)
            for source, lake, path in zip(
                batch["source"], batch["lake"], batch["path"], strict=True
            )
        ]
        return {"rows": np.array(rows)}


def write_predictions(scorer: Scorer, *, source: str, lake: str, path: str) -> int:
    """One file of features to one file of predictions, row for row; the number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    filesystem, place = arrow_filesystem(source)
    file = pq.ParquetFile(place, filesystem=filesystem)
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / "predictions.parquet"
        with pq.ParquetWriter(local, arrow_schema(PREDICTIONS), compression="zstd") as writer:
            for index, rows in enumerate(data.read_file(source)):
                ids = file.read_row_group(index, columns=["impression_id"], use_threads=False)
                columns = [ids["impression_id"], pa.array(scorer.score(rows), pa.float32())]
                writer.write_table(pa.table(columns, schema=arrow_schema(PREDICTIONS)))
        open_store(lake).put_file(f"{path}.parquet", local)
    return int(file.metadata.num_rows)


def _scorer(run: Run, params: PredictParams) -> tuple[Scorer | str, dict[str, Any]]:
    """Who scores: a model's URL, for each actor to open, or the baseline; and what to call it."""
    if params.model_url:
        model = TrainedModel(params.model_url)  # refused here if it is gone or corrupt
        return params.model_url, {
            "kind": "trained model",
            "url": params.model_url,
            "version": model.version,
            "trained_for": model.meta["config"]["day"],
        }
    window = window_before(run.lake, params.features, params.day, params.window_days)
    name = {"kind": "smoothed-CTR baseline", "url": "", "version": "", "days": window.data_versions}
    return fitted_baseline(window), name


def by_ray_data(items: Sequence[Mapping[str, str]], scorer: Scorer | str) -> None:
    """Score all items with as many actors as fit."""
    import ray.data

    join_ray()
    ray.data.from_items(list(items), override_num_blocks=len(items)).map_batches(
        ScoreFiles,
        fn_constructor_args=(scorer,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=len(items)),
    ).take_all()


if __name__ == "__main__":
    main()
