"""What the commands act through; tests give their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, cast

from ml_pipelines.clock import Clock, SystemClock
from ml_pipelines.errors import InvalidInput
from ml_pipelines.settings import Settings, load

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from contextlib import AbstractContextManager

    from ml_pipelines.backends.base import Backend
    from ml_pipelines.job.events import Event, LogLine
    from ml_pipelines.lifecycle import Job, JobSummary, Platform
    from ml_pipelines.spec.job import JobSpec


class Lifecycle(Protocol):
    """The part of `ml_pipelines.lifecycle` that the command line calls; the module is one."""

    def open_platform(self, settings: Settings) -> AbstractContextManager[Platform]: ...

    def open_backend(self, settings: Settings, clock: Clock) -> AbstractContextManager[Backend]: ...

    def submit(
        self, spec: JobSpec, *, run_key: str, labels: Mapping[str, str], platform: Platform
    ) -> Job: ...

    def attach(self, run_key: str, *, platform: Platform, takeover: bool) -> Job: ...

    def follow(self, job: Job, *, platform: Platform) -> Generator[Event, None, None]: ...

    def cancel(self, run_key: str, *, platform: Platform, reason: str, by: str) -> list[Event]: ...

    def read_logs(
        self, run_key: str, *, platform: Platform, attempt: int | None, source: str, follow: bool
    ) -> Iterator[LogLine]: ...

    def describe(self, run_key: str, *, platform: Platform) -> JobSummary: ...

    def list_jobs(self, platform: Platform, *, days: int) -> list[JobSummary]: ...


def _lifecycle() -> Lifecycle:
    from ml_pipelines import lifecycle

    return cast("Lifecycle", lifecycle)


def _spawn_loop(run_key: str, settings: Settings) -> str:
    from ml_pipelines.cli.loop import spawn

    return spawn(run_key, settings)


@dataclass
class Session:
    """One call of `mlp`. Everything heavy is made when it is first asked for."""

    clock: Clock = field(default_factory=SystemClock)
    load_settings: Callable[[], Settings] = load
    load_lifecycle: Callable[[], Lifecycle] = _lifecycle
    # Starts the background loop of a job; returns the path of its log.
    spawn_loop: Callable[[str, Settings], str] = _spawn_loop

    @cached_property
    def settings(self) -> Settings:
        """Where our files are, from the environment."""
        return self.load_settings()

    @cached_property
    def lifecycle(self) -> Lifecycle:
        """The loop and its verbs."""
        return self.load_lifecycle()

    def elsewhere(self, part: str) -> list[str]:
        """How to look at the homes below ours that hold a `part` (`lake`, `runs`) of their own.

        `make` keeps one for each of its data sets, and ours may be the folder around them.
        """
        homes = sorted(found.parent for found in self.settings.home.glob(f"*/{part}"))
        return [f"MLP_HOME={home}" for home in homes]

    def find(self, text: str, platform: Platform) -> str:
        """The run key that `text` is, or of which it is the only beginning.

        Raises InvalidInput where no job or more than one answers to it.
        """
        from ml_pipelines.journal import index

        found = index.find(platform.store, text)
        if len(found) == 1:
            return found[0]
        if found:
            raise InvalidInput(
                "RUN_KEY", text, f"begins {len(found)} jobs: {', '.join(found[:5])}",
                remedy="Write more of it.",
            )  # fmt: skip
        others = " or ".join(self.elsewhere("runs"))
        raise InvalidInput(
            "RUN_KEY", text, f"is no job in {self.settings.runs}",
            remedy=f"Try {others}." if others else
            "See `mlp job list`, or point MLP_HOME or MLP_RUNS at where it ran.",
        )  # fmt: skip
