"""The connection and the shared watch, on a real API server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ml_pipelines.backends.kubeapi import (
    Api,
    KubeAlreadyExists,
    KubeForbidden,
    KubeGone,
    KubeInvalid,
    KubeNotFound,
    KubeUnauthorized,
    Reflector,
    connect,
    path_of,
)
from ml_pipelines.backends.kubeapi.login import KubeconfigLogin
from ml_pipelines.backends.kubeapi.reflector import Pace
from ml_pipelines.clock import SystemClock
from ml_pipelines_tests.cluster import Cluster, Namespace, wait_for

pytestmark = pytest.mark.kube


@pytest.fixture
def api(cluster: Cluster, namespace: Namespace) -> Iterator[Api]:
    """The cluster's administrator, at home in a namespace of the test's own."""
    environ = {"KUBECONFIG": str(cluster.kubeconfig)}
    connected = connect(namespace=namespace.name, clock=SystemClock(), environ=environ)
    yield connected
    connected.close()


def test_a_watch_sees_create_modify_and_delete_of_a_rayjob(api: Api) -> None:
    """The same as with the fake: each is seen within a second, from one list and one watch."""
    jobs = path_of("rayjobs", api.namespace)
    reflector = Reflector(api, jobs, labels="made-by=test")
    reflector.start()
    assert reflector.synced(10)
    api.create(jobs, _job("seen"))
    wait_for("create", lambda: reflector.get("seen"), timeout_s=5)
    assert "managedFields" not in (reflector.get("seen") or {})["metadata"]
    job = path_of("rayjobs", api.namespace, "seen")
    api.patch(job, {"metadata": {"labels": {"more": "yes"}}})
    wait_for("modify", lambda: "more" in _labels(reflector.get("seen")), timeout_s=5)
    assert api.delete(job, uid=(reflector.get("seen") or {})["metadata"]["uid"])
    wait_for("delete", lambda: reflector.get("seen") is None, timeout_s=30)
    reflector.fresh()
    before = threading.active_count()
    reflector.stop()
    assert threading.active_count() == before - 1


def test_a_place_that_was_compacted_is_410_and_recovered_from(api: Api) -> None:
    """Case C10: the server itself says that a place is too old, in the stream or as its answer."""
    query = {"watch": "1", "resourceVersion": "1", "timeoutSeconds": "5"}
    pods = path_of("pods", api.namespace)
    try:
        with api.stream(pods, query=query, read_timeout_s=10) as events:
            said = b"".join(events)
    except KubeGone as err:
        said = str(err).encode()
    if b"too old resource version" not in said:
        pytest.skip("this cluster is younger than its first compaction, minutes after its start")
    reflector = Reflector(api, pods, pace=Pace(watch_s=2))
    reflector._store.place = "1"
    reflector.start()
    assert reflector.synced(15), reflector.error
    reflector.stop()


def test_the_server_validates_strictly_and_tells_its_refusals_apart(api: Api) -> None:
    """Cases C16, E11, B2: 400, 422, 404 of an object, of a kind and of a namespace, 409, uid."""
    jobs = path_of("rayjobs", api.namespace)
    assert api.create(jobs, _job("dry"), dry_run=True)["metadata"]["name"] == "dry"
    assert api.list(jobs).items == []
    wrong = _job("dry")
    wrong["spec"]["entrypiont"] = "typo"
    with pytest.raises(KubeInvalid, match=r'unknown field "spec\.entrypiont"'):
        api.create(jobs, wrong, dry_run=True)
    with pytest.raises(KubeInvalid, match=r"metadata\.name"):
        api.create(jobs, _job("A_b"), dry_run=True)
    with pytest.raises(KubeNotFound) as missing:
        api.get(path_of("rayjobs", api.namespace, "absent"))
    with pytest.raises(KubeNotFound) as unknown:
        api.list("/apis/ray.io/v1/namespaces/default/raytypos")
    assert (missing.value.kind_missing, unknown.value.kind_missing) == (False, True)
    with pytest.raises(KubeNotFound, match="no-such-namespace"):
        api.create(path_of("rayjobs", "no-such-namespace"), _job("a"))
    api.create(jobs, _job("twice"))
    with pytest.raises(KubeAlreadyExists):
        api.create(jobs, _job("twice"))
    job = path_of("rayjobs", api.namespace, "twice")
    assert not api.delete(job, uid="another")
    assert api.delete(job)
    assert not api.delete(path_of("rayjobs", api.namespace, "absent"))


def test_a_quota_is_told_from_a_missing_right(api: Api, cluster: Cluster) -> None:
    """Case C16: both are 403, in the server's words; the one may pass, the other won't."""
    quotas = path_of("resourcequotas", api.namespace)
    limit = {"metadata": {"name": "none"}, "spec": {"hard": {"count/configmaps": "0"}}}
    api.create(quotas, limit)
    maps = path_of("configmaps", api.namespace)

    def refused() -> KubeForbidden | None:
        try:
            api.create(maps, {"metadata": {"name": "x"}}, dry_run=True)
        except KubeForbidden as err:
            return err
        return None

    full = wait_for("the quota", refused, timeout_s=30)
    assert full.quota
    assert "exceeded quota: none" in str(full)
    token = cluster.kubectl("create", "token", "default", "-n", api.namespace).strip()
    nobody = Api(_Token(cluster, api.namespace, token), clock=SystemClock())
    with pytest.raises(KubeForbidden, match="cannot create resource") as right:
        nobody.create(maps, {"metadata": {"name": "x"}})
    assert not right.value.quota
    nobody.close()
    api.delete(f"{quotas}/none")


def test_a_token_the_server_does_not_know_is_authentication(api: Api, cluster: Cluster) -> None:
    """Case C13: within seconds, in words, over TLS."""
    stranger = Api(_Token(cluster, api.namespace, "not-a-token"), clock=SystemClock())
    with pytest.raises(KubeUnauthorized, match="authentication"):
        stranger.get(path_of("namespaces", "", api.namespace))
    stranger.close()


def test_a_silent_watch_over_tls_ends_at_once(api: Api) -> None:
    """Stopping from another thread shuts down a TLS connection that waits."""
    clock = SystemClock()
    query = {"watch": "1", "resourceVersion": api.list(path_of("pods", "")).resource_version}
    began = clock.monotonic()
    with api.stream(path_of("secrets", api.namespace), query=query, read_timeout_s=60) as events:
        threading.Timer(0.5, events.abort).start()
        assert b"ERROR" not in b"".join(events)
    assert clock.monotonic() - began < 5


class _Token:
    """The cluster, as whoever has this token."""

    def __init__(self, cluster: Cluster, namespace: str, token: str) -> None:
        self.context = "token"
        self.namespace = namespace
        self._login = KubeconfigLogin(str(cluster.kubeconfig), "ml-kube", namespace)
        self._token = token

    def read(self) -> Any:
        configuration = self._login.read()
        configuration.cert_file = configuration.key_file = None
        configuration.api_key["BearerToken"] = f"Bearer {self._token}"
        return configuration


def _job(name: str) -> dict[str, Any]:
    """A RayJob that waits for ever and makes no pods."""
    head = {"containers": [{"name": "head", "image": "registry.local/ml-pipelines:dev"}]}
    return {
        "apiVersion": "ray.io/v1", "kind": "RayJob",
        "metadata": {"name": name, "labels": {"made-by": "test"}},
        "spec": {
            "suspend": True, "shutdownAfterJobFinishes": True, "entrypoint": "true",
            "rayClusterSpec": {
                "headGroupSpec": {"rayStartParams": {}, "template": {"spec": head}}
            },
        },
    }  # fmt: skip


def _labels(obj: dict[str, Any] | None) -> dict[str, str]:
    labels: dict[str, str] = (obj or {}).get("metadata", {}).get("labels") or {}
    return labels
