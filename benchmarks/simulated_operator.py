"""The operator's part, played on the real API server: for thousands of jobs that run nothing.

KubeRay leaves alone what is managed by another (`spec.managedBy`). Clusters, pods and statuses are
made here as it makes them; the pods are real objects on fake nodes, which run nothing either.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from ml_pipelines.backends.base import Manifest
from ml_pipelines.backends.kubeapi import Api, KubeNotFound, path_of
from ml_pipelines.backends.kuberay import KubeRayBackend
from ml_pipelines.job.observation import RayJobView

MANAGER = "kueue.x-k8s.io/multikueue"  # the only other that the operator's validation takes
WRITERS = 6
READY_S = 180.0

Object = dict[str, Any]


def left_alone(manifest: Manifest) -> Object:
    """The same RayJob, which the operator doesn't touch."""
    return {**manifest, "spec": {**manifest["spec"], "managedBy": MANAGER}}


class LeftAlone(KubeRayBackend):
    """As ever, but that the operator doesn't touch what it creates."""

    def check(self, manifest: Manifest) -> tuple[str, ...]:
        return super().check(left_alone(manifest))

    def create(self, manifest: Manifest) -> RayJobView:
        return super().create(left_alone(manifest))


class Operator:
    """Brings RayJobs of one namespace to life and to their end."""

    def __init__(self, api: Api, *, nodes: int, workers: bool) -> None:
        self._api = api
        self._nodes = nodes
        self._workers = workers
        self._pool = ThreadPoolExecutor(WRITERS)

    def close(self) -> None:
        """Leave nothing of it behind: pods go by the thousand quicker than by their owners."""
        self._pool.shutdown(cancel_futures=True)
        for kind in ("rayjobs", "rayclusters", "pods"):
            path = path_of(kind, self._api.namespace)
            self._api.send("DELETE", path, query={"gracePeriodSeconds": "0"}, budget_s=120.0)

    def jobs(self) -> list[Object]:
        """All RayJobs here."""
        return self._api.list(path_of("rayjobs", self._api.namespace)).items

    def run(self, jobs: list[Object]) -> None:
        """Each gets a cluster and pods, and a driver that runs once they are ready."""
        clusters = list(self._pool.map(self._bring_up, enumerate(jobs)))
        self._await_pods()
        list(self._pool.map(self._start, jobs, clusters))

    def end(self, jobs: list[Object]) -> None:
        """Each driver ends well; the status's message says when."""
        list(self._pool.map(self._end, jobs))

    def _bring_up(self, numbered: tuple[int, Object]) -> str:
        number, job = numbered
        name = f"{job['metadata']['name']}-{secrets.token_hex(3)[:5]}"
        labels = {
            **job["metadata"]["labels"],
            "ray.io/originated-from-cr-name": job["metadata"]["name"],
        }
        spec = {**job["spec"]["rayClusterSpec"], "managedBy": MANAGER}
        cluster = self._create("rayclusters", {
            "apiVersion": "ray.io/v1", "kind": "RayCluster", "spec": spec,
            "metadata": {"name": name, "labels": labels, "ownerReferences": [_owner(job)]},
        })  # fmt: skip
        for pod in self._pods(cluster, number):
            self._create_pod(pod)
        self._status("rayjobs", job["metadata"]["name"], {
            "jobDeploymentStatus": "Initializing", "jobId": name, "rayClusterName": name,
        })  # fmt: skip
        return name

    def _pods(self, cluster: Object, number: int) -> Iterator[Object]:
        spec = cluster["spec"]
        yield self._pod(cluster, number, "head", spec["headGroupSpec"])
        for group in spec["workerGroupSpecs"] if self._workers else ():
            yield self._pod(cluster, number, "worker", group)

    def _pod(self, cluster: Object, number: int, kind: str, group: Object) -> Object:
        template = group["template"]
        labels = {"ray.io/cluster": cluster["metadata"]["name"], "ray.io/node-type": kind}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{cluster['metadata']['name']}-{kind}-{secrets.token_hex(3)[:5]}",
                "labels": {**template["metadata"]["labels"], **labels},
                "ownerReferences": [_owner(cluster)],
            },
            "spec": {**template["spec"], "nodeName": f"fake-{number % self._nodes}"},
        }

    def _create_pod(self, pod: Object) -> None:
        """Kueue's webhook looks the owner up in a cache of its own, which may be behind."""
        until = time.monotonic() + READY_S
        while True:
            try:
                self._create("pods", pod)
            except KubeNotFound:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
            else:
                return

    def _await_pods(self) -> None:
        until = time.monotonic() + READY_S
        while waiting := sum(not _ready(pod) for pod in self._list("pods")):
            if time.monotonic() > until:
                raise RuntimeError(f"{waiting} fake pods are not ready")
            time.sleep(1.0)

    def _start(self, job: Object, cluster: str) -> None:
        ready = {"state": "ready", "desiredWorkerReplicas": 1, "readyWorkerReplicas": 1}
        self._status("rayclusters", cluster, ready)
        self._status("rayjobs", job["metadata"]["name"], {
            "jobDeploymentStatus": "Running", "jobStatus": "RUNNING",
            "rayJobInfo": {"startTime": _now()},
        })  # fmt: skip

    def _end(self, job: Object) -> None:
        self._status("rayjobs", job["metadata"]["name"], {
            "jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED", "endTime": _now(),
            "message": str(time.time()),
        })  # fmt: skip

    def _create(self, kind: str, made: Object) -> Object:
        return self._api.create(path_of(kind, self._api.namespace), made)

    def _status(self, kind: str, name: str, status: Mapping[str, Any]) -> None:
        path = path_of(kind, self._api.namespace, name, "status")
        try:
            self._api.patch(path, {"status": status})
        except KubeNotFound as error:
            raise RuntimeError(f"{name} went") from error

    def _list(self, kind: str) -> list[Object]:
        return self._api.list(path_of(kind, self._api.namespace)).items


def _ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _owner(made: Object) -> Object:
    metadata = made["metadata"]
    return {
        "apiVersion": made["apiVersion"], "kind": made["kind"], "controller": True,
        "name": metadata["name"], "uid": metadata["uid"],
    }  # fmt: skip


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
