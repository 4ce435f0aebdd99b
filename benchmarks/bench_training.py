"""Training through Ray Train against plain torch, and how good it is.

Both train on 1,000,000 synthetic rows with 2 gloo workers, the same loop and data, reading
included, beside the same Ray head; start-up is left out. Then one worker against two, and the
model against the planted truth.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from torch.multiprocessing.spawn import spawn

from benchmarks import training_rounds
from benchmarks.local_ray import finish, python_job, warm_platform
from benchmarks.row import Row
from ml_pipelines.storage import Lake, open_store
from ml_pipelines.workloads.ads_ranking import data, metrics
from ml_pipelines.workloads.ads_ranking.config import Task, TrainConfig
from ml_pipelines.workloads.ads_ranking.features import write_features
from ml_pipelines.workloads.ads_ranking.scoring import Scorer, TrainedModel, fitted_baseline
from ml_pipelines.workloads.ads_ranking.window import window_before
from ml_pipelines.workloads.datasets import synthetic

FIRST, DAYS, ROWS = date(2019, 11, 24), 5, 200_000
DAY = FIRST + timedelta(days=DAYS)
FEATURES = "features_ads_ranking"
PAIRS = 5
LONGEST_S = 900.0
CONFIG = TrainConfig(day=DAY.isoformat(), window_days=DAYS, workers=2)


def run() -> list[Row]:
    """Rows for speed, for quality, and for one worker against two."""
    with warm_platform() as platform:
        settings = platform.settings
        folder = settings.home / "rounds"
        folder.mkdir()
        lake = Lake(open_store(settings.lake))
        for number in range(DAYS + 1):
            write_day(lake, FIRST + timedelta(days=number))
        window = window_before(lake, FEATURES, CONFIG.day, DAYS)
        task = training_rounds.task_of(CONFIG, window.files, "two/")

        code = (
            f"from benchmarks.training_rounds import on_ray; on_ray({str(folder)!r}, {PAIRS + 1})"
        )
        job = python_job(
            code,
            params={"day": CONFIG.day, "window_days": DAYS, "workers": 2},
            env={"PYTHONPATH": str(Path(__file__).parents[1])},
            cluster={"workers": [{"min_workers": 2}]},
            owes_result=True,
        )
        on_ray = threading.Thread(target=finish, args=(job, platform), daemon=True)
        on_ray.start()
        two = group(folder, 2, PAIRS + 1, task)
        # The first round of each warms what is lazy, and is not counted.
        rounds = [
            {who: ask(folder, who, number) for who in _order(number)} for number in range(PAIRS + 1)
        ]
        two.join()
        on_ray.join()
        one_task = replace(task, prefix="one/")
        one_group = group(folder, 1, 1, one_task)
        one = ask(folder, "plain1", 0)
        one_group.join()
        runs = f"file://{folder}/runs"
        scored = judge(
            lake,
            {
                "two": TrainedModel(f"{runs}/two/model"),
                "one": TrainedModel(f"{runs}/one/model"),
                "baseline": fitted_baseline(window),
            },
        )
    return [*_speed(rounds[1:]), *_quality(scored), *_division(rounds[-1]["plain2"], one, scored)]


def group(folder: Path, workers: int, count: int, task: Task) -> Any:
    """Start plain torch processes that train when asked."""
    args = (workers, str(folder), count, task)
    return spawn(training_rounds.plain, args, nprocs=workers, join=False)  # type: ignore[no-untyped-call]


def write_day(lake: Lake, day: date) -> None:
    """A day of impressions and its features."""
    source = synthetic.write_day(lake, day, rows=ROWS)
    stage = lake.stage(FEATURES, day.isoformat())
    for part, url in enumerate(source.files):
        write_features({"source": url, "lake": lake.store.url, "path": f"{stage.path}/{part:05d}"})
    lake.commit(stage)


def ask(folder: Path, who: str, number: int) -> dict[str, Any]:
    """Have one side train once; what rank 0 tells. RuntimeError where it never answers."""
    (folder / f"{who}-{number}.go").touch()
    until = time.monotonic() + LONGEST_S
    told = folder / f"{who}-{number}.json"
    while not told.exists():
        if time.monotonic() > until:
            raise RuntimeError(f"{who} did not train within {LONGEST_S:g} s")
        time.sleep(0.05)
    outcome: dict[str, Any] = json.loads(told.read_text())
    return outcome


def judge(lake: Lake, scorers: dict[str, Scorer]) -> dict[str, float]:
    """The AUC of each on the day after, and the truth's."""
    (url,) = lake.partition(FEATURES, CONFIG.day).files
    shown = list(data.read_file(url))
    click = np.concatenate([rows.click for rows in shown])
    auc = {
        name: metrics.auc(click, np.concatenate([scorer.score(rows) for rows in shown]))
        for name, scorer in scorers.items()
    }
    return {**auc, "truth": metrics.auc(click, synthetic.truth(DAY, ROWS))}


def _order(number: int) -> tuple[str, str]:
    return ("ray", "plain2") if number % 2 else ("plain2", "ray")


def _speed(rounds: list[dict[str, dict[str, Any]]]) -> list[Row]:
    ratios = [pair["plain2"]["seconds"] / pair["ray"]["seconds"] for pair in rounds]
    ratio = statistics.median(ratios)
    samples = {
        who: DAYS * ROWS / statistics.median(pair[who]["seconds"] for pair in rounds)
        for who in ("ray", "plain2")
    }
    same = all(pair["ray"]["loss"] == pair["plain2"]["loss"] for pair in rounds)
    return [
        Row(
            "training samples/s, Ray Train over plain torch, 2 gloo workers",
            round(ratio, 3),
            "",
            ">= 0.95",
            ratio >= 0.95,
            f"{len(rounds)} pairs, {min(ratios):.2f} to {max(ratios):.2f}; "
            f"{samples['ray']:,.0f} and {samples['plain2']:,.0f} samples/s; "
            f"{'equal' if same else 'DIFFERENT'} models",
        )
    ]


def _quality(auc: dict[str, float]) -> list[Row]:
    below, above = auc["truth"] - auc["two"], auc["two"] - auc["baseline"]
    shown = ", ".join(f"{name} {value:.4f}" for name, value in auc.items())
    return [
        Row("AUC below the planted truth's", round(below, 4), "", "<= 0.01", below <= 0.01, shown),
        Row("AUC above the smoothed-CTR baseline's", round(above, 4), "", "> 0", above > 0),
    ]


def _division(two: dict[str, Any], one: dict[str, Any], auc: dict[str, float]) -> list[Row]:
    apart = abs(auc["two"] - auc["one"])
    memory = two["table_bytes"] / one["table_bytes"]
    return [
        Row(
            "AUC of 2 workers against 1, same global batch, difference",
            round(apart, 5),
            "",
            "<= 0.002",
            apart <= 0.002,
            f"losses {two['loss']:.5f} and {one['loss']:.5f}; "
            f"{one['seconds'] / two['seconds']:.2f} x as fast",
        ),
        Row(
            "embedding memory of a worker, 2 workers over 1",
            round(memory, 3),
            "",
            "<= 0.55",
            memory <= 0.55,
            f"{two['table_bytes'] / 2**20:.0f} and {one['table_bytes'] / 2**20:.0f} MiB",
        ),
    ]
