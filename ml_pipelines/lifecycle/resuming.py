"""What a loop must remember of an attempt that others watched before it, from the journal; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from ml_pipelines.job.clocks import Spent
from ml_pipelines.job.heads import HeadMemory
from ml_pipelines.job.known import Known
from ml_pipelines.job.observation import Observation
from ml_pipelines.job.phase import Phase, Standing
from ml_pipelines.job.status import Cell, cell_of
from ml_pipelines.job.verdict import Verdict, VerdictClass
from ml_pipelines.journal.state import AttemptRecord, JournalState

GONE_LOOKS = 2  # one answer may be a stale replica's
UNSEEN_S = 30.0  # how long a new object may stay invisible


@dataclass(frozen=True, slots=True)
class Past:
    """What the journal says of one attempt.

    `made` whether its RayJob has been there for longer than it may be invisible, `seen` whether it
    was ever seen, `location` where, that is since which boot; `pods` maps uid to name of those that were placed and not seen to go; `head` is the last head's uid,
    `cluster` its cluster's name.
    """

    attempt: AttemptRecord
    made: bool = False
    seen: bool = False
    location: str = ""
    pods: Mapping[str, str] = field(default_factory=dict)
    head: str = ""
    cluster: str = ""


def past_of(state: JournalState, attempt: AttemptRecord) -> Past:
    """Gather it from the notes and the ledger; a driver shows that a RayJob was made, too."""
    notes = [note for note in state.notes if note.get("number") == attempt.number]
    lines = [line for line in state.ledger if line.get("number") == attempt.number]
    placed = [line for line in lines if "scheduled_at" in line]
    gone = {str(line.get("uid")) for line in lines if "gone_at" in line}
    heads = [line for line in placed if line.get("role") == "head"]
    seen = [note for note in notes if note.get("seen")]
    return Past(
        attempt,
        made=bool(attempt.uid) or state.driver is not None,
        seen=bool(seen),
        location=str(notes[-1].get("location", "")) if notes else "",
        pods={str(p["uid"]): str(p["pod"]) for p in placed if str(p["uid"]) not in gone},
        head=str(heads[-1]["uid"]) if heads else "",
        cluster=str(heads[-1].get("cluster", "")) if heads else "",
    )


def memory_of(past: Past, first: Observation, *, wall: datetime) -> Known:
    """The memory to begin with, at the first look: so a change that nobody saw is seen now.

    A driver that runs had a head that was ready, and its clock does not begin again, nor does that
    of a first wait in a queue; an object with another uid is not ours.
    """
    known = _with_driver(past, first, wall)
    rayjob = first.rayjob
    if not past.cluster and rayjob and rayjob.created_at and cell_of(rayjob) is Cell.QUEUED:
        waited = Spent(queue=max((wall - rayjob.created_at).total_seconds(), 0.0))
        known = replace(known, total=waited, clock=waited)
    return replace(known, uid=past.attempt.uid, cluster=past.cluster)


def gone_unseen(past: Past, known: Known, *, location: str) -> Standing | None:
    """The end of an attempt that others saw and that is not there for us, or None.

    A machine that was started anew took it along, and it is tried again. On the same machine it
    was deleted, or it had ended and expired: it may have done all that it should, or have been
    cancelled, so it is not run again.
    """
    if known.seen is not None or known.at is None or known.missing < GONE_LOOKS:
        return None
    invisible = past.made and known.at - known.missing_since >= UNSEEN_S
    if not past.seen and not invisible:
        return None
    if past.location not in {"", location}:
        verdict = Verdict(
            VerdictClass.INFRA,
            "the machine was started anew, and the job went with it",
            (f"it ran on {past.location}; this is {location}",),
            "The job is tried again from its last checkpoint.",
        )
    else:
        verdict = Verdict(
            VerdictClass.CANCELLED,
            "the job is gone, and nobody followed it when it went: deleted, or ended and expired",
            (f"the engine doesn't know {past.attempt.name} any more",),
            "Look at what it left, and submit it again if it is still wanted.",
        )
    return Standing(Phase.LOST, verdict.sentence, verdict)


def _with_driver(past: Past, first: Observation, wall: datetime) -> Known:
    rayjob = first.rayjob
    if rayjob is None or cell_of(rayjob) is not Cell.RUNNING:
        return Known()
    ran = 0.0 if rayjob.started_at is None else (wall - rayjob.started_at).total_seconds()
    heads = [pod for pod in first.pods if pod.role == "head"]
    restarts = [each.restarts for pod in heads for each in pod.containers if not each.init]
    head = HeadMemory(
        cluster=past.cluster, uid=past.head, ready=True, restarts=max(restarts, default=0)
    )
    return replace(Known.resuming({"run": max(ran, 0.0)}), head=head)
