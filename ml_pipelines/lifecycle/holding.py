"""One loop's hold on a job: its claim, and the journal as it last read it."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable

from ml_pipelines.errors import MlPipelinesError, StorageError, Superseded, Undecided
from ml_pipelines.job.events import Event
from ml_pipelines.journal.entries import LEDGER, Draft
from ml_pipelines.journal.record import Decide
from ml_pipelines.journal.state import JournalState
from ml_pipelines.lifecycle.claiming import hold_loop
from ml_pipelines.lifecycle.platform import Platform
from ml_pipelines.lifecycle.submit import Job

JOURNAL_EVERY_S = 2.0  # how soon a newer claim is noticed while nothing happens
OWED = 1000  # notes and ledger lines that wait for run storage


class Hold:
    """What the steps of a loop stand on.

    `claim` is 0 until it is taken; `last` is the journal as it was read last, if ever it was.
    """

    def __init__(self, job: Job, platform: Platform) -> None:
        self.job = job
        self.platform = platform
        self.claim = 0
        self.last: JournalState | None = None
        self._read_at = float("-inf")
        self._claiming_after: int | None = None
        self._owed: deque[Draft] = deque(maxlen=OWED)

    def take(self) -> Generator[Event, None, None]:
        """Claim the loop; waits for a holder that lives. Raises Refused where it stays."""
        self._claiming_after = self.state(fresh=True).tail
        self.claim = yield from hold_loop(self.job, self.platform)
        self.dirty()

    def state(self, *, fresh: bool = False) -> JournalState:
        """The journal as read at most JOURNAL_EVERY_S ago; raises Superseded under a newer claim."""
        now = self.platform.clock.monotonic()
        if self.last is None or fresh or now - self._read_at >= JOURNAL_EVERY_S:
            self.last = self.job.journal.read()
            self._read_at = now
        if self.last.driver is not None:
            self.job.gate.fence(self.last.driver.number)
        loop = self.last.loop
        if self.claim and (loop is None or loop.number != self.claim):
            raise Superseded(f"another process follows job {self.job.run_key} now")
        return self.last

    def must_hold(self) -> JournalState:
        """Before acting: the lease is fresh, and nobody has claimed since. The journal as of now."""
        if not self.platform.process.fresh():
            self.platform.process.beat()
        return self.state(fresh=True)

    def append(self, decide: Decide) -> bool:
        """Append under this claim; False when `decide` found nothing to say any more."""
        self.must_hold()
        entry = self.job.journal.append(decide, role="loop", claim=self.claim)
        self.dirty()
        return entry is not None

    def note(self, drafts: Iterable[Draft]) -> None:
        """Append ledger lines and notes, now or once storage takes them; never worth stopping for.

        A line whose answer was lost is not written twice.
        """
        self._owed.extend(drafts)
        while self._owed:
            draft = self._owed[0]
            try:
                self.job.journal.append(_once(draft), role="loop", claim=self.claim)
            except (StorageError, Undecided):
                return
            self._owed.popleft()
            self.dirty()

    def owe(self, drafts: Iterable[Draft]) -> None:
        """Note these when storage is back."""
        self._owed.extend(drafts)

    def dirty(self) -> None:
        """The next look at the journal is a fresh one."""
        self._read_at = float("-inf")

    def lose(self) -> None:
        """Another process follows the job: nothing is ours to act on or to release."""
        self.claim = 0
        self._claiming_after = None

    def release(self) -> None:
        """Leave in order; where that can't be written, the lease runs out by itself."""
        try:
            if self.claim and not (self.last and self.last.cleaned):
                self.job.journal.release("loop", self.claim)
            elif not self.claim and self._claiming_after is not None:
                self._release_unanswered(self._claiming_after)
        except MlPipelinesError:
            return

    def _release_unanswered(self, after: int) -> None:
        """A claim whose answer was lost holds as well as any other."""
        loop = self.job.journal.read().loop
        ours = loop is not None and loop.writer == self.platform.process.id and not loop.released
        if ours and loop is not None and loop.number > after:
            self.job.journal.release("loop", loop.number)


def _once(draft: Draft) -> Decide:
    return lambda state: None if _said(state, draft) else draft


def _said(state: JournalState, draft: Draft) -> bool:
    lines = state.ledger if draft.kind == LEDGER else (state.standing or {}, *state.notes[-1:])
    return any(dict(line) == dict(draft.data) for line in lines)
