"""A backend in memory: RayJobs that live by a script and a clock, and faults on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ml_pipelines.backends.base import LogChunk, Manifest, Place
from ml_pipelines.clock import Clock
from ml_pipelines.errors import BackendUnavailable, Refused
from ml_pipelines.job.observation import Observation, PodView, RayJobView
from ml_pipelines.spec.manifest import RUN_KEY_LABEL, spec_hash

Script = tuple[tuple[float, dict[str, Any]], ...]
"""(seconds after creation, changes of the RayJobView), in order."""


def succeeds(after: float = 5.0) -> Script:
    """Starts after a second, runs, and ends well."""
    return (
        (0.0, {"deployment_status": "Initializing"}),
        (1.0, {"deployment_status": "Running", "job_status": "RUNNING"}),
        (after, {"deployment_status": "Complete", "job_status": "SUCCEEDED",
                 "driver_exit_code": 0}),
    )  # fmt: skip


def fails(code: int = 1, after: float = 5.0) -> Script:
    """Starts after a second, runs, and its driver exits with `code`."""
    return (
        (0.0, {"deployment_status": "Initializing"}),
        (1.0, {"deployment_status": "Running", "job_status": "RUNNING"}),
        (after, {"deployment_status": "Failed", "job_status": "FAILED", "reason": "AppFailed",
                 "driver_exit_code": code}),
    )  # fmt: skip


def loses_its_head(after: float = 5.0) -> Script:
    """Starts, runs, and its head fails under it."""
    return (
        (0.0, {"deployment_status": "Initializing"}),
        (1.0, {"deployment_status": "Running", "job_status": "RUNNING"}),
        (after, {"head_failed": True}),
    )


RUNS_ON: Script = succeeds(after=1e9)


@dataclass
class FakeJob:
    """One RayJob: `log` is what its driver has written at each time."""

    manifest: Manifest
    view: RayJobView
    created: float
    script: Script
    log: Callable[[float], bytes]


@dataclass
class FakeBackend:
    """Attempt n lives by `scripts[n - 1]` (the last for those after). `faults` are raised in turn.

    `faults` maps a method to errors; `"create"` errors named in `lost_answers` store first.
    """

    clock: Clock
    scripts: list[Script] = field(default_factory=lambda: [succeeds()])
    log: Callable[[float], bytes] = lambda _: b""
    faults: dict[str, list[Exception]] = field(default_factory=dict)
    lost_answers: int = 0
    location: str = "here#boot1"
    name: str = "local"
    streams_logs: bool = False
    jobs: dict[str, FakeJob] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    on_status: Callable[[FakeJob, float], None] | None = None
    notices: tuple[str, ...] = ()

    @property
    def place(self) -> Place:
        return Place("local", self.location)

    def _fault(self, method: str) -> None:
        waiting = self.faults.get(method)
        if waiting:
            raise waiting.pop(0)

    def check(self, manifest: Manifest) -> tuple[str, ...]:
        self._fault("check")
        return self.notices

    def create(self, manifest: Manifest) -> RayJobView:
        self._fault("create")
        name = manifest["metadata"]["name"]
        run_key = manifest["metadata"]["labels"][RUN_KEY_LABEL]
        if name in self.jobs:
            there = self.jobs[name].view
            if there.run_key != run_key or there.spec_hash != spec_hash(manifest):
                raise Refused(f"RayJob {name} belongs to somebody else")
            return there
        number = len(self.created)
        script = self.scripts[min(number, len(self.scripts) - 1)]
        view = RayJobView(
            name,
            f"uid-{number + 1}",
            run_key=run_key,
            spec_hash=spec_hash(manifest),
            created_at=self.clock.now(),
            job_id=name,
        )
        self.created.append(name)
        self.jobs[name] = FakeJob(manifest, view, self.clock.monotonic(), script, self.log)
        if self.lost_answers:
            self.lost_answers -= 1
            raise BackendUnavailable("the answer was lost")
        return view

    def observe(self, name: str) -> Observation:
        self._fault("observe")
        job = self.jobs.get(name)
        if job is None:
            return Observation(None)
        elapsed = self.clock.monotonic() - job.created
        changes: dict[str, Any] = {}
        for at, change in job.script:
            if elapsed >= at:
                changes |= change
        failed = changes.pop("head_failed", False)
        view = replace(job.view, **changes)
        if self.on_status is not None:
            self.on_status(job, elapsed)
        started = "deployment_status" in changes and changes["deployment_status"] != "Initializing"
        head = PodView(
            name=f"{name}-head",
            uid=f"{view.uid}-head",
            role="head",
            phase="Failed" if failed else "Running",
            node="here",
            pool="cpu",
            reason="HeadDied" if failed else "",
            requests={"cpu": 1.0},
            scheduled_at=job.view.created_at,
            conditions={"Ready": ("False" if failed or not started else "True", "", "")},
        )
        return Observation(view, pods=(head,))

    def read_log(self, name: str, source: str, offset: int, limit: int) -> LogChunk:
        self._fault("read_log")
        job = self.jobs.get(name)
        data = job.log(self.clock.monotonic() - job.created) if job else b""
        return LogChunk(source, offset, data[offset : offset + limit])

    def stop(self, name: str) -> None:
        self.delete(name)

    def delete(self, name: str, uid: str = "") -> None:
        self._fault("delete")
        job = self.jobs.get(name)
        if job is not None and (not uid or job.view.uid == uid):
            del self.jobs[name]
            self.deleted.append(name)

    def list(self, labels: Mapping[str, str]) -> list[RayJobView]:
        self._fault("list")
        return [
            job.view
            for job in self.jobs.values()
            if all(job.manifest["metadata"]["labels"].get(k) == v for k, v in labels.items())
        ]
