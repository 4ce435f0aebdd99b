"""What starting costs: the code location against `import dagster`, and `mlp --help`."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.row import Row

PAIRS = 11
CALLS = 15
RATIO_GOAL = 1.15
HELP_GOAL_S = 0.3
# Ended at once: taking dagster's objects apart at exit costs a third of a second, and no loading.
DAGSTER = (sys.executable, "-c", "import os, dagster; os._exit(0)")
LOCATION = (sys.executable, "-c", "import os, ml_pipelines.definitions as m; m.defs(); os._exit(0)")
HELP = (str(Path(sys.executable).with_name("mlp")), "--help")
NOTHING = (sys.executable, "-c", "pass")


class Cost(NamedTuple):
    """What one process took, in seconds."""

    wall: float
    cpu: float


def run() -> list[Row]:
    """Two rows: the code location's ratio over pairs of fresh interpreters, and the help's time."""
    for command in (DAGSTER, LOCATION, HELP):
        _cost(command)  # the first one writes bytecode and reads from disk
    return [_location(), _help()]


def _location() -> Row:
    """In CPU seconds: an import waits for nothing but the CPU, which others use too."""
    pairs = []
    for pair in range(PAIRS):
        if pair % 2:
            dagster, location = _cost(DAGSTER), _cost(LOCATION)
        else:
            location, dagster = _cost(LOCATION), _cost(DAGSTER)
        pairs.append((location, dagster))
    ratio = statistics.median(location.cpu / dagster.cpu for location, dagster in pairs)
    wall = statistics.median(location.wall / dagster.wall for location, dagster in pairs)
    cpu = [statistics.median(cost.cpu for cost in column) for column in zip(*pairs, strict=True)]
    return Row(
        "loading the code location / import dagster",
        round(ratio, 3),
        "",
        f"<= {RATIO_GOAL}",
        ratio <= RATIO_GOAL,
        f"{PAIRS} pairs of fresh interpreters; CPU medians {cpu[0]:.2f} s, {cpu[1]:.2f} s; "
        f"by wall clock {wall:.3f}",
    )


def _help() -> Row:
    costs, nothings = [], []
    for _ in range(CALLS):
        costs.append(_cost(HELP))
        nothings.append(_cost(NOTHING).wall)
    shown = statistics.median(cost.wall for cost in costs)
    return Row(
        "mlp --help",
        round(shown, 3),
        "s",
        f"< {HELP_GOAL_S} s",
        shown < HELP_GOAL_S,
        f"median of {CALLS}; {statistics.median(cost.cpu for cost in costs):.2f} s of CPU; "
        f"a python that does nothing: {statistics.median(nothings):.2f} s",
    )


def _cost(command: Sequence[str]) -> Cost:
    """Of a fresh process that may keep bytecode, as any user's does."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost(wall, used.ru_utime + used.ru_stime)
