"""Better, not better, or too few clicks to tell: the gate's decision, pure.

Judged by the gain in normalised entropy (champion's less challenger's, paired, on the same
impressions) with its 95 % bootstrap interval:

    too few clicks   fewer than `min_clicks` on the day; or the interval holds both "no gain" and a
                     gain that would matter (`MATTERS`), so nothing can be said
    better           the whole interval lies above `min_gain`
    not better       anything else

While there is no champion the smoothed-CTR baseline stands in for it: the first champion is the
first challenger that beats the baseline by the same rule, and until then the baseline scores the
days. A challenger that is surely worse than the baseline makes the evaluation invalid: then
something is broken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MATTERS = 0.01  # of normalised entropy: 1 % less surprise than the click rate leaves


class Outcome(StrEnum):
    """The three honest outcomes; all of them make a green day."""

    BETTER = "better"
    NOT_BETTER = "not better"
    TOO_FEW_CLICKS = "too few clicks"


@dataclass(frozen=True, slots=True)
class Decision:
    """An outcome with its reason in one sentence.

    `valid` is False (a red check) when the evaluation can't be used or the challenger is surely
    worse than the baseline: nothing goes on.
    """

    outcome: Outcome
    sentence: str
    valid: bool = True


def decide(evaluation: Mapping[str, Any], *, min_clicks: int, min_gain: float) -> Decision:
    """The gate's decision on an evaluation, the result of `evaluate`.

    `min_clicks` counts clicks on the day; `min_gain` is in normalised entropy.
    """
    clicks, rows = int(evaluation["clicks"]), int(evaluation["rows"])
    if rows <= 0:
        return Decision(Outcome.NOT_BETTER, "The evaluation saw no impressions.", valid=False)
    if clicks < min_clicks:
        return Decision(
            Outcome.TOO_FEW_CLICKS,
            f"{clicks} clicks can't tell two models apart (the gate asks for {min_clicks}).",
        )
    against = "champion" if evaluation.get("champion") else "baseline"
    gains = evaluation["gain"]
    low, high = _interval(gains[against])
    over_baseline = _interval(gains["baseline"])
    if not all(math.isfinite(number) for number in (low, high, *over_baseline)):
        return Decision(Outcome.NOT_BETTER, "The evaluation holds no finite numbers.", valid=False)
    if over_baseline[1] < 0:
        return Decision(
            Outcome.NOT_BETTER,
            f"The challenger is surely worse than the baseline: {_shown(gains['baseline'])}.",
            valid=False,
        )
    shown = _shown(gains[against])
    if low > min_gain:
        return Decision(Outcome.BETTER, f"Better than the {against}: {shown}.")
    if low < 0 and high > max(MATTERS, min_gain):
        return Decision(
            Outcome.TOO_FEW_CLICKS,
            f"{clicks} clicks can't tell it from the {against}: {shown} holds both no gain and "
            "one that would matter.",
        )
    return Decision(Outcome.NOT_BETTER, f"Not better than the {against} for sure: {shown}.")


def _interval(gain: Mapping[str, Any]) -> tuple[float, float]:
    return float(gain["low"]), float(gain["high"])


def _shown(gain: Mapping[str, Any]) -> str:
    low, high = _interval(gain)
    return f"normalised entropy lower by {float(gain['value']):+.4f} ({low:+.4f} to {high:+.4f})"
