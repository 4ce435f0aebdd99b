"""Trains on a GPU for a minute or two, where there is one.

    python -m ml_pipelines.workloads.ads_ranking.gpu_check

Not a job: it makes its own data below a temporary folder and starts one process a GPU with NCCL,
without Ray. It checks that two trainings give the same model bit for bit, that the model is as good
as the planted truth allows, and tells samples/s. Without a GPU it prints "not run: no GPU" and ends
well.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from ml_pipelines.storage import Lake, open_store
from ml_pipelines.workloads.ads_ranking import data, metrics
from ml_pipelines.workloads.ads_ranking.config import Outcome, Task, TrainConfig
from ml_pipelines.workloads.ads_ranking.features import write_features
from ml_pipelines.workloads.ads_ranking.scoring import TrainedModel
from ml_pipelines.workloads.checkpoint import Folder, Saved
from ml_pipelines.workloads.datasets import synthetic

FIRST, DAYS, ROWS = date(2019, 11, 24), 7, 300_000
FEATURES = "features_ads_ranking"
CLOSE = 0.015  # how far below the truth's AUC the model may be
MOST_GPUS = 4


def main() -> int:
    """0 where all is well or there is no GPU, 1 else."""
    import torch

    if not torch.cuda.is_available():
        print("not run: no GPU")
        return 0
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        told = check(Path(folder), gpus=min(torch.cuda.device_count(), MOST_GPUS), cuda=True)
    told["gpu"] = torch.cuda.get_device_name(0)
    print(json.dumps(told, indent=1))
    return 0 if told["same_model"] and told["auc"] > told["truth_auc"] - CLOSE else 1


def check(
    folder: Path, *, gpus: int, cuda: bool, config: TrainConfig | None = None, rows: int = ROWS
) -> dict[str, Any]:
    """Train twice on the days before the last one, and judge on that."""
    config = config or TrainConfig(day="", batch_size=8192)
    urls = features(folder, rows)
    provenance = {"config": asdict(config), "data_versions": {}}
    task = Task(config, urls[:-1], base_rate=0.07, prefix="", cuda=cuda, provenance=provenance)
    first, second = run(task, folder, gpus=gpus)

    runs = open_store(f"file://{folder}/runs")
    model = TrainedModel(runs.child_url(second.model.prefix))
    shown = list(data.read_file(urls[-1]))
    click = np.concatenate([each.click for each in shown])
    score = np.concatenate([model.score(each) for each in shown])
    return {
        "processes": gpus,
        "same_model": Folder(runs, first.model).version == model.version,
        "auc": metrics.auc(click, score),
        "truth_auc": metrics.auc(click, synthetic.truth(FIRST + timedelta(days=DAYS), rows)),
        "samples_per_s": round(second.samples_per_s),
        "seconds": second.seconds,
        "steps": second.steps,
    }


def features(folder: Path, rows: int) -> tuple[str, ...]:
    """The files of features of DAYS days and the day after."""
    lake = Lake(open_store(f"file://{folder}/lake"))
    urls: list[str] = []
    for number in range(DAYS + 1):
        day = FIRST + timedelta(days=number)
        source = synthetic.write_day(lake, day, rows=rows)
        stage = lake.stage(FEATURES, day.isoformat())
        for part, url in enumerate(source.files):
            item = {"source": url, "lake": lake.store.url, "path": f"{stage.path}/{part:05d}"}
            write_features(item)
        urls += lake.commit(stage).files
    return tuple(urls)


def run(task: Task, folder: Path, *, gpus: int) -> tuple[Outcome, Outcome]:
    """Two trainings, one after the other, with a process a GPU; what rank 0 tells."""
    from torch.multiprocessing.spawn import spawn

    spawn(_process, (gpus, task, str(folder)), nprocs=gpus)  # type: ignore[no-untyped-call]
    first, second = (
        Outcome(**{**told, "model": Saved(**told["model"])})
        for told in json.loads((folder / "outcomes.json").read_text())
    )
    return first, second


def _process(rank: int, gpus: int, task: Task, folder: str) -> None:
    import torch
    import torch.distributed as dist

    from ml_pipelines.workloads.ads_ranking.loop import train

    if task.cuda:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if task.cuda else "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=gpus,
    )
    outcomes = [
        train(
            replace(task, prefix=f"{name}/"),
            open_store(f"file://{folder}/runs"),
            metric=lambda step, **values: print(step, values, flush=True),
            say=print,
            committed=lambda _saved, step: print(f"checkpoint after step {step}", flush=True),
        )
        for name in ("first", "second")
    ]
    if rank == 0:
        told = json.dumps([asdict(outcome) for outcome in outcomes])
        (Path(folder) / "outcomes.json").write_text(told)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
