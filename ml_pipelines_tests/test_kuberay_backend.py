"""The KubeRay backend keeps the contract on a real cluster, with no more than a run's rights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from ml_pipelines.backends.kubeapi import connect
from ml_pipelines.backends.kuberay import KubeRayBackend
from ml_pipelines.clock import SystemClock
from ml_pipelines.spec.pools import Pool, Pools
from ml_pipelines_tests.backend_contract import Arena, BackendContract
from ml_pipelines_tests.cluster import RUNS_ACCOUNT, Namespace

pytestmark = [pytest.mark.kube, pytest.mark.slow]


def on_spot(platform: Pools) -> Pools:
    """The platform with its pool `cpu` on the spot nodes, of which there are two."""
    spot = platform.pools["spot"]
    cpu = Pool(
        name="cpu", cpu="1", memory="2Gi", node_selector=spot.node_selector,
        tolerations=spot.tolerations, spot=True,
    )  # fmt: skip
    return platform.model_copy(update={"pools": {**platform.pools, "cpu": cpu}})


@pytest.fixture(scope="module")
def arena(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    clock = SystemClock()
    folder = tmp_path_factory.mktemp("login")
    as_run = namespace.kubeconfig_of(RUNS_ACCOUNT, folder)
    with (
        pytest.MonkeyPatch.context() as environ,
        closing(connect(namespace=namespace.name, clock=clock)) as admin,
    ):
        environ.setenv("KUBECONFIG", str(as_run))
        with (
            closing(connect(namespace=namespace.name, clock=clock)) as api,
            closing(KubeRayBackend(admin, clock)) as everything,
            closing(KubeRayBackend(api, clock)) as backend,
        ):
            # Ray's own API needs a token that no run may read.
            backend.stop = everything.stop  # type: ignore[method-assign]
            yield Arena(
                backend,
                lambda name: left_of(namespace, name),
                clock,
                pools=on_spot(namespace.pools),
                sizes={"cpu": "500m", "memory": "1Gi"},
                start_s=200.0,
                gone_s=30.0,
            )


def left_of(namespace: Namespace, name: str) -> list[str]:
    """Whatever the operator or we made for this RayJob."""
    kinds = "rayjobs.ray.io,rayclusters.ray.io,pods,services,secrets"
    found = namespace.get(kinds)["items"]
    names = [f"{one['kind']}/{one['metadata']['name']}" for one in found]
    return [one for one in names if one.partition("/")[2].startswith(name)]


class TestKubeRayBackend(BackendContract):
    """The contract on Kubernetes."""


def test_the_place_is_the_namespace_itself(arena: Arena, namespace: Namespace):
    """A namespace made anew under the same name is another place."""
    uid = namespace.get("namespace", namespace.name)["metadata"]["uid"]
    assert arena.backend.place.location == f"{namespace.name}/{uid}"
