"""Events of a job become a Dagster step's stdout, log lines, observations and failure."""

from __future__ import annotations

import io
import json

import dagster as dg
import pytest

from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import (
    DoesNotFit,
    InvalidInput,
    MlPipelinesError,
    Refused,
    StorageUnavailable,
)
from ml_pipelines.job.events import (
    AttemptEnded,
    JobEnded,
    LogLine,
    MetricPoint,
    Notice,
    PhaseChanged,
    Submitted,
)
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import Verdict, VerdictClass
from ml_pipelines.orchestration.translate import (
    LOG_BUDGET,
    Translator,
    failure_of,
    failure_of_end,
    observation,
    plain_failures,
)

SUCCESS = Verdict(VerdictClass.SUCCESS, "exit code 0")


class Recorder:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.logged: list[tuple[str, bool]] = []
        self.observed: list[dict[str, float | int | str]] = []
        self.broken = False

    def log(self, sentence: str, *, warning: bool = False) -> None:
        self.logged.append((sentence, warning))

    def observe(self, metadata) -> None:
        if self.broken:
            raise OSError("the event log is away")
        self.observed.append(dict(metadata))


class Step:
    """A translator with everything it talks to."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.sink, self.out = clock, Recorder(), io.StringIO()
        self.translator = Translator(self.sink, self.out, clock, interval_s=15)

    def tell(self, *events) -> None:
        for event in events:
            self.translator.tell(event)


@pytest.fixture
def step(clock: FakeClock) -> Step:
    return Step(clock)


def metric(step: int, **values: float | str) -> MetricPoint:
    return MetricPoint(step, values, attempt=1)


def test_raw_lines_go_to_stdout_and_never_to_the_event_log(step: Step) -> None:
    """Case D: lines reach stdout as written; a worker's own stream is named."""
    step.tell(LogLine("driver", "loss 0.5", 0, 1), LogLine("worker-2", "ünïcode", 9, 1))
    assert step.out.getvalue() == "loss 0.5\n[worker-2] ünïcode\n"
    assert step.sink.logged == []


def test_what_happened_to_the_job_goes_to_the_event_log(step: Step) -> None:
    """Submission, phases, attempts and notices are one log line each."""
    lost = Verdict(VerdictClass.INFRA, "the head is gone")
    step.tell(
        Submitted("key", 1, "key-a1", "local"),
        PhaseChanged(Phase.PENDING, "the head starts", 1),
        AttemptEnded(1, lost, "Attempt 2 follows in 5 s."),
        Notice("a size shrank", warning=True),
    )
    assert [text for text, _ in step.sink.logged] == [
        "Job key submitted as key-a1 (local).",
        "PENDING: the head starts",
        "Attempt 1 ended, INFRA: the head is gone; Attempt 2 follows in 5 s.",
        "a size shrank",
    ]
    assert [warning for _, warning in step.sink.logged] == [False, False, True, True]


def test_a_job_that_flaps_can_not_fill_the_event_log(step: Step) -> None:
    """After its budget the log says so once, and further lines go to stdout."""
    for number in range(1000):
        step.tell(PhaseChanged(Phase.PENDING, f"reason {number}", 1))
    assert len(step.sink.logged) == LOG_BUDGET + 1
    assert "stdout" in step.sink.logged[-1][0]
    assert "reason 999" in step.out.getvalue()


def test_the_same_sentence_twice_is_said_once(step: Step) -> None:
    """A phase that is told again with the same reason is no news."""
    step.tell(*[PhaseChanged(Phase.QUEUED, "waiting for quota", 1)] * 3)
    assert len(step.sink.logged) == 1


def test_observations_come_at_a_bounded_rate_and_the_last_one_always(step: Step) -> None:
    """A point a second for two minutes gives one observation in 15 s, and the final point."""
    for second in range(121):
        step.tell(metric(second, loss=1 / (second + 1)))
        step.clock.advance(1)
    step.tell(JobEnded("key", Phase.SUCCEEDED, SUCCESS))
    steps = [observed["step"] for observed in step.sink.observed]
    assert steps == [0, 15, 30, 45, 60, 75, 90, 105, 120]


def test_the_last_point_is_observed_when_the_job_ends_at_once(step: Step) -> None:
    """A point inside the interval waits, and isn't lost."""
    step.tell(metric(1, loss=0.5), metric(2, loss=0.4), JobEnded("key", Phase.FAILED, SUCCESS))
    assert [observed["step"] for observed in step.sink.observed] == [1, 2]


def test_a_waiting_point_is_observed_with_any_later_event(step: Step) -> None:
    """A line that comes after the interval brings the waiting point along."""
    step.tell(metric(1, loss=0.5), metric(2, loss=0.4))
    step.clock.advance(16)
    step.tell(LogLine("driver", "still here", 0, 1))
    assert [observed["step"] for observed in step.sink.observed] == [1, 2]


def test_a_database_that_fails_ends_no_training(step: Step) -> None:
    """An observation that can't be stored is told on stdout; the job goes on."""
    step.sink.broken = True
    step.tell(metric(1, loss=0.5), LogLine("driver", "next", 0, 1))
    assert "the event log is away" in step.out.getvalue()
    assert step.out.getvalue().endswith("next\n")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_values_that_json_has_not_are_shown_as_text(value: str) -> None:
    """Case J1: a NaN loss makes a legal observation and strict JSON."""
    metadata = observation(metric(3, loss=value))
    made = dg.AssetObservation("model", metadata=metadata)
    assert made.metadata["loss"].value == value
    json.dumps(metadata, allow_nan=False)


def test_finite_values_are_numbers_that_plot() -> None:
    """A float stays a float, for text does not plot."""
    made = dg.AssetObservation("model", metadata=observation(metric(3, loss=0.25)))
    loss = made.metadata["loss"]
    assert isinstance(loss, dg.FloatMetadataValue)
    assert loss.value == 0.25


def test_a_failed_job_tells_why_and_what_to_do() -> None:
    """Case D14: verdict, evidence, last lines, remedy and log are in the failure; no retry."""
    verdict = Verdict(
        VerdictClass.OOM,
        "a worker ran out of memory",
        ("OOMKilled, exit code 137",),
        "Ask for 8Gi.",
    )
    lines = tuple(f"line {n}" for n in range(80))
    failure = failure_of_end(
        JobEnded("key", Phase.FAILED, verdict, tail=lines, log_url="file:///log")
    )
    assert failure.allow_retries is False
    assert failure.description == "FAILED, OOM: a worker ran out of memory. Ask for 8Gi."
    shown = {name: str(value.value) for name, value in failure.metadata.items()}
    assert shown["verdict"] == "OOM"
    assert "OOMKilled" in shown["evidence"]
    assert "line 79" in shown["last lines"]
    assert "line 29\n" not in shown["last lines"]
    assert shown["what to do"] == "Ask for 8Gi."
    assert shown["log"] == "file:///log"


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("cluster.workers[0].memory", "256GB", "is no quantity", remedy="Write 256G."),
        DoesNotFit("config.cpu", "99", "is more than there is", remedy="Ask for less."),
        Refused("job x is followed by another process", remedy="Wait."),
        StorageUnavailable("s3://bucket does not answer", remedy="Try again."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_our_errors_become_failures_without_retry(error: MlPipelinesError) -> None:
    """Whatever we raise on purpose reaches the run as one sentence, never as a retry."""
    with pytest.raises(dg.Failure) as raised, plain_failures():
        raise error
    assert raised.value.description == str(error)
    assert raised.value.allow_retries is False
    assert raised.value.metadata["what to do"].value == error.remedy
    assert failure_of(error).metadata["error"].value == type(error).__name__
