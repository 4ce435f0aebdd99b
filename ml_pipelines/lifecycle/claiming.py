"""Who may follow a job: the claim on its loop, taken, waited for, or refused."""

from __future__ import annotations

from collections.abc import Generator

from ml_pipelines import settings
from ml_pipelines.errors import Refused, Superseded
from ml_pipelines.job.events import Event, Notice
from ml_pipelines.journal.state import Claim
from ml_pipelines.lifecycle.platform import Platform
from ml_pipelines.lifecycle.submit import Job

PATIENCE_S = settings.CLAIM_TIME_S + 30.0
POLL_S = 1.0


def hold_loop(job: Job, platform: Platform) -> Generator[Event, None, int]:
    """Claim the loop of a job; returns the claim's number.

    A holder that left in order, or was silent for the claim time, is followed; one that lives is
    waited for, and refused after `PATIENCE_S`. Raises StorageError, Undecided, JournalCorrupt.
    """
    platform.process.start()
    until = platform.clock.monotonic() + PATIENCE_S
    told = False
    while True:
        holder = job.journal.read().loop
        if holder is None or _free(holder, job, platform):
            try:
                return job.journal.claim_loop().number
            except Superseded as error:
                # Somebody was faster, or an earlier try of ours arrived late: look at them.
                if platform.clock.monotonic() > until:
                    raise Refused(error.message, remedy="Try again.") from error
        elif not told:
            told = True
            yield Notice(
                f"another process ({holder.writer}) followed this job; going on with it "
                f"as soon as that is gone, at the latest after {settings.CLAIM_TIME_S:.0f} s"
            )
        elif platform.clock.monotonic() > until:
            raise Refused(
                f"job {job.run_key} is followed by {holder.writer}, which lives",
                remedy=f"See it with: mlp job logs {job.run_key}",
            )
        platform.clock.sleep(POLL_S)


def held(holder: Claim | None, platform: Platform) -> bool:
    """Whether a living process follows the job, as far as can be known by now."""
    return holder is not None and not (
        holder.released
        or holder.writer == platform.process.id
        or platform.observer.stale(holder.writer)
    )


def _free(holder: Claim, job: Job, platform: Platform) -> bool:
    return job.takeover or not held(holder, platform)
