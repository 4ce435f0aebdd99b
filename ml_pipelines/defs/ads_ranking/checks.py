"""The check of a day's impressions: columns, types, volume."""

from statistics import median
from typing import TYPE_CHECKING

import dagster as dg

from ml_pipelines.defs.ads_ranking.config import DATASET
from ml_pipelines.defs.ads_ranking.launch import checked
from ml_pipelines.defs.ads_ranking.partitions import days_before
from ml_pipelines.errors import InvalidInput, NotFound
from ml_pipelines.orchestration.resource import RayJobs
from ml_pipelines.orchestration.stores import StoresParam
from ml_pipelines.orchestration.translate import plain_failures
from ml_pipelines.workloads.ads_ranking.schema import IMPRESSIONS

if TYPE_CHECKING:
    from ml_pipelines.storage import Lake

USUAL_DAYS = 7
LEAST_SHARE = 0.2


@dg.asset_check(
    asset="impressions",
    blocking=True,
    description="The day is complete in the lake, byte for byte as it was written, with every "
    "column of the right type and at least one row. Fewer than a fifth of the rows of a usual day is a warning.",
)
@plain_failures()
def schema_and_volume(
    context: dg.AssetCheckExecutionContext, ray: RayJobs, stores: StoresParam
) -> dg.AssetCheckResult:
    """Red stops the run before any Ray job exists; odd volume only warns."""
    day = checked(context, ray)
    lake = stores.lake()
    try:
        partition = lake.partition(DATASET, day)
        lake.verify(partition)
        problem = schema_problem(partition.schema)
    except (InvalidInput, NotFound) as error:
        return _red(str(error))
    if partition.rows == 0:
        problem = problem or "0 rows are no day: write it again."
    if problem:
        return _red(f"{partition.url}: {problem}")
    usual = usual_rows(lake, day)
    metadata: dict[str, float | int | str] = {
        "dagster/row_count": partition.rows,
        "usual rows": usual,
        "data version": partition.data_version,
    }
    if partition.rows < usual * LEAST_SHARE:
        return dg.AssetCheckResult(
            passed=False,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"{partition.rows} rows, where a usual day has {usual:.0f}.",
            metadata=metadata,
        )
    return dg.AssetCheckResult(passed=True, metadata=metadata)


def schema_problem(found: dict[str, str]) -> str:
    """What is wrong with the columns of a partition, in one sentence; empty where nothing is."""
    missing = [name for name in IMPRESSIONS if name not in found]
    if missing:
        return f"without the column(s) {', '.join(missing)}: write the day again with them."
    for name, kind in IMPRESSIONS.items():
        if found[name] != kind:
            return f"column {name} is {found[name]}, not {kind}: write the day again with it."
    return ""


def usual_rows(lake: "Lake", day: str) -> float:
    """Median number of rows of the complete days of the week before; 0 where there are none."""
    have = lake.days(DATASET)
    rows = [lake.partition(DATASET, d).rows for d in days_before(day, USUAL_DAYS) if d in have]
    return float(median(rows)) if rows else 0.0


def _red(description: str) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False, description=description)
