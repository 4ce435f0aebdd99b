"""What this process watches: the jobs that it follows, or all of a namespace."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ml_pipelines.backends.kubeapi import Reflector, path_of
from ml_pipelines.backends.kuberay import keep
from ml_pipelines.backends.kuberay.fields import (
    CLUSTER_LABEL,
    as_dict,
    as_list,
    as_text,
    conditions,
    is_head,
    labels_of,
)
from ml_pipelines.spec.manifest import QUEUE_LABEL, RUN_KEY_LABEL

if TYPE_CHECKING:
    from ml_pipelines.backends.base import Scope
    from ml_pipelines.backends.kubeapi import Api

    Object = dict[str, Any]

FIRST_LIST_S = 15.0  # how long the first look at a job waits for the first answers
IDLE_S = 600.0  # a job's watches end when nobody has asked for it so long
WORKLOAD_OWNER_LABEL = "kueue.x-k8s.io/job-uid"


@dataclass(slots=True)
class Seen:
    """What a watch shows of one RayJob. `version` changes with anything in it."""

    rayjob: Object | None
    cluster: Object | None = None
    pods: list[Object] = field(default_factory=list)
    workload: Object | None = None

    @property
    def version(self) -> tuple[str, ...]:
        """The versions of its objects."""
        made = [self.rayjob, self.cluster, self.workload, *self.pods]
        return tuple(f"{version(one)}" for one in made)


def version(made: Mapping[str, Any] | None) -> str:
    """An object's resource version, with whose it is."""
    metadata = as_dict(made.get("metadata")) if made else {}
    return f"{metadata.get('uid', '')}@{metadata.get('resourceVersion', '')}"


def unready_head(seen: Seen) -> Object | None:
    """The head of a job that says it runs, where it is not ready and stays."""
    status = as_dict(seen.rayjob.get("status")) if seen.rayjob else {}
    if status.get("jobDeploymentStatus") != "Running":
        return None
    current = as_text(status.get("rayClusterName"))
    for pod in seen.pods:
        ours = is_head(pod) and labels_of(pod).get(CLUSTER_LABEL) == current
        if ours and not pod["metadata"].get("deletionTimestamp"):
            ready = conditions(as_dict(pod.get("status"))).get("Ready", ("", "", ""))[0]
            told = conditions(as_dict(seen.cluster.get("status"))) if seen.cluster else {}
            if ready != "True" or told.get("HeadPodReady", ("", "", ""))[0] == "False":
                return pod
    return None


class Watch:
    """One list-watch per kind over one selection of jobs."""

    def __init__(self, api: Api, scope: Scope, labels: str) -> None:
        self._api = api
        self._scope = scope
        self.used_at = api.clock.monotonic()
        self.rayjobs = self._reflect("rayjobs", labels)
        self.clusters = self._reflect("rayclusters", labels)
        self.pods = self._reflect("pods", labels)
        self._workloads: Reflector | None = None
        self._workloads_of = ""
        self._by_job: tuple[int, dict[str, list[Object]]] = (-1, {})

    def fresh(self) -> None:
        """Wait for the first answers; raises BackendUnavailable where nothing new can be seen."""
        for one in (self.rayjobs, self.clusters, self.pods):
            one.synced(FIRST_LIST_S)
            one.fresh()

    def changed(self) -> tuple[int, ...]:
        """A value that differs after any change."""
        workloads = self._workloads.changed() if self._workloads else -1
        return (self.rayjobs.changed(), self.clusters.changed(), self.pods.changed(), workloads)

    def seen(self, name: str) -> Seen:
        """All that belongs to the RayJob of that name."""
        made = self.rayjobs.get(name)
        if made is None:
            return Seen(None)
        named = as_text(as_dict(made.get("status")).get("rayClusterName"))
        return Seen(
            made,
            self.clusters.get(named) if named else None,
            self._pods_by_job().get(name, []),
            self._workload(made),
        )

    def stop(self) -> None:
        """End all watches."""
        for one in (self.rayjobs, self.clusters, self.pods, self._workloads):
            if one is not None:
                one.stop()

    def _reflect(self, kind: str, labels: str) -> Reflector:
        kept = {
            "rayjobs": keep.rayjob,
            "rayclusters": keep.raycluster,
            "pods": keep.pod,
            "workloads": keep.workload,
        }[kind]
        path = path_of(kind, self._api.namespace)
        made = Reflector(self._api, path, labels=labels, keep=kept)
        made.start()
        return made

    def _pods_by_job(self) -> Mapping[str, list[Object]]:
        """Pods by their RayJob: of all of its clusters, a queue's evictions make several."""
        now = self.pods.changed()
        at, found = self._by_job
        if at != now:
            found = defaultdict(list)
            for pod in self.pods.items():
                cluster = as_text(labels_of(pod).get(CLUSTER_LABEL))
                # The operator adds a dash and five characters to the RayJob's name.
                found[cluster.rpartition("-")[0]].append(pod)
            self._by_job = (now, dict(found))
        return self._by_job[1]

    def _workload(self, made: Object) -> Object | None:
        """Kueue's Workload of a RayJob that a queue manages; watched only where one does.

        Also while the job runs: an eviction may come and go between two looks.
        """
        metadata = made["metadata"]
        uid = as_text(metadata.get("uid"))
        suspended = bool(as_dict(made.get("spec")).get("suspend"))
        if not suspended and QUEUE_LABEL not in as_dict(metadata.get("labels")):
            return None
        alone = self._scope == "job"
        self._watch_workloads(f"{WORKLOAD_OWNER_LABEL}={uid}" if alone else WORKLOAD_OWNER_LABEL)
        assert self._workloads is not None
        return next((one for one in self._workloads.items() if _owned(one, uid)), None)

    def _watch_workloads(self, labels: str) -> None:
        if labels == self._workloads_of:
            return
        if self._workloads is not None:
            self._workloads.stop()
        self._workloads_of = labels
        self._workloads = self._reflect("workloads", labels)


def _owned(made: Object, uid: object) -> bool:
    owners = as_list(made["metadata"].get("ownerReferences"))
    return any(as_dict(owner).get("uid") == uid for owner in owners)


class Watches:
    """The watches of a process: one for each run key it follows, or one for the namespace."""

    def __init__(self, api: Api, scope: Scope) -> None:
        self._api = api
        self._scope = scope
        self._lock = threading.Lock()
        self._made: dict[str, Watch] = {}

    def of(self, run_key: str) -> Watch:
        """The watch that shows the jobs of this run key; it is started at the first call."""
        labels = "" if self._scope == "namespace" else f"{RUN_KEY_LABEL}={run_key}"
        now = self._api.clock.monotonic()
        with self._lock:
            watch = self._made.get(labels)
            if watch is None:
                self._end_idle(now)
                watch = Watch(self._api, self._scope, labels or RUN_KEY_LABEL)
                self._made[labels] = watch
            watch.used_at = now
            return watch

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            for watch in self._made.values():
                watch.stop()
            self._made.clear()

    def _end_idle(self, now: float) -> None:
        for labels, watch in list(self._made.items()):
            if now - watch.used_at > IDLE_S:
                watch.stop()
                del self._made[labels]
