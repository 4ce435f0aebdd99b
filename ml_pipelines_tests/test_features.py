"""Features: ids hashed, numbers checked, the same bytes each time."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ml_pipelines.errors import InvalidData
from ml_pipelines.storage import Lake, open_store
from ml_pipelines.workloads.ads_ranking.features import (
    ROW_GROUP_ROWS,
    FeaturesParams,
    checked,
    features_of,
    hashed,
    make_features,
)
from ml_pipelines.workloads.ads_ranking.schema import FEATURES, arrow_schema
from ml_pipelines.workloads.datasets import synthetic
from ml_pipelines_tests.ads_job import in_turn, job

DAY = "2019-11-24"


def impressions(rows: int = 50) -> pa.Table:
    """Some synthetic impressions."""
    return synthetic.generate(date.fromisoformat(DAY), rows)


def replaced(table: pa.Table, name: str, values: list[object]) -> pa.Table:
    """The table with another column in place of one."""
    at = table.schema.get_field_index(name)
    return table.set_column(
        at, table.schema.field(name), pa.array(values, table.schema.field(name).type)
    )


def test_one_row_of_features_for_each_impression():
    """Rows keep their order, id and label; every id field is a 31-bit number."""
    table = impressions()
    made = features_of(table)
    assert made.schema == arrow_schema(FEATURES)
    assert made["impression_id"].equals(table["impression_id"])
    assert made["click"].equals(table["click"])
    assert all(0 <= value < 2**31 for value in made["id_item"].to_pylist())


def test_the_same_number_in_another_campaign_is_another_item():
    """Items are told apart by campaign, and equal values by field."""
    values = pa.chunked_array([["men:3", "women:3", "men:3"]])
    men, women, again = hashed("item", values).to_pylist()
    assert men == again != women
    assert hashed("user_0", values).to_pylist()[0] != men


def test_hashes_never_change():
    """A hash is part of every trained model: it is pinned here."""
    assert hashed("item", pa.chunked_array([["men:3"]])).to_pylist() == [345160270]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=["nan", "infinite"])
def test_numbers_that_are_none_are_refused(bad):
    """A NaN or infinite affinity is bad data, named by its column."""
    table = impressions(3)
    with pytest.raises(InvalidData, match="affinity"):
        features_of(replaced(table, "affinity", [0.0, bad, 1.0]))


def test_the_same_impressions_give_the_same_bytes(tmp_path):
    """Two lakes with the same impressions have the same data version of features."""
    versions = []
    for name in ("a", "b"):
        lake = Lake(open_store(f"file://{tmp_path}/{name}/lake"))
        lake.write_partition("impressions", DAY, [impressions(9_000), impressions(10)])
        with job(tmp_path / name) as run:
            result = make_features(run, FeaturesParams((DAY,)), execute=in_turn)
        versions.append(result["days"][DAY]["data_version"])
        made = lake.partition("features_ads_ranking", DAY)
        sizes = [pq.read_metadata(url.removeprefix("file://")) for url in made.files]
        assert [m.num_row_groups for m in sizes] == [2, 1]
        assert sizes[0].row_group(0).num_rows == ROW_GROUP_ROWS
    assert versions[0] == versions[1]


def test_only_what_changed_is_made_again(tmp_path):
    """A day is left alone while its impressions are the same, and made again once they change."""
    lake = Lake(open_store(f"file://{tmp_path}/lake"))
    lake.write_partition("impressions", DAY, [impressions()])
    made = []
    with job(tmp_path) as run:
        for rows in (50, 50, 60):
            lake.write_partition("impressions", DAY, [impressions(rows)])
            result = make_features(run, FeaturesParams((DAY,)), execute=in_turn)
            made.append((result["days"][DAY]["made"], result["days"][DAY]["rows"]))
    assert made == [(True, 50), (False, 50), (True, 60)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.drop_columns(["item"]), "column item"),
        (lambda t: t.set_column(2, "click", t["click"].cast(pa.int64())), "column click"),
        (lambda t: t.slice(0, 0), "0 rows"),
    ],
    ids=["missing column", "mistyped column", "no rows"],
)
def test_days_that_are_none_are_refused(tmp_path, change, said):
    """A missing or mistyped column and an empty day are named before anything is made."""
    lake = Lake(open_store(f"file://{tmp_path}"))
    with pytest.raises(InvalidData, match=said):
        checked(lake.write_partition("impressions", DAY, [change(impressions())]))
