"""Messages in a log: Dagster Pipes' format, through prefixes, NaN and broken lines."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipelines.errors import InvalidInput
from ml_pipelines.job import wire

PREFIXES = [
    "",
    "(RayTrainWorker pid=12) ",
    "\x1b[36m(train_fn pid=12, ip=10.0.0.1)\x1b[0m ",
    "2026-01-01T00:00:00Z stdout F ",
    "progress {50%} ",
]
LINE = wire.encode_metric(7, {"loss": 0.5}, claim=3)


def strict(line: str) -> Any:
    """Read JSON that has no NaN."""

    def refuse(word: str) -> float:
        raise AssertionError(word)

    return json.loads(line, parse_constant=refuse)


def test_the_format_is_that_of_pipes():
    """Dagster's own reader takes our lines for custom messages."""
    message = strict(LINE)
    assert message["__dagster_pipes_version"] == "0.1"
    assert message["method"] == "report_custom_message"
    assert message["params"]["payload"]["kind"] == "metric"
    assert "\n" not in LINE


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("suffix", ["", "\r", "\x1b[0m", " trailing", "}"])
def test_a_message_is_found_behind_a_prefix(prefix: str, suffix: str):
    """Case D10: what Ray or a runtime puts around the line hides no message."""
    assert wire.parse(prefix + LINE + suffix) == wire.Metric(7, {"loss": 0.5}, 3)


def test_an_ordinary_line_is_none():
    """A line that is no message is nothing, whatever it looks like."""
    for line in ("", "step 3", '{"loss": 1}', "{", "__dagster_pipes_version"):
        assert wire.parse(line) is None


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (-math.inf, "-Infinity"),
        (1e400, "Infinity"),
        (10**400, "Infinity"),
        (-(10**400), "-Infinity"),
        (np.float32("nan"), "NaN"),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (True, 1.0),
        ("NaN", "NaN"),
    ],
)
def test_what_is_not_finite_is_text(value: Any, read: float | str):
    """Case J1: NaN, infinities and NumPy's numbers travel in strict JSON."""
    line = wire.encode_metric(1, {"loss": value})
    strict(line)
    assert wire.parse(line) == wire.Metric(1, {"loss": read})


def test_nan_of_other_writers_is_read():
    """Case J1: json.dumps writes bare NaN and 1e400 by default; they are read as text."""
    line = LINE.replace("0.5", "NaN")
    assert wire.parse(line) == wire.Metric(7, {"loss": "NaN"}, 3)
    assert wire.parse(LINE.replace("0.5", "1e400")) == wire.Metric(7, {"loss": "Infinity"}, 3)


@pytest.mark.parametrize(
    ("step", "values", "path"),
    [
        (-1, {"a": 1}, "step"),
        (True, {"a": 1}, "step"),
        (1.5, {"a": 1}, "step"),
        (1, {}, "values"),
        (1, {f"v{n}": 1 for n in range(101)}, "values"),
        (1, {"": 1}, "values"),
        (1, {"x" * 101: 1}, "values"),
        (1, {"a": "many"}, "values.a"),
        (1, {"a": None}, "values.a"),
        (1, {"a": [1, 2]}, "values.a"),
    ],
)
def test_what_is_no_metric_is_refused_where_it_is_written(step: Any, values: Any, path: str):
    """A mistake in a training script is named there, not lost on the way."""
    with pytest.raises(InvalidInput) as refused:
        wire.encode_metric(step, values)
    assert refused.value.path == path


def test_progress():
    """A sentence, with how much of how much where that is known."""
    line = wire.encode_progress("epoch 2", done=2, total=5, claim=4)
    assert wire.parse(line) == wire.Progress("epoch 2", 2.0, 5.0, 4)
    assert wire.parse(wire.encode_progress("é☃")) == wire.Progress("é☃")
    assert line.isascii()
    cut = wire.parse(wire.encode_progress("x" * 5_000))
    assert isinstance(cut, wire.Progress)
    assert len(cut.text) == wire.LONGEST_TEXT


def test_messages_of_scripts_that_use_pipes_themselves():
    """A script's own Pipes messages are read, in whatever order its keys are."""
    log = {
        "method": "log",
        "params": {"message": "hello", "level": "INFO"},
        "__dagster_pipes_version": "0.1",
    }
    message = wire.parse("(x pid=1) " + json.dumps(log))
    assert isinstance(message, wire.Foreign)
    assert message.text == "hello"
    opened = wire.parse(json.dumps({"__dagster_pipes_version": "0.1", "method": "opened"}))
    assert isinstance(opened, wire.Foreign)
    assert opened.text == "opened"


def test_a_kind_of_tomorrow_is_foreign():
    """What a newer workload says is no error."""
    line = LINE.replace('"metric"', '"histogram"')
    assert isinstance(wire.parse(line), wire.Foreign)


BROKEN = {
    "cut off": LINE[:-10],
    "no method": '{"__dagster_pipes_version": "0.1"}',
    "no step": LINE.replace('"step":7,', ""),
    "step is text": LINE.replace('"step":7', '"step":"7"'),
    "negative step": LINE.replace('"step":7', '"step":-7'),
    "values are a list": LINE.replace('{"loss":0.5}', "[1]"),
    "a value is text": LINE.replace("0.5", '"low"'),
    "a value is null": LINE.replace("0.5", "null"),
    "claim is text": LINE.replace('"claim":3', '"claim":"3"'),
    "two lines in one": LINE[:40] + LINE[:40],
    "too deep": '{"__dagster_pipes_version":' + "[" * 50_000,
}


@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_message_is_malformed_once(line: str):
    """A line that means to be a message and isn't gives one warning with a short excerpt."""
    found = wire.parse(line)
    assert isinstance(found, wire.Malformed)
    assert found.problem
    assert len(found.sentence) < 1_500
    assert len(found.excerpt) <= 200


def test_five_megabytes_are_not_read():
    """A huge line costs neither time nor memory: it is malformed, or an ordinary line."""
    began = time.perf_counter()
    huge = wire.parse(LINE[:-4] + "x" * 5_000_000 + "}}}}")
    assert isinstance(huge, wire.Malformed)
    assert len(huge.sentence) < 1_500
    assert wire.parse("x" * 5_000_000) is None
    assert wire.parse("{" * 5_000_000) is None
    assert time.perf_counter() - began < 1.0


_NAMES = st.text(min_size=1, max_size=100)
_VALUES = st.dictionaries(_NAMES, st.floats(), min_size=1, max_size=20)


@given(
    st.integers(0, 2**60),
    _VALUES,
    st.integers(0, 2**40),
    st.text(alphabet=st.characters(exclude_characters="\n"), max_size=30),
    st.text(alphabet=st.characters(exclude_characters="\n"), max_size=30),
)
def test_round_trip(step: int, values: dict[str, float], claim: int, before: str, after: str):
    """Whatever is written is read again, whatever stands around it."""
    line = wire.encode_metric(step, values, claim=claim)
    assert line.isascii()
    assert "\n" not in line
    strict(line)
    found = wire.parse(before + line + after)
    assert isinstance(found, wire.Metric)
    assert (found.step, found.claim) == (step, claim)
    assert {name: float(value) for name, value in found.values.items()} == pytest.approx(
        values, nan_ok=True, rel=0, abs=0
    )
    assert all(isinstance(v, str) or math.isfinite(v) for v in found.values.values())


@given(st.text())
def test_no_line_crashes(text: str):
    """Any text is a message, a malformed one, or none."""
    wire.parse(text)
    wire.parse('{"__dagster_pipes_version":' + text)
    wire.parse(LINE[:60] + text + LINE[60:])
