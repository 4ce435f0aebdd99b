"""Messages of a workload in its own log: Dagster Pipes' format, one line each."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsFloat

from ml_pipelines.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION_FIELD = "__dagster_pipes_version"
VERSION = "0.1"
CUSTOM = "report_custom_message"
LONGEST_LINE = 65_536  # characters
MOST_VALUES = 100  # in one metric
LONGEST_NAME = 100
LONGEST_TEXT = 1_000

_MARK = f'"{VERSION_FIELD}"'
_EXCERPT = 200


@dataclass(frozen=True, slots=True)
class Metric:
    """Numbers of one training step: finite floats, or "NaN", "Infinity", "-Infinity".

    `claim` is the number of the driver's claim in the journal, 0 where it made none.
    """

    step: int
    values: Mapping[str, float | str]
    claim: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """A sentence on how far it is; `done` of `total` where the workload knows, else None."""

    text: str
    done: float | None = None
    total: float | None = None
    claim: int = 0


@dataclass(frozen=True, slots=True)
class Foreign:
    """A Pipes message that isn't ours, such as a `log` of a script that uses dagster_pipes."""

    method: str
    params: Mapping[str, Any]

    @property
    def text(self) -> str:
        """For people: what a `log` says, else the method's name."""
        said = self.params.get("message")
        return said[:LONGEST_TEXT] if isinstance(said, str) else self.method[:LONGEST_NAME]


@dataclass(frozen=True, slots=True)
class Malformed:
    """A line that means to be a message and can't be read: worth one warning, not a metric."""

    problem: str
    excerpt: str  # at most 200 characters

    @property
    def sentence(self) -> str:
        """For people."""
        return f"a message in the log was dropped: {self.problem}: {self.excerpt!r}"


Message = Metric | Progress | Foreign


# --- writing --------------------------------------------------------------------------------


def encode_metric(step: int, values: Mapping[str, SupportsFloat | str], *, claim: int = 0) -> str:
    """One line, pure ASCII and without its newline.

    Values may be anything that `float` takes (NumPy and torch scalars too); what is not finite
    travels as a string, for strict JSON has no word for it. Raises InvalidInput for a negative
    step, an empty, too long or too numerous name, and for what is no number.
    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise InvalidInput("step", step, "is not a whole number from 0")
    if not 0 < len(values) <= MOST_VALUES:
        raise InvalidInput("values", len(values), f"is not between 1 and {MOST_VALUES} numbers")
    for name in values:
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            problem = f"is not a name of 1 to {LONGEST_NAME} characters"
            raise InvalidInput("values", name, problem)
    numbers = {name: _number(name, value) for name, value in values.items()}
    return _encode({"kind": "metric", "step": step, "values": numbers, "claim": claim})


def encode_progress(
    text: str, *, done: float | None = None, total: float | None = None, claim: int = 0
) -> str:
    """One line, as `encode_metric`; a text of more than 1,000 characters is cut."""
    payload = {"kind": "progress", "text": text[:LONGEST_TEXT], "claim": claim}
    for name, value in (("done", done), ("total", total)):
        if value is not None:
            payload[name] = _number(name, value)
    return _encode(payload)


def _encode(payload: Mapping[str, Any]) -> str:
    message = {VERSION_FIELD: VERSION, "method": CUSTOM, "params": {"payload": payload}}
    return json.dumps(message, allow_nan=False, separators=(",", ":"))


def _number(name: str, value: SupportsFloat | str) -> float | str:
    if isinstance(value, str) and value not in {"NaN", "Infinity", "-Infinity"}:
        raise InvalidInput(f"values.{name}", value, "is not a number")
    try:
        number = float(value)
    except OverflowError:  # an int beyond the floats
        return "Infinity" if value > 0 else "-Infinity"  # type: ignore[operator]
    except (TypeError, ValueError):
        raise InvalidInput(f"values.{name}", value, "is not a number") from None
    return _plain(number)


def _plain(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


# --- reading --------------------------------------------------------------------------------


def parse(line: str) -> Message | Malformed | None:
    """The message in a log line, whatever stands before or after it; None for an ordinary line.

    Never raises, and looks at most at the first 65,536 characters of a message.
    """
    mark = line.find(_MARK)
    if mark < 0:
        return None
    if len(line) > LONGEST_LINE:
        return Malformed(f"{len(line):,} characters, more than {LONGEST_LINE:,}", line[:_EXCERPT])
    message = _object_with_version(line, mark)
    if message is None:
        return Malformed("not readable as JSON", line[:_EXCERPT])
    params = message.get("params")
    payload = params.get("payload") if isinstance(params, dict) else None
    method = message.get("method")
    if not isinstance(method, str):
        return Malformed("no method", line[:_EXCERPT])
    ours = method == CUSTOM and isinstance(payload, dict) and "kind" in payload
    if not ours:
        return Foreign(method, params if isinstance(params, dict) else {})
    assert isinstance(payload, dict)
    return _read(payload, line)


def _object_with_version(line: str, mark: int) -> dict[str, Any] | None:
    # Our writers put the version first; others may put it anywhere.
    for start in (line.rfind("{", 0, mark), line.find("{")):
        if start < 0:
            continue
        try:
            found, _ = _DECODER.raw_decode(line, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and VERSION_FIELD in found:
            return found
    return None


_DECODER = json.JSONDecoder()


def _read(payload: dict[str, Any], line: str) -> Message | Malformed:
    claim = payload.get("claim", 0)
    if not _whole(claim):
        return Malformed("claim is not a whole number", line[:_EXCERPT])
    if payload["kind"] == "metric":
        return _metric(payload, claim, line)
    if payload["kind"] == "progress":
        done, total = _optional(payload.get("done")), _optional(payload.get("total"))
        return Progress(str(payload.get("text", ""))[:LONGEST_TEXT], done, total, claim)
    return Foreign(CUSTOM, {"payload": payload})  # a newer workload's kind


def _metric(payload: dict[str, Any], claim: int, line: str) -> Metric | Malformed:
    step, values = payload.get("step"), payload.get("values")
    if not _whole(step) or not isinstance(values, dict) or not 0 < len(values) <= MOST_VALUES:
        return Malformed("a metric without a step or values", line[:_EXCERPT])
    assert isinstance(step, int)
    try:
        numbers = {name[:LONGEST_NAME]: _number(name, value) for name, value in values.items()}
    except InvalidInput as error:
        return Malformed(error.message[:_EXCERPT], line[:_EXCERPT])
    return Metric(step, numbers, claim)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _optional(value: object) -> float | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None  # type: ignore[arg-type]


# --- order ----------------------------------------------------------------------------------


@dataclass(slots=True)
class MetricGate:
    """Lets a metric through only if its step is new and its claim holds.

    One gate serves a whole job: steps increase strictly across attempts, and a driver that was
    superseded is heard no more.
    """

    last_step: int = -1
    claim: int = 0

    def fence(self, claim: int) -> None:
        """The journal shows this claim: older ones are void."""
        self.claim = max(self.claim, claim)

    def admits(self, metric: Metric) -> bool:
        """Whether this metric may pass; once only."""
        self.fence(metric.claim)
        if metric.step <= self.last_step or metric.claim < self.claim:
            return False
        self.last_step = metric.step
        return True
