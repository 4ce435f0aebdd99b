"""What the engine's two status words mean together, before any clock or memory."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ml_pipelines.job.observation import RayJobView

SUCCEEDED = "SUCCEEDED"
FAILED = "FAILED"
STOPPED = "STOPPED"
JOB_STATUSES = ("", "PENDING", "RUNNING", STOPPED, SUCCEEDED, FAILED)
JOB_ENDS = frozenset({STOPPED, SUCCEEDED, FAILED})

DEPLOYMENT_STATUSES = (
    "",
    "Initializing",
    "Running",
    "Complete",
    "Failed",
    "ValidationFailed",
    "Suspending",
    "Suspended",
    "Retrying",
    "Waiting",
)
# KubeRay's own "is terminal" leaves out ValidationFailed, which nothing ever leaves.
DEPLOYMENT_ENDS = frozenset({"Complete", "Failed", "ValidationFailed"})

APP_FAILED = "AppFailed"
DEADLINE = "DeadlineExceeded"
PRE_RUNNING_DEADLINE = "PreRunningDeadlineExceeded"
SUBMISSION_FAILED = "SubmissionFailed"
STATUS_CHECK_TIMEOUT = "JobStatusCheckTimeoutExceeded"
TRANSITION_GRACE = "JobDeploymentStatusTransitionGracePeriodExceeded"
VALIDATION_FAILED = "ValidationFailed"
REASONS = (
    "",
    SUBMISSION_FAILED,
    DEADLINE,
    PRE_RUNNING_DEADLINE,
    APP_FAILED,
    TRANSITION_GRACE,
    STATUS_CHECK_TIMEOUT,
    VALIDATION_FAILED,
)


class Cell(StrEnum):
    """What one reading of the two words says, taken alone."""

    NEW = "NEW"  # no status yet
    QUEUED = "QUEUED"  # suspended by a queue
    PROVISIONING = "PROVISIONING"  # machines are being made
    WAITING = "WAITING"  # interactive: nobody has submitted yet
    PENDING = "PENDING"  # machines are there, the driver is not started
    RUNNING = "RUNNING"
    DONE = "DONE"  # the driver has ended, the engine has not said its last word
    RETRYING = "RETRYING"  # the engine itself starts again
    LEAVING = "LEAVING"  # the object is being deleted, by whomever
    ENDED = "ENDED"  # the engine's last word
    UNKNOWN = "UNKNOWN"  # a word we don't know: never an end


_BY_DEPLOYMENT = {
    "Initializing": Cell.PROVISIONING,
    "Suspending": Cell.QUEUED,
    "Suspended": Cell.QUEUED,
    "Retrying": Cell.RETRYING,
    "Waiting": Cell.WAITING,
}
_BY_JOB = {
    "": Cell.PENDING,
    "PENDING": Cell.PENDING,
    "RUNNING": Cell.RUNNING,
    STOPPED: Cell.DONE,
    SUCCEEDED: Cell.DONE,
    FAILED: Cell.DONE,
}


def cell_of(rayjob: RayJobView) -> Cell:
    """Read both words together; never raises, whatever they are."""
    cell = _cell_while_it_stays(rayjob)
    if rayjob.deleting and cell not in {Cell.ENDED, Cell.DONE}:
        return Cell.LEAVING
    return cell


def _cell_while_it_stays(rayjob: RayJobView) -> Cell:
    job, deployment = rayjob.job_status, rayjob.deployment_status
    if deployment in DEPLOYMENT_ENDS:
        return Cell.ENDED
    # A queue suspends what it has just been given, or evicts it, before the operator says so.
    if rayjob.suspended and deployment in {"", "Initializing", "Running"} and job not in JOB_ENDS:
        return Cell.QUEUED
    if deployment not in {"", "Running"}:
        return _BY_DEPLOYMENT.get(deployment, Cell.UNKNOWN)
    if not job and not deployment:
        return Cell.NEW
    return _BY_JOB.get(job, Cell.UNKNOWN)


def unknown_words(rayjob: RayJobView) -> tuple[str, ...]:
    """The words of this status that we don't know, each as `field 'word'`."""
    words = (
        ("jobStatus", rayjob.job_status, JOB_STATUSES),
        ("jobDeploymentStatus", rayjob.deployment_status, DEPLOYMENT_STATUSES),
        ("reason", rayjob.reason, REASONS),
    )
    return tuple(f"{field} {word[:80]!r}" for field, word, known in words if word not in known)


# Ray ends its message on a driver that failed with the last 20,000 characters of its log.
_LOG_FOLLOWS = ", last available logs"


def quoted(rayjob: RayJobView) -> str:
    """The status in the engine's own words, for evidence, without the log that Ray puts there."""
    words = f"{rayjob.job_status or '-'}/{rayjob.deployment_status or '-'}"
    reason = f" ({rayjob.reason})" if rayjob.reason else ""
    said = rayjob.message.split(_LOG_FOLLOWS, 1)[0].strip()
    return f"status {words}{reason}{f': {said[:500]}' if said else ''}"
