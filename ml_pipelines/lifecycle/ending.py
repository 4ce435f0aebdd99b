"""What is left of a job when it ends: its result, its log, its durations, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ml_pipelines.clock import Clock
from ml_pipelines.errors import InvalidData, NotFound, StorageError
from ml_pipelines.journal import index
from ml_pipelines.journal.entries import Draft
from ml_pipelines.journal.state import Commit, JournalState
from ml_pipelines.lifecycle import exclusive
from ml_pipelines.lifecycle.logkeeping import (
    TAIL_LINES,
    LogKeeper,
    finish_others,
    kept_tail,
    last_start,
)
from ml_pipelines.lifecycle.platform import Platform
from ml_pipelines.lifecycle.submit import Job
from ml_pipelines.spec.manifest import RUN_KEY_LABEL, STORAGE_LABEL, storage_digest
from ml_pipelines.storage import Store

READS = 3
READ_AGAIN_S = 1.0


def read_result(store: Store, commit: Commit, clock: Clock) -> dict[str, Any]:
    """The result that a workload committed: in the entry itself, or in the object that it names.

    Raises StorageError while it may still be read, InvalidData once it surely is not there as it
    was committed.
    """
    if not commit.path:
        return dict(commit.data)
    problem = ""
    for read in range(READS):
        if read:
            clock.sleep(READ_AGAIN_S)
        try:
            data = store.get(commit.path)
        except NotFound:
            problem = "is not there"
            continue
        found = hashlib.sha256(data).hexdigest()
        if not commit.sha256 or found == commit.sha256:
            return _decoded(commit, data)
        problem = f"is not what was committed ({commit.sha256[:12]})"
    raise InvalidData("result", commit.path, problem, remedy="Run the job again.")


def _decoded(commit: Commit, data: bytes) -> dict[str, Any]:
    try:
        result = json.loads(data)
    except ValueError as error:
        raise InvalidData("result", commit.path, f"is no JSON: {error}") from error
    if not isinstance(result, dict):
        raise InvalidData("result", commit.path, "is no JSON object")
    return result


def total_durations(state: JournalState) -> dict[str, float]:
    """Seconds by part, over all attempts."""
    total: dict[str, float] = {}
    for attempt in state.attempts:
        spent: Mapping[str, float] = attempt.data.get("durations") or {}
        for part, seconds in spent.items():
            total[part] = round(total.get(part, 0.0) + float(seconds), 3)
    return total


def log_url(state: JournalState) -> str:
    """Where the log of the last attempt lies; empty before there is any."""
    return str(state.logs[max(state.logs)]["url"]) if state.logs else ""


def last_lines(run_key: str, state: JournalState, store: Store) -> tuple[str, ...]:
    """The last lines of the last attempt's kept log."""
    if not state.attempts:
        return ()
    try:
        number = state.attempts[-1].number
        source = last_start(store, run_key, number)
        return tuple(kept_tail(store, run_key, number, source)[-TAIL_LINES:])
    except StorageError:
        return ()


def labels_of(run_key: str, state: JournalState | None, platform: Platform) -> dict[str, str]:
    """What every RayJob of this job bears, and no RayJob of another run storage's."""
    born = state.birth.data.get("storage") if state and state.birth else None
    storage = str(born or storage_digest(platform.settings.runs))
    return {RUN_KEY_LABEL: run_key, STORAGE_LABEL: storage}


def remove_all(run_key: str, platform: Platform, state: JournalState | None = None) -> list[str]:
    """Delete every RayJob of a job that is over; returns the names of those that were there.

    `state` is None where the journal may not be readable.
    """
    found = platform.backend.list(labels_of(run_key, state, platform))
    for view in found:
        platform.backend.delete(view.name, view.uid)
    return [view.name for view in found]


def clean_up(job: Job, platform: Platform, claim: int) -> None:
    """After the end: delete what bears the run key, close its logs and its marker.

    Raises BackendError, StorageError, Undecided or JournalCorrupt: what was done then is done
    again without harm.
    """
    state = job.journal.read()
    remove_all(job.run_key, platform, state)
    for attempt in state.attempts:
        if attempt.number not in state.logs:
            source = last_start(platform.store, job.run_key, attempt.number)
            keeper = LogKeeper(
                platform.store, job.run_key, attempt.number, platform.clock, source=source
            )
            record_log(job, keeper, attempt.number, claim)
    close(job, platform, claim)


def record_log(job: Job, keeper: LogKeeper, attempt: int, claim: int) -> None:
    """Make each of an attempt's logs one object, and note where its driver's lies.

    Raises StorageError.
    """
    url = keeper.finish()
    finish_others(keeper, job.run_key, attempt)
    record = {"number": attempt, "url": url, "bytes": keeper.offset}
    job.journal.append(
        lambda now: None if attempt in now.logs else Draft("logs", record),
        role="loop",
        claim=claim,
    )


def close(job: Job, platform: Platform, claim: int) -> None:
    """Leave one summary under the job's day, and take its open marker away.

    The marker goes last: as long as anything is to do, the keeper finds the job.
    """
    state = job.journal.read()
    held = state.birth.data.get("exclusive") if state.birth else ""
    if held:
        exclusive.release(str(held), job.run_key, platform)
    job.journal.append(
        lambda now: None if now.cleaned else Draft("cleaned", {}), role="loop", claim=claim
    )
    file_away(job.run_key, state, platform)


def file_away(run_key: str, state: JournalState, platform: Platform) -> None:
    """From the open jobs to the closed ones. Raises StorageError; again is no harm."""
    index.close(platform.store, summary_record(run_key, state), now=platform.clock.now())


def summary_record(run_key: str, state: JournalState) -> dict[str, object]:
    """A closed job in a few lines of JSON: what lists show without reading journals."""
    birth, ended = state.birth, state.ended
    assert birth is not None
    assert ended is not None
    return {
        "run_key": run_key,
        "name": birth.name,
        "owner": birth.owner,
        "backend": birth.backend,
        "labels": dict(birth.labels),
        "experiment": str(birth.spec.get("experiment") or ""),
        "attempts": len(state.attempts),
        "phase": ended.phase,
        "sentence": str((ended.verdict or {}).get("sentence") or ""),
        "created_at": birth.created_at,
        "ended_at": ended.at,
        "log_url": log_url(state),
    }
