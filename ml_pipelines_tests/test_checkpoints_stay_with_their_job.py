"""Who takes up a checkpoint: a later attempt of the same job, and nobody else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ml_pipelines.journal.entries import Draft
from ml_pipelines.spec.naming import run_key
from ml_pipelines.workloads.report import driver
from ml_pipelines_tests.ads_job import bear, environment

if TYPE_CHECKING:
    from pathlib import Path

    from ml_pipelines.journal.record import Journal


def key(*, logical_run: str = "run-1", partition: str = "2019-11-25") -> str:
    return run_key(
        "ads_model", location="l", logical_run=logical_run, step="ads_model", partition=partition
    )


def write(journal: Journal, kind: str, **data: object) -> None:
    """An entry of the loop that bore the job."""
    loop = journal.read().loop
    assert loop is not None
    journal.append(lambda _: Draft(kind, data), role="loop", claim=loop.number)


def test_the_next_attempt_takes_it_up_and_other_jobs_do_not(tmp_path: Path) -> None:
    """Case H4: attempt 2 finds attempt 1's; the next day's retrain and a forced one start anew."""
    journal = bear(tmp_path, {}, key())
    with driver(environment(tmp_path, key())) as run:
        saved = run.commit("checkpoint", path=f"{run.prefix}checkpoint-7")
    write(journal, "attempt_end", number=1, verdict={"class": "INFRA"}, why="head lost")
    write(journal, "attempt", number=2, name=f"{key()}-a2")
    with driver(environment(tmp_path, key(), attempt=2)) as run:
        found = run.latest("checkpoint")
        assert found is not None
        assert found.path == saved.path
        assert run.prefix != saved.path.removesuffix("checkpoint-7")
    for other in (key(logical_run="run-2"), key(partition="2019-11-26")):
        bear(tmp_path, {}, other)
        with driver(environment(tmp_path, other)) as run:
            assert run.latest("checkpoint") is None
