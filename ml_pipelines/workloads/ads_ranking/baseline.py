"""The baseline to beat: smoothed click rates, added up as log-odds.

Each value of each id field has a click rate, smoothed towards the window's with `PRIOR_ROWS`
impressions. A row's score is the window's log-odds plus a share of the sum of what its values add;
that share and an offset are fitted on the window, for the fields tell much the same. There are no
interactions: what a ranking team would have before it trains anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml_pipelines.workloads.ads_ranking.data import Rows

PRIOR_ROWS = 50.0
BUCKETS = 2**20  # values share a bucket by chance, as they share rows in the model's table
GRID = 1024  # cells of the score in which share and offset are fitted


@dataclass(frozen=True, slots=True)
class Baseline:
    """The fitted baseline. `effects` (BUCKETS,) are log-odds to be added."""

    effects: NDArray[np.float32]
    share: float
    offset: float

    def score(self, rows: Rows) -> NDArray[np.float32]:
        """The probability of a click of each row."""
        logit = self.offset + self.share * self.effects[_buckets(rows)].sum(axis=1)
        return np.asarray(1 / (1 + np.exp(-logit)), dtype=np.float32)


def fit(window: Iterable[Rows], again: Iterable[Rows]) -> Baseline:
    """Fit on a window's rows, which are read twice: for the rates, then for share and offset."""
    shown, clicked = np.zeros(BUCKETS), np.zeros(BUCKETS)
    rows_seen = clicks_seen = 0.0
    for rows in window:
        buckets = _buckets(rows)
        shown += np.bincount(buckets.ravel(), minlength=BUCKETS)
        clicks = np.repeat(rows.click, buckets.shape[1])
        clicked += np.bincount(buckets.ravel(), weights=clicks, minlength=BUCKETS)
        rows_seen += len(rows)
        clicks_seen += float(rows.click.sum())
    # Half a click more than seen: a window without clicks still has a rate.
    rate = (clicks_seen + 0.5) / (rows_seen + 1)
    rates = (clicked + PRIOR_ROWS * rate) / (shown + PRIOR_ROWS)
    effects = (_logit(rates) - _logit(rate)).astype(np.float32)
    share, offset = _calibrated(effects, again, start=float(_logit(rate)))
    return Baseline(effects, share, offset)


def _calibrated(
    effects: NDArray[np.float32], window: Iterable[Rows], *, start: float
) -> tuple[float, float]:
    """Logistic regression of the click on the summed effects, by Newton steps on a grid."""
    centres = np.linspace(-8, 8, GRID)
    shown, clicked = np.zeros(GRID), np.zeros(GRID)
    for rows in window:
        summed = effects[_buckets(rows)].sum(axis=1)
        cell = np.clip((summed + 8) * (GRID - 1) / 16 + 0.5, 0, GRID - 1).astype(np.int64)
        shown += np.bincount(cell, minlength=GRID)
        clicked += np.bincount(cell, weights=rows.click, minlength=GRID)
    weights = np.array([0.0, start])
    design = np.stack([centres, np.ones(GRID)])
    for _ in range(25):
        p = 1 / (1 + np.exp(-weights @ design))
        gradient = design @ (clicked - shown * p) - [weights[0] - 1.0, 0.0]
        curvature = (design * (shown * p * (1 - p))) @ design.T + np.diag([1.0, 1e-9])
        weights = weights + np.clip(np.linalg.solve(curvature, gradient), -1, 1)
    return float(weights[0]), float(weights[1])


def _buckets(rows: Rows) -> NDArray[np.int64]:
    return rows.ids.astype(np.int64) % BUCKETS


def _logit(p: NDArray[np.float64] | float) -> NDArray[np.float64]:
    return np.asarray(np.log(p) - np.log1p(-np.asarray(p)))
