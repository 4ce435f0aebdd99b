"""A lost head ends its attempt: nothing may submit the work again behind us."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ml_pipelines.job.observation import ContainerView, Observation, PodView
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import VerdictClass
from ml_pipelines_tests.sightings import (
    RUNNING,
    Replay,
    cluster,
    pod,
    rayjob,
    status,
)

C = VerdictClass
RUNS = rayjob("RUNNING", "Running")
SPOT_GONE = {"DisruptionTarget": ("True", "DeletionByTaintManager", "taint unreachable")}
TAKEN = {"DisruptionTarget": ("True", "PreemptionByScheduler", "a higher priority")}


def seen(head: PodView | None = None, ready: str = "True", reason: str = "") -> Observation:
    """A running job whose head is this."""
    return Observation(RUNS, cluster(ready, reason), pods=(head,) if head else ())


def test_a_head_that_is_gone_is_infra_after_one_look_more():
    """Case B12: HeadPodReady turns False after it was True: INFRA, once two looks agree."""
    replay = Replay()
    replay.see(seen(pod()))
    gone = seen(None, "False", "HeadPodNotFound")
    assert replay.see(gone).phase is Phase.RUNNING
    standing = replay.see(gone)
    assert standing.phase is Phase.FAILED
    assert standing.verdict is not None
    assert standing.verdict.cls is C.INFRA
    assert "HeadPodNotFound" in "".join(standing.verdict.evidence)


def test_a_head_never_ready_is_not_lost():
    """A head that is still starting is provisioning's matter."""
    replay = Replay()
    starting = Observation(rayjob("", "Initializing"), cluster("False", "ContainersNotReady"))
    replay.see_all([starting] * 5)
    assert replay.standing is not None
    assert replay.standing.phase is Phase.PROVISIONING


def test_a_busy_head_may_miss_a_probe():
    """A head that is alive and not ready for a moment keeps its job; for long it is lost."""
    replay = Replay()
    replay.see(seen(pod()))
    busy = seen(pod(ready=False), "False", "ContainersNotReady")
    assert replay.wait(busy, 25.0, every_s=1.0).phase is Phase.RUNNING
    assert replay.see(seen(pod())).phase is Phase.RUNNING
    standing = replay.wait(busy, 90.0, every_s=1.0)
    assert standing.phase is Phase.FAILED
    assert "not ready" in standing.sentence


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(seen(pod("h2")), id="another pod"),
        pytest.param(
            seen(pod(containers=(ContainerView("ray-head", ready=True, restarts=1),))),
            id="container restarted",
        ),
        pytest.param(seen(pod(phase="Failed", reason="NodeLost")), id="pod failed"),
        pytest.param(
            Observation(replace(RUNS, started_at=datetime(2026, 1, 1, 1, tzinfo=UTC)), cluster()),
            id="start jumped",
        ),
    ],
)
def test_a_replaced_head_ends_the_attempt_at_once(after: Observation):
    """Case B12: a new head under a running job would run the work a second time."""
    replay = Replay()
    began = datetime(2026, 1, 1, tzinfo=UTC)
    replay.see(Observation(replace(RUNS, started_at=began), cluster(), pods=(pod(),)))
    standing = replay.see(after)
    assert standing.phase is Phase.FAILED
    assert standing.verdict is not None
    assert standing.verdict.cls is C.INFRA


def test_a_start_time_that_is_only_corrected_is_no_second_start():
    """A driver's start may be stated more exactly later."""
    replay = Replay()
    began = datetime(2026, 1, 1, tzinfo=UTC)
    for seconds in (0, 3, 3):
        view = replace(RUNS, started_at=began + timedelta(seconds=seconds))
        assert replay.see(Observation(view, cluster())).phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("last", "cls"),
    [
        pytest.param(pod(conditions=TAKEN, deleting=True, ready=False), C.PREEMPTED, id="taken"),
        pytest.param(
            pod(conditions=SPOT_GONE, spot=True, deleting=True, ready=False),
            C.PREEMPTED,
            id="spot",
        ),
        pytest.param(
            pod(conditions=SPOT_GONE, deleting=True, ready=False), C.INFRA, id="node lost"
        ),
        pytest.param(
            pod(
                containers=(
                    ContainerView(
                        "ray-head", restarts=1, terminated_reason="OOMKilled", exit_code=137
                    ),
                ),
                ready=False,
            ),
            C.OOM,
            id="memory",
        ),
    ],
)
def test_the_class_is_that_of_what_took_the_head(last: PodView, cls: VerdictClass):
    """Case F9: preempted, out of memory and a failed machine are told apart."""
    replay = Replay()
    replay.see(seen(pod(spot=last.spot)))
    lost = seen(last, "False", "PodDeleted")
    replay.see(lost)
    standing = replay.see(lost)
    assert standing.phase is Phase.FAILED
    assert standing.verdict is not None
    assert standing.verdict.cls is cls


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(status("SUCCEEDED", "Running"), id="driver done"),
        pytest.param(status("SUCCEEDED", "Complete"), id="complete"),
    ],
)
def test_a_cluster_taken_down_after_the_end_is_no_loss(last: Observation):
    """Case C7: the cluster goes when the job is done."""
    replay = Replay()
    replay.see(seen(pod()))
    replay.see(last)
    assert replay.see(status("SUCCEEDED", "Complete")).phase is Phase.SUCCEEDED


def test_a_success_of_another_head_is_told():
    """A head that was replaced while we could not look: the success stands, with a warning."""
    replay = Replay()
    replay.see(seen(pod()))
    done = Observation(rayjob("SUCCEEDED", "Complete"), cluster(), pods=(pod("h2"),))
    assert replay.see(done).phase is Phase.SUCCEEDED
    assert any("more than once" in warning for warning in replay.warnings)


def test_eviction_by_the_queue_is_no_loss():
    """Case F6: suspended, its head goes; admitted again, it runs with another one."""
    replay = Replay()
    replay.see(seen(pod()))
    replay.see_all([status("", "Suspending"), status("", "Suspended")])
    again = rayjob("RUNNING", "Running", cluster_name="c2", job_id="id2")
    standing = replay.see(Observation(again, cluster(), pods=(pod("h2"),)))
    assert standing.phase is Phase.RUNNING


def test_another_uid_is_lost():
    """Somebody else's object under our name is never adopted, and ends the job as LOST."""
    replay = Replay()
    replay.see(RUNNING)
    standing = replay.see(status("SUCCEEDED", "Complete", uid="u2"))
    assert standing.phase is Phase.LOST
    assert standing.verdict is not None
    assert not standing.verdict.ok
    assert "u2" in standing.verdict.evidence[0]


def test_a_lost_worker_is_told_and_ends_nothing():
    """Case H7: one of four workers preempted is seen at once, once, and Ray goes on."""
    workers = tuple(pod(f"w{n}", "worker", spot=True, node=f"spot-{n}") for n in range(4))
    replay = Replay()
    replay.see(Observation(RUNS, cluster(), pods=(pod(), *workers)))
    taken = pod("w2", "worker", spot=True, node="spot-2", conditions=TAKEN, deleting=True)
    after = Observation(RUNS, cluster(), pods=(pod(), *workers[:2], taken, workers[3]))
    assert replay.see_all([after, after, after]).phase is Phase.RUNNING
    assert replay.warnings == ["worker w2 on node spot-2 was preempted"]


def test_time_in_which_nothing_was_seen_does_not_count():
    """Case C14: a busy head, then an API server that was away: its grace begins anew."""
    replay = Replay()
    replay.see(seen(pod()))
    busy = seen(pod(ready=False), "False", "ContainersNotReady")
    replay.wait(busy, 10.0, every_s=1.0)
    assert replay.see(busy, 300.0).phase is Phase.RUNNING
    assert replay.wait(busy, 55.0, every_s=1.0).phase is Phase.RUNNING
    assert replay.wait(busy, 10.0, every_s=1.0).phase is Phase.FAILED


BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def driver_failed(head: PodView, **fields: object) -> Observation:
    """A driver that failed, and the head that is there now."""
    view = rayjob("FAILED", "Failed", "AppFailed", driver_exit_code=1, started_at=BEGAN, **fields)
    return Observation(view, cluster(), pods=(head,))


@pytest.mark.parametrize("first", ["another pod", "taken over"])
def test_a_driver_that_failed_with_a_head_replaced_unseen(first: str):
    """Case B12: nobody saw the first head go; the driver's failure is not the user's."""
    replay = Replay()
    if first == "another pod":
        replay.see(seen(pod()))
    second = pod("h2", scheduled_at=BEGAN + timedelta(seconds=60))
    verdict = replay.see(driver_failed(second)).verdict
    assert verdict is not None
    assert verdict.cls is C.INFRA
    assert "h2" in verdict.sentence


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(pod(scheduled_at=BEGAN - timedelta(seconds=20)), id="the same head"),
        pytest.param(pod("h2", scheduled_at=BEGAN + timedelta(seconds=90)), id="after the end"),
    ],
)
def test_a_driver_that_failed_by_itself(head: PodView):
    """The head it began on is there, or went only when the driver had failed."""
    replay = Replay()
    replay.see(seen(pod()))
    verdict = replay.see(driver_failed(head, ended_at=BEGAN + timedelta(seconds=60))).verdict
    assert verdict is not None
    assert verdict.cls is C.USER
