"""The importer of the Open Bandit data."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

from ml_pipelines.errors import InvalidInput
from ml_pipelines.storage import Lake, open_store
from ml_pipelines.workloads.ads_ranking.schema import IMPRESSIONS
from ml_pipelines.workloads.datasets import open_bandit


@pytest.fixture(scope="module")
def table():
    """All impressions."""
    return open_bandit.impressions(open_bandit.package_folder())


def test_seven_days_of_real_clicks(tmp_path):
    """60,000 impressions become seven daily partitions with 287 clicks."""
    lake = Lake(open_store(f"file://{tmp_path}"))
    partitions = open_bandit.write(lake)
    assert [p.day for p in partitions] == [f"2019-11-{d}" for d in range(24, 31)]
    assert sum(p.rows for p in partitions) == 60_000
    assert all(p.schema == IMPRESSIONS for p in partitions)
    clicks = [pc.sum(lake.read("impressions", p.day)["click"]).as_py() for p in partitions]
    assert clicks == [47, 35, 42, 38, 39, 43, 43]


def test_importing_again_gives_the_same_data(tmp_path):
    """The import is deterministic, so it makes no partition stale."""
    first = open_bandit.write(Lake(open_store(f"file://{tmp_path}/a")))
    second = open_bandit.write(Lake(open_store(f"file://{tmp_path}/b")))
    assert [p.data_version for p in first] == [p.data_version for p in second]


def test_items_are_kept_apart_per_campaign(table):
    """Item 0 of each campaign is another item, with features of its own."""
    zeros = table.filter(pc.is_in(table["item"], pc.cast(["all:0", "men:0", "women:0"], "string")))
    assert len(pc.unique(zeros["item"])) == len(pc.unique(zeros["item_0"])) == 3
    assert len(pc.unique(table["item"])) == 80 + 34 + 46


def test_item_features_have_one_name_in_both_policies(table):
    """Each item has one value of each feature, though the two logs name them differently."""
    for column in ("item_0", "item_1", "item_2", "item_score"):
        pairs = table.group_by(["item", column]).aggregate([])
        assert pairs.num_rows == 160


def test_affinity_is_that_of_the_item_shown(table):
    """Affinities come from the column of the shown item: few are above zero, all are finite."""
    assert pc.min(table["affinity"]).as_py() == 0
    assert pc.max(table["affinity"]).as_py() > 0
    assert pc.all(pc.is_finite(table["affinity"])).as_py()


def test_missing_files_are_named(tmp_path):
    """A folder without the files is refused with its path and what to give instead."""
    with pytest.raises(InvalidInput, match=r"all\.csv.*is missing.*obp"):
        open_bandit.impressions(tmp_path)
