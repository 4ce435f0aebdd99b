"""Keeps what an attempt's workers log: with the run, not told."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from ml_pipelines.errors import BackendUnavailable, StorageError
from ml_pipelines.job.events import Event, Notice
from ml_pipelines.job.observation import PodView
from ml_pipelines.lifecycle.logkeeping import LogKeeper
from ml_pipelines.lifecycle.platform import Platform

READ_BYTES = 1 << 20
EVERY_S = 1.0  # between two reads of all
FLUSH_S = 30.0  # a piece a worker and 30 s
UNKEPT_BYTES = 4 << 20  # of one worker that wait for run storage
MOST = 50  # workers whose logs are followed: each is a request and a thread


class WorkerLogs:
    """The logs of those pods that ship one, the first `MOST` of them."""

    def __init__(self, run_key: str, attempt: int, name: str, platform: Platform) -> None:
        self._run_key, self._attempt, self._name = run_key, attempt, name
        self._platform = platform
        self._keepers: dict[str, LogKeeper] = {}
        self._count = 0  # of workers: whose logs are kept, and who is there now
        self._told = False
        self._read_at = float("-inf")
        self._silent: dict[str, float] = {}  # of each source, as LogChunk

    def read(self, pods: Iterable[PodView], *, now: bool = False) -> bool:
        """Read on, if it is time; whether anything came."""
        clock = self._platform.clock
        if not now and clock.monotonic() - self._read_at < EVERY_S:
            return False
        self._read_at = clock.monotonic()
        workers = {f"worker/{pod.name}": pod for pod in pods if pod.role == "worker"}
        for source, pod in workers.items():
            if pod.ships_log and len(self._keepers) < MOST:
                self._add(source)
        self._count = len(self._keepers.keys() | workers.keys())
        came = False
        for source, keeper in self._keepers.items():
            came |= self._read(source, keeper)
        return came

    @property
    def silent_s(self) -> float:
        """As in LogChunk, of that worker which told something last."""
        return min(self._silent.values(), default=math.inf)

    def news(self) -> Iterator[Event]:
        """Says once that there are more workers than logs of them are kept."""
        kept = len(self._keepers)
        if kept < MOST or self._count <= kept or self._told:
            return
        self._told = True
        yield Notice(
            f"Logs of {kept} of {self._count} workers are kept with the run; those of the others "
            "can be read only while their pods are there.",
            warning=True,
        )

    def keep(self, *, last: bool = False) -> None:
        """Write what is read so far; `last`: also the lines without their end."""
        for keeper in self._keepers.values():
            keeper.flush(due=True, last=last)

    def _add(self, source: str) -> None:
        if source in self._keepers:
            return
        store, clock = self._platform.store, self._platform.clock
        try:
            keeper = LogKeeper(
                store, self._run_key, self._attempt, clock, source=source, flush_s=FLUSH_S
            )
        except StorageError:
            return  # at the next time
        self._keepers[source] = keeper

    def _read(self, source: str, keeper: LogKeeper) -> bool:
        if keeper.unkept >= UNKEPT_BYTES:
            keeper.flush()
            return False
        try:
            chunk = self._platform.backend.read_log(self._name, source, keeper.position, READ_BYTES)
        except BackendUnavailable:
            self._silent[source] = math.inf  # a worker's log is worth no warning, and no waiting
            return False
        self._silent[source] = chunk.quiet_s
        keeper.add(chunk.start, chunk.data)
        keeper.flush()
        return bool(chunk.data)
