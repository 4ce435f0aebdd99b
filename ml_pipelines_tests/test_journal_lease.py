"""Who lives: heartbeats that move, and observers that trust only their own clock."""

from __future__ import annotations

import threading
import time

import pytest

from ml_pipelines.clock import FakeClock, SystemClock
from ml_pipelines.errors import StorageUnavailable
from ml_pipelines.journal.lease import Observer, Process
from ml_pipelines.settings import CLAIM_TIME_S
from ml_pipelines.storage import Store
from ml_pipelines_tests.faulty_store import Fault, FaultyStore


def process(store: Store, clock: FakeClock, name: str = "") -> Process:
    return Process(store, clock, process_id=name, threaded=False)


class TestHolder:
    """What a process knows of its own lease."""

    def test_not_fresh_before_the_first_beat(self, store: Store, clock: FakeClock) -> None:
        """Who never beat holds nothing."""
        assert not process(store, clock).fresh()

    def test_fresh_for_half_the_claim_time(self, store: Store, clock: FakeClock) -> None:
        """Nobody may call it dead before it stops acting by itself."""
        holder = process(store, clock)
        holder.beat()
        clock.advance(CLAIM_TIME_S / 2 - 1)
        assert holder.fresh()
        clock.advance(1)
        assert not holder.fresh()

    def test_reckons_from_before_the_beat(self, store: Store, clock: FakeClock) -> None:
        """A beat that took a minute to arrive was seen earlier than it was answered."""

        class Slow(FaultyStore):
            def put(self, path, data) -> None:
                super().put(path, data)
                clock.advance(50)

        holder = process(Slow(store), clock)
        holder.beat()
        assert holder.fresh()
        clock.advance(11)
        assert not holder.fresh()

    def test_failed_beat_does_not_freshen(self, store: Store, clock: FakeClock) -> None:
        """What was not written is no beat, and says so."""
        faulty = FaultyStore(store)
        holder = process(faulty, clock)
        holder.beat()
        clock.advance(CLAIM_TIME_S / 2)
        faulty.script.append(Fault.NOT_AT_ALL)
        with pytest.raises(StorageUnavailable):
            holder.beat()
        assert not holder.fresh()

    def test_closed_laptop_loses_its_lease(self, store: Store) -> None:
        """The clock counts suspension: what looks like a moment to it was an hour."""

        class Suspended(FakeClock):
            asleep = 0.0

            def boottime(self) -> float:
                return self.elapsed + self.asleep

        clock = Suspended()
        holder = process(store, clock)
        holder.beat()
        clock.asleep = 3600
        assert not holder.fresh()

    def test_each_process_has_its_own_name(self, store: Store, clock: FakeClock) -> None:
        """Two of one machine and one program are told apart."""
        assert process(store, clock).id != process(store, clock).id


class TestObserver:
    """What others conclude."""

    def test_alive_while_it_moves(self, store: Store, clock: FakeClock) -> None:
        """However long it goes on."""
        holder, observer = process(store, clock), Observer(store, clock)
        for _ in range(10):
            holder.beat()
            assert not observer.stale(holder.id)
            clock.advance(CLAIM_TIME_S - 1)

    def test_stale_after_the_claim_time_without_a_move(
        self, store: Store, clock: FakeClock
    ) -> None:
        """Counted from when this observer first saw it so; another one begins anew."""
        holder, observer = process(store, clock), Observer(store, clock)
        holder.beat()
        clock.advance(1000)
        assert not observer.stale(holder.id)
        clock.advance(CLAIM_TIME_S - 1)
        assert not observer.stale(holder.id)
        clock.advance(1)
        assert observer.stale(holder.id)
        assert not Observer(store, clock).stale(holder.id)

    def test_comes_back_to_life(self, store: Store, clock: FakeClock) -> None:
        """A process that was slow and beats again is alive again."""
        holder, observer = process(store, clock), Observer(store, clock)
        holder.beat()
        observer.stale(holder.id)
        clock.advance(CLAIM_TIME_S)
        assert observer.stale(holder.id)
        holder.beat()
        assert not observer.stale(holder.id)

    def test_who_left_in_order_is_stale_at_once(self, store: Store, clock: FakeClock) -> None:
        """Nobody waits for a process that said goodbye."""
        holder = process(store, clock)
        holder.start()
        holder.stop()
        assert Observer(store, clock).stale(holder.id)
        assert not holder.fresh()

    def test_never_seen_is_stale_after_the_claim_time(self, store: Store, clock: FakeClock) -> None:
        """A process without a heartbeat gets the same time as any other."""
        observer = Observer(store, clock)
        assert not observer.stale("nobody")
        clock.advance(CLAIM_TIME_S)
        assert observer.stale("nobody")

    def test_who_can_not_see_concludes_nothing(self, store: Store, clock: FakeClock) -> None:
        """Storage was away: the time of blindness does not count against the holder."""
        faulty = FaultyStore(store)
        holder, observer = process(store, clock), Observer(faulty, clock)
        holder.beat()
        observer.stale(holder.id)
        clock.advance(CLAIM_TIME_S)
        faulty.script.append(Fault.NOT_AT_ALL)
        with pytest.raises(StorageUnavailable):
            observer.stale(holder.id)
        assert not observer.stale(holder.id)

    def test_wall_clocks_do_not_matter(self, store: Store) -> None:
        """Holder and observer may be days apart by their wall clocks."""
        from datetime import UTC, datetime

        holder = process(store, FakeClock(datetime(2001, 1, 1, tzinfo=UTC)))
        clock = FakeClock(datetime(2030, 1, 1, tzinfo=UTC))
        observer = Observer(store, clock)
        holder.beat()
        assert not observer.stale(holder.id)
        clock.advance(CLAIM_TIME_S - 1)
        holder.beat()
        assert not observer.stale(holder.id)


def test_stopping_unused_writes_nothing(store: Store, clock: FakeClock) -> None:
    """A process that held nothing leaves nothing."""
    process(store, clock).stop()
    assert store.list("processes") == []


def test_beats_by_itself_until_stopped(store: Store) -> None:
    """The background thread moves the counter, and is gone after stop."""
    holder = Process(store, SystemClock(), beat_s=0.01)
    holder.start()
    holder.start()
    path = f"processes/{holder.id}.json"
    first = store.get(path)
    deadline = time.monotonic() + 10
    while store.get(path) == first and time.monotonic() < deadline:
        pass
    assert store.get(path) != first
    holder.stop()
    assert "heartbeat" not in [thread.name for thread in threading.enumerate()]
    assert Observer(store, FakeClock()).stale(holder.id)
