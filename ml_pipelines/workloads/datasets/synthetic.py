"""Synthetic click logs with a planted truth.

So the best reachable AUC is known: a click is drawn with a probability that `truth` tells for each
row. It is made of

    the page      a base rate and a bias of the position
    ids           an effect of each brand and of each frequent user; rare ids have none, for nobody
                  could learn it from so few rows
    interactions  user segment by item category and device by format, with no main effect of their
                  own, so a model without interactions can't see them; affinity counts for some
                  segments and against others
    drift         every interaction swings around its mean with its own phase, period `PERIOD_DAYS`

User and item ids are Zipf-distributed; which id is frequent is a permutation, so that hashing and
sharding meet no order. Everything is a function of (seed, day, number of rows).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ml_pipelines.errors import InvalidInput
from ml_pipelines.workloads.ads_ranking.schema import IMPRESSIONS, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from ml_pipelines.storage import Lake, Partition

Columns = dict[str, NDArray[Any]]

CAMPAIGNS = ("all", "men", "women")
USERS, ITEMS = 300_000, 60_000
USER_ZIPF, ITEM_ZIPF = 0.9, 1.05
FREQUENT_USERS = 50  # the most frequent users, who have an effect of their own
SEGMENTS, DEVICES, REGIONS = 8, 4, 40
CATEGORIES, BRANDS, FORMATS = 12, 200, 5
BASE_LOGIT = -3.2
PERIOD_DAYS = 40.0
CHUNK_ROWS = 1_000_000  # bounds memory; a day of more rows is made chunk by chunk


@dataclass(frozen=True, slots=True)
class World:
    """The planted effects of one seed, in logits."""

    user: NDArray[np.float64]  # (FREQUENT_USERS,)
    brand: NDArray[np.float64]  # (BRANDS,)
    position: NDArray[np.float64]  # (3,)
    segment_category: NDArray[np.float64]  # (SEGMENTS, CATEGORIES)
    device_format: NDArray[np.float64]  # (DEVICES, FORMATS)
    segment_affinity: NDArray[np.float64]  # (SEGMENTS,)
    phase: NDArray[np.float64]  # (SEGMENTS, CATEGORIES), radians


@lru_cache(maxsize=4)
def world(seed: int) -> World:
    """The effects that `seed` plants; interactions have rows and columns of mean 0."""
    rng = np.random.default_rng([seed, 1])
    return World(
        user=rng.normal(0, 0.5, FREQUENT_USERS),
        brand=rng.normal(0, 0.5, BRANDS),
        position=np.array([0.35, 0.0, -0.35]),
        segment_category=_centred(rng.normal(0, 0.9, (SEGMENTS, CATEGORIES))),
        device_format=_centred(rng.normal(0, 0.6, (DEVICES, FORMATS))),
        segment_affinity=np.where(np.arange(SEGMENTS) % 2, 0.9, -0.9),
        phase=rng.uniform(0, 2 * np.pi, (SEGMENTS, CATEGORIES)),
    )


def generate(day: date, rows: int, seed: int = 0) -> pa.Table:
    """The impressions of a day as one table, sorted by time."""
    import pyarrow as pa

    return pa.concat_tables(tables(day, rows, seed))


def tables(day: date, rows: int, seed: int = 0) -> Iterator[pa.Table]:
    """The impressions of a day, at most CHUNK_ROWS rows a table."""
    for chunk, drawn in enumerate(_chunks(day, rows, seed)):
        yield _table(drawn, day, first_row=chunk * CHUNK_ROWS)


def truth(day: date, rows: int, seed: int = 0) -> NDArray[np.float64]:
    """The probability of a click of each row of `generate(day, rows, seed)`, in its order."""
    return np.concatenate([drawn["probability"] for drawn in _chunks(day, rows, seed)])


def write_day(
    lake: Lake, day: date, *, rows: int, seed: int = 0, dataset: str = "impressions"
) -> Partition:
    """Write one day's partition."""
    if rows < 1:
        raise InvalidInput("rows", rows, "is not a number of rows", remedy="Ask for 1 or more.")
    return lake.write_partition(dataset, day.isoformat(), tables(day, rows, seed))


def _centred(effects: NDArray[np.float64]) -> NDArray[np.float64]:
    effects = effects - effects.mean(axis=0, keepdims=True)
    return np.asarray(effects - effects.mean(axis=1, keepdims=True))


def _chunks(day: date, rows: int, seed: int) -> Iterator[Columns]:
    for chunk, start in enumerate(range(0, rows, CHUNK_ROWS)):
        rng = np.random.default_rng([seed, 2, day.toordinal(), chunk])
        size = min(CHUNK_ROWS, rows - start)
        columns = _draw(rng, size, seed)
        # Each chunk has its own slice of the day, so the whole is sorted by time.
        columns["second"] = (start + np.sort(rng.uniform(0, size, size))) / rows * 86_400
        columns["probability"] = _probability(columns, day, world(seed))
        columns["click"] = rng.random(size) < columns["probability"]
        yield columns


def _draw(rng: np.random.Generator, rows: int, seed: int) -> Columns:
    user_rank = np.searchsorted(_zipf(USERS, USER_ZIPF), rng.random(rows))
    item_rank = np.searchsorted(_zipf(ITEMS, ITEM_ZIPF), rng.random(rows))
    user = _permutation(seed, USERS, 3)[user_rank]
    item = _permutation(seed, ITEMS, 4)[item_rank]
    return {
        "user_rank": user_rank,
        "user": user,
        "item": item,
        # Traits of a user and an item are fixed: mixed from the id by multiplication.
        "segment": _trait(user, 1, SEGMENTS),
        "device": rng.integers(0, DEVICES, rows),
        "region": _trait(user, 2, REGIONS),
        "category": _trait(item, 3, CATEGORIES),
        "brand": _trait(item, 4, BRANDS),
        "format": _trait(item, 5, FORMATS),
        "campaign": _trait(item, 6, len(CAMPAIGNS)),
        "position": rng.integers(0, 3, rows),
        "affinity": rng.beta(2, 2, rows),
        "item_score": rng.normal(0, 1, rows),
    }


def _probability(columns: Columns, day: date, world: World) -> NDArray[np.float64]:
    segment, category = columns["segment"], columns["category"]
    angle = 2 * np.pi * day.toordinal() / PERIOD_DAYS
    matrix = world.segment_category + 0.35 * np.sin(angle + world.phase)
    own = np.zeros(USERS)
    own[:FREQUENT_USERS] = world.user
    logit = (
        BASE_LOGIT
        + world.position[columns["position"]]
        + own[columns["user_rank"]]
        + world.brand[columns["brand"]]
        + matrix[segment, category]
        + world.device_format[columns["device"], columns["format"]]
        + world.segment_affinity[segment] * (columns["affinity"] * 2 - 1)
        + 0.15 * columns["item_score"]
    )
    return np.asarray(1 / (1 + np.exp(-logit)))


@lru_cache(maxsize=4)
def _zipf(ids: int, exponent: float) -> NDArray[np.float64]:
    weights = np.arange(1, ids + 1, dtype=np.float64) ** -exponent
    return np.asarray(np.cumsum(weights) / weights.sum())


@lru_cache(maxsize=4)
def _permutation(seed: int, ids: int, stream: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, stream]).permutation(ids)


def _trait(ids: NDArray[np.int64], salt: int, values: int) -> NDArray[np.int64]:
    salted = np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64)
    mixed = (ids.astype(np.uint64) + salted) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(31)
    mixed *= np.uint64(0x94D049BB133111EB)
    return ((mixed >> np.uint64(33)) % np.uint64(values)).astype(np.int64)


def _table(drawn: Columns, day: date, *, first_row: int) -> pa.Table:
    import pyarrow as pa

    rows = len(drawn["click"])
    midnight = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1_000_000)
    first_id = day.toordinal() * 10**10 + first_row
    columns = {
        "impression_id": np.arange(first_id, first_id + rows),
        "event_time": midnight + (drawn["second"] * 1_000_000).astype(np.int64),
        "click": drawn["click"],
        "campaign": _named("", drawn["campaign"], CAMPAIGNS),
        "item": _items(drawn),
        "position": drawn["position"] + 1,
        "user_0": _named("user-", drawn["user"]),
        "user_1": _named("segment-", drawn["segment"]),
        "user_2": _named("device-", drawn["device"]),
        "user_3": _named("region-", drawn["region"]),
        "item_0": _named("category-", drawn["category"]),
        "item_1": _named("brand-", drawn["brand"]),
        "item_2": _named("format-", drawn["format"]),
        "affinity": drawn["affinity"],
        "item_score": drawn["item_score"],
        "propensity": np.full(rows, 1 / ITEMS),
    }
    schema = arrow_schema(IMPRESSIONS)
    arrays = [pa.array(columns[field.name]).cast(field.type, safe=False) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _items(drawn: Columns) -> pa.Array:
    # An item belongs to one campaign, so its number alone decides its name.
    numbers, first, where = np.unique(drawn["item"], return_index=True, return_inverse=True)
    names = [
        f"{CAMPAIGNS[campaign]}:{number}"
        for number, campaign in zip(numbers, drawn["campaign"][first], strict=True)
    ]
    return _decoded(names, where)


def _named(prefix: str, numbers: NDArray[np.int64], names: tuple[str, ...] = ()) -> pa.Array:
    unique, where = np.unique(numbers, return_inverse=True)
    return _decoded([names[n] if names else f"{prefix}{n}" for n in unique], where)


def _decoded(names: list[str], where: NDArray[np.int64]) -> pa.Array:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(where, pa.int32()), pa.array(names)).cast(
        pa.string()
    )
