"""The keeper: removes what no Dagster run will claim any more, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import dagster as dg

from ml_pipelines.errors import MlPipelinesError
from ml_pipelines.orchestration.identity import (
    LOCATION_LABEL,
    RUN_LABEL,
    WILL_RETRY_TAG,
    latest_run,
)
from ml_pipelines.settings import CODE_LOCATION

if TYPE_CHECKING:
    from ml_pipelines.journal.lease import Observer
    from ml_pipelines.lifecycle.keeper import Wanted, Wish

FindRun = Callable[[str], dg.DagsterRun | None]
OVER = frozenset(
    {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED}
)


def wanted_by(find: FindRun) -> Wanted:
    """Whether somebody may still want the job with these labels.

    None where it is not ours to judge: a personal job, another code location's, that of a run which
    this instance doesn't know. `find` raises where the run database can't be read, and so does
    the answer: no answer, no removal.
    """

    def wanted(_run_key: str, labels: Mapping[str, str]) -> Wish:
        if labels.get(LOCATION_LABEL) != CODE_LOCATION or not labels.get(RUN_LABEL):
            return None
        first = find(labels[RUN_LABEL])
        if first is None:
            return None
        run = latest_run(first, find)
        if run.status is dg.DagsterRunStatus.CANCELED:
            return "cancelled"  # somebody's will: no retry follows, so nothing is waited for
        return run.status not in OVER or will_be_retried(run)

    return wanted


def will_be_retried(run: dg.DagsterRun) -> bool:
    """Whether Dagster has promised an automatic retry that isn't there yet."""
    return run.status is dg.DagsterRunStatus.FAILURE and run.tags.get(WILL_RETRY_TAG) == "true"


def build_keeper(
    sweep: Callable[[Wanted], list[str]] | None = None, *, interval_s: int = 30
) -> dg.SensorDefinition:
    """The keeper as a sensor. `sweep(wanted)` returns a sentence a removal; default: lifecycle's."""

    @dg.sensor(
        name="keeper",
        minimum_interval_seconds=interval_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Removes Ray jobs and clusters that no run will claim any more.",
    )
    def keeper(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        try:
            done = (sweep or _sweep)(wanted_by(_finder(context.instance)))
        except MlPipelinesError as error:
            return dg.SkipReason(f"Nothing was removed: {error}")
        except _DatabaseAwayError as error:
            return dg.SkipReason(f"Nothing more was removed: the run database failed: {error}")
        return dg.SkipReason("; ".join(done) if done else "Nothing to remove.")

    return keeper


class _DatabaseAwayError(Exception):
    """The run database can't be read."""


def _finder(instance: dg.DagsterInstance) -> FindRun:
    def find(run_id: str) -> dg.DagsterRun | None:
        try:
            return instance.get_run_by_id(run_id)
        except Exception as error:  # any driver's error means: can't be read
            raise _DatabaseAwayError(repr(error)) from error

    return find


def _sweep(wanted: Wanted) -> list[str]:
    from ml_pipelines import lifecycle, settings

    here = settings.load()
    watched = lifecycle.open_platform(here, observer=_observer(here.runs), scope="namespace")
    with watched as platform:
        return lifecycle.sweep(platform, wanted)


@lru_cache(maxsize=8)
def _observer(runs: str) -> Observer:
    """Who did not beat since the last tick is known only to what outlives a tick."""
    from ml_pipelines.clock import SystemClock
    from ml_pipelines.journal.lease import Observer
    from ml_pipelines.storage import open_store

    return Observer(open_store(runs), SystemClock())
