"""What was seen of an attempt so far: a small immutable memory, one new value an observation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ml_pipelines.job.clocks import Spent
from ml_pipelines.job.diagnosis import why_pending
from ml_pipelines.job.heads import Gone, HeadMemory, made_after_the_end, younger_head
from ml_pipelines.job.losses import Loss, eviction_of, loss_of
from ml_pipelines.job.status import FAILED, JOB_ENDS, Cell, cell_of, unknown_words
from ml_pipelines.job.verdict import VerdictClass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ml_pipelines.job.observation import Observation, RayJobView
    from ml_pipelines.job.symptom import Diagnosis

TROUBLE_GAP_S = 30.0  # a trouble unseen for so long begins anew
RESTARTED_S = 5.0  # a driver's start this much later is another start

# Cells in which no driver needs a head.
_HEADLESS = frozenset({Cell.NEW, Cell.QUEUED, Cell.RETRYING})
_BEFORE_RUN = frozenset({Cell.NEW, Cell.QUEUED, Cell.PROVISIONING, Cell.WAITING, Cell.PENDING})
_NEEDS_HEAD = frozenset({Cell.PENDING, Cell.RUNNING, Cell.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Trouble:
    """One diagnosis, by its key, since when it was there and when it was seen last, s."""

    key: str
    since: float
    seen: float


@dataclass(frozen=True, slots=True)
class Known:
    """All that decisions need of the past. Times are the observer's monotonic seconds.

    `seen` is the last status, `driver` the last one in which the driver ran, `done` the last one in
    which it had ended, `ended` the engine's last word, which nothing takes back; `news` are the
    warnings that this observation brought. `cluster` is the RayCluster that the engine named last,
    `began_at` when it did: a queue takes one back and gives another.
    """

    at: float | None = None
    previous_at: float | None = None
    cell: Cell = Cell.NEW
    uid: str = ""
    other_uid: str = ""
    seen: RayJobView | None = None
    driver: RayJobView | None = None
    done: RayJobView | None = None
    done_at: float | None = None
    ended: RayJobView | None = None
    missing: int = 0
    missing_since: float = 0.0
    cluster: str = ""
    began_at: float = 0.0
    head: HeadMemory = field(default_factory=HeadMemory)
    head_lost: Loss | None = None
    losses: tuple[Loss, ...] = ()
    diagnosis: Diagnosis | None = None
    troubles: tuple[Trouble, ...] = ()
    words: frozenset[str] = frozenset()
    news: tuple[str, ...] = ()
    heard_at: float | None = None
    total: Spent = field(default_factory=Spent)
    clock: Spent = field(default_factory=Spent)

    @classmethod
    def resuming(cls, spent: Mapping[str, float]) -> Known:
        """The memory of a process that takes over a job: `spent` as `durations` gave it."""
        parts = {name: float(spent.get(name, 0.0)) for name in ("queue", "provisioning", "run")}
        return cls(total=Spent(**parts), clock=Spent(run=parts["run"]))

    def heard(self, now: float) -> Known:
        """The job gave a sign of life (a log line, a metric) at `now`."""
        return replace(self, heard_at=now)

    def trouble_s(self, now: float) -> float:
        """How long the present diagnosis has been true, s."""
        key = self.diagnosis.key if self.diagnosis else ""
        return next((now - trouble.since for trouble in self.troubles if trouble.key == key), 0.0)

    def after(self, obs: Observation, now: float) -> Known:
        """The memory after `obs`, seen at `now`."""
        gap = 0.0 if self.at is None else max(now - self.at, 0.0)
        known = replace(
            self,
            at=now,
            previous_at=self.at,
            news=(),
            total=self.total.plus(self.cell, gap),
            clock=self.clock.plus(self.cell, gap),
        )
        if obs.rayjob is None:
            since = now if not self.missing else self.missing_since
            return replace(known, missing=self.missing + 1, missing_since=since)
        if self.uid and obs.rayjob.uid and obs.rayjob.uid != self.uid:
            return replace(known, missing=0, other_uid=obs.rayjob.uid)
        known = replace(known, missing=0, uid=self.uid or obs.rayjob.uid)
        return _with_status(known, obs, now)


def _with_status(known: Known, obs: Observation, now: float) -> Known:
    rayjob = obs.rayjob
    assert rayjob is not None
    cell = cell_of(rayjob)
    words = unknown_words(rayjob)
    news = tuple(f"the engine says {word}, which we don't know" for word in words)
    known = replace(
        known,
        seen=rayjob,
        news=tuple(new for word, new in zip(words, news, strict=True) if word not in known.words),
        words=known.words | set(words),
    )
    if cell is not Cell.UNKNOWN and cell is not known.cell:
        heard = now if cell is Cell.RUNNING else known.heard_at
        known = replace(known, clock=known.clock.entering(cell), heard_at=heard)
    known = _with_end(known, rayjob, cell, now)
    known = _with_losses(known, obs, now)
    # One that a queue suspends at once may have been given a name, and never a machine.
    if rayjob.cluster_name not in {"", known.cluster} and not rayjob.suspended:
        known = replace(known, cluster=rayjob.cluster_name, began_at=now)
    known = _with_head(known, obs, cell, now)
    if cell is Cell.RUNNING:
        known = replace(known, driver=rayjob)
    known = replace(known, cell=known.cell if cell is Cell.UNKNOWN else cell)
    return _with_diagnosis(known, obs, now)


def _with_end(known: Known, rayjob: RayJobView, cell: Cell, now: float) -> Known:
    at = known.done_at if known.done is not None else now
    if cell is Cell.ENDED:
        return replace(known, ended=known.ended or rayjob, done=rayjob, done_at=at)
    if cell is Cell.DONE or (cell is Cell.LEAVING and rayjob.job_status in JOB_ENDS):
        return replace(known, done=rayjob, done_at=at)
    if cell in {Cell.UNKNOWN, Cell.LEAVING}:
        return known
    done = rayjob if rayjob.job_status in JOB_ENDS else known.done
    if cell is Cell.QUEUED and done is not None and done.job_status != FAILED:
        # Evicted after its driver had done all: it must not run again. One that failed may have
        # failed for the machines that were taken from under it.
        return replace(known, ended=known.ended or done, done=done, done_at=at)
    # The engine begins again (Retrying, a queue's eviction): that end was none.
    return replace(known, done=None, done_at=None)


def _with_losses(known: Known, obs: Observation, now: float) -> Known:
    told = {(loss.uid, loss.cls) for loss in known.losses}
    found = [loss for pod in obs.pods if (loss := loss_of(pod, now=now))]
    named = obs.rayjob.cluster_name if obs.rayjob and not obs.rayjob.suspended else ""
    back = bool(known.cluster) and named not in {"", known.cluster}
    evicted = eviction_of(obs.workload, known.cluster, now=now, back=back)
    found += [evicted] if evicted else []
    new = tuple(loss for loss in found if (loss.uid, loss.cls) not in told)
    return replace(
        known,
        losses=(known.losses + new)[-100:],
        news=known.news + tuple(loss.sentence for loss in new),
    )


def _with_head(known: Known, obs: Observation, cell: Cell, now: float) -> Known:
    rayjob = obs.rayjob
    assert rayjob is not None
    before = HeadMemory() if cell in _HEADLESS else known.head
    head, cause = before.after(obs, now)
    known = replace(known, head=head)
    if cell in {Cell.DONE, Cell.ENDED}:
        return _with_unseen(known, obs, cause, before.uid) if cell is not known.cell else known
    lost = cause.sentence or _submitted_again(known, rayjob)
    if lost and known.head_lost is None and cell in _NEEDS_HEAD:
        return replace(known, head_lost=_head_loss(known, before.uid, lost, cause.evidence))
    return known


def _with_unseen(known: Known, obs: Observation, cause: Gone, uid: str) -> Known:
    """Whether the driver that has ended had lost its head while nobody looked."""
    rayjob = obs.rayjob
    assert rayjob is not None
    if known.head_lost is not None:
        return known
    if cause.replaced:
        note = "the head was replaced unseen, so the driver may have run more than once"
        known = replace(known, news=(*known.news, note))
    told = cause.sentence if cause.replaced else _submitted_again(known, rayjob)
    told = told or younger_head(obs, RESTARTED_S)
    if not told or rayjob.job_status != FAILED or made_after_the_end(obs):
        return known
    return replace(known, head_lost=_head_loss(known, uid, told, ""))


def _submitted_again(known: Known, rayjob: RayJobView) -> str:
    """Whether the same job id was started a second time: a new head got the old work."""
    before = known.driver
    if before is None or rayjob.started_at is None or before.started_at is None:
        return ""
    same = rayjob.job_id == before.job_id and rayjob.cluster_name == before.cluster_name
    jump = (rayjob.started_at - before.started_at).total_seconds()
    return "forgot the job, which was submitted again" if same and jump > RESTARTED_S else ""


def _head_loss(known: Known, uid: str, sentence: str, evidence: str) -> Loss:
    """What took this head if its pod told, else only that it is gone."""
    at = 0.0 if known.at is None else known.at
    told = (loss for loss in known.losses if loss.uid == uid)
    plain = Loss("head", uid, VerdictClass.INFRA, f"the head {sentence}", evidence or sentence, at)
    return next(told, plain)


def _with_diagnosis(known: Known, obs: Observation, now: float) -> Known:
    unready = known.cell is Cell.RUNNING and not all(pod.ready or pod.deleting for pod in obs.pods)
    if known.cell is Cell.ENDED:
        return known  # what it waited for until then is why it is late
    if known.cell not in _BEFORE_RUN and not unready:
        return replace(known, diagnosis=None, troubles=())
    lost = [loss for loss in known.losses if loss.cls is not VerdictClass.OOM]
    starts = known.head.starts_but({loss.uid for loss in lost})
    diagnosis = why_pending(obs, head_starts=starts, lost={loss.pod for loss in lost})
    fresh = [one for one in known.troubles if now - one.seen <= TROUBLE_GAP_S]
    since = next((one.since for one in fresh if one.key == diagnosis.key), now)
    others = tuple(one for one in fresh if one.key != diagnosis.key)
    trouble = Trouble(diagnosis.key, since, now)
    return replace(known, diagnosis=diagnosis, troubles=(*others, trouble))
