"""What a front end needs to follow jobs: run storage, a backend, the pools, a clock, a lease."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ml_pipelines.backends.base import Backend
from ml_pipelines.clock import Clock, SystemClock
from ml_pipelines.errors import InvalidInput
from ml_pipelines.journal.lease import Observer, Process
from ml_pipelines.journal.record import Journal
from ml_pipelines.settings import Settings, load
from ml_pipelines.spec.pools import Pools, load_pools
from ml_pipelines.storage import Store, open_store

APPEND_S = 10.0  # a loop that waits longer for one entry would be blind meanwhile


@dataclass(frozen=True, slots=True)
class Platform:
    """Everything outside that the lifecycle touches, as arguments."""

    store: Store
    backend: Backend
    pools: Pools
    clock: Clock
    process: Process
    settings: Settings
    observer: Observer = field(kw_only=True)

    def journal(self, run_key: str) -> Journal:
        """The record of the job of that key."""
        return Journal(
            self.store, run_key, writer=self.process.id, clock=self.clock, budget_s=APPEND_S
        )


@contextmanager
def open_platform(
    settings: Settings | None = None,
    *,
    backend: Backend | None = None,
    clock: Clock | None = None,
    observer: Observer | None = None,
) -> Iterator[Platform]:
    """Reach run storage and the backend, or refuse at once; the lease ends with the block.

    An `observer` that outlives the block knows from one keeper's round to the next whose lease
    did not change.
    Raises StorageDenied or StorageUnavailable naming the URL.
    """
    settings = settings or load()
    clock = clock or SystemClock()
    store = open_store(settings.runs)
    store.check()
    process = Process(store, clock)
    try:
        yield Platform(
            store,
            backend or open_backend(settings, clock),
            load_pools(settings.pools),
            clock,
            process,
            settings,
            observer=observer or Observer(store, clock),
        )
    finally:
        process.stop()


def open_backend(settings: Settings, clock: Clock) -> Backend:
    """The backend that the settings name. Raises InvalidInput."""
    if settings.backend != "local":
        raise InvalidInput(
            "MLP_BACKEND", settings.backend, "is no backend", remedy="Write `local`."
        )
    from ml_pipelines.backends.local.backend import LocalBackend

    return LocalBackend(settings.local_state, clock)
