"""The same training, again and again on demand, with Ray and without.

Both sides wait for `<who>-<round>.go` in a folder, train, and write `<who>-<round>.json`. So both
are started once, and rounds can be interleaved.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ml_pipelines.storage import open_store
from ml_pipelines.workloads.ads_ranking.config import Outcome, Task, TrainConfig
from ml_pipelines.workloads.ads_ranking.train import train_on_ray, train_worker
from ml_pipelines.workloads.ads_ranking.window import window_before
from ml_pipelines.workloads.params import parse
from ml_pipelines.workloads.report import driver

BASE_RATE = 0.07


def rounds(who: str, folder: str, count: int, train: Callable[[], Outcome], rank: int) -> Outcome:
    """Train each time somebody asks."""
    for number in range(count):
        while not Path(folder, f"{who}-{number}.go").exists():
            time.sleep(0.05)
        outcome = train()
        if rank == 0:
            told = Path(folder, f"{who}-{number}.part")
            told.write_text(json.dumps(asdict(outcome)))
            told.rename(told.with_suffix(".json"))
    return outcome


def on_ray(folder: str, count: int) -> None:
    """The driver of a job that trains `count` times in the same workers of Ray Train."""
    with driver() as run:
        config = parse(TrainConfig, run.params)
        window = window_before(run.lake, config.features, config.day, config.window_days)
        task = task_of(config, window.files, run.prefix)
        _, workers, _ = train_on_ray(run, task, worker=partial(_ray_rounds, folder, count))
        run.result({"workers": workers})


def task_of(config: TrainConfig, urls: tuple[str, ...], prefix: str) -> Task:
    """The task that both sides get."""
    told = {"hash_buckets": config.hash_buckets, "embedding_dim": config.embedding_dim}
    return Task(
        config=config,
        urls=urls,
        base_rate=BASE_RATE,
        prefix=prefix,
        provenance={"config": told, "data_versions": {}},
    )


def _ray_rounds(folder: str, count: int, given: dict[str, Any]) -> Outcome:
    from ray.train import get_context

    rank = get_context().get_world_rank()
    return rounds("ray", folder, count, partial(train_worker, given), rank)


def plain(rank: int, world: int, folder: str, count: int, task: Task) -> None:
    """One process of plain torch: gloo, the same loop, no Ray."""
    import torch
    import torch.distributed as dist

    from ml_pipelines.workloads.ads_ranking.loop import train

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    who = f"plain{world}"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/{who}.rendezvous", rank=rank, world_size=world
    )
    store = open_store(f"file://{folder}/runs")
    rounds(
        who,
        folder,
        count,
        lambda: train(
            task, store, metric=lambda *_, **__: None, say=print, committed=lambda *_: None
        ),
        rank,
    )
    dist.destroy_process_group()
