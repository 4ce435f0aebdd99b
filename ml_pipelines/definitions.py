"""The code location: a list."""

from __future__ import annotations

import dagster as dg

from ml_pipelines.defs.ads_ranking import assets, checks, jobs, schedules, sensors
from ml_pipelines.orchestration.keeper import build_keeper
from ml_pipelines.orchestration.resource import RayJobs
from ml_pipelines.orchestration.stores import Stores


@dg.definitions
def defs() -> dg.Definitions:
    """Everything that Dagster shows of us."""
    return dg.Definitions(
        assets=[assets.impressions, *jobs.CHAIN],
        asset_checks=[checks.schema_and_volume],
        jobs=[jobs.ads_ranking_daily],
        schedules=[schedules.ads_ranking_daily_retrain],
        sensors=[sensors.ads_ranking_new_data, build_keeper()],
        resources={"ray": RayJobs(), "stores": Stores()},
    )
