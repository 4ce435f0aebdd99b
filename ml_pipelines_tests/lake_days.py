"""Days of impressions for tests, small and quickly written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ml_pipelines import settings
from ml_pipelines.storage import Lake, open_store
from ml_pipelines.workloads.ads_ranking.schema import IMPRESSIONS, arrow_schema

if TYPE_CHECKING:
    from ml_pipelines.storage import Partition


def own_lake() -> Lake:
    """The lake of this test (see conftest)."""
    return Lake(open_store(settings.load().lake))


def write_day(lake: Lake, day: str, *, rows: int = 4, clicks: int = 1, **columns: str) -> Partition:
    """A day of `rows` impressions; `columns` gives other types, or drops a column given as ''."""
    import pyarrow as pa

    kinds = {name: kind for name, kind in (IMPRESSIONS | columns).items() if kind}
    schema = arrow_schema(kinds)
    values = {
        field.name: pa.array([_value(field.type, n, clicks) for n in range(rows)], field.type)
        for field in schema
    }
    return lake.write_partition("impressions", day, [pa.table(values, schema=schema)])


def _value(kind: object, number: int, clicks: int) -> object:
    import pyarrow as pa

    if pa.types.is_string(kind):
        return f"v{number % 3}"
    if pa.types.is_int8(kind):
        return int(number < clicks)
    return number
