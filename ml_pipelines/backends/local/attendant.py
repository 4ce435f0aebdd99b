"""One RayJob on one ready head: submitted once, watched to its end.

Watching is cheap, for the job needs the CPUs: Ray's supervisor of a job writes into a file of its
own when the driver begins and ends, so a look at the file's size tells when to ask the Jobs API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ml_pipelines.backends.local import submission
from ml_pipelines.backends.local.sizing import LocalPlan
from ml_pipelines.backends.local.views import with_lost_head
from ml_pipelines.errors import BackendRefused, BackendUnavailable

if TYPE_CHECKING:
    from ml_pipelines.backends.local.head import Head
    from ml_pipelines.backends.local.jobsapi import RayJobInfo
    from ml_pipelines.backends.local.objects import RayJobObject, Status
    from ml_pipelines.clock import Clock

HOT_S = 3.0  # after the supervisor wrote, it is about to change the status
START_POLL_S = 0.2
POLL_S = 2.0
UNSEEN_S = 60.0  # a head that is alive and does not answer for so long is lost
MISSING = 3  # as many answers "no such job" in a row are believed
MESSAGE_LIMIT = 4_000

_DEPLOYMENT = {"SUCCEEDED": "Complete", "STOPPED": "Complete", "FAILED": "Failed"}


class Attendant:
    """Takes one job through its head."""

    def __init__(self, made: RayJobObject, head: Head, clock: Clock, *, resumed: bool) -> None:
        self._made = made
        self._head = head
        self._clock = clock
        self._maybe_taken = resumed  # an operator before us may have submitted it
        self._unseen_since: float | None = None
        self._missing = 0
        self._supervisor_wrote = 0
        self._hot_until = 0.0
        self._next = 0.0
        self._stop_sent = False

    def advance(self, status: Status, *, stop: bool) -> Status:
        """The status after one look; it has a job id already. Never blocks for long."""
        try:
            status = self._advance(status, stop=stop)
        except BackendUnavailable as err:
            return self._unseen(status, str(err))
        self._unseen_since = None
        return status

    def _advance(self, status: Status, *, stop: bool) -> Status:
        if not status.submitted:
            return self._submit(status)
        now = self._clock.monotonic()
        if stop and not self._stop_sent:
            self._head.api.stop(status.job_id)
            self._stop_sent = True
            self._hot_until = now + HOT_S
        if not self._due(status, now):
            return status
        self._next = now + (POLL_S if status.job_status == "RUNNING" else START_POLL_S)
        return self._judge(status, self._head.api.info(status.job_id))

    def _submit(self, status: Status) -> Status:
        taken = status.having(
            submitted=True,
            job_status="PENDING",
            deployment_status="Running",
            message="",
            started_at=self._clock.now().isoformat(),
            log=str(self._head.driver_log(status.job_id)),
        )
        if self._maybe_taken and self._head.api.info(status.job_id) is not None:
            return taken
        self._maybe_taken = True
        try:
            self._head.api.submit(
                status.job_id,
                submission.entrypoint(self._made.manifest),
                runtime_env=submission.runtime_env(
                    self._made.manifest, LocalPlan.from_json(status.plan)
                ),
                metadata={"rayjob": self._made.name, "uid": self._made.uid},
            )
        except BackendRefused as err:
            return self._ended(status, "Failed", reason="SubmissionFailed", message=str(err))
        return taken

    def _due(self, status: Status, now: float) -> bool:
        try:
            wrote = self._head.supervisor_log(status.job_id).stat().st_size
        except OSError:
            wrote = 0
        if wrote != self._supervisor_wrote:
            self._supervisor_wrote = wrote
            self._hot_until = now + HOT_S
        return now < self._hot_until or now >= self._next

    def _judge(self, status: Status, info: RayJobInfo | None) -> Status:
        if info is None:
            self._missing += 1
            if self._missing < MISSING:
                return status
            how = "Ray no longer knows the job: its head lost its memory."
            return with_lost_head(status, how, self._clock.now().isoformat())
        self._missing = 0
        status = status.having(job_status=info.status)
        deployment = _DEPLOYMENT.get(info.status)
        if deployment is None:
            return status
        message = info.message[-MESSAGE_LIMIT:]
        if info.error_type and info.error_type != "JOB_ENTRYPOINT_COMMAND_ERROR":
            message = f"{info.error_type}: {message}"
        return self._ended(
            status.having(driver_exit_code=_as_shell(info.exit_code)),
            deployment,
            reason="AppFailed" if info.status == "FAILED" else "",
            message=message,
        )

    def _unseen(self, status: Status, why: str) -> Status:
        now = self._clock.monotonic()
        if self._unseen_since is None:
            self._unseen_since = now
        if now - self._unseen_since < UNSEEN_S:
            return status
        how = f"The Ray head does not answer for {UNSEEN_S:.0f} s. {why}"
        return with_lost_head(status, how, self._clock.now().isoformat())

    def _ended(self, status: Status, deployment: str, *, reason: str, message: str) -> Status:
        return status.having(
            deployment_status=deployment,
            reason=reason,
            message=message,
            ended_at=self._clock.now().isoformat(),
        )


def _as_shell(code: int | None) -> int | None:
    """Ended by signal 9: 137, as containers say it."""
    return 128 - code if code is not None and code < 0 else code
