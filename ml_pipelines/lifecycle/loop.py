"""The one loop: observe, ask what comes next, do it, tell. For every front end and backend."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from ml_pipelines.errors import (
    BackendRefused,
    BackendUnavailable,
    DoesNotFit,
    Refused,
    StorageError,
    Superseded,
    Undecided,
)
from ml_pipelines.job.events import AttemptEnded, Event, JobEnded, Notice, PhaseChanged, Submitted
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import Verdict, VerdictClass
from ml_pipelines.journal.entries import Draft
from ml_pipelines.journal.state import AttemptRecord, JournalState
from ml_pipelines.lifecycle import ending
from ml_pipelines.lifecycle.claiming import hold_loop
from ml_pipelines.lifecycle.decide import (
    CleanUp,
    Close,
    Create,
    Done,
    Finish,
    Open,
    Sight,
    Step,
    Watch,
    next_step,
)
from ml_pipelines.lifecycle.platform import Platform
from ml_pipelines.lifecycle.submit import Job, manifest_of
from ml_pipelines.lifecycle.watching import Watched

TICK_S = 0.15  # between two looks; a look at KubeRay reads our own cache, not the server
JOURNAL_EVERY_S = 2.0  # how soon a newer claim is noticed while nothing happens
STORAGE_PATIENCE_S = 600.0  # how long an ended job waits for run storage to come back
TAKEN_OVER_S = 60.0  # how long we wait for whoever cancelled the job to finish


def follow(job: Job, *, platform: Platform) -> Generator[Event, None, None]:
    """Follow a job to its end; the last event is JobEnded.

    Leaving early (an exception, `close()`, an interrupt) cuts the loop off, not the job: the log
    is kept, the claim is released, and whoever claims the job next goes on. Raises Superseded
    when another process took the loop over, Refused when one holds it and lives.
    """
    loop = _Loop(job, platform)
    try:
        yield from loop.events()
    finally:
        loop.leave()


@dataclass(slots=True)
class _Loop:
    job: Job
    platform: Platform
    claim: int = 0
    watched: Watched | None = None
    told: set[str] = field(default_factory=set)
    storage_away_since: float | None = None
    state: JournalState | None = None
    read_at: float = float("-inf")
    tail: tuple[str, ...] = ()
    left_behind: bool = False

    # ── the loop ────────────────────────────────────────────────────────────────────────────

    def events(self) -> Iterator[Event]:
        """All that happens, in order."""
        yield from (Notice(sentence) for sentence in self.job.notices)
        try:
            if not self.journal_state().cleaned:
                self.claim = yield from hold_loop(self.job, self.platform)
                self.read_at = float("-inf")
            yield from self._until_done()
        except Superseded:
            yield from self._taken_over()

    def _until_done(self) -> Iterator[Event]:
        while True:
            try:
                step = next_step(self.journal_state(), self.watched.sight if self.watched else None)
                if isinstance(step, Done) or self.left_behind:
                    yield self._job_ended()
                    return
                yield from self._carry_out(step)
                self._storage_is_back()
            except (StorageError, Undecided) as error:
                yield from self._without_storage(error)
                if self._out_of_patience():
                    yield self._unrecorded_end(error)
                    return
            except BackendUnavailable as error:
                yield from self._tell_once(f"{error.message}; the job goes on, we look again")
                self.platform.clock.sleep(1.0)

    def _carry_out(self, step: Step) -> Iterator[Event]:
        match step:
            case Open():
                yield from self._open(step)
            case Create():
                yield from self._create(step.attempt)
            case Watch():
                yield from self._watch()
            case Close():
                yield from self._close(step)
            case Finish():
                self._finish(step)
            case CleanUp():
                self.left_behind = not (
                    yield from ending.clean_up(self.job, self.platform, self.claim)
                )
                self._dirty()

    # ── the steps ───────────────────────────────────────────────────────────────────────────

    def _open(self, step: Open) -> Iterator[Event]:
        self.watched = None
        if step.number > 1:
            yield from ending.wait_until_gone(self.job, self.platform)
        yield from self._wait(step.delay_s)
        name = self.job.attempt_name(step.number)

        def decide(state: JournalState) -> Draft | None:
            now = next_step(state, None)
            if not (isinstance(now, Open) and now.number == step.number):
                return None
            return Draft("attempt", {"number": step.number, "name": name})

        self._append(decide)

    def _create(self, attempt: AttemptRecord) -> Iterator[Event]:
        manifest = manifest_of(self.job, attempt.number, self.platform)
        self._must_hold()
        try:
            view = self.platform.backend.create(manifest)
        except (BackendRefused, DoesNotFit, Refused) as error:
            verdict = Verdict(
                VerdictClass.CONFIG, error.message, (error.message,), remedy=error.remedy
            )
            yield from self._close_as(attempt, Sight(Phase.FAILED, verdict))
            return
        record = {"number": attempt.number, "uid": view.uid}
        self._append(
            lambda state: Draft("created", record) if _still_open(state, attempt) else None
        )
        yield Submitted(
            self.job.run_key,
            attempt.number,
            attempt.name,
            self.platform.backend.name,
            adopted=self.job.adopted,
        )

    def _watch(self) -> Iterator[Event]:
        watched = self._watching()
        changes = yield from watched.look()
        for change in changes:
            self._append_if_possible(change)
        if watched.ending is not None:
            state = self.journal_state(fresh=True)
            watched.judge(state, owes_result=self.job.spec.owes_result)
        elif not watched.busy:
            self.platform.clock.sleep(TICK_S)

    def _close(self, step: Close) -> Iterator[Event]:
        yield from self._close_as(
            step.attempt, Sight(step.phase, step.verdict, self._elapsed()), step.decision.sentence
        )

    def _close_as(
        self, attempt: AttemptRecord, sight: Sight, decision: str = ""
    ) -> Iterator[Event]:
        assert sight.verdict is not None
        data = {
            "number": attempt.number,
            "verdict": sight.verdict.to_json(),
            "phase": str(sight.phase),
            "elapsed_s": round(sight.elapsed_s, 3),
            "durations": self.watched.durations if self.watched else {},
        }
        wrote = self._append(
            lambda state: Draft("attempt_end", data) if _still_open(state, attempt) else None
        )
        if wrote:
            yield AttemptEnded(attempt.number, sight.verdict, decision)
        if self.watched is not None:
            self.tail = self.watched.tail
            try:
                ending.record_log(self.job, self.watched.keeper, attempt.number, self.claim)
            except StorageError as error:
                yield Notice(f"the log is kept in pieces for now: {error.message}")
        self._must_hold()
        self.platform.backend.delete(attempt.name, attempt.uid)

    def _finish(self, step: Finish) -> None:
        state = self.journal_state(fresh=True)
        data: dict[str, Any] = {
            "phase": str(step.phase),
            "verdict": step.verdict.to_json(),
            "durations": ending.total_durations(state),
        }
        if step.phase is Phase.SUCCEEDED and state.result is not None:
            data["result"] = ending.read_result(self.platform.store, state.result)
        self._append(lambda now: Draft("end", data) if now.ended is None else None)

    # ── what the steps stand on ─────────────────────────────────────────────────────────────

    def journal_state(self, *, fresh: bool = False) -> JournalState:
        """The journal as read at most JOURNAL_EVERY_S ago; raises Superseded under a newer claim."""
        now = self.platform.clock.monotonic()
        if self.state is None or fresh or now - self.read_at >= JOURNAL_EVERY_S:
            self.state = self.job.journal.read()
            self.read_at = now
        if self.state.driver is not None:
            self.job.gate.fence(self.state.driver.number)
        loop = self.state.loop
        if self.claim and not self.state.cleaned and (loop is None or loop.number != self.claim):
            raise Superseded(f"another process follows job {self.job.run_key} now")
        return self.state

    def _append(self, decide: Any) -> bool:
        self._must_hold()
        entry = self.job.journal.append(decide, role="loop", claim=self.claim)
        self._dirty()
        return entry is not None

    def _append_if_possible(self, draft: Draft) -> None:
        """Ledger and notes: worth having, never worth stopping for."""
        try:
            self.job.journal.append(lambda _: draft, role="loop", claim=self.claim)
        except (StorageError, Undecided):
            return
        self._dirty()

    def _dirty(self) -> None:
        self.read_at = float("-inf")

    def _must_hold(self) -> None:
        """Before acting: the lease is fresh, and nobody has claimed since."""
        if not self.platform.process.fresh():
            self.platform.process.beat()
        self.journal_state(fresh=True)

    def _watching(self) -> Watched:
        state = self.state
        attempt = state.open_attempt if state else None
        assert attempt is not None
        if self.watched is None or self.watched.number != attempt.number:
            self.watched = Watched(self.job, attempt, self.platform)
        return self.watched

    def _elapsed(self) -> float:
        return self.watched.durations.get("run", 0.0) if self.watched else 0.0

    def _wait(self, seconds: float) -> Iterator[Event]:
        until = self.platform.clock.monotonic() + seconds
        while self.platform.clock.monotonic() < until:
            self.journal_state()
            self.platform.clock.sleep(min(TICK_S * 5, seconds))
        return
        yield

    def _tell_once(self, sentence: str) -> Iterator[Event]:
        if sentence not in self.told:
            self.told.add(sentence)
            yield Notice(sentence, warning=True)

    # ── when run storage is away, or another process took over ──────────────────────────────

    def _without_storage(self, error: StorageError | Undecided) -> Iterator[Event]:
        """Observe, and decide nothing; an ended job stays FINISHING, on a clock."""
        if self.storage_away_since is None:
            self.storage_away_since = self.platform.clock.monotonic()
            yield Notice(f"{error.message}; decisions wait until run storage answers", warning=True)
        if self.watched is not None and self.watched.ending is None:
            try:
                yield from self.watched.look()
            except (BackendUnavailable, StorageError):
                pass
            else:
                if self.watched.ending is not None:
                    yield PhaseChanged(
                        Phase.FINISHING, "waiting for run storage", self.watched.number
                    )
        self.platform.clock.sleep(TICK_S * 5)

    def _storage_is_back(self) -> None:
        self.storage_away_since = None

    def _out_of_patience(self) -> bool:
        since = self.storage_away_since
        ended = self.watched is None or self.watched.ending is not None
        return (
            ended
            and since is not None
            and self.platform.clock.monotonic() - since > STORAGE_PATIENCE_S
        )

    def _unrecorded_end(self, error: StorageError | Undecided) -> JobEnded:
        verdict = Verdict(
            VerdictClass.INFRA,
            f"run storage did not answer for {STORAGE_PATIENCE_S:.0f} s, so the end is unrecorded",
            (error.message,),
            remedy=f"When it is back: mlp job attach {self.job.run_key}",
        )
        tail = self.watched.tail if self.watched else ()
        return JobEnded(self.job.run_key, Phase.FAILED, verdict, tail=tail)

    def _taken_over(self) -> Iterator[Event]:
        """A cancel is waited for and told; any other new holder is the one that tells."""
        self.claim = 0
        until = self.platform.clock.monotonic() + TAKEN_OVER_S
        state = self.journal_state(fresh=True)
        if state.cancelled is None:
            raise Superseded(
                f"another process follows job {self.job.run_key} now",
                remedy=f"See it with: mlp job logs {self.job.run_key}",
            )
        while state.ended is None and self.platform.clock.monotonic() < until:
            self.platform.clock.sleep(TICK_S)
            state = self.journal_state(fresh=True)
        yield self._job_ended()

    # ── the end ─────────────────────────────────────────────────────────────────────────────

    def _job_ended(self) -> JobEnded:
        state = self.journal_state(fresh=True)
        if state.ended is None:
            verdict = Verdict(VerdictClass.CANCELLED, "cancelled; its clean-up is under way")
            return JobEnded(self.job.run_key, Phase.CANCELLED, verdict)
        return JobEnded(
            self.job.run_key,
            Phase(state.ended.phase),
            Verdict.from_json(state.ended.verdict or {}),
            result=state.ended.result or {},
            tail=self.tail or ending.last_lines(self.job.run_key, state, self.platform.store),
            log_url=ending.log_url(state),
            durations=state.ended.durations or {},
        )

    def leave(self) -> None:
        """Keep what was told of the log, and release the claim; the job goes on."""
        if self.watched is not None:
            self.watched.keep_log()
        if self.claim and not (self.state and self.state.cleaned):
            try:
                self.job.journal.release("loop", self.claim)
            except (StorageError, Superseded, Undecided):
                return  # the lease runs out by itself


def _still_open(state: JournalState, attempt: AttemptRecord) -> bool:
    return state.open_attempt is not None and state.open_attempt.number == attempt.number
