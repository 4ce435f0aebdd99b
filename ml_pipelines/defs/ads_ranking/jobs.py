"""The job for the whole chain, one day at a time."""

import dagster as dg

from ml_pipelines.defs.ads_ranking.assets import (
    ads_champion,
    ads_evaluation,
    ads_features,
    ads_model,
    ads_predictions,
)
from ml_pipelines.defs.ads_ranking.checks import schema_and_volume

JOB_NAME = "ads_ranking_daily"
CHAIN = (ads_features, ads_model, ads_evaluation, ads_champion, ads_predictions)

ads_ranking_daily = dg.define_asset_job(
    JOB_NAME,
    selection=dg.AssetSelection.assets(*CHAIN) | dg.AssetSelection.checks(schema_and_volume),
    description="One day: check the impressions, make features, train, evaluate, decide who is "
    "champion, score the day.",
    # Every step waits for a Ray job: processes of its own would only cost start-up time.
    executor_def=dg.in_process_executor,
)
