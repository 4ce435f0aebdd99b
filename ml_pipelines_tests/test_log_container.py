"""The container beside Ray: what its script writes of Ray's files, and how it stands in a pod."""

from __future__ import annotations

import ast
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ml_pipelines.spec import ship_logs
from ml_pipelines.spec.logship import CONTAINER, add_log_container
from ml_pipelines.spec.ship_logs import Shipper
from ml_pipelines_tests.cluster import wait_for

TEXT = Path(ship_logs.__file__).read_text(encoding="utf-8")
DRIVER = "job-driver-a-b1.log"
TAG = b"%08x" % zlib.crc32(DRIVER.encode())


class Shipped:
    """A shipper over a folder, and the records that it wrote."""

    def __init__(self, folder: Path, role: str = "head") -> None:
        self._out = folder / "stdout"
        self.shipper = Shipper(role, folder, os.open(self._out, os.O_WRONLY | os.O_CREAT))

    def records(self) -> list[bytes]:
        return [line for line in self._out.read_bytes().split(b"\n")[:-1] if line[:1] != b"#"]

    def log(self) -> bytes:
        """The log as its records tell it; each must begin where the one before ended."""
        log = b""
        for record in self.records():
            tag, rest = record.split(b" ", 1)
            number = rest[: len(rest) - len(rest.lstrip(b"0123456789"))]
            assert tag in {TAG, b"worker"}
            assert int(number) == len(log)
            end = b"\n" if rest[len(number) : len(number) + 1] == b" " else b""
            log += rest[len(number) + 1 :] + end
        return log


def test_any_rays_python_can_run_it() -> None:
    """Ray images begin with Python 3.9, and hold nothing of ours."""
    tree = ast.parse(TEXT, feature_version=(3, 9))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
        )
    }
    assert imported <= sys.stdlib_module_names


@pytest.mark.parametrize("seed", range(30))
def test_the_records_hold_every_byte_once(tmp_path: Path, seed: int) -> None:
    """However the driver writes: half lines, long lines, empty ones, bytes that are no text."""
    rng = random.Random(seed)
    shipped, written = Shipped(tmp_path), b""
    with (tmp_path / DRIVER).open("ab", buffering=0) as file:
        for _ in range(40):
            size = rng.choice([0, 1, 7, 90, 7999, 8000, 8001, 20_000, 70_000])
            data = bytes(rng.choice(b"ab\xff\xe2 \r") for _ in range(min(size, 50)))
            data = (data * (size // max(len(data), 1) + 1))[:size] + rng.choice([b"", b"\n"])
            file.write(data)
            written += data
            if rng.random() < 0.5:
                shipped.shipper.scan()
                shipped.shipper.step()
    shipped.shipper.finish()
    assert shipped.log() == written
    assert max(map(len, shipped.records())) < 8192


def test_a_file_that_is_truncated_or_replaced_goes_on(tmp_path: Path) -> None:
    """Its log never goes back: what is new has new places."""
    path, shipped = tmp_path / DRIVER, Shipped(tmp_path)
    path.write_bytes(b"first\n")
    shipped.shipper.scan()
    while shipped.shipper.step():
        pass
    path.write_bytes(b"cut\n")
    shipped.shipper.scan()
    while shipped.shipper.step():
        pass
    with path.open("ab") as file:
        file.write(b"old end\n")
    path.rename(tmp_path / "job-driver-a-b1.log.1")
    path.write_bytes(b"new\n")
    for _ in range(2):
        while shipped.shipper.step():
            pass
        shipped.shipper.scan()
    shipped.shipper.finish()
    assert shipped.log() == b"first\ncut\nold end\nnew\n"


def test_a_workers_files_are_one_log_of_whole_lines(tmp_path: Path) -> None:
    """Each line says who wrote it; what Ray writes for itself is left out."""
    shipped = Shipped(tmp_path, "worker")
    out = tmp_path / "worker-aa-01000000-12.out"
    err = tmp_path / "worker-bb-01000000-34.err"
    out.write_bytes(b":job_id:01000000\n:actor_name:Trainer\nhalf a ")
    err.write_bytes(b"warning\n")
    shipped.shipper.scan()
    shipped.shipper.step()
    with out.open("ab") as file:
        file.write(b"line\nno end")
    shipped.shipper.finish()
    lines = shipped.log().splitlines()
    assert sorted(lines) == [
        b"(Trainer pid=12) half a line",
        b"(Trainer pid=12) no end",
        b"(pid=34) warning",
    ]


def open_in(folder: Path) -> set[str]:
    """Names of the files there that this process holds open to read."""
    links = list(Path("/proc/self/fd").iterdir())  # one of them is that listing's own, gone by now
    paths = [link.readlink() for link in links if link.is_symlink()]
    return {path.name for path in paths if path.parent == folder and path.name != "stdout"}


def test_a_workers_silent_file_is_closed_and_read_on_when_it_grows(tmp_path: Path) -> None:
    """Dead processes cost no descriptor; each byte comes once, also of files that begin anew."""
    shipped = Shipped(tmp_path, "worker")
    shipped.shipper.kind.rest_s = -1.0  # at once
    grown, cut, replaced = (tmp_path / f"worker-{a}-01000000-{a}.out" for a in "123")
    for path in (grown, cut, replaced):
        path.write_bytes(b":actor_name:A\nfirst and long\nhalf ")
    shipped.shipper.scan()
    assert len(open_in(tmp_path)) == 3
    shipped.shipper.step()
    shipped.shipper.scan()
    assert open_in(tmp_path) == set()
    shipped.shipper.scan()
    assert open_in(tmp_path) == set()

    with grown.open("ab") as file:
        file.write(b"a line\n")
    cut.write_bytes(b"cut\n")
    replaced.rename(tmp_path / "old")
    replaced.write_bytes(b"is new, and longer than the old one was\n")
    shipped.shipper.kind.rest_s = 60.0
    shipped.shipper.scan()
    assert open_in(tmp_path) == {grown.name, cut.name, replaced.name}
    shipped.shipper.step()
    with grown.open("ab") as file:
        file.write(b"the end")
    shipped.shipper.finish()
    assert sorted(shipped.log().splitlines()) == [
        b"(A pid=1) first and long",
        b"(A pid=1) half a line",
        b"(A pid=1) the end",
        b"(A pid=2) first and long",
        b"(A pid=2) half cut",
        b"(A pid=3) first and long",
        b"(A pid=3) half is new, and longer than the old one was",
    ]


def test_what_is_not_read_yet_is_not_let_go(tmp_path: Path) -> None:
    """A reader that is slow for minutes: a file that is replaced meanwhile is read to its end."""
    shipped = Shipped(tmp_path, "worker")
    shipped.shipper.kind.rest_s = -1.0
    path = tmp_path / "worker-1-01000000-1.out"
    path.write_bytes(b"old\n")
    shipped.shipper.scan()
    shipped.shipper.scan()
    path.rename(tmp_path / "old")
    path.write_bytes(b"new\n")
    shipped.shipper.step()
    shipped.shipper.finish()
    assert shipped.log() == b"(pid=1) old\n(pid=1) new\n"


@pytest.mark.parametrize("role", ["head", "worker"])
def test_a_container_that_was_started_again_says_so(tmp_path: Path, role: str) -> None:
    """A worker's files are merged anew: told behind all of them, where each reader comes by."""
    name = DRIVER if role == "head" else "worker-1-01000000-1.out"
    first = Shipped(tmp_path, role)
    (tmp_path / name).write_bytes(b"before\n")
    first.shipper.scan()
    first.shipper.finish()
    whole = first.log()
    assert b"started again" not in whole

    (tmp_path / "stdout").unlink()
    hour = time.time() - 3600
    os.utime(tmp_path / name, (hour, hour))
    second = Shipped(tmp_path, role)
    second.shipper.scan()
    while second.shipper.step():
        pass
    with (tmp_path / name).open("ab") as file:
        file.write(b"after\n")
    second.shipper.finish()
    told = second.log().removeprefix(whole).splitlines()
    said = b"[the log container was started again: lines before this one may be missing or "
    said += b"stand twice]"
    assert told == ([b"after"] if role == "head" else [said, b"(pid=1) after"])


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The script as the container runs it, over another folder."""
    text = TEXT.replace("/tmp/ray/session_latest/logs", str(folder))
    command = [sys.executable, "-ISuc", text, "head"]
    with (
        (folder.parent / "out").open("wb") as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def test_it_starts_before_ray_and_ends_after_it(tmp_path: Path) -> None:
    """Files appear later; at SIGTERM what is left is written, and it ends well and at once."""
    folder, out = tmp_path / "logs", tmp_path / "out"
    with running(folder) as process:
        wait_for("its start", out.exists)
        folder.mkdir()
        (folder / DRIVER).write_bytes(b"hello\n")
        wait_for("the first line", lambda: TAG + b" 0 hello\n" in out.read_bytes(), timeout_s=10)
        with (folder / DRIVER).open("ab") as file:
            file.write(b"last words")
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
        assert TAG + b" 6+last words\n" in out.read_bytes()


def written(shipped: Shipped, folder: Path) -> list[bytes]:
    """All that it wrote, comments too, once nothing more comes."""
    while shipped.shipper.step():
        pass
    return (folder / "stdout").read_bytes().splitlines()


def test_the_end_of_a_drivers_log_is_told_once_its_last_writer_closed_it(tmp_path: Path) -> None:
    """Its children write on after it; Ray's own open file of it says nothing of the driver."""
    path, shipped = tmp_path / DRIVER, Shipped(tmp_path)
    ends = b"# " + TAG + b" ends at %d"
    with path.open("ab", buffering=0) as rays:
        rays.write(b"setting up\n")
        shipped.shipper.scan()
        command = "exec 3<&0; echo one; (read line <&3; echo two; printf three) &"
        with (
            path.open("ab", buffering=0) as out,
            subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, stdout=out) as driver,
        ):
            out.close()
            driver.wait(10)
            assert driver.stdin is not None
            wait_for("its line", lambda: written(shipped, tmp_path)[-1].endswith(b" one"))
            shipped.shipper.scan()
            assert written(shipped, tmp_path)[-1].endswith(b" one")
            driver.stdin.write(b"go on\n")
            driver.stdin.close()
            wait_for("its end", lambda: written(shipped, tmp_path)[-1] == ends % 24)
        assert written(shipped, tmp_path).count(ends % 24) == 1
        rays.write(b"!\n")
        assert written(shipped, tmp_path)[-1] == TAG + b" 24 !"
    wait_for("the end after that", lambda: written(shipped, tmp_path)[-1] == ends % 26)
    shipped.shipper.finish()
    assert shipped.log() == b"setting up\none\ntwo\nthree!\n"


def test_without_inotify_no_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel or a Python without it: the log is followed as ever."""
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    shipped = Shipped(tmp_path)
    (tmp_path / DRIVER).write_bytes(b"hello\n")
    shipped.shipper.scan()
    assert written(shipped, tmp_path)[-1] == TAG + b" 0 hello"


def test_it_is_a_sidecar_of_the_restricted_kind() -> None:
    """It can't make its pod fail or stay: it restarts, and ends after Ray; it may only read."""
    spec: dict[str, Any] = {"containers": [{"name": "ray-head", "image": "an/image:1"}]}
    add_log_container(spec, "head", {"allowPrivilegeEscalation": False})
    (log,) = spec["initContainers"]
    assert log["name"] == CONTAINER
    assert log["image"] == "an/image:1"
    assert log["restartPolicy"] == "Always"
    assert log["resources"]["requests"] == log["resources"]["limits"]
    assert log["securityContext"]["readOnlyRootFilesystem"] is True
    assert log["volumeMounts"] == [{"name": "ray-logs", "mountPath": "/tmp/ray", "readOnly": True}]
    assert [container["name"] for container in spec["containers"]] == ["ray-head"]
