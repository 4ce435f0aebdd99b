"""New and changed days in the lake become runs, once each; the keeper of orphaned jobs."""

import json
from collections.abc import Mapping

import dagster as dg

from ml_pipelines.defs.ads_ranking.config import DATASET
from ml_pipelines.defs.ads_ranking.jobs import JOB_NAME, ads_ranking_daily
from ml_pipelines.defs.ads_ranking.partitions import DAYS, WINDOW_DAYS, has_history
from ml_pipelines.errors import MlPipelinesError
from ml_pipelines.orchestration.requests import VERSION_TAG, may_ask, request_key
from ml_pipelines.orchestration.stores import StoresParam

NAME = "ads_ranking_new_data"
DAYS_PER_TICK = 50


@dg.sensor(
    name=NAME,
    job=ads_ranking_daily,
    minimum_interval_seconds=60,
    description="Asks for a run of each day that is newly complete in the lake or whose data "
    "changed, at most 50 a tick, oldest first.",
)
def ads_ranking_new_data(
    context: dg.SensorEvaluationContext, stores: StoresParam
) -> dg.SensorResult | dg.SkipReason:
    """The cursor holds the data version of every day that was dealt with."""
    try:
        have = stores.lake().days(DATASET)
        known: dict[str, str] = json.loads(context.cursor or "{}")
        todo = new_days(have, known, first=DAYS.start.date().isoformat(), last=_last_day())
        asked = [
            day
            for day in todo[:DAYS_PER_TICK]
            if may_ask(stores.runs(), JOB_NAME, day, have[day], by=NAME)
        ]
    except MlPipelinesError as error:
        return dg.SkipReason(f"The lake could not be listed, so nothing was concluded: {error}")
    if not todo:
        return dg.SkipReason(_nothing_to_do(have, known))
    done = {day: have[day] for day in todo[:DAYS_PER_TICK]}
    return dg.SensorResult(
        run_requests=[
            dg.RunRequest(
                run_key=request_key(day, have[day]),
                partition_key=day,
                tags={VERSION_TAG: have[day][:63]},
            )
            for day in asked
        ],
        asset_events=[data_event(day, version) for day, version in done.items()],
        cursor=json.dumps(known | done, sort_keys=True),
    )


def new_days(
    have: Mapping[str, str], known: Mapping[str, str], *, first: str, last: str
) -> list[str]:
    """Days with data that the cursor doesn't know, oldest first; pure.

    Days outside of `first` to `last` are left for later: today isn't over yet. So are days with
    nothing before them to learn from, until there is.
    """
    return sorted(
        day
        for day, version in have.items()
        if first <= day <= last and known.get(day) != version and has_history(day, have)
    )


def _nothing_to_do(have: Mapping[str, str], known: Mapping[str, str]) -> str:
    done = f"No new data: {len(have)} complete days, all dealt with"
    waiting = sorted(day for day in have if day not in known and not has_history(day, have))
    if not waiting:
        return f"{done}."
    return (
        f"{done} but {', '.join(waiting[:3])}{', …' if len(waiting) > 3 else ''}: none of the "
        f"{WINDOW_DAYS} days before is there to learn from."
    )


def data_event(day: str, version: str) -> dg.AssetObservation:
    """Tells Dagster which data a day has: what was made from other data is stale then.

    An observation, for only that counts as the data version of an asset that others make.
    """
    return dg.AssetObservation(
        "impressions",
        partition=day,
        description="Seen complete in the lake.",
        metadata={"data version": version},
        tags={"dagster/data_version": version},
    )


def _last_day() -> str:
    last = DAYS.get_last_partition_key()
    return last or ""
