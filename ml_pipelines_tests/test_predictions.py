"""Evaluation and predictions of real, small models, without Ray."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ml_pipelines.errors import InvalidData
from ml_pipelines.storage import Lake, open_store
from ml_pipelines.workloads.ads_ranking import data
from ml_pipelines.workloads.ads_ranking.config import Task, TrainConfig
from ml_pipelines.workloads.ads_ranking.evaluate import EvaluateParams, evaluate
from ml_pipelines.workloads.ads_ranking.gate import Outcome, decide
from ml_pipelines.workloads.ads_ranking.loop import train
from ml_pipelines.workloads.ads_ranking.predict import (
    PredictParams,
    ScoreFiles,
    predict,
)
from ml_pipelines.workloads.ads_ranking.schema import PREDICTIONS
from ml_pipelines.workloads.ads_ranking.scoring import TrainedModel
from ml_pipelines.workloads.ads_ranking.window import window_before
from ml_pipelines_tests.ads_job import day, fill, job

DAYS, FEATURES = 4, "features_ads_ranking"
CONFIG = TrainConfig(
    day=day(3), window_days=3, batch_size=512, embedding_dim=8, hash_buckets=50_021
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A lake of four days and a model trained on the first three."""
    folder = tmp_path_factory.mktemp("ads")
    torch.set_num_threads(1)
    lake = fill(folder, days=DAYS, rows=12_000)
    window = window_before(lake, FEATURES, CONFIG.day, CONFIG.window_days)
    task = Task(
        config=CONFIG,
        urls=window.files,
        base_rate=0.07,
        prefix="",
        provenance={
            "config": {"day": CONFIG.day, "hash_buckets": CONFIG.hash_buckets, "embedding_dim": 8},
            "data_versions": window.data_versions,
        },
    )
    for name, each in (
        ("good", task),
        ("fresh", replace(task, base_rate=0.5, urls=window.files[:1])),
    ):
        config = (
            CONFIG
            if name == "good"
            else replace(CONFIG, learning_rate=1e-6, dense_learning_rate=1e-6)
        )
        train(
            replace(each, config=config, prefix=f"{name}/"),
            open_store(f"file://{folder}/runs"),
            metric=lambda *_, **__: None,
            say=print,
            committed=lambda *_: None,
        )
    torch.use_deterministic_algorithms(mode=False)
    return folder


@pytest.fixture
def lake(folder) -> Lake:
    """The lake of these tests."""
    return Lake(open_store(f"file://{folder}/lake"))


def url(folder, name: str) -> str:
    """Where one of the models lies."""
    return f"file://{folder}/runs/{name}/model"


def in_turn(items, scorer) -> None:
    """What Ray Data's actors do with the items, without Ray."""
    score = ScoreFiles(scorer)
    for item in items:
        score({name: [value] for name, value in item.items()})


def test_a_first_model_is_judged_beside_the_baseline(folder, lake):
    """Without a champion the gain over the baseline decides, and a trained model has it."""
    result = evaluate(lake, EvaluateParams(CONFIG.day, url(folder, "good"), replicates=50))
    assert (result["rows"], result["champion"]) == (12_000, "")
    assert set(result["models"]) == {"challenger", "baseline"}
    assert set(result["gain"]) == set(result["auc_gain"]) == {"baseline"}
    interval = result["models"]["challenger"]["auc"]
    assert 0.5 < interval["low"] < interval["value"] < interval["high"] < 1
    assert decide(result, min_clicks=100, min_gain=0).outcome == Outcome.BETTER
    assert decide(result, min_clicks=10_000, min_gain=0).outcome == Outcome.TOO_FEW_CLICKS


def test_a_challenger_is_judged_against_the_champion(folder, lake):
    """A model judged against itself is exactly as good, and that is not better."""
    good = url(folder, "good")
    result = evaluate(lake, EvaluateParams(CONFIG.day, good, champion=good, replicates=50))
    assert result["gain"]["champion"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert decide(result, min_clicks=100, min_gain=0).outcome == Outcome.NOT_BETTER


def test_an_untrained_model_stops_the_day(folder, lake):
    """A model surely worse than the baseline makes the evaluation invalid."""
    result = evaluate(lake, EvaluateParams(CONFIG.day, url(folder, "fresh"), replicates=50))
    decision = decide(result, min_clicks=100, min_gain=0)
    assert (decision.outcome, decision.valid) == (Outcome.NOT_BETTER, False)


@pytest.mark.parametrize("which", ["champion", "challenger"])
def test_a_model_that_is_gone_is_named(folder, lake, which):
    """A champion pointer at a model that is gone is one sentence with the model's URL."""
    urls = {"challenger": url(folder, "good"), "champion": url(folder, "good")}
    urls[which] = url(folder, "gone")
    params = EvaluateParams(CONFIG.day, urls["challenger"], champion=urls["champion"])
    with pytest.raises(InvalidData, match=r"gone/model/manifest\.json.*is gone"):
        evaluate(lake, params)


def test_predictions_name_their_model(folder, lake):
    """Every impression has its probability, in order, and the marker says whose it is."""
    params = PredictParams(CONFIG.day, url(folder, "good"))
    with job(folder, run_key="predict-model") as run:
        result = predict(run, params, execute=in_turn)
    partition = lake.partition("predictions_ads_ranking", CONFIG.day)
    model = TrainedModel(url(folder, "good"))
    assert partition.schema == PREDICTIONS
    assert partition.extra["model"]["url"] == url(folder, "good")
    assert partition.extra["model"]["version"] == model.version == result["model"]["version"]
    assert (result["rows"], result["data_version"]) == (12_000, partition.data_version)
    table = lake.read("predictions_ads_ranking", CONFIG.day)
    features = lake.partition(FEATURES, CONFIG.day)
    expected = np.concatenate([model.score(rows) for rows in data.read_file(features.files[0])])
    assert np.array_equal(table["prediction"].to_numpy(), expected)
    ids = lake.read(FEATURES, CONFIG.day, columns=["impression_id"])["impression_id"]
    assert table["impression_id"].equals(ids)


def test_without_a_champion_the_baseline_scores_the_day(folder, lake):
    """A day is scored also while no model has passed the gate."""
    with job(folder, run_key="predict-baseline") as run:
        result = predict(run, PredictParams(CONFIG.day, window_days=3), execute=in_turn)
    assert result["model"]["kind"] == "smoothed-CTR baseline"
    assert sorted(result["model"]["days"]) == [day(0), day(1), day(2)]
    table = lake.read("predictions_ads_ranking", CONFIG.day)
    assert 0.05 < table["prediction"].to_numpy().mean() < 0.1


def test_scoring_again_gives_the_same_bytes(folder):
    """The same model and features give the same data version."""
    versions = set()
    for attempt in range(2):
        with job(folder, run_key=f"predict-again-{attempt}") as run:
            params = PredictParams(CONFIG.day, url(folder, "good"), output="again")
            versions.add(predict(run, params, execute=in_turn)["data_version"])
    assert len(versions) == 1


def test_no_window_at_all_is_said(lake):
    """A day before all data has no window: the sentence says which days to make."""
    with pytest.raises(InvalidData, match="2019-11-23"):
        window_before(lake, FEATURES, day(0), 3)


def test_missing_days_of_the_window_are_told(lake):
    """Days that aren't there are listed, and the others are used."""
    window = window_before(lake, FEATURES, day(2), 4)
    assert list(window.data_versions) == [day(0), day(1)]
    assert window.missing == ("2019-11-22", "2019-11-23")
    assert window.rows == 24_000
