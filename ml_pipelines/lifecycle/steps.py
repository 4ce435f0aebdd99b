"""Carries out what was decided: one step of a job's life each, told as it happens."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from ml_pipelines.errors import (
    BackendError,
    BackendRefused,
    BackendUnavailable,
    InvalidData,
    InvalidInput,
    MlPipelinesError,
    QuotaUsedUp,
    Refused,
    StorageError,
    Superseded,
    Undecided,
)
from ml_pipelines.job.events import AttemptEnded, Event, Notice, Submitted
from ml_pipelines.job.observation import RayJobView
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import Verdict, VerdictClass
from ml_pipelines.journal.entries import Draft
from ml_pipelines.journal.state import AttemptRecord, JournalState
from ml_pipelines.lifecycle import ending
from ml_pipelines.lifecycle.decide import (
    CleanUp,
    Close,
    Create,
    Finish,
    Open,
    Sight,
    Step,
    Watch,
    next_step,
    result_entry,
)
from ml_pipelines.lifecycle.holding import Hold
from ml_pipelines.lifecycle.resuming import past_of
from ml_pipelines.lifecycle.submit import manifest_of
from ml_pipelines.lifecycle.watching import Watched

TICK_S = 0.15  # between two looks; a look at KubeRay reads our own cache, not the server
STRAYS_EVERY_S = 30.0
CLEAN_UP_PATIENCE_S = 30.0  # how long the end waits to be told for what the keeper can do as well


@dataclass(frozen=True, slots=True)
class _Made:
    """A RayJob that this loop created (or adopted), not before `at` on `boottime`."""

    attempt: int
    view: RayJobView
    at: float


class Steps:
    """The steps under one hold.

    `watched` is the open attempt as it is seen; `left_behind` is set where the job has ended and
    its clean-up is left to the keeper; `tail` holds the last lines of the last attempt's log.
    """

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._job = hold.job
        self._platform = hold.platform
        self._clock = hold.platform.clock
        self.watched: Watched | None = None
        self.left_behind = False
        self.tail: tuple[str, ...] = ()
        self._strays_at = self._clock.monotonic()
        self._cleaning_since: float | None = None
        self._made: _Made | None = None  # the last RayJob that this loop created

    @property
    def sight(self) -> Sight | None:
        """What is known of the open attempt beyond the journal."""
        return self.watched.sight if self.watched else None

    def carry_out(self, step: Step) -> Iterator[Event]:
        """Do it. Raises StorageError, Undecided, BackendError: then it is decided anew."""
        match step:
            case Open():
                yield from self._open(step)
            case Create():
                yield from self._create(step.attempt)
            case Watch():
                yield from self._watch(step.attempt)
            case Close():
                yield from self._close(step)
            case Finish():
                self._finish(step)
            case CleanUp():
                yield from self._clean_up()

    # ── an attempt begins ───────────────────────────────────────────────────────────────────

    def _open(self, step: Open) -> Iterator[Event]:
        self.watched = None
        if step.number > 1:
            yield from self._until_gone()
        self._wait(step.delay_s)
        name = self._job.attempt_name(step.number)

        def decide(state: JournalState) -> Draft | None:
            now = next_step(state, None)
            if not (isinstance(now, Open) and now.number == step.number):
                return None
            return Draft("attempt", {"number": step.number, "name": name})

        self._hold.append(decide)

    def _until_gone(self) -> Iterator[Event]:
        """Wait until no ended attempt's RayJob is there; says so where that takes too long."""
        drain_s = self._job.spec.limits.drain_s
        until = self._clock.monotonic() + drain_s
        while left := self._remove_ended():
            if self._clock.monotonic() >= until:
                yield Notice(
                    f"{', '.join(left)} is still there after {drain_s} s; "
                    "what it writes counts no more",
                    warning=True,
                )
                return
            self._clock.sleep(0.5)

    def _remove_ended(self) -> list[str]:
        """Delete the RayJobs of ended attempts; returns the names of those that were there.

        What is listed before the hold is proved was made under this claim or an older one; so the
        attempt of a loop that has just taken over is never among it.
        """
        labels = ending.labels_of(self._job.run_key, self._hold.last, self._platform)
        listed = self._platform.backend.list(labels)
        state = self._hold.must_hold()
        over = {attempt.name for attempt in state.attempts if attempt.ended}
        found = [view for view in listed if view.name in over]
        for view in found:
            self._platform.backend.delete(view.name, view.uid)
        return [view.name for view in found]

    def _wait(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        while self._clock.monotonic() < until:
            self._hold.state()
            self._clock.sleep(min(TICK_S * 5, seconds))

    def _create(self, attempt: AttemptRecord) -> Iterator[Event]:
        self._hold.must_hold()
        made = self._made
        if made is None or made.attempt != attempt.number:
            # Once only: where its uid can't be noted it may have ended and gone by the next try.
            at = self._clock.boottime()
            try:
                # The platform file may have changed since the job was checked.
                manifest = manifest_of(self._job, attempt.number, self._platform)
                view = self._platform.backend.create(manifest)
            except (BackendRefused, InvalidInput, Refused) as error:
                yield from self._end_attempt(attempt, _refused(attempt, error))
                return
            made = self._made = _Made(attempt.number, view, at)
        record = {"number": attempt.number, "uid": made.view.uid}
        try:
            self._hold.append(
                lambda state: Draft("created", record) if _still_open(state, attempt) else None
            )
        except Superseded:
            self._withdraw(attempt, made.view)
            raise
        yield Submitted(
            self._job.run_key,
            attempt.number,
            attempt.name,
            self._platform.backend.name,
            adopted=self._job.adopted,
        )

    def _withdraw(self, attempt: AttemptRecord, view: RayJobView) -> None:
        """It was made too late: others went on meanwhile, perhaps without this attempt."""
        try:
            state = self._job.journal.read()
            if state.cancelled is None and _still_open(state, attempt):
                return  # they adopt it
            self._platform.backend.delete(view.name, view.uid)
        except MlPipelinesError:
            return  # then the holder removes it, or the keeper

    # ── while it lives ──────────────────────────────────────────────────────────────────────

    def _watch(self, attempt: AttemptRecord) -> Iterator[Event]:
        assert self._hold.last is not None
        watched = self._watch_for(attempt, self._hold.last)
        changes = yield from watched.look()
        self._hold.note(changes)
        if watched.ending is not None:
            state = self._hold.state(fresh=True)
            watched.judge(state, owes_result=self._job.spec.owes_result)
            return
        self._remove_strays()
        if not watched.log.busy:
            self._clock.sleep(TICK_S)

    def watch_what_was_made(self) -> Watched | None:
        """Without run storage: what is watched, or was made but can't be noted. No other."""
        state, made = self._hold.last, self._made
        attempt = state.open_attempt if state else None
        if state and made and attempt and made.attempt == attempt.number:
            return self._watch_for(attempt, state)
        return self.watched

    def _watch_for(self, attempt: AttemptRecord, state: JournalState) -> Watched:
        if self.watched is None or self.watched.number != attempt.number:
            made = self._made if self._made and self._made.attempt == attempt.number else None
            self.watched = Watched(
                self._job,
                past_of(state, attempt),
                self._platform,
                made_at=made.at if made else None,
            )
        return self.watched

    def _remove_strays(self) -> None:
        """A creation may arrive after its attempt has ended; it runs beside the open one then."""
        now = self._clock.monotonic()
        if now - self._strays_at < STRAYS_EVERY_S:
            return
        self._strays_at = now
        if len(self._hold.state().attempts) > 1:
            try:
                self._remove_ended()
            except BackendError:
                return  # at the next time

    # ── it ends ─────────────────────────────────────────────────────────────────────────────

    def _close(self, step: Close) -> Iterator[Event]:
        assert self.watched is not None
        assert self.watched.sight is not None
        sight = self.watched.sight
        yield from self._end_attempt(step.attempt, sight, step)

    def _end_attempt(
        self, attempt: AttemptRecord, sight: Sight, step: Close | None = None
    ) -> Generator[Event, None, None]:
        """Record the end, unless a result came in after the verdict was made; then delete."""
        verdict = step.verdict if step else sight.verdict
        assert verdict is not None
        data = {
            "number": attempt.number,
            "verdict": verdict.to_json(),
            "phase": str(step.phase if step else sight.phase),
            "elapsed_s": round(sight.elapsed_s, 3),
            "durations": self.watched.durations if self.watched else {},
        }

        def decide(state: JournalState) -> Draft | None:
            news = step is not None and sight.result != result_entry(state)
            return None if news or not _still_open(state, attempt) else Draft("attempt_end", data)

        if not self._hold.append(decide):
            return
        yield AttemptEnded(attempt.number, verdict, step.decision.sentence if step else "")
        try:
            self._remove_ended()
        except BackendError as error:
            yield Notice(f"{attempt.name} can't be deleted now: {error.message}", warning=True)
        if self.watched is not None:
            self.tail = self.watched.log.last
            try:
                ending.record_log(
                    self._job, self.watched.log.finish(), attempt.number, self._hold.claim
                )
            except (StorageError, Undecided) as error:
                yield Notice(f"the log is kept in pieces for now: {error.message}")

    def _finish(self, step: Finish) -> None:
        state = self._hold.state(fresh=True)
        phase, verdict = step.phase, step.verdict
        data: dict[str, Any] = {"durations": ending.total_durations(state)}
        if phase is Phase.SUCCEEDED and state.result is not None:
            try:
                data["result"] = ending.read_result(self._platform.store, state.result, self._clock)
            except InvalidData as error:
                phase = Phase.FAILED
                verdict = Verdict(
                    VerdictClass.INFRA, error.message, verdict.evidence, remedy=error.remedy
                )
        data |= {"phase": str(phase), "verdict": verdict.to_json()}
        self._hold.append(lambda now: Draft("end", data) if now.ended is None else None)

    def _clean_up(self) -> Iterator[Event]:
        now = self._clock.monotonic()
        self._cleaning_since = now if self._cleaning_since is None else self._cleaning_since
        try:
            ending.clean_up(self._job, self._platform, self._hold.claim)
        except BackendError as error:
            waits = now - self._cleaning_since < CLEAN_UP_PATIENCE_S
            if isinstance(error, BackendUnavailable) and waits:
                raise
            yield left_to_the_keeper(error)
            self.left_behind = True
        self._hold.dirty()


def left_to_the_keeper(error: MlPipelinesError) -> Notice:
    """Said of an ended job."""
    return Notice(
        f"could not be cleaned up now: {error.message}; the keeper tries again", warning=True
    )


def _still_open(state: JournalState, attempt: AttemptRecord) -> bool:
    return state.open_attempt is not None and state.open_attempt.number == attempt.number


def _refused(attempt: AttemptRecord, error: MlPipelinesError) -> Sight:
    cls = VerdictClass.CAPACITY if isinstance(error, QuotaUsedUp) else VerdictClass.CONFIG
    verdict = Verdict(cls, error.message, (error.message,), remedy=error.remedy)
    return Sight(attempt.number, Phase.FAILED, verdict)
