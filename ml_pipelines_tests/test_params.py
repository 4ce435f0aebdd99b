"""A workload's parameters: what can't be meant is refused with field, value and remedy."""

from __future__ import annotations

import re

import pytest

from ml_pipelines.errors import InvalidInput
from ml_pipelines.workloads.ads_ranking.config import TrainConfig
from ml_pipelines.workloads.ads_ranking.features import FeaturesParams
from ml_pipelines.workloads.params import parse


def test_what_was_given_and_the_rest_by_default():
    """Given fields are taken, whole numbers as floats where needed; others have defaults."""
    config = parse(TrainConfig, {"day": "2019-11-30", "learning_rate": 1, "epochs": 3})
    assert (config.epochs, config.learning_rate, config.workers) == (3, 1.0, 2)
    assert parse(FeaturesParams, {"days": ["2019-11-30"]}).days == ("2019-11-30",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epoch": 3}, "params.epoch: 3 is no known field. Did you mean 'epochs'?"),
        ({"zzz": 3}, "params.zzz: 3 is no known field. Known: day"),
        ({"epochs": "3"}, "params.epochs: '3' is not of type int."),
        ({"epochs": True}, "params.epochs: True is not of type int."),
        ({"epochs": 0}, "params.epochs: 0 is out of range. Use 1 to 100."),
        ({"learning_rate": float("nan")}, "params.learning_rate: nan is out of range."),
        ({"batch_size": 1000}, "params.batch_size: 1000 is not a multiple of 32. Use 992."),
        ({"workers": 0}, "params.workers: 0 is out of range."),
    ],
)
def test_what_can_not_be_meant_is_refused(given, said):
    """Unknown names, wrong types and ranges are one sentence each."""
    with pytest.raises(InvalidInput, match=re.escape(said)):
        parse(TrainConfig, {"day": "2019-11-30", **given})


def test_a_missing_field_is_named():
    """A field without a default must be given."""
    with pytest.raises(InvalidInput, match=r"params\.day: None is missing"):
        parse(TrainConfig, {})


@pytest.mark.parametrize("days", ["2019-11-30", [1]], ids=["text", "numbers"])
def test_a_list_must_be_one(days):
    """A list of texts is nothing else."""
    with pytest.raises(InvalidInput, match=r"params\.days.*no list of texts"):
        parse(FeaturesParams, {"days": days})
