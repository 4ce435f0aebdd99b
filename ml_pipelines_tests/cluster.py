"""A real cluster for tests: a namespace made from `deploy/`, and faults that always heal."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ml_pipelines.clock import SystemClock
from ml_pipelines.spec.pools import Pool, Pools, load_pools

OVERLAY = Path(__file__).parents[1] / "deploy" / "overlays" / "test-cluster"
STORAGE_SECRET = "ml-pipelines-storage"
PLATFORM_MAP = "ml-pipelines-platform"
CLAIM = "ml-pipelines-shared"
RUNS_ACCOUNT = "ml-pipelines-runs"
DAGSTER_ACCOUNT = "ml-pipelines-dagster"
RAY_ACCOUNT = "ml-pipelines-ray"

_NO_CLUSTER = "needs a Kubernetes with KubeRay: set KUBECONFIG"
_NO_TOOL = "breaks the cluster on purpose: set MLP_CLUSTER_TOOL to the command that can"
_NO_STORAGE = "needs an S3 server: set AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
_BASE_NAME = "ml-pipelines"
_UNSCOPED = ("ClusterRole", "ClusterRoleBinding", "PersistentVolume", "Namespace")
_QUICK = ("--all", "--wait=false", "--ignore-not-found")
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")

CLOCK = SystemClock()

Object = dict[str, Any]


class KubectlFailed(AssertionError):
    """kubectl ended with an error; the text is what it printed."""


def wait_for(what: str, happened: Callable[[], Any], *, timeout_s: float = 60) -> Any:
    """The first true answer of `happened`; fails the test, naming `what`, where none comes."""
    end = CLOCK.monotonic() + timeout_s
    while True:
        answer = happened()
        if answer:
            return answer
        if CLOCK.monotonic() > end:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}")
        CLOCK.sleep(0.2)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster that KUBECONFIG names, as its administrator."""

    kubeconfig: Path
    tool: tuple[str, ...]

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002
        check: bool = True,
        timeout_s: float = 60,
    ) -> str:
        """What kubectl prints. Raises KubectlFailed with its error."""
        done = subprocess.run(
            ["kubectl", *args],
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
        )
        if check and done.returncode:
            raise KubectlFailed(f"kubectl {' '.join(args)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def get(self, *args: str) -> Any:
        """What `kubectl get … -o json` finds, as an object; None where it is not there."""
        text = self.kubectl("get", *args, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def items(self, *args: str) -> list[Object]:
        """All that `kubectl get … -o json` finds."""
        found = self.get(*args)
        items: list[Object] = found["items"] if found else []
        return items

    @contextlib.contextmanager
    def fault(self, what: str, node: str = "", *, grace_s: float = 25) -> Iterator[None]:
        """Within: a fault. It is healed on the way out, whatever happened within.

        `what` is `operator`, `api` or `s3` (stopped), or, with a node's name, `cut` (its link is
        down), `kill` (power loss) or `preempt` (spot notice). Skips the test where nothing can.
        """
        self.needs_tool()
        if node:
            options = ["--grace", str(grace_s)] if what == "preempt" else []
            begin, end = [what, node, *options], ["heal" if what == "cut" else "start", node]
        else:
            begin, end = ["stop", what], ["start", what]
        try:
            self._tool(*begin)
            yield
        finally:
            self._heal(end, node)

    def _heal(self, end: list[str], node: str) -> None:
        try:
            self._tool(*end)
        except KubectlFailed as err:
            if "is running" not in str(err):  # healed by the test itself
                raise
        if node:
            wait_for(f"{node} is ready", lambda: self.node_ready(node), timeout_s=90)

    def node_ready(self, name: str) -> bool:
        """Whether the node is there and says that it is ready."""
        node = self.get("node", name)
        conditions = node["status"].get("conditions", []) if node else []
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def add(self, what: str, *options: str) -> None:
        """Add `kueue` or `kwok`, where it is not yet there. Skips the test where nothing can."""
        self.needs_tool()
        self._tool("add", what, *options)

    def needs_tool(self) -> None:
        """Skips the test where nothing can break the cluster's parts, and heal them."""
        if not self.tool:
            pytest.skip(_NO_TOOL)

    def _tool(self, *args: str) -> None:
        done = subprocess.run(
            [*self.tool, *args], capture_output=True, text=True, timeout=180, check=False
        )
        if done.returncode:
            raise KubectlFailed(f"{' '.join(args)}: {done.stdout}{done.stderr}")


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace of the tests' own, made from the overlay."""

    cluster: Cluster
    name: str
    platform_file: Path
    shared: Path | None  # the shared volume's folder on this machine, where it has one

    @property
    def pools(self) -> Pools:
        """The platform's pools."""
        return load_pools(self.platform_file)

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002
        check: bool = True,
        timeout_s: float = 60,
    ) -> str:
        """`Cluster.kubectl` within this namespace."""
        return self.cluster.kubectl(
            "-n", self.name, *args, input=input, check=check, timeout_s=timeout_s
        )

    def get(self, *args: str) -> Any:
        """`Cluster.get` within this namespace."""
        return self.cluster.get("-n", self.name, *args)

    def items(self, *args: str) -> list[Object]:
        """`Cluster.items` within this namespace."""
        return self.cluster.items("-n", self.name, *args)

    def create(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """The object that the server made, or would make; unknown fields are refused."""
        options = ["--dry-run=server"] if dry_run else []
        text = self.kubectl(
            "create", "-f", "-", "-o", "json", "--validate=strict", *options,
            input=json.dumps(manifest),
        )  # fmt: skip
        made: Object = json.loads(text)
        return made

    def environment(self) -> dict[str, str]:
        """What `mlp` and Dagster need in their environment to work here."""
        return {
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "MLP_BACKEND": "kuberay",
            "MLP_NAMESPACE": self.name,
            "MLP_POOLS": str(self.platform_file),
        }

    def kubeconfig_of(self, account: str, folder: Path, *, duration: str = "1h") -> Path:
        """A kubeconfig that may do what one of our service accounts may, and no more."""
        token = self.kubectl("create", "token", account, f"--duration={duration}").strip()
        mine = yaml.safe_load(
            self.cluster.kubectl("config", "view", "--raw", "--flatten", "--minify")
        )
        mine["users"] = [{"name": account, "user": {"token": token}}]
        mine["contexts"][0]["context"] |= {"user": account, "namespace": self.name}
        path = folder / f"kubeconfig-{account}"
        path.write_text(yaml.safe_dump(mine), encoding="utf-8")
        path.chmod(0o600)
        return path


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster that KUBECONFIG names; the test is skipped where it names none."""
    kubeconfig = os.environ.get("KUBECONFIG")
    if not kubeconfig:
        pytest.skip(_NO_CLUSTER)
    if shutil.which("kubectl") is None:
        pytest.fail("KUBECONFIG is set, but kubectl is not on PATH: install it, or unset the other")
    tool = tuple(shlex.split(os.environ.get("MLP_CLUSTER_TOOL", "")))
    return Cluster(Path(kubeconfig), tool)


@pytest.fixture(scope="session")
def leaving(cluster: Cluster) -> Iterator[list[str]]:
    """Namespaces that were told to go; at the end of all tests they are gone."""
    names: list[str] = []
    yield names
    for name in names:
        remove_namespace(cluster, name)


@pytest.fixture(scope="module")
def namespace(
    cluster: Cluster,
    leaving: list[str],
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Namespace]:
    """A namespace of this module's own, with all of `deploy/`; it goes with all that is in it."""
    module = request.module.__name__.rpartition(".")[2].removeprefix("test_")
    slug = re.sub(r"[^a-z0-9]+", "-", module.lower()).strip("-")[:30]
    for pool in load_pools(OVERLAY / "platform.yaml").pools.values():
        if not _nodes_of(pool, cluster):
            labels = ",".join(f"{key}={value}" for key, value in pool.node_selector.items())
            pytest.skip(f"needs nodes labelled {labels}, with {pool.gpus} {pool.gpu_resource}")
    name = f"mlp-{slug}-{uuid.uuid4().hex[:6]}"
    with make_namespace(cluster, name, tmp_path_factory.mktemp("platform"), leaving) as made:
        yield made


@pytest.fixture(scope="module")
def pools(namespace: Namespace) -> Pools:
    """The pools of the test cluster's platform file."""
    return namespace.pools


def _tell_to_go(cluster: Cluster, name: str) -> None:
    cluster.kubectl("-n", name, "delete", "rayjobs,rayclusters", *_QUICK, check=False)
    cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


def storage_of(namespace: Namespace, name: str = "") -> dict[str, str]:
    """Lake and run storage of this namespace's own, on S3. Skips the test where there is none."""
    if not all(os.environ.get(key) for key in ("AWS_ENDPOINT_URL", *_KEYS)):
        pytest.skip(_NO_STORAGE)
    below = f"{namespace.name}/{name}" if name else namespace.name
    return {"MLP_LAKE": f"s3://lake/{below}", "MLP_RUNS": f"s3://runs/{below}"}


@contextlib.contextmanager
def make_namespace(
    cluster: Cluster, name: str, folder: Path, leaving: list[str] | None = None
) -> Iterator[Namespace]:
    """The overlay under another name; removed on the way out, or told to go and put in `leaving`."""
    volume = cluster.get("pv", "shared")
    shared = Path(volume["spec"]["hostPath"]["path"]) if volume else None
    platform_file = folder / "platform.yaml"
    platform_file.write_text(_platform(shared), encoding="utf-8")
    objects = [*_volumes(volume, name), *_rendered(cluster, name, platform_file)]
    made = Namespace(cluster, name, platform_file, shared)
    try:
        _apply(cluster, objects)
        yield made
    finally:
        if leaving is None:
            remove_namespace(cluster, name)
        else:
            _tell_to_go(cluster, name)
            leaving.append(name)
        unscoped = [one for one in objects if one["kind"] in _UNSCOPED]
        cluster.kubectl(
            "delete", "--ignore-not-found", "--wait=false", "-f", "-", input=_as_list(unscoped)
        )


def remove_namespace(cluster: Cluster, name: str, *, timeout_s: float = 120) -> None:
    """Remove it with all that is in it, also where a dead node or operator would not let go."""
    inside, quick = ("-n", name), _QUICK
    _tell_to_go(cluster, name)
    began = CLOCK.monotonic()

    def gone() -> bool:
        if cluster.get("namespace", name) is None:
            return True
        if CLOCK.monotonic() - began > timeout_s / 3:
            cluster.kubectl(*inside, "delete", "pods", *quick, "--force", check=False)
            for job in cluster.items(*inside, "rayjobs,rayclusters"):
                kind, own = job["kind"].lower(), job["metadata"]["name"]
                patch = '{"metadata":{"finalizers":null}}'
                cluster.kubectl(
                    *inside, "patch", kind, own, "--type=merge", "-p", patch, check=False
                )
        return False

    wait_for(f"namespace {name} is gone", gone, timeout_s=timeout_s)


def _nodes_of(pool: Pool, cluster: Cluster) -> list[str]:
    """The nodes that this pool's pods may use."""
    return [
        node["metadata"]["name"]
        for node in cluster.items("nodes")
        if pool.node_selector.items() <= node["metadata"].get("labels", {}).items()
        and int(node["status"]["allocatable"].get(pool.gpu_resource, 0)) >= pool.gpus
    ]


def _platform(shared: Path | None) -> str:
    """The overlay's platform file; the volume lies where this machine has it, so URLs agree."""
    platform = yaml.safe_load((OVERLAY / "platform.yaml").read_text(encoding="utf-8"))
    for variable in ("AWS_ENDPOINT_URL", "AWS_REGION"):
        platform["env"][variable] = os.environ.get(variable, platform["env"][variable])
    if shared:
        for volume in platform["volumes"]:
            volume["path"] = str(shared)
    else:
        platform["volumes"] = []
    return yaml.safe_dump(platform, sort_keys=False)


def _volumes(volume: Object | None, namespace: str) -> list[Object]:
    """A volume of its own on the same folder: one can be bound only once."""
    if volume is None:
        return []
    fields = ("accessModes", "capacity", "hostPath", "storageClassName", "volumeMode")
    spec = {name: volume["spec"][name] for name in fields}
    spec["persistentVolumeReclaimPolicy"] = "Retain"
    spec["claimRef"] = {"namespace": namespace, "name": CLAIM}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"shared-{namespace}"},
            "spec": spec,
        }
    ]


def _rendered(cluster: Cluster, namespace: str, platform_file: Path) -> list[Object]:
    """What `kubectl kustomize` makes of the overlay, for another namespace."""
    objects: list[Object] = list(yaml.safe_load_all(cluster.kubectl("kustomize", str(OVERLAY))))
    for one in objects:
        metadata = one["metadata"]
        if one["kind"] == "Namespace":
            metadata["name"] = namespace
        elif one["kind"] in _UNSCOPED:
            metadata["name"] = f"{metadata['name']}-{namespace}"
            if "roleRef" in one:
                one["roleRef"]["name"] = f"{one['roleRef']['name']}-{namespace}"
        else:
            metadata["namespace"] = namespace
        for subject in one.get("subjects", ()):
            if subject.get("namespace") == _BASE_NAME:
                subject["namespace"] = namespace
        if one["kind"] == "ConfigMap" and metadata["name"] == PLATFORM_MAP:
            one["data"]["platform.yaml"] = platform_file.read_text(encoding="utf-8")
    keys = {key: base64.b64encode(os.environ.get(key, "").encode()).decode() for key in _KEYS}
    secret = {"name": STORAGE_SECRET, "namespace": namespace}
    return [*objects, {"apiVersion": "v1", "kind": "Secret", "metadata": secret, "data": keys}]


def _apply(cluster: Cluster, objects: list[Object]) -> None:
    """The namespace, then all that lies in it."""
    first = [one for one in objects if one["kind"] == "Namespace"]
    rest = [one for one in objects if one["kind"] != "Namespace"]
    for some in (first, rest):
        cluster.kubectl("create", "--validate=strict", "-f", "-", input=_as_list(some))


def _as_list(objects: list[Object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
