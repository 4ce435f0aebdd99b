"""The daily retrain: at 03:00, of the day that has just ended, where its data is there."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import dagster as dg

from ml_pipelines.defs.ads_ranking.config import DATASET
from ml_pipelines.defs.ads_ranking.jobs import JOB_NAME, ads_ranking_daily
from ml_pipelines.defs.ads_ranking.partitions import TIMEZONE, WINDOW_DAYS, has_history
from ml_pipelines.errors import InvalidInput, MlPipelinesError, NotFound
from ml_pipelines.orchestration.requests import VERSION_TAG, may_ask, request_key
from ml_pipelines.orchestration.stores import StoresParam

NAME = "ads_ranking_daily_retrain"
RETRAIN_AT = "0 3 * * *"


@dg.schedule(
    name=NAME,
    job=ads_ranking_daily,
    cron_schedule=RETRAIN_AT,
    execution_timezone=TIMEZONE,
    description="Retrains on the day that has just ended. Skips, and says why, where its data "
    "isn't there (the sensor asks once it is) or was retrained already.",
)
def ads_ranking_daily_retrain(
    context: dg.ScheduleEvaluationContext, stores: StoresParam
) -> dg.RunRequest | dg.SkipReason:
    """Ask for the last whole day of the schedule's time zone."""
    day = last_whole_day(context.scheduled_execution_time, TIMEZONE)
    try:
        version = stores.lake().partition(DATASET, day).data_version
        if not has_history(day, stores.lake().days(DATASET)):
            return dg.SkipReason(f"None of the {WINDOW_DAYS} days before {day} is in the lake.")
        asks = may_ask(stores.runs(), JOB_NAME, day, version, by=NAME)
    except NotFound:
        return dg.SkipReason(f"{day} isn't complete in the lake; the sensor asks once it is.")
    except (InvalidInput, MlPipelinesError) as error:
        return dg.SkipReason(f"{day} can't be trained on: {error}")
    if not asks:
        return dg.SkipReason(f"{day} was asked for already on this data ({version[:12]}).")
    return dg.RunRequest(
        run_key=request_key(day, version), partition_key=day, tags={VERSION_TAG: version[:63]}
    )


def last_whole_day(tick: datetime, timezone: str) -> str:
    """The local day that had ended when the tick was due, whatever the clocks did that night."""
    local = tick.astimezone(ZoneInfo(timezone))
    return (local.date() - timedelta(days=1)).isoformat()
