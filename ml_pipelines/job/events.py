"""What `lifecycle.follow` tells: the one stream that Dagster, the command line and X-Ray read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ml_pipelines.job.phase import Phase
    from ml_pipelines.job.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Submitted:
    """The job exists from here on. `adopted` when an earlier process had made it."""

    run_key: str
    attempt: int
    name: str
    backend: str
    adopted: bool = False


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """The phase, or the reason for it, is another one now; `sentence` is for people."""

    phase: Phase
    sentence: str
    attempt: int


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log, exactly once. `offset` is where it begins, in bytes of its source."""

    source: str  # "driver", "worker-…"
    text: str  # without its newline
    offset: int
    attempt: int


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """Numbers of one training step. Strictly increasing in `step` across a job's attempts.

    `values` holds finite floats, or "NaN", "Infinity", "-Infinity" as strings.
    """

    step: int
    values: Mapping[str, float | str]
    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """One attempt is over; `decision` is the one line that says what follows from it."""

    attempt: int
    verdict: Verdict
    decision: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something worth a line that is none of the others: a size shrunk, a clean-up that failed."""

    sentence: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The end: one of SUCCEEDED, FAILED, CANCELLED, LOST, with verdict, result and last lines.

    `result` is what the workload committed to run storage (empty where none is owed); `durations`
    holds seconds by part: "queue", "provisioning", "run", "drain".
    """

    run_key: str
    phase: Phase
    verdict: Verdict
    result: Mapping[str, object] = field(default_factory=dict)
    tail: tuple[str, ...] = ()
    log_url: str = ""
    durations: Mapping[str, float] = field(default_factory=dict)


Event = Submitted | PhaseChanged | LogLine | MetricPoint | AttemptEnded | Notice | JobEnded
