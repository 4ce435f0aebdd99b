"""The log of one pod as its log container tells it, followed by a thread: each byte once.

The container's records carry their place (`spec/ship_logs.py`), so after any break the same stream
is opened again and what is known is passed over; what is missing between two records is told.
"""

from __future__ import annotations

import math
import re
import threading
from collections import deque
from typing import TYPE_CHECKING

from ml_pipelines.backends.base import LogChunk
from ml_pipelines.backends.kubeapi import KubeError, KubeInvalid, KubeNotFound
from ml_pipelines.errors import BackendUnavailable
from ml_pipelines.spec.logship import CONTAINER

if TYPE_CHECKING:
    from ml_pipelines.backends.kubeapi import Api, Stream

BUFFER_BYTES = 8 << 20
STALL_S = 100.0  # the container says something every 30 s
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 30.0
NOT_THERE = 3  # so often a pod is not found before its log is given up

_RECORD = re.compile(rb"(\d+)([ +])")


class _Run:
    """Bytes without a gap, from `start` on."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.data = bytearray()

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class PodLog:
    """What one pod's container tells of one log (`tag`), from `start` on.

    `read` serves from memory; the thread waits where more than `room` bytes lie there. `over` is
    set once there is no more to come.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        tag: str,
        *,
        start: int,
        room: int = BUFFER_BYTES,
        stall_s: float = STALL_S,
    ) -> None:
        self._api = api
        self._path = path
        self._tag = tag.encode() + b" "
        self._end_comment = b"# " + self._tag + b"ends at "
        self._room = room
        self._stall_s = stall_s
        self._changed = threading.Condition()
        self._runs: deque[_Run] = deque()
        self._floor = start  # what lies before it was read, and is no longer held
        self._next = start  # where the next record should begin
        self._ends_at = -1  # where it was said last that nobody writes it any more
        self._turn = 0  # how often it began anew somewhere else
        self._stream: Stream | None = None
        self._heard_at = -math.inf  # when the stream was opened, or told something, known or new
        self.came = start > 0  # whether it ever told anything, here or to whoever followed before
        self._stopped = False
        self.trouble: KubeError | None = None
        self.container_over = False
        self.over = False
        self._thread = threading.Thread(target=self._follow, name=f"log-{path}", daemon=True)
        self._thread.start()

    def read(self, source: str, offset: int, limit: int) -> LogChunk:
        """What has come since `offset`. Raises BackendUnavailable while it can't be followed."""
        with self._changed:
            if not self._floor <= offset <= max(self._next, self._floor):
                self._begin_at(offset)
            self._floor = offset
            while self._runs and self._runs[0].end <= offset:
                self._runs.popleft()
            self._changed.notify_all()
            if not self._runs:
                self._raise_trouble()
                return LogChunk(source, offset, b"", silent_s=self._silent_s())
            run = self._runs[0]
            known = max(offset - run.start, 0)
            del run.data[:known]
            run.start += known
            lost = run.start - offset
            return LogChunk(source, run.start, bytes(run.data[:limit]), lost=lost)

    @property
    def ended(self) -> bool:
        """Whether its writers have closed it, and all that they wrote has come."""
        with self._changed:
            return self._ends_at == self._next

    def _silent_s(self) -> float:
        if self.over or self._ends_at == self._next:
            return math.inf
        return self._api.clock.monotonic() - self._heard_at if self._stream else 0.0

    def _raise_trouble(self) -> None:
        trouble = self.trouble
        if trouble is not None:
            if self.over:
                self.trouble = None  # said once: no more will come
            raise BackendUnavailable(trouble.message, remedy=trouble.remedy)

    def stop(self) -> None:
        """End the thread; what was not read is forgotten."""
        with self._changed:
            self._stopped = True
            self._abort()
            self._changed.notify_all()

    def is_over(self) -> None:
        """Its container has ended: what is there now is all."""
        with self._changed:
            self.container_over = True
            self._changed.notify_all()

    def joined(self, timeout_s: float) -> bool:
        """Whether the thread has ended within that time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ── the thread ──────────────────────────────────────────────────────────────────────────

    def _follow(self) -> None:
        wait, missing, whole = FIRST_WAIT_S, 0, False
        while not self._stopped:
            before, over, turn = self._next, self.container_over, self._turn
            try:
                self._read_stream()
                self.trouble, missing, whole = None, 0, True
                if self._is_at_end(turn, over=over):
                    return
            except KubeNotFound as error:
                # Its log ended before the pod went: then nothing is missing.
                missing += 1
                self.trouble = error if missing >= NOT_THERE and not whole else None
                if self._is_at_end(turn, over=missing >= NOT_THERE):
                    return
            except KubeError as error:
                waits = isinstance(error, KubeInvalid) and "waiting to start" in error.message
                self.trouble, whole = None if waits else error, False
            wait = FIRST_WAIT_S if self._next != before else min(wait * 2, LONGEST_WAIT_S)
            self._wait(wait, over=over)
        self.over = True

    def _is_at_end(self, turn: int, *, over: bool) -> bool:
        """Decided where no reader can ask for something else at the same time."""
        with self._changed:
            self.over = over and turn == self._turn
            return self.over

    def _wait(self, seconds: float, *, over: bool) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self.container_over != over, seconds)

    def _read_stream(self) -> None:
        query = {"container": CONTAINER, "follow": "true"}
        with self._api.stream(self._path, query=query, read_timeout_s=self._stall_s) as stream:
            with self._changed:
                self._stream, turn = stream, self._turn
                self._heard_at = self._api.clock.monotonic()
                if self._stopped:
                    return
            self.trouble = None
            part = b""
            try:
                for chunk in stream:
                    *records, part = (part + chunk).split(b"\n")
                    if not self._take(records, turn):
                        return
            finally:
                with self._changed:
                    self._stream = None

    def _take(self, records: list[bytes], turn: int) -> bool:
        """Keep what is new, when there is room for it; False where the stream is of no more use."""
        with self._changed:
            self._changed.wait_for(lambda: self._ends(turn) or self.held < self._room)
            if self._ends(turn):
                return False
            for record in records:
                self._add(record)
            self._heard_at = self._api.clock.monotonic()
            self._changed.notify_all()
            return True

    def _ends(self, turn: int) -> bool:
        return self._stopped or turn != self._turn

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return sum(len(run.data) for run in self._runs)

    def _add(self, record: bytes) -> None:
        expected = b"%s%d " % (self._tag, self._next)
        if record.startswith(expected):  # nearly always
            self._append(self._next, record[len(expected) :] + b"\n")
            return
        found = _RECORD.match(record, len(self._tag)) if record.startswith(self._tag) else None
        if found is None:
            self._note_end(record)
            return
        start = int(found[1])
        text = record[found.end() :] + (b"\n" if found[2] == b" " else b"")
        known = max(self._next - start, 0)
        if known < len(text):
            self._append(start + known, text[known:])

    def _note_end(self, comment: bytes) -> None:
        end = comment.removeprefix(self._end_comment)
        if end != comment and end.isdigit():
            self._ends_at = int(end)
            if self._ends_at > self._next:  # the last lines are lost: no later one shows the gap
                self._append(self._ends_at, b"")

    def _append(self, start: int, text: bytes) -> None:
        if not self._runs or self._runs[-1].end != start:
            self._runs.append(_Run(start))
        self._runs[-1].data += text
        self._next = start + len(text)
        self.came = True

    def _begin_at(self, offset: int) -> None:
        """Another reader wants it from elsewhere: read the stream again from its beginning."""
        self._runs.clear()
        self._next = offset
        self._turn += 1
        self._abort()
        if self.over and not self._stopped:
            self.over = False
            self._thread = threading.Thread(
                target=self._follow, name=f"log-{self._path}", daemon=True
            )
            self._thread.start()

    def _abort(self) -> None:
        if self._stream is not None:
            self._stream.abort()
