"""A million lines of a real pod, through the API server, to a process that follows the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.kube import bench, cluster_here, not_run
from benchmarks.row import Row

LINES = 1_000_000
MEMORY_GOAL = 200_000_000
LIMIT_S = 400.0
ROWS = [
    (f"{LINES:,} lines of a pod: lost, told twice or torn", "0"),
    (f"{LINES:,} lines of a pod: the follower's peak memory", f"< {MEMORY_GOAL / 1e6:.0f} MB"),
]


def run() -> list[Row]:
    """Two rows: completeness and memory."""
    cluster = cluster_here()
    if cluster is None:
        return not_run(ROWS)
    with bench(cluster, "million") as here:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.following", "-", str(LINES)],
            check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S,
            cwd=Path(__file__).parents[1], env={**os.environ, **here.environment},
        )  # fmt: skip
    report = json.loads(done.stdout.splitlines()[-1])
    wrong = report["lost"] + report["doubled"] + report["torn"]
    complete = wrong == 0 and report["heard"] == LINES and report["phase"] == "SUCCEEDED"
    return [
        Row(
            ROWS[0][0], wrong, "lines", ROWS[0][1], complete,
            f"{report['phase']}, {report['heard']:,} heard in {report['lines_s']:.1f} s "
            f"({report['heard'] / max(report['lines_s'], 0.001):,.0f} lines/s) with "
            f"{report['cpu_s']:.1f} s of CPU; lost {report['lost']}, twice {report['doubled']}, "
            f"torn {report['torn']}; the end {report['end_s']:.1f} s after the last",
        ),
        Row(
            ROWS[1][0], round(report["peak_bytes"] / 1e6, 1), "MB", ROWS[1][1],
            report["peak_bytes"] < MEMORY_GOAL,
        ),
    ]  # fmt: skip
