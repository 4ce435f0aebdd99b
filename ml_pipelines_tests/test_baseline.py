"""The smoothed-CTR baseline."""

from __future__ import annotations

import numpy as np
import pytest

from ml_pipelines.workloads.ads_ranking import baseline, metrics
from ml_pipelines.workloads.ads_ranking.data import Rows
from ml_pipelines.workloads.ads_ranking.schema import DENSE_FIELDS, ID_FIELDS


def rows(ids: np.ndarray, click: np.ndarray) -> Rows:
    """Rows whose first field is `ids`; the others say nothing."""
    all_ids = np.zeros((len(ids), len(ID_FIELDS)), np.int32)
    all_ids[:, 0] = ids
    all_ids[:, 1:] = 100 + np.arange(1, len(ID_FIELDS))
    dense = np.zeros((len(ids), len(DENSE_FIELDS)), np.float32)
    return Rows(all_ids, dense, click.astype(np.float32))


def world(count: int = 20_000) -> Rows:
    """Ten values with click rates of 2 % to 20 %."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 10, count)
    return rows(ids, rng.random(count) < 0.02 * (ids + 1))


def test_it_finds_the_rate_of_each_value():
    """With plenty of impressions a value's score is its click rate."""
    shown = world()
    fitted = baseline.fit([shown], [shown])
    score = fitted.score(rows(np.arange(10), np.zeros(10)))
    values = shown.ids[:, 0]
    seen = np.bincount(values, weights=shown.click) / np.bincount(values)
    assert np.allclose(score, seen, atol=0.005)
    assert metrics.calibration(shown.click, fitted.score(shown)) == pytest.approx(1, abs=0.01)


def test_rare_values_keep_to_the_overall_rate():
    """A value with one click of one impression is not believed; an unseen one is average."""
    shown = world()
    once = rows(np.array([50]), np.array([1.0]))
    fitted = baseline.fit([shown, once], [shown, once])
    seen_once, unseen = fitted.score(rows(np.array([50, 51]), np.zeros(2)))
    assert unseen == pytest.approx(shown.click.mean(), abs=0.03)
    assert unseen < seen_once < 3 * shown.click.mean()


def test_how_the_rows_come_does_not_matter():
    """Fitting batch by batch equals fitting at once."""
    shown = world(1_000)
    cut = [
        Rows(shown.ids[a:b], shown.dense[a:b], shown.click[a:b])
        for a, b in ((0, 300), (300, 1_000))
    ]
    whole, parts = baseline.fit([shown], [shown]), baseline.fit(cut, cut)
    assert np.allclose(whole.score(shown), parts.score(shown))


def test_a_window_without_clicks_has_a_score_still():
    """No click at all gives small probabilities, not zeros or errors."""
    shown = rows(np.arange(100) % 10, np.zeros(100))
    score = baseline.fit([shown], [shown]).score(shown)
    assert (score > 0).all()
    assert (score < 0.05).all()
