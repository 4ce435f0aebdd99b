"""How a job looks in a terminal: its log on stdout, its state on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ml_pipelines.clock import Clock

FAILED = 1
CANCELLED = 5
QUOTED_LINES = 15

_COLORS = {
    Phase.SUCCEEDED: "green",
    Phase.FAILED: "red",
    Phase.LOST: "red",
    Phase.CANCELLED: "yellow",
    Phase.RUNNING: "cyan",
}


def exit_code(phase: Phase) -> int:
    """The exit code of a command that followed a job to this end."""
    if phase is Phase.SUCCEEDED:
        return 0
    return CANCELLED if phase is Phase.CANCELLED else FAILED


def span(seconds: float) -> str:
    """A duration for people: `4.2 s`, `3 min 05 s`, `2 h 10 min`, `3 d 4 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def say(text: str) -> None:
    """One message, to stderr: stdout belongs to the log."""
    click.echo(text, err=True)


def plain(text: str) -> str:
    """`text` in one line, control characters as escapes: a job's name moves nobody's cursor."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the last one runs on."""
    lines = [tuple(head), *(tuple(map(plain, row)) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def commands(run_key: str, *verbs: str) -> None:
    """The next useful commands, the job's key last in each: nobody scrolls for it."""
    for verb in verbs:
        say(f"  mlp job {verb} {run_key}")


class Console:
    """Shows the events of one job, in order, each once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def show(self, event: Event) -> None:
        """Write one event."""
        match event:
            case LogLine():
                prefix = "" if event.source == "driver" else f"[{event.source}] "
                click.echo(prefix + event.text)
            case Submitted():
                self._line(_submitted(event))
            case PhaseChanged():
                name = click.style(f"{event.phase:<12}", fg=_COLORS.get(event.phase))
                self._line(f"{name} {event.sentence}")
            case MetricPoint():
                self._line(f"step {event.step}  {_values(event.values)}")
            case AttemptEnded():
                verdict = event.verdict
                self._line(
                    f"attempt {event.attempt} ended, {verdict.cls}: {verdict.sentence}; "
                    f"{event.decision}".rstrip()
                )
            case Notice():
                self._line(("warning: " if event.warning else "note: ") + event.sentence)
            case JobEnded():
                show_end(event)

    def _line(self, text: str) -> None:
        # The local time of day: what people compare with their own clock.
        say(f"{self._clock.now().astimezone():%H:%M:%S}  {text}")


def show_end(end: JobEnded) -> None:
    """The verdict with its evidence and remedy, what it took, and what to do next."""
    verdict = end.verdict
    took = ", ".join(f"{name} {span(s)}" for name, s in end.durations.items())
    phase = click.style(str(end.phase), fg=_COLORS.get(end.phase), bold=True)
    say(f"\n{phase}  {end.run_key}" + (f"  ({took})" if took else ""))
    if end.phase is not Phase.SUCCEEDED:
        say(f"  {verdict.cls}: {verdict.sentence}")
        evidence = [item for item in verdict.evidence if item != verdict.sentence]
        for line in _quoted(evidence or ["\n".join(end.tail)]):
            say(f"  | {line}")
        if verdict.remedy:
            say(f"  → {verdict.remedy}")
    for warning in verdict.warnings:
        say(f"  warning: {warning}")
    for name, value in end.result.items():
        say(f"  {name}: {value}")
    if end.log_url:
        say(f"  log: {end.log_url}")
    commands(end.run_key, "status", "logs")


def _quoted(evidence: Sequence[str]) -> Iterator[str]:
    """The lines of the evidence, each item's last ones, what an item repeats of a later one left out."""
    for number, item in enumerate(evidence):
        text = item
        for later in evidence[number + 1 :]:
            text = text.replace(later, "")
        yield from text.rstrip().splitlines()[-QUOTED_LINES:]


def _submitted(event: Submitted) -> str:
    if event.adopted:
        return f"Following {event.run_key} (attempt {event.attempt}, {event.name})"
    return f"Submitted {event.run_key} on {event.backend} (attempt {event.attempt}, {event.name})"


def _values(values: Mapping[str, float | str]) -> str:
    return "  ".join(
        f"{name} {value:.6g}" if isinstance(value, (int, float)) else f"{name} {value}"
        for name, value in values.items()
    )
