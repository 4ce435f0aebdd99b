"""`mlp doctor` on a cluster: what it makes of what it saw, without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ml_pipelines import settings
from ml_pipelines.cli import kube_doctor, kube_health
from ml_pipelines.cli.health import Finding, Level
from ml_pipelines.clock import SystemClock
from ml_pipelines.spec import rights
from ml_pipelines.spec.pools import Pool, Pools, Toleration, Volume, load_pools

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
BASE = Path(__file__).parents[1] / "deploy" / "base"
JOBS = rights.OF_RUNS[0]
EVENTS = next(right for right in rights.OF_RUNS if right.resource == "events")
SPOT = Toleration(key="spot", operator="Equal", value="true", effect="NoSchedule")
CPU = Pool(name="cpu", cpu="1", memory="1Gi")
POOL = Pool(name="gpu", cpu="2", memory="4Gi", gpus=4, node_selector={"pool": "gpu"})


def node(*, cpu: str = "8", memory: str = "24659316Ki", gpus: str = "4", ready: bool = True,
         **spec: Any) -> dict[str, Any]:  # fmt: skip
    allocatable = {"cpu": cpu, "memory": memory, "nvidia.com/gpu": gpus}
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {"spec": spec, "status": {"allocatable": allocatable, "conditions": conditions}}


def tainted(value: str = "true", effect: str = "NoSchedule") -> dict[str, Any]:
    return node(taints=[{"key": "spot", "value": value, "effect": effect}])


JUDGED = {
    "rights": (kube_health.of_rights("ann", [], 18), OK, "ann may do all 18"),
    "no jobs": (kube_health.of_rights("ann", [(JOBS, "create"), (JOBS, "delete")], 18), FAIL,
                "ann may not create, delete rayjobs.ray.io"),
    "no reasons": (kube_health.of_rights("ann", [(EVENTS, "list")], 18), WARN,
                   "list events (for saying why a pod waits)"),
    "pool": (kube_health.of_pool(POOL, [node(), node(ready=False)]), OK,
             "2 nodes, 1 ready, 4 nvidia.com/gpu allocatable"),
    "nodes unseen": (kube_health.of_pool(POOL, None), OK, "can't tell"),
    "no node": (kube_health.of_pool(POOL, []), WARN, "no node now (pool=gpu); an autoscaler may"),
    "none ready": (kube_health.of_pool(POOL, [node(ready=False)]), WARN, "1 node, 0 ready"),
    "cordoned": (kube_health.of_pool(POOL, [node(unschedulable=True)]), WARN, "1 node, 0 ready"),
    "few CPUs": (kube_health.of_pool(POOL, [node(cpu="1500m"), node(cpu="1900m")]), FAIL,
                 "promises 2 CPUs to a pod, and no node has more than 1900m"),
    "little memory": (kube_health.of_pool(POOL, [node(memory="3Gi")]), FAIL, "4Gi memory"),
    "few GPUs": (kube_health.of_pool(POOL, [node(gpus="2")]), FAIL,
                 "promises 4 nvidia.com/gpu to a pod, and no node has more than 2"),
    "no GPUs": (kube_health.of_pool(POOL, [{"status": {"allocatable": {"cpu": "8",
                "memory": "9Gi"}}}]), FAIL, "no node has more than 0"),
    "taint": (kube_health.of_pool(POOL, [tainted()]), FAIL, "spot=true:NoSchedule"),
    "other taint": (kube_health.of_pool(POOL.model_copy(update={"tolerations": (SPOT,)}),
                                        [tainted("maybe")]), FAIL, "spot=maybe:NoSchedule"),
    "tolerated": (kube_health.of_pool(POOL.model_copy(update={"tolerations": (SPOT,)}),
                                      [tainted()]), OK, "1 node, 1 ready"),
    "preferred": (kube_health.of_pool(POOL, [tainted(effect="PreferNoSchedule")]), OK, "1 ready"),
    "names": (kube_health.of_names(["secrets a"], [], []), OK, "1 of 1 are there"),
    "no names": (kube_health.of_names([], [], []), OK, "names none"),
    "names unseen": (kube_health.of_names(["secrets a"], [], ["secrets a"]), OK, "can't tell of"),
    "name missing": (kube_health.of_names(["secrets a"], ["secrets a"], []), FAIL, "secrets a"),
    "operator": (kube_health.of_operator(["kuberay/op 1/1"]), OK, "kuberay/op 1/1"),
    "operator down": (kube_health.of_operator(["kuberay/op 0/1"]), FAIL, "down: kuberay/op 0/1"),
    "operator unseen": (kube_health.of_operator(None), OK, "may not look"),
    "old server": (kube_health.of_version("v1.28.9-gke.1"), FAIL, "no sidecar containers"),
    "new server": (kube_health.of_version("v1.29.0"), OK, "v1.29.0"),
    "odd server": (kube_health.of_version(""), OK, "not told"),
    "operator elsewhere": (kube_health.of_operator([]), OK, "no Deployment here"),
}  # fmt: skip


@pytest.mark.parametrize(("finding", "level", "text"), JUDGED.values(), ids=JUDGED.keys())
def test_judgement(finding: Finding, level: Level, text: str) -> None:
    """Each thing seen has its level, and whatever is not OK says what to do."""
    assert finding.level is level
    assert text in finding.sentence
    assert bool(finding.remedy) is (level is not OK)


def test_every_name_of_the_platform_file_is_looked_for_once() -> None:
    """Accounts, secrets, claims, queues and priority classes, of the platform and of its pools."""
    ray = Pool(
        name="gpu", cpu="1", memory="1Gi", service_account="ray", queue="q", priority_class="high"
    )
    pools = Pools(
        pools={"cpu": CPU, "gpu": ray},
        service_account="ray",
        image_pull_secrets=("pull",),
        secrets=("keys",),
        volumes=(Volume(name="v", claim="c", path="/v"),),
    )
    assert kube_health.names_of(pools) == [
        ("serviceaccounts", "ray"), ("secrets", "pull"), ("secrets", "keys"),
        ("persistentvolumeclaims", "c"), ("localqueues", "q"), ("priorityclasses", "high"),
    ]  # fmt: skip


def granted(file: str, kind: str) -> set[tuple[str, str, str]]:
    """Group, kind and verb of each right in a file of `deploy/base`."""
    documents = yaml.safe_load_all((BASE / file).read_text())
    [role] = [each for each in documents if each["kind"] == kind]
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize(
    ("file", "kind", "table"),
    [("runs.yaml", "Role", rights.OF_RUNS), ("nodes.yaml", "ClusterRole", rights.OF_NODES)],
    ids=["runs", "nodes"],
)
def test_the_doctor_asks_for_what_deploy_grants(
    file: str, kind: str, table: tuple[rights.Right, ...]
) -> None:
    """The Roles in `deploy/` and the doctor's table say the same."""
    asked = {
        (each.group, "/".join(filter(None, (each.resource, each.subresource))), verb)
        for each in table
        for verb in each.verbs
    }
    assert asked == granted(file, kind)


def kubeconfig(folder: Path, server: str) -> Path:
    path = folder / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1", "kind": "Config", "current-context": "prod",
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "prod", "context": {
                    "cluster": "c", "user": "u", "namespace": "ads"}}],
            }
        )
    )  # fmt: skip
    return path


@pytest.mark.parametrize(
    ("context", "there", "said", "remedy"),
    [
        ("", False, "there is no cluster to talk to", "KUBECONFIG"),
        ("staging", True, "'staging' is no context of", "Name one of: prod"),
        ("prod", True, "context 'prod', namespace 'ads'", "reachable"),
    ],
    ids=["no kubeconfig", "unknown context", "nobody there"],
)
def test_a_cluster_out_of_reach_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: str, there: bool, said: str,
    remedy: str,
) -> None:  # fmt: skip
    """Case I8: no kubeconfig, another context, no answer: each its own sentence; never localhost."""
    path = kubeconfig(tmp_path, "https://127.0.0.1:9") if there else tmp_path / "none"
    monkeypatch.setenv("KUBECONFIG", str(path))
    here = settings.load(
        {"MLP_HOME": str(tmp_path), "MLP_BACKEND": "kuberay", "MLP_KUBE_CONTEXT": context}
    )
    clock = SystemClock()
    began = clock.monotonic()
    [found] = kube_doctor.examine(here, Pools(pools={"cpu": CPU}), clock)
    assert clock.monotonic() - began < 2 * kube_doctor.BUDGET_S
    assert (found.level, found.what) == (FAIL, "cluster")
    assert said in found.sentence
    assert remedy in found.remedy
    assert "localhost:80" not in found.sentence


def test_a_shared_volume_needs_one_user():
    """What this machine makes there, the pods must be able to write into."""
    pools = load_pools(None)
    volume = ["file:///shared/runs", "s3://lake"]
    warned = kube_health.of_writer(0, pools, volume)
    assert warned is not None
    assert warned.level is WARN
    assert "as user 0, and pods as user 1000" in warned.sentence
    assert kube_health.of_writer(1000, pools, volume) is None
    assert kube_health.of_writer(0, pools, ["s3://runs", "s3://lake"]) is None
