"""Queues for tests: `deploy/kueue` under names of a namespace's own, and pools that wait in it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ml_pipelines_tests.cluster import Cluster, KubectlFailed, Namespace, wait_for

KUEUE = Path(__file__).parents[1] / "deploy" / "kueue"
NOWHERE = {"cloud.google.com/gke-nodepool": "none"}  # pods that fit no node cost nothing
_ROOT = str(KUEUE.parents[1])
_SETTLED_S = 60.0

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Queue:
    """A LocalQueue `ml-pipelines` of the namespace, and a ClusterQueue behind it."""

    namespace: Namespace
    cluster_queue: str
    platform_file: Path

    def stop(self, policy: str) -> None:
        """`Hold` admits nobody, `HoldAndDrain` evicts too, `None` goes on."""
        patch = json.dumps({"spec": {"stopPolicy": policy}})
        self.namespace.cluster.kubectl(
            "patch", "clusterqueue", self.cluster_queue, "--type=merge", "-p", patch
        )

    def reserved(self) -> str:
        """CPUs that jobs hold of the quota."""
        found = self.namespace.cluster.get("clusterqueue", self.cluster_queue)
        flavors = found["status"].get("flavorsReservation", [])
        totals = {one["name"]: one["total"] for each in flavors for one in each["resources"]}
        return str(totals.get("cpu", "0"))

    def workloads(self, run_key: str) -> list[Object]:
        """Kueue's objects for that job."""
        return [
            one
            for one in self.namespace.items("workloads.kueue.x-k8s.io")
            if one["metadata"]["name"].startswith(f"rayjob-{run_key}-a")
        ]


@contextlib.contextmanager
def make_queue(namespace: Namespace, folder: Path) -> Iterator[Queue]:
    """`deploy/kueue` for this namespace; skips the test where there is no Kueue."""
    cluster, suffix = namespace.cluster, namespace.name
    if cluster.get("crd", "workloads.kueue.x-k8s.io") is None:
        cluster.add("kueue")
    text = cluster.kubectl("kustomize", str(KUEUE))
    objects: list[Object] = list(yaml.safe_load_all(text))
    for one in objects:
        _rename(one, suffix)
    unscoped = [one for one in objects if one["kind"] != "LocalQueue"]
    try:
        # Its webhooks may take a moment longer than its pods.
        wait_for("Kueue takes a queue", lambda: _applied(cluster, objects), timeout_s=_SETTLED_S)
        yield Queue(namespace, f"ml-pipelines-{suffix}", _platform(namespace, folder))
    finally:
        namespace.kubectl("delete", "rayjobs", "--all", "--wait=false", check=False)
        cluster.kubectl(
            "delete", "--ignore-not-found", "--wait=false", "-f", "-", input=_as_list(unscoped)
        )


def _rename(one: Object, suffix: str) -> None:
    """The object as it is for another namespace beside which others of its kind may be."""
    metadata = one["metadata"]
    if one["kind"] == "LocalQueue":
        metadata["namespace"] = suffix
        one["spec"]["clusterQueue"] += f"-{suffix}"
    else:
        metadata["name"] += f"-{suffix}"
        metadata.pop("namespace", None)
    if one["kind"] == "ClusterQueue":
        one["spec"]["namespaceSelector"]["matchLabels"] = {"kubernetes.io/metadata.name": suffix}
        for group in one["spec"]["resourceGroups"]:
            for flavor in group["flavors"]:
                flavor["name"] += f"-{suffix}"


def _applied(cluster: Cluster, objects: list[Object]) -> bool:
    try:
        cluster.kubectl("apply", "-f", "-", input=_as_list(objects))
    except KubectlFailed as err:
        if "failed calling webhook" in str(err):
            return False
        raise
    return True


def _platform(namespace: Namespace, folder: Path) -> Path:
    """The platform file with pools that wait in the queue, and with what the tests run."""
    platform = yaml.safe_load(namespace.platform_file.read_text(encoding="utf-8"))
    platform["env"]["PYTHONPATH"] = _ROOT
    pools = platform["pools"]
    small = {"cpu": "400m", "memory": "1536Mi", "gpus": 0}
    urgent = {"priority_class": f"ml-pipelines-urgent-{namespace.name}"}
    queued = {"queue": "ml-pipelines"}
    pools["spare"] = {**pools["spot"], **small}
    pools["team"] = {**pools["spare"], **queued}
    pools["far"] = {**pools["cpu"], "node_selector": NOWHERE}
    pools["waiting"] = {**pools["far"], **queued}
    pools["urgent"] = {**pools["waiting"], **urgent}
    pools["lost"] = {**pools["far"], "queue": "no-such-queue"}
    pools["narrow"] = {**pools["gpu"], "cpu": "1200m", "gpus": 0}  # one fits its one node
    path = folder / "platform-kueue.yaml"
    path.write_text(yaml.safe_dump(platform, sort_keys=False), encoding="utf-8")
    return path


def _as_list(objects: list[Object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


@pytest.fixture(scope="module")
def queue(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    """A queue of the module's namespace, with two CPUs."""
    with make_queue(namespace, tmp_path_factory.mktemp("kueue")) as made:
        yield made
