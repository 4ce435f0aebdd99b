"""AUC, normalised entropy, calibration, and how sure we are of them.

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
BINS = 4096


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and its bootstrap interval, which holds the truth with probability CONFIDENCE."""

    value: float
    low: float
    high: float


def auc(click: Floats, score: Floats) -> float:
    """Probability that a clicked row scores above one that was not; NaN without both kinds."""
    _, place = np.unique(score, return_inverse=True)
    clicked = np.bincount(place, weights=click)
    return _area(clicked, np.bincount(place) - clicked)


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
    may be taken replicate by replicate. Here the AUC is that of scores in BINS bins of equal
    size. Returns {model: {"auc": (replicates,), "ne": …}}.
    """
    rng = np.random.default_rng(seed)
    rows = len(click)
    prepared = {name: (_cells(click, p), log_loss(click, p)) for name, p in probabilities.items()}
    drawn = {
        name: {"auc": np.empty(replicates), "ne": np.empty(replicates)} for name in probabilities
    }
    for replicate in range(replicates):
        times = np.bincount(rng.integers(0, rows, rows), minlength=rows).astype(np.float64)
        # Not `@`: BLAS would start threads that only wait for each other.
        rate = float((times * click).sum()) / rows
        for name, (cells, loss) in prepared.items():
            counts = np.bincount(cells, weights=times, minlength=2 * BINS)
            drawn[name]["auc"][replicate] = _area(counts[1::2], counts[::2])
            drawn[name]["ne"][replicate] = _normalised(float((times * loss).sum()) / rows, rate)
    return drawn


def interval(value: float, drawn: NDArray[np.float64]) -> Interval:
    """The percentile interval; all NaN where no replicate had both kinds of rows."""
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        return Interval(value, float("nan"), float("nan"))
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(value, float(low), float(high))


def _cells(click: Floats, score: Floats) -> NDArray[np.int64]:
    """Where each row counts: its bin, times two, plus one if it was clicked."""
    edges = np.unique(np.quantile(score, np.linspace(0, 1, BINS + 1)[1:-1]))
    return np.asarray(2 * np.searchsorted(edges, score, side="right") + (click > 0))


def _area(clicked: Floats, other: Floats) -> float:
    """The AUC of rows counted by score, the lowest score first."""
    pairs = clicked.sum() * other.sum()
    if not pairs:
        return float("nan")
    below = np.cumsum(other) - other
    return float((clicked * (below + other / 2)).sum() / pairs)


def _normalised(mean_loss: float, rate: float) -> float:
    if not 0 < rate < 1:
        return float("nan")
    return mean_loss / float(-rate * np.log(rate) - (1 - rate) * np.log1p(-rate))
