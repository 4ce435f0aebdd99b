"""How a workload reports: parameters, live metrics, commits, its result.

    with driver() as run:
        run.metric(step, loss=0.3)          a line of the log, seen in Dagster while it runs
        run.commit("checkpoint", path=...)  makes data that was written before count
        run.result({"auc": 0.8})            what the job owes

Only the driver process appends to the journal, and only under its claim: once a newer driver has
claimed, every commit raises Superseded and this one must end. While storage is away commits are
tried again, and the training goes on.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ml_pipelines import settings
from ml_pipelines.clock import Clock, SystemClock
from ml_pipelines.errors import (
    InvalidInput,
    MlPipelinesError,
    StorageUnavailable,
    Undecided,
)
from ml_pipelines.job import wire
from ml_pipelines.journal.record import Journal
from ml_pipelines.storage import Lake, Store, open_store

if TYPE_CHECKING:
    from ml_pipelines.journal.fold import Commit

T = TypeVar("T")

METRIC_EVERY_S = 0.5
RETRY_EVERY_S = 5.0
COMMIT_BUDGET_S = 3600.0  # how long a result waits for storage; the job's own clocks are shorter


class MetricLines:
    """Prints metric lines, at most one in METRIC_EVERY_S; works in any process of a job.

    A metric that comes too soon is held back and replaced by the next; `close` prints the last.
    """

    def __init__(self, claim: int, *, clock: Clock | None = None) -> None:
        self._claim, self._clock = claim, clock or SystemClock()
        self._printed_at: float | None = None
        self._held: tuple[int, Mapping[str, float]] | None = None

    def __call__(self, step: int, **values: float) -> None:
        now = self._clock.monotonic()
        self._held = (step, values)
        if self._printed_at is None or now - self._printed_at >= METRIC_EVERY_S:
            self._printed_at = now
            self.close()

    def close(self) -> None:
        """Print what is held back."""
        if self._held is not None:
            step, values = self._held
            self._held = None
            print(wire.encode_metric(step, values, claim=self._claim), flush=True)


@dataclass(frozen=True, slots=True)
class Seat:
    """A driver's claim, as it travels to the other processes that act for the driver."""

    runs: str
    run_key: str
    writer: str
    claim: int

    def journal(self, clock: Clock | None = None) -> Journal:
        """The job's journal, to be written under this claim."""
        return Journal(open_store(self.runs), self.run_key, writer=self.writer, clock=clock)


class Run:
    """What a driver knows of its job and may do for it. Made by `driver`.

    `params` is the job's config, `spec` the whole resolved spec; `prefix` is this driver's own
    place in run storage (`store`), ending in a slash.
    """

    def __init__(
        self, *, seat: Seat, journal: Journal, lake: Lake, store: Store, clock: Clock
    ) -> None:
        state = journal.read()
        assert state.birth is not None
        assert state.driver is not None
        self.seat, self.lake, self.store = seat, lake, store
        self.claim, self.run_key = seat.claim, seat.run_key
        self.spec: dict[str, Any] = dict(state.birth.spec)
        self.params: dict[str, Any] = dict(self.spec.get("params") or {})
        self.attempt = state.driver.attempt
        self.prefix = f"jobs/{seat.run_key}/a{self.attempt}/i{seat.claim}/"
        self.metric = MetricLines(seat.claim, clock=clock)
        self._journal, self._clock = journal, clock

    def progress(self, text: str, *, done: float | None = None, total: float | None = None) -> None:
        """Say how far it is, in one line for people."""
        print(wire.encode_progress(text, done=done, total=total, claim=self.claim), flush=True)

    def commits(self, what: str) -> list[Commit]:
        """All commits of that kind that count, of earlier attempts too, newest first."""
        return [each for each in reversed(self._journal.read().commits) if each.what == what]

    def latest(self, what: str) -> Commit | None:
        """The newest commit of that kind, or None."""
        return next(iter(self.commits(what)), None)

    def commit(
        self, what: str, *, path: str = "", sha256: str = "", data: Mapping[str, Any] | None = None
    ) -> Commit:
        """Make count what was written under `path`; waits for storage. Raises Superseded."""
        return patiently(
            lambda: self._journal.commit(self.claim, what, path=path, sha256=sha256, data=data),
            say=self.progress,
            clock=self._clock,
        )

    def result(self, values: Mapping[str, Any]) -> Commit:
        """Commit what the job owes, plain JSON; once, at the end."""
        return self.commit("result", data=values)


@contextmanager
def driver(
    environ: Mapping[str, str] | None = None, *, clock: Clock | None = None
) -> Iterator[Run]:
    """Claim the driver's seat of the job that the environment names.

    Errors of ours that come out of Ray wrapped in Ray's are raised as they were. Raises
    InvalidInput outside a job and Superseded where this attempt is not the open one.
    """
    environ = os.environ if environ is None else environ
    clock = clock or SystemClock()
    try:
        run = _claimed(environ, clock)
        yield run
        run.metric.close()
    except MlPipelinesError:
        raise
    except Exception as err:  # Ray's wrappers have no base class of their own
        ours = _ours_within(err)
        if ours is None:
            raise
        raise ours from err


def patiently(act: Callable[[], T], *, say: Callable[[str], None], clock: Clock) -> T:
    """Do it, again and again while storage is away, for at most COMMIT_BUDGET_S."""
    deadline = clock.monotonic() + COMMIT_BUDGET_S
    while True:
        try:
            return act()
        except (StorageUnavailable, Undecided) as err:
            if clock.monotonic() >= deadline:
                raise
            say(f"run storage is away, trying again: {err}")
        clock.sleep(RETRY_EVERY_S)


class Committer:
    """Commits from a process that must not wait (Ray Train's controller), newest first.

    A thread does what was last posted; what came before and was not done yet is let go, for a newer
    checkpoint replaces it. `post` raises what the thread met: Superseded above all.
    """

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._condition = threading.Condition()
        self._waiting: Callable[[Journal], None] | None = None
        self._met: Exception | None = None
        self._thread: threading.Thread | None = None

    def __reduce__(self) -> tuple[type[Committer], tuple[Seat]]:
        return Committer, (self._seat,)

    def post(self, act: Callable[[Journal], None]) -> None:
        """Ask for something to be done with the job's journal, and return at once."""
        if self._met is not None:
            raise self._met
        with self._condition:
            self._waiting = act
            self._condition.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True, name="commits")
            self._thread.start()

    def drain(self) -> None:
        """Wait until nothing is asked for any more, or it can't be done."""
        with self._condition:
            self._condition.wait_for(lambda: self._waiting is None or self._met is not None)

    def _work(self) -> None:
        clock = SystemClock()
        try:
            journal = self._seat.journal()
            while True:
                with self._condition:
                    self._condition.wait_for(lambda: self._waiting is not None)
                    act = self._waiting
                assert act is not None
                patiently(partial(act, journal), say=print, clock=clock)
                with self._condition:
                    if self._waiting is act:
                        self._waiting = None
                    self._condition.notify_all()
        except Exception as err:  # noqa: BLE001  # told by the next `post`
            with self._condition:
                self._met = err
                self._condition.notify_all()


def code_version() -> str:
    """Twelve digits of a hash of the workloads' code: what a model was made by."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _claimed(environ: Mapping[str, str], clock: Clock) -> Run:
    runs, run_key = (
        _needed(environ, settings.RUNS_VARIABLE),
        _needed(environ, settings.RUN_KEY_VARIABLE),
    )
    attempt = int(environ.get(settings.ATTEMPT_VARIABLE) or 1)
    cluster = environ.get(settings.CLUSTER_VARIABLE) or environ.get("RAY_CLUSTER_NAME") or ""
    store = open_store(runs)
    writer = f"driver-{socket.gethostname()[:40]}-{uuid.uuid4().hex[:8]}"
    journal = Journal(store, run_key, writer=writer, clock=clock)
    if patiently(journal.read, say=print, clock=clock).birth is None:
        raise InvalidInput(
            settings.RUN_KEY_VARIABLE,
            run_key,
            f"has no journal in {runs}",
            remedy="Submit the job with `mlp job submit` or from Dagster.",
        )
    claim = patiently(lambda: journal.claim_driver(attempt, cluster), say=print, clock=clock)
    seat = Seat(runs, run_key, writer, claim.number)
    lake = Lake(open_store(_needed(environ, settings.LAKE_VARIABLE)))
    return Run(seat=seat, journal=journal, lake=lake, store=store, clock=clock)


def _needed(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name)
    if not value:
        raise InvalidInput(
            name, None, "is not set", remedy="This runs inside a job: use `mlp job submit`."
        )
    return value


def _ours_within(err: BaseException) -> MlPipelinesError | None:
    """The first error of ours among an exception's causes and Ray's wrappings."""
    seen: list[BaseException] = []
    todo: list[object] = [err]
    while todo:
        each = todo.pop(0)
        if not isinstance(each, BaseException) or each in seen:
            continue
        if isinstance(each, MlPipelinesError):
            return each
        seen.append(each)
        failures = getattr(each, "worker_failures", {})
        todo += [getattr(each, "cause", None), getattr(each, "_base_exc", None), each.__cause__]
        todo += [failures[rank] for rank in sorted(failures)]
    return None
