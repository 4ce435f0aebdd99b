"""A real cluster for one measurement: a namespace of its own that takes all with it."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.row import Row
from benchmarks.small import POOL
from ml_pipelines.backends.base import Scope
from ml_pipelines.lifecycle import Platform, open_platform
from ml_pipelines.settings import LAKE_VARIABLE, RUNS_VARIABLE, Settings, load, s3_endpoint
from ml_pipelines.storage import open_store
from ml_pipelines_tests.cluster import Cluster, Namespace, make_namespace

NO_CLUSTER = "not run: needs a Kubernetes with KubeRay: set KUBECONFIG"
NO_TOOL = "not run: needs fake nodes: set MLP_CLUSTER_TOOL to the command that adds kwok"
TOLERATED = [
    {"key": key, "operator": "Exists"} for key in ("nvidia.com/gpu", "cloud.google.com/gke-spot")
]
FAKE_NODES = "cloud.google.com/gke-nodepool=fake"


@dataclass(frozen=True, slots=True)
class Bench:
    """A namespace, and run storage for it alone."""

    namespace: Namespace
    storage: str
    folder: Path

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        return self.namespace.cluster

    @property
    def environment(self) -> Mapping[str, str]:
        """What our settings are read from, here and in a process of its own."""
        storage = {RUNS_VARIABLE: f"{self.storage}/runs", LAKE_VARIABLE: f"{self.storage}/lake"}
        own = {"MLP_HOME": str(self.folder), "MLP_OWNER": "bench"}
        return {**self.namespace.environment(), **storage, **own}

    @property
    def settings(self) -> Settings:
        """The same, read."""
        return load(self.environment, self.folder)

    @contextmanager
    def platform(self, scope: Scope = "job") -> Iterator[Platform]:
        """As a process of ours has it."""
        with open_platform(self.settings, scope=scope) as platform:
            yield platform

    def add_pool(self, name: str, **changes: Any) -> None:
        """One more pool in the platform file: as the pool `cpu`, but for `changes`."""
        path = self.namespace.platform_file
        platform = yaml.safe_load(path.read_text(encoding="utf-8"))
        platform["pools"][name] = {**platform["pools"]["cpu"], **changes}
        path.write_text(yaml.safe_dump(platform, sort_keys=False), encoding="utf-8")


def cluster_here() -> Cluster | None:
    """The cluster that KUBECONFIG names."""
    kubeconfig = os.environ.get("KUBECONFIG")
    if not kubeconfig:
        return None
    tool = tuple(shlex.split(os.environ.get("MLP_CLUSTER_TOOL", "")))
    return Cluster(Path(kubeconfig), tool)


@contextmanager
def bench(cluster: Cluster, tag: str) -> Iterator[Bench]:
    """A new namespace, with run storage on S3 where there is an S3, else on the shared volume."""
    name = f"mlb-{tag}-{secrets.token_hex(3)}"
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir="/tmp"))
    try:
        with make_namespace(cluster, name, folder) as namespace:
            there = s3_endpoint() is not None
            storage = f"s3://runs/{name}" if there else f"file://{namespace.shared}/{name}"
            here = Bench(namespace, storage, folder)
            here.add_pool(POOL, node_selector={}, tolerations=TOLERATED)
            try:
                yield here
            finally:
                _forget(storage)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _forget(storage: str) -> None:
    store = open_store(storage)
    folder = store.local_path()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in store.list():
        store.delete(path)


@contextmanager
def fake_nodes(cluster: Cluster, count: int) -> Iterator[None]:
    """Nodes on which pods cost nothing; they go again with the block, where it added them."""
    there = bool(cluster.items("nodes", "-l", FAKE_NODES))
    if not there:
        cluster.add("kwok", "--nodes", str(count))
    try:
        yield
    finally:
        if not there:
            cluster.kubectl("delete", "nodes", "-l", FAKE_NODES, "--wait=false")


def not_run(rows: Sequence[tuple[str, str]], why: str = NO_CLUSTER) -> list[Row]:
    """What could not be measured, each with its goal."""
    return [Row(what, None, goal=goal, detail=why) for what, goal in rows]
