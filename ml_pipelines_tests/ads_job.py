"""Jobs and days for the tests of the workloads: a journal that is born, a lake that is filled."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml_pipelines.journal.entries import Draft
from ml_pipelines.journal.record import Journal
from ml_pipelines.storage import Lake, open_store
from ml_pipelines.workloads.ads_ranking.features import (
    FeaturesParams,
    make_features,
    write_features,
)
from ml_pipelines.workloads.datasets import synthetic
from ml_pipelines.workloads.report import Run, driver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ml_pipelines.clock import Clock

FIRST = date(2019, 11, 24)


def day(number: int) -> str:
    """The day of that number, from 0."""
    return (FIRST + timedelta(days=number)).isoformat()


def environment(folder: Path, run_key: str = "job", attempt: int = 1) -> dict[str, str]:
    """What the backend tells a driver."""
    return {
        "MLP_RUNS": f"file://{folder}/runs",
        "MLP_LAKE": f"file://{folder}/lake",
        "MLP_RUN_KEY": run_key,
        "MLP_ATTEMPT": str(attempt),
    }


def bear(folder: Path, params: Mapping[str, Any], run_key: str = "job") -> Journal:
    """The journal of a job whose first attempt is open, as its loop sees it."""
    journal = Journal(open_store(f"file://{folder}/runs"), run_key, writer="loop")
    birth = {"spec": {"params": dict(params)}, "backend": "local", "owes_result": True}
    journal.append(lambda _: Draft("birth", birth), role="loop", claim=0)
    claim = journal.claim_loop().number
    attempt = Draft("attempt", {"number": 1, "name": f"{run_key}-1"})
    journal.append(lambda _: attempt, role="loop", claim=claim)
    return journal


@contextmanager
def job(
    folder: Path,
    params: Mapping[str, Any] | None = None,
    *,
    run_key: str = "job",
    clock: Clock | None = None,
) -> Iterator[Run]:
    """A driver of a job of its own."""
    bear(folder, params or {}, run_key)
    with driver(environment(folder, run_key), clock=clock) as run:
        yield run


def in_turn(items: Sequence[Mapping[str, str]]) -> None:
    """What Ray Data does with the items of a features job, without Ray."""
    for item in items:
        write_features(item)


def fill(folder: Path, *, days: int, rows: int) -> Lake:
    """A lake of synthetic impressions and their features."""
    lake = Lake(open_store(f"file://{folder}/lake"))
    for number in range(days):
        synthetic.write_day(lake, FIRST + timedelta(days=number), rows=rows)
    with job(folder, run_key="features") as run:
        make_features(run, FeaturesParams(tuple(map(day, range(days)))), execute=in_turn)
    return lake
