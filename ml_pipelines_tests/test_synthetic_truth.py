"""The synthetic click logs: what is planted can be found, and only with interactions."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import pytest

from ml_pipelines.errors import InvalidInput
from ml_pipelines.storage import Lake, open_store
from ml_pipelines.workloads.ads_ranking import metrics
from ml_pipelines.workloads.ads_ranking.schema import IMPRESSIONS, arrow_schema
from ml_pipelines.workloads.datasets import synthetic

DAY = date(2019, 11, 24)


def test_same_seed_same_rows():
    """A day is a function of seed and number of rows; another seed or day is another one."""
    table = synthetic.generate(DAY, 2_000, seed=3)
    assert table.equals(synthetic.generate(DAY, 2_000, seed=3))
    assert table.schema == arrow_schema(IMPRESSIONS)
    for other in (
        synthetic.generate(DAY, 2_000, seed=4),
        synthetic.generate(DAY + timedelta(days=1), 2_000, seed=3),
    ):
        assert not table["click"].equals(other["click"])


def test_ids_are_many_and_their_popularity_is_zipf():
    """A week holds 100,000 distinct ids and more; the most frequent user is seen very often."""
    ids: set[str] = set()
    for number in range(7):
        table = synthetic.generate(DAY + timedelta(days=number), 60_000)
        for column in ("user_0", "item"):
            ids.update(table[column].unique().to_pylist())
    assert len(ids) >= 100_000
    counts = sorted((c["counts"].as_py() for c in table["user_0"].value_counts()), reverse=True)
    assert counts[0] > 1_000
    assert counts[-1] == 1


def test_clicks_follow_the_truth():
    """The truth is calibrated: in each tenth of its range the click rate is the predicted one."""
    rows = 100_000
    click = synthetic.generate(DAY, rows)["click"].to_numpy()
    for group in metrics.reliability(click, synthetic.truth(DAY, rows)):
        error = (group["predicted"] * (1 - group["predicted"]) / group["rows"]) ** 0.5
        assert abs(group["predicted"] - group["seen"]) < 4.5 * error


def test_without_interactions_the_auc_is_worse():
    """A logistic model of all small fields is at least 0.02 AUC worse than the truth."""
    rows = 60_000
    table = synthetic.generate(DAY, rows)
    click = table["click"].to_numpy().astype(float)
    fields = ("campaign", "position", "user_1", "user_2", "item_0", "item_1", "item_2")
    blocks = [np.ones((rows, 1)), table["affinity"].to_numpy()[:, None]]
    for field in fields:
        codes = table[field].combine_chunks().dictionary_encode()
        blocks.append(np.eye(len(codes.dictionary))[codes.indices.to_numpy()])
    design = np.concatenate(blocks, axis=1)
    weights = np.zeros(design.shape[1])
    for _ in range(6):
        p = 1 / (1 + np.exp(-design @ weights))
        curvature = (design.T * (p * (1 - p))) @ design + np.eye(len(weights))
        weights += np.linalg.solve(curvature, design.T @ (click - p) - weights)
    logistic = metrics.auc(click, design @ weights)  # even on the rows that it was fitted to
    assert metrics.auc(click, synthetic.truth(DAY, rows)) > logistic + 0.02


def test_the_truth_drifts():
    """What a segment clicks on is not the same some weeks later."""

    def rates(day: date) -> np.ndarray:
        table = synthetic.generate(day, 60_000)
        segment = table["user_1"].combine_chunks().dictionary_encode()
        category = table["item_0"].combine_chunks().dictionary_encode()
        order = np.argsort(segment.dictionary.to_pylist())
        columns = np.argsort(category.dictionary.to_pylist())
        cell = (
            np.argsort(order)[segment.indices.to_numpy()] * 100
            + np.argsort(columns)[category.indices.to_numpy()]
        )
        truth = synthetic.truth(day, 60_000)
        there = np.unique(cell)
        clicks, shown = np.bincount(cell, weights=truth), np.bincount(cell)
        return np.asarray(clicks[there] / shown[there])

    first, next_day, later = (rates(DAY + timedelta(days=d)) for d in (0, 1, 20))
    near = np.abs(np.log(next_day / first)).mean()
    assert np.abs(np.log(later / first)).mean() > 1.5 * near


def test_a_day_of_more_than_one_chunk(tmp_path):
    """A day larger than a chunk is several files, sorted by time, with no id twice."""
    lake = Lake(open_store(f"file://{tmp_path}"))
    rows = synthetic.CHUNK_ROWS + 1_000
    partition = synthetic.write_day(lake, DAY, rows=rows)
    assert (partition.rows, len(partition.files)) == (rows, 2)
    table = lake.read("impressions", DAY.isoformat(), columns=["impression_id", "event_time"])
    assert (np.diff(table["event_time"].to_numpy().astype(np.int64)) >= 0).all()
    assert len(table["impression_id"].unique()) == rows
    assert len(synthetic.truth(DAY, rows)) == rows


def test_no_rows_is_refused(tmp_path):
    """A day without rows is not written."""
    with pytest.raises(InvalidInput, match="rows"):
        synthetic.write_day(Lake(open_store(f"file://{tmp_path}")), DAY, rows=0)
