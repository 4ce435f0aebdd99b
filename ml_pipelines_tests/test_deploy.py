"""What `deploy/` ships: the server takes it, it gives exactly the rights we use, and Ray is shut."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from ml_pipelines.spec.pools import load_pools
from ml_pipelines_tests.cluster import (
    CLAIM,
    DAGSTER_ACCOUNT,
    OVERLAY,
    RAY_ACCOUNT,
    RUNS_ACCOUNT,
    Cluster,
    Namespace,
    wait_for,
)
from ml_pipelines_tests.network import Peer, may_connect

BASE = OVERLAY.parents[1] / "base"
HERE = "ml-pipelines"

RUN_VERBS = {
    "rayjobs.ray.io": "create get list watch patch delete",
    "rayclusters.ray.io": "get list watch",
    "pods": "get list watch",
    "pods/log": "get",
    "events": "get list watch",
    "workloads.kueue.x-k8s.io": "get list watch",
    "namespaces": "get",
}
DAGSTER_VERBS = {
    **RUN_VERBS,
    "jobs.batch": "create get list delete",
    "jobs.batch/status": "get",
    "pods": "get list watch delete",
}
FORBIDDEN_TO_BOTH = {
    "secrets": "get list watch create",
    "services/proxy": "get create",
    "pods": "create patch",
    "pods/exec": "create get",
    "pods/portforward": "create",
    "pods/proxy": "get create",
    "serviceaccounts/token": "create",
    "rayjobs.ray.io": "update patch deletecollection",
    "rayclusters.ray.io": "create update patch delete",
    "workloads.kueue.x-k8s.io": "create update patch delete",
    "roles.rbac.authorization.k8s.io": "create bind escalate",
    "rolebindings.rbac.authorization.k8s.io": "create",
    "configmaps": "get create update",
    "namespaces": "list delete",
}
FORBIDDEN_TO_RUNS = {"jobs.batch": "create get list delete", "pods": "delete"}


def base(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((BASE / f"{name}.yaml").read_text(encoding="utf-8")))


def pairs(verbs: dict[str, str]) -> set[tuple[str, str]]:
    return {(resource, verb) for resource, words in verbs.items() for verb in words.split()}


def ruled(role: dict[str, Any]) -> set[tuple[str, str]]:
    """(resource.group, verb) of a Role, as `kubectl auth can-i` names them."""
    return {
        (_named(group, resource), verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _named(group: str, resource: str) -> str:
    name, slash, below = resource.partition("/")
    return f"{name}.{group}{slash}{below}" if group else resource


def test_the_roles_are_the_table() -> None:
    """Nothing in the Roles that the table does not have, and no wildcard."""
    runs, dagster = base("runs")[0], base("dagster")[0]
    assert ruled(runs) == pairs(RUN_VERBS)
    assert ruled(runs) | ruled(dagster) == pairs(DAGSTER_VERBS)
    assert "*" not in str(base("runs") + base("dagster") + base("nodes"))


def reviews(namespace: str, account: str, wanted: set[tuple[str, str]]) -> dict[str, Any]:
    """Questions to the server: may this account do that here?"""
    items = []
    for resource, verb in sorted(wanted):
        kind, _, below = resource.partition("/")
        name, _, group = kind.partition(".")
        attributes = {
            "namespace": namespace, "verb": verb, "group": group, "resource": name,
            "subresource": below,
        }  # fmt: skip
        if name == "namespaces" and verb == "get":
            attributes["name"] = namespace
        items.append(
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {
                    "user": f"system:serviceaccount:{namespace}:{account}",
                    "resourceAttributes": attributes,
                },
            }
        )
    return {"apiVersion": "v1", "kind": "List", "items": items}


def allowed(namespace: Namespace, account: str, wanted: set[tuple[str, str]]) -> set[Any]:
    asked = json.dumps(reviews(namespace.name, account, wanted))
    text = namespace.cluster.kubectl("create", "-f", "-", "-o", "json", input=asked)
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text.rstrip()):  # kubectl prints one document after another, or one list
        one, at = decoder.raw_decode(text, at)
        found += one.get("items", [one])
        at += len(text[at:]) - len(text[at:].lstrip())
    answers = [one["status"].get("allowed", False) for one in found]
    return {pair for pair, yes in zip(sorted(wanted), answers, strict=True) if yes}


@pytest.mark.kube
@pytest.mark.parametrize(
    ("account", "may", "may_not"),
    [
        (RUNS_ACCOUNT, RUN_VERBS, [FORBIDDEN_TO_BOTH, FORBIDDEN_TO_RUNS]),
        (DAGSTER_ACCOUNT, DAGSTER_VERBS, [FORBIDDEN_TO_BOTH]),
        (RAY_ACCOUNT, {}, [RUN_VERBS, DAGSTER_VERBS, FORBIDDEN_TO_BOTH]),
    ],
)
def test_who_may_do_what(
    namespace: Namespace, account: str, may: dict[str, str], may_not: list[dict[str, str]]
) -> None:
    """The server's own answer: what is needed and nothing else; Ray's pods may do nothing."""
    wanted, refused = pairs(may), set().union(*map(pairs, may_not))
    assert allowed(namespace, account, wanted | refused) == wanted


@pytest.mark.kube
def test_no_account_reaches_into_another_namespace(namespace: Namespace) -> None:
    """The Roles end at their namespace; of the whole cluster only nodes can be read."""
    user = f"system:serviceaccount:{namespace.name}:{RUNS_ACCOUNT}"
    can = ("auth", "can-i", "--as", user)
    elsewhere = namespace.cluster.kubectl(*can, "list", "pods", "-n", "default", check=False)
    assert elsewhere.strip() == "no"
    assert namespace.cluster.kubectl(*can, "list", "nodes").strip() == "yes"
    assert namespace.cluster.kubectl(*can, "delete", "nodes", check=False).strip() == "no"


@pytest.mark.kube
def test_the_overlay_stands_in_a_namespace_of_its_own(namespace: Namespace) -> None:
    """Everything in it was created, strictly validated, and its claim is bound."""
    names = {one["metadata"]["name"] for one in namespace.get("serviceaccounts")["items"]}
    assert names >= {RUNS_ACCOUNT, DAGSTER_ACCOUNT, RAY_ACCOUNT}
    assert namespace.get("networkpolicy", "ml-pipelines-ray")
    assert namespace.shared is None or wait_for(
        "the claim is bound", lambda: namespace.get("pvc", CLAIM)["status"]["phase"] == "Bound"
    )


@pytest.mark.kube
def test_the_platform_file_lies_in_the_cluster(cluster: Cluster, namespace: Namespace) -> None:
    """The ConfigMap that pods mount holds the file that this test reads."""
    held = namespace.get("configmap", "ml-pipelines-platform")["data"]["platform.yaml"]
    assert held == namespace.platform_file.read_text(encoding="utf-8")
    rendered = list(yaml.safe_load_all(cluster.kubectl("kustomize", str(OVERLAY))))
    shipped = [one["data"] for one in rendered if one["kind"] == "ConfigMap"]
    assert shipped == [{"platform.yaml": (OVERLAY / "platform.yaml").read_text(encoding="utf-8")}]


def test_the_shipped_platform_file_is_valid() -> None:
    """The test cluster's pools, with the account that has no rights."""
    pools = load_pools(OVERLAY / "platform.yaml")
    assert set(pools.pools) == {"cpu", "gpu", "spot"}
    assert pools.service_account == RAY_ACCOUNT


RAY_NODE = {"ray.io/is-ray-node": "yes"}
HEAD = Peer(HERE, {**RAY_NODE, "ray.io/cluster": "a", "ray.io/node-type": "head"})
WORKER = Peer(HERE, {**RAY_NODE, "ray.io/cluster": "a", "ray.io/node-type": "worker"})
OPERATOR = Peer("kuberay-system", {"app.kubernetes.io/name": "kuberay-operator"})
RUN = Peer(HERE, {"app.kubernetes.io/name": "dagster", "app.kubernetes.io/component": "run_worker"})
WEB = Peer(HERE, {"app.kubernetes.io/name": "dagster", "component": "dagster-webserver"})
TUNNEL = Peer("kube-system", {"k8s-app": "konnectivity-agent"})
STRANGERS = [
    Peer(HERE),
    Peer(HERE, {"app": "notebook"}),
    Peer("default", RAY_NODE),
    Peer("default", RUN.labels),
    Peer("default", OPERATOR.labels),
    Peer(HERE, OPERATOR.labels),
    Peer("kube-system"),
    WEB,
]
GCS, DASHBOARD, CLIENT, METRICS, AGENT, ANY = 6379, 8265, 10001, 8080, 52365, 10_234
PORTS = (GCS, DASHBOARD, CLIENT, METRICS, AGENT, ANY)


@pytest.mark.parametrize("target", [HEAD, WORKER], ids=["head", "worker"])
@pytest.mark.parametrize(
    ("source", "ports"),
    [
        (HEAD, PORTS),
        (WORKER, PORTS),
        (OPERATOR, (DASHBOARD,)),
        (RUN, (DASHBOARD,)),
        (TUNNEL, (DASHBOARD,)),
        *((stranger, ()) for stranger in STRANGERS),
    ],
)
def test_who_reaches_ray(source: Peer, target: Peer, ports: tuple[int, ...]) -> None:
    """Ray's nodes reach one another; operator and runs only the dashboard; nobody else anything."""
    policies = [
        {**one, "metadata": {**one["metadata"], "namespace": HERE}} for one in base("network")
    ]
    reached = tuple(port for port in PORTS if may_connect(policies, source, target, port))
    assert reached == ports
