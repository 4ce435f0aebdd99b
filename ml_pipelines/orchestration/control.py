"""What the Ray resource needs of the lifecycle, bound to one platform: the seam of its tests."""

from __future__ import annotations

import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ml_pipelines.clock import Clock
from ml_pipelines.job.events import Event
from ml_pipelines.orchestration.identity import StepIdentity

if TYPE_CHECKING:
    from ml_pipelines.lifecycle import Job, Platform
    from ml_pipelines.spec.cluster import ClusterSpec
    from ml_pipelines.spec.job import JobSpec


class JobControl(Protocol):
    """Submits, follows and cancels the jobs of one platform."""

    @property
    def clock(self) -> Clock:
        """The clock that bounds rates."""

    def check(self, cluster: ClusterSpec) -> None:
        """Refuse, with DoesNotFit, workers that the backend could never give; create nothing."""

    def submit(self, spec: JobSpec, me: StepIdentity) -> Any:
        """Submit, or claim what an earlier run of the same logical run began."""

    def follow(self, job: Any) -> Generator[Event, None, None]:
        """The job's events up to JobEnded; closing it releases the claim, the job goes on."""

    def cancel(self, run_key: str, *, reason: str, by: str) -> None:
        """End the job and remove what it holds, in at most 30 s."""

    def result_entry(self, run_key: str) -> int | None:
        """Number of the journal entry that holds the job's result."""


@dataclass(frozen=True)
class PlatformControl:
    """The real control: the lifecycle on one platform."""

    platform: Platform

    @property
    def clock(self) -> Clock:
        return self.platform.clock

    def check(self, cluster: ClusterSpec) -> None:
        from ml_pipelines.spec.job import JobSpec
        from ml_pipelines.spec.manifest import Identity, rayjob

        here = self.platform.settings
        spec = JobSpec(name="check", entrypoint=("true",), cluster=cluster)
        manifest = rayjob(
            spec, self.platform.pools, Identity("check", 1), runs=here.runs, lake=here.lake
        )
        self.platform.backend.check(manifest)

    def submit(self, spec: JobSpec, me: StepIdentity) -> Job:
        from ml_pipelines import lifecycle

        job = lifecycle.submit(
            spec,
            run_key=me.run_key,
            labels=me.labels,
            platform=self.platform,
            exclusive=me.exclusive,
        )
        # The run database says that the run before us is over, so its loop isn't waited for.
        job.takeover = me.retried
        if job.adopted:
            said = f"Job {job.run_key} was begun before; this run claims it and goes on with it."
            job.notices = (said, *job.notices)
        return job

    def follow(self, job: Job) -> Generator[Event, None, None]:
        from ml_pipelines import lifecycle

        return lifecycle.follow(job, platform=self.platform)

    def cancel(self, run_key: str, *, reason: str, by: str) -> None:
        from ml_pipelines import lifecycle

        for event in lifecycle.cancel(run_key, platform=self.platform, reason=reason, by=by):
            sentence = getattr(event, "sentence", "")
            if sentence:
                sys.stdout.write(f"[ml_pipelines] {sentence}\n")

    def result_entry(self, run_key: str) -> int | None:
        result = self.platform.journal(run_key).read().result
        return None if result is None else result.entry
