"""The Dagster run itself in a pod, under the shipped Role: it goes through, and survives its pod.

Webserver, code server, daemon and run pods are made from `deploy/dagster`; the daemon launches each
run by K8sRunLauncher and retries one whose pod is gone; the keeper takes what a run left behind.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
import yaml

from ml_pipelines import lifecycle, settings
from ml_pipelines.job.phase import Phase
from ml_pipelines_tests import pod_definitions
from ml_pipelines_tests.cluster import Namespace, storage_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = [pytest.mark.kube, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[1]
DAGSTER = ROOT / "deploy" / "dagster"
OVER = {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED}
TERMINATE = """
import sys
from dagster_graphql import DagsterGraphQLClient

DagsterGraphQLClient("ml-pipelines-dagster", port_number=80).terminate_run(sys.argv[1])
"""
STATES = ("history", "schedules", "storage")


@dataclass
class Place:
    """Dagster in the namespace, and its database as this machine sees it."""

    namespace: Namespace
    home: Path
    instance: dg.DagsterInstance
    settings: settings.Settings

    def launch(self, **tags: str) -> str:
        """Put a run in the queue, as a user's click does; returns its id."""
        run_id = str(uuid.uuid4())
        self.namespace.kubectl(
            "exec", "deploy/ml-pipelines-daemon", "--", "dagster", "job", "launch",
            "-w", "/etc/dagster/workspace.yaml", "-l", "ml_pipelines", "-j", "counting",
            "--run-id", run_id, "--tags", json.dumps(tags), timeout_s=120,
        )  # fmt: skip
        return run_id

    def terminate(self, run_id: str) -> None:
        """Terminate it through the webserver, as its page does."""
        self.namespace.kubectl(
            "exec", "deploy/ml-pipelines-daemon", "--", "python", "-c", TERMINATE, run_id
        )

    def run(self, run_id: str) -> dg.DagsterRun:
        """The run as it stands; its end may be a retry's to tell."""
        found = self.instance.get_run_by_id(run_id)
        assert found is not None
        return found

    def ended(self, run_id: str, *, timeout_s: float = 300) -> dg.DagsterRun:
        """The run, once it is over."""
        wait_for(
            f"run {run_id} is over", lambda: self.run(run_id).status in OVER, timeout_s=timeout_s
        )
        return self.run(run_id)

    def pod(self, run_id: str) -> str:
        """The name of the run's pod."""
        [pod] = self.namespace.get("pods", "-l", f"dagster/run-id={run_id}")["items"]
        return str(pod["metadata"]["name"])

    def job(self, run_key: str) -> lifecycle.JobSummary:
        """The Ray job, as its journal tells it."""
        with lifecycle.open_platform(self.settings) as platform:
            return lifecycle.describe(run_key, platform=platform)

    def kept_log(self, run_key: str) -> list[str]:
        """The lines of the job's log, as they are kept with it."""
        with lifecycle.open_platform(self.settings) as platform:
            lines = lifecycle.read_logs(run_key, platform=platform, attempt=None, follow=False)
            return [line.text for line in lines if line.source == "driver"]

    def printed(self, run_id: str) -> list[str]:
        """What the run's step wrote to its stdout."""
        files = (self.home / "storage" / run_id / "compute_logs").glob("*.out")
        return [line for file in files for line in file.read_text().splitlines()]

    def said(self, run_id: str) -> list[str]:
        """What the run's log says of the job."""
        return [entry.user_message for entry in self.instance.all_logs(run_id)]


@pytest.fixture(scope="module")
def place(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Webserver, code server and daemon from `deploy/dagster`, over a database of their own."""
    if namespace.shared is None:
        pytest.skip("needs a shared volume that this machine sees")
    folder = f"dagster-{uuid.uuid4().hex[:6]}"
    home = tmp_path_factory.mktemp("dagster")
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    for name in STATES:
        (home / name).symlink_to(namespace.shared / folder / name)
    environ = namespace.environment() | storage_of(namespace) | {"MLP_HOME": str(home / "mlp")}
    objects = _rendered(namespace, folder, environ)
    namespace.kubectl("apply", "-f", "-", input=_as_list(objects))
    for name in ("code", "daemon", "webserver"):
        namespace.kubectl(
            "rollout", "status", f"deploy/ml-pipelines-{name}", "--timeout=150s", timeout_s=160
        )
    wait_for("a database", (namespace.shared / folder / "history").is_dir, timeout_s=60)
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.from_config(str(home)) as found:
        patch.setenv("KUBECONFIG", environ["KUBECONFIG"])
        yield Place(namespace, home, found, settings.load(environ))
    namespace.kubectl(
        "delete", "deployments,jobs", "--all", "--wait", "--cascade=foreground", timeout_s=150
    )
    shutil.rmtree(namespace.shared / folder, ignore_errors=True)


def _rendered(namespace: Namespace, folder: str, environ: dict[str, str]) -> list[dict[str, Any]]:
    """What `deploy/dagster` ships, with the test's definitions, database, lake and run storage."""
    text = namespace.cluster.kubectl("kustomize", str(DAGSTER))
    text = text.replace("subPath: dagster\n", f"subPath: {folder}\n")
    text = text.replace("subPath: dagster}", f"subPath: {folder}}}")
    text = text.replace("mountPath: /shared", f"mountPath: {namespace.shared}")
    text = text.replace("ml_pipelines.definitions", "ml_pipelines_tests.pod_definitions")
    text = text.replace("poll_interval_seconds: 15", "poll_interval_seconds: 3")
    objects: list[dict[str, Any]] = list(yaml.safe_load_all(text))
    for one in objects:
        one["metadata"]["namespace"] = namespace.name
        if one["metadata"]["name"] == "ml-pipelines-settings":
            platform = yaml.safe_load(namespace.platform_file.read_text())["env"]
            one["data"] |= {name: environ[name] for name in ("MLP_LAKE", "MLP_RUNS")}
            one["data"] |= platform | {"PYTHONPATH": str(ROOT)}
    platform = yaml.safe_load(namespace.platform_file.read_text())
    platform["env"]["PYTHONPATH"] = str(ROOT)  # Ray's pods run the test's workload
    namespace.kubectl(
        "patch", "configmap", "ml-pipelines-platform", "--type=merge", "-p",
        json.dumps({"data": {"platform.yaml": yaml.safe_dump(platform)}}),
    )  # fmt: skip
    return objects


def _as_list(objects: Sequence[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


@pytest.fixture
def rayjobs(place: Place) -> Iterator[set[str]]:
    """The uids of all RayJobs that were there while the test ran."""
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            seen.update(each["metadata"]["uid"] for each in _rayjobs(place))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield seen
    over.set()
    thread.join(30)


def _rayjobs(place: Place) -> list[dict[str, Any]]:
    return list((place.namespace.get("rayjobs") or {}).get("items", []))


def counted(lines: list[str]) -> list[int]:
    """The numbers that the workload wrote, in order."""
    return [int(line.split()[1]) for line in lines if re.fullmatch(r"count \d+", line)]


def run_key_of(place: Place, run_id: str) -> str:
    """The key of the run's one job, from what the run said of it."""
    found = {m[1] for text in place.said(run_id) if (m := re.match(r"Job (\S+) submitted", text))}
    [key] = found
    return str(key)


def running(place: Place, run_id: str, count: int) -> None:
    """Wait until the run's step has printed so many counted lines."""
    wait_for(
        f"run {run_id} printed {count} lines",
        lambda: place.run(run_id).status in OVER or len(counted(place.printed(run_id))) >= count,
        timeout_s=240,
    )
    assert place.run(run_id).status is dg.DagsterRunStatus.STARTED, place.said(run_id)[-5:]


def test_a_run_in_a_pod_goes_through(place: Place, rayjobs: set[str]) -> None:
    """With the shipped accounts and Roles: launched, followed, observed, cleaned up."""
    run_id = place.launch()
    ended = place.ended(run_id, timeout_s=400)
    assert ended.status is dg.DagsterRunStatus.SUCCESS, place.said(run_id)[-8:]
    key = run_key_of(place, run_id)
    everything = list(range(pod_definitions.LINES))
    assert counted(place.printed(run_id)) == everything
    assert counted(place.kept_log(key)) == everything
    said = "\n".join(place.said(run_id))
    assert "machines ready" in said
    assert f"{key}-a1" in said
    assert len(rayjobs) == 1
    wait_for("the RayJob is gone", lambda: not _rayjobs(place), timeout_s=30)


@pytest.mark.parametrize("grace_s", [120, 0], ids=["SIGTERM", "SIGKILL"])
def test_a_run_outlives_its_pod(place: Place, rayjobs: set[str], grace_s: int) -> None:
    """Its pod deleted in mid-run, the run's automatic retry claims the same Ray job and goes on."""
    first = place.launch()
    running(place, first, 10)
    force = ["--force"] if grace_s == 0 else []
    place.namespace.kubectl(
        "delete", "pod", place.pod(first), f"--grace-period={grace_s}", "--wait=false", *force
    )
    assert place.ended(first).status is dg.DagsterRunStatus.FAILURE
    wait_for("a retry", lambda: place.run(first).tags.get("dagster/auto_retry_run_id"))
    second = place.run(first).tags["dagster/auto_retry_run_id"]
    ended = place.ended(second, timeout_s=400)
    assert ended.status is dg.DagsterRunStatus.SUCCESS, place.said(second)[-8:]
    key = run_key_of(place, first)
    everything = list(range(pod_definitions.LINES))
    assert counted(place.kept_log(key)) == everything
    parts = counted(place.printed(first)), counted(place.printed(second))
    assert sorted({*parts[0], *parts[1]}) == everything
    if grace_s:  # what was told was noted: the next one goes on right after it
        assert [*parts[0], *parts[1]] == everything
    assert f"Job {key} was begun before; this run claims it and goes on with it." in place.said(
        second
    )
    assert len(rayjobs) == 1
    wait_for("the RayJob is gone", lambda: not _rayjobs(place), timeout_s=30)


def test_terminate_ends_the_ray_job(place: Place) -> None:
    """In the webserver: the run's pod gets time to delete its Ray job, and to say so."""
    run_id = place.launch()
    running(place, run_id, 10)
    place.terminate(run_id)
    assert place.ended(run_id).status is dg.DagsterRunStatus.CANCELED, place.said(run_id)[-8:]
    key = run_key_of(place, run_id)
    wait_for("the RayJob is gone", lambda: not _rayjobs(place), timeout_s=30)
    assert place.job(key).phase is Phase.CANCELLED
    assert counted(place.kept_log(key))[:10] == list(range(10))


def test_the_keeper_takes_what_a_dead_run_left(place: Place) -> None:
    """Killed, and not to be tried again: the keeper, under its own Role, ends the orphan."""
    run_id = place.launch(**{"dagster/max_retries": "0"})
    running(place, run_id, 1)
    place.namespace.kubectl(
        "delete", "pod", place.pod(run_id), "--grace-period=0", "--force", "--wait=false"
    )
    assert place.ended(run_id).status is dg.DagsterRunStatus.FAILURE
    assert len(_rayjobs(place)) == 1
    wait_for("the RayJob is gone", lambda: not _rayjobs(place), timeout_s=200)
    key = run_key_of(place, run_id)
    wait_for("its end is noted", lambda: place.job(key).phase is Phase.CANCELLED)
