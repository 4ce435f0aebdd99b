"""What the server and the operator make of our manifests: names, safety, labels, secrets."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from ml_pipelines.spec.cluster import ClusterSpec, Head, WorkerGroup
from ml_pipelines.spec.job import JobSpec
from ml_pipelines.spec.manifest import Identity, Manifest, rayjob
from ml_pipelines.spec.naming import label_key, run_key
from ml_pipelines.spec.pools import Pools
from ml_pipelines_tests.cluster import RAY_ACCOUNT, KubectlFailed, Namespace, wait_for

pytestmark = pytest.mark.kube

SMALL = ClusterSpec(
    head=Head(cpu="500m", memory="1Gi"), workers=(WorkerGroup(cpu="250m", memory="1Gi"),)
)
ELASTIC = ClusterSpec(
    head=Head(cpu="250m", memory="1Gi"),
    workers=(
        WorkerGroup(pool="spot", cpu="250m", memory="1Gi", gpus=0, min_workers=1, max_workers=2),
    ),
)
ASSET = "asset_" + "x" * 54
ODD = [
    "2019-11-24",
    "a/b|c",
    "ünïcødé 日本",
    "x" * 300,
    "-",
    "..",
    "T00:00:00+00:00",
    "🚀\n\t'\"$(x)",
]
WHO = {
    "owner": "ann+ads@example.org",
    "team": "ads",
    "experiment": "wider embeddings",
    "run": "6f0c1a9e-6d43-4f4f-8a2e-0a6f2b1c9d77",
    "asset": ASSET,
    "partition": "2019-11-24|de",
    "attempt": "1",
}


def made(pools: Pools, name: str = "a job", *, partition: str = "", **fields: Any) -> Manifest:
    spec = JobSpec(
        **{
            "name": name,
            "entrypoint": ("true",),
            "cluster": SMALL,
            "owner": WHO["owner"],
            "team": WHO["team"],
            "experiment": WHO["experiment"],
            **fields,
        }
    )
    key = run_key(name, location="tests", logical_run="r", step=name, partition=partition)
    labels = {"run": WHO["run"], "asset": ASSET, "partition": partition}
    return rayjob(
        spec,
        pools,
        Identity(run_key=key, attempt=1, labels=labels),
        runs="s3://runs",
        lake="s3://lake",
    )


def nowhere(pools: Pools) -> Pools:
    """The same pools, on nodes that nobody has: pods are made and start nothing."""
    moved = {
        name: pool.model_copy(update={"node_selector": {"ml-pipelines.dev/no": "such"}})
        for name, pool in pools.pools.items()
    }
    return pools.model_copy(update={"pools": moved})


@contextlib.contextmanager
def running(namespace: Namespace, manifest: Manifest) -> Iterator[str]:
    """Within: the RayJob exists; its name. It is gone afterwards, and its pods on their way."""
    name = namespace.create(manifest)["metadata"]["name"]
    try:
        yield name
    finally:
        namespace.kubectl("delete", "rayjob", name, "--ignore-not-found", timeout_s=120)
        namespace.kubectl("delete", "pods", "-l", "ray.io/is-ray-node=yes", "--wait=false")


def pods_of(namespace: Namespace, name: str, count: int) -> list[dict[str, Any]]:
    """The pods that the operator made for a RayJob, once there are so many."""

    def there() -> list[dict[str, Any]]:
        status = namespace.get("rayjob", name).get("status", {})
        assert status.get("jobDeploymentStatus") != "ValidationFailed", status
        cluster = status.get("rayClusterName")
        if not cluster:
            return []
        found = namespace.items("pods", "-l", f"ray.io/cluster={cluster}")
        return found if len(found) >= count else []

    pods: list[dict[str, Any]] = wait_for(f"{count} pods of {name}", there)
    return pods


def test_odd_names_become_valid_ones(namespace: Namespace, pools: Pools) -> None:
    """Case A2: a 60-character asset and any partition key pass the server's validation."""
    jobs = [made(pools, ASSET, partition=partition) for partition in ODD]
    assert len({one["metadata"]["name"] for one in jobs}) == len(ODD)
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": jobs})
    options = ("--dry-run=server", "--validate=strict", "-o", "name", "-f", "-")
    assert len(namespace.kubectl("create", *options, input=text).split()) == len(ODD)
    for job, partition in zip(jobs, ODD, strict=True):
        notes = {**job["metadata"]["annotations"], **job["metadata"]["labels"]}
        full = job["metadata"]["annotations"].get(label_key("partition"))
        assert partition in {full, notes[label_key("partition")]}


def test_environment_reaches_the_server_as_it_is(namespace: Namespace, pools: Pools) -> None:
    """Cases A6, D13: quotes, line breaks, references and numbers come back unchanged."""
    env = {"A": "1e-05", "B": 'say "no"\n$$(x)', "C": "ünïcødé", "D": "true", "E": "", "F": "on"}
    job = made(pools, env=env)
    there = namespace.create(job, dry_run=True)
    assert there["spec"]["runtimeEnvYAML"] == job["spec"]["runtimeEnvYAML"]
    groups = [there["spec"]["rayClusterSpec"]["headGroupSpec"]]
    groups += there["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    for group in groups:
        seen = {one["name"]: one for one in group["template"]["spec"]["containers"][0]["env"]}
        for name, value in env.items():
            assert seen[name].get("value", "") == value.replace("$", "$$")


def test_a_field_the_server_does_not_know_is_refused(namespace: Namespace, pools: Pools) -> None:
    """Case A3: a misspelt field in a patch is found by the server, and nothing is created."""
    patch = {"spec": {"prioritClassName": "x"}}
    cpu = pools.pools["cpu"].model_copy(update={"patch": patch})
    bad = made(pools.model_copy(update={"pools": {**pools.pools, "cpu": cpu}}))
    with pytest.raises(KubectlFailed, match=r"unknown field .*prioritClassName"):
        namespace.create(bad)
    assert namespace.get("rayjob", bad["metadata"]["name"]) is None


def test_the_namespace_enforces_what_our_pods_pass(namespace: Namespace, pools: Pools) -> None:
    """The `restricted` level refuses a plain pod here, and takes ours."""
    plain = {"containers": [{"name": "x", "image": pools.image}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
    with pytest.raises(KubectlFailed, match="violates PodSecurity"):
        namespace.create({**pod, "spec": plain}, dry_run=True)
    for cluster in (SMALL, ELASTIC):
        whole = made(pools, cluster=cluster)["spec"]["rayClusterSpec"]
        for group in (whole["headGroupSpec"], *whole["workerGroupSpecs"]):
            taken = namespace.create({**pod, "spec": group["template"]["spec"]}, dry_run=True)
            assert taken["spec"]["securityContext"]["runAsNonRoot"]


@pytest.mark.parametrize("elastic", [False, True], ids=["fixed", "elastic"])
def test_pods_as_the_operator_makes_them(namespace: Namespace, pools: Pools, elastic: bool) -> None:
    """Case A17: under a quota on everything and `restricted`, with what the operator adds."""
    quota = {"requests.cpu": 4, "limits.cpu": 4, "requests.memory": "8Gi", "limits.memory": "8Gi"}
    hard = {name: str(value) for name, value in {**quota, "pods": 9}.items()}
    namespace.create(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "all"},
         "spec": {"hard": hard}}
    )  # fmt: skip
    job = made(
        nowhere(pools), f"pods {elastic}",
        partition=WHO["partition"], cluster=ELASTIC if elastic else SMALL,
    )  # fmt: skip
    try:
        with running(namespace, job) as name:
            pods = pods_of(namespace, name, 2)
            cluster_name = namespace.get("rayjob", name)["status"]["rayClusterName"]
            objects = [namespace.get("rayjob", name), namespace.get("raycluster", cluster_name)]
            for one in [*objects, *pods]:
                assert labelled(one) == WHO
            for pod in pods:
                head = pod["metadata"]["labels"]["ray.io/node-type"] == "head"
                check_safe(pod, autoscaler=head and elastic)
                check_sized(pod)
    finally:
        namespace.kubectl("delete", "resourcequota", "all")


def labelled(one: dict[str, Any]) -> dict[str, str]:
    """Who it is for, in full: a label, or where that is too small an annotation."""
    texts = {**one["metadata"]["labels"], **one["metadata"]["annotations"]}
    return {name: texts.get(label_key(name), "") for name in WHO}


def check_safe(pod: dict[str, Any], *, autoscaler: bool) -> None:
    """No rights and no root; no container has a token but the autoscaler."""
    spec = pod["spec"]
    assert spec["serviceAccountName"] == RAY_ACCOUNT
    assert spec["securityContext"]["runAsNonRoot"]
    tokens = {one["name"] for one in spec["volumes"] if "projected" in one}
    holders = []
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False, container["name"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        if tokens & {mount["name"] for mount in container.get("volumeMounts", ())}:
            holders.append(container["name"])
    assert holders == (["autoscaler"] if autoscaler else [])


def check_sized(pod: dict[str, Any]) -> None:
    """Requests are limits, in every container, the operator's own included."""
    for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
        sizes = container["resources"]
        assert {"cpu", "memory"} <= set(sizes["limits"]), container["name"]
        assert sizes["requests"] == sizes["limits"], container["name"]


DRIVER = """
import hashlib, os, pathlib, ray
ray.init(log_to_driver=False)

@ray.remote(num_cpus=1)
def worker():
    return hashlib.sha256(os.environ["TOKEN"].encode()).hexdigest(), os.getuid()

mine = hashlib.sha256(os.environ["TOKEN"].encode()).hexdigest()
assert ray.get(worker.remote()) == (mine, os.getuid())
assert "AWS_SECRET_ACCESS_KEY" in os.environ and "PLAIN" in os.environ
assert not pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount/token").exists()
folder = os.environ.get("FOLDER")
if folder:
    pathlib.Path(folder, os.environ["MLP_RUN_KEY"]).write_text(mine)
print("digest", mine, "uid", os.getuid(), flush=True)
"""


@pytest.mark.slow
def test_a_job_with_a_secret(namespace: Namespace, pools: Pools) -> None:
    """Case A18: driver and worker have the Secret's value; no object, event or log of ours does."""
    token = "t0ps3cret-" + hashlib.sha256(namespace.name.encode()).hexdigest()
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tracking"}}
    namespace.create({**secret, "stringData": {"token": token}})
    job = made(
        pools,
        "with a secret",
        entrypoint=("python", "-c", DRIVER),
        secrets={"TOKEN": "tracking/token"},
        env={"PLAIN": "1", **({"FOLDER": str(namespace.shared)} if namespace.shared else {})},
    )
    with running(namespace, job) as name:
        wait_for("the driver's end", lambda: ended(namespace, name), timeout_s=200)
        status = namespace.get("rayjob", name)["status"]
        assert status["jobStatus"] == "SUCCEEDED", status.get("message")
        digest = hashlib.sha256(token.encode()).hexdigest()
        logs = all_logs(namespace)
        assert f"digest {digest} uid {pools.run_as_user}" in logs
        head = status["rayClusterStatus"]["head"]["serviceName"]
        place = f"/api/v1/namespaces/{namespace.name}/services/{head}:dashboard/proxy/api/jobs/"
        with pytest.raises(KubectlFailed, match=r"Unauthorized|provide credentials"):
            namespace.kubectl("get", "--raw", place)
        kinds = "rayjobs,rayclusters,pods,services,events,configmaps"
        seen = namespace.kubectl("get", kinds, "-o", "yaml") + logs
        assert len(seen) > 10_000
        assert token not in seen
        assert "tracking" in seen
    if namespace.shared:
        written = namespace.shared / job["metadata"]["labels"][label_key("run_key")]
        assert written.read_text() == digest
        written.unlink()


GROWING = """
import pathlib, ray
ray.init(log_to_driver=False)

@ray.remote(num_cpus=1)
class Actor:
    def node(self):
        return ray.get_runtime_context().get_node_id()

actors = [Actor.remote() for _ in range(2)]
assert len(set(ray.get([actor.node.remote() for actor in actors]))) == 2
assert not pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount/token").exists()
"""


@pytest.mark.slow
def test_an_elastic_job_grows(namespace: Namespace, pools: Pools) -> None:
    """The autoscaler, which alone has a token, adds the worker that the driver needs."""
    job = made(pools, "growing", entrypoint=("python", "-c", GROWING), cluster=ELASTIC)
    with running(namespace, job) as name:
        wait_for("the driver's end", lambda: ended(namespace, name), timeout_s=220)
        status = namespace.get("rayjob", name)["status"]
        assert status["jobStatus"] == "SUCCEEDED", status.get("message")


def ended(namespace: Namespace, name: str) -> bool:
    status = namespace.get("rayjob", name).get("status", {})
    return status.get("jobDeploymentStatus") in {"Complete", "Failed", "ValidationFailed"}


def all_logs(namespace: Namespace) -> str:
    pods = namespace.items("pods", "-l", "ray.io/is-ray-node=yes")
    names = [pod["metadata"]["name"] for pod in pods]
    return "".join(
        namespace.kubectl("logs", name, "--all-containers", check=False) for name in names
    )
