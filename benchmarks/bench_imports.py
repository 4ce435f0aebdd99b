"""What starting costs: the code location against `import dagster`, and `mlp --help`."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

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


def run() -> list[Row]:
    """Two rows: the median ratio over pairs of fresh interpreters, and the median of the help."""
    for command in (DAGSTER, LOCATION, HELP):
        _seconds(command)  # the first one writes bytecode and reads from disk
    pairs = []
    for pair in range(PAIRS):
        if pair % 2:
            dagster, location = _seconds(DAGSTER), _seconds(LOCATION)
        else:
            location, dagster = _seconds(LOCATION), _seconds(DAGSTER)
        pairs.append((location, dagster))
    ratio = statistics.median(location / dagster for location, dagster in pairs)
    medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
    best = [min(column) for column in zip(*pairs, strict=True)]
    helps, nothings = [], []
    for _ in range(CALLS):
        helps.append(_seconds(HELP))
        nothings.append(_seconds(NOTHING))
    shown = statistics.median(helps)
    return [
        Row(
            "loading the code location / import dagster",
            round(ratio, 3),
            "",
            f"<= {RATIO_GOAL}",
            ratio <= RATIO_GOAL,
            f"{PAIRS} pairs of fresh interpreters; medians {medians[0]:.2f} s, {medians[1]:.2f} s; "
            f"best {best[0]:.2f} s, {best[1]:.2f} s",
        ),
        Row(
            "mlp --help",
            round(shown, 3),
            "s",
            f"< {HELP_GOAL_S} s",
            shown < HELP_GOAL_S,
            f"median of {CALLS}; best {min(helps):.2f} s; "
            f"python that does nothing {statistics.median(nothings):.2f} s",
        ),
    ]


def _seconds(command: Sequence[str]) -> float:
    """Wall seconds of a fresh process that may keep bytecode, as any user's does."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began
