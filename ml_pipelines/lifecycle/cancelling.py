"""Stops a job for good: claims at once, deletes, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

from ml_pipelines.errors import (
    BackendUnavailable,
    MlPipelinesError,
    NotFound,
    StorageError,
    Undecided,
)
from ml_pipelines.job.events import Event, JobEnded, Notice
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdicts import cancelled
from ml_pipelines.journal.entries import Draft
from ml_pipelines.journal.state import JournalState
from ml_pipelines.lifecycle import ending
from ml_pipelines.lifecycle.loop import follow
from ml_pipelines.lifecycle.platform import Platform
from ml_pipelines.lifecycle.submit import Job, attach

CANCEL_S = 25.0  # of the 30 s in which nothing may be left


def cancel(run_key: str, *, platform: Platform, reason: str = "", by: str = "") -> list[Event]:
    """Stop a job in whatever phase, without waiting for anybody's lease.

    Deletes even where run storage can't take the entry, and says so. A job that has ended stays
    as it ended. Raises NotFound, Refused (another machine's job) or BackendUnavailable.
    """
    try:
        job = attach(run_key, platform=platform, takeover=True)
    except NotFound:
        raise
    except StorageError as error:
        return list(_blindly(run_key, platform, reason, by, error))
    if job.journal.read().ended is not None:
        return list(follow(job, platform=platform))
    return list(_cancel(job, platform, reason, by))


def _cancel(job: Job, platform: Platform, reason: str, by: str) -> Iterator[Event]:
    recorded = _record(job, reason, by)
    yield from _delete_all(job.run_key, platform)
    until = platform.clock.monotonic() + CANCEL_S
    while recorded is not None and platform.clock.monotonic() < until:
        platform.clock.sleep(0.5)
        recorded = _record(job, reason, by)
    if recorded is not None:
        yield _unrecorded(job.run_key, recorded)
        yield JobEnded(job.run_key, Phase.CANCELLED, cancelled(by, reason))
        return
    yield from follow(job, platform=platform)


def _record(job: Job, reason: str, by: str) -> MlPipelinesError | None:
    """Append the cancel, which is a claim in itself; the error where storage won't take it."""

    def decide(state: JournalState) -> Draft | None:
        if state.ended is not None or state.cancelled is not None:
            return None
        return Draft("cancel", {"reason": reason, "by": by})

    try:
        job.journal.append(decide, role="loop", claim=0)
    except (StorageError, Undecided) as error:
        return error
    return None


def _delete_all(run_key: str, platform: Platform) -> Iterator[Event]:
    until = platform.clock.monotonic() + CANCEL_S
    while True:
        try:
            left = ending.remove(run_key, platform)
        except BackendUnavailable:
            if platform.clock.monotonic() > until:
                raise
            left = ["?"]
        if not left:
            return
        if platform.clock.monotonic() > until:
            yield Notice(f"{', '.join(left)} is still there after {CANCEL_S:.0f} s", warning=True)
            return
        platform.clock.sleep(0.1)


def _blindly(
    run_key: str, platform: Platform, reason: str, by: str, error: StorageError
) -> Iterator[Event]:
    """Run storage is away: what bears the run key goes all the same."""
    yield from _delete_all(run_key, platform)
    yield _unrecorded(run_key, error)
    yield JobEnded(run_key, Phase.CANCELLED, cancelled(by, reason))


def _unrecorded(run_key: str, error: MlPipelinesError) -> Notice:
    return Notice(
        f"job {run_key} is stopped, but that could not be recorded: {error.message}. "
        f"When run storage is back: mlp job cancel {run_key}",
        warning=True,
    )
