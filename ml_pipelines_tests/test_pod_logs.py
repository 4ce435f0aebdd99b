"""The log of a pod through the log API: each line once, whatever becomes of the stream."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ml_pipelines.backends.kubeapi import Api, connect, path_of
from ml_pipelines.backends.kuberay.logs import JobLogs, driver_tag
from ml_pipelines.backends.kuberay.podlog import PodLog
from ml_pipelines.backends.logs import LineAssembler
from ml_pipelines.clock import SystemClock
from ml_pipelines.errors import BackendUnavailable
from ml_pipelines_tests.cluster import wait_for
from ml_pipelines_tests.fake_kube import END, RESET, FakeKube, FakeLog, Fault

TAG = "14a5f0d7"
PATH = path_of("pods", "ads", "head-1", "log")
WAITING = 'container "log" in pod "head-1" is waiting to start: PodInitializing'


@pytest.fixture
def kube() -> Iterator[FakeKube]:
    with FakeKube() as server:
        yield server


@pytest.fixture
def api(kube: FakeKube, tmp_path: Path) -> Iterator[Api]:
    found = connect(clock=SystemClock(), environ={"KUBECONFIG": str(kube.kubeconfig(tmp_path))})
    yield found
    found.close()


@pytest.fixture
def log(kube: FakeKube) -> FakeLog:
    return kube.log("ads", "head-1", "log")


class Reader:
    """Reads one pod's log as the lifecycle does."""

    def __init__(self, api: Api, start: int = 0, **options: float) -> None:
        self.pod = PodLog(api, PATH, TAG, start=start, **options)  # type: ignore[arg-type]
        self.lines = LineAssembler(start=start)
        self.texts: list[str] = []
        self.troubles: list[str] = []

    def read(self, limit: int = 1 << 20) -> list[str]:
        try:
            chunk = self.pod.read("driver", self.lines.position, limit)
        except BackendUnavailable as error:
            self.troubles.append(error.message)
            return self.texts
        self.texts += [line.text for line in self.lines.feed_chunk(chunk)]
        return self.texts

    def until(self, count: int) -> list[str]:
        wait_for(f"{count} lines", lambda: len(self.read()) >= count, timeout_s=20)
        return self.texts


def records(texts: list[str], start: int = 0) -> list[bytes]:
    """The container's records of lines that begin at `start`."""
    made, at = [], start
    for text in texts:
        made.append(f"{TAG} {at} {text}\n".encode())
        at += len(text.encode()) + 1
    return made


LINES = [f"line {n}" for n in range(9)]
SAME = ["one", "same", "same", "same", "last"]


@pytest.mark.parametrize("how", [END, RESET])
def test_an_end_in_mid_run_costs_no_line(kube: FakeKube, api: Api, log: FakeLog, how: str) -> None:
    """Cases D1, D2: clean ends and resets, once in the middle of a line, among equal lines."""
    made = records(SAME)
    reader = Reader(api)
    log.write(b"".join(made[:3]) + made[3][:11])
    reader.until(3)
    kube.end_streams(how=how, part="/log")
    wait_for("a second stream", lambda: len(kube.requests("GET", "/log")) == 2)
    log.write(made[3][11:] + made[4])
    assert reader.until(5) == SAME
    kube.end_streams(how=how, part="/log")
    wait_for("a third stream", lambda: len(kube.requests("GET", "/log")) == 3)
    log.write(records(["after"], 24)[0])
    assert reader.until(6) == [*SAME, "after"]
    reader.pod.stop()


def test_a_stream_that_falls_silent_is_opened_again(kube: FakeKube, api: Api, log: FakeLog) -> None:
    """Case D3: open, no bytes, and the pod writes on."""
    reader = Reader(api, stall_s=0.3)
    made = records(LINES)
    log.write(made[0])
    reader.until(1)
    log.stall()
    log.write(b"".join(made[1:]))
    wait_for("another stream", lambda: len(kube.requests("GET", "/log")) > 1)
    log.stall(on=False)
    assert reader.until(9) == LINES
    reader.pod.stop()


def test_what_was_rotated_away_is_told(api: Api, log: FakeLog) -> None:
    """Case D3: the kubelet serves the newest file only; the gap stands in the log."""
    log.write(b"".join(records(["new"], 500)))
    reader = Reader(api, start=100)
    assert reader.until(2) == ["[400 bytes of the log are lost]", "new"]
    reader.pod.stop()


def test_a_takeover_reads_exactly_from_where_the_one_before_ended(api: Api, log: FakeLog) -> None:
    """Also from the middle of a record; what is before is passed over."""
    log.write(b"".join(records(LINES)))
    for start, first in ((0, "line 0"), (7, "line 1"), (9, "ne 1"), (56, "line 8")):
        reader = Reader(api, start=start)
        wait_for("the last line", lambda: "line 8" in reader.read())  # noqa: B023
        assert reader.texts[0] == first
        reader.pod.stop()


def test_one_may_read_again_from_further_back(api: Api, log: FakeLog) -> None:
    """A cancel keeps the log from where it is kept, behind what the loop has told."""
    log.write(b"".join(records(LINES)))
    reader = Reader(api)
    reader.until(9)
    reader.pod.read("driver", reader.lines.position, 100)
    reader.lines, reader.texts = LineAssembler(start=7), []
    assert reader.until(8) == LINES[1:]
    reader.pod.stop()


def silence(reader: Reader) -> float:
    """How long the log has been silent, when nothing new is there."""
    return reader.pod.read("driver", reader.lines.position, 100).silent_s


def test_silence_counts_only_while_the_log_is_followed(
    kube: FakeKube, api: Api, log: FakeLog
) -> None:
    """Not while its stream is opened; and once its container is over, all that is there has come."""
    kube.script("GET", "/log", *[Fault(status=400, reason="BadRequest", message=WAITING)] * 3)
    log.write(b"".join(records(LINES)))
    reader = Reader(api, start=63)
    assert silence(reader) == 0.0
    wait_for("it is followed", lambda: silence(reader) > 1.0)
    log.write(b"".join(records(LINES)))  # known already, and yet something that comes
    wait_for("it was heard", lambda: silence(reader) < 0.5)
    log.end()
    reader.pod.is_over()
    wait_for("its end", lambda: silence(reader) == math.inf)
    assert reader.texts == []
    reader.pod.stop()


def test_the_end_of_its_writing_is_the_end_once_all_has_come(api: Api, log: FakeLog) -> None:
    """Told by the container; not where more was written since, and not to who is behind."""
    end = f"# {TAG} ends at %d\n".encode()
    log.write(end % 0 + b"".join(records(LINES[:4])) + f"# {TAG} ends at x\n".encode())
    reader = Reader(api)
    reader.until(4)
    assert silence(reader) < math.inf
    assert not reader.pod.ended
    log.write(end % 28)
    wait_for("its end", lambda: silence(reader) == math.inf)
    assert reader.pod.ended
    log.write(b"".join(records(LINES[4:], 28)))
    reader.until(9)
    assert silence(reader) < math.inf
    log.write(end % 63)
    wait_for("its other end", lambda: silence(reader) == math.inf)
    assert reader.texts == LINES
    reader.pod.stop()


def test_last_lines_that_were_lost_are_told(api: Api, log: FakeLog) -> None:
    """No line comes behind them that would show the gap: the end does."""
    log.write(b"".join(records(LINES[:4])) + f"# {TAG} ends at 63\n".encode())
    reader = Reader(api)
    assert reader.until(5) == [*LINES[:4], "[35 bytes of the log are lost]"]
    assert silence(reader) == math.inf
    reader.pod.stop()


def test_what_is_asked_for_at_the_very_end_is_read_again(
    kube: FakeKube, api: Api, log: FakeLog
) -> None:
    """A cancel reads from further back while the stream's end is being noted."""
    log.write(b"".join(records(LINES)))
    for _ in range(5):
        log.ended = False
        reader = Reader(api, start=63)
        wait_for("it is followed", lambda: silence(reader) > 0.0)  # noqa: B023
        log.end()
        reader.pod.is_over()
        reader.lines = LineAssembler(start=0)
        assert reader.until(9) == LINES
        reader.pod.stop()


def head_pod(name: str, made: str) -> dict[str, Any]:
    """A head whose log container runs."""
    labels = {"ray.io/cluster": "c1", "ray.io/node-type": "head"}
    log = {"name": "log", "state": {"running": {"startedAt": made}}}
    return {
        "metadata": {"name": name, "creationTimestamp": made, "labels": labels},
        "status": {"phase": "Running", "initContainerStatuses": [log]},
    }


def test_a_head_replaced_before_the_driver_began(kube: FakeKube, api: Api) -> None:
    """The new head tells the driver's log; once a line has come, no other head is asked."""
    rayjob = {"status": {"rayClusterName": "c1", "jobId": "j1"}}
    tag = driver_tag("j1")
    old, new = (
        head_pod("head-1", "2026-01-01T00:00:00Z"),
        head_pod("head-2", "2026-01-01T00:01:00Z"),
    )
    newest = head_pod("head-3", "2026-01-01T00:02:00Z")
    told = {name: kube.log("ads", name, "log") for name in ("head-1", "head-2", "head-3")}
    logs, pods = JobLogs(api), [old]

    def read() -> bytes:
        return logs.read("job", "driver", 0, 100, rayjob=rayjob, pods=pods).data

    assert read() == b""
    pods += [new]
    told["head-2"].write(f"{tag} 0 hello\n".encode())
    wait_for("its line", lambda: read() == b"hello\n")
    pods += [newest]
    told["head-3"].write(f"{tag} 0 other\n".encode())
    assert read() == b"hello\n"
    assert not kube.requests("GET", "/head-3/log")
    logs.close()


def test_waits_for_a_container_that_has_not_begun(kube: FakeKube, api: Api, log: FakeLog) -> None:
    """Cases D12, D15: 400 PodInitializing is no trouble; its container is always named."""
    kube.script("GET", "/log", *[Fault(status=400, reason="BadRequest", message=WAITING)] * 3)
    log.write(b"".join(records(LINES)))
    reader = Reader(api)
    assert reader.read() == []
    assert reader.until(9) == LINES
    assert reader.troubles == []
    assert all(asked.query["container"] == "log" for asked in kube.requests("GET", "/log"))
    reader.pod.stop()


def test_a_pod_that_went_before_the_last_read_is_told_once(kube: FakeKube, api: Api) -> None:
    """Case D4: 404 on the log; a warning, no error, and the thread ends."""
    reader = Reader(api)
    wait_for("the end", lambda: reader.read() == [] and reader.pod.over)
    reader.read()
    reader.read()
    assert len(reader.troubles) == 1
    assert "404" in reader.troubles[0]
    assert reader.pod.joined(5)
    assert len(kube.requests("GET", "/log")) == 3


def test_the_end_of_its_container_is_the_end(kube: FakeKube, api: Api, log: FakeLog) -> None:
    """Read once more, to the last line, then nothing is asked again."""
    log.write(b"".join(records(LINES)))
    log.end()
    reader = Reader(api)
    assert reader.until(9) == LINES
    reader.pod.is_over()
    assert reader.pod.joined(10)
    asked = len(kube.requests("GET", "/log"))
    assert reader.read() == LINES
    assert asked <= 3
    assert len(kube.requests("GET", "/log")) == asked


def test_an_api_server_that_comes_back_is_followed_again(
    kube: FakeKube, api: Api, log: FakeLog
) -> None:
    """503 for a while: the trouble is told at most, each line comes once."""
    made = records(LINES)
    reader = Reader(api)
    log.write(b"".join(made[:4]))
    reader.until(4)
    kube.script("GET", "/log", *[Fault(status=503, reason="ServiceUnavailable")] * 4)
    kube.end_streams(how=RESET, part="/log")
    log.write(b"".join(made[4:]))
    assert reader.until(9) == LINES
    reader.pod.stop()


def test_nobody_reads_and_memory_stays_bounded(api: Api, log: FakeLog) -> None:
    """Back-pressure: the thread waits where enough lies in the buffer, and loses nothing."""
    texts = [f"line {n} " + "x" * 1000 for n in range(3000)]
    for start in range(0, 3000, 100):
        made, at = [], sum(len(text) + 1 for text in texts[:start])
        made = records(texts[start : start + 100], at)
        log.write(b"".join(made))
    reader = Reader(api, room=200_000)
    wait_for("a full buffer", lambda: reader.pod.held >= 200_000)
    assert reader.pod.held < 200_000 + 2 * (1 << 16)
    assert reader.until(3000) == texts
    reader.pod.stop()


def test_only_the_driver_that_is_ours(api: Api, log: FakeLog) -> None:
    """Another job's driver on the same head, comments and half records are passed over."""
    made = records(LINES)
    noise = b"# 14a5f0d7 job-driver-a.log\n#\nffffffff 0 other\n14a5f0d7\nrubbish\n"
    log.write(noise + noise.join(made))
    reader = Reader(api)
    assert reader.until(9) == LINES
    reader.pod.stop()


def test_long_lines_and_odd_bytes_come_whole(api: Api, log: FakeLog) -> None:
    """Cases D7, D10: pieces of a long line are one line; bytes that are no text stay apart."""
    long = b"x" * 8000
    log.write(b"%s 0+%s\n%s 8000 tail\n" % (TAG.encode(), long, TAG.encode()))
    log.write(b"%s 8005 \xe2\x96\x88 \xe2 50%%\r100%%\n" % TAG.encode())
    log.write(b"%s 8020+no end" % TAG.encode() + b"\n")
    reader = Reader(api)
    reader.until(2)
    wait_for("the rest", lambda: reader.read() and reader.lines.position == 8026)
    texts = reader.texts + [line.text for line in reader.lines.flush()]
    assert texts == ["x" * 8000 + "tail", "100%", "no end"]
    reader.pod.stop()
