"""Logs: how late a line is heard, and whether a million lines come through, in how much memory."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from benchmarks.local_ray import new_key, python_job, warm_platform
from benchmarks.row import Row
from ml_pipelines.job.events import LogLine
from ml_pipelines.lifecycle import Platform, follow, submit

LAG_LINES = 300
LAG_EVERY_S = 0.05
LAG_GOAL_S = 1.0
LINES = 1_000_000
MEMORY_GOAL = 200_000_000
TALKER = f"""
import time
for _ in range({LAG_LINES}):
    print("at", time.time(), flush=True)
    time.sleep({LAG_EVERY_S})
"""


def run() -> list[Row]:
    """Three rows: lag, completeness and memory."""
    with warm_platform() as platform:
        return [_lag(platform), *_million(platform)]


def _lag(platform: Platform) -> Row:
    job = submit(python_job(TALKER), run_key=new_key(), labels={}, platform=platform)
    with closing(follow(job, platform=platform)) as events:
        lags = [
            time.time() - float(event.text.removeprefix("at "))
            for event in events
            if isinstance(event, LogLine) and event.text.startswith("at ")
        ]
    if len(lags) != LAG_LINES:
        raise RuntimeError(f"{len(lags)} of {LAG_LINES} lines were heard")
    p95 = statistics.quantiles(lags, n=20)[-1]
    return Row(
        "log lag, p95",
        round(p95, 3),
        "s",
        f"< {LAG_GOAL_S:g} s",
        p95 < LAG_GOAL_S,
        f"{LAG_LINES} lines, one each {LAG_EVERY_S * 1000:.0f} ms; "
        f"median {statistics.median(lags):.3f} s, greatest {max(lags):.3f} s",
    )


def _million(platform: Platform) -> list[Row]:
    command = [
        sys.executable, "-m", "benchmarks.following", str(platform.settings.home), str(LINES),
    ]  # fmt: skip
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=600,
        cwd=Path(__file__).parents[1], env=dict(os.environ),
    )  # fmt: skip
    report = json.loads(done.stdout.splitlines()[-1])
    wrong = report["lost"] + report["doubled"]
    complete = wrong == 0 and report["heard"] == LINES and report["phase"] == "SUCCEEDED"
    return [
        Row(
            f"{LINES:,} lines: lost or told twice",
            wrong,
            "lines",
            "0",
            complete,
            f"{report['phase']}, {report['heard']:,} heard in {report['lines_s']:.1f} s "
            f"({report['heard'] / report['lines_s']:,.0f} lines/s) with {report['cpu_s']:.1f} s of CPU, "
            f"the end {report['end_s']:.1f} s after the last",
        ),
        Row(
            f"{LINES:,} lines: the follower's peak memory",
            round(report["peak_bytes"] / 1e6, 1),
            "MB",
            f"< {MEMORY_GOAL / 1e6:.0f} MB",
            report["peak_bytes"] < MEMORY_GOAL,
        ),
    ]
