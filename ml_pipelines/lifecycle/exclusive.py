"""What only one unfinished job may work on: held in a log of its own, by one job at a time.

The last entry says who holds it, so two jobs can't both take it. A holder that has ended holds
nothing; one that was never born (it crashed in between) is waited for, then followed. Both look
again afterwards: the new holder at the one before, and whoever is born at its hold; so of two
that met, at least one sees the other and is refused.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from ml_pipelines.errors import JournalCorrupt, JournalError, Refused, StorageError
from ml_pipelines.journal.entries import Entry
from ml_pipelines.journal.log import Log
from ml_pipelines.lifecycle.platform import APPEND_S, Platform

if TYPE_CHECKING:
    from ml_pipelines.journal.state import JournalState

UNBORN_S = 10.0  # how long after its hold a job may take to be born
POLL_S = 1.0
_HOLD, _FREE = "hold", "free"


def take(key: str, run_key: str, platform: Platform) -> None:
    """Hold `key` for a job that is about to be born. Raises Refused, naming who holds it."""
    log = _log(key, platform)
    while True:
        before = _wait_for_holder(log, key, run_key, platform)
        if before == run_key or _append(log, _HOLD, run_key, over=before, platform=platform):
            break
    if before and before != run_key and _lives(_state(before, platform)):
        release(key, run_key, platform)
        raise _refusal(key, before)


def must_hold(key: str, run_key: str, platform: Platform) -> None:
    """After the birth: nobody took us for one that would never be born. Raises Refused."""
    log = _log(key, platform)
    log.refresh()
    holder = _holder(log)
    if holder != run_key:
        raise _refusal(key, holder or "another job")


def release(key: str, run_key: str, platform: Platform) -> None:
    """Let the next job have it; where storage says no, the end of the job says it as well."""
    with suppress(StorageError, JournalError):
        log = _log(key, platform)
        log.refresh()
        if _holder(log) == run_key:
            _append(log, _FREE, run_key, over=run_key, platform=platform)


def _wait_for_holder(log: Log, key: str, run_key: str, platform: Platform) -> str:
    """The holder that may be followed: none, ourselves, one that has ended or was never born."""
    until = platform.clock.monotonic() + UNBORN_S
    while True:
        log.refresh()
        holder = _holder(log)
        if holder in {"", run_key}:
            return holder
        state = _state(holder, platform)
        if _lives(state):
            raise _refusal(key, holder)
        if (state is not None and state.ended) or platform.clock.monotonic() >= until:
            return holder
        platform.clock.sleep(POLL_S)


def _state(run_key: str, platform: Platform) -> JournalState | None:
    """A holder's journal; None where it can't be read, and so says nothing of its end."""
    try:
        return platform.journal(run_key).read()
    except JournalCorrupt:
        return None


def _lives(state: JournalState | None) -> bool:
    return state is None or (state.birth is not None and state.ended is None)


def _append(log: Log, kind: str, run_key: str, *, over: str, platform: Platform) -> bool:
    """Write the next entry unless the holder is no more the one that was looked at."""
    entry = log.append(
        lambda number, voids: (
            None
            if _holder(log) != over
            else Entry(
                number=number,
                kind=kind,
                role="loop",
                writer=platform.process.id,
                nonce=uuid.uuid4().hex,
                claim=0,
                at=platform.clock.now().isoformat(),
                data={"run_key": run_key},
                voids=voids,
            )
        )
    )
    return entry is not None


def _holder(log: Log) -> str:
    last = next((each for each in reversed(log.records) if isinstance(each, Entry)), None)
    return str(last.data.get("run_key", "")) if last is not None and last.kind == _HOLD else ""


def _log(key: str, platform: Platform) -> Log:
    return Log(platform.store, f"held/{key}", clock=platform.clock, budget_s=APPEND_S)


def _refusal(key: str, holder: str) -> Refused:
    return Refused(
        f"{key} is being worked on by job {holder}",
        remedy=f"Wait for it, or stop it with: mlp job cancel {holder}",
    )
