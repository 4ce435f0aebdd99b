"""`mlp data`: import, synth, ls."""

from __future__ import annotations

from datetime import date, datetime
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ml_pipelines.cli.session import Session
    from ml_pipelines.storage import Lake, Partition

# The Open Bandit data's first day: synthetic days stand on the same calendar unless told otherwise.
FIRST_DAY = "2019-11-24"
IMPRESSIONS = "impressions"
_DAY = "dt="


@click.group()
def data() -> None:
    """Put impressions into the lake, and see what lies there."""


@data.command(name="import")
@click.option(
    "--source",
    type=click.Choice(["open-bandit"]),
    default="open-bandit",
    show_default=True,
    help="Open Bandit Dataset (ZOZO Research, CC BY 4.0): 60,000 real impressions of 7 days.",
)
@click.pass_obj
def import_(session: Session, source: str) -> None:
    """Import real impressions as daily partitions; importing again replaces them."""
    from ml_pipelines.workloads.datasets import open_bandit

    lake = _lake(session)
    click.echo(f"Importing {source} into {session.settings.lake}", err=True)
    before = lake.days(IMPRESSIONS)
    for partition in open_bandit.write(lake):
        _show(partition, before)


@data.command()
@click.option(
    "--days", type=click.IntRange(1, 3660), default=8, show_default=True, help="Number of days."
)
@click.option(
    "--rows",
    type=click.IntRange(1, 1_000_000_000),
    default=200_000,
    show_default=True,
    help="Impressions a day.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31),
    default=0,
    show_default=True,
    help="Another seed, another planted truth.",
)
@click.option(
    "--start",
    type=click.DateTime(["%Y-%m-%d"]),
    default=FIRST_DAY,
    show_default=True,
    metavar="YYYY-MM-DD",
    help="The first day.",
)
@click.pass_obj
def synth(session: Session, days: int, rows: int, seed: int, start: datetime) -> None:
    """Generate click logs with a planted truth: the same options give the same data."""
    from ml_pipelines.workloads.datasets import synthetic

    lake = _lake(session)
    click.echo(f"Generating {days} days of {rows:,} rows into {session.settings.lake}", err=True)
    before = lake.days(IMPRESSIONS)
    for day in _days(start.date(), days):
        _show(synthetic.write_day(lake, day, rows=rows, seed=seed), before)


@data.command()
@click.argument("dataset", required=False)
@click.pass_obj
def ls(session: Session, dataset: str | None) -> None:
    """The data sets of the lake, or the days of one."""
    from ml_pipelines.cli.console import table
    from ml_pipelines.errors import InvalidInput

    lake = _lake(session)
    names = list(_datasets(lake))
    if dataset is None and names:
        rows = [_summary(lake, name) for name in names]
        click.echo(table(("DATASET", "DAYS", "FIRST", "LAST"), rows))
    elif dataset is None:
        click.echo(f"The lake {session.settings.lake} is empty. Fill it: mlp data import")
        for other in session.elsewhere("lake"):
            click.echo(f"There are others: {other} mlp data ls")
    elif dataset in names:
        rows = [_day(lake, dataset, day) for day in _days_of(lake, dataset)]
        click.echo(table(("DAY", "ROWS", "FILES", "DATA VERSION"), rows))
    else:
        known = ", ".join(names) or "nothing"
        raise InvalidInput(
            "DATASET",
            dataset,
            f"is not in {session.settings.lake}, which holds {known}",
            remedy="Name one of these." if names else "Fill it: mlp data import",
        )


def _lake(session: Session) -> Lake:
    from ml_pipelines.storage import Lake, open_store

    store = open_store(session.settings.lake)
    store.check()
    return Lake(store)


def _days(first: date, count: int) -> Iterator[date]:
    return (date.fromordinal(first.toordinal() + i) for i in range(count))


def _show(partition: Partition, before: Mapping[str, str]) -> None:
    """One day that was written, beside what was there: `before` are the days' data versions."""
    version = before.get(partition.day)
    change = "unchanged" if version == partition.data_version else "replaced other data"
    told = f"  {change}" if version else ""
    click.echo(f"{partition.day}  {partition.rows:>9,} rows  {partition.data_version[:12]}{told}")


def _datasets(lake: Lake, prefix: str = "", depth: int = 4) -> Iterator[str]:
    """Names of the data sets: the folders that hold days."""
    inside = lake.store.list_dirs(prefix)
    if any(name.startswith(_DAY) for name in inside):
        yield prefix
    elif depth:
        for name in inside:
            yield from _datasets(lake, f"{prefix}/{name}".lstrip("/"), depth - 1)


def _days_of(lake: Lake, dataset: str) -> list[str]:
    """The days of a data set, complete or not."""
    inside = lake.store.list_dirs(dataset)
    return [name.removeprefix(_DAY) for name in inside if name.startswith(_DAY)]


def _summary(lake: Lake, name: str) -> tuple[str, ...]:
    days = list(lake.days(name))
    broken = len(_days_of(lake, name)) - len(days)
    count = f"{len(days)} and {broken} unusable" if broken else str(len(days))
    return (name, count, days[0] if days else "-", days[-1] if days else "-")


def _day(lake: Lake, dataset: str, day: str) -> tuple[str, ...]:
    from ml_pipelines.errors import InvalidData, InvalidInput

    try:
        found = lake.partition(dataset, day)
    except InvalidData as err:
        return (day, "-", "-", f"{err.problem}. {err.remedy}")
    except InvalidInput as err:  # a folder whose name is no day
        return (day, "-", "-", err.problem)
    return (day, f"{found.rows:,}", str(len(found.files)), found.data_version[:12])
