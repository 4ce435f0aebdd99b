"""Which rows a step sees: a function of seed, epoch and step, whatever the number of workers."""

from __future__ import annotations

import numpy as np
import pytest

from ml_pipelines.workloads.ads_ranking import data
from ml_pipelines_tests.ads_job import fill

BATCH = 10 * data.LANES


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Features of two days, in files with several row groups."""
    lake = fill(tmp_path_factory.mktemp("lake"), days=2, rows=9_001)
    return [
        url
        for day in lake.days("features_ads_ranking")
        for url in lake.partition("features_ads_ranking", day).files
    ]


def keys(rows: data.Rows) -> list[tuple[float, ...]]:
    """Something that tells rows apart: all they hold."""
    return [
        (*ids, *dense) for ids, dense in zip(rows.ids.tolist(), rows.dense.tolist(), strict=True)
    ]


def epoch(plan: data.Plan, number: int = 0, *, workers: int = 1, first_step: int = 0):
    """The rows of every step of an epoch, over all workers in order of rank."""
    streams = [
        plan.batches(number, rank=rank, workers=workers, first_step=first_step)
        for rank in range(workers)
    ]
    return [[key for share in step for key in keys(share)] for step in zip(*streams, strict=True)]


@pytest.mark.parametrize("workers", [2, 3, 5, data.LANES])
def test_the_same_batches_for_any_number_of_workers(urls, workers):
    """Steps of 1 worker and of many hold the same rows in the same order."""
    plan = data.plan(urls, batch_size=BATCH, seed=1)
    assert epoch(plan, workers=workers) == epoch(plan)


def test_an_epoch_holds_every_row_once(urls):
    """No row is skipped or repeated, also with a last batch that is short."""
    plan = data.plan(urls, batch_size=BATCH, seed=1)
    seen = [key for step in epoch(plan) for key in step]
    there = [key for url in urls for rows in data.read_file(url) for key in keys(rows)]
    assert plan.rows == len(there) == 18_002
    assert sorted(seen) == sorted(there)
    assert seen != there


@pytest.mark.parametrize("first_step", [1, 20, 56])
def test_resuming_finds_its_place(urls, first_step):
    """Starting at step n gives what a whole epoch gives from step n on."""
    plan = data.plan(urls, batch_size=BATCH, seed=1)
    assert plan.steps == 57
    assert epoch(plan, first_step=first_step, workers=2) == epoch(plan)[first_step:]


def test_each_epoch_and_seed_has_its_own_order(urls):
    """The order changes with the epoch and with the seed, and with nothing else."""
    plan = data.plan(urls, batch_size=BATCH, seed=1)
    other = data.plan(urls, batch_size=BATCH, seed=2)
    assert epoch(plan, 0) == epoch(plan, 0)
    assert epoch(plan, 0) != epoch(plan, 1)
    assert epoch(plan, 0) != epoch(other, 0)


def test_days_are_mixed(urls):
    """A batch holds rows of both days, not one day after the other."""
    plan = data.plan(urls, batch_size=BATCH, seed=1)
    first_day = {key for rows in data.read_file(urls[0]) for key in keys(rows)}
    shares = [np.mean([key in first_day for key in step]) for step in epoch(plan)]
    assert min(shares) > 0.2
    assert max(shares) < 0.8


def test_every_worker_has_as_many_steps(urls):
    """Ranks agree on the number of steps, also where rows don't divide: else they would hang."""
    plan = data.plan(urls, batch_size=BATCH, seed=1)
    counts = {sum(1 for _ in plan.batches(0, rank=rank, workers=7)) for rank in range(7)}
    assert counts == {plan.steps}


def test_fewer_rows_than_lanes(tmp_path):
    """A window smaller than the lanes is one step, and some workers have no rows in it."""
    lake = fill(tmp_path, days=1, rows=5)
    urls = lake.partition("features_ads_ranking", "2019-11-24").files
    plan = data.plan(urls, batch_size=BATCH, seed=1)
    assert plan.steps == 1
    assert sum(len(rows) for r in range(4) for rows in plan.batches(0, rank=r, workers=4)) == 5
