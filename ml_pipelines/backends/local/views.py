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
    pods = _pods(made, status, plan=plan, host=host)
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


def _pods(
    made: RayJobObject, status: Status, *, plan: LocalPlan, host: Host
) -> tuple[PodView, ...]:
    base = PodView(
        name=made.name,
        uid=made.uid,
        role="worker",
        phase=_pod_phase(status),
        reason=HEAD_GONE if status.head_lost else "",
        message=status.head_lost,
        node=host.name,
        node_type=host.kind,
        scheduled_at=_time(status.assigned_at),
        gone_at=_time(status.ended_at),
    )
    workers = [
        _pod(base, group, part=f"{group.name}-{index}")
        for group in plan.groups
        for index in range(group.workers)
    ]
    return (replace(_pod(base, plan.head, part="head"), role="head"), *workers)


def _pod(base: PodView, group: GroupPlan, *, part: str) -> PodView:
    running = base.phase == "Running"
    requests: dict[str, float] = {"cpu": group.cpu, "memory": float(group.memory)}
    if group.gpus:
        requests["gpu"] = float(group.gpus)
    container = ContainerView(
        name="ray-head" if part == "head" else "ray-worker",
        ready=running,
        waiting_reason="ContainerCreating" if base.phase == "Pending" else "",
        terminated_reason="Error" if base.phase == "Failed" else "",
    )
    return replace(
        base,
        name=f"{base.name}-{part}",
        uid=f"{base.uid}-{part}",
        group=group.name,
        pool=group.pool,
        spot=group.spot,
        requests=requests,
        conditions={
            "PodScheduled": ("True", "", ""),
            "Ready": ("True" if running else "False", "", ""),
        },
        containers=(container,),
    )


def _pod_phase(status: Status) -> str:
    if status.head_lost:
        return "Failed"
    if status.terminal:
        return "Succeeded"
    return "Running" if status.ready_at else "Pending"


def _time(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
