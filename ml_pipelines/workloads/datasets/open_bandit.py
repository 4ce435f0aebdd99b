"""The Open Bandit data, real recommendations, as seven daily partitions.

60,000 impressions of a fashion shop's recommendations, 2019-11-24 to 2019-11-30, 287 clicks: two
logging policies (random, Bernoulli Thompson sampling) times three campaigns (all, men, women),
10,000 rows each. Data: "Open Bandit Dataset" by ZOZO Research (Saito et al., 2020), licence
CC BY 4.0. It comes with the Python package `obp`, whose CSV files are read by path: the package
itself, and what it depends on, is never imported.

Item ids count from 0 in each campaign and mean other items there, so `item` names the campaign.
The two policies' files name the same item features by differently salted hashes (one to one), so
both take the random policy's names. `affinity` is that of the user to the item shown.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ml_pipelines.errors import InvalidInput
from ml_pipelines.workloads.ads_ranking.schema import IMPRESSIONS, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from ml_pipelines.storage import Lake, Partition

POLICIES = ("random", "bts")
CAMPAIGNS = ("all", "men", "women")


def write(
    lake: Lake, *, folder: Path | None = None, dataset: str = "impressions"
) -> list[Partition]:
    """Write every day found in the files of `folder` (default: those of the package `obp`)."""
    table = impressions(folder or package_folder())
    return [
        lake.write_partition(dataset, day, [rows]) for day, rows in sorted(_by_day(table).items())
    ]


def package_folder() -> Path:
    """Where the installed package `obp` keeps the files; InvalidInput where it is missing."""
    found = find_spec("obp")
    if found is None or not found.submodule_search_locations:
        raise InvalidInput(
            "obp", None, "is not installed", remedy="Run `pip install --no-deps obp==0.4.1`."
        )
    return Path(found.submodule_search_locations[0]) / "dataset" / "obd"


def impressions(folder: Path) -> pa.Table:
    """All impressions below `folder`, sorted by time, numbered in that order."""
    import pyarrow as pa

    logs = [_log(folder, policy, campaign) for policy in POLICIES for campaign in CAMPAIGNS]
    table = pa.concat_tables(logs).sort_by(
        [("event_time", "ascending"), ("campaign", "ascending"), ("item", "ascending")]
    )
    numbers = pa.array(range(table.num_rows), pa.int64())
    return table.add_column(0, "impression_id", numbers).cast(arrow_schema(IMPRESSIONS))


def _log(folder: Path, policy: str, campaign: str) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    log = _read_csv(folder / policy / campaign / f"{campaign}.csv")
    context = _read_csv(folder / "random" / campaign / "item_context.csv").sort_by("item_id")
    item = log["item_id"].to_numpy()
    affinities = np.stack(
        [log[f"user-item_affinity_{i}"].to_numpy() for i in range(context.num_rows)], axis=1
    )
    return pa.table(
        {
            "event_time": log["timestamp"].cast(pa.timestamp("us", tz="UTC"), safe=False),
            "click": log["click"],
            "campaign": pa.array([campaign] * log.num_rows),
            "item": pa.array([f"{campaign}:{i}" for i in item]),
            "position": log["position"],
            **{f"user_{i}": log[f"user_feature_{i}"] for i in range(4)},
            # item_feature_0 is a number, the other three are names.
            **{
                f"item_{i}": context[f"item_feature_{i + 1}"].take(log["item_id"]) for i in range(3)
            },
            "affinity": affinities[np.arange(len(item)), item],
            "item_score": context["item_feature_0"].take(log["item_id"]),
            "propensity": log["propensity_score"],
        }
    )


def _read_csv(path: Path) -> pa.Table:
    from pyarrow import csv

    if not path.is_file():
        raise InvalidInput(
            "folder", str(path), "is missing", remedy="Give the folder `obd` of obp 0.4.1."
        )
    return csv.read_csv(path)


def _by_day(table: pa.Table) -> dict[str, pa.Table]:
    import pyarrow.compute as pc

    days = pc.strftime(table["event_time"], format="%Y-%m-%d")
    return {day: table.filter(pc.equal(days, day)) for day in pc.unique(days).to_pylist()}
