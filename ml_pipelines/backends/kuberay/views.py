"""What is seen of a RayJob on Kubernetes: objects of the API server become views. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ml_pipelines.backends import rayjob
from ml_pipelines.backends.kuberay.fields import as_dict, as_text, as_time, conditions
from ml_pipelines.backends.kuberay.pods import pod_view
from ml_pipelines.job.observation import (
    ClusterView,
    EventView,
    Observation,
    PodView,
    RayJobView,
    WorkloadView,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Object = Mapping[str, Any]

# Ray's message on a driver that failed; RayJobs have no field for it.
_EXIT_CODE = re.compile(r"entrypoint command failed with exit code (-?\d+)")
_NO_HEAD = "HeadPodNotFound"


def rayjob_view(made: Object) -> RayJobView:
    """The RayJob. `started_at` is when its driver was submitted, as Ray says."""
    metadata, status = made["metadata"], as_dict(made.get("status"))
    driver = as_dict(status.get("rayJobInfo"))
    message = as_text(status.get("message"))
    found = _EXIT_CODE.search(message)
    return RayJobView(
        name=as_text(metadata.get("name")),
        uid=as_text(metadata.get("uid")),
        run_key=rayjob.run_key(made),
        spec_hash=rayjob.spec_hash(made),
        job_status=as_text(status.get("jobStatus")),
        deployment_status=as_text(status.get("jobDeploymentStatus")),
        reason=as_text(status.get("reason")),
        message=message,
        job_id=as_text(status.get("jobId")),
        cluster_name=as_text(status.get("rayClusterName")),
        dashboard_url=as_text(status.get("dashboardURL")),
        suspended=bool(as_dict(made.get("spec")).get("suspend")),
        deleting=bool(metadata.get("deletionTimestamp")),
        created_at=as_time(metadata.get("creationTimestamp")),
        started_at=as_time(driver.get("startTime")),
        ended_at=as_time(driver.get("endTime")) or as_time(status.get("endTime")),
        driver_exit_code=int(found[1]) if found else None,
    )


def cluster_view(made: Object) -> ClusterView:
    """The RayCluster."""
    metadata, status = made["metadata"], as_dict(made.get("status"))
    return ClusterView(
        name=as_text(metadata.get("name")),
        uid=as_text(metadata.get("uid")),
        state=as_text(status.get("state")),
        reason=as_text(status.get("reason")),
        conditions=conditions(status),
        desired_workers=status.get("desiredWorkerReplicas"),
        ready_workers=status.get("readyWorkerReplicas"),
    )


def workload_view(made: Object) -> WorkloadView:
    """Kueue's Workload."""
    return WorkloadView(
        name=as_text(made["metadata"].get("name")),
        queue=as_text(as_dict(made.get("spec")).get("queueName")),
        conditions=conditions(as_dict(made.get("status"))),
    )


def event_view(made: Object) -> EventView:
    """An event; the newer kind has a series instead of a count."""
    about, series = as_dict(made.get("involvedObject")), as_dict(made.get("series"))
    return EventView(
        about=f"{about.get('kind', '')}/{about.get('name', '')}",
        reason=as_text(made.get("reason")),
        message=as_text(made.get("message")),
        count=int(series.get("count") or made.get("count") or 1),
        at=as_time(
            series.get("lastObservedTime")
            or made.get("lastTimestamp")
            or made.get("eventTime")
            or made["metadata"].get("creationTimestamp")
        ),
    )


def observation(
    made: Object,
    *,
    cluster: Object | None = None,
    pods: Iterable[Object] = (),
    events: Iterable[Object] = (),
    workload: Object | None = None,
    nodes: Mapping[str, Mapping[str, str]] | None = None,
    skew_s: float = 0.0,
) -> Observation:
    """All of it together; `nodes` are the labels of those nodes that may be read."""
    known = nodes or {}
    oldest_first = sorted(pods, key=lambda pod: as_text(pod["metadata"].get("creationTimestamp")))
    seen = tuple(pod_view(pod, known.get(node_of(pod), {})) for pod in oldest_first)
    # Equal times are common: the server's go by the second.
    told = sorted(map(event_view, events), key=lambda event: str(event.at or ""))
    return Observation(
        rayjob=rayjob_view(made),
        cluster=None if cluster is None else _by_ray_alone(cluster_view(cluster), seen),
        pods=seen,
        events=tuple(told),
        workload=None if workload is None else workload_view(workload),
        skew_s=skew_s,
    )


def node_of(pod: Object) -> str:
    """The pod's node, or empty."""
    return as_text(as_dict(pod.get("spec")).get("nodeName"))


def _by_ray_alone(cluster: ClusterView, pods: tuple[PodView, ...]) -> ClusterView:
    """The operator calls a head unready whose log container is; here only Ray counts."""
    status, reason, _ = cluster.conditions.get("HeadPodReady", ("", "", ""))
    ready = any(pod.role == "head" and pod.ready and not pod.deleting for pod in pods)
    if status != "False" or reason == _NO_HEAD or not ready:
        return cluster
    conditions = {**cluster.conditions, "HeadPodReady": ("True", "", "")}
    return replace(cluster, conditions=conditions)
