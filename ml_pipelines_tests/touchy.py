"""Run storage and an engine that let something happen at the very call where it hurts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ml_pipelines import lifecycle, settings
from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import StorageUnavailable
from ml_pipelines.job.events import Event, JobEnded, PhaseChanged
from ml_pipelines.job.phase import Phase
from ml_pipelines.journal.lease import Observer, Process
from ml_pipelines.journal.record import Journal
from ml_pipelines.lifecycle import Platform
from ml_pipelines.spec.job import JobSpec
from ml_pipelines.spec.pools import load_pools
from ml_pipelines_tests.fake_backend import FakeBackend, succeeds
from ml_pipelines_tests.plain_store import PlainStore

KEY = "train-2026-01-01-0123456789"
SPEC = JobSpec(name="train", entrypoint=("python", "train.py"))
OWES = SPEC.model_copy(update={"owes_result": True})
POOLS = load_pools()


class TouchyStore(PlainStore):
    """Before each call `touch(method, path)` may act, or raise."""

    def __init__(self, inner: PlainStore) -> None:
        super().__init__()
        self.data = inner.data
        self.touch: Callable[[str, str], None] = lambda _method, _path: None
        self.writing = b""

    def get(self, path: str) -> bytes:
        self.touch("get", path)
        return super().get(path)

    def create(self, path: str, data: bytes) -> None:
        self.writing = data
        self.touch("create", path)
        super().create(path, data)

    def put(self, path: str, data: Any) -> None:
        self.touch("put", path)
        super().put(path, data)

    def put_file(self, path: str, local: Path) -> None:
        self.touch("put_file", path)
        super().put_file(path, local)

    def objects(self, prefix: str = "", *, after: str = "") -> list[Any]:
        self.touch("objects", prefix)
        return super().objects(prefix, after=after)

    def delete(self, path: str) -> None:
        self.touch("delete", path)
        super().delete(path)


@dataclass
class TouchyBackend(FakeBackend):
    """Right before or after a call of that name, `before[name]` or `after[name]` acts once."""

    before: dict[str, Callable[[], Any]] = field(default_factory=dict)
    after: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def _fault(self, method: str) -> None:
        act = self.before.pop(method, None)
        if act is not None:
            act()
        super()._fault(method)

    def create(self, manifest: Any) -> Any:
        view = super().create(manifest)
        act = self.after.pop("create", None)
        if act is not None:
            act()
        return view

    def delete(self, name: str, uid: str = "") -> None:
        super().delete(name, uid)
        act = self.after.pop("delete", None)
        if act is not None:
            act()

    def list(self, labels: Any) -> Any:
        found = super().list(labels)
        act = self.after.pop("list", None)
        if act is not None:
            act()
        return found


class Place:
    """One run storage and one engine; `platform()` is a new process each time."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.store = PlainStore()
        self.backend = TouchyBackend(clock, scripts=[succeeds()])

    def platform(self, **changes: Any) -> Platform:
        store = TouchyStore(self.store)
        whole = Platform(
            store,
            self.backend,
            POOLS,
            self.clock,
            Process(store, self.clock, threaded=False),
            settings.load({"MLP_HOME": "/nowhere"}),
            observer=Observer(store, self.clock),
        )
        return replace(whole, **changes)

    def submit(self, spec: JobSpec = SPEC, key: str = KEY, **options: Any) -> Iterator[Event]:
        platform = self.platform()
        job = lifecycle.submit(spec, run_key=key, labels={}, platform=platform, **options)
        return lifecycle.follow(job, platform=platform)

    def follow(self, *, takeover: bool = False) -> Iterator[Event]:
        platform = self.platform()
        job = lifecycle.attach(KEY, platform=platform, takeover=takeover)
        return lifecycle.follow(job, platform=platform)

    def cancel(self) -> list[Event]:
        return lifecycle.cancel(KEY, platform=self.platform(), reason="enough", by="ada")

    def sweep(self, wanted: bool | None = None, platform: Platform | None = None) -> list[str]:
        return lifecycle.sweep(platform or self.platform(), lambda _key, _labels: wanted)

    def sweep_for_long(self, wanted: bool | None = None) -> list[str]:
        """Three rounds of one keeper, more than a claim time apart."""
        keeper = self.platform()
        done = []
        for _ in range(3):
            done += self.sweep(wanted, keeper)
            self.clock.advance(settings.CLAIM_TIME_S + 1)
        return done

    @property
    def state(self) -> Any:
        return Journal(self.store, KEY, writer="judge", clock=self.clock).read()


def until(stream: Iterator[Event], phase: Phase) -> list[Event]:
    """The events up to that phase."""
    told = []
    for event in stream:
        told.append(event)
        if isinstance(event, PhaseChanged) and event.phase is phase:
            break
    return told


def end_of(events: list[Event]) -> JobEnded:
    assert isinstance(events[-1], JobEnded)
    return events[-1]


def touchy(platform: Platform) -> TouchyStore:
    assert isinstance(platform.store, TouchyStore)
    return platform.store


def away(*_: str) -> None:
    raise StorageUnavailable("run storage: no answer")
