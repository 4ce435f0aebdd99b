"""A job's log in run storage: every byte once, however many keep it at once."""

from __future__ import annotations

import random

import pytest

from ml_pipelines.clock import FakeClock
from ml_pipelines.lifecycle.logkeeping import LogKeeper, kept_log, kept_tail
from ml_pipelines_tests.plain_store import PlainStore

LOG = b"".join(b"line %d\n" % n for n in range(400))


def kept(store: PlainStore) -> bytes:
    return b"".join(kept_log(store, "job", 1))


@pytest.mark.parametrize("seed", range(50))
def test_several_followers_keep_each_byte_once(seed: int, clock: FakeClock) -> None:
    """One stood still and goes on where others have been: in pieces and as one object."""
    rng = random.Random(seed)
    store = PlainStore()
    keepers = [LogKeeper(store, "job", 1, clock) for _ in range(3)]
    while min(keeper.offset + keeper.unkept for keeper in keepers) < len(LOG):
        keeper = rng.choice(keepers)
        start = keeper.offset + keeper.unkept
        keeper.add(start, LOG[start : start + rng.randint(1, 300)])
        keeper.flush(due=rng.random() < 0.5)
        assert LOG.startswith(kept(store))
    rng.choice(keepers).finish()
    assert kept(store) == LOG
    assert kept_tail(store, "job", 1)[-1] == "line 399"


def test_last_piece_is_kept_where_another_had_kept_a_part_of_it(clock: FakeClock) -> None:
    """Both read the end; the one that finishes has more of it."""
    store = PlainStore()
    one, other = (LogKeeper(store, "job", 1, clock) for _ in range(2))
    one.add(0, LOG)
    other.add(0, LOG[:100])
    other.flush(last=True)
    one.finish()
    assert kept(store) == LOG


def test_pieces_that_overlap_are_read_once() -> None:
    """Whoever wrote them so: reading goes on where the one before ended."""
    store = PlainStore()
    store.put("jobs/job/logs/a1/000000000000000.log", b"line 0\nline 1\n")
    store.put("jobs/job/logs/a1/000000000000007.log", b"line 1\nline 2\n")
    assert kept(store) == b"line 0\nline 1\nline 2\n"
    assert LogKeeper(store, "job", 1, FakeClock()).offset == 21
