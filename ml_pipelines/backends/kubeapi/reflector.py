"""One shared list-watch: the objects of one path, kept as the server tells of their changes."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ml_pipelines.backends.kubeapi.api import Api, selection
from ml_pipelines.backends.kubeapi.errors import (
    KubeError,
    KubeGone,
    KubeRefused,
    KubeUnauthorized,
    KubeUnavailable,
    error_of,
)
from ml_pipelines.backends.kubeapi.outcome import of_status
from ml_pipelines.backends.kubeapi.store import Object, ObjectStore, prune
from ml_pipelines.backends.kubeapi.streaming import Stream, json_lines
from ml_pipelines.errors import BackendUnavailable

_log = logging.getLogger(__name__)
_SAME_PLACE_TRIES = 3  # then a list puts right whatever the server dislikes
_EVENTS_S = 35.0  # servers send no bookmarks for events: their watches are made short instead
_STALE_LISTS = 3  # so many older answers in a row: the server itself went back (a restored backup)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. A server sends a bookmark about each minute: longer silence means a dead connection.

    `grace_s`: how long a broken watch's objects still count as fresh.
    """

    silence_s: float = 80.0
    watch_s: float = 300.0
    lived_s: float = 5.0
    first_wait_s: float = 0.3
    longest_wait_s: float = 8.0
    refused_wait_s: float = 30.0
    grace_s: float = 10.0
    stop_s: float = 5.0


class Reflector:
    """Lists one path, watches it from there, and never gives up; a daemon thread.

    The path is of one namespace, or of a kind without. What `get` and `items` return is shared:
    read it only. `keep` takes from each object what is not needed; `on_change` is called from the
    thread, without arguments, after each change.
    """

    def __init__(
        self, api: Api, path: str, *, labels: str = "", fields: str = "",
        keep: Callable[[Object], Object] = prune,
        on_change: Callable[[], None] = lambda: None, pace: Pace | None = None,
    ) -> None:  # fmt: skip
        self._api = api
        self._path = path
        self._labels = labels
        self._fields = fields
        self._on_change = on_change
        self._pace = pace or (Pace(watch_s=_EVENTS_S) if path.endswith("/events") else Pace())
        self._store = ObjectStore(keep)
        self._stopping = threading.Event()
        self._synced = threading.Event()
        self._stream: Stream | None = None
        self._thread: threading.Thread | None = None
        self._answering_until = api.clock.monotonic()
        self._failures = 0
        self._stale_lists = 0
        self.error: Exception | None = None

    def start(self) -> None:
        """Begin. Once only."""
        self._answering_until = self._api.clock.monotonic()
        self._thread = threading.Thread(
            target=self._run, name=f"watch {self._path}", daemon=True
        )  # fmt: skip
        self._thread.start()

    def stop(self) -> None:
        """End, also in the middle of a silent watch; what was seen can still be read."""
        self._stopping.set()
        stream = self._stream
        if stream is not None:
            stream.abort()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._pace.stop_s)

    def synced(self, timeout_s: float) -> bool:
        """Wait for the first list."""
        return self._synced.wait(timeout_s)

    def get(self, name: str) -> Object | None:
        """One object, as last seen."""
        return self._store.get(name)

    def items(self) -> list[Object]:
        """All objects, as last seen."""
        return self._store.items()

    def put(self, obj: Object) -> None:
        """What a request of ours returned: it stands until the watch tells more."""
        self._store.put(obj)

    def changed(self) -> int:
        """A number that grows with each change."""
        return self._store.version

    def fresh(self) -> None:
        """Raises BackendUnavailable where what is held may be old."""
        silent_s = self._api.clock.monotonic() - self._answering_until
        error = self.error
        synced = self._synced.is_set()
        if synced and (error is None or silent_s <= self._pace.grace_s):
            return
        why = f": {error}" if error is not None else "."
        raise BackendUnavailable(
            f"{self._api.where} has not answered for {silent_s:.0f} s to a watch of "
            f"{self._path}{why}"
        )

    def _run(self) -> None:
        while not self._stopping.is_set():
            wait = self._round()
            if wait > 0:
                self._stopping.wait(wait)

    def _round(self) -> float:
        """One list where one is needed, and one watch; seconds to wait before the next."""
        began = self._api.clock.monotonic()
        try:
            if not self._store.place:
                self._list()
                began = self._api.clock.monotonic()
            self._watch()
        except KubeError as err:
            if self._lived(began):
                self._failures = 0
            return self._failed(err)
        except Exception as err:  # noqa: BLE001 - a bug must not silently end all watching
            _log.exception("watch of %s failed", self._path)
            return self._failed(err)
        if self._lived(began):
            self._failures = 0
            return 0.0
        self._failures += 1  # a server that ends each watch at once must not be asked in a loop
        return self._wait()

    def _lived(self, began: float) -> bool:
        return self._api.clock.monotonic() - began >= self._pace.lived_s

    def _failed(self, err: Exception) -> float:
        """Note why, and say how long to wait."""
        if self.error is None and self._synced.is_set():
            self._answering_until = self._api.clock.monotonic()
        self.error = err
        self._failures += 1
        status = err.status if isinstance(err, KubeError) else 400
        if 0 < status < 429 or self._failures >= _SAME_PLACE_TRIES:
            self._store.place = ""  # list anew
        if isinstance(err, KubeGone) and self._failures == 1:
            return 0.0
        if isinstance(err, KubeRefused | KubeUnauthorized):
            return self._pace.refused_wait_s * (0.5 + random.random() / 2)
        asked = (err.retry_after_s if isinstance(err, KubeError) else None) or 0.0
        return max(self._wait(), min(asked, self._pace.refused_wait_s))

    def _wait(self) -> float:
        wait = self._pace.first_wait_s * 2.0 ** min(self._failures - 1, 16)
        return min(wait, self._pace.longest_wait_s) * (0.5 + random.random() / 2)

    def _list(self) -> None:
        self._store.listing()
        found = self._api.list(
            self._path, labels=self._labels, fields=self._fields, budget_s=0.0
        )  # fmt: skip
        self._alive()
        if self._store.behind(found.resource_version) and self._stale_lists < _STALE_LISTS:
            self._stale_lists += 1
            raise KubeUnavailable(
                f"{self._api.where} answered with a state older than one it told before."
            )
        self._stale_lists = 0
        self._note(lambda: self._store.replace(found.items, found.resource_version))
        self._synced.set()

    def _watch(self) -> None:
        """Follow the changes until the server ends the answer."""
        query = selection(self._labels, self._fields) | {
            "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": self._store.place,
            "timeoutSeconds": str(max(1, round(self._pace.watch_s * (1 + random.random())))),
        }  # fmt: skip
        with self._api.stream(
            self._path, query=query, read_timeout_s=self._pace.silence_s, budget_s=0.0
        ) as stream:
            self._stream = stream
            if self._stopping.is_set():
                return
            self._alive()
            try:
                for event in json_lines(stream):
                    self._alive()
                    self._take(event)
            except ValueError as err:
                raise KubeUnavailable(
                    f"{self._api.where} told a change of {self._path} that can't be read: {err}."
                ) from err

    def _take(self, event: Any) -> None:
        kind = event.get("type")
        obj = event.get("object") or {}
        if kind == "ERROR":
            raise error_of(of_status(obj), f"a watch of {self._path}", self._api.where)
        self._note(lambda: self._store.apply(str(kind), obj))

    def _note(self, change: Callable[[], None]) -> None:
        before = self._store.version
        change()
        if self._store.version != before:
            self._on_change()

    def _alive(self) -> None:
        self.error = None
