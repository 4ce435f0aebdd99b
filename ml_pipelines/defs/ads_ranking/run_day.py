"""Runs the daily job for one day in this process, and tells a person what came of it.

    python -m ml_pipelines.defs.ads_ranking.run_day --data open-bandit|synthetic

Puts the data into the lake where it is missing, then runs the very job that Dagster's schedule
runs, on the instance at DAGSTER_HOME. Ctrl-C cancels and leaves nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click
import dagster as dg

from ml_pipelines import settings
from ml_pipelines.defs.ads_ranking import assets, checks, jobs, report
from ml_pipelines.defs.ads_ranking.config import DATASET
from ml_pipelines.defs.ads_ranking.partitions import FIRST_DAY, checked_day
from ml_pipelines.defs.ads_ranking.sensors import data_event
from ml_pipelines.errors import InvalidInput, MlPipelinesError
from ml_pipelines.orchestration.console import plain_console
from ml_pipelines.orchestration.requests import VERSION_TAG
from ml_pipelines.orchestration.resource import RayJobs, UnretriedRayJobs
from ml_pipelines.orchestration.stores import Stores

if TYPE_CHECKING:
    from ml_pipelines.storage import Lake

DATA = ("open-bandit", "synthetic")
SYNTHETIC_DAYS = 8
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None, *, ray: RayJobs | None = None) -> int:
    """Run one day; 0 when it is green, 1 when it failed, 2 for bad input, 130 for Ctrl-C.

    `ray` is the seam of tests.
    """
    given = _arguments(argv)
    try:
        lake = Stores().lake()
        fill(lake, given.data, rows=given.rows)
        day = checked_day(given.day) if given.day else _last_day(lake)
        return run(day, data=given.data, ray=ray or UnretriedRayJobs())
    except MlPipelinesError as error:
        click.echo(error, err=True)
        return error.exit_code
    except KeyboardInterrupt:
        click.echo("Interrupted; nothing is left running.", err=True)
        return INTERRUPTED


def fill(lake: Lake, data: str, *, rows: int) -> None:
    """Write the data set's days where the lake has none. Raises StorageError, InvalidInput."""
    if lake.days(DATASET):
        return
    started = time.monotonic()
    click.echo(f"The lake {lake.store.url} is empty: writing {data} into it.")
    if data == "open-bandit":
        from ml_pipelines.workloads.datasets import open_bandit

        written = len(open_bandit.write(lake))
    else:
        from ml_pipelines.workloads.datasets import synthetic

        first = date.fromisoformat(FIRST_DAY)
        for number in range(SYNTHETIC_DAYS):
            synthetic.write_day(lake, first + timedelta(days=number), rows=rows)
        written = SYNTHETIC_DAYS
    click.echo(f"{written} days written in {time.monotonic() - started:.0f} s.")


def run(day: str, *, data: str, ray: RayJobs) -> int:
    """Run the job for a day and print the report; returns the exit code."""
    started = time.monotonic()
    version = Stores().lake().partition(DATASET, day).data_version
    click.echo(f"Running {jobs.JOB_NAME} for {day}.")
    with instance() as dagster:
        dagster.report_runless_asset_event(data_event(day, version))
        result = (
            definitions(ray)
            .resolve_job_def(jobs.JOB_NAME)
            .execute_in_process(
                partition_key=day,
                instance=dagster,
                raise_on_error=False,
                run_config={"loggers": {"console": {}}},
                tags={VERSION_TAG: version[:63], "data": data},
            )
        )
    took_s = time.monotonic() - started
    best = planted_auc(Stores().lake(), day) if data == "synthetic" else 0.0
    click.echo(report.text(result, day=day, data=data, took_s=took_s, planted_auc=best))
    if result.success:
        return 0
    return INTERRUPTED if report.interrupted(result) else 1


def planted_auc(lake: Lake, day: str) -> float:
    """AUC of the truth that made a synthetic day; 0 for a day that the defaults don't make."""
    import numpy as np

    from ml_pipelines.workloads.ads_ranking import metrics
    from ml_pipelines.workloads.datasets import synthetic

    click = lake.read(DATASET, day, columns=["click"])["click"].to_numpy()
    made = synthetic.generate(date.fromisoformat(day), len(click))["click"].to_numpy()
    if not np.array_equal(click, made):
        return 0.0
    truth = synthetic.truth(date.fromisoformat(day), len(click))
    return metrics.auc(click.astype(np.float64), truth)


def definitions(ray: RayJobs) -> dg.Definitions:
    """The chain as the code location has it, over this resource."""
    return dg.Definitions(
        assets=[assets.impressions, *jobs.CHAIN],
        asset_checks=[checks.schema_and_volume],
        jobs=[jobs.ads_ranking_daily],
        resources={"ray": ray, "stores": Stores()},
        loggers={"console": plain_console},
    )


def instance() -> dg.DagsterInstance:
    """The instance at DAGSTER_HOME; by default a folder of ours, made where it is missing."""
    home = Path(os.environ.get("DAGSTER_HOME") or settings.load().home / "dagster")
    home.mkdir(parents=True, exist_ok=True)
    os.environ["DAGSTER_HOME"] = str(home)
    return dg.DagsterInstance.get()


def _last_day(lake: Lake) -> str:
    days: Mapping[str, str] = lake.days(DATASET)
    if not days:
        raise InvalidInput("lake", lake.store.url, "holds no complete day of impressions")
    return max(days)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="run_day", description="Run the daily retrain of one day."
    )
    parser.add_argument(
        "--data", choices=DATA, default=DATA[0], help="what an empty lake is filled with"
    )
    parser.add_argument("--day", default="", help="YYYY-MM-DD; default: the last day in the lake")
    parser.add_argument("--rows", type=int, default=200_000, help="synthetic impressions a day")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
