"""What the engine's last word, a lost object or one of our clocks means: a verdict each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ml_pipelines.job import status
from ml_pipelines.job.verdict import Verdict, VerdictClass

if TYPE_CHECKING:
    from ml_pipelines.job.known import Known
    from ml_pipelines.job.losses import Loss
    from ml_pipelines.job.observation import RayJobView

_RETRY_OURS = "The job is tried again from its last checkpoint."


def verdict_of_status(rayjob: RayJobView, known: Known) -> Verdict:
    """The verdict of a status in which the driver, or the engine with it, has ended."""
    if rayjob.deployment_status == status.VALIDATION_FAILED:
        return _refused(rayjob)
    if rayjob.job_status == status.SUCCEEDED:
        return _succeeded(rayjob)
    if rayjob.deployment_status == "Failed" and rayjob.reason:
        return _failed_for(rayjob, known)
    if rayjob.job_status == status.STOPPED:
        return Verdict(
            VerdictClass.CANCELLED,
            "somebody stopped the driver through Ray",
            (status.quoted(rayjob),),
            exit_code=rayjob.driver_exit_code,
        )
    if rayjob.job_status == status.FAILED:
        return _driver_failed(rayjob, known)
    return _unclear(rayjob)


def _succeeded(rayjob: RayJobView) -> Verdict:
    said = status.quoted(rayjob)
    success = Verdict(VerdictClass.SUCCESS, "succeeded", (said,), exit_code=rayjob.driver_exit_code)
    if rayjob.deployment_status != "Failed":
        if not rayjob.reason:
            return success
        warning = f"the engine gave a reason beside the success: {rayjob.reason}"
    elif rayjob.reason in {status.APP_FAILED, status.VALIDATION_FAILED} | _not_known(rayjob.reason):
        return _unclear(rayjob)
    else:
        warning = f"the driver succeeded, and the engine failed after it: {rayjob.reason}"
    return Verdict(
        success.cls,
        success.sentence,
        success.evidence,
        warnings=(warning,),
        exit_code=success.exit_code,
    )


def _not_known(reason: str) -> set[str]:
    return set() if reason in status.REASONS else {reason}


def _failed_for(rayjob: RayJobView, known: Known) -> Verdict:
    if rayjob.reason == status.APP_FAILED and rayjob.job_status == status.FAILED:
        return _driver_failed(rayjob, known)
    if rayjob.reason == status.PRE_RUNNING_DEADLINE:
        late = "the engine's deadline for the start passed"
        return late_start(known, late, (status.quoted(rayjob),))
    if rayjob.reason == status.VALIDATION_FAILED:
        return _refused(rayjob)
    if rayjob.reason not in _REASONS:
        return _unclear(rayjob)
    cls, sentence, remedy = _REASONS[rayjob.reason]
    said = rayjob.message.strip() or "no message"
    if rayjob.reason == status.SUBMISSION_FAILED and "refused the job" in said:
        cls, remedy = VerdictClass.CONFIG, "Correct what it names; it will be refused again."
    return Verdict(cls, sentence.format(message=said), (status.quoted(rayjob),), remedy)


_REASONS = {
    # Of a driver that has not failed: the engine can't find it any more.
    status.APP_FAILED: (
        VerdictClass.INFRA,
        "the engine lost the driver: {message}",
        _RETRY_OURS,
    ),
    # KubeRay writes FAILED over a job that may go on.
    status.TRANSITION_GRACE: (
        VerdictClass.INFRA,
        "the engine gave the driver up, which may still run",
        _RETRY_OURS,
    ),
    status.SUBMISSION_FAILED: (
        VerdictClass.INFRA,
        "the engine could not submit the driver: {message}",
        _RETRY_OURS,
    ),
    status.STATUS_CHECK_TIMEOUT: (
        VerdictClass.INFRA,
        "the engine lost sight of the Ray head: {message}",
        _RETRY_OURS,
    ),
    status.DEADLINE: (
        VerdictClass.TIMEOUT,
        "the engine's deadline passed",
        "Raise limits.run_s, or make the job shorter.",
    ),
}


def _driver_failed(rayjob: RayJobView, known: Known) -> Verdict:
    if known.head_lost is not None:
        return head_lost(known)
    code = rayjob.driver_exit_code
    how = "" if code is None else f" with exit code {code}"
    return Verdict(
        VerdictClass.USER,
        f"the driver failed{how}",
        (status.quoted(rayjob),),
        "Read the last lines of its log.",
        exit_code=code,
    )


def _refused(rayjob: RayJobView) -> Verdict:
    return Verdict(
        VerdictClass.CONFIG,
        f"the engine refuses this job: {rayjob.message.strip() or 'no message'}",
        (status.quoted(rayjob),),
        "Correct what it names; the same job will be refused again.",
    )


def _unclear(rayjob: RayJobView) -> Verdict:
    return Verdict(
        VerdictClass.UNKNOWN,
        "the engine ended the job without saying how the driver ended",
        (status.quoted(rayjob),),
        exit_code=rayjob.driver_exit_code,
    )


# --- our own clocks -------------------------------------------------------------------------


def late_start(
    known: Known,
    sentence: str,
    evidence: tuple[str, ...] = (),
    *,
    limit: str = "limits.provisioning_s",
) -> Verdict:
    """It did not start in time; the class is that of what it waited for."""
    raised = f"Raise {limit}."
    diagnosis = known.diagnosis
    if diagnosis is None:
        return Verdict(VerdictClass.TIMEOUT, sentence, evidence, raised)
    return Verdict(
        diagnosis.cls,
        f"{sentence}: {diagnosis.sentence}",
        evidence + diagnosis.evidence,
        diagnosis.remedy or raised,
    )


def hopeless(known: Known) -> Verdict | None:
    """The verdict of a trouble that can't heal and has lasted long enough, or None."""
    diagnosis = known.diagnosis
    if diagnosis is None or known.at is None or not diagnosis.hopeless:
        return None
    if known.trouble_s(known.at) < diagnosis.grace_s:
        return None
    return Verdict(diagnosis.cls, diagnosis.sentence, diagnosis.evidence, diagnosis.remedy)


def ran_too_long(known: Known, limit_s: float) -> Verdict:
    """The driver ran for longer than it may."""
    return Verdict(
        VerdictClass.TIMEOUT,
        f"the driver ran for longer than {limit_s:.0f} s",
        (status.quoted(known.seen),) if known.seen else (),
        "Raise limits.run_s, or make the job shorter.",
    )


# --- the object is not there ----------------------------------------------------------------


def deleted_by_others(known: Known) -> Verdict:
    """It was there, had not ended, and isn't there any more: somebody wanted it gone."""
    last = f"; last seen: {status.quoted(known.seen)}" if known.seen else ""
    return Verdict(
        VerdictClass.CANCELLED,
        "the job was deleted by somebody else before it had ended",
        (f"the engine doesn't know it any more{last}",),
        "Submit it again if it is still wanted.",
    )


def never_there() -> Verdict:
    """It was created, and the engine never showed it."""
    return Verdict(
        VerdictClass.INFRA, "the engine took the job and never showed it", ("not found",)
    )


def replaced_by_others(known: Known) -> Verdict:
    """Another object has its name now."""
    return Verdict(
        VerdictClass.CANCELLED,
        "the job was deleted by somebody else, and another one has its name",
        (f"uid {known.uid} is now {known.other_uid}",),
        "Find out who uses this name; the other job was left alone.",
    )


def head_lost(known: Known) -> Verdict:
    """The head is gone: the engine would run the work again behind us, so this attempt ends."""
    loss = known.head_lost
    assert loss is not None
    evidence = (loss.evidence,) + ((status.quoted(known.seen),) if known.seen else ())
    if loss.cls is VerdictClass.OOM:
        remedy = "Give the head more memory; the driver runs there."
    else:
        remedy = _RETRY_OURS
    return Verdict(loss.cls, f"the head was lost: {loss.sentence}", evidence, remedy)


def worker_lost(known: Known, loss: Loss) -> Verdict:
    """A worker is gone with its machine, and none takes its place."""
    evidence = (loss.evidence,) + ((status.quoted(known.seen),) if known.seen else ())
    return Verdict(loss.cls, f"{loss.sentence}, and no other took its place", evidence, _RETRY_OURS)
