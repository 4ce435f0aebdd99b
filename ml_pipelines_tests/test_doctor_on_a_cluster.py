"""`mlp doctor` against the cluster, as different identities."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ml_pipelines import settings
from ml_pipelines.cli import kube_doctor
from ml_pipelines.cli.health import Finding, Level
from ml_pipelines.spec.pools import Pool, Pools
from ml_pipelines_tests.cluster import RUNS_ACCOUNT, storage_of

if TYPE_CHECKING:
    from ml_pipelines_tests.cluster import Namespace

pytestmark = pytest.mark.kube
OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL


def seen(namespace: Namespace, home: Path, pools: Pools | None = None) -> dict[str, Finding]:
    """What the doctor finds, by what it is about."""
    environ = {"MLP_HOME": str(home), **namespace.environment(), **storage_of(namespace)}
    here = settings.load(environ)
    return {each.what: each for each in kube_doctor.examine(here, pools or namespace.pools)}


def test_all_is_well_for_the_administrator(
    namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a namespace made from `deploy/` every line is OK, and the pools count their nodes."""
    monkeypatch.setenv("KUBECONFIG", str(namespace.cluster.kubeconfig))
    found = seen(namespace, tmp_path)
    assert {each.level for each in found.values()} == {OK}, found
    assert found["pool spot"].sentence == "2 nodes, 2 ready, 8 nvidia.com/gpu allocatable"
    assert "3 of 3 are there" in found["names"].sentence


def test_the_account_of_runs_may_do_what_it_must(
    namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the shipped Role nothing is missing; what it may not read is said to be unknown."""
    monkeypatch.setenv("KUBECONFIG", str(namespace.kubeconfig_of(RUNS_ACCOUNT, tmp_path)))
    found = seen(namespace, tmp_path)
    assert {each.level for each in found.values()} == {OK}, found
    assert f"{namespace.name}:{RUNS_ACCOUNT} may do all" in found["rights"].sentence
    assert "secrets ml-pipelines-storage" in found["names"].sentence
    assert "may not read" in found["names"].sentence
    assert "may not look" in found["operator"].sentence


def test_an_account_without_rights_is_told_which(
    namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case I8: forbidden is not missing: the rights line names verbs and kinds."""
    monkeypatch.setenv("KUBECONFIG", str(namespace.kubeconfig_of("default", tmp_path)))
    found = seen(namespace, tmp_path)
    assert found["rights"].level is FAIL
    assert "may not create, get, list, watch, delete rayjobs.ray.io" in found["rights"].sentence
    assert "get pods/log" in found["rights"].sentence
    assert found["CRDs"].level is WARN


def test_an_expired_login_is_no_missing_right(
    namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case I8: a token that the server doesn't know is the only line, and says to log in."""
    path = namespace.kubeconfig_of(RUNS_ACCOUNT, tmp_path)
    path.write_text(path.read_text().replace("token: ", "token: x"))
    monkeypatch.setenv("KUBECONFIG", str(path))
    found = seen(namespace, tmp_path)
    assert set(found) == {"cluster"}
    assert found["cluster"].level is FAIL
    assert "authentication failed" in found["cluster"].sentence
    assert "Log in again" in found["cluster"].remedy


def test_a_platform_file_that_promises_too_much(
    namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool without nodes warns; sizes no node has, and names that aren't there, fail."""
    monkeypatch.setenv("KUBECONFIG", str(namespace.cluster.kubeconfig))
    here = namespace.pools
    spot = here.pools["spot"]
    pools = here.model_copy(
        update={
            "pools": {
                "cpu": here.pools["cpu"].model_copy(update={"queue": "no-such-queue"}),
                "moon": Pool(name="moon", cpu="1", memory="1Gi", node_selector={"on": "moon"}),
                "spot": spot.model_copy(update={"gpus": 8}),
                "gpu": spot.model_copy(update={"name": "gpu", "tolerations": ()}),
            },
            "secrets": (*here.secrets, "no-such-secret"),
        }
    )
    found = seen(namespace, tmp_path, pools)
    assert found["pool moon"].level is WARN
    assert found["pool spot"].level is FAIL
    assert "no node has more than 4" in found["pool spot"].sentence
    assert found["pool gpu"].level is FAIL
    assert "doesn't tolerate" in found["pool gpu"].sentence
    assert found["names"].level is FAIL
    assert "secrets no-such-secret" in found["names"].sentence


def test_another_namespace_is_told_from_missing_crds(
    namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case I8: a namespace that doesn't exist is named."""
    monkeypatch.setenv("KUBECONFIG", str(namespace.cluster.kubeconfig))
    environ = namespace.environment() | {
        "MLP_HOME": str(tmp_path), "MLP_RUNS": "s3://r", "MLP_LAKE": "s3://l",
        "MLP_NAMESPACE": "no-such-namespace",
    }  # fmt: skip
    found = kube_doctor.examine(settings.load(environ), namespace.pools)
    [crds] = [each for each in found if each.what == "CRDs"]
    assert crds.level is FAIL
    assert "no-such-namespace" in crds.sentence
    assert "MLP_NAMESPACE" in crds.remedy
