"""The last word on an attempt: the engine's verdict, the log and the result together."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipelines.errors import DoesNotFit, StorageDenied, StorageUnavailable
from ml_pipelines.job.observation import ContainerView, Observation
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.traces import last_trace
from ml_pipelines.job.verdict import Verdict, VerdictClass
from ml_pipelines.job.verdicts import verdict_of
from ml_pipelines_tests.sightings import (
    ABSENT,
    GRACE,
    RUNNING,
    Replay,
    cluster,
    ended,
    pod,
    rayjob,
    status,
)

C = VerdictClass
SUCCESS = status("SUCCEEDED", "Complete")


def printed(error: Exception) -> list[str]:
    """What Python prints of an uncaught error."""
    try:
        raise error  # noqa: TRY301 - to be printed with its place
    except Exception as raised:  # noqa: BLE001 - any error may be printed
        return "".join(traceback.format_exception(raised)).splitlines()


def failed(code: int | None = 1, **fields: Any) -> Observation:
    """A driver that failed."""
    return status("FAILED", "Failed", "AppFailed", driver_exit_code=code, **fields)


def last_word(replay: Replay, tail: list[str], **result: bool) -> Verdict:
    """The verdict of a replay that has ended."""
    assert replay.standing is not None
    return verdict_of(replay.standing, replay.known, tail, **result)


RAY_TASK = """\
Traceback (most recent call last):
  File "/app/train.py", line 8, in <module>
    ray.get(boom.remote())
  File "/usr/lib/site-packages/ray/_private/worker.py", line 2858, in get
    raise value.as_instanceof_cause()
ray.exceptions.RayTaskError(ValueError): ray::boom() (pid=12, ip=10.0.0.1)
  File "/app/train.py", line 5, in boom
    raise ValueError("bad shape")
ValueError: bad shape
""".splitlines()
RAY_TRAIN = """\
ray.train.v2.api.exceptions.WorkerGroupError: Training failed due to worker errors:
[Rank 0 Error Snippet]:
Traceback (most recent call last):
  File "/app/model.py", line 41, in step
    raise KeyError("campaign")
KeyError: 'campaign'
""".splitlines()
PEER_GONE = """\
ray.train.WorkerGroupError: Training failed due to worker errors:
[Rank 1 Error Snippet]:
Traceback (most recent call last):
  File "/app/model.py", line 41, in step
    loss.backward()
RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.9]
""".splitlines()
CUDA = ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."]
RAY_OOM = ["ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory"]
DIED = ["ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."]
CASES = [
    pytest.param(1, printed(ValueError("bad shape")), C.USER, "ValueError: bad shape", id="user"),
    pytest.param(1, RAY_TASK, C.USER, "ValueError: bad shape (train.py:5 in boom)", id="ray task"),
    pytest.param(
        1, RAY_TRAIN, C.USER, "KeyError: 'campaign' (model.py:41 in step)", id="ray train"
    ),
    pytest.param(3, ["bye"], C.USER, "exit code 3", id="exit code only"),
    pytest.param(None, [], C.USER, "the driver failed", id="nothing known"),
    pytest.param(1, CUDA, C.OOM, "GPU ran out of memory", id="cuda"),
    pytest.param(1, RAY_OOM, C.OOM, "machine ran out of memory", id="ray oom"),
    pytest.param(1, printed(MemoryError()), C.OOM, "ran out of memory", id="memory error"),
    pytest.param(1, DIED, C.UNKNOWN, "ActorDiedError", id="a Ray process died"),
    pytest.param(137, ["step 4"], C.UNKNOWN, "SIGKILL", id="137"),
    pytest.param(-9, ["step 4"], C.UNKNOWN, "SIGKILL", id="-9"),
    pytest.param(143, [], C.UNKNOWN, "SIGTERM", id="143"),
    pytest.param(139, [], C.USER, "SIGSEGV", id="139"),
    pytest.param(127, ["sh: 1: pyhton: not found"], C.CONFIG, "pyhton: not found", id="127"),
    pytest.param(126, [], C.CONFIG, "can't be executed", id="126"),
    pytest.param(
        2,
        ["/venv/bin/python: can't open file '/w/tain.py': [Errno 2] No such file or directory"],
        C.CONFIG,
        "tain.py",
        id="no such script",
    ),
    pytest.param(
        1, ["/venv/bin/python3: No module named tain"], C.CONFIG, "tain", id="no such module"
    ),
    pytest.param(1, printed(OSError(28, "No space left")), C.INFRA, "disk is full", id="disk"),
    pytest.param(1, ["ncclRemoteError: peer"], C.INFRA, "NCCL", id="nccl"),
    pytest.param(1, PEER_GONE, C.UNKNOWN, "the workers lost each other", id="gloo"),
    pytest.param(1, [*DIED, *PEER_GONE], C.UNKNOWN, "lost each other", id="gloo, Ray says so too"),
    pytest.param(
        1, [*PEER_GONE, *RAY_TRAIN], C.USER, "KeyError: 'campaign'", id="gloo after a bug"
    ),
    pytest.param(1, printed(StorageUnavailable("no answer from s3")), C.INFRA, "s3", id="storage"),
    pytest.param(1, printed(StorageDenied("403 from s3")), C.CONFIG, "403", id="storage denied"),
    pytest.param(
        1,
        printed(DoesNotFit("pool", "gpu", "has no GPU that CUDA sees")),
        C.CONFIG,
        "no GPU",
        id="no GPU",
    ),
]


@pytest.mark.parametrize(("code", "tail", "cls", "says"), CASES)
def test_why_a_driver_failed(code: int | None, tail: list[str], cls: VerdictClass, says: str):
    """Case F9: out of memory, machines, storage, configuration and bugs are told apart."""
    verdict = last_word(ended(RUNNING, failed(code)), tail)
    assert verdict.cls is cls
    assert says in verdict.sentence
    assert verdict.exit_code == code
    assert not tail or tail[-1] in "\n".join(verdict.evidence)


def test_a_runtime_environment_that_fails_is_tried_once_more():
    """Ray does not tell a wrong environment from a download that failed."""
    obs = failed(None, message="runtime_env setup failed: Failed to download s3://x/code.zip")
    assert last_word(ended(obs), []).cls is C.UNKNOWN


def test_what_ray_refuses_is_configuration():
    """A job that the Jobs API will not take is not submitted again."""
    message = "Ray refused the job: runtime_env is invalid"
    replay = ended(status("", "Failed", "SubmissionFailed", message=message))
    assert last_word(replay, []).cls is C.CONFIG


RAYS_MESSAGE = (
    "Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 "
    "chars):\n" + "\n".join(RAY_TASK)
)


@pytest.mark.parametrize("tail", [RAY_TASK, []], ids=["log", "no log"])
def test_the_log_is_quoted_once(tail: list[str]) -> None:
    """Ray repeats the log in its message: that copy is used only where there is no other."""
    replay = ended(RUNNING, failed(message=RAYS_MESSAGE))
    verdict = last_word(replay, tail)
    assert verdict.sentence == "the driver failed: ValueError: bad shape (train.py:5 in boom)"
    [said, trace] = verdict.evidence
    assert said == (
        "status FAILED/Failed (AppFailed): Job entrypoint command failed with exit code 1"
    )
    assert trace.splitlines()[-1] == "ValueError: bad shape"


TAKEN = {"DisruptionTarget": ("True", "PreemptionByScheduler", "a higher priority")}
OOM = (ContainerView("ray-worker", restarts=1, terminated_reason="OOMKilled", exit_code=137),)


@pytest.mark.parametrize(
    ("worker", "cls"),
    [
        pytest.param({"conditions": TAKEN, "deleting": True}, C.PREEMPTED, id="preempted"),
        pytest.param({"containers": OOM, "ready": False}, C.OOM, id="out of memory"),
        pytest.param({"reason": "NodeLost", "phase": "Failed"}, C.INFRA, id="machine failed"),
    ],
)
@pytest.mark.parametrize(("quiet_s", "explains"), [(10.0, True), (600.0, False)])
def test_a_lost_machine_explains_a_failure_soon_after(
    worker: dict[str, Any], cls: VerdictClass, quiet_s: float, explains: bool
):
    """Case F9: exit 1 just after a worker was lost is that loss; much later it is the user's."""
    replay = Replay()
    view = rayjob("RUNNING", "Running")
    lost = pod("w1", "worker", **worker)
    replay.see(Observation(view, cluster(), pods=(pod(), lost)))
    replay.wait(Observation(view, cluster(), pods=(pod(),)), quiet_s)
    replay.see(failed(1))
    verdict = last_word(replay, printed(ValueError("x")))
    assert verdict.cls is (cls if explains else C.USER)
    if explains:
        assert "w1" in verdict.sentence
        assert "ValueError: x" in "\n".join(verdict.evidence)


def test_success_without_the_owed_result_is_not_green():
    """A job that owes a result and has none has failed."""
    replay = ended(RUNNING, SUCCESS)
    verdict = last_word(replay, [], owes_result=True, has_result=False)
    assert verdict.cls is C.USER
    assert "without a result" in verdict.sentence
    assert replay.standing is not None
    assert replay.standing.phase_with(verdict) is Phase.FAILED
    assert last_word(replay, [], owes_result=True, has_result=True).ok
    assert last_word(replay, [], owes_result=False, has_result=False).ok


@pytest.mark.parametrize(
    ("last", "tail", "saved"),
    [
        pytest.param(status("FAILED", "Failed", GRACE), [], True, id="given up"),
        pytest.param(status("RUNNING", "Failed", "DeadlineExceeded"), [], True, id="deadline"),
        pytest.param(failed(137), [], True, id="killed"),
        pytest.param(failed(1), printed(ValueError("x")), False, id="user"),
        pytest.param(status("STOPPED", "Complete"), [], False, id="stopped"),
    ],
)
def test_a_committed_result_outlives_the_engine(last: Observation, tail: list[str], saved: bool):
    """What was committed is done: losing the engine after it is a warning, a bug is not."""
    replay = ended(RUNNING, last)
    verdict = last_word(replay, tail, owes_result=True, has_result=True)
    assert verdict.ok is saved
    assert replay.standing is not None
    assert (replay.standing.phase_with(verdict) is Phase.SUCCEEDED) is saved
    if saved:
        assert "after the result was committed" in verdict.warnings[0]
    assert not last_word(replay, tail, owes_result=True, has_result=False).ok


def test_lost_stays_lost():
    """A job that somebody deleted ends as LOST, whatever its log says."""
    replay = Replay()
    replay.see_all([RUNNING, ABSENT, ABSENT])
    verdict = last_word(replay, printed(ValueError("x")))
    assert replay.standing is not None
    assert replay.standing.phase_with(verdict) is Phase.LOST


def test_only_an_end_has_a_verdict():
    """Asking for the last word on a running job is a mistake of ours."""
    replay = Replay()
    replay.see(RUNNING)
    with pytest.raises(ValueError, match="RUNNING is not an end"):
        last_word(replay, [])


def test_the_cause_is_the_same_for_the_same_failure():
    """Type and place make the cause; values and prefixes don't."""
    first = last_trace(printed(ValueError("batch 17")))
    second = last_trace(
        [f"(train pid=9) \x1b[36m{line}\x1b[0m" for line in printed(ValueError("18"))]
    )
    assert first is not None
    assert second is not None
    assert first.cause == second.cause != ""
    assert first.message == "batch 17"


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        pytest.param(["fine", "step 3"], None, id="none"),
        pytest.param(['  File "a.py", line 2', "KeyError: 'x'"], "KeyError", id="cut off"),
        pytest.param(
            [*printed(ValueError("x")), "INFO: bye", "[done]"], "ValueError", id="lines after"
        ),
        pytest.param(
            [*printed(ValueError("1")), "", "During handling …:", "", *printed(KeyError("2"))],
            "KeyError",
            id="chained",
        ),
        pytest.param(["Traceback (most recent call last):"], None, id="only its beginning"),
        pytest.param(["Traceback (most recent call last):", "INFO: x"], None, id="broken off"),
        pytest.param([f"    {line}" for line in printed(ValueError("x"))], "ValueError", id="deep"),
        pytest.param(printed(RecursionError("x" * 10_000)), "RecursionError", id="long"),
    ],
)
def test_the_last_traceback_is_found(lines: list[str], kind: str | None):
    """Prefixes, colours, chains and cut lines hide no traceback."""
    trace = last_trace(lines)
    assert (trace.kind if trace else None) == kind
    assert trace is None or len(trace.message) <= 500


@given(st.lists(st.text(max_size=60) | st.sampled_from([*RAY_TASK, *RAY_TRAIN]), max_size=30))
def test_no_log_crashes_the_verdict(tail: list[str]):
    """Whatever a driver prints, there is a verdict."""
    assert last_word(ended(RUNNING, failed(1)), tail).sentence


_VERDICTS = st.builds(
    Verdict,
    st.sampled_from(VerdictClass),
    st.text(),
    st.lists(st.text()).map(tuple),
    st.text(),
    st.lists(st.text()).map(tuple),
    st.none() | st.integers(-64, 255),
    st.text(),
)


@given(_VERDICTS)
def test_a_verdict_survives_the_journal(verdict: Verdict):
    """There and back through JSON nothing is lost."""
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_a_class_of_tomorrow_reads_as_unknown():
    """What a newer version wrote is no error."""
    verdict = Verdict.from_json({"class": "BROWNOUT", "sentence": "dim", "extra": 1})
    assert verdict.cls is C.UNKNOWN
    assert verdict.sentence == "dim"


@pytest.mark.parametrize(
    "old",
    [
        "I use Xid 7 as my key",
        "retrying: [Errno 28] No space left on device",
        "W0101 Failed to connect to GCS within 5 s",
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    ],
)
def test_an_old_line_does_not_excuse_a_bug(old: str):
    """Case F9: the last traceback names the user's mistake; what was got over before is nothing."""
    verdict = last_word(ended(RUNNING, failed(1)), [old, *printed(ValueError("bad shape"))])
    assert verdict.cls is C.USER
    assert "ValueError: bad shape" in verdict.sentence


@pytest.mark.parametrize(
    ("tail", "cls"),
    [
        pytest.param(["Xid of the row: 12"], C.USER, id="a word of the user's"),
        pytest.param(["NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off"], C.INFRA, id="driver"),
        pytest.param(
            ["NVRM: Xid (PCI:0000): 79", *printed(RuntimeError("CUDA error: unknown error"))],
            C.INFRA,
            id="CUDA says that something failed",
        ),
        pytest.param(
            ["Failed to connect to GCS", "ray.exceptions.RaySystemError: System error"],
            C.INFRA,
            id="an error of Ray's",
        ),
    ],
)
def test_a_failed_gpu_is_known_by_its_driver(tail: list[str], cls: VerdictClass):
    """Case F9: `Xid` alone is anybody's word."""
    assert last_word(ended(RUNNING, failed(1)), tail).cls is cls


def test_a_driver_that_was_killed_was_most_often_out_of_memory():
    """Case F9: SIGKILL without a word from the kernel: unknown, with the likely cause and remedy."""
    verdict = last_word(ended(RUNNING, failed(137)), [])
    assert verdict.cls is C.UNKNOWN
    assert "most often out of memory" in verdict.sentence
    assert "more memory" in verdict.remedy


def test_what_a_traceback_says_it_came_from_counts() -> None:
    """A full disk under PyTorch's own error is the machine's fault; one that was got over is not."""
    tail = (
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in save',
        "OSError: [Errno 28] No space left on device",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "train.py", line 9, in main',
        "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0",
    )
    replay = ended(RUNNING, failed(1))
    assert last_word(replay, [*tail]).cls is C.INFRA
    assert last_word(replay, [*tail[:3], *tail[6:]]).cls is C.USER
