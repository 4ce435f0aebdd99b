"""Jobs that can't start on a real cluster: each says why within 30 s, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from ml_pipelines.backends import rayjob
from ml_pipelines.backends.kubeapi import connect
from ml_pipelines.backends.kuberay import KubeRayBackend
from ml_pipelines.clock import SystemClock
from ml_pipelines.errors import BackendRefused
from ml_pipelines.job.diagnosis import why_pending
from ml_pipelines.job.observation import Observation
from ml_pipelines.job.symptom import Diagnosis
from ml_pipelines.job.verdict import VerdictClass
from ml_pipelines.spec.pools import Pools
from ml_pipelines_tests.cluster import Cluster, Namespace
from ml_pipelines_tests.rayjob_manifests import manifest

pytestmark = [pytest.mark.kube, pytest.mark.slow]

TOLD_S = 30.0
SMALL = {"cpu": "50m", "memory": "128Mi"}
OVERWRITE = "ray.io/overwrite-container-cmd"
C = VerdictClass

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Cause:
    """A job that can't start: what is wrong with it, and what must be said."""

    cls: VerdictClass
    words: str
    hopeless: bool = True
    pool: dict[str, Any] | None = None
    change: Callable[[Manifest], None] = lambda _made: None


def templates(made: Manifest) -> list[Manifest]:
    """The pod specs of head and workers."""
    cluster = made["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def each_pod(**fields: Any) -> Callable[[Manifest], None]:
    """These fields in every pod."""

    def change(made: Manifest) -> None:
        for spec in templates(made):
            spec.update(fields)

    return change


def each_container(**fields: Any) -> Callable[[Manifest], None]:
    """These fields in every Ray container."""

    def change(made: Manifest) -> None:
        for spec in templates(made):
            spec["containers"][0].update(fields)

    return change


def claim(made: Manifest) -> None:
    """A claim that isn't there."""
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "no-such-claim"}}
    for spec in templates(made):
        spec["volumes"].append(volume)


def mounted_secret(made: Manifest) -> None:
    """A Secret that isn't there, as a volume."""
    for spec in templates(made):
        spec["volumes"].append({"name": "v", "secret": {"secretName": "no-such-volume"}})
        spec["containers"][0]["volumeMounts"].append({"name": "v", "mountPath": "/secret"})


def crash(made: Manifest) -> None:
    """A head that fails at every start."""
    made["metadata"]["annotations"][OVERWRITE] = "true"
    templates(made)[0]["containers"][0]["command"] = ["/bin/sh", "-c", "exit 127"]


CAUSES = {
    "machine": Cause(C.CAPACITY, "no machine for head", hopeless=False,
                     pool={"node_selector": {"no-such-label": "x"}}),
    "taint": Cause(C.CAPACITY, "untolerated taint", hopeless=False, pool={"tolerations": ()}),
    "image": Cause(C.CONFIG, "can't pull image registry.local/no-such:1",
                   pool={"image": "registry.local/no-such:1"}),
    "account": Cause(C.CONFIG, 'serviceaccount "nobody" not found',
                     pool={"service_account": "nobody"}),
    "priority": Cause(C.CONFIG, "no PriorityClass with name nope",
                      change=each_pod(priorityClassName="nope")),
    "secret": Cause(C.CONFIG, 'secret "no-such-secret" not found',
                    change=each_container(envFrom=[{"secretRef": {"name": "no-such-secret"}}])),
    "mounted-secret": Cause(C.CONFIG, '"no-such-volume" not found', change=mounted_secret),
    "claim": Cause(C.CONFIG, "volume claim no-such-claim", change=claim),
    "crash": Cause(C.CONFIG, "exit code 127", change=crash),
}  # fmt: skip


def made_for(name: str, cause: Cause, platform: Pools) -> Manifest:
    """The manifest of a job that can't start."""
    spot = platform.pools["spot"]
    fields = {"name": "cpu", "gpus": 0, **(cause.pool or {})}
    pool = spot.model_copy(update=fields)
    pools = platform.model_copy(update={"pools": {**platform.pools, "cpu": pool}})
    cluster = {"head": SMALL, "workers": [SMALL]}
    made: Manifest = manifest(f"waits-{name}", ["true"], cluster=cluster, of=pools)
    cause.change(made)
    return made


@pytest.fixture(scope="module")
def backend(namespace: Namespace) -> Iterator[KubeRayBackend]:
    """Watches the whole namespace."""
    clock = SystemClock()
    with (
        closing(connect(namespace=namespace.name, clock=clock)) as api,
        closing(KubeRayBackend(api, clock, scope="namespace")) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def told(backend: KubeRayBackend, pools: Pools) -> Iterator[dict[str, tuple[Diagnosis, float]]]:
    """What is said of each cause, and after how many seconds; all jobs wait at once."""
    clock = SystemClock()
    jobs: dict[str, tuple[str, float]] = {}
    found: dict[str, tuple[Diagnosis, float]] = {}
    last: dict[str, str] = {}
    for name, cause in CAUSES.items():
        made = made_for(name, cause, pools)
        backend.check(made)
        jobs[name] = (backend.create(made).name, clock.monotonic())
    while (
        len(found) < len(jobs) and clock.monotonic() < max(at for _, at in jobs.values()) + TOLD_S
    ):
        for name, (job, since) in jobs.items():
            diagnosis = why_pending(backend.observe(job))
            last[name] = diagnosis.sentence
            cause = CAUSES[name]
            said = cause.words in diagnosis.sentence and diagnosis.hopeless == cause.hopeless
            if name not in found and said:
                found[name] = (diagnosis, clock.monotonic() - since)
        clock.sleep(0.15)
    assert len(found) == len(jobs), {name: last[name] for name in jobs if name not in found}
    yield found
    for job, _ in jobs.values():
        backend.delete(job)


@pytest.mark.parametrize("name", CAUSES)
def test_why_it_waits(told: dict[str, tuple[Diagnosis, float]], name: str):
    """Cases F1, F2, F4, F10: the right class and words within 30 s, with evidence and remedy."""
    assert name in told
    diagnosis, seconds = told[name]
    assert seconds <= TOLD_S
    assert (diagnosis.cls, diagnosis.hopeless) == (CAUSES[name].cls, CAUSES[name].hopeless)
    assert diagnosis.evidence
    assert diagnosis.remedy


def test_the_server_checks_a_manifest(backend: KubeRayBackend, pools: Pools):
    """A field that these CRDs don't know is refused before anything exists."""
    made = made_for("unknown", Cause(C.CONFIG, ""), pools)
    made["spec"]["fieldOfTheFuture"] = 1
    with pytest.raises(BackendRefused, match=r"too old for spec\.fieldOfTheFuture"):
        backend.check(made)
    assert backend.list({"ml-pipelines.dev/run-key": "waits-unknown"}) == []


def test_a_refused_spec(backend: KubeRayBackend, pools: Pools):
    """Case A1: the server takes it, the operator doesn't: ValidationFailed, with its message."""
    made = made_for("refused", Cause(C.CONFIG, ""), pools)
    made["spec"]["shutdownAfterJobFinishes"] = False
    seen = until(backend, backend.create(made).name, lambda one: one == "ValidationFailed")
    assert seen.rayjob is not None
    assert "shutdownAfterJobFinishes" in seen.rayjob.message
    backend.delete(seen.rayjob.name, seen.rayjob.uid)


def test_deleted_while_the_operator_is_away(
    backend: KubeRayBackend, pools: Pools, cluster: Cluster
):
    """Case E10: its finalizer is never taken away; it goes when the operator is back."""
    made = made_for("away", CAUSES["machine"], pools)
    name = rayjob.name(made)
    view = backend.create(made)
    until(backend, name, lambda one: one == "Initializing")
    with cluster.fault("operator"):
        backend.delete(name, view.uid)
        clock = SystemClock()
        end = clock.monotonic() + 10
        while not (seen := backend.observe(name)).rayjob or not seen.rayjob.deleting:
            assert clock.monotonic() < end
            clock.sleep(0.1)
    end = clock.monotonic() + 60
    while backend.observe(name).rayjob is not None:
        assert clock.monotonic() < end
        clock.sleep(0.2)


def until(backend: KubeRayBackend, name: str, holds: Callable[[str], bool]) -> Observation:
    """Observe until the deployment's status is such."""
    clock = SystemClock()
    end = clock.monotonic() + 30
    while True:
        seen = backend.observe(name)
        if seen.rayjob is not None and holds(seen.rayjob.deployment_status):
            return seen
        assert clock.monotonic() < end, seen
        clock.sleep(0.1)
