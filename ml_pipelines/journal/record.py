"""The journal of one job: read it, append to it, claim its loop or its driver's seat."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ml_pipelines.clock import Clock, SystemClock
from ml_pipelines.errors import Superseded
from ml_pipelines.journal import entries as kinds
from ml_pipelines.journal.entries import Draft, Entry, Record
from ml_pipelines.journal.fold import Claim, Commit, JournalState, fold, why_void
from ml_pipelines.journal.log import BUDGET_S, Log

if TYPE_CHECKING:
    from ml_pipelines.storage import Store

Role = Literal["loop", "driver"]
Decide = Callable[[JournalState], Draft | None]


class Journal:
    """The record of the job of one run key, as one writer sees it. Not for several threads."""

    def __init__(
        self,
        store: Store,
        run_key: str,
        *,
        writer: str,
        clock: Clock | None = None,
        budget_s: float = BUDGET_S,
    ) -> None:
        self.run_key = run_key
        self._writer = writer
        self._clock = clock or SystemClock()
        self._log = Log(store, journal_prefix(run_key), clock=self._clock, budget_s=budget_s)
        self._state = JournalState(run_key)
        self._folded: tuple[Record, ...] | None = None
        self._was_read = False

    def read(self) -> JournalState:
        """Everything that counts by now. Raises StorageError or JournalCorrupt."""
        self._log.refresh()
        self._was_read = True
        return self._fold()

    def append(self, decide: Decide, *, role: Role, claim: int) -> Entry | None:
        """Append what `decide` makes of the state, which is asked again when others wrote first.

        `claim` is the number of the claim under which it is written; 0 for births, claims and
        cancels. Returns the entry once it surely stands, None when `decide` returned None. Raises
        Superseded when it would not count (a newer claim, the end), Undecided when storage did
        not say in time whether it was written, StorageError when it was not.
        """

        def make(number: int, voids: tuple[int, ...]) -> Entry | None:
            state = self._fold()
            if claim:
                _must_hold(state, role, claim)
            draft = decide(state)
            if draft is None:
                return None
            entry = self._entry(draft, number, role=role, claim=claim, voids=voids)
            if reason := why_void(state, entry):
                raise Superseded(
                    f"journal of {self.run_key}: {draft.kind} would not count: {reason}."
                )
            return entry

        return self._log.append(make)

    def claim_loop(self, *, over: int | None = None) -> Claim:
        """Claim the loop from the holder that was last read (or from claim `over`; 0: nobody's).

        Raises Superseded when somebody else claimed it meanwhile.
        """
        seen = over
        if seen is None and self._was_read:
            seen = _number(self._state.loop)

        def decide(state: JournalState) -> Draft:
            nonlocal seen
            if seen is None:
                seen = _number(state.loop)
            if _number(state.loop) != seen:
                assert state.loop is not None
                raise Superseded(
                    f"journal of {self.run_key}: {state.loop.writer} claimed the loop first."
                )
            return Draft(kinds.CLAIM, {"over": seen})

        self.append(decide, role="loop", claim=0)
        loop = self._fold().loop
        assert loop is not None
        return loop

    def claim_driver(self, attempt: int, cluster: str) -> Claim:
        """Claim to be the open attempt's driver, fencing off the ones before.

        Raises Superseded when that attempt is not open.
        """
        draft = Draft(kinds.CLAIM, {"attempt": attempt, "cluster": cluster})
        self.append(lambda _: draft, role="driver", claim=0)
        driver = self._fold().driver
        assert driver is not None
        return driver

    def commit(
        self,
        claim: int,
        what: str,
        *,
        path: str = "",
        sha256: str = "",
        data: Mapping[str, Any] | None = None,
    ) -> Commit:
        """Make data count that was written before, under the driver's claim.

        Raises Superseded under a newer claim or after the attempt's end.
        """
        draft = Draft(
            kinds.COMMIT, {"what": what, "path": path, "sha256": sha256, "data": dict(data or {})}
        )
        entry = self.append(lambda _: draft, role="driver", claim=claim)
        assert entry is not None
        return next(each for each in self._fold().commits if each.entry == entry.number)

    def release(self, role: Role, claim: int) -> None:
        """Leave in order: the next one need not wait for the lease to run out.

        Raises Superseded where the claim holds no more.
        """
        self.append(lambda _: Draft(kinds.RELEASE, {}), role=role, claim=claim)

    def _fold(self) -> JournalState:
        # By identity: an entry may also have become readable.
        records = self._log.records
        if records is not self._folded:
            self._state, self._folded = fold(self.run_key, records), records
        return self._state

    def _entry(
        self, draft: Draft, number: int, *, role: str, claim: int, voids: tuple[int, ...]
    ) -> Entry:
        return Entry(
            number=number,
            kind=draft.kind,
            role=role,
            writer=self._writer,
            nonce=uuid.uuid4().hex,
            claim=claim,
            at=self._clock.now().isoformat(),
            data=draft.data,
            voids=voids,
        )


def journal_prefix(run_key: str) -> str:
    """Where the entries of a job lie in run storage."""
    return f"jobs/{run_key}/journal"


def _must_hold(state: JournalState, role: Role, claim: int) -> None:
    holder = state.loop if role == "loop" else state.driver
    if holder is None or holder.number != claim or holder.released:
        now = f"claim {holder.number} by {holder.writer}" if holder else "none"
        raise Superseded(
            f"journal of {state.run_key}: claim {claim} of the {role} does not hold: now it is {now}."
        )


def _number(claim: Claim | None) -> int:
    return claim.number if claim else 0
