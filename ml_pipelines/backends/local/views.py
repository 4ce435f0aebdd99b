"""What is seen of a local RayJob, in the words of Kubernetes: pure.

The local Ray has no pods; each attempt is shown with one pseudo pod for its head and one for each
worker, so phase, ledger and cost read both backends alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from ml_pipelines.backends import rayjob
from ml_pipelines.backends.local.sizing import GroupPlan, LocalPlan
from ml_pipelines.job.observation import (
    ClusterView,
    ContainerView,
    Observation,
    PodView,
    RayJobView,
    WorkloadView,
)  # fmt: skip

if TYPE_CHECKING:
    from ml_pipelines.backends.local.objects import RayJobObject, Status

QUEUE = "local"
HEAD_GONE = "HeadGone"


@dataclass(frozen=True, slots=True)
class Host:
    """The one node: its name and, in a few words, what it is."""

    name: str
    kind: str


def rayjob_view(made: RayJobObject, status: Status, *, deleting: bool) -> RayJobView:
    """The RayJob."""
    return RayJobView(
        name=made.name,
        uid=made.uid,
        run_key=rayjob.run_key(made.manifest),
        spec_hash=rayjob.spec_hash(made.manifest),
        job_status=status.job_status,
        deployment_status=status.deployment_status,
        reason=status.reason,
        message=status.message,
        job_id=status.job_id,
        cluster_name=f"{made.name}-{status.cluster}" if status.cluster else "",
        dashboard_url=status.dashboard_url,
        suspended=status.deployment_status == "Suspended",
        deleting=deleting,
        created_at=_time(made.created_at),
        started_at=_time(status.started_at),
        ended_at=_time(status.ended_at),
        driver_exit_code=status.driver_exit_code,
    )


def observation(made: RayJobObject, status: Status, *, host: Host, deleting: bool) -> Observation:
    """Everything seen of it at one moment."""
    view = rayjob_view(made, status, deleting=deleting)
    if not status.cluster:
        workload = None
        if view.suspended:
            pending = {"QuotaReserved": ("False", "Pending", status.message)}
            workload = WorkloadView(name=made.name, queue=QUEUE, conditions=pending)
        return Observation(rayjob=view, workload=workload)
    plan = LocalPlan.from_json(status.plan)
    pods = _pods(made, status, plan, host)
    ready = sum(pod.ready for pod in pods if pod.role == "worker")
    return Observation(
        rayjob=view,
        cluster=ClusterView(
            name=view.cluster_name,
            uid=status.cluster,
            state="ready" if status.ready_at and not status.head_lost else "",
            reason=status.head_lost,
            conditions=_cluster_conditions(status),
            desired_workers=sum(group.workers for group in plan.groups),
            ready_workers=ready,
        ),
        pods=pods,
    )


def with_lost_head(status: Status, how: str, at: str) -> Status:
    """The status of a job whose head is gone before it ended: as KubeRay's when it sees no more."""
    return replace(
        status,
        deployment_status="Failed",
        reason="JobStatusCheckTimeoutExceeded" if status.submitted else "SubmissionFailed",
        message=how,
        head_lost=how,
        ended_at=at,
    )


def _cluster_conditions(status: Status) -> dict[str, tuple[str, str, str]]:
    if status.head_lost:
        return {"HeadPodReady": ("False", HEAD_GONE, status.head_lost)}
    if not status.ready_at:
        return {"HeadPodReady": ("False", "ContainersNotReady", status.message)}
    return {
        "HeadPodReady": ("True", "HeadPodRunningAndReady", ""),
        "RayClusterProvisioned": ("True", "AllPodRunningAndReadyFirstTime", ""),
    }


def _pods(made: RayJobObject, status: Status, plan: LocalPlan, host: Host) -> tuple[PodView, ...]:
    pods = [_pod(made, status, plan.head, "head", f"{made.name}-head", host)]
    for group in plan.groups:
        pods += [
            _pod(made, status, group, "worker", f"{made.name}-{group.name}-{index}", host)
            for index in range(group.workers)
        ]
    return tuple(pods)


def _pod(
    made: RayJobObject, status: Status, group: GroupPlan, role: str, name: str, host: Host
) -> PodView:
    phase = _pod_phase(status)
    ready = "True" if phase == "Running" else "False"
    requests: dict[str, float] = {"cpu": group.cpu, "memory": float(group.memory)}
    if group.gpus:
        requests["gpu"] = float(group.gpus)
    lost = phase == "Failed"
    container = ContainerView(
        name="ray-head" if role == "head" else "ray-worker",
        ready=phase == "Running",
        waiting_reason="ContainerCreating" if phase == "Pending" else "",
        terminated_reason="Error" if lost else "",
    )
    return PodView(
        name=name,
        uid=f"{made.uid}-{name.removeprefix(made.name + '-')}",
        role=role,
        group=group.name,
        phase=phase,
        reason=HEAD_GONE if lost else "",
        message=status.head_lost,
        node=host.name,
        node_type=host.kind,
        spot=group.spot,
        pool=group.pool,
        requests=requests,
        conditions={"PodScheduled": ("True", "", ""), "Ready": (ready, "", "")},
        containers=(container,),
        scheduled_at=_time(status.assigned_at),
        gone_at=_time(status.ended_at),
    )


def _pod_phase(status: Status) -> str:
    if status.head_lost:
        return "Failed"
    if status.terminal:
        return "Succeeded"
    return "Running" if status.ready_at else "Pending"


def _time(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
