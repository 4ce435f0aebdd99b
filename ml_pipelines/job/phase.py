"""When is a job over? The one phase function, for KubeRay and the local Ray alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ml_pipelines.job import endings
from ml_pipelines.job.status import Cell
from ml_pipelines.job.verdict import VerdictClass

if TYPE_CHECKING:
    from ml_pipelines.job.clocks import Clocks, Spent
    from ml_pipelines.job.known import Known
    from ml_pipelines.job.observation import Observation
    from ml_pipelines.job.verdict import Verdict


# How long a lost worker may stay in the way of another: its node may come back, and a driver that
# misses it ends by itself.
STUCK_S = 90.0


class Phase(StrEnum):
    """Where a job stands. The last four are ends and are never left."""

    QUEUED = "QUEUED"
    PROVISIONING = "PROVISIONING"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    FINISHING = "FINISHING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    LOST = "LOST"

    @property
    def ended(self) -> bool:
        """Whether this is an end."""
        return self in ENDS


ENDS = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED, Phase.LOST})


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an attempt stands now. `verdict` is set at an end, and is the engine's alone.

    `verdicts.verdict_of` makes the last word of it, with the log and the result at hand.
    `warnings` are told once: each is new with this observation.
    """

    phase: Phase
    sentence: str
    verdict: Verdict | None = None
    warnings: tuple[str, ...] = ()

    def phase_with(self, verdict: Verdict) -> Phase:
        """The end that `verdict`, the last word, makes of this standing."""
        if self.phase is Phase.LOST and not verdict.ok:
            return Phase.LOST
        return _phase_for(verdict)


def phase_of(obs: Observation, known: Known, clocks: Clocks, now: float) -> Standing:
    """Where the attempt stands. `known` is what `Known.after(obs, …)` returned; `now` in its time.

    Pure and total: every status ends or has a clock that ends it, whatever its words are.
    """
    warnings = known.news + _stall(known, clocks)
    ended = (
        _lost(obs, known, clocks, now)
        or _ended(known, clocks, now)
        or _hopeless(known)
        or _short_of_a_worker(obs, known, now)
    )
    if ended is not None:
        phase, verdict = ended
        return Standing(phase, verdict.sentence, verdict, warnings)
    return Standing(_PHASES[known.cell], _sentence(obs, known), None, warnings)


_PHASES = {
    Cell.NEW: Phase.PROVISIONING,
    Cell.QUEUED: Phase.QUEUED,
    Cell.PROVISIONING: Phase.PROVISIONING,
    Cell.WAITING: Phase.PENDING,
    Cell.PENDING: Phase.PENDING,
    Cell.RUNNING: Phase.RUNNING,
    Cell.DONE: Phase.FINISHING,
    Cell.RETRYING: Phase.PROVISIONING,
    Cell.LEAVING: Phase.FINISHING,
    Cell.ENDED: Phase.FINISHING,
}
End = tuple[Phase, "Verdict"]


def _phase_for(verdict: Verdict) -> Phase:
    if verdict.ok:
        return Phase.SUCCEEDED
    return Phase.CANCELLED if verdict.cls is VerdictClass.CANCELLED else Phase.FAILED


def _lost(obs: Observation, known: Known, clocks: Clocks, now: float) -> End | None:
    if known.other_uid and known.ended is None:
        return Phase.LOST, endings.replaced_by_others(known)
    if obs.rayjob is not None or known.ended is not None:
        return None
    if known.done is not None:
        verdict = endings.verdict_of_status(known.done, known)
        return _phase_for(verdict), verdict
    if known.seen is None:
        waited = now - known.missing_since
        return (Phase.LOST, endings.never_there()) if waited >= clocks.unseen_s else None
    # One answer may be a stale replica's: it must be given twice.
    return (Phase.LOST, endings.deleted_by_others(known)) if known.missing > 1 else None


def _ended(known: Known, clocks: Clocks, now: float) -> End | None:
    if known.ended is not None:
        verdict = endings.verdict_of_status(known.ended, known)
        return _phase_for(verdict), verdict
    if known.head_lost is not None and known.cell is not Cell.DONE:
        return Phase.FAILED, endings.head_lost(known)
    spent = known.clock.plus(known.cell, max(now - (known.at or now), 0.0))
    if spent.drain >= clocks.finishing_s and known.cell is Cell.DONE and known.done is not None:
        verdict = endings.verdict_of_status(known.done, known)
        return _phase_for(verdict), verdict
    if spent.drain >= clocks.finishing_s and known.cell is Cell.LEAVING:
        return Phase.LOST, endings.deleted_by_others(known)
    if known.cell is Cell.DONE:
        return None
    return _out_of_time(known, spent, clocks)


def _out_of_time(known: Known, spent: Spent, clocks: Clocks) -> End | None:
    if spent.queue >= clocks.queue_s and known.cell is Cell.QUEUED:
        waited = f"still in the queue after {clocks.queue_s:.0f} s"
        verdict = endings.late_start(known, waited, limit="limits.queue_s")
    elif spent.run >= clocks.run_s:
        verdict = endings.ran_too_long(known, clocks.run_s)
    elif spent.provisioning >= clocks.provisioning_s:
        late = f"not running after {clocks.provisioning_s:.0f} s"
        verdict = endings.late_start(known, late)
    else:
        return None
    return Phase.FAILED, verdict


def _hopeless(known: Known) -> End | None:
    waiting = known.missing == 0 and known.cell is not Cell.RUNNING
    verdict = endings.hopeless(known) if waiting else None
    return None if verdict is None else (Phase.FAILED, verdict)


def _short_of_a_worker(obs: Observation, known: Known, now: float) -> End | None:
    """A worker that stays for ever on a machine without power is never replaced by the engine."""
    desired = obs.cluster.desired_workers if obs.cluster else None
    workers = [pod for pod in obs.pods if pod.role == "worker"]
    if known.cell is not Cell.RUNNING or desired is None:
        return None
    if sum(not pod.deleting for pod in workers) >= desired:
        return None
    stuck = {pod.uid for pod in workers if pod.deleting and pod.gone_at is not None}
    for loss in known.losses:
        if loss.uid in stuck and now - loss.at >= STUCK_S:
            return Phase.FAILED, endings.worker_lost(known, loss)
    return None


def _stall(known: Known, clocks: Clocks) -> tuple[str, ...]:
    """Silence only warns, once in every `stall_s`."""
    if known.cell is not Cell.RUNNING or None in {known.heard_at, known.at, known.previous_at}:
        return ()
    assert known.heard_at is not None
    assert known.at is not None
    assert known.previous_at is not None
    quiet = known.at - known.heard_at
    before = max(known.previous_at - known.heard_at, 0.0)
    if quiet // clocks.stall_s <= before // clocks.stall_s:
        return ()
    return (f"no line and no metric for {quiet:.0f} s; the driver still runs",)


def _sentence(obs: Observation, known: Known) -> str:
    if obs.rayjob is None:
        return "the engine doesn't show the job; asking again"
    if known.diagnosis is not None and known.cell is Cell.RUNNING:
        return f"the driver runs; {known.diagnosis.sentence}"
    if known.diagnosis is not None:
        return known.diagnosis.sentence
    if known.cell is Cell.DONE and known.done is not None:
        return f"the driver has ended ({known.done.job_status}); waiting for the engine"
    return _SENTENCES.get(known.cell, "starting")


_SENTENCES = {
    Cell.RUNNING: "the driver runs",
    Cell.RETRYING: "the engine starts it again",
    Cell.LEAVING: "the job is being deleted",
}
