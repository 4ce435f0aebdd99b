"""The local backend without a Ray: what it refuses, reads from files, and does for its operator."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ml_pipelines.backends.local.backend import LocalBackend
from ml_pipelines.backends.local.machine import boot_id
from ml_pipelines.backends.local.objects import Objects, RayJobObject, Status
from ml_pipelines.backends.local.operator import LOCK_NAME, serve
from ml_pipelines.backends.local.processes import birth_of
from ml_pipelines.backends.local.record import HeadRecord, Size
from ml_pipelines.backends.local.sizing import Machine, fit
from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import BackendRefused, BackendUnavailable, DoesNotFit
from ml_pipelines.job.clocks import Clocks
from ml_pipelines.job.known import Known
from ml_pipelines.job.phase import Phase, phase_of
from ml_pipelines.job.verdict import VerdictClass
from ml_pipelines.spec.job import Limits
from ml_pipelines.spec.manifest import RUN_KEY_LABEL
from ml_pipelines_tests.rayjob_manifests import manifest

MACHINE = Machine(cpus=2, memory=8 * 2**30)


@dataclass
class Local:
    """A backend whose operators are only counted."""

    state: Path
    clock: FakeClock
    operators: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.objects = Objects(self.state)
        self.backend = LocalBackend(
            self.state, self.clock, machine=MACHINE, start_operator=self._start
        )

    def _start(self, state: Path, log: Path, idle_head_s: float) -> None:
        self.operators.append(state)

    def running(self, run_key: str = "job", *, head: HeadRecord) -> RayJobObject:
        """A job that an operator, gone by now, has left running on that head."""
        made, _ = self.objects.create(manifest(run_key), self.clock.now())
        plan, _ = fit(made.manifest, MACHINE)
        now = self.clock.now().isoformat()
        status = Status(
            job_status="RUNNING",
            deployment_status="Running",
            job_id="job-1",
            cluster=head.id,
            submitted=True,
            assigned_at=now,
            ready_at=now,
            started_at=now,
            plan=plan.to_json(),
        )
        self.objects.set_status(made.uid, status)
        folder = self.objects.path("heads")
        folder.mkdir(exist_ok=True)
        head.write(folder)
        return made


@pytest.fixture
def local(tmp_path: Path, clock: FakeClock) -> Local:
    return Local(tmp_path / "state", clock)


def head(**changes: Any) -> HeadRecord:
    """A head whose leading process is this one."""
    birth = birth_of(os.getpid())
    assert birth is not None
    here: dict[str, Any] = {"boot": boot_id(), "pid": os.getpid(), "birth": birth, **changes}
    return HeadRecord(id="head1", folder="/nowhere", token="", size=Size(2, 0), **here)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        pytest.param(
            {"cluster": {"workers": [{"cpu": "7"}]}}, DoesNotFit, "this machine has 2 CPUs",
            id="too-large",
        ),
        pytest.param({"spec": {"entrypoint": " "}}, BackendRefused, "entrypoint", id="empty"),
        pytest.param({"spec": {"runtimeEnvYAML": "- 1"}}, BackendRefused, "mapping", id="A12-list"),
        pytest.param({"spec": {"runtimeEnvYAML": "a:\n\tb"}}, BackendRefused, "YAML", id="A12-tab"),
        pytest.param(
            {"spec": {"runtimeEnvYAML": "workdir: x"}}, BackendRefused, "'workdir'", id="A12-key"
        ),
        pytest.param(
            {"spec": {"runtimeEnvYAML": "env_vars: {N: 4}"}}, BackendRefused, "no text", id="A9"
        ),
        pytest.param(
            {"spec": {"runtimeEnvYAML": "env_vars: {N: '${HOME}'}"}}, BackendRefused, "removes",
            id="A11",
        ),
    ],
)  # fmt: skip
def test_bad_manifests_are_refused_before_anything_exists(local: Local, changes, error, words):
    """Cases A9, A11, A12: refused by `check` and `create` alike; no file, no operator."""
    made = manifest("job", cluster=changes.get("cluster"))
    made["spec"].update(changes.get("spec", {}))
    for call in (local.backend.check, local.backend.create):
        with pytest.raises(error, match=words):
            call(made)
    assert not local.state.exists()
    assert local.operators == []


def test_shrunk_sizes_are_said(local: Local):
    """What differs from the manifest is said before anything runs."""
    (sentence,) = local.backend.check(manifest("job"))
    assert "this machine has 2 CPUs" in sentence


def test_create_starts_an_operator(local: Local):
    """A job without an operator would wait for ever."""
    view = local.backend.create(manifest("job"))
    assert view.run_key == "job"
    assert view.spec_hash
    assert local.operators == [local.state]


def test_an_operator_that_lives_is_left_alone(local: Local):
    """Whoever holds the lock is the operator; nobody else is started."""
    local.objects.prepare()
    with (local.state / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        local.backend.create(manifest("job"))
    assert local.operators == []


def test_a_starting_operator_is_waited_for(local: Local):
    """Looking ten times a second starts one operator, and another only when that one never came."""
    view = local.backend.create(manifest("job"))
    for _ in range(40):
        local.backend.observe(view.name)
        local.clock.advance(0.1)
    assert len(local.operators) == 1
    local.clock.advance(5)
    local.backend.observe(view.name)
    assert len(local.operators) == 2


def test_operators_that_never_come_are_an_error(local: Local):
    """A broken installation is named, with the file to read."""
    view = local.backend.create(manifest("job"))
    for _ in range(3):
        local.clock.advance(6)
        local.backend.observe(view.name)
    local.clock.advance(6)
    with pytest.raises(BackendUnavailable, match=r"operator\.log"):
        local.backend.observe(view.name)


def test_a_second_operator_goes_at_once(local: Local):
    """Two processes that start an operator at the same time leave one."""
    local.objects.prepare()
    with (local.state / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        serve(local.state, local.clock, idle_head_s=60)
    assert not (local.state / "heads").exists()


def test_an_operator_with_nothing_to_do_ends(local: Local):
    """It ends, and gives its lock back."""
    serve(local.state, local.clock, idle_head_s=60)
    with (local.state / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_head_that_lives_without_its_operator_is_not_lost(local: Local):
    """The operator was killed; its head is well, and an operator is started again."""
    made = local.running(head=head())
    seen = local.backend.observe(made.name)
    assert seen.rayjob is not None
    assert (seen.rayjob.job_status, seen.rayjob.deployment_status) == ("RUNNING", "Running")
    assert local.operators == [local.state]


@pytest.mark.parametrize(
    "gone",
    [
        pytest.param({"birth": 1.0}, id="pid-used-again"),
        pytest.param({"pid": 2**22 - 1}, id="dead"),
        pytest.param({"boot": "another"}, id="rebooted"),
    ],
)
def test_operator_and_head_are_both_gone(local: Local, gone: dict[str, Any]):
    """The next look reports the loss, and the phase function calls it the platform's fault."""
    made = local.running(head=head())
    known = Known().after(local.backend.observe(made.name), 0.0)
    head(**gone).write(local.objects.path("heads"))
    seen = local.backend.observe(made.name)
    assert seen.rayjob is not None
    assert (seen.rayjob.job_status, seen.rayjob.deployment_status) == ("RUNNING", "Failed")
    assert seen.cluster is not None
    assert seen.cluster.conditions["HeadPodReady"][0] == "False"
    assert [pod.phase for pod in seen.pods if pod.role == "head"] == ["Failed"]
    standing = phase_of(seen, known.after(seen, 1.0), Clocks.of(Limits(), finishing_s=30.0), 1.0)
    assert standing.phase is Phase.FAILED
    assert standing.verdict is not None
    assert standing.verdict.cls is VerdictClass.INFRA


def test_an_ended_job_needs_no_operator(local: Local):
    """What has ended is read, and deleted, without starting anything."""
    made, _ = local.objects.create(manifest("job"), local.clock.now())
    local.objects.set_status(made.uid, Status("SUCCEEDED", "Complete"))
    seen = local.backend.observe(made.name)
    assert seen.rayjob is not None
    local.backend.delete(made.name, made.uid)
    assert local.backend.observe(made.name).rayjob is None
    assert local.operators == []


def test_a_queued_job_shows_a_workload(local: Local):
    """What waits for the machine waits as in a queue, with the reason."""
    view = local.backend.create(manifest("job"))
    waiting = Status(deployment_status="Suspended", message="Waiting for CPUs: no.")
    local.objects.set_status(view.uid, waiting)
    seen = local.backend.observe(view.name)
    assert seen.workload is not None
    assert seen.workload.conditions["QuotaReserved"] == (
        "False",
        "Pending",
        "Waiting for CPUs: no.",
    )
    known = Known().after(seen, 0.0)
    standing = phase_of(seen, known, Clocks.of(Limits(), finishing_s=30.0), 0.0)
    assert standing.phase is Phase.QUEUED


def test_logs_are_read_where_they_lie(local: Local, tmp_path: Path):
    """Case D4: from the head's folder while it lives, from ours once it is gone."""
    view = local.backend.create(manifest("job"))
    assert local.backend.read_log(view.name, "driver", 0, 10).data == b""
    live = tmp_path / "driver.log"
    live.write_bytes(b"0123456789")
    local.objects.set_status(view.uid, Status(log=str(live)))
    chunk = local.backend.read_log(view.name, "driver", 3, 4)
    assert (chunk.start, chunk.data, chunk.end, chunk.lost) == (3, b"3456", 7, 0)
    local.objects.keep_log(view.uid, live)
    live.unlink()
    assert local.backend.read_log(view.name, "driver", 7, 100).data == b"789"
    assert local.backend.read_log(view.name, "driver", 10, 100).data == b""
    assert local.backend.read_log(view.name, "another", 0, 100).data == b""


def test_the_place_outlives_a_reboot(local: Local):
    """Before the `#` is what reaches the job, after it what a reboot changes."""
    reach, boot = local.backend.place.location.split("#")
    assert str(local.state) in reach
    assert boot == boot_id()


def test_it_loads_without_ray(local: Local):
    """`mlp job list` must not wait for what only the operator, or only a driver, needs."""
    code = "import sys, ml_pipelines.backends.local; print(sorted({'ray', 'dagster', 'requests', 'torch'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_names_and_labels_are_read(local: Local):
    """Listing goes by labels."""
    view = local.backend.create(manifest("job-a"))
    local.clock.advance(6)
    local.backend.create(manifest("job-b"))
    labels = {RUN_KEY_LABEL: "job-a"}
    assert [one.name for one in local.backend.list(labels)] == [view.name]
    assert len(local.backend.list({})) == 2
