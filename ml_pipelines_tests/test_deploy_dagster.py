"""`deploy/dagster` says of retries and monitoring what the local default says, and names what exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster._core.instance.config import dagster_instance_config

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
LOCAL = yaml.safe_load((ROOT / "dagster.yaml").read_text())
KUBERNETES = yaml.safe_load((DEPLOY / "dagster" / "dagster.yaml").read_text())
PODS = yaml.safe_load((DEPLOY / "dagster" / "pods.yaml").read_text())["spec"]["template"]["spec"]
LAUNCHER = KUBERNETES["run_launcher"]["config"]


def named(file: str, kind: str) -> set[str]:
    documents = yaml.safe_load_all((DEPLOY / "base" / file).read_text())
    return {each["metadata"]["name"] for each in documents if each["kind"] == kind}


def test_dagster_takes_it() -> None:
    """Dagster's own reader knows each field."""
    found, _ = dagster_instance_config(str(DEPLOY / "dagster"))
    assert found["run_launcher"]["class"] == "K8sRunLauncher"


@pytest.mark.parametrize("rules", ["run_retries", "telemetry", "compute_logs"])
def test_the_rules_are_the_local_ones(rules: str) -> None:
    """A run on Kubernetes is retried and told of as one on this machine."""
    assert KUBERNETES[rules] == LOCAL[rules]


def test_lost_pods_are_noticed_and_never_resumed() -> None:
    """Resuming would keep Terminate from reaching the steps."""
    monitoring = KUBERNETES["run_monitoring"]
    assert monitoring["enabled"]
    assert monitoring["max_resume_run_attempts"] == 0


def test_terminate_has_time_to_cancel_the_job() -> None:
    """The pod's grace is longer than the 30 s that cancelling may take."""
    assert LAUNCHER["run_k8s_config"]["pod_spec_config"]["terminationGracePeriodSeconds"] >= 60


def test_the_accounts_are_the_ones_of_the_base() -> None:
    """Runs and the rest of Dagster use the accounts whose Roles are shipped."""
    accounts = named("accounts.yaml", "ServiceAccount")
    assert {LAUNCHER["service_account_name"], PODS["serviceAccountName"]} <= accounts


def test_runs_and_servers_see_the_same() -> None:
    """A run's pod mounts what the server's do, where they do, and has the same environment."""
    servers = {
        (each["mountPath"], each.get("subPath", ""))
        for each in PODS["containers"][0]["volumeMounts"]
    }
    runs = {(each["mountPath"], each.get("subPath", "")) for each in LAUNCHER["volume_mounts"]}
    assert servers - runs == {("/etc/dagster", "")}  # the workspace, which no run reads
    assert not runs - servers
    sources: list[dict[str, Any]] = PODS["containers"][0]["envFrom"]
    assert [each["configMapRef"]["name"] for each in sources if "configMapRef" in each] == LAUNCHER[
        "env_config_maps"
    ]
    assert [each["secretRef"]["name"] for each in sources if "secretRef" in each] == LAUNCHER[
        "env_secrets"
    ]
