"""What a journal amounts to: which entries count, and the state they make; pure.

An entry counts or is void by what stands before it, and stays so: a checkpoint committed under a
claim that held then is good after a newer claim. `why_void` is the whole set of rules, used by
whoever reads and by whoever is about to write.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ml_pipelines.errors import JournalCorrupt
from ml_pipelines.journal import entries as kinds
from ml_pipelines.journal.entries import Entry, Record, Undecodable
from ml_pipelines.journal.state import (
    AttemptRecord,
    Birth,
    CancelRecord,
    Claim,
    Commit,
    EndRecord,
    JournalState,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "AttemptRecord",
    "Birth",
    "CancelRecord",
    "Claim",
    "Commit",
    "EndRecord",
    "JournalState",
    "fold",
    "why_void",
]

LOOP = "loop"
DRIVER = "driver"
BY_LOOP = frozenset({
    kinds.ATTEMPT, kinds.CREATED, kinds.ATTEMPT_END, kinds.END, kinds.LEDGER, kinds.LOGS,
    kinds.NOTE, kinds.CLEANED, kinds.RELEASE,
})  # fmt: skip
BY_DRIVER = frozenset({kinds.COMMIT, kinds.NOTE, kinds.RELEASE})
# Cleaning up takes a holder too, so the loop may still be claimed; no driver may.
AFTER_END = frozenset({kinds.CLEANED, kinds.LEDGER, kinds.LOGS, kinds.RELEASE})

UNREAD_BY_SUCCESSOR = "its successor could not read it"


def fold(run_key: str, records: Iterable[Record]) -> JournalState:
    """The state that a journal's entries make, from the first. Raises JournalCorrupt.

    Their numbers must follow each other without a gap. Undecodable entries are void at the end
    of the journal; further up, the next entry must name them.
    """
    records = list(records)
    voided = _voided(records)
    state = JournalState(run_key)
    unread = 0
    for number, record in enumerate(records, start=1):
        if record.number != number:
            raise JournalCorrupt(f"journal of {run_key}: entry {number} is missing.")
        if number in voided:
            reason = UNREAD_BY_SUCCESSOR
        elif isinstance(record, Undecodable):
            unread = unread or number
            reason = "it can't be read"
        elif unread:
            raise JournalCorrupt(
                f"journal of {run_key}: entry {unread} can't be read, and entry {number} does "
                "not void it."
            )
        elif not (reason := why_void(state, record)):
            state = _apply(state, record)
        if reason:
            state = replace(state, void=(*state.void, (number, reason)))
    return replace(state, tail=len(records))


def why_void(state: JournalState, entry: Entry) -> str:
    """Why an entry right after this state does not count; empty when it does."""
    if state.birth is None:
        return "" if entry.kind == kinds.BIRTH else "nothing counts before the birth"
    if entry.kind == kinds.BIRTH:
        return "the job is born already"
    if state.ended and not (entry.kind in AFTER_END or _claims(entry, LOOP)):
        return "the job has ended"
    if _claims(entry, LOOP) or (entry.kind == kinds.CANCEL and entry.role == LOOP):
        return ""
    if _claims(entry, DRIVER):
        return _not_the_open_one(state, entry.data.get("attempt"))
    return _why_not_under_claim(state, entry) or _why_not_now(state, entry)


def _claims(entry: Entry, role: str) -> bool:
    return entry.kind == kinds.CLAIM and entry.role == role


def _why_not_under_claim(state: JournalState, entry: Entry) -> str:
    if entry.role == LOOP and entry.kind in BY_LOOP:
        holder = state.loop
    elif entry.role == DRIVER and entry.kind in BY_DRIVER:
        holder = state.driver
    else:
        return f"no {entry.role} writes an entry of kind {entry.kind!r} that we know"
    if holder is None or holder.number != entry.claim:
        now = f"claim {holder.number} by {holder.writer}" if holder else "no claim"
        return f"claim {entry.claim} of the {entry.role} does not hold: now it is {now}"
    return f"claim {entry.claim} of the {entry.role} was released" if holder.released else ""


def _why_not_now(state: JournalState, entry: Entry) -> str:
    number = entry.data.get("number")
    if entry.kind == kinds.ATTEMPT:
        if state.cancelled is not None:
            return "the job is cancelled"
        if state.open_attempt is not None:
            return f"attempt {state.open_attempt.number} is open"
        wanted = len(state.attempts) + 1
        return "" if number == wanted else f"the next attempt is {wanted}, not {number}"
    if entry.kind in {kinds.ATTEMPT_END, kinds.CREATED}:
        return _not_the_open_one(state, number)
    if entry.kind == kinds.LOGS and not isinstance(number, int):
        return "it names no attempt"
    return ""


def _not_the_open_one(state: JournalState, number: object) -> str:
    attempt = state.open_attempt
    if attempt is not None and attempt.number == number:
        return ""
    return f"attempt {number} is not open"


def _voided(records: list[Record]) -> set[int]:
    """Entries that their successor, as a writer, could not read.

    It decided without them, so they count for nobody, even where they can be read after all.
    From the last on: what is void itself voids nothing.
    """
    voided: set[int] = set()
    for record in reversed(records):
        if isinstance(record, Undecodable) or record.number in voided:
            continue
        before = record.number - 1
        while before in record.voids:
            voided.add(before)
            before -= 1
    return voided


def _apply(state: JournalState, entry: Entry) -> JournalState:
    apply = _EFFECTS.get(entry.kind)
    return apply(state, entry) if apply else state


def _birth(state: JournalState, entry: Entry) -> JournalState:
    data = entry.data
    birth = Birth(
        spec=data.get("spec") or {},
        spec_hash=str(data.get("spec_hash", "")),
        backend=str(data.get("backend", "")),
        location=str(data.get("location", "")),
        owes_result=bool(data.get("owes_result")),
        labels=data.get("labels") or {},
        owner=str(data.get("owner", "")),
        name=str(data.get("name", "")),
        created_at=str(data.get("created_at") or entry.at),
        data=data,
    )
    return replace(state, birth=birth)


def _claim(state: JournalState, entry: Entry) -> JournalState:
    if entry.role == LOOP:
        return replace(state, loop=Claim(entry.number, entry.writer))
    incarnation = state.incarnations + 1
    claim = Claim(
        entry.number,
        entry.writer,
        attempt=entry.data["attempt"],
        incarnation=incarnation,
        cluster=str(entry.data.get("cluster", "")),
    )
    return replace(state, driver=claim, incarnations=incarnation)


def _release(state: JournalState, entry: Entry) -> JournalState:
    if entry.role == LOOP:
        assert state.loop is not None
        return replace(state, loop=replace(state.loop, released=True))
    assert state.driver is not None
    return replace(state, driver=replace(state.driver, released=True))


def _cancel(state: JournalState, entry: Entry) -> JournalState:
    data = entry.data
    first = state.cancelled or CancelRecord(
        str(data.get("reason", "")),
        str(data.get("by", "")),
        bool(data.get("delete", True)),
        entry.at,
    )
    return replace(state, cancelled=first, loop=Claim(entry.number, entry.writer))


def _commit(state: JournalState, entry: Entry) -> JournalState:
    assert state.driver is not None
    data = entry.data
    commit = Commit(
        entry=entry.number,
        what=str(data.get("what", "")),
        path=str(data.get("path") or ""),
        sha256=str(data.get("sha256") or ""),
        attempt=state.driver.attempt,
        incarnation=state.driver.incarnation,
        at=entry.at,
        data=data.get("data") or {},
    )
    return replace(state, commits=(*state.commits, commit))


def _attempt(state: JournalState, entry: Entry) -> JournalState:
    record = AttemptRecord(entry.data["number"], str(entry.data.get("name", "")), entry.at)
    # A new attempt has no driver yet, and its incarnations count from one.
    return replace(
        state, attempts=(*state.attempts, record), driver=None, incarnations=0, standing=None
    )


def _created(state: JournalState, entry: Entry) -> JournalState:
    *before, last = state.attempts
    return replace(state, attempts=(*before, replace(last, uid=str(entry.data.get("uid", "")))))


def _attempt_end(state: JournalState, entry: Entry) -> JournalState:
    *before, last = state.attempts
    data = entry.data
    ended = replace(
        last, ended=True, verdict=data.get("verdict"), why=str(data.get("why", "")), data=data
    )
    return replace(state, attempts=(*before, ended), driver=None)


def _end(state: JournalState, entry: Entry) -> JournalState:
    data = entry.data
    end = EndRecord(
        phase=str(data.get("phase", "")),
        verdict=data.get("verdict"),
        result=data.get("result"),
        durations=data.get("durations") or {},
        at=entry.at,
    )
    attempts = tuple(each if each.ended else replace(each, ended=True) for each in state.attempts)
    return replace(state, ended=end, attempts=attempts)


def _ledger(state: JournalState, entry: Entry) -> JournalState:
    return replace(state, ledger=(*state.ledger, entry.data))


def _logs(state: JournalState, entry: Entry) -> JournalState:
    return replace(state, logs={**state.logs, entry.data["number"]: entry.data})


def _note(state: JournalState, entry: Entry) -> JournalState:
    standing = entry.data if entry.data.get("phase") else state.standing
    return replace(state, notes=(*state.notes, entry.data), standing=standing)


def _cleaned(state: JournalState, _: Entry) -> JournalState:
    return replace(state, cleaned=True)


_EFFECTS: Mapping[str, Callable[[JournalState, Entry], JournalState]] = {
    kinds.BIRTH: _birth,
    kinds.CLAIM: _claim,
    kinds.RELEASE: _release,
    kinds.CANCEL: _cancel,
    kinds.ATTEMPT: _attempt,
    kinds.CREATED: _created,
    kinds.ATTEMPT_END: _attempt_end,
    kinds.COMMIT: _commit,
    kinds.END: _end,
    kinds.LEDGER: _ledger,
    kinds.LOGS: _logs,
    kinds.NOTE: _note,
    kinds.CLEANED: _cleaned,
}
