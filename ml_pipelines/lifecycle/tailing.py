"""Follows one attempt's logs: the driver's lines and metrics are told once each, all are kept."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

from ml_pipelines.backends.logs import Line, LineAssembler
from ml_pipelines.errors import BackendUnavailable, StorageError
from ml_pipelines.job import wire
from ml_pipelines.job.events import Event, LogLine, MetricPoint, Notice
from ml_pipelines.job.observation import Observation, PodView
from ml_pipelines.job.status import JOB_ENDS
from ml_pipelines.journal.state import AttemptRecord
from ml_pipelines.lifecycle.logkeeping import (
    DRIVER,
    TAIL_LINES,
    LogKeeper,
    driver_source,
    kept_tail,
)
from ml_pipelines.lifecycle.platform import Platform
from ml_pipelines.lifecycle.settling import Settling
from ml_pipelines.lifecycle.submit import Job
from ml_pipelines.lifecycle.workerlogs import WorkerLogs

READ_BYTES = 1 << 20
READS_A_LOOK = 8  # so that a burst of lines can't keep the loop from looking at the job
# How long the rest of a log is waited for: of an ended driver, where nothing of it comes meanwhile.
FINAL_READS_S = 30.0
AGAIN_S = 0.1
UNKEPT_BYTES = 16 << 20  # as much waits in memory for run storage; the rest waits where it is


class LogTail:
    """The logs of the open attempt. They never decide about life or death.

    Where it goes on is known to run storage: so it begins once that answers. `busy` while there
    is more to read, `heard` once a line has come. A driver that a queue started again on another
    Ray cluster has another log, told and kept from its beginning.
    """

    def __init__(self, job: Job, attempt: AttemptRecord, platform: Platform) -> None:
        self._job = job
        self._number, self._name = attempt.number, attempt.name
        self._platform = platform
        self._streamed = platform.backend.streams_logs
        self._keeper: LogKeeper | None = None
        self._source = "" if self._streamed else DRIVER  # what the backend is asked for
        self._cluster = ""
        self._earlier: list[LogKeeper] = []
        self._workers = WorkerLogs(job.run_key, attempt.number, attempt.name, platform)
        self._pods: tuple[PodView, ...] = ()
        self._lines = LineAssembler()
        self._last: deque[str] = deque(maxlen=TAIL_LINES)
        self._trouble = ""
        self._silent_s = math.inf  # of the driver's log, as LogChunk
        self._told_to = 0
        self._driver_ended = False
        self.busy = False
        self.heard = False

    @property
    def last(self) -> tuple[str, ...]:
        """The last lines, without metrics."""
        return tuple(self._last)

    def read(self, seen: Observation) -> Iterator[Event]:
        """Tell what is new, a bounded part of it."""
        self.busy = False
        self._pods = seen.pods or self._pods
        self._driver_ended = seen.rayjob is not None and seen.rayjob.job_status in JOB_ENDS
        try:
            yield from self._turn_to(seen)
            if self._source:
                yield from self._read_driver(self.keeper())
        except StorageError:
            return
        self._workers.read(self._pods)
        yield from self._workers.news()

    def read_rest(self) -> Iterator[Event]:
        """The attempt has ended: tell all that its driver wrote.

        A stream may be behind: it counts as read once nothing has come for a moment. A driver that
        goes on, though its attempt is given up, is listened to for a while.
        """
        clock, settling = self._platform.clock, Settling(self._platform.clock)
        told_at = clock.monotonic()
        while self._source:
            before = self._lines.position
            try:
                yield from self._read_driver(self.keeper())
            except StorageError:
                break
            told, came = self._lines.position != before, self._workers.read(self._pods, now=True)
            if told or came:
                settling.heard()
            if told and self._driver_ended:
                told_at = clock.monotonic()
            if not self.busy and settling.over(self._silent_s, self._workers.silent_s):
                break
            if clock.monotonic() - told_at > FINAL_READS_S:
                break
            if not told and not came:
                clock.sleep(AGAIN_S)
        yield from self._tell(self._lines.flush())

    def keep(self) -> None:
        """Keep what was told so far, and no more: whoever follows next tells the rest."""
        if self._keeper is not None:
            self._keeper.flush(due=True, upto=self._told_to)
        self._workers.keep()

    def finish(self) -> LogKeeper:
        """All is read: hand it to run storage; returns the driver's keeper. Raises StorageError."""
        for keeper in self._earlier:
            keeper.flush(due=True, last=True)
        self._workers.keep(last=True)
        return self.keeper()

    def keeper(self) -> LogKeeper:
        """Who keeps it; goes on where the one before ended. Raises StorageError."""
        if self._keeper is None:
            self._begin(DRIVER)
        assert self._keeper is not None
        return self._keeper

    def _begin(self, kept_as: str) -> None:
        store, key = self._platform.store, self._job.run_key
        keeper = LogKeeper(store, key, self._number, self._platform.clock, source=kept_as)
        for text in kept_tail(store, key, self._number, kept_as):
            message = wire.parse(text)  # told before, by whoever followed then
            if isinstance(message, wire.Metric):
                self._job.gate.admits(message)
            elif message is None:
                self._last.append(text)
        self._lines = LineAssembler(start=keeper.offset)
        self._told_to = keeper.offset
        self._keeper = keeper

    def _turn_to(self, seen: Observation) -> Iterator[Event]:
        """Follow the driver of the cluster that is there now, once its head tells its log."""
        cluster = seen.rayjob.cluster_name if self._streamed and seen.rayjob else ""
        ships = any(pod.role == "head" and pod.ships_log for pod in seen.pods)
        if not cluster or cluster == self._cluster or not ships:
            return
        kept_as = driver_source(self._platform.store, self._job.run_key, self._number, cluster)
        if self._cluster:
            yield from self.read_rest()
            assert self._keeper is not None
            self._earlier.append(self._keeper)
            self._last.clear()
        self._begin(kept_as)
        self._source, self._cluster = f"{DRIVER}/{cluster}", cluster

    def _read_driver(self, keeper: LogKeeper) -> Iterator[Event]:
        self.busy = False
        for _ in range(READS_A_LOOK):
            if keeper.unkept >= UNKEPT_BYTES:
                break
            try:
                chunk = self._platform.backend.read_log(
                    self._name, self._source, self._lines.position, READ_BYTES
                )
            except BackendUnavailable as error:
                if error.message != self._trouble:
                    self._trouble = error.message
                    yield Notice(f"the log can't be read now: {error.message}", warning=True)
                self._silent_s = 0.0
                break
            self._trouble, self._silent_s = "", chunk.quiet_s
            if not chunk.data and not chunk.lost:
                break
            keeper.add(chunk.start, chunk.data)
            yield from self._tell(self._lines.feed_chunk(chunk))
            self.busy = len(chunk.data) >= READ_BYTES
            if not self.busy:
                break
        keeper.flush()

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
                    yield LogLine(DRIVER, line.text, line.offset, self._number)
