"""A Ray resource without a Ray: jobs are scripts of events, and what was asked is remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import DoesNotFit, Refused
from ml_pipelines.job.events import Event, JobEnded, Submitted
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import Verdict, VerdictClass
from ml_pipelines.orchestration.identity import StepIdentity
from ml_pipelines.orchestration.resource import RayJobs, UnretriedRayJobs
from ml_pipelines.spec.cluster import ClusterSpec
from ml_pipelines.spec.job import JobSpec
from ml_pipelines.spec.quantity import cpu_cores

SUCCESS = Verdict(VerdictClass.SUCCESS, "the driver ended with exit code 0")
Script = Callable[[JobSpec, StepIdentity], Iterator[Event]]


def succeeds(**result: Any) -> Script:
    """A job that commits `result`."""

    def script(_spec: JobSpec, me: StepIdentity) -> Iterator[Event]:
        yield ended(me, result)

    return script


def ended(me: StepIdentity, result: Mapping[str, Any]) -> JobEnded:
    """A good end."""
    return JobEnded(
        me.run_key, Phase.SUCCEEDED, SUCCESS, result=result, log_url="file:///log",
        durations={"queue": 0.0, "provisioning": 1.5, "run": 2.0, "drain": 0.5},
    )  # fmt: skip


def fails(verdict: Verdict, *tail: str, phase: Phase = Phase.FAILED) -> Script:
    """A job that ends badly."""

    def script(_spec: JobSpec, me: StepIdentity) -> Iterator[Event]:
        yield JobEnded(me.run_key, phase, verdict, tail=tail)

    return script


@dataclass
class FakeControl:
    """The lifecycle as tests script it. Journals are one dict, kept between runs."""

    scripts: dict[str, Script] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=FakeClock)
    submitted: list[tuple[JobSpec, StepIdentity]] = field(default_factory=list)
    cancelled: list[tuple[str, str, str]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    results: dict[str, JobEnded] = field(default_factory=dict)
    refuse: bool = False
    cpus: float | None = None
    entry_of: Callable[[str], int | None] = lambda _run_key: 7

    def check(self, cluster: ClusterSpec) -> None:
        if self.cpus is not None and (cpu := cluster.workers[0].cpu) and cpu_cores(cpu) > self.cpus:
            raise DoesNotFit("cluster.workers[0].cpu", cpu, "is more than there is")

    def submit(self, spec: JobSpec, me: StepIdentity) -> Any:
        if self.refuse:
            raise Refused(f"{me.exclusive} is being worked on by job other", remedy="Wait for it.")
        self.submitted.append((spec, me))
        return spec, me

    def follow(self, job: Any) -> Iterator[Event]:
        spec, me = job
        if me.run_key in self.results:
            yield self.results[me.run_key]
            return
        try:
            yield Submitted(me.run_key, 1, f"{me.run_key}-a1", "fake")
            for event in self.scripts[spec.entrypoint[-1].rsplit(".", 1)[-1]](spec, me):
                if isinstance(event, JobEnded):
                    self.results[me.run_key] = event
                yield event
        finally:
            self.closed.append(me.run_key)

    def cancel(self, run_key: str, *, reason: str, by: str) -> None:
        self.cancelled.append((run_key, reason, by))

    def result_entry(self, run_key: str) -> int | None:
        return self.entry_of(run_key) if run_key in self.results else None

    def modules(self) -> list[str]:
        """The workloads that ran, in order."""
        return [spec.entrypoint[-1].rsplit(".", 1)[-1] for spec, _ in self.submitted]


def fake_ray(control: FakeControl, *, leave_when_cut_off: bool = True) -> RayJobs:
    """`RayJobs` over a fake control; everything above that seam is the real thing.

    A class of its own, since Dagster makes a new instance from the config for each run.
    """

    class FakeRayJobs(RayJobs if leave_when_cut_off else UnretriedRayJobs):  # type: ignore[misc]
        @contextmanager
        def connect(self) -> Iterator[FakeControl]:
            yield control

    ray: RayJobs = FakeRayJobs()
    return ray


def materialize(
    asset: dg.AssetsDefinition, control: FakeControl, **options: Any
) -> dg.ExecuteInProcessResult:
    """Materialize one asset over a fake control."""
    ray = fake_ray(control, leave_when_cut_off=options.pop("leave_when_cut_off", True))
    return dg.materialize([asset], resources={"ray": ray}, raise_on_error=False, **options)
