"""The columns of impressions, features and predictions.

    impressions   what was shown, as the lake holds it: one row an impression, readable values
    features      what the model sees: ids hashed to 31 bits, dense numbers, the label
    predictions   impression_id and the probability of a click

`propensity` (how likely the logging policy was to show the item) is kept for off-policy work; the
model never sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

FEATURES_DATASET = "features_ads_ranking"

# Types as pyarrow writes them out, which is what a partition's marker says: float is 32 bits.
IMPRESSIONS: dict[str, str] = {
    "impression_id": "int64",
    "event_time": "timestamp[us, tz=UTC]",
    "click": "int8",
    "campaign": "string",
    "item": "string",  # "men:12": the same number in another campaign is another item
    "position": "int8",
    "user_0": "string",
    "user_1": "string",
    "user_2": "string",
    "user_3": "string",
    "item_0": "string",
    "item_1": "string",
    "item_2": "string",
    "affinity": "float",
    "item_score": "float",
    "propensity": "float",
}

# Position is an id too: the three places of a page are not points on a line.
ID_FIELDS = (
    "campaign",
    "item",
    "position",
    "user_0",
    "user_1",
    "user_2",
    "user_3",
    "item_0",
    "item_1",
    "item_2",
)
DENSE_FIELDS = ("affinity", "item_score")

FEATURES: dict[str, str] = {
    "impression_id": "int64",
    "click": "int8",
    **{f"id_{name}": "int32" for name in ID_FIELDS},
    **dict.fromkeys(DENSE_FIELDS, "float"),
}

PREDICTIONS: dict[str, str] = {"impression_id": "int64", "prediction": "float"}


def arrow_schema(columns: dict[str, str]) -> pa.Schema:
    """The Arrow schema of one of the tables above, without nulls."""
    import pyarrow as pa

    special = {"timestamp[us, tz=UTC]": pa.timestamp("us", tz="UTC")}
    return pa.schema(
        [
            pa.field(name, special.get(kind) or pa.type_for_alias(kind), nullable=False)
            for name, kind in columns.items()
        ]
    )
