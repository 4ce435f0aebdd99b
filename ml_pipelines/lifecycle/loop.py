"""The one loop: observe, ask what comes next, do it, tell. For every front end and backend."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress

from ml_pipelines.errors import (
    BackendUnavailable,
    JournalCorrupt,
    MlPipelinesError,
    StorageError,
    Superseded,
    Undecided,
)
from ml_pipelines.job.events import Event, JobEnded, Notice, PhaseChanged
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import Verdict, VerdictClass
from ml_pipelines.journal.state import JournalState
from ml_pipelines.lifecycle import ending
from ml_pipelines.lifecycle.decide import Done, next_step
from ml_pipelines.lifecycle.holding import Hold
from ml_pipelines.lifecycle.platform import Platform
from ml_pipelines.lifecycle.steps import (
    CLEAN_UP_PATIENCE_S,
    TICK_S,
    Steps,
    left_to_the_keeper,
)
from ml_pipelines.lifecycle.submit import Job
from ml_pipelines.lifecycle.watching import Watched

STORAGE_PATIENCE_S = 600.0  # how long an ended job waits for run storage to come back
CORRUPT_PATIENCE_S = 60.0  # how long a journal with a gap may turn out to have none
TAKEN_OVER_S = 60.0  # how long we wait for whoever cancelled the job to finish

Trouble = StorageError | Undecided | JournalCorrupt


def follow(job: Job, *, platform: Platform) -> Generator[Event, None, None]:
    """Follow a job to its end; the last event is JobEnded.

    Leaving early (an exception, `close()`, an interrupt) cuts the loop off, not the job: the log
    is kept, the claim is released, and whoever claims the job next goes on. Raises Superseded
    when another process took the loop over, Refused when one holds it and lives, StorageError or
    JournalError when run storage stays away before anything has run.
    """
    yield from follow_within(job, platform, patience_s=STORAGE_PATIENCE_S)


def follow_within(
    job: Job, platform: Platform, *, patience_s: float
) -> Generator[Event, None, None]:
    """As `follow`, and gives run storage up after `patience_s`."""
    loop = _Loop(job, platform, patience_s)
    try:
        yield from loop.events()
    finally:
        loop.leave()


class _Loop:
    def __init__(self, job: Job, platform: Platform, patience_s: float) -> None:
        self._job = job
        self._platform = platform
        self._clock = platform.clock
        self._patience_s = patience_s
        self._hold = Hold(job, platform)
        self._steps = Steps(self._hold)
        self._told: set[str] = set()
        self._away_since: float | None = None

    def events(self) -> Iterator[Event]:
        """All that happens, in order."""
        yield from (Notice(sentence) for sentence in self._job.notices)
        try:
            yield from self._until_done()
        except Superseded:
            yield from self._taken_over()

    def _until_done(self) -> Iterator[Event]:
        while True:
            try:
                state = self._hold.state()
                if not self._hold.claim and not state.cleaned:
                    yield from self._hold.take()
                    continue
                step = next_step(state, self._steps.sight)
                if isinstance(step, Done) or self._steps.left_behind:
                    yield self._job_ended(state)
                    return
                yield from self._steps.carry_out(step)
                self._away_since = None
            except (StorageError, Undecided, JournalCorrupt) as error:
                given_up = yield from self._without_storage(error)
                if given_up:
                    return
            except BackendUnavailable as error:
                yield from self._tell_once(f"{error.message}; the job goes on, we look again")
                self._clock.sleep(1.0)

    def _tell_once(self, sentence: str) -> Iterator[Event]:
        if sentence not in self._told:
            self._told.add(sentence)
            yield Notice(sentence, warning=True)

    # ── run storage is away ─────────────────────────────────────────────────────────────────

    def _without_storage(self, error: Trouble) -> Generator[Event, None, bool]:
        """Observe, and decide nothing; an ended job stays FINISHING, on a clock.

        Returns whether it was given up; the end has been told then.
        """
        now = self._clock.monotonic()
        if self._away_since is None:
            self._away_since = now
            yield Notice(f"{error.message}; decisions wait until run storage answers", warning=True)
        away = now - self._away_since
        if isinstance(error, JournalCorrupt) and away > CORRUPT_PATIENCE_S:
            raise error
        last, watched = self._hold.last, self._steps.watch_what_was_made()
        if last is not None and last.ended is not None:
            return (yield from self._end_without_clean_up(last, error, away))
        if watched is not None and watched.ending is None:
            yield from self._watch_only(watched)
        elif away > self._patience_s:
            if watched is None:
                raise error
            yield self._unrecorded_end(error)
            return True
        self._clock.sleep(TICK_S * 5)
        return False

    def _watch_only(self, watched: Watched) -> Iterator[Event]:
        try:
            self._hold.owe((yield from watched.look()))
        except (BackendUnavailable, StorageError):
            return
        if watched.ending is not None:
            yield PhaseChanged(Phase.FINISHING, "waiting for run storage", watched.number)

    def _end_without_clean_up(
        self, state: JournalState, error: Trouble, away: float
    ) -> Generator[Event, None, bool]:
        if away <= min(CLEAN_UP_PATIENCE_S, self._patience_s):
            self._clock.sleep(TICK_S * 5)
            return False
        yield left_to_the_keeper(error)
        yield self._job_ended(state)
        return True

    def _unrecorded_end(self, error: Trouble) -> JobEnded:
        verdict = Verdict(
            VerdictClass.INFRA,
            f"run storage did not answer for {self._patience_s:.0f} s, so the end is unrecorded",
            (error.message,),
            remedy=f"When it is back: mlp job attach {self._job.run_key}",
        )
        tail = self._steps.watched.log.last if self._steps.watched else ()
        return JobEnded(self._job.run_key, Phase.FAILED, verdict, tail=tail)

    # ── another process took over ───────────────────────────────────────────────────────────

    def _taken_over(self) -> Iterator[Event]:
        """An end is told, and a cancel's is waited for; any other new holder is the one that tells.

        Whoever cancelled may have died since: then the keeper finishes.
        """
        self._hold.lose()
        until = self._clock.monotonic() + TAKEN_OVER_S
        while True:
            try:
                state = self._hold.state(fresh=True)
            except (StorageError, JournalCorrupt):
                state = None
            if state is not None and state.ended is not None:
                yield self._job_ended(state)
                return
            if state is not None and state.cancelled is None:
                raise Superseded(
                    f"another process follows job {self._job.run_key} now",
                    remedy=f"See it with: mlp job logs {self._job.run_key}",
                )
            if self._clock.monotonic() >= until:
                break
            self._clock.sleep(TICK_S)
        verdict = Verdict(VerdictClass.CANCELLED, "cancelled; its clean-up is under way")
        yield JobEnded(self._job.run_key, Phase.CANCELLED, verdict, tail=self._steps.tail)

    # ── the end ─────────────────────────────────────────────────────────────────────────────

    def _job_ended(self, state: JournalState) -> JobEnded:
        assert state.ended is not None
        store = self._platform.store
        return JobEnded(
            self._job.run_key,
            Phase(state.ended.phase),
            Verdict.from_json(state.ended.verdict or {}),
            result=state.ended.result or {},
            tail=self._steps.tail or ending.last_lines(self._job.run_key, state, store),
            log_url=ending.log_url(state),
            durations=state.ended.durations or {},
        )

    def leave(self) -> None:
        """Keep what was told of the log, and release the claim; the job goes on."""
        if self._steps.watched is not None:
            with suppress(MlPipelinesError):  # else whoever follows next tells those lines again
                self._steps.watched.log.keep()
        self._hold.release()
