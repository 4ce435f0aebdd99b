"""Keeps a job's log in run storage while it is followed, in order and without gaps.

One attempt's log is a chain of objects, each named by the offset of its first byte, each made by
create-if-absent where the one before ended: two writers can't both extend it, and whoever follows
next goes on where the chain ends. When the attempt is over the chain becomes one `driver.log`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from ml_pipelines.clock import Clock
from ml_pipelines.errors import AlreadyExists, StorageError
from ml_pipelines.storage import Store

FLUSH_BYTES = 1 << 20
FLUSH_S = 5.0
TAIL_LINES = 100
TAIL_BYTES = 64 << 10
_READ = 1 << 20


def log_folder(run_key: str, attempt: int) -> str:
    """The prefix of one attempt's log in run storage."""
    return f"jobs/{run_key}/logs/a{attempt}/"


class LogKeeper:
    """One attempt's log: `add` bytes, `flush` now and then, `finish` at the end."""

    def __init__(self, store: Store, run_key: str, attempt: int, clock: Clock) -> None:
        self._store = store
        self._folder = log_folder(run_key, attempt)
        self._clock = clock
        self._pending = bytearray()
        self._flushed_at = clock.monotonic()
        self.offset = self._resume()

    @property
    def path(self) -> str:
        """Where the whole log lies once the attempt is over."""
        return self._folder + "driver.log"

    @property
    def unkept(self) -> int:
        """Bytes that wait to be written."""
        return len(self._pending)

    def _resume(self) -> int:
        """Where the kept log ends, in bytes of the source."""
        whole = self._store.size(self.path)
        if whole is not None:
            return whole
        end = 0
        for path in _chunks(self._store, self._folder):
            end = max(end, _start(path) + (self._store.size(path) or 0))
        return end

    def add(self, start: int, data: bytes) -> None:
        """Keep bytes that begin at `start`; what is kept already is passed over."""
        known = self.offset + len(self._pending) - start
        if known < len(data):
            self._pending += data[max(known, 0) :]

    def flush(self, *, due: bool = False, last: bool = False, upto: int | None = None) -> None:
        """Write what is pending, whole lines only, when it is much, old enough or `due`.

        `last` writes a line without its newline too; `upto` is the offset after the last byte to
        write. A store that fails is tried again later.
        """
        now = self._clock.monotonic()
        due = due or len(self._pending) >= FLUSH_BYTES or now - self._flushed_at >= FLUSH_S
        size = len(self._pending) if last else self._pending.rfind(b"\n") + 1
        if upto is not None:
            size = min(size, upto - self.offset)
        if size <= 0 or not (due or last):
            return
        self._flushed_at = now
        end = self.offset + size
        try:
            self._store.create(f"{self._folder}{self.offset:015d}.log", bytes(self._pending[:size]))
        except AlreadyExists:
            # Another follower was first, with the same bytes, but fewer or more: go on at its end,
            # for a piece that begins anywhere else would be kept twice.
            try:
                end = max(self._resume(), self.offset)
            except StorageError:
                return
        except StorageError:
            return
        del self._pending[: end - self.offset]
        self.offset = end

    def finish(self) -> str:
        """Make the chain one object; returns its URL. Raises StorageError."""
        before = -1
        while self._pending and self.offset != before:
            before = self.offset
            self.flush(last=True)  # again where another follower had kept a part of it
        chunks = _chunks(self._store, self._folder)
        if self._store.size(self.path) is None:
            # By way of a file: the log may be larger than memory, and the storage client can't
            # read one object in the middle of writing another.
            with tempfile.NamedTemporaryFile(prefix="mlp-log-") as whole:
                for data in _bytes(self._store, chunks):
                    whole.write(data)
                whole.flush()
                self._store.put_file(self.path, Path(whole.name))
        for path in chunks:
            self._store.delete(path)
        return self._store.child_url(self.path)


def kept_log(store: Store, run_key: str, attempt: int) -> Iterator[bytes]:
    """What is kept of an attempt's log, piece by piece."""
    folder = log_folder(run_key, attempt)
    whole = folder + "driver.log"
    if store.size(whole) is not None:
        yield from _bytes(store, [whole])
    else:
        yield from _bytes(store, _chunks(store, folder))


def kept_tail(store: Store, run_key: str, attempt: int) -> list[str]:
    """The last lines of what is kept of an attempt's log, some 64 kB of them."""
    folder = log_folder(run_key, attempt)
    whole = folder + "driver.log"
    path = whole if store.size(whole) else next(reversed(_chunks(store, folder)), "")
    if not path:
        return []
    size = store.size(path) or 0
    start = max(size - TAIL_BYTES, 0)
    lines = store.get_range(path, start, size - start).decode("utf-8", errors="replace")
    return lines.splitlines()[1 if start else 0 :]


def _chunks(store: Store, folder: str) -> list[str]:
    return [p for p in store.list(folder) if _start(p) >= 0]


def _start(path: str) -> int:
    stem = path.rsplit("/", 1)[-1].removesuffix(".log")
    return int(stem) if stem.isdigit() else -1


def _bytes(store: Store, paths: list[str]) -> Iterator[bytes]:
    """The pieces in order, each byte once, also where two overlap."""
    end = 0
    for path in paths:
        first, size = max(_start(path), 0), store.size(path) or 0
        for start in range(max(end - first, 0), size, _READ):
            yield store.get_range(path, start, min(_READ, size - start))
        end = max(end, first + size)
