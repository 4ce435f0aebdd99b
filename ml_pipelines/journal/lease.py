"""Who lives: one heartbeat per process, and who watches it; timestamps are never compared."""

from __future__ import annotations

import json
import os
import socket
import threading
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ml_pipelines.errors import NotFound, StorageError
from ml_pipelines.settings import CLAIM_TIME_S

if TYPE_CHECKING:
    from ml_pipelines.clock import Clock
    from ml_pipelines.storage import Store

BEAT_S = 15.0
LEAVING_S = 5.0  # what a beat under way may take before we leave without a word


class Process:
    """This process' lease on every loop that it holds: a counter in run storage that moves on.

    `threaded=False` leaves the beating to the caller.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        process_id: str = "",
        threaded: bool = True,
        beat_s: float = BEAT_S,
    ) -> None:
        self.id = process_id or f"{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._beat_s = beat_s
        self._store = store
        self._clock = clock
        self._threaded = threaded
        self._count = 0
        self._fresh_from = float("-inf")
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self) -> None:
        """Move the counter on. Raises StorageError."""
        with self._lock:
            began = self._clock.boottime()
            self._count += 1
            self._write(gone=False)
            self._fresh_from = began

    def fresh(self) -> bool:
        """Whether nobody can hold us dead yet: the last beat that arrived is young.

        Reckoned from before that beat, and by a clock that counts suspension: a closed laptop's
        lease runs out.
        """
        return self._clock.boottime() - self._fresh_from < CLAIM_TIME_S / 2

    def start(self) -> None:
        """Beat now, then every 15 s in the background; more than once is no harm."""
        if not self.fresh():
            self.beat()
        if self._threaded and self._thread is None:
            self._ended.clear()
            self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Leave in order: say so, that nobody need wait for the lease to run out.

        Where storage hangs we go all the same, within seconds, and the lease runs out by itself.
        """
        self._ended.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout=LEAVING_S)
            if thread.is_alive():
                return
        with self._lock:
            if not self._count:
                return  # nothing was ever claimed by this process
            self._fresh_from = float("-inf")
            try:
                self._write(gone=True, brief=True)
            except StorageError:
                return  # the lease runs out by itself

    def _run(self) -> None:
        while not self._ended.wait(self._beat_s):
            try:
                self.beat()
            except StorageError:
                continue  # `fresh` says so to whoever is about to act

    def _write(self, *, gone: bool, brief: bool = False) -> None:
        fields = {"id": self.id, "count": self._count, "gone": gone, "pid": os.getpid()}
        store = self._store.brief() if brief else self._store
        store.put(heartbeat_path(self.id), json.dumps(fields).encode())


@dataclass(frozen=True, slots=True)
class _Sighting:
    heartbeat: bytes | None
    since: float


class Observer:
    """Watches other processes' heartbeats, on its own clock only."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._seen: dict[str, _Sighting] = {}

    def stale(self, process_id: str) -> bool:
        """Whether that process left in order, or did not move for the claim time while we looked.

        So the first look never says so of a process that did not leave. Raises StorageError, and
        then begins to look anew: who can't see concludes nothing.
        """
        try:
            heartbeat = self._read(process_id)
        except StorageError:
            self._seen.pop(process_id, None)
            raise
        if heartbeat is not None and _gone(heartbeat):
            return True
        now = self._clock.monotonic()
        last = self._seen.get(process_id)
        if last is None or last.heartbeat != heartbeat:
            self._seen[process_id] = _Sighting(heartbeat, now)
            return False
        return now - last.since >= CLAIM_TIME_S

    def still_s(self, path: str) -> float:
        """Seconds for which the object at a path has not changed while we looked, from 0 on.

        Raises StorageError.
        """
        try:
            now, content = self._clock.monotonic(), self._store.get(path)
        except StorageError:
            self._seen.pop(path, None)
            raise
        last = self._seen.get(path)
        if last is None or last.heartbeat != content:
            last = self._seen[path] = _Sighting(content, now)
        return now - last.since

    def _read(self, process_id: str) -> bytes | None:
        try:
            return self._store.get(heartbeat_path(process_id))
        except NotFound:
            return None


def heartbeat_path(process_id: str) -> str:
    """Where a process' heartbeat lies in run storage."""
    return f"processes/{process_id}.json"


def _gone(heartbeat: bytes) -> bool:
    try:
        return bool(json.loads(heartbeat).get("gone"))
    except (ValueError, AttributeError):
        return False


def _host() -> str:
    name = socket.gethostname().split(".")[0].lower()
    return "".join(c if c.isalnum() else "-" for c in name)[:40] or "host"
