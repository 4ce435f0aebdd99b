"""Gives each local RayJob a Ray head and a status, as KubeRay does.

One pass looks at every RayJob and every head; what it decides is written down before the next one,
so whoever reads the files after a crash can go on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ml_pipelines.backends.local.attendant import Attendant
from ml_pipelines.backends.local.head import Head, Heads
from ml_pipelines.backends.local.objects import Objects, RayJobObject, Status
from ml_pipelines.backends.local.record import Size
from ml_pipelines.backends.local.sizing import LocalPlan, Machine, fit
from ml_pipelines.backends.local.views import with_lost_head
from ml_pipelines.clock import Clock
from ml_pipelines.errors import DoesNotFit
from ml_pipelines.settings import IDLE_HEAD_S

START_S = 180.0  # longest start of a head; usual are 12 s, 20 s on a busy machine
END_S = 10.0  # from SIGTERM to SIGKILL of an idle head
HEAD_STARTS = 2  # a port may have been taken meanwhile
KEPT_S = 86_400.0  # how long an ended RayJob that nobody took note of can be asked about

log = logging.getLogger("operator")


@dataclass(slots=True)
class _Seat:
    """A head and who has it."""

    head: Head
    since: float  # started, or became idle
    uid: str = ""  # of its RayJob; empty: idle
    ready: bool = False
    ending_since: float | None = None
    attendant: Attendant | None = None


class Reconciler:
    """One pass looks at every RayJob and every head; `step` never waits long."""

    def __init__(
        self, objects: Objects, heads: Heads, clock: Clock,
        *, machine: Machine, idle_head_s: float = IDLE_HEAD_S,
    ) -> None:  # fmt: skip
        self._objects = objects
        self._heads = heads
        self._clock = clock
        self._machine = machine
        self._idle_head_s = idle_head_s
        self._statuses: dict[str, Status] = {}
        self._seats: list[_Seat] = []

    def adopt(self) -> None:
        """Find what an operator before us left."""
        now = self._clock.monotonic()
        self._seats = [_Seat(head, since=now) for head in self._heads.found()]
        by_id = {seat.head.id: seat for seat in self._seats}
        for made in self._objects.all():
            status = self._status(made.uid)
            if status.cluster and not status.terminal:
                seat = by_id.get(status.cluster)
                if seat is None:
                    self._lost(made, "The Ray head of this job is gone without a trace.")
                else:
                    seat.uid = made.uid
                    seat.attendant = Attendant(made, seat.head, self._clock, resumed=True)
                    log.info("%s: found again on head %s", made.name, seat.head.id)

    def step(self) -> bool:
        """One pass; returns whether there is anything left to look after."""
        made = self._objects.all()
        self._drop_dead_heads({one.uid: one for one in made})
        queue_is_open = True
        pending = False
        for one in made:
            pending |= self._attend(one, may_start=queue_is_open)
            queue_is_open &= self._status(one.uid).deployment_status != "Suspended"
        self._end_idle_heads()
        return pending or bool(self._seats)

    def wanted(self) -> bool:
        """Whether any RayJob needs an operator; looks, and changes nothing."""
        return any(
            not self._status(made.uid).terminal or self._objects.ordered(made.uid, "delete")
            for made in self._objects.all()
        )

    def abandon(self) -> None:
        """End every head at once: our state folder is gone, so nobody can want them."""
        for seat in self._seats:
            seat.head.kill()
            seat.head.forget()

    # One RayJob

    def _attend(self, made: RayJobObject, *, may_start: bool) -> bool:
        """Returns whether it still needs us."""
        status = self._status(made.uid)
        if self._objects.ordered(made.uid, "delete"):
            return self._delete(made)
        if status.terminal:
            return self._expire(made, status)
        seat = self._seat_of(made.uid)
        stop = self._objects.ordered(made.uid, "stop")
        if stop and not status.job_id:
            self._end(made, status.having(job_status="STOPPED"), "Complete")
            return True
        if seat is None:
            seat = self._find_seat(made, status, may_start=may_start)
        if seat is not None and not self._overdue(made):
            self._serve(made, seat, stop=stop)
        return True

    def _serve(self, made: RayJobObject, seat: _Seat, *, stop: bool) -> None:
        if not seat.ready:
            if self._clock.monotonic() - seat.since > START_S:
                self._fail_head(made, seat, f"The Ray head did not start within {START_S:.0f} s.")
                return
            seat.ready = seat.head.api.ready()
            if not seat.ready:
                return
            log.info("head %s answers", seat.head.id)
        status = self._status(made.uid)
        if not status.job_id:  # written ahead: a lost answer is looked up under this id
            status = status.having(
                job_id=f"{made.name}-{made.uid[:5]}",
                ready_at=self._now(),
                dashboard_url=seat.head.dashboard,
            )
            self._set(made, status)
        if seat.attendant is None:
            seat.attendant = Attendant(made, seat.head, self._clock, resumed=False)
        status = seat.attendant.advance(status, stop=stop)
        if status.head_lost:
            self._drop(seat)
        self._set(made, status)

    def _find_seat(self, made: RayJobObject, status: Status, *, may_start: bool) -> _Seat | None:
        try:
            plan, _ = fit(made.manifest, self._machine)
        except DoesNotFit as err:
            self._end(made, status, "ValidationFailed", reason="ValidationFailed", message=str(err))
            return None
        size = Size(plan.num_cpus, plan.num_gpus)
        idle = [seat for seat in self._seats if not seat.uid and seat.ending_since is None]
        seat = next((seat for seat in idle if seat.head.size.holds(size)), None)
        if seat is None:
            if not may_start or not self._has_room(size):
                self._queue(made, status)
                return None
            for one in idle:  # too small for it: make room
                self._begin_end(one)
            seat = _Seat(self._heads.start(size), since=self._clock.monotonic())
            self._seats.append(seat)
            log.info("head %s: starting with %s", seat.head.id, size)
        self._assign(made, seat, plan)
        return seat

    def _assign(self, made: RayJobObject, seat: _Seat, plan: LocalPlan) -> None:
        seat.uid, seat.attendant = made.uid, None
        status = self._status(made.uid)
        self._set(
            made,
            status.having(
                deployment_status="Initializing",
                message=f"Starting Ray on this machine, which has {self._machine.cpus} CPUs.",
                cluster=seat.head.id,
                head_starts=status.head_starts + 1,
                assigned_at=self._now(),
                plan=plan.to_json(),
            ),
        )

    def _queue(self, made: RayJobObject, status: Status) -> None:
        used = sum(seat.head.size.num_cpus for seat in self._seats if seat.uid)
        others = sum(1 for seat in self._seats if seat.uid)
        message = (
            f"{others} other job{'s' if others > 1 else ''} on this machine "
            f"hold{'s' if others == 1 else ''} {used} of its {self._machine.cpus} CPUs"
        )
        self._set(made, status.having(deployment_status="Suspended", message=message))

    def _has_room(self, size: Size) -> bool:
        busy = [seat.head.size for seat in self._seats if seat.uid]
        cpus = sum(one.num_cpus for one in busy) + size.num_cpus
        gpus = sum(one.num_gpus for one in busy) + size.num_gpus
        return not busy or (cpus <= self._machine.cpus and gpus <= self._machine.gpus)

    def _overdue(self, made: RayJobObject) -> bool:
        status = self._status(made.uid)
        age = (self._clock.now() - datetime.fromisoformat(status.assigned_at)).total_seconds()
        for name, reason, applies in (
            ("activeDeadlineSeconds", "DeadlineExceeded", True),
            ("preRunningDeadlineSeconds", "PreRunningDeadlineExceeded", not status.submitted),
        ):
            deadline = made.manifest["spec"].get(name)
            if applies and deadline is not None and age > deadline:
                seat = self._seat_of(made.uid)
                if seat is not None:
                    self._drop(seat)
                message = f"It passed its {name} of {deadline}."
                self._end(made, status, "Failed", reason=reason, message=message)
                return True
        return False

    def _expire(self, made: RayJobObject, status: Status) -> bool:
        # As in a cluster, the time to live takes the machines (which the end gave back already),
        # not the word on how it ended: that waits for whoever claims the job next.
        ttl = made.manifest["spec"].get("ttlSecondsAfterFinished")
        if ttl is not None and status.ended_at:
            ended = datetime.fromisoformat(status.ended_at)
            if (self._clock.now() - ended).total_seconds() > max(ttl, KEPT_S):
                self._remove(made)
        return False

    def _delete(self, made: RayJobObject) -> bool:
        seat = self._seat_of(made.uid)
        if seat is not None:
            log.info("%s: deleted while it ran", made.name)
            self._drop(seat)
        self._remove(made)
        return False

    def _remove(self, made: RayJobObject) -> None:
        self._objects.remove(made.name, made.uid)
        self._statuses.pop(made.uid, None)

    def _end(
        self, made: RayJobObject, status: Status, deployment: str,
        *, reason: str = "", message: str = "",
    ) -> None:  # fmt: skip
        ended = status.having(
            deployment_status=deployment, reason=reason, message=message, ended_at=self._now()
        )
        self._set(made, ended)

    def _lost(self, made: RayJobObject, how: str) -> None:
        self._set(made, with_lost_head(self._status(made.uid), how, self._now()))

    # Heads

    def _drop_dead_heads(self, made: dict[str, RayJobObject]) -> None:
        for seat in [seat for seat in self._seats if not seat.head.alive()]:
            how = seat.head.obituary()
            log.info("head %s: %s", seat.head.id, how)
            owner = made.get(seat.uid)
            if owner is not None and not self._objects.ordered(owner.uid, "delete"):
                self._fail_head(owner, seat, how)
            else:
                self._drop(seat)

    def _fail_head(self, made: RayJobObject, seat: _Seat, how: str) -> None:
        self._drop(seat)
        status = self._status(made.uid)
        if status.job_id or status.head_starts >= HEAD_STARTS:
            self._lost(made, how)
            return
        log.info("%s: starting another head", made.name)
        self._set(made, status.having(cluster="", assigned_at="", message=f"{how} Trying again."))

    def _end_idle_heads(self) -> None:
        now = self._clock.monotonic()
        for seat in [seat for seat in self._seats if not seat.uid]:
            if seat.ending_since is not None:
                if now - seat.ending_since > END_S:
                    self._drop(seat)
            elif now - seat.since > self._idle_head_s:
                self._begin_end(seat)

    def _begin_end(self, seat: _Seat) -> None:
        log.info("head %s: idle, ending", seat.head.id)
        seat.ending_since = self._clock.monotonic()
        seat.head.terminate()

    def _drop(self, seat: _Seat) -> None:
        """End it now, with everything that it started; the logs of its jobs are kept."""
        seat.head.kill()
        for made in self._objects.all():
            status = self._status(made.uid)
            if status.cluster == seat.head.id and status.log:
                self._objects.keep_log(made.uid, Path(status.log))
        seat.head.forget()
        self._seats.remove(seat)

    def _seat_of(self, uid: str) -> _Seat | None:
        return next((seat for seat in self._seats if seat.uid == uid), None)

    # Statuses

    def _status(self, uid: str) -> Status:
        if uid not in self._statuses:
            self._statuses[uid] = self._objects.status(uid)
        return self._statuses[uid]

    def _set(self, made: RayJobObject, status: Status) -> None:
        before = self._status(made.uid)
        if status == before:
            return
        self._objects.set_status(made.uid, status)
        self._statuses[made.uid] = status
        log.info("%s: %s/%s %s", made.name, status.job_status, status.deployment_status,
                 status.reason)  # fmt: skip
        seat = self._seat_of(made.uid)
        if status.terminal and seat is not None:
            seat.uid, seat.attendant, seat.since = "", None, self._clock.monotonic()

    def _now(self) -> str:
        return self._clock.now().isoformat()
