"""The metrics against brute force, and the bootstrap against what is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ml_pipelines.workloads.ads_ranking import metrics


def data(rows: int = 300, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Clicks and calibrated probabilities, with many ties."""
    rng = np.random.default_rng(seed)
    probability = np.round(rng.beta(1, 6, rows), 2).clip(0.01, 0.99)
    return (rng.random(rows) < probability).astype(np.float32), probability


def test_auc_is_the_share_of_ordered_pairs():
    """The AUC counts each pair of a click and a non-click, ties half."""
    click, score = data()
    clicked, other = score[click > 0], score[click == 0]
    pairs = [(a > b) + (a == b) / 2 for a in clicked for b in other]
    assert metrics.auc(click, score) == pytest.approx(np.mean(pairs), abs=1e-12)


def test_normalised_entropy_of_knowing_only_the_rate_is_one():
    """Predicting the day's rate for all gives 1; knowing more gives less."""
    click, probability = data(20_000)
    rate = np.full(len(click), click.mean())
    assert metrics.normalised_entropy(click, rate) == pytest.approx(1, abs=1e-6)
    assert metrics.normalised_entropy(click, probability) < 0.97


def test_calibration_is_clicks_predicted_over_clicks_seen():
    """Twice the probability is twice the calibration."""
    click, probability = data(20_000)
    assert metrics.calibration(click, probability) == pytest.approx(1, abs=0.1)
    assert metrics.calibration(click, 2 * probability) == pytest.approx(
        2 * metrics.calibration(click, probability)
    )


@pytest.mark.parametrize("click", [np.zeros(5), np.ones(5)], ids=["no click", "all clicks"])
def test_what_does_not_exist_is_nan(click):
    """A day without clicks, or of clicks only, has no AUC and no normalised entropy."""
    probability = np.linspace(0.1, 0.5, 5)
    assert math.isnan(metrics.auc(click, probability))
    assert math.isnan(metrics.normalised_entropy(click, probability))
    drawn = metrics.bootstrap(click, {"m": probability}, replicates=10, seed=0)
    assert math.isnan(metrics.interval(float("nan"), drawn["m"]["auc"]).low)


def test_reliability_has_groups_of_equal_size():
    """Deciles of the prediction, each with its seen rate, cover all rows."""
    click, probability = data(1_000)
    groups = metrics.reliability(click, probability)
    assert [group["rows"] for group in groups] == [100] * 10
    assert [group["predicted"] for group in groups] == sorted(g["predicted"] for g in groups)
    assert sum(g["seen"] * g["rows"] for g in groups) == pytest.approx(click.sum())


def test_the_bootstrap_is_that_of_the_metrics():
    """A replicate's numbers are the metrics of the drawn impressions."""
    click, probability = data()
    drawn = metrics.bootstrap(click, {"m": probability}, replicates=3, seed=7)["m"]
    rng = np.random.default_rng(7)
    for replicate in range(3):
        rows = rng.integers(0, len(click), len(click))
        assert drawn["auc"][replicate] == pytest.approx(metrics.auc(click[rows], probability[rows]))
        assert drawn["ne"][replicate] == pytest.approx(
            metrics.normalised_entropy(click[rows], probability[rows])
        )


def test_differences_are_paired():
    """Two models drawn together differ by far less than each of them varies."""
    click, probability = data(2_000)
    models = {"a": probability, "b": probability**1.05}
    drawn = metrics.bootstrap(click, models, replicates=200, seed=1)
    assert drawn["a"]["ne"].std() > 5 * (drawn["a"]["ne"] - drawn["b"]["ne"]).std()


def test_intervals_hold_the_truth_as_often_as_they_say():
    """In about 95 of 100 worlds the interval of the AUC holds the expected one."""
    rng = np.random.default_rng(3)
    held = 0
    for world in range(60):
        click = (rng.random(400) < 0.3).astype(float)
        score = rng.normal(0, 1, 400) + click  # the AUC is Phi(1 / sqrt(2)) = 0.7602
        drawn = metrics.bootstrap(click, {"m": score}, replicates=200, seed=world)["m"]["auc"]
        interval = metrics.interval(metrics.auc(click, score), drawn)
        held += interval.low <= 0.7602 <= interval.high
    assert 50 <= held <= 60
