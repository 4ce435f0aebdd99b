"""Events become Dagster's: lines to stdout, changes to the log, metrics to observations.

`context.log` is a database row a line (80 a second), so it carries only what happened to the job;
an observation is two, so metrics pass at a bounded rate. Raw lines go to the step's stdout, which
takes 50,000 a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

import dagster as dg

from ml_pipelines.clock import Clock
from ml_pipelines.errors import InvalidInput, MlPipelinesError
from ml_pipelines.job.events import (
    AttemptEnded,
    Event,
    JobEnded,
    LogLine,
    MetricPoint,
    Notice,
    PhaseChanged,
    Submitted,
)
from ml_pipelines.job.phase import Phase

OBSERVATION_INTERVAL_S = 15.0
LOG_BUDGET = 100
TAIL_LINES = 50


class Sink(Protocol):
    """The part of a Dagster step that hears of a job."""

    def log(self, sentence: str, *, warning: bool = False) -> None:
        """One line about the job, kept in the run's event log."""

    def observe(self, metadata: Mapping[str, float | int | str]) -> None:
        """One point of the asset's plots, visible while the run goes on."""


class StepSink:
    """The sink of a real step."""

    def __init__(self, context: dg.AssetExecutionContext) -> None:
        self._context = context

    def log(self, sentence: str, *, warning: bool = False) -> None:
        (self._context.log.warning if warning else self._context.log.info)(sentence)

    def observe(self, metadata: Mapping[str, float | int | str]) -> None:
        partition = self._context.partition_key if self._context.has_partition_key else None
        self._context.log_event(
            dg.AssetObservation(
                asset_key=self._context.asset_key, partition=partition, metadata=dict(metadata)
            )
        )


class Translator:
    """Tells a sink and a stream what `lifecycle.follow` yields; keeps the end."""

    def __init__(
        self, sink: Sink, out: TextIO, clock: Clock, *, interval_s: float = OBSERVATION_INTERVAL_S
    ) -> None:
        self._sink = sink
        self._out = out
        self._clock = clock
        self._interval_s = interval_s
        self._budget = LOG_BUDGET
        self._said = ""
        self._observed_at: float | None = None
        self._pending: MetricPoint | None = None
        self.ended: JobEnded | None = None

    def tell(self, event: Event) -> None:
        """Pass one event on; observations that are due go first."""
        match event:
            case LogLine():
                prefix = "" if event.source == "driver" else f"[{event.source}] "
                self._print(prefix + event.text)
            case MetricPoint():
                self._print(_metric_line(event))
                self._pending = event
            case Submitted():
                how = "claimed, already there" if event.adopted else "submitted"
                self._say(f"Job {event.run_key} {how} as {event.name} ({event.backend}).")
            case PhaseChanged():
                self._say(f"{event.phase}: {event.sentence}")
            case AttemptEnded() if not event.verdict.ok:  # a good one is the job's end, said there
                said = f"Attempt {event.attempt} ended, {event.verdict.cls}: "
                self._say(f"{said}{event.verdict.sentence}; {event.decision}", warning=True)
            case Notice():
                self._say(event.sentence, warning=event.warning)
            case JobEnded():
                self.ended = event
                self._observe()
                self._say(f"{event.phase}: {event.verdict.sentence}")
        if self._due():
            self._observe()

    def _due(self) -> bool:
        if self._pending is None:
            return False
        at = self._observed_at
        return at is None or self._clock.monotonic() - at >= self._interval_s

    def _observe(self) -> None:
        if self._pending is None:
            return
        point, self._pending = self._pending, None
        self._observed_at = self._clock.monotonic()
        try:
            self._sink.observe(observation(point))
        except Exception as error:  # noqa: BLE001 - no plot is worth ending a training for
            self._print(f"[ml_pipelines] an observation was not stored: {error!r}")

    def _say(self, sentence: str, *, warning: bool = False) -> None:
        if sentence == self._said:
            return
        self._said = sentence
        self._budget -= 1
        if self._budget < 0:
            self._print(f"[ml_pipelines] {sentence}")
            return
        self._sink.log(sentence, warning=warning)
        if self._budget == 0:
            self._sink.log("Further lines about this job go to stdout only.", warning=True)

    def _print(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()  # a line that waits in a buffer can't be watched


def observation(point: MetricPoint) -> dict[str, float | int | str]:
    """Metadata of one point: finite numbers plot, "NaN" and infinities are shown as text."""
    return {"step": point.step, "attempt": point.attempt, **point.values}


def failure_of(error: MlPipelinesError) -> dg.Failure:
    """The one mapping of our errors to Dagster's; retrying is ours, so none asks for it."""
    metadata: dict[str, dg.MetadataValue[Any]] = {"error": dg.MetadataValue.text(_name(error))}
    if isinstance(error, InvalidInput):
        metadata["path"] = dg.MetadataValue.text(error.path)
        metadata["value"] = dg.MetadataValue.text(repr(error.value)[:500])
    if error.remedy:
        metadata["what to do"] = dg.MetadataValue.text(error.remedy)
    return dg.Failure(description=str(error), metadata=metadata, allow_retries=False)


def failure_of_end(end: JobEnded) -> dg.Failure:
    """The failure of a job that ended without success: verdict, evidence, last lines, remedy."""
    verdict = end.verdict
    metadata: dict[str, dg.MetadataValue[Any]] = {
        "verdict": dg.MetadataValue.text(str(verdict.cls)),
        "job": dg.MetadataValue.text(end.run_key),
    }
    if verdict.evidence:
        metadata["evidence"] = dg.MetadataValue.md("\n".join(f"- {e}" for e in verdict.evidence))
    if end.tail:
        metadata["last lines"] = dg.MetadataValue.md(_fenced(end.tail[-TAIL_LINES:]))
    if verdict.remedy:
        metadata["what to do"] = dg.MetadataValue.text(verdict.remedy)
    if end.log_url:
        metadata["log"] = dg.MetadataValue.url(end.log_url)
    description = f"{end.phase}, {verdict.cls}: {verdict.sentence.rstrip('.')}. {verdict.remedy}"
    return dg.Failure(description=description.strip(), metadata=metadata, allow_retries=False)


def succeeded(end: JobEnded) -> bool:
    """Whether the job ended well."""
    return end.phase is Phase.SUCCEEDED and end.verdict.ok


@contextmanager
def plain_failures() -> Iterator[None]:
    """Our errors leave the block (or the decorated asset) as Dagster failures without retry."""
    try:
        yield
    except MlPipelinesError as error:
        raise failure_of(error) from error


def _fenced(lines: tuple[str, ...]) -> str:
    # A log may hold fences itself; indentation can't be broken out of.
    return "\n".join("    " + line for line in lines)


def _name(error: MlPipelinesError) -> str:
    return type(error).__name__


def _metric_line(point: MetricPoint) -> str:
    shown = (
        f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in point.values.items()
    )
    return f"[metrics] step {point.step}: {', '.join(shown)}"
