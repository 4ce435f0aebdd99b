"""What a front end needs to follow jobs: run storage, a backend, the pools, a clock, a lease."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ml_pipelines.backends.base import Backend, Scope
from ml_pipelines.clock import Clock, SystemClock
from ml_pipelines.errors import InvalidInput
from ml_pipelines.journal.lease import Observer, Process
from ml_pipelines.journal.record import Journal
from ml_pipelines.settings import LAKE_VARIABLE, RUNS_VARIABLE, Settings, load
from ml_pipelines.spec.pools import Pools, load_pools
from ml_pipelines.spec.reach import shared_folder
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
    scope: Scope = "job",
) -> Iterator[Platform]:
    """Reach run storage and the backend, or refuse at once; the lease ends with the block.

    An `observer` that outlives the block knows from one keeper's round to the next whose lease
    did not change. `scope` is what a backend watches: the jobs that are followed here, or all of
    its namespace.
    Raises StorageDenied or StorageUnavailable naming the URL, InvalidInput for one that the
    backend's jobs can't see.
    """
    settings = settings or load()
    clock = clock or SystemClock()
    pools = load_pools(settings.pools)
    check_storage_urls(settings, pools)
    store = open_store(settings.runs)
    store.check()
    process = Process(store, clock)
    with ExitStack() as leaving:
        leaving.callback(process.stop)
        yield Platform(
            store,
            backend or leaving.enter_context(open_backend(settings, clock, scope)),
            pools,
            clock,
            process,
            settings,
            observer=observer or Observer(store, clock),
        )


def check_storage_urls(settings: Settings, pools: Pools) -> None:
    """Refuse, with InvalidInput, storage that either the pods or this machine can't see."""
    if settings.backend == "local":
        return
    for variable, url in ((RUNS_VARIABLE, settings.runs), (LAKE_VARIABLE, settings.lake)):
        folder = shared_folder(variable, url, pools)
        if folder and not Path(folder).is_dir():
            raise InvalidInput(
                variable, url, f"lies on a volume that is not here: there is no {folder}",
                remedy=f"Mount it at {folder}, or use s3:// or gs://.",
            )  # fmt: skip


@contextmanager
def open_backend(settings: Settings, clock: Clock, scope: Scope = "job") -> Iterator[Backend]:
    """The backend that the settings name, with its watches. Raises InvalidInput."""
    if settings.backend == "local":
        from ml_pipelines.backends.local.backend import LocalBackend

        yield LocalBackend(settings.local_state, clock)
    elif settings.backend == "kuberay":
        from ml_pipelines.backends.kubeapi import connect
        from ml_pipelines.backends.kuberay import KubeRayBackend

        api = connect(context=settings.kube_context, namespace=settings.namespace, clock=clock)
        with closing(api), closing(KubeRayBackend(api, clock, scope=scope)) as backend:
            yield backend
    else:
        raise InvalidInput(
            "MLP_BACKEND", settings.backend, "is no backend", remedy="Write `local` or `kuberay`."
        )
