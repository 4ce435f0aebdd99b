"""How good predictions are: AUC, normalised entropy, calibration, and how sure we are of it.

Normalised entropy is the mean log-loss over that of always predicting the day's own click rate:
below 1 is better than knowing the rate alone. Ties count half in the AUC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]  # one number a row; 0.0 or 1.0 for clicks

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and its bootstrap interval, which holds the truth with probability CONFIDENCE."""

    value: float
    low: float
    high: float


def auc(click: Floats, score: Floats, weight: Floats | None = None) -> float:
    """Probability that a clicked row scores above one that was not; NaN without both kinds."""
    distinct, place = np.unique(score, return_inverse=True)
    weight = np.ones(len(click)) if weight is None else weight
    return _binned_auc(click, place, weight, len(distinct))


def log_loss(click: Floats, probability: Floats) -> Floats:
    """The loss of each row, in nats."""
    p = np.clip(probability.astype(np.float64), 1e-9, 1 - 1e-9)
    return -np.where(click > 0, np.log(p), np.log1p(-p))


def normalised_entropy(click: Floats, probability: Floats) -> float:
    """Mean log-loss over the entropy of the click rate; NaN without both kinds of rows."""
    return _normalised(float(log_loss(click, probability).mean()), float(click.mean()))


def calibration(click: Floats, probability: Floats) -> float:
    """Clicks predicted over clicks seen: 1 is right; NaN without clicks."""
    clicks = float(click.sum())
    return float(probability.sum()) / clicks if clicks else float("nan")


def reliability(click: Floats, probability: Floats, bins: int = 10) -> list[dict[str, float]]:
    """Predicted and seen click rate in `bins` groups of equal size, by prediction."""
    groups = np.array_split(np.argsort(probability, kind="stable"), min(bins, len(click)))
    return [
        {
            "predicted": float(probability[g].mean()),
            "seen": float(click[g].mean()),
            "rows": float(len(g)),
        }
        for g in groups
    ]


def bootstrap(
    click: Floats, probabilities: Mapping[str, Floats], *, replicates: int, seed: int
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """AUC and normalised entropy of every model on `replicates` resamplings of the impressions.

    Paired: a replicate draws the same impressions for every model, so differences between models
    may be taken replicate by replicate. Returns {model: {"auc": (replicates,), "ne": …}}.
    """
    rng = np.random.default_rng(seed)
    binned = {
        name: (*np.unique(p, return_inverse=True), log_loss(click, p))
        for name, p in probabilities.items()
    }
    drawn = {
        name: {"auc": np.empty(replicates), "ne": np.empty(replicates)} for name in probabilities
    }
    for replicate in range(replicates):
        weight = np.bincount(rng.integers(0, len(click), len(click)), minlength=len(click))
        rate = float((weight * click).sum()) / len(click)
        for name, (distinct, place, loss) in binned.items():
            drawn[name]["auc"][replicate] = _binned_auc(click, place, weight, len(distinct))
            mean_loss = float((weight * loss).sum()) / len(click)
            drawn[name]["ne"][replicate] = _normalised(mean_loss, rate)
    return drawn


def interval(value: float, drawn: NDArray[np.float64]) -> Interval:
    """The percentile interval; all NaN where no replicate had both kinds of rows."""
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        return Interval(value, float("nan"), float("nan"))
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(value, float(low), float(high))


def _binned_auc(click: Floats, place: NDArray[np.integer], weight: Floats, bins: int) -> float:
    clicked = np.bincount(place, weights=weight * click, minlength=bins)
    other = np.bincount(place, weights=weight * (1 - click), minlength=bins)
    pairs = clicked.sum() * other.sum()
    if not pairs:
        return float("nan")
    below = np.cumsum(other) - other
    return float((clicked * (below + other / 2)).sum() / pairs)


def _normalised(mean_loss: float, rate: float) -> float:
    if not 0 < rate < 1:
        return float("nan")
    return mean_loss / float(-rate * np.log(rate) - (1 - rate) * np.log1p(-rate))
