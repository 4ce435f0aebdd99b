"""What becomes of a job when its Dagster step ends early."""

import signal
from collections.abc import Iterator

import dagster as dg
import pytest

from ml_pipelines.errors import (
    BackendUnavailable,
    InvalidInput,
    Refused,
    StorageUnavailable,
    Superseded,
)
from ml_pipelines.job.events import Event, LogLine
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import Verdict, VerdictClass
from ml_pipelines.orchestration.resource import Exit, RayJobs, on_exit, undisturbed
from ml_pipelines.spec.cluster import ClusterSpec
from ml_pipelines_tests.fake_ray import FakeControl, fails, materialize, succeeds

Status = dg.DagsterRunStatus
STOP = dg.DagsterExecutionInterruptedError()
BAD = InvalidInput("config.cpu", "-1", "is too small")

TABLE = {
    "terminate": (STOP, Status.CANCELING, False, True, Exit.CANCEL),
    "force terminate": (STOP, Status.CANCELED, False, True, Exit.CANCEL),
    "run time limit": (STOP, Status.FAILURE, False, True, Exit.CANCEL),
    "evicted worker": (STOP, Status.STARTED, False, True, Exit.LEAVE),
    "given up for lost, to be retried": (STOP, Status.FAILURE, True, True, Exit.LEAVE),
    "run database away": (STOP, None, False, True, Exit.LEAVE),
    "ctrl-c where nobody retries": (STOP, Status.STARTED, False, False, Exit.CANCEL),
    "keyboard interrupt, evicted": (KeyboardInterrupt(), Status.STARTED, False, True, Exit.LEAVE),
    "our own bug": (RuntimeError("bug"), Status.STARTED, False, True, Exit.CANCEL),
    "taken over by another loop": (Superseded("gone"), Status.STARTED, False, False, Exit.LEAVE),
    "refused": (Refused("taken"), Status.STARTED, False, False, Exit.LEAVE),
    "bad input": (BAD, Status.STARTED, False, True, Exit.LEAVE),
    "storage away": (StorageUnavailable("away"), Status.STARTED, False, True, Exit.LEAVE),
    "backend away": (BackendUnavailable("away"), Status.STARTED, False, True, Exit.LEAVE),
    "backend away, nobody retries": (
        BackendUnavailable("away"), Status.STARTED, False, False, Exit.CANCEL,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("error", "status", "will_retry", "leave", "expected"), TABLE.values(), ids=TABLE.keys()
)
def test_a_job_is_cancelled_or_left(error, status, will_retry, leave, expected) -> None:
    """Case E1: cancelled runs cancel their job; evicted ones leave it to whoever claims it next."""
    assert on_exit(error, status=status, will_retry=will_retry, leave=leave) is expected


@dg.asset
def model(context: dg.AssetExecutionContext, ray: RayJobs) -> None:
    ray.run(context, module="x.train", cluster=ClusterSpec(), params={"epochs": 1})


def interrupted(before):
    """A job during which the process gets a signal, after `before(run id)`."""

    def script(_spec, me) -> Iterator[Event]:
        yield LogLine("driver", "training", 0, 1)
        before(me.labels["run"])
        signal.raise_signal(signal.SIGINT)
        yield LogLine("driver", "never seen", 9, 1)

    return script


def canceling(instance: dg.DagsterInstance):
    def report(run_id: str) -> None:
        run = instance.get_run_by_id(run_id)
        assert run is not None
        instance.report_run_canceling(run)

    return report


def test_terminate_cancels_the_job_and_the_run() -> None:
    """Case E1: after Terminate in mid-training the job is cancelled and its claim released."""
    with dg.DagsterInstance.ephemeral() as instance:
        control = FakeControl({"train": interrupted(canceling(instance))})
        assert not materialize(model, control, instance=instance).success
        run = instance.get_runs()[0]
    [(run_key, reason, by)] = control.cancelled
    assert run_key == control.submitted[0][1].run_key
    assert reason == "the run was stopped"
    assert by == f"dagster run {run.run_id}"
    assert control.closed == [run_key]
    assert run.status is Status.CANCELED


def test_an_evicted_step_leaves_the_job() -> None:
    """Case E1: SIGTERM while the run is STARTED releases the claim, and the job goes on."""
    with dg.DagsterInstance.ephemeral() as instance:
        control = FakeControl({"train": interrupted(lambda _run: None)})
        assert not materialize(model, control, instance=instance).success
    assert control.cancelled == []
    assert control.closed == [control.submitted[0][1].run_key]


def test_ctrl_c_where_nobody_retries_cancels() -> None:
    """Ctrl-C in `make run` cancels, although the run is STARTED in the database."""
    with dg.DagsterInstance.ephemeral() as instance:
        control = FakeControl({"train": interrupted(lambda _run: None)})
        materialize(model, control, instance=instance, leave_when_cut_off=False)
    assert len(control.cancelled) == 1


def test_terminate_while_submitting_cancels_too() -> None:
    """Cases E6, E15: an interrupt inside the submission itself leaves nothing, and waits for none."""

    class Interrupting(FakeControl):
        def submit(self, spec, me):
            super().submit(spec, me)
            canceling(instance)(me.labels["run"])
            signal.raise_signal(signal.SIGINT)

    with dg.DagsterInstance.ephemeral() as instance:
        control = Interrupting()
        assert not materialize(model, control, instance=instance).success
    assert len(control.cancelled) == 1


def test_a_failed_job_fails_the_step_and_is_not_cancelled_again() -> None:
    """A job that has ended by itself needs no cancel; the failure says why."""
    control = FakeControl({"train": fails(Verdict(VerdictClass.USER, "ZeroDivisionError"), "boom")})
    result = materialize(model, control)
    failure = result.failure_data_for_node("model")
    assert failure is not None
    assert failure.user_failure_data is not None
    assert "ZeroDivisionError" in (failure.user_failure_data.description or "")
    assert control.cancelled == []


def test_a_job_somebody_cancelled_is_not_green() -> None:
    """`mlp job cancel` on a run's job fails the step, and says who did it."""
    verdict = Verdict(VerdictClass.CANCELLED, "cancelled by ann: too slow")
    control = FakeControl({"train": fails(verdict, phase=Phase.CANCELLED)})
    assert not materialize(model, control).success


def test_a_refused_job_is_never_cancelled() -> None:
    """Two runs of one partition at once: the second is refused, and the first one's job lives."""
    control = FakeControl({"train": succeeds()}, refuse=True)
    assert not materialize(model, control).success
    assert control.cancelled == []


def test_a_second_signal_does_not_cut_the_clean_up_short(capsys) -> None:
    """Ctrl-C pressed again, or SIGTERM after it, is answered and waited out."""
    with undisturbed():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert capsys.readouterr().err.count("Stopping the job already") == 2
