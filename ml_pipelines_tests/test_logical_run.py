"""Which runs mean the same job: automatic retries do, manual re-executions don't."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from ml_pipelines.orchestration.identity import latest_run, logical_run


@dataclass(frozen=True)
class FakeRun:
    """What identity reads of a Dagster run."""

    run_id: str
    parent_run_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


def runs(*given: FakeRun):
    return {run.run_id: run for run in given}.get


def retried(run_id: str, by: str, parent: str | None = None) -> FakeRun:
    return FakeRun(run_id, parent, {"dagster/auto_retry_run_id": by})


TABLE = {
    "a first run is its own": ("a", [FakeRun("a")], "a"),
    "a retry means its parent's job": ("b", [retried("a", "b"), FakeRun("b", "a")], "a"),
    "so does the retry of a retry": (
        "c", [retried("a", "b"), retried("b", "c", "a"), FakeRun("c", "b")], "a",
    ),
    "a manual re-execution is new": ("b", [FakeRun("a"), FakeRun("b", "a")], "b"),
    "also of a run that was retried by itself": (
        "c", [retried("a", "b"), FakeRun("b", "a"), FakeRun("c", "a")], "c",
    ),
    "a retry of a re-execution stops there": (
        "c", [FakeRun("a"), retried("b", "c", "a"), FakeRun("c", "b")], "b",
    ),
    "a parent that was deleted can't be climbed": ("b", [FakeRun("b", "a")], "b"),
    "a loop in the database ends": (
        "a", [retried("b", "a", "a"), FakeRun("a", "b", {"dagster/auto_retry_run_id": "b"})], "b",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("run_id", "given", "expected"), TABLE.values(), ids=TABLE.keys())
def test_the_logical_run_is_reached_through_automatic_retries_only(
    run_id: str, given: list[FakeRun], expected: str
) -> None:
    """Case B6: a retry claims its parent's job; a person who runs it again wants a new one."""
    find = runs(*given)
    assert logical_run(find(run_id), find) == expected


def test_the_latest_run_is_the_way_back() -> None:
    """The keeper looks at the newest retry, which may still be running."""
    find = runs(retried("a", "b"), retried("b", "c", "a"), FakeRun("c", "b"))
    assert latest_run(find("a"), find).run_id == "c"
