"""A process in a random life: its own view of storage and engine, its heart, and its death."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml_pipelines import settings
from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import MlPipelinesError, StorageUnavailable
from ml_pipelines.job.events import Event, JobEnded
from ml_pipelines.journal.lease import Observer, Process
from ml_pipelines.lifecycle import Platform
from ml_pipelines.spec.pools import load_pools
from ml_pipelines_tests.faulty_store import Fault, FaultyStore
from ml_pipelines_tests.life_engine import LifeBackend

if TYPE_CHECKING:
    from ml_pipelines_tests.life_world import World

POOLS = load_pools()
ENOUGH_CALLS = 60_000  # a life that asks more often than this goes in circles


class Killed(BaseException):
    """SIGKILL in the middle of a call."""


class LifeStore(FaultyStore):
    """One process' view of run storage: every call may be its last, or go wrong."""

    def __init__(self, actor: Actor) -> None:
        super().__init__(actor.world.store)
        self.actor = actor

    def _fault(self) -> Fault:
        self.actor.called("storage")
        fault = self.actor.world.storage_fault()
        if fault is Fault.DELIVER:
            self.deliver()
        return fault

    def size(self, path: str) -> int | None:
        self._or_no_answer(path)
        return self.inner.size(path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        self._or_no_answer(path)
        return self.inner.get_range(path, start, length)

    def put_file(self, path: str, local: Path) -> None:
        self._or_no_answer(path)
        self.inner.put_file(path, local)

    def delete(self, path: str) -> None:
        self._or_no_answer(path)
        self.inner.delete(path)

    def _or_no_answer(self, path: str) -> None:
        if self._fault() in {Fault.NOT_AT_ALL, Fault.LOST_ANSWER, Fault.LATE}:
            raise StorageUnavailable(f"{path}: no answer.")


class LifeClock(FakeClock):
    """Each sleep takes longer than asked for, as on a busy machine; hearts beat meanwhile."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def sleep(self, seconds: float) -> None:
        self.elapsed += max(seconds, self.world.rng.uniform(0.3, 2.5))
        self.world.engine.live()
        self.world.hearts()


class Actor:
    """A process: it acts until it is killed, and its heart beats unless it is suspended."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.suspended = False
        self.acting = False
        self.stream: Iterator[Event] | None = None
        self.ends: list[JobEnded] = []
        self.store = LifeStore(self)
        self.process = Process(self.store, world.clock, process_id=name, threaded=False)
        self.beaten = world.clock.elapsed
        loaded = settings.load({"MLP_HOME": "/life"})
        self.platform = Platform(
            self.store,
            LifeBackend(self),
            POOLS,
            world.clock,
            self.process,
            loaded,
            observer=Observer(self.store, world.clock),
        )

    def called(self, what: str) -> None:
        """Every call of this process to the outside comes by here."""
        if not self.alive:
            raise Killed
        self.world.calls += 1
        assert self.world.calls < ENOUGH_CALLS, "it goes in circles"
        self.world.meanwhile(self, what)
        if not self.alive:
            raise Killed

    def act(self, what: Callable[[], Any]) -> Any:
        """Let it do something, to the end or to its own; what it raises on purpose is its answer."""
        if not self.alive or self.acting:
            return None
        self.acting = True
        try:
            return what()
        except Killed:
            return None
        except (MlPipelinesError, RuntimeError) as error:
            self.world.note(f"{self.name}: {type(error).__name__}: {error}")
            return error
        finally:
            self.acting = False

    def step(self, events: int) -> None:
        """Follow for so many events."""

        def go_on() -> None:
            for _ in range(events):
                if self.stream is None:
                    return
                event = next(self.stream, None)
                if event is None:
                    self.stream = None
                    return
                self.world.note(f"{self.name}: {event}")
                if isinstance(event, JobEnded):
                    self.ends.append(event)

        if isinstance(self.act(go_on), Exception):
            self.stream = None

    def leave(self) -> None:
        """Orderly: the stream is closed, and the process says that it is gone."""

        def close() -> None:
            if self.stream is not None:
                self.stream.close()  # type: ignore[attr-defined]
            self.process.stop()

        self.act(close)
        if not self.acting:
            self.alive = False
