"""A rotation in the middle of a burst: each record comes twice, so no line is lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ml_pipelines.backends.kubeapi import KubeUnavailable
from ml_pipelines.backends.kuberay.gaps import Held
from ml_pipelines.backends.kuberay.podlog import PodLog
from ml_pipelines.clock import SystemClock
from ml_pipelines.errors import BackendUnavailable
from ml_pipelines.spec import ship_logs
from ml_pipelines.spec.ship_logs import Shipper, pieces, records
from ml_pipelines_tests.cluster import wait_for
from ml_pipelines_tests.test_log_container import DRIVER, TAG, Shipped

Copy = tuple[bytes, int, bytes]  # record, the offset where it begins, its bytes


class Body:
    """What one request is answered with."""

    def __init__(self, data: bytes, cut: int, size: int) -> None:
        self._data, self._cut, self._size = data, cut, size

    def __iter__(self) -> Iterator[bytes]:
        for at in range(0, self._cut, self._size):
            yield self._data[at : min(at + self._size, self._cut)]
        if self._cut < len(self._data):
            raise KubeUnavailable("reset", remedy="")

    def abort(self) -> None:
        """Nothing is open."""


class Server:
    """Answers each request for a log from its beginning, and cuts some of the answers."""

    clock = SystemClock()

    def __init__(self, data: bytes, rng: random.Random, cuts: int) -> None:
        self._data, self._rng = data, rng
        self._cuts = [rng.randrange(len(data)) for _ in range(cuts)]

    @contextmanager
    def stream(self, _path: str, **_options: Any) -> Iterator[Body]:
        """One request."""
        cut = self._cuts.pop() if self._cuts else len(self._data)
        yield Body(self._data, cut, self._rng.choice([7, 100, 1000]))


def copies(rng: random.Random, count: int) -> tuple[bytes, list[Copy]]:
    """A log, and its records."""
    made: list[Copy] = []
    log = b""
    for _ in range(count):
        line = b"line %d %s" % (len(log), b"=+ x" * rng.randrange(5))
        if rng.random() < 0.1:
            made.append((pieces(TAG, len(log), line)[0], len(log), line))
            log += line
        else:
            made.append((records(TAG, len(log), line + b"\n")[0], len(log), line + b"\n"))
            log += line + b"\n"
    return log, made


def runs(rng: random.Random, count: int) -> set[int]:
    """Some numbers below `count`, in runs."""
    found: set[int] = set()
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(count - 1)
        found |= set(range(at, min(at + rng.randrange(1, 12), count)))
    return found


def stream(made: list[Copy], lag: int, first: set[int], second: set[int]) -> bytes:
    """Both copies of all records, without the lost ones of each."""
    out = []
    for number in range(len(made) + lag):
        if number < len(made) and number not in first:
            out.append(made[number][0])
        if number >= lag and number - lag not in second:
            out.append(made[number - lag][0].replace(b" ", b"=", 1))
    return b"".join(out)


def read(data: bytes, rng: random.Random, cuts: int) -> list[tuple[int, bytes]]:
    """What a reader is told: runs of bytes and where each begins."""
    pod = PodLog(Server(data, rng, cuts), "log", TAG.decode(), start=0)  # type: ignore[arg-type]
    pod.is_over()
    told: list[tuple[int, bytes]] = []
    position = 0

    def reads() -> bool:
        nonlocal position
        was_over = pod.over
        try:
            chunk = pod.read("driver", position, rng.choice([10, 1 << 20]))
        except BackendUnavailable:
            return False
        if chunk.data and told and not chunk.lost:
            told[-1] = (told[-1][0], told[-1][1] + chunk.data)
        elif chunk.data:
            assert chunk.lost == chunk.start - position
            told.append((chunk.start, chunk.data))
        position = chunk.end
        return was_over and not chunk.data

    while not pod.over:
        reads()
    wait_for("the end", reads)
    return told


@pytest.mark.parametrize("seed", range(60))
def test_what_one_copy_loses_the_other_brings(seed: int) -> None:
    """Case D3: runs of records missing from either copy, never from both; cut streams."""
    rng = random.Random(seed)
    log, made = copies(rng, 200)
    first = runs(rng, 200)
    second = runs(rng, 200) - first
    data = stream(made, rng.choice([1, 5, 40]), first, second)
    assert read(data, rng, cuts=rng.choice([0, 0, 1])) == [(0, log)]


@pytest.mark.parametrize("seed", range(30))
def test_what_both_lose_is_told_exactly(seed: int) -> None:
    """Case D3: all that is left comes in order, each gap is as large as what is missing."""
    rng = random.Random(seed)
    log, made = copies(rng, 200)
    first, second = runs(rng, 200), runs(rng, 200) | {20, 21}
    first |= {20, 21}
    expected: list[tuple[int, bytes]] = []
    for number, (_, start, text) in enumerate(made):
        if number in first & second:
            continue
        if expected and expected[-1][0] + len(expected[-1][1]) == start:
            expected[-1] = (expected[-1][0], expected[-1][1] + text)
        else:
            expected.append((start, text))
    assert read(stream(made, 30, first, second), rng, cuts=0) == expected
    assert len(log) > sum(len(text) for _, text in expected)


def test_a_gap_waits_only_so_long() -> None:
    """Where no echo comes, the lines behind it are told all the same, while the pod runs on."""
    _, made = copies(random.Random(1), 9)
    data = b"".join(record for record, _, _ in made[3:])

    class Open(Server):
        @contextmanager
        def stream(self, _path: str, **_options: Any) -> Iterator[Any]:
            yield Endless(data)

    class Endless(Body):
        def __init__(self, data: bytes) -> None:
            super().__init__(data, len(data), 1 << 16)
            self.stopped = False

        def __iter__(self) -> Iterator[bytes]:
            yield self._data
            while not self.stopped:
                SystemClock().sleep(0.01)

        def abort(self) -> None:
            self.stopped = True

    server: Any = Open(data, random.Random(1), 0)
    pod = PodLog(server, "log", TAG.decode(), start=0, patience_s=1.0)
    wait_for("what is held", lambda: pod.read("driver", 0, 100).more)
    wait_for("what is behind", lambda: pod.read("driver", 0, 100).lost == made[3][1])
    pod.stop()


@pytest.mark.parametrize("seed", range(30))
def test_held_bytes_stay_in_order(seed: int) -> None:
    """However pieces overlap and come."""
    rng = random.Random(seed)
    log = rng.randbytes(300)
    held, have = Held(), set[int]()
    for _ in range(30):
        start, size = rng.randrange(300), rng.randrange(1, 40)
        held.add(start, log[start : start + size], 0.0)
        have |= set(range(start, min(start + size, 300)))
        assert held.size == len(have)
    while held.size:
        run = held.skip()
        assert bytes(run.data) == log[run.start : run.end]
        have -= set(range(run.start, run.end))
    assert not have


def test_all_is_written_twice_once_a_rotation_may_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of a small log; then each record, also what goes on, after the first, before the end.

    More than the ring may hold waits: no record loses its echo.
    """
    monkeypatch.setattr(ship_logs, "SAFE", 4000)
    monkeypatch.setattr(ship_logs, "ECHO_S", 0.05)
    monkeypatch.setattr(ship_logs, "RING", 100_000)
    shipped, path = Shipped(tmp_path), tmp_path / DRIVER
    lines = b"".join(b"%s 12 line = %d + \n" % (TAG, n) for n in range(20_000))
    path.write_bytes(b"small\n")
    shipped.shipper.scan()
    shipped.shipper.step()
    assert not shipped.shipper.ring
    with path.open("ab") as file:
        file.write(lines + b"x" * 20_000 + b"\nno end")
    shipped.shipper.finish()
    assert shipped.shipper.held == 0
    made = shipped.records()
    told = [one for one in made if one.startswith(TAG + b" ")]
    echoed = [one for one in made if one.startswith(TAG + b"=")]
    assert len(told) + len(echoed) == len(made)
    assert [one.replace(b"=", b" ", 1) for one in echoed] == told[1:]
    seen: set[bytes] = set()
    for one in made:
        if one.startswith(TAG + b"="):
            assert one.replace(b"=", b" ", 1) in seen
        seen.add(one)
    assert b"".join(_text(one) for one in told) == b"small\n" + lines + b"x" * 20_000 + b"\nno end"


def test_a_workers_log_is_echoed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records have their echo as the driver's have."""
    monkeypatch.setattr(ship_logs, "SAFE", 0)
    monkeypatch.setattr(ship_logs, "ECHO_S", 0.05)
    (tmp_path / "worker-aa-01000000-12.out").write_bytes(b"one\ntwo\n")
    shipped = Shipped(tmp_path, "worker")
    shipped.shipper.finish()
    assert shipped.records() == [
        b"worker 0 (pid=12) one",
        b"worker 13 (pid=12) two",
        b"worker=0 (pid=12) one",
        b"worker=13 (pid=12) two",
    ]
    assert isinstance(shipped.shipper, Shipper)


def _text(record: bytes) -> bytes:
    rest = record.split(b" ", 1)[1]
    number = rest[: len(rest) - len(rest.lstrip(b"0123456789"))]
    text = rest[len(number) + 1 :]
    return text + b"\n" if rest[len(number) : len(number) + 1] == b" " else text
