"""The local operator gives RayJobs a head and KubeRay's words, whatever happens to either."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ml_pipelines.backends.local.objects import Objects, RayJobObject, Status
from ml_pipelines.backends.local.reconciler import Reconciler
from ml_pipelines.backends.local.sizing import Machine
from ml_pipelines.clock import FakeClock
from ml_pipelines_tests.fake_heads import FakeHeads, FakeRay, fake_ray
from ml_pipelines_tests.rayjob_manifests import manifest

MACHINE = Machine(cpus=2, memory=8 * 2**30)
ONE_CPU = {"workers": [{"cpu": "1", "memory": "1Gi"}]}


@dataclass
class World:
    """An operator, and all that it sees."""

    objects: Objects
    heads: FakeHeads
    ray: FakeRay
    clock: FakeClock
    operator: Reconciler

    def create(self, run_key: str = "job", **more: Any) -> RayJobObject:
        self.clock.advance(1)
        return self.objects.create(manifest(run_key, **more), self.clock.now())[0]

    def pass_by(self, passes: int = 1, *, seconds: float = 0.1) -> bool:
        busy = False
        for _ in range(passes):
            busy = self.operator.step()
            self.clock.advance(seconds)
        return busy

    def status(self, made: RayJobObject) -> Status:
        return self.objects.status(made.uid)

    def words(self, made: RayJobObject) -> tuple[str, str, str]:
        status = self.status(made)
        return status.job_status, status.deployment_status, status.reason

    def restart(self) -> None:
        self.operator = Reconciler(
            self.objects, self.heads, self.clock, machine=MACHINE, idle_head_s=60
        )
        self.operator.adopt()

    def running(self, run_key: str = "job", **more: Any) -> RayJobObject:
        made = self.create(run_key, **more)
        self.pass_by(4)
        assert self.words(made) == ("RUNNING", "Running", "")
        return made


@pytest.fixture
def world(tmp_path: Path, clock: FakeClock) -> Iterator[World]:
    with fake_ray() as ray:
        objects = Objects(tmp_path / "state")
        objects.prepare()
        heads = FakeHeads(ray, tmp_path / "heads")
        operator = Reconciler(objects, heads, clock, machine=MACHINE, idle_head_s=60)
        yield World(objects, heads, ray, clock, operator)
        for head in heads.started:
            head.forget()


def test_a_job_is_submitted_as_soon_as_its_head_answers(world: World):
    """Initializing while the head starts, then one submission, in the first pass that it can be."""
    world.heads.starts_up = False
    made = world.create(entrypoint=["python", "-c", "print('a b')"], env={"X": "a$ b"})
    world.pass_by(3)
    assert world.words(made) == ("", "Initializing", "")
    world.heads.started[0].up = True
    world.pass_by()
    assert world.words(made) == ("PENDING", "Running", "")
    (body,) = world.ray.submissions
    assert body["submission_id"] == world.status(made).job_id
    assert body["entrypoint"] == """exec python -c 'print('"'"'a b'"'"')'"""
    assert body["runtime_env"]["env_vars"]["X"] == "a${MLP_DOLLAR} b"
    assert body["runtime_env"]["env_vars"]["MLP_WORKERS"] == "1"


@pytest.mark.parametrize(
    ("ray_says", "words", "exit_code"),
    [
        pytest.param(
            {"status": "SUCCEEDED", "driver_exit_code": 0}, ("SUCCEEDED", "Complete", ""), 0,
            id="succeeded",
        ),
        pytest.param(
            {"status": "FAILED", "driver_exit_code": 3}, ("FAILED", "Failed", "AppFailed"), 3,
            id="exit-3",
        ),
        pytest.param(
            {"status": "FAILED", "driver_exit_code": -9}, ("FAILED", "Failed", "AppFailed"), 137,
            id="killed",
        ),
        pytest.param({"status": "STOPPED"}, ("STOPPED", "Complete", ""), None, id="C3-stopped"),
    ],
)  # fmt: skip
def test_the_end_in_kuberays_words(world: World, ray_says, words, exit_code):
    """Cases C3, C6: what Ray says at the end, as KubeRay would; the head goes idle."""
    made = world.running()
    world.ray.end(world.status(made).job_id, **ray_says)
    world.pass_by(2, seconds=2)
    assert world.words(made) == words
    assert world.status(made).driver_exit_code == exit_code
    assert world.status(made).ended_at
    assert world.heads.started[0].calls == []


def test_the_supervisors_file_tells_of_the_end(world: World):
    """Between two slow polls, a supervisor that writes is reason enough to ask."""
    made = world.running()
    world.pass_by(50)
    asked = len(world.ray.requests)
    world.pass_by(10)
    assert len(world.ray.requests) - asked <= 1
    job_id = world.status(made).job_id
    world.ray.end(job_id, "SUCCEEDED", driver_exit_code=0)
    world.heads.started[0].supervisor_log(job_id).write_text("exited with code 0")
    world.pass_by()
    assert world.words(made) == ("SUCCEEDED", "Complete", "")


def test_a_lost_answer_submits_once(world: World):
    """Case B1: Ray took the job and its answer was lost; asked, it says so."""
    made = world.create()
    world.ray.faults = [200, "lost"]  # its readiness, then the submission
    world.ray.faults[0] = "ready"
    world.pass_by(3)
    assert world.status(made).submitted
    assert len(world.ray.submissions) == 1


@pytest.mark.parametrize("fault", [500, 503, 429, 401])
def test_a_submission_that_fails_for_now_is_tried_again(world: World, fault: int):
    """Case C14: no answer ends a job."""
    made = world.create()
    world.ray.faults = ["ready", fault]
    world.pass_by(3)
    assert world.status(made).submitted
    assert len(world.ray.submissions) == 1


def test_a_submission_that_ray_refuses_fails(world: World):
    """Case C16: 400 is an answer for good."""
    made = world.create()
    world.ray.faults = ["ready", 400]
    world.pass_by(2)
    assert world.words(made) == ("", "Failed", "SubmissionFailed")
    assert "Ray refused the job" in world.status(made).message


def test_a_job_that_ray_forgot_is_never_submitted_again(world: World):
    """Case B12: "no such job", three times, ends the attempt; nothing runs twice."""
    made = world.running()
    world.ray.jobs.clear()
    world.pass_by(2, seconds=2)
    assert world.words(made) == ("RUNNING", "Running", "")
    world.pass_by(2, seconds=2)
    assert world.words(made) == ("RUNNING", "Failed", "JobStatusCheckTimeoutExceeded")
    assert "no longer knows the job" in world.status(made).head_lost
    assert world.heads.started[0].calls == ["kill", "forget"]
    assert len(world.ray.submissions) == 1


def test_a_head_that_is_not_seen_for_a_while_is_not_lost(world: World):
    """Case C14: half a minute of silence changes nothing; a minute ends the attempt."""
    made = world.running()
    world.heads.started[0].up = False
    world.pass_by(10, seconds=3)
    assert world.words(made) == ("RUNNING", "Running", "")
    world.pass_by(15, seconds=3)
    assert world.words(made) == ("RUNNING", "Failed", "JobStatusCheckTimeoutExceeded")


def test_a_head_that_dies_is_reported_and_its_log_is_kept(world: World):
    """Case D4: the lost head ends the attempt; what its driver wrote can be read afterwards."""
    made = world.running()
    head = world.heads.started[0]
    head.driver_log(world.status(made).job_id).write_bytes(b"last words\n")
    head.is_alive = False
    world.pass_by()
    status = world.status(made)
    assert world.words(made) == ("RUNNING", "Failed", "JobStatusCheckTimeoutExceeded")
    assert status.head_lost == "The Ray head was killed by SIGKILL."
    assert head.calls == ["kill", "forget"]
    assert world.objects.kept_log(made.uid).read_bytes() == b"last words\n"


def test_a_head_that_does_not_start_is_tried_once_more(world: World):
    """A port may have been taken: a second head, and then the attempt ends."""
    world.heads.starts_up = False
    made = world.create()
    world.pass_by()
    world.heads.started[0].is_alive = False
    world.pass_by(2)
    assert world.words(made) == ("", "Initializing", "")
    world.heads.started[1].is_alive = False
    world.pass_by(2)
    assert world.words(made) == ("", "Failed", "SubmissionFailed")
    assert len(world.heads.started) == 2


def test_a_head_that_never_answers_is_given_up(world: World):
    """A start has a clock that ends it."""
    world.heads.starts_up = False
    made = world.create()
    world.pass_by(10, seconds=50)
    assert world.words(made) == ("", "Failed", "SubmissionFailed")
    assert "did not start within 180 s" in world.status(made).message


def test_an_idle_head_serves_the_next_job_and_then_ends(world: World):
    """One head, two jobs; it ends by itself after the idle time, and then so does the operator."""
    for run_key in ("job-a", "job-b"):
        made = world.running(run_key)
        world.ray.end(world.status(made).job_id, "SUCCEEDED")
        world.pass_by(2, seconds=2)
    (head,) = world.heads.started
    assert world.pass_by(1, seconds=61)
    world.pass_by()
    assert head.calls == ["terminate"]
    head.is_alive = False
    assert not world.pass_by()
    assert head.calls == ["terminate", "kill", "forget"]
    assert not world.operator.wanted()


def test_a_head_that_ignores_the_end_is_killed(world: World):
    """Ten seconds after SIGTERM comes SIGKILL."""
    made = world.running()
    world.ray.end(world.status(made).job_id, "SUCCEEDED")
    world.pass_by(2, seconds=61)
    world.pass_by(2, seconds=11)
    assert world.heads.started[0].calls == ["terminate", "kill", "forget"]


def test_a_larger_job_gets_a_larger_head(world: World):
    """An idle head that is too small makes room."""
    made = world.running("job-a", cluster=ONE_CPU)
    world.ray.end(world.status(made).job_id, "SUCCEEDED")
    world.pass_by(2, seconds=2)
    world.running("job-b", cluster={"workers": [{"cpu": "2", "memory": "1Gi"}]})
    assert [head.size.num_cpus for head in world.heads.started] == [1, 2]
    assert world.heads.started[0].calls == ["terminate"]


def test_jobs_wait_for_the_machine_in_order(world: World):
    """Two jobs of a CPU each run beside each other; the third is queued, and says why."""
    first = world.running("job-a", cluster=ONE_CPU)
    world.running("job-b", cluster=ONE_CPU)
    third, fourth = (world.create(key, cluster=ONE_CPU) for key in ("job-c", "job-d"))
    world.pass_by()
    for waiting in (third, fourth):
        assert world.words(waiting) == ("", "Suspended", "")
        assert world.status(waiting).message == "2 other jobs on this machine hold 2 of its 2 CPUs"
    world.ray.end(world.status(first).job_id, "SUCCEEDED")
    world.pass_by(3, seconds=2)
    assert world.words(third)[1] == "Running"
    assert world.words(fourth)[1] == "Suspended"


def test_a_job_that_does_not_fit_fails_validation(world: World):
    """Refused for good, with the sentence; no head is started."""
    made = world.create(cluster={"workers": [{"cpu": "7"}]})
    world.pass_by()
    assert world.words(made) == ("", "ValidationFailed", "ValidationFailed")
    assert "this machine has 2 CPUs" in world.status(made).message
    assert world.heads.started == []


@pytest.mark.parametrize("when", ["queued", "starting", "running"])
def test_stop_ends_the_driver_and_leaves_the_head(world: World, when: str):
    """Case E3: a stop in any phase; the cluster stays."""
    world.heads.starts_up = when == "running"
    if when == "queued":
        world.create("job-before")
        world.pass_by()
    made = world.create()
    world.pass_by(4)
    world.objects.order(made.name, "", "stop")
    world.pass_by(2)
    assert world.words(made) == ("STOPPED", "Complete", "")
    assert all(head.calls == [] for head in world.heads.started)


@pytest.mark.parametrize("when", ["unseen", "queued", "starting", "running", "ended"])
def test_delete_leaves_nothing(world: World, when: str):
    """Cases E1, E2: deleted in any phase; a head that it had is killed, an idle one is not."""
    world.heads.starts_up = when in {"running", "ended"}
    if when == "queued":
        world.create("job-before")
        world.pass_by()
    made = world.create()
    world.pass_by(0 if when == "unseen" else 4)
    if when == "ended":
        world.ray.end(world.status(made).job_id, "SUCCEEDED")
        world.pass_by(2, seconds=2)
    world.objects.order(made.name, made.uid, "delete")
    world.pass_by()
    assert world.objects.get(made.name) is None
    killed = {"starting": ["kill", "forget"], "running": ["kill", "forget"]}.get(when, [])
    assert [head.calls for head in world.heads.started] == ([] if when == "unseen" else [killed])


def test_a_new_operator_goes_on(world: World):
    """Case B6: killed and started again, it finds head and job and submits nothing twice."""
    made = world.running()
    world.restart()
    world.pass_by(3)
    assert world.words(made) == ("RUNNING", "Running", "")
    world.ray.end(world.status(made).job_id, "SUCCEEDED", driver_exit_code=0)
    world.pass_by(2, seconds=2)
    assert world.words(made) == ("SUCCEEDED", "Complete", "")
    assert len(world.ray.submissions) == 1


def test_killed_between_submission_and_its_record(world: World):
    """Case B1: the id was written ahead, so the next operator asks before it submits."""
    made = world.running()
    status = world.status(made).having(submitted=False, job_status="", started_at="")
    world.objects.set_status(made.uid, status)
    world.restart()
    world.pass_by(4)
    assert world.words(made) == ("RUNNING", "Running", "")
    assert len(world.ray.submissions) == 1


def test_a_new_operator_finds_no_head(world: World):
    """Both died, and the head's record with them: the loss is reported."""
    made = world.running()
    world.heads.started[0].forget()
    world.heads.started[0].calls.append("forget")
    world.restart()
    assert world.words(made) == ("RUNNING", "Failed", "JobStatusCheckTimeoutExceeded")
    assert "gone without a trace" in world.status(made).head_lost


def test_a_new_operator_ends_an_idle_head(world: World):
    """A head that nobody has is found again and ends after its idle time."""
    made = world.running()
    world.ray.end(world.status(made).job_id, "SUCCEEDED")
    world.pass_by(2, seconds=2)
    world.restart()
    world.pass_by(2, seconds=61)
    assert world.heads.started[0].calls == ["terminate"]


@pytest.mark.parametrize(
    ("deadline", "reason", "words"),
    [
        pytest.param("activeDeadlineSeconds", "DeadlineExceeded", "RUNNING", id="C1-active"),
        pytest.param("preRunningDeadlineSeconds", "PreRunningDeadlineExceeded", "", id="start"),
    ],
)
def test_kuberays_deadlines_hold_here_too(world: World, deadline: str, reason: str, words: str):
    """Case C1: the status freezes, the deployment fails, nothing goes on."""
    made_of = manifest("job")
    made_of["spec"][deadline] = 30
    world.heads.starts_up = deadline == "activeDeadlineSeconds"
    made, _ = world.objects.create(made_of, world.clock.now())
    world.pass_by(4)
    world.pass_by(2, seconds=31)
    assert world.words(made) == (words, "Failed", reason)
    assert world.heads.started[0].calls == ["kill", "forget"]


def test_what_nobody_deletes_goes_after_its_time(world: World):
    """Case E9: how it ended can be asked about for a day, then the object goes by itself."""
    made = world.running()
    world.ray.end(world.status(made).job_id, "SUCCEEDED")
    world.pass_by(2, seconds=2)
    world.pass_by(2, seconds=301)
    assert [each.name for each in world.objects.all()] == [made.name]
    world.pass_by(2, seconds=86_401)
    assert world.objects.all() == []
