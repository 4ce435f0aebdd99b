"""The benchmarks' table: every goal is said to be kept, missed or not run."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import main, table
from benchmarks.row import Row


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (Row("a", 0.9346, "s", "< 1 s", ok=True), ["a", "0.935 s", "< 1 s", "kept"]),
        (Row("a", 1_500_000.0, "lines/s"), ["a", "1,500,000 lines/s"]),
        (Row("a", 2.0, "s", "< 1 s", ok=False), ["a", "2 s", "< 1 s", "MISSED"]),
        (Row("a", None, goal="< 1 s", ok=False), ["a", "-", "< 1 s", "MISSED"]),
        (Row("a", None, goal="< 1 s"), ["a", "-", "< 1 s", "not run"]),
    ],
    ids=["kept", "no goal", "missed", "broken", "not run"],
)
def test_a_row_says_what_came_of_its_goal(row, shown):
    """What, measured, goal and outcome stand in one line."""
    _, line = table([row])
    assert [cell.strip() for cell in line.split("  ") if cell.strip()] == shown


def test_a_detail_stands_below_its_row():
    """What a number rests on is printed with it."""
    *_, line = table([Row("a", 1.0, detail="9 pairs")])
    assert line == "    9 pairs"


def test_an_unknown_name_is_answered_with_those_there_are(capsys):
    """A misspelt benchmark runs nothing, and names the others."""
    assert main(["log"]) == 2
    assert "'log'; there are: imports, kube_cancel, kube_create" in capsys.readouterr().out
