"""The gate: better, not better, or too few clicks to tell."""

from __future__ import annotations

import pytest

from ml_pipelines.workloads.ads_ranking.gate import Outcome, decide

BETTER, NOT_BETTER, TOO_FEW = Outcome.BETTER, Outcome.NOT_BETTER, Outcome.TOO_FEW_CLICKS


def gain(low: float | str, high: float | str) -> dict[str, object]:
    """A gain in normalised entropy with its interval."""
    middle = "NaN" if isinstance(low, str) or isinstance(high, str) else (low + high) / 2
    return {"value": middle, "low": low, "high": high}


SURE = gain(0.02, 0.04)


def evaluation(*, clicks: int = 500, rows: int = 9_000, baseline=SURE, champion=None):
    """The parts of a result of `evaluate` that the gate reads; gains over baseline and champion."""
    gains = {"baseline": baseline} | ({"champion": champion} if champion else {})
    return {"rows": rows, "clicks": clicks, "champion": "url" if champion else "", "gain": gains}


@pytest.mark.parametrize(
    ("given", "outcome", "valid"),
    [
        pytest.param(evaluation(), BETTER, True, id="first champion beats the baseline"),
        pytest.param(
            evaluation(baseline=gain(-0.001, 0.008)), NOT_BETTER, True, id="baseline not beaten"
        ),
        pytest.param(
            evaluation(champion=gain(0.001, 0.003)), BETTER, True, id="champion surely beaten"
        ),
        pytest.param(
            evaluation(champion=gain(-0.002, 0.004)), NOT_BETTER, True, id="no gain that matters"
        ),
        pytest.param(
            evaluation(champion=gain(-0.03, -0.01)), NOT_BETTER, True, id="worse than champion"
        ),
        pytest.param(evaluation(champion=gain(-0.05, 0.09)), TOO_FEW, True, id="interval too wide"),
        pytest.param(evaluation(clicks=43), TOO_FEW, True, id="too few clicks"),
        pytest.param(
            evaluation(clicks=43, baseline=gain("NaN", "NaN")), TOO_FEW, True, id="no interval"
        ),
        pytest.param(
            evaluation(baseline=gain(-0.05, -0.01)), NOT_BETTER, False, id="worse than baseline"
        ),
        pytest.param(
            evaluation(baseline=gain("NaN", "NaN")), NOT_BETTER, False, id="no finite numbers"
        ),
        pytest.param(evaluation(rows=0), NOT_BETTER, False, id="no impressions"),
    ],
)
def test_three_honest_outcomes(given, outcome, valid):
    """Each evaluation has one outcome; only a broken one makes the check red."""
    decision = decide(given, min_clicks=100, min_gain=0.0)
    assert (decision.outcome, decision.valid) == (outcome, valid)
    assert decision.sentence.endswith(".")


def test_the_reason_is_told_with_numbers():
    """The sentence names whom it was compared with, the gain and its interval."""
    decision = decide(evaluation(), min_clicks=100, min_gain=0.0)
    assert "baseline" in decision.sentence
    assert "+0.0300 (+0.0200 to +0.0400)" in decision.sentence
    assert "43 clicks" in decide(evaluation(clicks=43), min_clicks=100, min_gain=0.0).sentence


def test_a_least_gain_can_be_asked_for():
    """With `min_gain` a sure but small gain is not enough."""
    assert decide(evaluation(), min_clicks=100, min_gain=0.03).outcome == NOT_BETTER
    assert decide(evaluation(), min_clicks=100, min_gain=0.01).outcome == BETTER
