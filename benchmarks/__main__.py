"""`python -m benchmarks [NAME ...]`: runs them, prints one table, writes JSON to results/."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import platform
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import benchmarks
from benchmarks.row import Row

RESULTS = Path(__file__).with_name("results")
PREFIX = "bench_"
WIDEST = 62  # characters of the first column


def main(names: Sequence[str]) -> int:
    """Run these, or all; returns 0 when every goal was kept, 1 when not, 2 for an unknown name."""
    there = sorted(
        module.name.removeprefix(PREFIX)
        for module in pkgutil.iter_modules(benchmarks.__path__)
        if module.name.startswith(PREFIX)
    )
    asked = [name.removeprefix(PREFIX) for name in names]
    unknown = [name for name in asked if name not in there]
    if unknown:
        print(f"There is no benchmark {unknown[0]!r}; there are: {', '.join(there)}.")
        return 2
    began = datetime.now(UTC)
    rows = {name: _measure(name) for name in asked or there}
    path = _write(rows, began)
    flat = [row for measured in rows.values() for row in measured]
    print("", *table(flat), "", f"As JSON: {path}", sep="\n")
    return 1 if any(row.ok is False for row in flat) else 0


def _measure(name: str) -> list[Row]:
    """The rows of one benchmark; one that breaks is a missed row, and the others still run."""
    print(f"{name} ...", flush=True)
    began = time.monotonic()
    try:
        rows: list[Row] = importlib.import_module(f"benchmarks.{PREFIX}{name}").run()
    except Exception as error:  # noqa: BLE001  # whatever broke, the other benchmarks are wanted
        traceback.print_exc()
        rows = [Row(name, None, ok=False, detail=f"broke: {type(error).__name__}: {error}")]
    print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return rows


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The rows as text lines: what, measured, goal, outcome, and each one's detail below it."""
    cells = [("what", "measured", "goal", "")]
    cells += [(row.what[:WIDEST], row.measured, row.goal, row.outcome) for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(3)]
    for line, row in zip(cells, [None, *rows], strict=True):
        what, measured, goal, outcome = line
        yield (
            f"{what:<{widths[0]}}  {measured:>{widths[1]}}  {goal:<{widths[2]}}  {outcome}".rstrip()
        )
        if row is not None and row.detail:
            yield f"    {row.detail}"


def _write(rows: dict[str, list[Row]], began: datetime) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{began:%Y%m%dT%H%M%SZ}.json"
    record = {
        "began": began.isoformat(timespec="seconds"),
        "machine": {
            "cpus": len(os.sched_getaffinity(0)),
            "load_1min": round(os.getloadavg()[0], 2),
            "system": platform.platform(),
            "python": platform.python_version(),
            **{name: version(name) for name in ("dagster", "ray", "torch")},
        },
        "rows": {name: [asdict(row) for row in measured] for name, measured in rows.items()},
    }
    path.write_text(json.dumps(record, indent=2) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
