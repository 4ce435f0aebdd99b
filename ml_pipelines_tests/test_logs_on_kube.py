"""Logs of real pods, while the dashboard and then the head die, and one reader follows another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ml_pipelines.backends import rayjob
from ml_pipelines.backends.kubeapi import connect
from ml_pipelines.backends.kuberay import KubeRayBackend
from ml_pipelines.backends.logs import LineAssembler
from ml_pipelines.clock import SystemClock
from ml_pipelines.errors import BackendUnavailable
from ml_pipelines.spec.pools import Pools
from ml_pipelines_tests.cluster import Namespace, wait_for
from ml_pipelines_tests.rayjob_manifests import manifest

pytestmark = pytest.mark.kube

LINES = 200_000  # more than the kubelet keeps in one file
DRIVER = f"""
import subprocess, sys, time, ray

@ray.remote(num_cpus=1)
def work():
    print("from a worker", flush=True)

ray.get(work.remote())
subprocess.run(["pkill", "-f", "dashboard/dashboar[d].py"])
for n in range({LINES}):
    sys.stdout.write("line %d of many, of some length, as drivers write them\\n" % n)
sys.stdout.flush()
time.sleep(5)
print("before the blow", flush=True)
subprocess.run(["pkill", "-9", "gcs_server"])
print("after it\\nhalf a line", end="", flush=True)  # one write: Ray's end may come at any moment
time.sleep(60)
"""
SMALL = {"head": {"pool": "cpu", "memory": "1Gi"},
         "workers": [{"name": "w", "pool": "gpu", "gpus": 0, "cpu": "250m", "memory": "1Gi"}]}  # fmt: skip

Connect = Callable[[], KubeRayBackend]


@pytest.fixture
def connected(namespace: Namespace) -> Iterator[Connect]:
    """Each call is another process's backend."""
    made: list[KubeRayBackend] = []

    def backend() -> KubeRayBackend:
        clock = SystemClock()
        api = connect(namespace=namespace.name, clock=clock)
        made.append(KubeRayBackend(api, clock))
        return made[-1]

    yield backend
    for one in made:
        one.close()


class Reader:
    """One source of one RayJob, read as the lifecycle does."""

    def __init__(self, backend: KubeRayBackend, name: str, source: str, start: int = 0) -> None:
        self._backend, self._name, self._source = backend, name, source
        self.lines = LineAssembler(start=start)
        self.texts: list[str] = []
        self.data = bytearray()

    def read(self) -> list[str]:
        """All that is there by now: who reads slowly may lose what goes with its pod."""
        while True:
            try:
                chunk = self._backend.read_log(
                    self._name, self._source, self.lines.position, 1 << 20
                )
            except BackendUnavailable:
                return self.texts
            self.texts += [line.text for line in self.lines.feed_chunk(chunk)]
            self.data += chunk.data
            if not chunk.data:
                return self.texts

    def until(self, text: str, timeout_s: float) -> list[str]:
        wait_for(text, lambda: text in self.read(), timeout_s=timeout_s)
        return self.texts

    def until_bytes(self, wanted: bytes, timeout_s: float) -> None:
        """Also of a line that has no end: Ray may write of its own death behind it."""
        try:
            wait_for(repr(wanted), lambda: self.read() and wanted in self.data, timeout_s=timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; the log ends {bytes(self.data[-500:])!r}") from None


@pytest.mark.timeout(300)
def test_what_was_written_is_read_once(
    namespace: Namespace, pools: Pools, connected: Connect, tmp_path: Path
) -> None:
    """Cases D1, D3, D4, D6: a dead dashboard, a rotated file, a takeover, a dead head."""
    made = manifest("logs", ["python", "-c", DRIVER], cluster=SMALL, of=pools)
    name = rayjob.name(made)
    first = connected()
    first.create(made)
    reader = Reader(first, name, "driver")
    reader.until("line 5000 of many, of some length, as drivers write them", 180)
    worker = next(pod.name for pod in first.observe(name).pods if pod.role == "worker")
    with closing(connected()) as second:
        taken = Reader(second, name, "driver", start=reader.lines.cursor)
        taken.until_bytes(b"\nafter it\nhalf a line", 160)
        told = [text for text in reader.texts + taken.texts if text.startswith("line ")]
        assert told == [f"line {n} of many, of some length, as drivers write them"
                        for n in range(LINES)]  # fmt: skip
        assert [text for text in taken.texts if "lost" in text] == []
        working = Reader(second, name, f"worker/{worker}")
        wait_for("the worker's line", working.read, timeout_s=20)
        assert working.texts[0].endswith(") from a worker")
    namespace.kubectl("delete", "rayjob", name, timeout_s=120)
