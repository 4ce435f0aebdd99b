"""The local backend keeps the contract on a real Ray, and survives what may be killed."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_pipelines.backends.local import LocalBackend, processes
from ml_pipelines.backends.local.record import HeadRecord, records
from ml_pipelines.clock import SystemClock
from ml_pipelines.spec.job import Code
from ml_pipelines_tests.backend_contract import Arena, BackendContract, words

IDLE_HEAD_S = 6.0

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    """A state folder; when it goes, its operator ends every head and itself."""
    folder = Path(tempfile.mkdtemp(prefix="mlp-test-"))
    yield folder / "state"
    heads = records(folder / "state" / "heads")
    shutil.rmtree(folder)
    for head in heads:
        processes.kill_all([], head.mark(), SystemClock())
        shutil.rmtree(head.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def arena(state: Path) -> Arena:
    clock = SystemClock()
    seen: dict[str, HeadRecord] = {}

    class Backend(LocalBackend):
        def delete(self, name: str, uid: str = "") -> None:
            seen.update({head.id: head for head in records(state / "heads")})
            super().delete(name, uid)

    def left_of(_name: str) -> list[str]:
        return [str(pid) for head in seen.values() for pid in processes.marked(head.mark())]

    return Arena(Backend(state, clock, idle_head_s=IDLE_HEAD_S), left_of, clock)


class TestLocalBackend(BackendContract):
    """The contract on this machine."""


def only_head(state: Path) -> HeadRecord:
    (head,) = [head for head in records(state / "heads") if head.here()]
    return head


def test_packed_code_travels(arena: Arena, tmp_path: Path):
    """A zip named by its content is the driver's working folder."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("train.py", "from lib import word\nprint(word)\n")
        archive.writestr("lib.py", "word = 'packed'\n")
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    path = tmp_path / f"{digest}.zip"
    path.write_bytes(packed.getvalue())
    code = Code(url=f"file://{path}", sha256=digest)
    with arena.job("python", "train.py", code=code) as name:
        arena.ended(name)
        assert "packed" in arena.lines(name)


def test_a_killed_operator_is_replaced_and_finds_the_job(arena: Arena, state: Path):
    """Case B6: the operator is SIGKILLed in mid-run; the next look starts one that goes on."""
    with arena.job("python", "-c", "import time; print('waiting'); time.sleep(4)") as name:
        before = arena.running(name)
        (operator,) = operators(state)
        os.kill(operator, signal.SIGKILL)
        seen = arena.ended(name)
        assert words(seen) == ("SUCCEEDED", "Complete", "")
        assert before.rayjob is not None
        assert seen.rayjob is not None
        assert seen.rayjob.job_id == before.rayjob.job_id
        assert operators(state) not in ([], [operator])


def test_a_killed_head_is_reported(arena: Arena, state: Path):
    """Cases D4, B12: a head SIGKILLed in mid-run ends the attempt; no stray and the log are left."""
    with arena.job() as name:
        arena.running(name)
        head = only_head(state)
        os.kill(head.pid, signal.SIGKILL)
        seen = arena.until(name, lambda seen: words(seen)[1] == "Failed", seconds=10)
        assert words(seen) == ("RUNNING", "Failed", "JobStatusCheckTimeoutExceeded")
        assert seen.cluster is not None
        assert seen.cluster.conditions["HeadPodReady"][0] == "False"
        assert [pod.phase for pod in seen.pods if pod.role == "head"] == ["Failed"]
        assert "waiting" in arena.lines(name)
        assert processes.marked(head.mark()) == []
        assert not Path(head.folder).exists()


def test_an_idle_head_ends_and_the_operator_after_it(arena: Arena, state: Path):
    """No Ray process stays behind: the head ends after its idle time, then the operator."""
    with arena.job("true") as name:
        arena.ended(name)
        head = only_head(state)
    clock = arena.clock
    deadline = clock.monotonic() + IDLE_HEAD_S + 20
    while processes.marked(head.mark()) or operators(state):
        assert clock.monotonic() < deadline
        clock.sleep(0.2)
    assert not Path(head.folder).exists()
    assert records(state / "heads") == []


def operators(state: Path) -> list[int]:
    """Pids of the operators of that folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            argv = (process / "cmdline").read_bytes().split(b"\0")
        except (OSError, NotADirectoryError):
            continue
        if b"ml_pipelines.backends.local.operator" in argv and str(state).encode() in argv:
            found.append(int(process.name))
    return found
