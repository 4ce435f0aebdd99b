"""Whatever passes our own validation, KubeRay's passes too: no job of ours is ValidationFailed."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ml_pipelines.spec.cluster import ClusterSpec, WorkerGroup
from ml_pipelines.spec.job import JobSpec, Limits
from ml_pipelines.spec.manifest import Identity, Manifest, rayjob
from ml_pipelines.spec.naming import run_key
from ml_pipelines.spec.pools import Pools, load_pools
from ml_pipelines.spec.validate import parse
from ml_pipelines_tests.cluster import OVERLAY, Namespace, wait_for

POOLS = load_pools(OVERLAY / "platform.yaml")
QUEUED = POOLS.model_copy(
    update={
        "pools": {
            name: pool.model_copy(update={"queue": "a"}) for name, pool in POOLS.pools.items()
        }
    }
)
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300)
words = st.text("abAB01 _-./é$'\"\\\n", min_size=1, max_size=30)


@st.composite
def groups(draw: st.DrawFn) -> list[dict[str, Any]]:
    names = draw(st.lists(st.from_regex(r"[a-z]([-a-z0-9]{0,18}[a-z0-9])?", fullmatch=True),
                          min_size=1, max_size=7, unique=True))  # fmt: skip
    return [draw(group(name)) for name in names if name not in {"head", "headgroup"}] or [{}]


@st.composite
def group(draw: st.DrawFn, name: str) -> dict[str, Any]:
    pool = draw(st.sampled_from(sorted(POOLS.pools)))
    least = draw(st.integers(1, 4))
    size = {"gpus": draw(st.integers(0, POOLS.pools[pool].gpus))} if pool != "cpu" else {}
    return {
        "name": name, "pool": pool, "min_workers": least,
        "max_workers": least + draw(st.integers(0, 2)), **size,
    }  # fmt: skip


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    spec = parse(
        JobSpec,
        {
            "name": draw(texts.filter(bool).map(lambda text: text[:200])),
            "entrypoint": draw(st.lists(words, min_size=1, max_size=4).filter(startable)),
            "cluster": {"workers": draw(groups())},
            "env": draw(st.dictionaries(st.from_regex(r"U_[A-Z_]{0,9}", fullmatch=True),
                                        words.filter(lambda text: "$" not in text), max_size=3)),
            "limits": {name: draw(limit(name)) for name in ("queue_s", "provisioning_s", "run_s")},
            "owner": draw(texts), "team": draw(texts), "experiment": draw(texts),
        },
    )  # fmt: skip
    pools = QUEUED if not spec.cluster.elastic and draw(st.booleans()) else POOLS
    asset, partition = draw(texts), draw(texts)
    key = run_key(spec.name, location="l", logical_run="r", step=asset, partition=partition)
    labels = {"run": draw(texts), "asset": asset, "partition": partition}
    identity = Identity(run_key=key, attempt=draw(st.integers(1, 999)), labels=labels)
    return rayjob(spec, pools, identity, runs="s3://runs", lake="s3://lake")


def startable(argv: list[str]) -> bool:
    return bool(argv[0].strip())


def limit(name: str) -> st.SearchStrategy[int]:
    known = Limits.model_json_schema()["properties"][name]
    return st.integers(known["minimum"], known["maximum"])


def refusals(job: Manifest) -> list[str]:
    """What KubeRay's `ValidateRayJobSpec` and its like would say, and Kueue's webhook."""
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    heads, workers = [cluster["headGroupSpec"]], cluster["workerGroupSpecs"]
    elastic = cluster.get("enableInTreeAutoscaling", False)
    names = [one["groupName"] for one in workers]
    rules = {
        "a name of at most 47 characters": len(job["metadata"]["name"]) <= 47,
        "a DNS-1035 name": DNS_1035.fullmatch(job["metadata"]["name"]),
        "a mode that it knows": spec["submissionMode"] == "HTTPMode",
        "no retries of its own": spec["backoffLimit"] == 0,
        "deadlines": spec["activeDeadlineSeconds"] > 0 and spec["preRunningDeadlineSeconds"] >= 1,
        "deadlines of 32 bits": spec["activeDeadlineSeconds"] < 2**31,
        "a TTL only where it shuts down": spec["shutdownAfterJobFinishes"],
        "one way to clean up": "deletionStrategy" not in spec,
        "a runtime environment in YAML": isinstance(yaml.safe_load(spec["runtimeEnvYAML"]), dict),
        "a Ray that knows tokens": cluster["authOptions"] == {"mode": "token"},
        "a Ray version": cluster["rayVersion"],
        "containers": all(one["template"]["spec"]["containers"] for one in heads + workers),
        "a dashboard port": "dashboard" in str(heads[0]["template"]["spec"]["containers"][0]),
        "no labels among Ray's words": all("labels" not in g["rayStartParams"] for g in workers),
        "names that differ": len(set(names)) == len(names),
        "min <= replicas <= max": all(
            one["minReplicas"] <= one["replicas"] <= one["maxReplicas"] for one in workers
        ),
        "the autoscaler's restart policy": not elastic
        or all(g["template"]["spec"]["restartPolicy"] == "Never" for g in heads + workers),
        "Kueue: a fixed size": not (elastic and queued(job)),
        "Kueue: at most 7 groups, none of them `head`": len(workers) <= 7 and "head" not in names,
        "labels": all(valid_label(value) for value in job["metadata"]["labels"].values()),
        "annotations of 256 KiB": len(json.dumps(job["metadata"]["annotations"])) < 2**18,
    }
    return [name for name, kept in rules.items() if not kept]


def queued(job: Manifest) -> bool:
    return "kueue.x-k8s.io/queue-name" in job["metadata"]["labels"]


def valid_label(value: str) -> bool:
    return re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", value) is not None


@given(job=manifests())
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_no_spec_makes_an_invalid_job(job: Manifest) -> None:
    """Case A14: the operator's and Kueue's rules hold for whatever our validation lets through."""
    assert not refusals(job)


def test_the_rules_can_be_broken() -> None:
    """What is tested above is not true of everything."""
    job = made("x" * 60, POOLS)
    job["metadata"]["name"] = "X" * 48
    job["spec"]["shutdownAfterJobFinishes"] = False
    assert refusals(job) == [
        "a name of at most 47 characters", "a DNS-1035 name", "a TTL only where it shuts down",
    ]  # fmt: skip


def made(name: str, pools: Pools, **cluster: Any) -> Manifest:
    spec = JobSpec(name=name, entrypoint=("true",), cluster=ClusterSpec(**cluster))
    key = run_key(name, location="l", logical_run="r", step="", partition="")
    identity = Identity(run_key=key, attempt=1)
    return rayjob(spec, pools, identity, runs="s3://runs", lake="s3://lake")


@pytest.mark.kube
def test_the_server_takes_them(namespace: Namespace) -> None:
    """A handful of the same, to the real server, strictly; nothing is created."""

    @given(job=manifests())
    @settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
    def taken(job: Manifest) -> None:
        there = namespace.create(job, dry_run=True)
        assert there["spec"]["runtimeEnvYAML"] == job["spec"]["runtimeEnvYAML"]
        assert there["metadata"]["annotations"] == job["metadata"]["annotations"]

    taken()


@pytest.mark.kube
def test_the_operator_starts_them(namespace: Namespace, pools: Pools) -> None:
    """A few at the edge of what is allowed leave the operator's validation behind them."""
    away = {
        name: pool.model_copy(update={"node_selector": {"ml-pipelines.dev/no": "such"}})
        for name, pool in pools.pools.items()
    }
    away_pools = pools.model_copy(update={"pools": away})
    seven = tuple(WorkerGroup(name=f"g{number}" + "x" * 18) for number in range(7))
    elastic = (WorkerGroup(pool="spot", gpus=4, min_workers=1, max_workers=3),)
    jobs = [made("x" * 200, away_pools), made("7", away_pools, workers=seven),
            made("-", away_pools, workers=elastic)]  # fmt: skip
    for job in jobs:
        name = namespace.create(job)["metadata"]["name"]
        state = wait_for(f"{name} is looked at", partial(state_of, namespace, name))
        namespace.kubectl("delete", "rayjob", name)
        assert state == "Initializing"


def state_of(namespace: Namespace, name: str) -> str:
    status = namespace.get("rayjob", name).get("status", {})
    return str(status.get("jobDeploymentStatus", ""))
