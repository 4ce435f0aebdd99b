"""Stops a job for good: claims at once, deletes, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

from ml_pipelines.errors import (
    BackendUnavailable,
    JournalCorrupt,
    MlPipelinesError,
    StorageError,
    StorageUnavailable,
    Undecided,
)
from ml_pipelines.errors import NotFound as NoSuchJob
from ml_pipelines.job.events import Event, JobEnded, Notice
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdicts import cancelled
from ml_pipelines.journal.entries import Draft
from ml_pipelines.journal.state import AttemptRecord, JournalState
from ml_pipelines.lifecycle import ending
from ml_pipelines.lifecycle.logkeeping import DRIVER, LogKeeper, driver_source
from ml_pipelines.lifecycle.loop import follow_within
from ml_pipelines.lifecycle.platform import Platform
from ml_pipelines.lifecycle.settling import Settling
from ml_pipelines.lifecycle.submit import Job, attach_to_end

CANCEL_S = 25.0  # of the 30 s in which nothing may be left
RECORD_S = 5.0  # how long deleting waits for run storage, which may hang for a minute
AGAIN_S = 0.5
KEEP_S = 3.0  # how long deleting waits for the log's last lines to be kept
READ_BYTES = 1 << 20
STREAM_AGAIN_S = 0.1


def cancel(run_key: str, *, platform: Platform, reason: str = "", by: str = "") -> list[Event]:
    """Stop a job in whatever phase, without waiting for anybody's lease.

    Deletes even where run storage can't take the entry, and says so. A job that has ended stays
    as it ended. Raises NotFound, Refused (another machine's job) or BackendUnavailable.
    """
    return list(cancelling(run_key, platform, reason, by))


def cancelling(
    run_key: str,
    platform: Platform,
    reason: str,
    by: str,
    *,
    record_s: float = RECORD_S,
    keep_s: float = KEEP_S,
) -> Iterator[Event]:
    """As `cancel`, told as it happens.

    Deleting waits at most `record_s` for the entry, and `keep_s` for the log.
    """
    clock = platform.clock
    until = clock.monotonic() + CANCEL_S
    record = _Record(run_key, platform, reason, by)
    job = record.within(record_s)
    if job is not None and record.ended is None:
        _keep_log(run_key, platform, keep_s)
    if job is None or record.ended is None:
        yield from _delete_all(run_key, platform, until)
    while job is None and clock.monotonic() < until:
        clock.sleep(AGAIN_S)
        job = record.within(min(record_s, until - clock.monotonic()))
    if job is None:
        yield _unrecorded(run_key, record.problem)
        yield JobEnded(run_key, Phase.CANCELLED, cancelled(by, reason))
        return
    yield from follow_within(job, platform, patience_s=CANCEL_S)


def _keep_log(run_key: str, platform: Platform, keep_s: float) -> None:
    """What the driver wrote so far is kept before it goes with its head; deleting waits a moment.

    In a thread that may be left alone, for run storage may hang.
    """

    def keep() -> None:
        # A journal of its own: this thread may still read when the caller has gone on.
        attempt = platform.journal(run_key).read().open_attempt
        if attempt is None:
            return
        source, kept_as = _driver_of(run_key, attempt, platform)
        keeper = LogKeeper(platform.store, run_key, attempt.number, platform.clock, source=kept_as)
        _read_on(attempt.name, source, keeper, platform)
        keeper.flush(last=True)

    failed: list[BaseException] = []

    def try_to_keep() -> None:
        try:
            keep()
        except Exception:  # noqa: BLE001 - a log that can't be kept never holds up the deletion
            return
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            failed.append(error)

    thread = Thread(target=try_to_keep, name="keep-log", daemon=True)
    thread.start()
    thread.join(keep_s)
    if failed:
        raise failed[0]


def _read_on(name: str, source: str, keeper: LogKeeper, platform: Platform) -> None:
    """Keep what has come by now, or comes within a moment."""
    clock, settling = platform.clock, Settling(platform.clock)
    began = clock.monotonic()
    while clock.monotonic() - began < KEEP_S:
        try:
            chunk = platform.backend.read_log(name, source, keeper.position, READ_BYTES)
        except BackendUnavailable:
            clock.sleep(STREAM_AGAIN_S)
            continue
        if chunk.data:
            settling.heard()
            keeper.add(chunk.start, chunk.data)
            keeper.flush()
        elif settling.over(chunk.silent_s):
            return
        else:
            clock.sleep(STREAM_AGAIN_S)


def _driver_of(run_key: str, attempt: AttemptRecord, platform: Platform) -> tuple[str, str]:
    """What to ask the backend for, and under which name it is kept."""
    if not platform.backend.streams_logs:
        return DRIVER, DRIVER
    rayjob = platform.backend.observe(attempt.name).rayjob
    cluster = rayjob.cluster_name if rayjob else ""
    if not cluster:
        return DRIVER, DRIVER
    return f"{DRIVER}/{cluster}", driver_source(platform.store, run_key, attempt.number, cluster)


class _Record:
    """The cancel's entry, which is a claim in itself; written by a thread that may be left alone.

    `ended` is the job's end where it had one before; `problem` is why there is no entry yet.
    """

    def __init__(self, run_key: str, platform: Platform, reason: str, by: str) -> None:
        self._run_key = run_key
        self._platform = platform
        self._data = {"reason": reason, "by": by}
        self._thread: Thread | None = None
        self._job: Job | None = None
        self._failed: BaseException | None = None
        self.ended: JournalState | None = None
        self.problem: MlPipelinesError = StorageUnavailable(
            f"{platform.store.url} has not answered yet"
        )

    def within(self, seconds: float) -> Job | None:
        """The job once the entry stands, None where it doesn't by then; call again to go on.

        Raises what says that there is nothing to cancel from here.
        """
        if self._thread is None:
            self._thread = Thread(target=self._write, name="cancel", daemon=True)
            self._thread.start()
        self._thread.join(max(seconds, 0.0))
        if self._thread.is_alive():
            return None
        self._thread = None
        error, self._failed = self._failed, None
        if error is None:
            return self._job
        temporary = isinstance(error, StorageError | Undecided | JournalCorrupt)
        if not temporary or isinstance(error, NoSuchJob):
            raise error
        assert isinstance(error, MlPipelinesError)
        self.problem = error
        return None

    def _write(self) -> None:
        try:
            job = attach_to_end(self._run_key, platform=self._platform)
            job.journal.append(self._draft, role="loop", claim=0)
            state = job.journal.read()
            self.ended = state if state.ended is not None else None
            self._job = job
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            self._failed = error

    def _draft(self, state: JournalState) -> Draft | None:
        if state.ended is not None or state.cancelled is not None:
            return None
        return Draft("cancel", self._data)


def _delete_all(run_key: str, platform: Platform, until: float) -> Iterator[Event]:
    """Whatever bears the run key goes; one that stays after the order was taken is told."""
    while True:
        left = ["?"]
        try:
            left = ending.remove_all(run_key, platform)
        except BackendUnavailable:
            if platform.clock.monotonic() >= until:
                raise
        if not left:
            return
        if platform.clock.monotonic() >= until:
            yield Notice(f"{', '.join(left)} is still there after {CANCEL_S:.0f} s", warning=True)
            return
        platform.clock.sleep(AGAIN_S)


def _unrecorded(run_key: str, error: MlPipelinesError) -> Notice:
    return Notice(
        f"job {run_key} is stopped, but that could not be recorded: {error.message}. "
        f"When run storage is back: mlp job cancel {run_key}",
        warning=True,
    )
