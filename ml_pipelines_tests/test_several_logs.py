"""An attempt with several logs: of its driver's starts, and of its workers; streams that lag."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ml_pipelines import lifecycle, settings
from ml_pipelines.backends.base import LogChunk
from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import InvalidInput
from ml_pipelines.job.events import JobEnded, LogLine, Notice
from ml_pipelines.job.observation import Observation, PodView
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import VerdictClass
from ml_pipelines.journal.lease import Observer, Process
from ml_pipelines.lifecycle import Platform
from ml_pipelines.lifecycle.logkeeping import (
    LogKeeper,
    driver_source,
    kept_chunks,
    kept_log,
    kept_sources,
)
from ml_pipelines.spec.job import JobSpec, Limits
from ml_pipelines.spec.pools import load_pools
from ml_pipelines.storage import open_store
from ml_pipelines_tests.fake_backend import RUNS_ON, FakeBackend, succeeds
from ml_pipelines_tests.plain_store import PlainStore

KEY = "train-2026-01-01-0123456789"
SPEC = JobSpec(name="train", entrypoint=("python", "train.py"))
ONE = b"".join(b"first %d\n" % n for n in range(20)) + b"evicted"
TWO = b"".join(b"second %d\n" % n for n in range(40)) + b"last words"
WORKER = b"(pid=7) hello\n(pid=7) bye\n"


@dataclass
class Streaming(FakeBackend):
    """Logs as streams, which lag; a queue evicts the driver after `evicted_s`."""

    name: str = "kuberay"
    streams_logs: bool = True
    lag_s: float = 0.3
    evicted_s: float = 1e9
    loses: int = 0
    workers: int = 1
    closes: bool = False  # whether the end of a log is known
    bytes_s: int = 40
    first: bytes = ONE  # what the first driver writes
    opens_s: float = 0.0  # so long after the job began a stream tells nothing
    asked: list[str] = field(default_factory=list)
    heard_at: dict[str, float] = field(default_factory=dict)

    def observe(self, name: str) -> Observation:
        seen = super().observe(name)
        if seen.rayjob is None:
            return seen
        number = 2 if self._elapsed(name) > self.evicted_s else 1
        view = replace(seen.rayjob, cluster_name=f"c{number}", job_id=f"{name}-{number}")
        head = replace(seen.pods[0], ships_log=True)
        names = [f"w{number}", *(f"w{number}-{other}" for other in range(1, self.workers))]
        names = names[: self.workers]
        workers = (PodView(name=one, uid=one, role="worker", ships_log=True) for one in names)
        return replace(seen, rayjob=view, pods=(head, *workers))

    def read_log(self, name: str, source: str, offset: int, limit: int) -> LogChunk:
        self.asked.append(source)
        whole = {"driver/c1": self.first, "driver/c2": TWO}.get(source, WORKER)
        began = self.evicted_s if source == "driver/c2" else 0.0
        if self._elapsed(name) < self.opens_s:
            return LogChunk(source, offset, b"", silent_s=0.0)
        come = int(max(self._elapsed(name) - self.lag_s - began, 0) * self.bytes_s)
        start = max(offset, self.loses) if source == "driver/c1" else offset
        data = whole[start : min(come, start + limit)]
        lost = start - offset if data else 0
        now = self.clock.monotonic()
        heard = now if data else self.heard_at.setdefault(source, now)
        self.heard_at[source] = heard
        if data:
            return LogChunk(source, start, data, lost=lost)
        closed = self.closes and offset == len(whole)
        return LogChunk(source, offset, b"", silent_s=math.inf if closed else now - heard)

    def _elapsed(self, name: str) -> float:
        job = self.jobs.get(name)
        return self.clock.monotonic() - job.created if job else 1e6


@pytest.fixture
def make(tmp_path: Path, clock: FakeClock) -> Callable[[FakeBackend], Platform]:
    """A platform over one run storage; each call is another process."""

    def platform(backend: FakeBackend) -> Platform:
        store = open_store(f"file://{tmp_path}/runs")
        loaded = settings.load({"MLP_HOME": str(tmp_path)})
        process, observer = Process(store, clock, threaded=False), Observer(store, clock)
        return Platform(store, backend, load_pools(), clock, process, loaded, observer=observer)

    return platform


Make = Callable[[FakeBackend], Platform]


def run(platform: Platform) -> tuple[list[str], JobEnded]:
    """The driver's lines as they are told, and the end."""
    job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)
    events = list(lifecycle.follow(job, platform=platform))
    assert isinstance(events[-1], JobEnded)
    return [event.text for event in events if isinstance(event, LogLine)], events[-1]


def kept(platform: Platform, source: str) -> bytes:
    return b"".join(kept_log(platform.store, KEY, 1, source))


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_stream_tells_late_is_told(
    make: Make, clock: FakeClock, workers: int, *, closes: bool
) -> None:
    """Cases D6, D14: the last lines come after the end was seen, the very last without newline."""
    after = len(ONE) / 40
    platform = make(Streaming(clock, [succeeds(after=after)], workers=workers, closes=closes))
    lines, end = run(platform)
    assert lines == ONE.decode().split("\n")
    assert end.phase is Phase.SUCCEEDED
    assert end.tail[-1] == "evicted"
    assert kept(platform, "driver") == ONE


def test_a_burst_is_told_to_its_end(make: Make, clock: FakeClock) -> None:
    """The driver is long done, and its lines come for longer than silence is waited out."""
    platform = make(Streaming(clock, [succeeds(after=1)], bytes_s=5))
    lines, end = run(platform)
    assert lines == ONE.decode().split("\n")
    assert end.phase is Phase.SUCCEEDED
    assert clock.monotonic() > len(ONE) / 5


def test_a_driver_that_goes_on_does_not_hold_up_the_end(make: Make, clock: FakeClock) -> None:
    """Its attempt is given up (out of time, a dead machine), and it prints on for ever."""
    platform = make(Streaming(clock, [RUNS_ON], first=b"line\n" * 100_000))
    spec = SPEC.model_copy(update={"limits": Limits(run_s=20)})
    job = lifecycle.submit(spec, run_key=KEY, labels={}, platform=platform)
    *_, end = lifecycle.follow(job, platform=platform)
    assert isinstance(end, JobEnded)
    assert end.verdict.cls is VerdictClass.TIMEOUT
    assert clock.monotonic() < 20 + 30 + 10


def test_a_stream_that_is_not_open_yet_is_not_at_its_end(make: Make, clock: FakeClock) -> None:
    """Somebody takes over near the end, and the log opens seconds after the end was seen."""
    after = len(ONE) / 40
    platform = make(Streaming(clock, [succeeds(after=after)], opens_s=after + 6))
    lines, end = run(platform)
    assert lines == ONE.decode().split("\n")
    assert end.tail[-1] == "evicted"
    assert clock.monotonic() < after + 10


def test_a_stream_that_never_ends_does_not_hold_up_the_end(make: Make, clock: FakeClock) -> None:
    """A lag of minutes: after 30 s the end is told."""
    platform = make(Streaming(clock, [succeeds(after=5)], lag_s=1e6))
    _, end = run(platform)
    assert end.phase is Phase.SUCCEEDED
    assert clock.monotonic() < 5 + 30 + 5


def test_each_start_of_the_driver_has_its_own_log(make: Make, clock: FakeClock) -> None:
    """Case F6: the queue evicted it and let it in again; both logs begin at 0, told and kept."""
    backend = Streaming(clock, [succeeds(after=40)], evicted_s=10.0)
    platform = make(backend)
    lines, end = run(platform)
    assert end.phase is Phase.SUCCEEDED
    assert lines == [*ONE.decode().split("\n"), *TWO.decode().split("\n")]
    assert kept(platform, "driver") == ONE
    assert kept(platform, "driver-2") == TWO
    assert end.tail[-1] == "last words"
    both = [line.text for line in lifecycle.read_logs(KEY, platform=platform)]
    assert both == lines
    second = lifecycle.read_logs(KEY, platform=platform, source="driver-2")
    assert [line.text for line in second] == TWO.decode().split("\n")


def test_workers_logs_are_kept_and_not_told(make: Make, clock: FakeClock) -> None:
    """After the cluster is gone they are read from run storage, each under its pod's name."""
    platform = make(Streaming(clock, [succeeds(after=10)]))
    lines, _ = run(platform)
    assert not any("pid=7" in line for line in lines)
    assert kept_sources(platform.store, KEY, 1) == ["driver", "worker/w1"]
    assert platform.store.size(f"jobs/{KEY}/logs/a1/worker/w1.log") == len(WORKER)
    read = lifecycle.read_logs(KEY, platform=platform, source="worker/w1")
    assert [line.text for line in read] == WORKER.decode().splitlines()
    with pytest.raises(InvalidInput, match="There are: driver, worker/w1"):
        list(lifecycle.read_logs(KEY, platform=platform, source="worker/w9"))


@pytest.mark.parametrize("count", [50, 64])
def test_workers_whose_logs_are_not_kept_are_told_once(
    make: Make, clock: FakeClock, count: int
) -> None:
    """Of more than 50 workers the others' logs are missing: said with the numbers."""
    platform = make(Streaming(clock, [succeeds(after=10)], workers=count))
    job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)
    events = list(lifecycle.follow(job, platform=platform))
    told = [event.sentence for event in events if isinstance(event, Notice)]
    assert len(kept_sources(platform.store, KEY, 1)) == 1 + 50
    said = (
        "Logs of 50 of 64 workers are kept with the run; those of the others can be read only "
        "while their pods are there."
    )
    assert told == ([said] if count > 50 else [])


def test_another_process_goes_on_in_the_second_start(make: Make, clock: FakeClock) -> None:
    """It finds which start this cluster is, and tells each line that was not told before."""
    backend = Streaming(clock, [succeeds(after=40)], evicted_s=10.0)
    first = make(backend)
    job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=first)
    told: list[str] = []
    events = lifecycle.follow(job, platform=first)
    for event in events:
        if isinstance(event, LogLine):
            told.append(event.text)
            if event.text == "second 5":
                break
    events.close()
    second = make(backend)
    again = lifecycle.attach(KEY, platform=second, takeover=True)
    told += [
        event.text
        for event in lifecycle.follow(again, platform=second)
        if isinstance(event, LogLine)
    ]
    assert told == [*ONE.decode().split("\n"), *TWO.decode().split("\n")]
    assert kept(second, "driver-2") == TWO


def test_a_gap_is_told_and_kept_as_one(make: Make, clock: FakeClock) -> None:
    """Case D3: bytes that a rotated file took with it; offsets after it still are the source's."""
    platform = make(Streaming(clock, [succeeds(after=20)], loses=27))
    lines, _ = run(platform)
    assert lines == ["[27 bytes of the log are lost]", *ONE[27:].decode().split("\n")]
    assert kept(platform, "driver") == b"[27 bytes of the log are lost]\n" + ONE[27:]


def test_a_gap_in_a_chain_keeps_offsets(clock: FakeClock) -> None:
    """Whoever resumes it goes on at the source's offset, also where the store failed meanwhile."""
    store = PlainStore()
    keeper = LogKeeper(store, KEY, 1, clock, source="worker/w")
    keeper.add(0, b"one\nhal")
    keeper.add(100, b"two\n")
    keeper.add(100, b"two\nthree\n")
    assert (keeper.position, keeper.unkept) == (110, 17)
    keeper.flush(due=True)
    assert LogKeeper(store, KEY, 1, clock, source="worker/w").offset == 110
    pieces = [(one.start, one.lost) for one in kept_chunks(store, KEY, 1, "worker/w")]
    assert pieces == [(0, 0), (100, 93)]
    keeper.finish()
    whole = b"one\nhal\n[93 bytes of the log are lost]\ntwo\nthree\n"
    assert store.data[f"jobs/{KEY}/logs/a1/worker/w.log"] == whole


def test_starts_are_numbered_once() -> None:
    """Two that see a new cluster at once give it one number."""
    store = PlainStore()
    names = [driver_source(store, KEY, 1, cluster) for cluster in ("a", "b", "a", "b", "c")]
    assert names == ["driver", "driver-2", "driver", "driver-2", "driver-3"]
