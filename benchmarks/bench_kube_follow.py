"""Real jobs on KubeRay, each followed by a process: how late we are, and what it costs the server."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.kube import Bench, bench, cluster_here, not_run
from benchmarks.row import Row

QUICK, SLOW = 100, 68  # lines at ten a second, then at one a second
TOGETHER = 5
STAGGER_S = 4.0
LIMIT_S = 280.0
LAG_GOAL_S, END_GOAL_S, RATE_GOAL = 1.0, 2.0, 0.05

LAG = "line printed -> seen, p95"
END = "driver's end -> run's end, median"
RATE = "API requests per running job with its log followed, {} at once"
ROWS = [
    (LAG, f"<= {LAG_GOAL_S:g} s"),
    (END, f"<= {END_GOAL_S:g} s"),
    *((RATE.format(count), f"< {RATE_GOAL:g} /s") for count in (1, TOGETHER)),
]

Report = dict[str, Any]


def run() -> list[Row]:
    """Four rows: one job alone, then five of which each has a process of its own."""
    cluster = cluster_here()
    if cluster is None:
        return not_run(ROWS)
    with bench(cluster, "follow") as here:
        (alone,) = _reports(here, 1)
        together = _reports(here, TOGETHER)
    return [_lag(alone), _end([alone, *together]), _rate([alone]), _rate(together)]


def _reports(here: Bench, count: int) -> list[Report]:
    processes = []
    for number in range(count):
        if number:
            time.sleep(STAGGER_S)
        command = [sys.executable, "-m", "benchmarks.kube_following", f"follow-{number}"]
        processes.append(
            subprocess.Popen(
                [*command, str(QUICK), str(SLOW)], stdout=subprocess.PIPE, text=True,
                cwd=Path(__file__).parents[1], env={**os.environ, **here.environment},
            )
        )  # fmt: skip
    until = time.monotonic() + LIMIT_S
    try:
        outs = [one.communicate(timeout=until - time.monotonic())[0] for one in processes]
    finally:
        for one in processes:
            one.kill()
    reports: list[Report] = [json.loads(out.splitlines()[-1]) for out in outs]
    for report in reports:
        if report["phase"] != "SUCCEEDED" or len(report["lags"]) != QUICK + SLOW:
            raise RuntimeError(f"a measured job did not go through: {report}")
    return reports


def _lag(report: Report) -> Row:
    lags = report["lags"]
    p95 = statistics.quantiles(lags, n=20)[-1]
    return Row(
        LAG, round(p95, 3), "s", ROWS[0][1], p95 <= LAG_GOAL_S,
        f"{len(lags)} lines; p50 {statistics.median(lags):.3f} s, greatest {max(lags):.3f} s; "
        f"submit -> first line {report['started_s']:.1f} s",
    )  # fmt: skip


def _end(reports: list[Report]) -> Row:
    ends = [report["end_s"] for report in reports]
    median = statistics.median(ends)
    after = statistics.median(report["end_s"] - report["judged_s"] for report in reports)
    return Row(
        END, round(median, 2), "s", ROWS[1][1], median <= END_GOAL_S,
        f"{len(ends)} jobs: {', '.join(f'{end:.2f}' for end in ends)} s (the first alone); "
            f"{after:.2f} s of it after the verdict; KubeRay asks Ray each 3 s",
    )  # fmt: skip


def _rate(reports: list[Report]) -> Row:
    made = Counter[str]()
    whole = Counter[str]()
    for report in reports:
        made.update(report["steady"])
        whole.update(report["requests"])
    seconds = sum(report["steady_s"] for report in reports)
    rate = sum(made.values()) / seconds
    return Row(
        RATE.format(len(reports)), round(rate, 4), "/s", f"< {RATE_GOAL:g} /s", rate < RATE_GOAL,
        f"while the driver runs, {seconds:.0f} job seconds, our own requests by urllib3's log: "
        f"{dict(made) or 'none'}; from submit to end, "
        f"{sum(report['seconds'] for report in reports):.0f} s: {dict(whole)}",
    )  # fmt: skip
