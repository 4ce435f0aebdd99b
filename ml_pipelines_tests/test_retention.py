"""What goes with age, whole; and what never does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import JournalCorrupt, StorageUnavailable
from ml_pipelines.journal import index
from ml_pipelines.journal.keep import expire, named_jobs
from ml_pipelines.journal.pointer import Pointer
from ml_pipelines.journal.record import Journal
from ml_pipelines.storage import Store
from ml_pipelines_tests.faulty_store import FaultyStore
from ml_pipelines_tests.test_champion_pointer import trained

CLOCK = FakeClock(datetime(2026, 6, 1, tzinfo=UTC))


def closed(store: Store, run_key: str, days_ago: int) -> None:
    """A job with data that was closed so long ago."""
    store.put(f"jobs/{run_key}/a1/i4/model/weights", b"w")
    then = CLOCK.now() - timedelta(days=days_ago)
    index.close(store, {"run_key": run_key}, now=then)


def test_old_jobs_go_whole(store: Store) -> None:
    """Journal, data and summary; younger ones and open ones stay."""
    for run_key, days_ago in (("old", 31), ("young", 30)):
        trained(store, run_key)
        closed(store, run_key, days_ago)
    trained(store, "open")
    index.mark_open(store, "open")
    assert expire(store, CLOCK, days=30) == ["old"]
    assert store.list("jobs/old") == []
    assert [key for _, key in index.closed_keys(store)] == ["young"]
    for kept in ("young", "open"):
        assert Journal(store, kept, writer="w").read().birth is not None
    assert expire(store, CLOCK, days=30) == []


def test_champions_never_expire(store: Store) -> None:
    """The one that serves, and those that did: their journals, models and summaries."""
    for run_key in ("first", "second", "loser"):
        challenger = trained(store, run_key)
        closed(store, run_key, 400)
        if run_key != "loser":
            pointer = Pointer(store, "m")
            now = pointer.current()
            pointer.promote(challenger, expecting=now.number if now else 0)
    assert named_jobs(store) == {"first", "second"}
    assert expire(store, CLOCK, days=30) == ["loser"]
    assert store.exists("jobs/first/a1/i4/model/weights")
    assert [each.run_key for each in Pointer(store, "m").history()] == ["first", "second"]


def test_unreadable_pointer_stops_everything(store: Store) -> None:
    """What can't be read may name anything: nothing is deleted."""
    pointer = Pointer(store, "m")
    for number, run_key in enumerate(("one", "two")):
        pointer.promote(trained(store, run_key), expecting=number)
        closed(store, run_key, 400)
    store.delete("models/m/champion/00000001.json")
    with pytest.raises(JournalCorrupt):
        expire(store, CLOCK, days=30)
    assert store.exists("jobs/one/a1/i4/model/weights")


def test_deletion_cut_short_is_no_shorter_history(store: Store) -> None:
    """Half deleted a journal is an error, never a job that could be taken up; then it goes."""

    class DiesSoon(FaultyStore):
        deletions = 0

        def delete(self, path: str) -> None:
            self.deletions += 1
            if self.deletions == 3:
                raise StorageUnavailable("away")
            self.inner.delete(path)

    trained(store, "old")
    closed(store, "old", 400)
    with pytest.raises(StorageUnavailable):
        expire(DiesSoon(store), CLOCK, days=30)
    with pytest.raises(JournalCorrupt):
        Journal(store, "old", writer="w", clock=FakeClock()).read()
    assert expire(store, CLOCK, days=30) == ["old"]
    assert store.list("jobs") == []


def test_old_heartbeats_go(store: Store) -> None:
    """A process that has not moved for a week is gone for good."""
    store.put("processes/old.json", b"{}")
    later = FakeClock(datetime.now(UTC) + timedelta(days=8))
    expire(store, FakeClock(datetime.now(UTC)), days=30)
    assert store.list("processes") == ["processes/old.json"]
    expire(store, later, days=30)
    assert store.list("processes") == []
