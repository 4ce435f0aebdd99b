"""Two loops and two drivers over a store that answers late, twice, wrongly or not at all.

Whatever happens: no number is decided twice, nothing that was promised is lost, and nothing
counts that was written under a claim that held no more. What counts is judged here a second
time, by sentences over the entries as they lie in storage, not by the fold.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import JournalCorrupt, StorageUnavailable, Superseded, Undecided
from ml_pipelines.journal.entries import Draft, Entry, Record, decode, encode
from ml_pipelines.journal.fold import UNREAD_BY_SUCCESSOR, JournalState, fold
from ml_pipelines.journal.record import Journal, Role, journal_prefix
from ml_pipelines.storage import Store, open_store
from ml_pipelines_tests.faulty_store import Fault, FaultyStore

KEY = "job"
PREFIX = journal_prefix(KEY)
SOME_FAULTS = st.lists(st.sampled_from(list(Fault)), max_size=8)
# Enough of one kind to outlast every second look.
ONE_FAULT_AGAIN_AND_AGAIN = st.sampled_from(list(Fault)).map(lambda fault: [fault] * 8)
FAULTS: st.SearchStrategy[list[Fault]] = st.one_of(
    st.just([]), SOME_FAULTS, ONE_FAULT_AGAIN_AND_AGAIN
)
WHO = st.sampled_from([0, 1])
CUT_SHORT = (JournalCorrupt, StorageUnavailable, Undecided)


@dataclass
class Actor:
    """A process: its journal, and the claim that it believes to hold."""

    name: str
    role: Role
    journal: Journal
    claim: int = 0


@dataclass(frozen=True)
class Call:
    """One call of `append` and what came of it: an entry's number, "nothing" or "unknown"."""

    id: str
    kind: str
    outcome: int | str
    attempt: int = 0


class TwoLoopsTwoDrivers(RuleBasedStateMachine):
    """Every rule is one action of one actor, under a script of faults."""

    def __init__(self, inner: Store) -> None:
        super().__init__()
        self.inner = inner
        inner.delete_prefix("jobs")
        self.clock = FakeClock()
        self.store = FaultyStore(inner)
        self.store.rival = self.rival_acts
        self.ids = itertools.count()
        self.calls: list[Call] = []
        self.acts: list[int] = []
        self.may_stop = False
        self.lie_there: list[Record] = []
        self.folded = JournalState(KEY)
        self.loops = [self.actor("loop-a", "loop"), self.actor("loop-b", "loop")]
        self.drivers = [self.actor("driver-c", "driver"), self.actor("driver-d", "driver")]
        self.rivals = itertools.cycle([self.rival_claims, self.rival_opens, self.rival_drives])

    def actor(self, name: str, role: Role) -> Actor:
        return Actor(name, role, self.journal(name))

    def journal(self, name: str) -> Journal:
        return Journal(self.store, KEY, writer=name, clock=self.clock, budget_s=3.0)

    @initialize(may_stop=st.booleans(), under_way=st.booleans())
    def birth(self, may_stop: bool, under_way: bool) -> None:
        self.may_stop = may_stop
        self.append(self.loops[0], "birth", claim=0)
        if under_way:
            self.claim_as(self.loops[0])
            self.open_next(self.loops[0])
            self.claim_as(self.drivers[0], attempt=1, cluster="c0")

    # ── what actors do ──────────────────────────────────────────────────────────────────────

    def append(self, actor: Actor, kind: str, *, claim: int, **data: object) -> int | None:
        """One call of append, with what came of it noted; returns the entry's number."""
        call_id = f"{next(self.ids)}"
        draft = Draft(kind, {**data, "call": call_id})
        return self.call(actor, lambda _: draft, call_id, kind, claim=claim)

    def call(self, actor: Actor, decide, call_id: str, kind: str, *, claim: int) -> int | None:
        faulty = bool(self.store.script)
        outcome: int | str = "nothing"
        attempt = 0
        try:
            entry = actor.journal.append(decide, role=actor.role, claim=claim)
            if entry is not None:
                outcome = entry.number
                attempt = int(entry.data.get("number", 0)) if kind == "attempt" else 0
        except Superseded:
            pass
        except Undecided:
            assert faulty, "a store without faults leaves nothing undecided"
            outcome = "unknown"
        except StorageUnavailable:
            assert faulty, "a store without faults answers"
        except JournalCorrupt:
            assert self.store.shown_in_half, "nobody was shown half an entry"
        self.calls.append(Call(call_id, kind, outcome, attempt))
        return outcome if isinstance(outcome, int) else None

    def claim_as(self, actor: Actor, *, kind: str = "claim", **data: object) -> None:
        number = self.append(actor, kind, claim=0, **data)
        if number is not None:
            actor.claim = number

    def open_next(self, loop: Actor) -> None:
        """Decide on an attempt, and act on it as the design says: read again first."""
        call_id = f"{next(self.ids)}"

        def decide(state: JournalState) -> Draft | None:
            if state.open_attempt or state.ended or state.cancelled or len(state.attempts) > 3:
                return None
            number = len(state.attempts) + 1
            return Draft("attempt", {"number": number, "name": f"j-{number}", "call": call_id})

        number = self.call(loop, decide, call_id, "attempt", claim=loop.claim)
        if number is None:
            return
        try:
            state = loop.journal.read()
        except CUT_SHORT:
            return
        held = state.loop is not None and state.loop.number == loop.claim
        if held and state.open_attempt is not None:
            self.acts.append(state.open_attempt.number)

    # ── rivals: what somebody else does between two calls of one actor ──────────────────────

    def rival_acts(self) -> None:
        next(self.rivals)()

    def rival_claims(self) -> None:
        self.claim_as(self.actor("rival", "loop"))

    def rival_opens(self) -> None:
        rival = self.actor("rival", "loop")
        self.claim_as(rival)
        if rival.claim:
            self.open_next(rival)

    def rival_drives(self) -> None:
        rival = self.actor("rival", "driver")
        self.claim_as(rival, attempt=len(self.truth().attempts), cluster="r")

    # ── rules ───────────────────────────────────────────────────────────────────────────────

    @rule(who=WHO, faults=FAULTS)
    def claim_the_loop(self, who: int, faults: list[Fault]) -> None:
        self.play(faults)
        self.claim_as(self.loops[who])

    @rule(who=WHO, faults=FAULTS)
    def open_an_attempt(self, who: int, faults: list[Fault]) -> None:
        self.play(faults)
        if self.loops[who].claim:
            self.open_next(self.loops[who])

    @rule(who=WHO, faults=FAULTS, kind=st.sampled_from(["ledger", "note", "attempt_end"]))
    def write_as_loop(self, who: int, faults: list[Fault], kind: str) -> None:
        self.play(faults)
        loop = self.loops[who]
        if loop.claim:
            self.append(loop, kind, claim=loop.claim, number=len(self.truth().attempts))

    @precondition(lambda self: self.may_stop and self.truth().attempts)
    @rule(who=WHO, faults=FAULTS)
    def cancel(self, who: int, faults: list[Fault]) -> None:
        self.play(faults)
        self.claim_as(self.loops[who], kind="cancel")

    @precondition(lambda self: self.may_stop and self.truth().attempts)
    @rule(who=WHO, faults=FAULTS)
    def end(self, who: int, faults: list[Fault]) -> None:
        self.play(faults)
        loop = self.loops[who]
        if loop.claim:
            self.append(loop, "end", claim=loop.claim, phase="FAILED")

    @rule(who=WHO, faults=FAULTS)
    def claim_the_seat(self, who: int, faults: list[Fault]) -> None:
        self.play(faults)
        attempt = len(self.truth().attempts)
        self.claim_as(self.drivers[who], attempt=attempt, cluster=f"c{who}")

    @rule(who=WHO, faults=FAULTS)
    def commit(self, who: int, faults: list[Fault]) -> None:
        self.play(faults)
        driver = self.drivers[who]
        if driver.claim:
            self.append(driver, "commit", claim=driver.claim, what="checkpoint", path="p")

    @rule(who=WHO, faults=FAULTS, role=st.sampled_from(["loop", "driver"]))
    def release(self, who: int, faults: list[Fault], role: str) -> None:
        self.play(faults)
        actor = (self.loops if role == "loop" else self.drivers)[who]
        if actor.claim:
            self.append(actor, "release", claim=actor.claim)

    @rule(who=WHO, role=st.sampled_from(["loop", "driver"]))
    def crash_and_start_again(self, who: int, role: str) -> None:
        actor = (self.loops if role == "loop" else self.drivers)[who]
        actor.journal = self.journal(actor.name)

    @rule(which=st.integers(1, 3), kind=st.sampled_from(["commit", "commit", "note"]))
    def driver_writes_blindly(self, which: int, kind: str) -> None:
        """A writer that asks nobody: its bytes lie there, and the fold must judge them."""
        self.write_raw(kind, "driver", which, {"what": "checkpoint", "path": "late"})

    @rule(
        which=st.integers(1, 2),
        skip=st.integers(0, 2),
        kind=st.sampled_from(["attempt", "attempt", "attempt_end", "ledger"]),
    )
    def loop_writes_blindly(self, which: int, skip: int, kind: str) -> None:
        """The same for a loop; even the holder may be wrong about the attempt."""
        number = len(self.truth().attempts) + skip
        self.write_raw(kind, "loop", which, {"number": number})

    @rule(
        turn=st.sampled_from(["attempt_end", "attempt_end", "release", "cancel", "end", "note"]),
        late=st.sampled_from(["commit", "ledger", "attempt"]),
    )
    def goes_on_after(self, turn: str, late: str) -> None:
        """The turn of things, and right after it a writer that has not heard of it."""
        if turn in {"cancel", "end"} and not self.may_stop:
            return
        number = len(self.truth().attempts)
        if turn == "cancel":
            self.write_raw("attempt_end", "loop", 1, {"number": number})
        self.write_raw(turn, "loop", 1, {"number": number, "phase": "FAILED"})
        if late == "commit":
            self.write_raw(late, "driver", 1, {"what": "checkpoint", "path": "late"})
        else:
            self.write_raw(late, "loop", 1, {"number": number + 1})
            self.write_raw(late, "loop", 2, {"number": number + 1})

    @rule()
    def somebody_dies_while_writing(self) -> None:
        """Half an entry lies there for good."""
        self.inner.create(self.path(len(self.records()) + 1), b'{"number": 1, "kind": "att')

    @rule()
    def late_writes_arrive(self) -> None:
        self.store.deliver()

    # ── the truth ───────────────────────────────────────────────────────────────────────────

    def play(self, faults: list[Fault]) -> None:
        self.store.script.clear()
        self.store.script.extend(faults)

    def path(self, number: int) -> str:
        return f"{PREFIX}/{number:08d}.json"

    def records(self) -> list[Record]:
        """The entries as they lie there, read past the faults."""
        for path in self.inner.list(PREFIX, after=self.path(len(self.lie_there))):
            number = len(self.lie_there) + 1
            assert path == self.path(number), "a gap"
            self.lie_there.append(decode(number, self.inner.get(path)))
        return self.lie_there

    def truth(self) -> JournalState:
        """What they amount to, by the fold."""
        records = self.records()
        if self.folded.tail != len(records):
            self.folded = fold(KEY, records)
        return self.folded

    def write_raw(self, kind: str, role: str, which: int, data: dict[str, object]) -> None:
        """Write under the last claim of that role but `which`, whether it holds or not."""
        records = self.records()
        claims = [r.number for r in records if isinstance(r, Entry) and is_claim_of(r, role)]
        claim = claims[-which] if len(claims) >= which else 0
        unreadable = itertools.takewhile(lambda r: not isinstance(r, Entry), reversed(records))
        number = len(records) + 1
        entry = Entry(
            number,
            kind,
            role,
            "blind",
            uuid.uuid4().hex,
            claim,
            "",
            data,
            voids=tuple(sorted(each.number for each in unreadable)),
        )
        self.inner.create(self.path(number), encode(entry))

    # ── what must hold ──────────────────────────────────────────────────────────────────────

    @invariant()
    def no_call_is_written_twice_and_none_is_lost(self) -> None:
        """A call that returned an entry left exactly that one; one that returned none, none."""
        void = dict(self.truth().void)
        written = [
            record.data["call"]
            for record in self.records()
            if isinstance(record, Entry)
            and "call" in record.data
            and void.get(record.number) != UNREAD_BY_SUCCESSOR
        ]
        times = Counter(written)
        for call in self.calls:
            if isinstance(call.outcome, int):
                unread = void.get(call.outcome) == UNREAD_BY_SUCCESSOR
                assert times[call.id] == (not unread), call
            elif call.outcome == "nothing":
                assert times[call.id] == 0, call
            else:
                assert times[call.id] <= 1, call

    @invariant()
    def what_was_promised_counts(self) -> None:
        """A successful append is in every later fold, unless its successor couldn't read it."""
        void = dict(self.truth().void)
        for call in self.calls:
            if isinstance(call.outcome, int) and call.outcome in void:
                assert void[call.outcome] == UNREAD_BY_SUCCESSOR, call
                assert self.path(call.outcome) in self.store.shown_in_half, call

    @invariant()
    def no_number_is_decided_twice(self) -> None:
        """No two loops were told to open the same attempt, and none acted on one twice."""
        void = dict(self.truth().void)
        told = [call.attempt for call in self.calls if call.attempt and call.outcome not in void]
        assert len(told) == len(set(told))
        if not self.store.shown_in_half:
            assert len(self.acts) == len(set(self.acts))

    @invariant()
    def only_what_was_written_under_a_holding_claim_counts(self) -> None:
        """Said once more, over the entries that count, without the fold's own rules."""
        records = self.records()
        void = {number for number, _ in self.truth().void}
        valid = [r for r in records if isinstance(r, Entry) and r.number not in void]
        for entry in valid:
            before = [each for each in valid if each.number < entry.number]
            assert_may_count(entry, before)
        commits = [each.number for each in valid if each.kind == "commit"]
        assert [each.entry for each in self.truth().commits] == commits

    def teardown(self) -> None:
        """When storage is well again everybody reads the same, whatever they were told before."""
        self.store.script.clear()
        truth = self.truth()
        for actor in (*self.loops, *self.drivers):
            assert actor.journal.read() == truth


def assert_may_count(entry: Entry, before: list[Entry]) -> None:
    """The rules for one entry, over those that count before it."""
    kinds = [each.kind for each in before]
    if entry.kind == "birth":
        assert before == []
        return
    assert kinds[:1] == ["birth"]
    if "end" in kinds:
        assert entry.kind in {"cleaned", "ledger", "logs", "release"} or is_loop_claim(entry)
    if entry.kind in {"claim", "cancel"}:
        if entry.role == "driver":
            assert open_attempts(before) == [entry.data["attempt"]]
        return
    claims = [each.number for each in before if is_claim_of(each, entry.role)]
    assert claims, "no claim of its role counts before it"
    assert entry.claim == claims[-1]
    assert not [e for e in before if e.kind == "release" and e.claim == entry.claim]
    if entry.role == "driver" and entry.kind != "release":
        claim = next(each for each in before if each.number == entry.claim)
        assert open_attempts(before) == [claim.data["attempt"]]
    if entry.kind == "attempt":
        assert open_attempts(before) == []
        assert "cancel" not in kinds
        assert entry.data["number"] == kinds.count("attempt") + 1
    if entry.kind == "attempt_end":
        assert open_attempts(before) == [entry.data["number"]]


def is_claim_of(entry: Entry, role: str) -> bool:
    return entry.role == role and entry.kind in {"claim", "cancel"}


def is_loop_claim(entry: Entry) -> bool:
    return entry.kind == "claim" and entry.role == "loop"


def open_attempts(entries: list[Entry]) -> list[int]:
    opened = [e.data["number"] for e in entries if e.kind == "attempt"]
    closed = [e.data["number"] for e in entries if e.kind == "attempt_end"]
    if any(e.kind == "end" for e in entries):
        return []
    return [number for number in opened if number not in closed]


def run(store: Store, *, examples: int, steps: int) -> None:
    class OverThisStore(TwoLoopsTwoDrivers):
        def __init__(self) -> None:
            super().__init__(store)

    run_machine(
        OverThisStore,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            # The same histories every time; a longer search is `examples` away.
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            # Explaining a failure traces every line, for minutes.
            phases=[Phase.explicit, Phase.generate, Phase.shrink],
        ),
    )


def test_over_a_store_in_memory() -> None:
    """Many histories, where a call costs nothing."""
    run(open_store(f"memory://{uuid.uuid4().hex}"), examples=120, steps=40)


@pytest.mark.parametrize("store", ["file"], indirect=True)
def test_over_local_files(store: Store) -> None:
    """The same on the atomic creation of a real file system."""
    run(store, examples=15, steps=30)


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_over_s3(store: Store) -> None:
    """The same on S3's conditional writes."""
    run(store, examples=2, steps=12)
