"""Keeps a job's logs in run storage while they are followed, in order.

Each log of an attempt is a chain of objects, each named by the offset of its first byte, each made by
create-if-absent where the one before ended: two writers can't both extend it, and whoever follows
next goes on where the chain ends. When the attempt is over the chain becomes one object. A driver
that is started again on another Ray cluster has a log of its own: `driver-2`.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ml_pipelines.backends.base import LogChunk
from ml_pipelines.clock import Clock
from ml_pipelines.errors import AlreadyExists, StorageError
from ml_pipelines.storage import Store

FLUSH_BYTES = 1 << 20
FLUSH_S = 5.0
DRIVER = "driver"
STARTS = "starts"  # one object for each start of the driver: the Ray cluster it ran on
TAIL_LINES = 100
TAIL_BYTES = 64 << 10
_READ = 1 << 20


def log_folder(run_key: str, attempt: int) -> str:
    """The prefix of one attempt's log in run storage."""
    return f"jobs/{run_key}/logs/a{attempt}/"


class LogKeeper:
    """One log of an attempt: `add` bytes, `flush` now and then, `finish` at the end.

    Bytes that are lost leave a gap: the piece after it is named by where it begins.
    """

    def __init__(
        self,
        store: Store,
        run_key: str,
        attempt: int,
        clock: Clock,
        *,
        source: str = DRIVER,
        flush_s: float = FLUSH_S,
    ) -> None:
        self.store = store
        self._folder, self.path = _places(run_key, attempt, source)
        self.clock = clock
        self._flush_s = flush_s
        self._pending = bytearray()
        self._after_gaps: deque[tuple[int, bytearray]] = deque()
        self._flushed_at = clock.monotonic()
        self.offset = self._resume()

    @property
    def unkept(self) -> int:
        """Bytes that wait to be written."""
        return len(self._pending) + sum(len(data) for _, data in self._after_gaps)

    @property
    def position(self) -> int:
        """Offset of the next byte to add."""
        if self._after_gaps:
            start, data = self._after_gaps[-1]
            return start + len(data)
        return self.offset + len(self._pending)

    def _resume(self) -> int:
        """Where the kept log ends, in bytes of the source."""
        whole = self.store.size(self.path)
        if whole is not None:
            return whole
        end = 0
        for path in _chunks(self.store, self._folder):
            end = max(end, _start(path) + (self.store.size(path) or 0))
        return end

    def add(self, start: int, data: bytes) -> None:
        """Keep bytes that begin at `start`; what is kept already is passed over."""
        known = self.position - start
        if known < 0 and data:
            self._after_gaps.append((start, bytearray(data)))
            self._pass_gaps()
        elif known < len(data):
            run = self._after_gaps[-1][1] if self._after_gaps else self._pending
            run += data[known:]

    def _pass_gaps(self) -> None:
        """Go on after a gap, once what lies before it is written."""
        while self._after_gaps and not self._pending:
            start, data = self._after_gaps.popleft()
            known = max(self.offset - start, 0)
            self.offset, self._pending = max(start, self.offset), data[known:]

    def flush(self, *, due: bool = False, last: bool = False, upto: int | None = None) -> None:
        """Write what is pending, whole lines only, when it is much, old enough or `due`.

        `last` writes a line without its newline too; `upto` is the offset after the last byte to
        write. A store that fails is tried again later.
        """
        now = self.clock.monotonic()
        due = due or self.unkept >= FLUSH_BYTES or now - self._flushed_at >= self._flush_s
        while due or last:
            before_gap = bool(self._after_gaps)
            size = len(self._pending)
            if not (last or before_gap):
                size = self._pending.rfind(b"\n") + 1
            if upto is not None:
                size = min(size, upto - self.offset)
            if size <= 0 or not self._write(size, now) or not before_gap:
                return

    def _write(self, size: int, now: float) -> bool:
        """One piece; False where the store fails."""
        self._flushed_at = now
        end = self.offset + size
        try:
            self.store.create(f"{self._folder}{self.offset:015d}.log", bytes(self._pending[:size]))
        except AlreadyExists:
            # Another follower was first, with the same bytes, but fewer or more: go on at its end,
            # for a piece that begins anywhere else would be kept twice.
            try:
                end = max(self._resume(), self.offset)
            except StorageError:
                return False
        except StorageError:
            return False
        del self._pending[: end - self.offset]
        self.offset = end
        self._pass_gaps()
        return True

    def finish(self) -> str:
        """Make the chain one object; returns its URL. Raises StorageError."""
        before = -1
        while self.unkept and self.offset != before:
            before = self.offset
            self.flush(last=True)  # again where another follower had kept a part of it
        chunks = _chunks(self.store, self._folder)
        if self.store.size(self.path) is None:
            # By way of a file: the log may be larger than memory, and the storage client can't
            # read one object in the middle of writing another.
            with tempfile.NamedTemporaryFile(prefix="mlp-log-") as whole:
                for data in _told(_pieces(self.store, chunks)):
                    whole.write(data)
                whole.flush()
                self.store.put_file(self.path, Path(whole.name))
        for path in chunks:
            self.store.delete(path)
        return self.store.child_url(self.path)


def kept_chunks(
    store: Store, run_key: str, attempt: int, source: str = DRIVER
) -> Iterator[LogChunk]:
    """What is kept of one log, piece by piece."""
    folder, whole = _places(run_key, attempt, source)
    paths = [whole] if store.size(whole) is not None else _chunks(store, folder)
    return _pieces(store, paths)


def kept_log(store: Store, run_key: str, attempt: int, source: str = DRIVER) -> Iterator[bytes]:
    """As `kept_chunks`, the bytes alone; a line tells where some are lost."""
    return _told(kept_chunks(store, run_key, attempt, source))


def kept_tail(store: Store, run_key: str, attempt: int, source: str = DRIVER) -> list[str]:
    """The last lines of what is kept of one log, some 64 kB of them."""
    folder, whole = _places(run_key, attempt, source)
    path = whole if store.size(whole) else next(reversed(_chunks(store, folder)), "")
    if not path:
        return []
    size = store.size(path) or 0
    start = max(size - TAIL_BYTES, 0)
    lines = store.get_range(path, start, size - start).decode("utf-8", errors="replace")
    return lines.splitlines()[1 if start else 0 :]


def kept_sources(store: Store, run_key: str, attempt: int) -> list[str]:
    """The logs of which anything is kept: `driver`, `driver-2`, `worker/POD`."""
    folder = log_folder(run_key, attempt)
    found: set[str] = set()
    for path in store.list(folder):
        where, _, name = path.removeprefix(folder).rpartition("/")
        if _start(path) >= 0 and where != STARTS:
            found.add(where or DRIVER)
        elif name.endswith(".log"):
            found.add(f"{where}/{name}".strip("/").removesuffix(".log"))
    return sorted(found, key=_in_order)


def starts(store: Store, run_key: str, attempt: int) -> list[str]:
    """The Ray clusters on which the attempt's driver was started, in order, as far as seen."""
    paths = store.list(f"{log_folder(run_key, attempt)}{STARTS}/")
    return [store.get(path).decode() for path in paths]


def driver_source(store: Store, run_key: str, attempt: int, cluster: str) -> str:
    """Under which name the log of the driver on that cluster is kept. Raises StorageError.

    The first start's is `driver`; whoever sees a new cluster first gives it the next number.
    """
    while True:
        seen = starts(store, run_key, attempt)
        if cluster in seen:
            return start_source(seen.index(cluster) + 1)
        path = f"{log_folder(run_key, attempt)}{STARTS}/{len(seen) + 1:04d}"
        with suppress(AlreadyExists):
            store.create(path, cluster.encode())


def start_source(number: int) -> str:
    """The name of the n-th start's log."""
    return DRIVER if number == 1 else f"{DRIVER}-{number}"


def last_start(store: Store, run_key: str, attempt: int) -> str:
    """The name of the last start's log."""
    return start_source(max(len(starts(store, run_key, attempt)), 1))


def finish_others(keeper: LogKeeper, run_key: str, attempt: int) -> None:
    """Make each of an attempt's other logs one object too. Raises StorageError."""
    for source in kept_sources(keeper.store, run_key, attempt):
        _, path = _places(run_key, attempt, source)
        if path != keeper.path:
            LogKeeper(keeper.store, run_key, attempt, keeper.clock, source=source).finish()


def _in_order(source: str) -> tuple[bool, int, str]:
    kind, _, number = source.partition("-")
    return kind != DRIVER, int(number) if kind == DRIVER and number.isdigit() else 0, source


def _places(run_key: str, attempt: int, source: str) -> tuple[str, str]:
    """Where a log's pieces lie, and where it lies once it is whole."""
    folder = log_folder(run_key, attempt)
    return (folder if source == DRIVER else f"{folder}{source}/"), f"{folder}{source}.log"


def _chunks(store: Store, folder: str) -> list[str]:
    return [
        path
        for path in store.list(folder)
        if _start(path) >= 0 and "/" not in path.removeprefix(folder)
    ]


def _start(path: str) -> int:
    stem = path.rsplit("/", 1)[-1].removesuffix(".log")
    return int(stem) if stem.isdigit() else -1


def _pieces(store: Store, paths: list[str]) -> Iterator[LogChunk]:
    """The pieces in order, each byte once, also where two overlap."""
    end = 0
    for path in paths:
        first, size = max(_start(path), 0), store.size(path) or 0
        for start in range(max(end - first, 0), size, _READ):
            data = store.get_range(path, start, min(_READ, size - start))
            yield LogChunk("", first + start, data, lost=max(first + start - end, 0))
            end = first + start + len(data)
        end = max(end, first + size)


def _told(pieces: Iterator[LogChunk]) -> Iterator[bytes]:
    """The bytes of the pieces; a line of its own for each gap."""
    last = b"\n"
    for chunk in pieces:
        if chunk.lost:
            yield b"\n" if last != b"\n" else b""
            yield f"[{chunk.lost} bytes of the log are lost]\n".encode()
        yield chunk.data
        last = chunk.data[-1:] or last
