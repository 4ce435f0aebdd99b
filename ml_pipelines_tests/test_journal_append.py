"""One append over a store that answers late, twice, wrongly or not at all."""

from __future__ import annotations

from functools import partial

import pytest

from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import (
    JournalCorrupt,
    StorageDenied,
    StorageUnavailable,
    Superseded,
    Undecided,
)
from ml_pipelines.journal.entries import Draft, Entry, decode
from ml_pipelines.journal.fold import Claim, JournalState
from ml_pipelines.journal.record import Journal
from ml_pipelines.storage import Store
from ml_pipelines_tests.faulty_store import Fault, FaultyStore

KEY = "k"
BIRTH = Draft("birth", {"spec": {}})
# An append lists, creates, and reads back: this is where the fault of interest goes.
LIST_OK = Fault.FINE


@pytest.fixture
def faulty(store: Store) -> FaultyStore:
    """A store that does as its script says, over local files and S3."""
    return FaultyStore(store)


@pytest.fixture
def journal(faulty: FaultyStore, clock: FakeClock) -> Journal:
    """The journal of a job that was born."""
    journal = opened(faulty, clock, "me")
    journal.append(lambda _: BIRTH, role="loop", claim=0)
    return journal


def opened(store: Store, clock: FakeClock, writer: str) -> Journal:
    return Journal(store, KEY, writer=writer, clock=clock, budget_s=5.0)


def entries(store: FaultyStore) -> list[Entry]:
    found = []
    for number, path in enumerate(store.inner.list(f"jobs/{KEY}/journal"), start=1):
        record = decode(number, store.inner.get(path))
        assert isinstance(record, Entry)
        found.append(record)
    return found


def say(draft: Draft, _: JournalState) -> Draft:
    return draft


ANSWERS = {
    "at once": [Fault.FINE],
    "not at all, then well": [Fault.NOT_AT_ALL],
    "late": [Fault.LATE, Fault.FINE, Fault.FINE, Fault.FINE, Fault.DELIVER],
    "late, and arrives before the second try": [Fault.LATE, Fault.DELIVER],
    "written, answer lost": [Fault.LOST_ANSWER],
    "written, and taken by its own second try": [Fault.TWICE],
    "yes without writing": [Fault.LIES_YES],
    "taken, and nothing is there": [Fault.LIES_NO],
    "written, then not there at first": [Fault.FINE, Fault.LIES_NO, Fault.LIES_NO],
    "written, then half of it is read": [Fault.FINE, Fault.LIES_YES, Fault.LIES_YES],
    "written, then unreadable for long": [Fault.FINE, *[Fault.LIES_YES] * 3],
    "written, and no answer to the reading": [Fault.FINE, Fault.NOT_AT_ALL, Fault.NOT_AT_ALL],
}


@pytest.mark.parametrize("answers", ANSWERS.values(), ids=ANSWERS.keys())
def test_is_written_exactly_once(
    faulty: FaultyStore, journal: Journal, answers: list[Fault]
) -> None:
    """Case B1's kind: whatever storage says of it, one call leaves one entry and returns it."""
    claim = journal.claim_loop().number
    faulty.script.extend([LIST_OK, *answers])
    entry = journal.append(lambda _: Draft("ledger", {"pod": "a"}), role="loop", claim=claim)
    faulty.deliver()
    assert entry is not None
    assert [line["pod"] for line in journal.read().ledger] == ["a"]
    assert [e.kind for e in entries(faulty)].count("ledger") == 1
    assert entries(faulty)[entry.number - 1].nonce == entry.nonce


def test_undecided_when_the_time_is_over(
    faulty: FaultyStore, journal: Journal, clock: FakeClock
) -> None:
    """Storage never says; the entry may appear later, and then counts for whoever reads."""
    claim = journal.claim_loop().number
    faulty.script.extend([LIST_OK, *[Fault.LATE] * 100])
    began = clock.monotonic()
    with pytest.raises(Undecided, match=r"00000003\.json"):
        journal.append(lambda _: Draft("note", {}), role="loop", claim=claim)
    assert 5.0 <= clock.monotonic() - began < 15.0
    faulty.script.clear()
    assert journal.read().tail == 2
    faulty.deliver()
    assert journal.read().tail == 3


def test_late_entry_loses_against_what_came_first(
    faulty: FaultyStore, journal: Journal, clock: FakeClock
) -> None:
    """What was undecided never lands behind what others wrote meanwhile."""
    claim = journal.claim_loop().number
    faulty.script.extend([LIST_OK, *[Fault.LATE] * 100])
    with pytest.raises(Undecided):
        journal.append(lambda _: Draft("note", {}), role="loop", claim=claim)
    faulty.script.clear()
    other = opened(faulty, clock, "other").claim_loop()
    faulty.deliver()
    state = journal.read()
    assert (state.tail, state.notes) == (3, ())
    assert state.loop == other


def test_nothing_written_is_said_so(faulty: FaultyStore, journal: Journal) -> None:
    """Storage that can't even be read leaves no doubt: nothing was written."""
    claim = journal.claim_loop().number
    faulty.script.extend([Fault.NOT_AT_ALL] * 1000)
    with pytest.raises(StorageUnavailable):
        journal.append(lambda _: Draft("note", {}), role="loop", claim=claim)
    faulty.script.clear()
    assert journal.read().tail == 2


def test_403_ends_the_append_at_once(journal: Journal, faulty: FaultyStore) -> None:
    """Permissions don't heal by waiting, and nothing was written."""

    class Denied(FaultyStore):
        def create(self, path: str, data: bytes) -> None:
            raise StorageDenied(f"{path}: 403")

    denied = Journal(Denied(faulty.inner), KEY, writer="me", clock=FakeClock())
    with pytest.raises(StorageDenied):
        denied.claim_loop()
    assert journal.read().tail == 1


def test_decides_again_when_others_were_first(
    faulty: FaultyStore, journal: Journal, clock: FakeClock
) -> None:
    """The number was taken: the decision is asked for again, with what stands there now."""
    claim = journal.claim_loop().number
    journal.append(lambda _: Draft("attempt", {"number": 1, "name": "a"}), role="loop", claim=claim)
    rival = opened(faulty, clock, "driver")
    faulty.rival = lambda: rival.claim_driver(1, "c")
    seen: list[JournalState] = []

    def decide(state: JournalState) -> Draft:
        seen.append(state)
        return Draft("note", {})

    faulty.script.extend([LIST_OK, Fault.RIVAL])
    entry = journal.append(decide, role="loop", claim=claim)
    assert [state.tail for state in seen] == [3, 4]
    assert [state.driver is not None for state in seen] == [False, True]
    assert entry is not None
    assert entry.number == 5


def test_newer_claim_means_stop(faulty: FaultyStore, journal: Journal, clock: FakeClock) -> None:
    """A claim that came between reading and writing: Superseded, and nothing is left."""
    claim = journal.claim_loop().number
    faulty.rival = lambda: opened(faulty, clock, "rival").claim_loop()
    faulty.script.extend([LIST_OK, Fault.RIVAL])
    with pytest.raises(Superseded, match="rival"):
        journal.append(
            lambda _: Draft("attempt", {"number": 1, "name": "a"}), role="loop", claim=claim
        )
    assert journal.read().attempts == ()
    assert journal.read().tail == 3


def test_superseded_even_when_there_is_nothing_to_say(journal: Journal, clock: FakeClock) -> None:
    """Whoever asks under an old claim learns of the newer one, whatever it would decide."""
    old = journal.claim_loop().number
    journal.claim_loop()
    with pytest.raises(Superseded):
        journal.append(lambda _: None, role="loop", claim=old)


def test_none_writes_nothing(journal: Journal) -> None:
    """A decision to say nothing leaves nothing."""
    claim = journal.claim_loop().number
    assert journal.append(lambda _: None, role="loop", claim=claim) is None
    assert journal.read().tail == 2


def test_one_birth_of_two(faulty: FaultyStore, clock: FakeClock) -> None:
    """Two processes submit the same job at once: one birth, and both know it."""

    def be_born(state: JournalState) -> Draft | None:
        return None if state.birth else BIRTH

    one, two = opened(faulty, clock, "one"), opened(faulty, clock, "two")
    faulty.rival = lambda: two.append(be_born, role="loop", claim=0)
    faulty.script.extend([LIST_OK, Fault.RIVAL])
    assert one.append(be_born, role="loop", claim=0) is None
    assert [e.writer for e in entries(faulty)] == ["two"]


def test_one_claim_of_two(faulty: FaultyStore, journal: Journal, clock: FakeClock) -> None:
    """Two processes find the loop free; the second one learns that it no longer is."""
    journal.claim_loop()
    one, two = opened(faulty, clock, "one"), opened(faulty, clock, "two")
    one.read()
    two.read()
    two.claim_loop()
    with pytest.raises(Superseded, match="two claimed the loop first"):
        one.claim_loop()
    assert one.claim_loop(over=3).number == 4


def test_driver_of_a_closed_attempt_can_not_claim(journal: Journal) -> None:
    """Case B11: the pods of attempt 1 may live on; they commit nothing any more."""
    claim = journal.claim_loop().number
    for kind, number in (("attempt", 1), ("attempt_end", 1), ("attempt", 2)):
        draft = Draft(kind, {"number": number, "name": f"a{number}"})
        journal.append(partial(say, draft), role="loop", claim=claim)
    with pytest.raises(Superseded, match="attempt 1 is not open"):
        journal.claim_driver(1, "c")


def test_commit_after_eviction_is_refused(journal: Journal) -> None:
    """Case B11: the incarnation before can't publish once the next one has claimed."""
    claim = journal.claim_loop().number
    journal.append(lambda _: Draft("attempt", {"number": 1, "name": "a"}), role="loop", claim=claim)
    first = journal.claim_driver(1, "c1")
    kept = journal.commit(first.number, "checkpoint", path="p1", sha256="s", data={"step": 1})
    second = journal.claim_driver(1, "c2")
    with pytest.raises(Superseded):
        journal.commit(first.number, "checkpoint", path="p2", sha256="s")
    assert (first.incarnation, second.incarnation) == (1, 2)
    assert journal.read().commits == (kept,)


def test_release_ends_the_claim(journal: Journal) -> None:
    """Who left in order writes no more under that claim."""
    claim = journal.claim_loop().number
    journal.release("loop", claim)
    state = journal.read()
    assert state.loop is not None
    assert state.loop.released
    with pytest.raises(Superseded):
        journal.release("loop", claim)


def test_next_entry_voids_half_an_entry(faulty: FaultyStore, journal: Journal) -> None:
    """A writer died while writing: the next one names its number, and all read on."""
    faulty.inner.create(f"jobs/{KEY}/journal/00000002.json", b'{"number":2,"ki')
    assert journal.read().tail == 2
    assert journal.claim_loop().number == 3
    assert entry_at(faulty, 3).voids == (2,)
    assert opened(faulty, FakeClock(), "later").read() == journal.read()


def test_what_was_unreadable_counts_once_it_is_read(
    faulty: FaultyStore, journal: Journal, clock: FakeClock
) -> None:
    """Storage showed half a claim for long: its answer was wrong, not the entry."""
    old = journal.claim_loop().number
    opened(faulty, clock, "other").claim_loop()
    faulty.script.extend([LIST_OK, *[Fault.LIES_YES] * 100])
    assert journal.read().loop == Claim(old, "me")
    faulty.script.clear()
    assert journal.read().loop == Claim(old + 1, "other")


def test_gap_is_corrupt_and_not_empty(faulty: FaultyStore, journal: Journal) -> None:
    """Somebody deleted the first entry: an error that says which."""
    journal.claim_loop()
    faulty.inner.delete(f"jobs/{KEY}/journal/00000001.json")
    with pytest.raises(JournalCorrupt, match=r"00000001\.json is missing"):
        opened(faulty, FakeClock(), "later").read()


def test_listed_but_not_there_is_storage_trouble(faulty: FaultyStore, journal: Journal) -> None:
    """Storage that contradicts itself is not believed, and the journal isn't called corrupt."""
    faulty.script.extend([Fault.FINE, *[Fault.LIES_NO] * 4])
    with pytest.raises(StorageUnavailable):
        opened(faulty, FakeClock(), "later").read()


def test_no_journal_is_an_empty_state(store: Store) -> None:
    """A run key that nobody used has no birth."""
    state = Journal(store, "never", writer="w").read()
    assert (state.birth, state.tail) == (None, 0)


def entry_at(store: FaultyStore, number: int) -> Entry:
    record = decode(number, store.inner.get(f"jobs/{KEY}/journal/{number:08d}.json"))
    assert isinstance(record, Entry)
    return record
