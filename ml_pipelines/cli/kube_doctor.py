"""What `mlp doctor` asks a cluster: everything at once, each within seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ml_pipelines.cli import kube_health
from ml_pipelines.cli.health import Finding, Level
from ml_pipelines.clock import Clock, SystemClock
from ml_pipelines.errors import InvalidInput, MlPipelinesError
from ml_pipelines.spec import rights
from ml_pipelines.spec.rights import Right

if TYPE_CHECKING:
    from ml_pipelines.backends.kubeapi import Api
    from ml_pipelines.settings import Settings
    from ml_pipelines.spec.pools import Pool, Pools

PATIENCE_S = 15.0
BUDGET_S = 6.0
CALLS = 16
_OPERATOR = "app.kubernetes.io/name=kuberay-operator"
_NAMES_ONLY = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
_INSTALL = "Install the KubeRay operator, 1.6 or newer, with its CRDs."

Check = Callable[[], list[Finding]]


def examine(settings: Settings, pools: Pools, clock: Clock | None = None) -> list[Finding]:
    """All findings about the cluster that the settings name; only the first where it is out of reach."""
    clock = clock or SystemClock()
    try:
        api = _connect(settings, clock)
    except MlPipelinesError as err:
        return [Finding(Level.FAIL, "cluster", err.message, err.remedy)]
    try:
        first, account = _reach(api)
        if first.level is Level.FAIL:
            return [first]
        doctor = _Doctor(api, pools, settings, account)
        return [first, *_all(doctor.checks(), clock)]
    finally:
        api.close()


def _connect(settings: Settings, clock: Clock) -> Api:
    import os

    from ml_pipelines.backends.kubeapi.api import Api
    from ml_pipelines.backends.kubeapi.login import find
    from ml_pipelines.backends.kubeapi.retries import DEFAULT

    brief = replace(DEFAULT, connect_s=3.0, read_s=5.0, write_s=8.0, budget_s=BUDGET_S)
    login = find(settings.kube_context, settings.namespace, os.environ)
    return Api(login, clock=clock, limits=brief)


def _reach(api: Api) -> tuple[Finding, str]:
    """Whether the server answers to us, and who we are to it."""
    from ml_pipelines.backends.kubeapi import KubeForbidden, path_of

    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        said = api.create(path_of("selfsubjectreviews", ""), body)
    except KubeForbidden:
        return Finding(Level.OK, "cluster", api.where), "this identity"
    except MlPipelinesError as err:
        remedy = err.remedy or "See whether it is reachable from here: kubectl version."
        return Finding(Level.FAIL, "cluster", err.message, remedy), ""
    account = str(said.get("status", {}).get("userInfo", {}).get("username") or "this identity")
    return Finding(Level.OK, "cluster", f"{api.where} as {account}"), account


@dataclass(frozen=True, slots=True)
class _Doctor:
    api: Api
    pools: Pools
    settings: Settings
    account: str

    def checks(self) -> list[tuple[str, Check]]:
        """What is asked, by the word that its line begins with."""
        return [
            ("Kubernetes", self._version),
            ("CRDs", self._manifest),
            ("operator", self._operator),
            ("rights", self._rights),
            *(
                (f"pool {name}", lambda pool=pool: [self._pool(pool)])
                for name, pool in self.pools.pools.items()
            ),
            ("names", self._names),
        ]

    def _version(self) -> list[Finding]:
        return [kube_health.of_version(str(self.api.get("/version").get("gitVersion") or ""))]

    def _manifest(self) -> list[Finding]:
        """The server's own word on the manifest that we make for each pool; nothing is made."""
        from ml_pipelines.backends.kubeapi import KubeForbidden, KubeNotFound, path_of

        path = path_of("rayjobs", self.api.namespace)
        for name in self.pools.pools:
            try:
                self.api.create(path, _canonical(name, self.pools, self.settings), dry_run=True)
            except KubeNotFound as err:
                remedy = _INSTALL if err.kind_missing else "Name another with MLP_NAMESPACE."
                return [Finding(Level.FAIL, "CRDs", err.message, remedy)]
            except KubeForbidden as err:
                return [Finding(Level.WARN, "CRDs", f"can't tell: {err.message}", err.remedy)]
            except MlPipelinesError as err:
                remedy = err.remedy or f"For a field that is unknown: {_INSTALL}"
                return [Finding(Level.FAIL, "CRDs", f"pool {name}: {err.message}", remedy)]
        count = len(self.pools.pools)
        return [Finding(Level.OK, "CRDs", f"the server takes a RayJob on each of {count} pools")]

    def _operator(self) -> list[Finding]:
        from ml_pipelines.backends.kubeapi import KubeForbidden, path_of

        try:
            found = self.api.list(path_of("deployments", ""), labels=_OPERATOR).items
        except KubeForbidden:
            return [kube_health.of_operator(None)]
        return [kube_health.of_operator([_deployment(each) for each in found])]

    def _rights(self) -> list[Finding]:
        queued = any(pool.queue for pool in self.pools.pools.values())
        asked = [
            (right, verb)
            for right in (*rights.OF_RUNS, *rights.OF_NODES)
            if queued or right.group != "kueue.x-k8s.io"
            for verb in right.verbs
        ]
        with ThreadPoolExecutor(CALLS) as calls:
            allowed = list(calls.map(lambda each: self._may(*each), asked))
        missing = [each for each, yes in zip(asked, allowed, strict=True) if not yes]
        return [kube_health.of_rights(self.account, missing, len(asked))]

    def _may(self, right: Right, verb: str) -> bool:
        from ml_pipelines.backends.kubeapi import path_of

        attributes = {
            "namespace": self.api.namespace if right not in rights.OF_NODES else "",
            "verb": verb,
            "group": right.group,
            "resource": right.resource,
            "subresource": right.subresource,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        said = self.api.create(path_of("selfsubjectaccessreviews", ""), body)
        return bool(said.get("status", {}).get("allowed"))

    def _pool(self, pool: Pool) -> Finding:
        from ml_pipelines.backends.kubeapi import KubeForbidden, path_of

        labels = ",".join(f"{key}={value}" for key, value in pool.node_selector.items())
        try:
            return kube_health.of_pool(
                pool, self.api.list(path_of("nodes", ""), labels=labels).items
            )
        except KubeForbidden:
            return kube_health.of_pool(pool, None)

    def _names(self) -> list[Finding]:
        named = kube_health.names_of(self.pools)
        with ThreadPoolExecutor(CALLS) as calls:
            seen = list(calls.map(lambda each: self._there(*each), named))
        shown = [f"{kind} {name}" for kind, name in named]
        missing = [name for name, there in zip(shown, seen, strict=True) if there is False]
        unseen = [name for name, there in zip(shown, seen, strict=True) if there is None]
        return [kube_health.of_names(shown, missing, unseen)]

    def _there(self, kind: str, name: str) -> bool | None:
        """Whether an object is there; None where we may not know. Contents are not asked for."""
        from ml_pipelines.backends.kubeapi import KubeForbidden, KubeNotFound, path_of

        try:
            path = path_of(kind, self.api.namespace, name)
            self.api.send("GET", path, headers={"Accept": _NAMES_ONLY})
        except KubeNotFound:
            return False
        except KubeForbidden:
            return None
        return True


def _all(checks: Sequence[tuple[str, Check]], clock: Clock) -> list[Finding]:
    """The findings of all checks, in order; one that doesn't come back in time is one itself."""
    answers: list[list[Finding] | None] = [None] * len(checks)

    def ask(number: int, check: Check) -> None:
        try:
            answers[number] = check()
        except MlPipelinesError as err:
            answers[number] = [Finding(Level.FAIL, checks[number][0], err.message, err.remedy)]

    threads = [
        threading.Thread(target=ask, args=(number, check), daemon=True)
        for number, (_, check) in enumerate(checks)
    ]
    for thread in threads:
        thread.start()
    until = clock.monotonic() + PATIENCE_S
    for thread in threads:
        thread.join(max(0.0, until - clock.monotonic()))
    late = f"no answer within {PATIENCE_S:.0f} s"
    return [
        finding
        for (what, _), found in zip(checks, answers, strict=True)
        for finding in found or [Finding(Level.FAIL, what, late, "Try again.")]
    ]


def _canonical(pool: str, pools: Pools, settings: Settings) -> dict[str, Any]:
    """The RayJob of one worker of a pool. Raises InvalidInput where the pools can't give it."""
    from ml_pipelines.spec.cluster import ClusterSpec, WorkerGroup
    from ml_pipelines.spec.job import JobSpec
    from ml_pipelines.spec.manifest import Identity, rayjob

    cluster = ClusterSpec(workers=(WorkerGroup(pool=pool),))
    spec = JobSpec(name="doctor", entrypoint=("true",), cluster=cluster)
    identity = Identity("mlp-doctor", 1)
    return rayjob(spec, pools, identity, runs=settings.runs, lake=settings.lake)


def _deployment(found: Any) -> str:
    meta, status = found["metadata"], found.get("status", {})
    ready, wanted = status.get("readyReplicas", 0), found["spec"].get("replicas", 1)
    return f"{meta['namespace']}/{meta['name']} {ready}/{wanted}"


def storage_seen_by_pods(settings: Settings, pools: Pools) -> Finding | None:
    """The refusal of storage that pods can't see, as a submit would say it."""
    from ml_pipelines.lifecycle.platform import check_storage_urls

    try:
        check_storage_urls(settings, pools)
    except InvalidInput as err:
        return Finding(Level.FAIL, "storage", err.message, err.remedy)
    return None
