"""What a backend saw of one attempt at one moment: the input of every decision.

Backends fill these from Kubernetes objects or from the local Ray; both speak in the fields of
KubeRay's RayJob status, so one phase function serves both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class RayJobView:
    """A RayJob as the API server shows it. Strings are KubeRay's own, and may be unknown to us."""

    name: str
    uid: str
    run_key: str = ""
    spec_hash: str = ""
    job_status: str = ""
    deployment_status: str = ""
    reason: str = ""
    message: str = ""
    job_id: str = ""
    cluster_name: str = ""
    dashboard_url: str = ""
    suspended: bool = False
    deleting: bool = False
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    driver_exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerView:
    """One container of a pod: what it waits for, or how it ended."""

    name: str
    ready: bool = False
    restarts: int = 0
    waiting_reason: str = ""
    waiting_message: str = ""
    terminated_reason: str = ""
    terminated_message: str = ""
    exit_code: int | None = None
    init: bool = False


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of the attempt. `conditions` maps type → (status, reason, message).

    `leaves_at` is when a pod that is being deleted is gone at the latest, `gone_at` when it went.
    """

    name: str
    uid: str
    role: str  # "head" or "worker"
    group: str = ""
    phase: str = ""
    reason: str = ""
    message: str = ""
    node: str = ""
    node_type: str = ""
    spot: bool = False
    pool: str = ""
    deleting: bool = False
    requests: Mapping[str, float] = field(default_factory=dict)
    conditions: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    containers: tuple[ContainerView, ...] = ()
    scheduled_at: datetime | None = None
    gone_at: datetime | None = None
    leaves_at: datetime | None = None
    ships_log: bool = False  # whether its log container has begun

    @property
    def ready(self) -> bool:
        """Whether the pod's Ready condition is True."""
        return self.conditions.get("Ready", ("", "", ""))[0] == "True"

    @property
    def unanswered(self) -> bool:
        """Whether its machine is silent: Kubernetes says "not ready" of it, without its kubelet.

        The kubelet would give a reason, and would say it of the containers too.
        """
        status, reason, _ = self.conditions.get("Ready", ("", "", ""))
        containers = self.conditions.get("ContainersReady", ("", "", ""))[0]
        return status == "False" and not reason and containers == "True"

    @property
    def scheduled(self) -> tuple[str, str, str]:
        """The PodScheduled condition: (status, reason, message)."""
        return self.conditions.get("PodScheduled", ("", "", ""))


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A RayCluster: `conditions` maps type → (status, reason, message)."""

    name: str
    uid: str = ""
    state: str = ""
    reason: str = ""
    conditions: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    desired_workers: int | None = None
    ready_workers: int | None = None


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """Kueue's Workload of the attempt: `conditions` maps type → (status, reason, message)."""

    name: str
    queue: str = ""
    conditions: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventView:
    """A Kubernetes event about one of the attempt's objects."""

    about: str  # "Pod/name"
    reason: str
    message: str
    count: int = 1
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything seen at one moment. `rayjob` is None when the server says that it isn't there.

    `skew_s` is how far our wall clock is ahead of the one that the times seen here are from.
    A backend that can't see raises BackendUnavailable instead of returning an empty one.
    """

    rayjob: RayJobView | None
    cluster: ClusterView | None = None
    pods: tuple[PodView, ...] = ()
    events: tuple[EventView, ...] = ()
    workload: WorkloadView | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)
    skew_s: float = 0.0

    @property
    def staying(self) -> tuple[PodView, ...]:
        """The pods that are not being deleted, the head before the workers."""
        pods = (pod for pod in self.pods if not pod.deleting)
        return tuple(sorted(pods, key=lambda pod: (pod.role != "head", pod.name)))
