"""Better, not better, or too few clicks to tell: the gate's decision, pure.

The first champion is the first challenger that beats the smoothed-CTR baseline; from then on a
challenger must beat the champion. Both with the whole interval of the AUC's difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """The three honest outcomes; all of them make a green day."""

    BETTER = "better"
    NOT_BETTER = "not better"
    TOO_FEW_CLICKS = "too few clicks"


@dataclass(frozen=True, slots=True)
class Decision:
    """An outcome with its reason.

    `valid` is False (a red check) when the evaluation can't be used or the challenger is surely
    worse than the baseline: then something is broken, and nothing goes on.
    """

    outcome: Outcome
    sentence: str
    valid: bool = True


def decide(evaluation: Mapping[str, Any], *, min_clicks: int, min_gain: float) -> Decision:
    """The gate's decision on an evaluation (see workloads/ads_ranking/evaluate.py)."""
    clicks = int(evaluation["clicks"])
    rows = int(evaluation["rows"])
    if rows <= 0:
        return Decision(Outcome.NOT_BETTER, "The evaluation saw no impressions.", valid=False)
    if clicks < min_clicks:
        return Decision(
            Outcome.TOO_FEW_CLICKS,
            f"{clicks} clicks can't tell two models apart (the gate asks for {min_clicks}).",
        )
    against = "champion" if evaluation.get("champion") else "baseline"
    gains = evaluation["gain"]
    over_baseline = gains["baseline"]
    gain = gains[against]
    numbers = [*_interval(over_baseline), *_interval(gain)]
    if not all(math.isfinite(number) for number in numbers):
        return Decision(Outcome.NOT_BETTER, "The evaluation holds no finite AUC.", valid=False)
    if _interval(over_baseline)[1] < 0:
        return Decision(
            Outcome.NOT_BETTER,
            f"The challenger is surely worse than the baseline: {_shown(over_baseline)}.",
            valid=False,
        )
    if _interval(gain)[0] > min_gain:
        return Decision(Outcome.BETTER, f"Better than the {against}: {_shown(gain)}.")
    return Decision(
        Outcome.NOT_BETTER,
        f"Not surely better than the {against}: {_shown(gain)}, asked for above {min_gain:+.4f}.",
    )


def _interval(gain: Mapping[str, Any]) -> tuple[float, float]:
    return float(gain["low"]), float(gain["high"])


def _shown(gain: Mapping[str, Any]) -> str:
    low, high = _interval(gain)
    return f"AUC {float(gain['value']):+.4f} ({low:+.4f} to {high:+.4f})"
