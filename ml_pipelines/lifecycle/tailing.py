"""Follows one attempt's log: lines and metrics are told once each, and kept in run storage."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ml_pipelines.backends.logs import Line, LineAssembler
from ml_pipelines.errors import BackendUnavailable, StorageError
from ml_pipelines.job import wire
from ml_pipelines.job.events import Event, LogLine, MetricPoint, Notice
from ml_pipelines.journal.state import AttemptRecord
from ml_pipelines.lifecycle.logkeeping import TAIL_LINES, LogKeeper, kept_tail
from ml_pipelines.lifecycle.platform import Platform
from ml_pipelines.lifecycle.submit import Job

READ_BYTES = 1 << 20
READS_A_LOOK = 8  # so that a burst of lines can't keep the loop from looking at the job
FINAL_READS_S = 30.0  # how long the rest of an ended driver's log is read
UNKEPT_BYTES = 32 << 20  # as much waits in memory for run storage; the rest waits where it is


class LogTail:
    """The log of the open attempt. It never decides about life or death.

    Where it goes on is known to run storage: so it begins once that answers. `busy` while there
    is more to read, `heard` once a line has come.
    """

    def __init__(self, job: Job, attempt: AttemptRecord, platform: Platform) -> None:
        self._job = job
        self._number, self._name = attempt.number, attempt.name
        self._platform = platform
        self._keeper: LogKeeper | None = None
        self._lines = LineAssembler()
        self._last: deque[str] = deque(maxlen=TAIL_LINES)
        self._trouble = ""
        self._told_to = 0
        self.busy = False
        self.heard = False

    @property
    def last(self) -> tuple[str, ...]:
        """The last lines, without metrics."""
        return tuple(self._last)

    def read(self) -> Iterator[Event]:
        """Tell what is new, a bounded part of it."""
        self.busy = False
        try:
            keeper = self._keeper or self.keeper()
        except StorageError:
            return
        for _ in range(READS_A_LOOK):
            if keeper.unkept >= UNKEPT_BYTES:
                break
            try:
                chunk = self._platform.backend.read_log(
                    self._name, "driver", self._lines.position, READ_BYTES
                )
            except BackendUnavailable as error:
                if error.message != self._trouble:
                    self._trouble = error.message
                    yield Notice(f"the log can't be read now: {error.message}", warning=True)
                break
            self._trouble = ""
            if not chunk.data and not chunk.lost:
                break
            keeper.add(chunk.start, chunk.data)
            yield from self._tell(self._lines.feed_chunk(chunk))
            self.busy = len(chunk.data) >= READ_BYTES
            if not self.busy:
                break
        keeper.flush()

    def read_rest(self) -> Iterator[Event]:
        """The driver has ended: tell all that it still wrote."""
        until = self._platform.clock.monotonic() + FINAL_READS_S
        while True:
            yield from self.read()
            if not self.busy or self._platform.clock.monotonic() > until:
                break
        yield from self._tell(self._lines.flush())

    def keep(self) -> None:
        """Keep what was told so far, and no more: whoever follows next tells the rest."""
        if self._keeper is not None:
            self._keeper.flush(due=True, upto=self._told_to)

    def keeper(self) -> LogKeeper:
        """Who keeps it; goes on where the one before ended. Raises StorageError."""
        if self._keeper is None:
            store, clock = self._platform.store, self._platform.clock
            keeper = LogKeeper(store, self._job.run_key, self._number, clock)
            for text in kept_tail(store, self._job.run_key, self._number):
                message = wire.parse(text)  # told before, by whoever followed then
                if isinstance(message, wire.Metric):
                    self._job.gate.admits(message)
                elif message is None:
                    self._last.append(text)
            self._lines = LineAssembler(start=keeper.offset)
            self._told_to = keeper.offset
            self._keeper = keeper
        return self._keeper

    def _tell(self, lines: list[Line]) -> Iterator[Event]:
        self.heard |= bool(lines)
        ends = [*(line.offset for line in lines[1:]), self._lines.cursor]
        for line, end in zip(lines, ends, strict=False):
            self._told_to = end
            match wire.parse(line.text):
                case wire.Metric() as metric:
                    if self._job.gate.admits(metric):
                        yield MetricPoint(metric.step, metric.values, self._number)
                case wire.Progress() as progress:
                    yield Notice(progress.text)
                case wire.Malformed() as malformed:
                    yield Notice(malformed.sentence, warning=True)
                case _:
                    self._last.append(line.text)
                    yield LogLine("driver", line.text, line.offset, self._number)
