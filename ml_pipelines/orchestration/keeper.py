"""The keeper: removes what no Dagster run will claim any more, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import dagster as dg

from ml_pipelines.errors import MlPipelinesError
from ml_pipelines.orchestration.identity import (
    LOCATION_LABEL,
    RUN_LABEL,
    WILL_RETRY_TAG,
    latest_run,
)
from ml_pipelines.settings import CODE_LOCATION

FindRun = Callable[[str], dg.DagsterRun | None]
Wanted = Callable[[str, Mapping[str, str]], bool]
OVER = frozenset(
    {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED}
)


def wanted_by(find: FindRun) -> Wanted:
    """Whether somebody may still want the job with these labels.

    Not ours (a personal job, another code location, a run that this instance doesn't know): wanted.
    `find` raises where the run database can't be read, and so does the answer: no answer, no
    removal.
    """

    def wanted(_run_key: str, labels: Mapping[str, str]) -> bool:
        if labels.get(LOCATION_LABEL) != CODE_LOCATION or not labels.get(RUN_LABEL):
            return True
        first = find(labels[RUN_LABEL])
        if first is None:
            return True
        run = latest_run(first, find)
        return run.status not in OVER or will_be_retried(run)

    return wanted


def will_be_retried(run: dg.DagsterRun) -> bool:
    """Whether Dagster has promised an automatic retry that isn't there yet."""
    return run.status is dg.DagsterRunStatus.FAILURE and run.tags.get(WILL_RETRY_TAG) == "true"


def build_keeper(
    sweep: Callable[[Wanted], list[str]] | None = None, *, interval_s: int = 30
) -> dg.SensorDefinition:
    """The keeper as a sensor. `sweep(wanted)` removes and returns run keys; default: lifecycle's."""

    @dg.sensor(
        name="keeper",
        minimum_interval_seconds=interval_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Removes Ray jobs and clusters that no run will claim any more.",
    )
    def keeper(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        try:
            gone = (sweep or _sweep)(wanted_by(_finder(context.instance)))
        except MlPipelinesError as error:
            return dg.SkipReason(f"Nothing was removed: {error}")
        except _DatabaseAwayError as error:
            return dg.SkipReason(f"Nothing more was removed: the run database failed: {error}")
        return dg.SkipReason(f"Removed {', '.join(gone)}." if gone else "Nothing to remove.")

    return keeper


class _DatabaseAwayError(Exception):
    """The run database can't be read."""


def _finder(instance: dg.DagsterInstance) -> FindRun:
    def find(run_id: str) -> dg.DagsterRun | None:
        try:
            return instance.get_run_by_id(run_id)
        except Exception as error:  # noqa: BLE001 - any driver's error means: can't be read
            raise _DatabaseAwayError(repr(error)) from error

    return find


def _sweep(wanted: Wanted) -> list[str]:
    from ml_pipelines import lifecycle, settings
    from ml_pipelines.lifecycle.platform import open_platform

    with open_platform(settings.load()) as platform:
        return list(lifecycle.sweep(platform, wanted))
