"""Open and closed jobs are found without reading every journal."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from ml_pipelines.journal import index
from ml_pipelines.storage import Store

NOW = datetime(2026, 3, 4, 23, 59, tzinfo=UTC)


def test_open_until_closed(store: Store) -> None:
    """A key is open from its mark until its summary lies under its day."""
    index.mark_open(store, "b-2")
    index.mark_open(store, "a-1")
    index.mark_open(store, "a-1")
    assert index.open_keys(store) == ["a-1", "b-2"]
    index.close(store, {"run_key": "a-1", "phase": "SUCCEEDED"}, now=NOW)
    assert index.open_keys(store) == ["b-2"]
    assert index.closed(store, date(2026, 3, 4)) == [{"run_key": "a-1", "phase": "SUCCEEDED"}]
    assert index.closed(store, date(2026, 3, 5)) == []


def test_closing_twice_is_no_harm(store: Store) -> None:
    """A clean-up that is done again leaves the same."""
    for _ in range(2):
        index.close(store, {"run_key": "a"}, now=NOW)
    assert [each["run_key"] for each in index.closed(store, NOW.date())] == ["a"]


def test_unreadable_summary_is_left_out(store: Store) -> None:
    """One broken file does not hide the others."""
    index.close(store, {"run_key": "good"}, now=NOW)
    store.put("closed/2026-03-04/bad.json", b'{"run_')
    assert [each["run_key"] for each in index.closed(store, NOW.date())] == ["good"]


def test_closed_keys_come_newest_first(store: Store) -> None:
    """Every kept day, and nothing that is no day."""
    for day in (1, 3, 2):
        now = datetime(2026, 3, day, tzinfo=UTC)
        index.close(store, {"run_key": f"k{day}"}, now=now)
    store.put("closed/notes/readme.json", b"{}")
    assert index.closed_keys(store) == [
        (date(2026, 3, 3), "k3"),
        (date(2026, 3, 2), "k2"),
        (date(2026, 3, 1), "k1"),
    ]


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        ("train-a", ["train-a"]),
        ("train", ["train-a", "train-ab"]),
        ("train-ab", ["train-ab"]),
        ("evaluate", ["evaluate-x"]),
        ("nothing", []),
    ],
    ids=["exact", "prefix", "exact and last", "closed", "none"],
)
def test_finds_by_beginning(store: Store, prefix: str, found: list[str]) -> None:
    """The exact key alone where it exists, else all that begin so, open or closed."""
    index.mark_open(store, "train-a")
    index.mark_open(store, "train-ab")
    index.close(store, {"run_key": "evaluate-x"}, now=NOW)
    assert index.find(store, prefix) == found
