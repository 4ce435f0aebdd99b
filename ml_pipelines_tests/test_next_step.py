"""What comes next is one step, the same each time, and leads to an end from wherever a job is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_pipelines.job.attempts import BUDGETS
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import Verdict, VerdictClass
from ml_pipelines.journal.entries import Entry
from ml_pipelines.journal.fold import JournalState, fold
from ml_pipelines.lifecycle.decide import (
    CleanUp,
    Close,
    Create,
    Done,
    Finish,
    Open,
    Sight,
    Step,
    Watch,
    next_step,
    result_entry,
)

SUCCESS = Verdict(VerdictClass.SUCCESS, "succeeded")
INFRA = Verdict(VerdictClass.INFRA, "the head was lost")
USER = Verdict(VerdictClass.USER, "the driver failed")
STEPS = (Open, Create, Watch, Close, Finish, CleanUp, Done)
# Each attempt takes four steps, and the most patient budget is PREEMPTED's.
ENOUGH_STEPS = 4 * (sum(BUDGETS.values()) + 2)


@dataclass
class History:
    """A journal under construction; every entry counts, or the fold says that it is void."""

    owes: bool = False
    entries: list[Entry] = field(default_factory=list)

    def add(self, kind: str, role: str = "loop", **data: Any) -> History:
        number = len(self.entries) + 1
        holder = self.state.loop if role == "loop" else self.state.driver
        claim = 0 if kind in {"birth", "claim", "cancel"} or holder is None else holder.number
        entry = Entry(number, kind, role, "w", str(number), claim, "2026-01-01T00:00:00Z", data)
        self.entries.append(entry)
        return self

    @property
    def state(self) -> JournalState:
        return fold("job", self.entries)

    def born(self) -> History:
        return self.add("birth", owes_result=self.owes).add("claim")

    def opened(self) -> History:
        number = len(self.state.attempts) + 1
        return self.add("attempt", number=number, name=f"job-a{number}")

    def created(self) -> History:
        number = len(self.state.attempts)
        return self.add("created", number=number, uid=f"u{number}")

    def driven(self) -> History:
        return self.add("claim", "driver", attempt=len(self.state.attempts))

    def committed(self) -> History:
        return self.add("commit", "driver", what="result", data={"auc": 0.7})

    def closed(self, verdict: Verdict, phase: str = "FAILED") -> History:
        number = len(self.state.attempts)
        return self.add("attempt_end", number=number, verdict=verdict.to_json(), phase=phase)

    def cancelled(self) -> History:
        return self.add("cancel", by="ada")

    def finished(self) -> History:
        return self.add("end", phase="FAILED", verdict=INFRA.to_json())


def born(*, owes: bool = False) -> History:
    return History(owes).born()


def running(*, owes: bool = False) -> History:
    return born(owes=owes).opened().created()


def seen(verdict: Verdict | None, *, number: int = 1, result: int = 0) -> Sight:
    return Sight(number, Phase.FAILED, verdict, 10.0, result)


def opens(number: int) -> Callable[[Step], bool]:
    return lambda step: isinstance(step, Open) and step.number == number


def ends(phase: Phase) -> Callable[[Step], bool]:
    return lambda step: isinstance(step, Finish) and step.phase is phase


def closes(phase: Phase, *, retry: bool) -> Callable[[Step], bool]:
    return lambda step: (
        isinstance(step, Close) and step.phase is phase and step.decision.retry is retry
    )


def is_a(kind: type) -> Callable[[Step], bool]:
    return lambda step: type(step) is kind


TABLE: dict[str, tuple[History, Sight | None, Callable[[Step], bool]]] = {
    "born: the first attempt is opened": (born(), None, opens(1)),
    "opened: it is created": (born().opened(), None, is_a(Create)),
    "opened, uid unknown, but it has a driver: it is there": (
        born().opened().driven(),
        None,
        is_a(Watch),
    ),
    "created: it is watched": (running(), None, is_a(Watch)),
    "seen alive: it is watched": (running(), seen(None), is_a(Watch)),
    "seen to succeed: it is closed": (
        running(),
        seen(SUCCESS),
        closes(Phase.SUCCEEDED, retry=False),
    ),
    "seen to fail for nobody's fault: closed, to be tried again": (
        running(),
        seen(INFRA),
        closes(Phase.FAILED, retry=True),
    ),
    "seen to fail for the user's: closed, not to be tried again": (
        running(),
        seen(USER),
        closes(Phase.FAILED, retry=False),
    ),
    "another attempt was seen: that says nothing of this one": (
        running().closed(INFRA).opened().created(),
        seen(USER, number=1),
        is_a(Watch),
    ),
    "a result came in after the verdict: it is judged again": (
        running(owes=True).driven().committed(),
        seen(INFRA, result=0),
        is_a(Watch),
    ),
    "lost: the next attempt is opened": (running().closed(INFRA), None, opens(2)),
    "preempted: the next attempt is opened": (
        running().closed(Verdict(VerdictClass.PREEMPTED, "preempted")),
        None,
        opens(2),
    ),
    "a user's mistake: the job ends": (running().closed(USER), None, ends(Phase.FAILED)),
    "a success: the job ends": (
        running().closed(SUCCESS, "SUCCEEDED"),
        None,
        ends(Phase.SUCCEEDED),
    ),
    "a success with what it owes": (
        running(owes=True).driven().committed().closed(SUCCESS, "SUCCEEDED"),
        None,
        ends(Phase.SUCCEEDED),
    ),
    "a success without what it owes is not green": (
        running(owes=True).closed(SUCCESS, "SUCCEEDED"),
        None,
        ends(Phase.FAILED),
    ),
    "lost for good keeps its name": (
        running().closed(Verdict(VerdictClass.CANCELLED, "deleted"), "LOST"),
        None,
        ends(Phase.LOST),
    ),
    "closed without a verdict (by another version): tried once": (
        running().add("attempt_end", number=1),
        None,
        opens(2),
    ),
    "closed with words that we don't know is no success": (
        running().closed(Verdict(VerdictClass.OOM, "?"), "ENDED_SOMEHOW"),
        None,
        ends(Phase.FAILED),
    ),
    "cancelled before anything: the job ends": (born().cancelled(), None, ends(Phase.CANCELLED)),
    "cancelled while it runs: the job ends": (
        running().cancelled(),
        seen(SUCCESS),
        ends(Phase.CANCELLED),
    ),
    "cancelled between attempts: no other is opened": (
        running().closed(INFRA).cancelled(),
        None,
        ends(Phase.CANCELLED),
    ),
    "ended: cleaned up": (running().finished(), seen(SUCCESS), is_a(CleanUp)),
    "ended and cancelled later: cleaned up": (running().finished().cancelled(), None, is_a(CleanUp)),
    "cleaned up: done": (running().finished().add("cleaned"), None, is_a(Done)),
}  # fmt: skip


@pytest.mark.parametrize(("history", "sight", "right"), TABLE.values(), ids=TABLE.keys())
def test_table(history: History, sight: Sight | None, right: Callable[[Step], bool]) -> None:
    """Where a job stands, and what comes next."""
    step = next_step(history.state, sight)
    assert right(step), step


VERDICTS = st.builds(
    Verdict,
    st.sampled_from(list(VerdictClass)),
    st.just("because"),
    cause=st.sampled_from(["", "ValueError"]),
)
SIGHTS = st.none() | st.builds(
    Sight,
    st.integers(1, 3),
    st.sampled_from(list(Phase)),
    st.none() | VERDICTS,
    st.floats(0, 1e6),
    st.integers(0, 12),
)
PHASES = st.sampled_from([*Phase, "SOMETHING_ELSE", None])
ENTRIES = st.one_of(
    st.just(("attempt", "loop", {})),
    st.just(("created", "loop", {"uid": "u"})),
    st.just(("claim", "loop", {})),
    st.just(("claim", "driver", {})),
    st.just(("commit", "driver", {"what": "result"})),
    st.just(("cancel", "loop", {"by": "ada"})),
    st.just(("release", "loop", {})),
    st.just(("cleaned", "loop", {})),
    st.tuples(
        st.just("attempt_end"),
        st.just("loop"),
        st.fixed_dictionaries(
            {"verdict": st.none() | VERDICTS.map(Verdict.to_json), "phase": PHASES}
        ),
    ),
    st.tuples(
        st.just("end"),
        st.just("loop"),
        st.fixed_dictionaries({"phase": st.sampled_from(list(Phase)), "verdict": st.none()}),
    ),
)


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Any journal, void entries and all."""
    history = History(draw(st.booleans())).born()
    for kind, role, data in draw(st.lists(ENTRIES, max_size=12)):
        number = len(history.state.attempts)
        numbered = {"number": number + (kind == "attempt"), "attempt": number, "name": "job"}
        history.add(kind, role, **{**numbered, **data})
    return history


@given(histories(), SIGHTS)
def test_every_state_leads_to_exactly_one_step_and_always_the_same(
    history: History, sight: Sight | None
) -> None:
    """Nothing raises, whatever the journal holds; asked twice, the answer is the same."""
    state = history.state
    step = next_step(state, sight)
    assert type(step) in STEPS
    assert next_step(fold("job", history.entries), sight) == step


@given(histories(), SIGHTS)
def test_what_must_never_follow(history: History, sight: Sight | None) -> None:
    """No attempt beside an open one, after a cancel, an end, a success or a user's mistake."""
    state = history.state
    step = next_step(state, sight)
    last = state.attempts[-1] if state.attempts else None
    if isinstance(step, Open | Create):
        assert state.cancelled is None
        assert state.ended is None
    if isinstance(step, Open):
        assert state.open_attempt is None
        if last is not None and last.verdict is not None:
            cls = Verdict.from_json(last.verdict).cls
            assert BUDGETS[cls] > 0
    if isinstance(step, Finish) and step.phase is Phase.SUCCEEDED:
        assert step.verdict.ok
        assert state.birth is not None
        assert state.result is not None or not state.birth.owes_result


def carried_out(history: History, step: Step) -> None:
    """What the loop appends for a step."""
    match step:
        case Open():
            history.opened()
        case Create():
            history.created()
        case Close():
            history.closed(step.verdict, str(step.phase))
        case Finish():
            history.add("end", phase=str(step.phase), verdict=step.verdict.to_json())
        case CleanUp():
            history.add("cleaned")


@settings(max_examples=40)  # a life of a hundred preemptions is long
@given(histories(), st.lists(VERDICTS, min_size=1, max_size=5))
def test_every_state_comes_to_its_end(history: History, verdicts: list[Verdict]) -> None:
    """Whatever verdicts come, each step moves the journal on, and the job is done in the end."""
    history.add("claim")
    sight = None
    for turn in range(ENOUGH_STEPS):
        before = history.state
        step = next_step(before, sight)
        if isinstance(step, Done):
            return
        sight = None
        if isinstance(step, Watch):
            attempt = before.open_attempt
            assert attempt is not None, "there is nothing to watch"
            verdict = verdicts[turn % len(verdicts)]
            sight = Sight(attempt.number, Phase.FAILED, verdict, 10.0, result_entry(before))
            assert isinstance(next_step(before, sight), Close), "a verdict closes the attempt"
            continue
        carried_out(history, step)
        assert not history.state.void or history.state.void[-1][0] != history.state.tail, (
            f"{step} would not count: {history.state.void[-1]}"
        )
    pytest.fail("it goes in circles")


@given(st.integers(0, 5), st.floats(0, 1e5))
def test_two_loops_wait_alike(lost: int, elapsed: float) -> None:
    """Who takes over decides the same delay as the one before: it is seeded by the job."""
    history = born()
    for _ in range(lost + 1):
        history.opened().created().closed(INFRA)
    again = fold("job", history.entries)
    assert next_step(history.state, None) == next_step(again, None)
    sight = Sight(1, Phase.FAILED, INFRA, elapsed)
    assert next_step(running().state, sight) == next_step(running().state, sight)
