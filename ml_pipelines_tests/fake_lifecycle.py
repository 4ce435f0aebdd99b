"""A lifecycle without a backend: it plays given events and records what it was asked."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner, Result

from ml_pipelines.backends.base import Place
from ml_pipelines.cli.main import main
from ml_pipelines.cli.session import Session
from ml_pipelines.clock import Clock, FakeClock
from ml_pipelines.job.events import Event, JobEnded, LogLine, PhaseChanged, Submitted
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import Verdict, VerdictClass
from ml_pipelines.lifecycle import check_storage_urls
from ml_pipelines.settings import Settings
from ml_pipelines.spec.pools import load_pools
from ml_pipelines.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping
    from pathlib import Path

SUCCESS = Verdict(VerdictClass.SUCCESS, "the driver ended with exit code 0")
USER = Verdict(
    VerdictClass.USER,
    "the driver ended with exit code 3",
    ("Traceback (most recent call last):\nValueError: no such column",),
    remedy="Mend the script and submit it again.",
    exit_code=3,
)
CANCELLED = Verdict(VerdictClass.CANCELLED, "cancelled by ada")


def played(phase: Phase = Phase.SUCCEEDED, verdict: Verdict = SUCCESS) -> list[Event]:
    """The events of a short job that ends like this; `KEY` stands for its run key."""
    return [
        Submitted("KEY", 1, "KEY-a1", "local"),
        PhaseChanged(Phase.PROVISIONING, "starting a Ray head", 1),
        PhaseChanged(Phase.RUNNING, "the driver runs", 1),
        LogLine("driver", "hello from the driver", 0, 1),
        JobEnded("KEY", phase, verdict, durations={"run": 4.25}),
    ]


@dataclass
class FakeLifecycle:
    """`events` may hold exceptions, which are raised in their place."""

    events: list[Any] = field(default_factory=played)
    jobs: list[Any] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    refuse: Exception | None = None

    @contextmanager
    def open_platform(self, settings: Settings) -> Iterator[Any]:
        check_storage_urls(settings, load_pools(settings.pools))
        yield SimpleNamespace(store=open_store(settings.runs), settings=settings)
        self.calls.append(("closed",))

    @contextmanager
    def open_backend(self, settings: Settings, clock: Clock) -> Iterator[Any]:
        def check(manifest: Any) -> tuple[str, ...]:
            self.calls.append(("check", manifest))
            if self.refuse:
                raise self.refuse
            return ("GPUs fall away",)

        yield SimpleNamespace(check=check, place=Place("kuberay", "ads/123"))

    def submit(self, spec: Any, *, run_key: str, labels: Mapping[str, str], platform: Any) -> Any:
        self.calls.append(("submit", run_key, spec))
        if self.refuse:
            raise self.refuse
        return SimpleNamespace(run_key=run_key, spec=spec)

    def attach(self, run_key: str, *, platform: Any, takeover: bool) -> Any:
        self.calls.append(("attach", run_key, takeover))
        if self.refuse:
            raise self.refuse
        return SimpleNamespace(run_key=run_key)

    def follow(self, job: Any, *, platform: Any) -> Generator[Event, None, None]:
        self.calls.append(("follow", job.run_key))
        try:
            for event in self.events:
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            self.calls.append(("released", job.run_key))

    def cancel(self, run_key: str, *, platform: Any, reason: str, by: str) -> list[Event]:
        self.calls.append(("cancel", run_key, reason, by))
        over = [job.phase for job in self.jobs if job.run_key == run_key and job.phase.ended]
        return [JobEnded(run_key, (*over, Phase.CANCELLED)[0], CANCELLED)]

    def read_logs(
        self, run_key: str, *, platform: Any, attempt: int | None, source: str, follow: bool
    ) -> Iterator[LogLine]:
        self.calls.append(("read_logs", run_key, attempt, follow))
        return (LogLine(source, text, i, 1) for i, text in enumerate(self.lines))

    def describe(self, run_key: str, *, platform: Any) -> Any:
        return next(job for job in self.jobs if job.run_key == run_key)

    def list_jobs(self, platform: Any, *, days: int) -> list[Any]:
        self.calls.append(("list_jobs", days))
        return self.jobs

    def asked(self, verb: str) -> list[tuple[Any, ...]]:
        """The calls of one verb, without its name."""
        return [call[1:] for call in self.calls if call[0] == verb]


@dataclass
class Mlp:
    """`mlp` as a test calls it."""

    home: Path
    lifecycle: FakeLifecycle = field(default_factory=FakeLifecycle)
    loops: list[str] = field(default_factory=list)
    clock: FakeClock = field(
        default_factory=lambda: FakeClock(datetime(2026, 5, 1, 12, tzinfo=UTC))
    )
    backend: str = "local"
    storage: str = ""  # where lake and runs lie; empty: in the home

    @property
    def settings(self) -> Settings:
        """A home of its own, owned by ada."""
        return Settings(
            home=self.home,
            lake=f"{self.storage or f'file://{self.home}'}/lake",
            runs=f"{self.storage or f'file://{self.home}'}/runs",
            pools=None,
            backend=self.backend,
            owner="ada",
            team="ads",
        )

    def session(self) -> Session:
        """A session whose lifecycle is the fake, and whose loops are only noted."""
        return Session(
            clock=self.clock,
            load_settings=lambda: self.settings,
            load_lifecycle=lambda: self.lifecycle,
            spawn_loop=self._spawn,
        )

    def _spawn(self, run_key: str, settings: Settings) -> str:
        # The claim must be free by now: the loop would wait for it otherwise.
        assert self.lifecycle.calls[-1] == ("closed",)
        self.loops.append(run_key)
        return str(settings.home / "loops" / f"{run_key}.log")

    def __call__(self, *args: str) -> Result:
        return CliRunner().invoke(main, list(args), obj=self.session(), prog_name="mlp")
