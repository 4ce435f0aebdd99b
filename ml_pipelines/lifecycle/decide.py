"""What happens next to a job: a pure function of its journal and of what is seen of it.

The loop observes, asks `next_step`, and does what it says. Nothing here looks at a clock or at
the world; so every history, however faulty, can be played through in a test.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ml_pipelines.job.attempts import Decision, next_attempt
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import Verdict
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
    """Nothing to decide yet: look again."""


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
    """What the loop knows of the open attempt beyond the journal.

    `verdict` is None while the attempt lives. `elapsed_s` is how long its driver ran.
    """

    phase: Phase
    verdict: Verdict | None = None
    elapsed_s: float = 0.0


def next_step(state: JournalState, sight: Sight | None) -> Step:
    """The next step of a job; `sight` is None when its open attempt was not looked at yet."""
    if state.cleaned:
        return Done()
    if state.ended is not None:
        return CleanUp()
    if state.cancelled is not None:
        return Finish(Phase.CANCELLED, cancelled(state.cancelled.by, state.cancelled.reason))
    attempt = state.open_attempt
    if attempt is None:
        return _between_attempts(state)
    if not attempt.uid:
        return Create(attempt)
    if sight is None or sight.verdict is None:
        return Watch()
    history = (*_history(state), sight.verdict)
    decision = _decision(state, history, sight.elapsed_s)
    return Close(attempt, sight.verdict, sight.phase, decision)


def _between_attempts(state: JournalState) -> Step:
    if not state.attempts:
        return Open(1, 0.0, "")
    last = state.attempts[-1]
    history = _history(state)
    decision = _decision(state, history, float(last.data.get("elapsed_s") or 0.0))
    if decision.retry:
        return Open(last.number + 1, decision.delay_s, decision.sentence)
    phase = Phase(str(last.data.get("phase") or Phase.FAILED))
    return Finish(phase, history[-1])


def _history(state: JournalState) -> tuple[Verdict, ...]:
    return tuple(Verdict.from_json(a.verdict) for a in state.attempts if a.verdict is not None)


def _decision(state: JournalState, history: tuple[Verdict, ...], elapsed_s: float) -> Decision:
    # Seeded by the job and the attempt: two loops that decide the same thing decide it alike.
    rand = random.Random(f"{state.run_key}/{len(history)}").random
    return next_attempt(history, elapsed_of_last_s=elapsed_s, rand=rand)
