"""What happens next to a job: a pure function of its journal and of what is seen of it.

The loop observes, asks `next_step`, and does what it says. Nothing here looks at a clock or at
the world; so every history, however faulty, can be played through in a test.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ml_pipelines.job.attempts import Decision, next_attempt
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import Verdict, VerdictClass
from ml_pipelines.job.verdicts import cancelled
from ml_pipelines.journal.state import AttemptRecord, JournalState


@dataclass(frozen=True, slots=True)
class Open:
    """Append the attempt of this number, after `delay_s` seconds; then create it."""

    number: int
    delay_s: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Create:
    """Create (or adopt) the RayJob of the open attempt."""

    attempt: AttemptRecord


@dataclass(frozen=True, slots=True)
class Watch:
    """Nothing to decide yet: look at the open attempt again."""

    attempt: AttemptRecord


@dataclass(frozen=True, slots=True)
class Close:
    """Append the end of the open attempt, then delete its RayJob."""

    attempt: AttemptRecord
    verdict: Verdict
    phase: Phase
    decision: Decision


@dataclass(frozen=True, slots=True)
class Finish:
    """Append the end of the job."""

    phase: Phase
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class CleanUp:
    """The job has ended: delete what bears its run key, close its log and its marker."""


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is left to do."""


Step = Open | Create | Watch | Close | Finish | CleanUp | Done


@dataclass(frozen=True, slots=True)
class Sight:
    """What the loop knows of attempt `number` beyond the journal.

    `verdict` is None while the attempt lives. `elapsed_s` is how long its driver ran. `result` is
    the number of the committed result's entry that the verdict reckoned with, 0 for none.
    """

    number: int
    phase: Phase
    verdict: Verdict | None = None
    elapsed_s: float = 0.0
    result: int = 0


def next_step(state: JournalState, sight: Sight | None) -> Step:
    """The next step of a job; `sight` is None when its open attempt was not looked at yet.

    A sight of another attempt, or one that did not reckon with the result that is there now,
    decides nothing.
    """
    if state.cleaned:
        return Done()
    if state.ended is not None:
        return CleanUp()
    if state.cancelled is not None:
        return Finish(Phase.CANCELLED, cancelled(state.cancelled.by, state.cancelled.reason))
    attempt = state.open_attempt
    if attempt is None:
        return _between_attempts(state)
    # A driver that has claimed its seat shows that the RayJob was made, whoever noted its uid.
    if not attempt.uid and state.driver is None:
        return Create(attempt)
    if sight is None or sight.verdict is None or sight.number != attempt.number:
        return Watch(attempt)
    if sight.result != result_entry(state):
        return Watch(attempt)
    decision = _decision(state, (*_history(state), sight.verdict), sight.elapsed_s)
    return Close(attempt, sight.verdict, _end_phase(sight.phase, sight.verdict), decision)


def result_entry(state: JournalState) -> int:
    """The number of the entry that holds the result, 0 for none."""
    return state.result.entry if state.result is not None else 0


def _between_attempts(state: JournalState) -> Step:
    if not state.attempts:
        return Open(1, 0.0, "")
    last = state.attempts[-1]
    history = _history(state)
    decision = _decision(state, history, _seconds(last.data.get("elapsed_s")))
    if decision.retry:
        return Open(last.number + 1, decision.delay_s, decision.sentence)
    return _finish(state, _end_phase(last.data.get("phase"), history[-1]), history[-1])


def _finish(state: JournalState, phase: Phase, verdict: Verdict) -> Finish:
    """Green only with what is owed: the verdict was made before, perhaps by another version."""
    owes = state.birth is not None and state.birth.owes_result
    if phase is Phase.SUCCEEDED and owes and state.result is None:
        missing = "it ended well, but the result that it owes is not in its journal"
        return Finish(Phase.FAILED, Verdict(VerdictClass.UNKNOWN, missing, verdict.evidence))
    return Finish(phase, verdict)


def _end_phase(said: object, verdict: Verdict) -> Phase:
    """The end that goes with the verdict, whatever an entry says: green if and only if it is."""
    if verdict.ok:
        return Phase.SUCCEEDED
    if verdict.cls is VerdictClass.CANCELLED and said != Phase.LOST:
        return Phase.CANCELLED
    return Phase.LOST if said == Phase.LOST else Phase.FAILED


def _history(state: JournalState) -> tuple[Verdict, ...]:
    """One verdict an attempt that has ended."""
    unknown = {"class": VerdictClass.UNKNOWN, "sentence": "its end was recorded without a verdict"}
    return tuple(Verdict.from_json(a.verdict or unknown) for a in state.attempts if a.ended)


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _decision(state: JournalState, history: tuple[Verdict, ...], elapsed_s: float) -> Decision:
    # Seeded by the job and the attempt: two loops that decide the same thing decide it alike.
    rand = random.Random(f"{state.run_key}/{len(history)}").random
    return next_attempt(history, elapsed_of_last_s=elapsed_s, rand=rand)
