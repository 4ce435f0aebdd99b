"""The window: the days before a day whose features are there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

from ml_pipelines.errors import InvalidData
from ml_pipelines.workloads.ads_ranking.schema import FEATURES

if TYPE_CHECKING:
    from ml_pipelines.storage import Lake, Partition


@dataclass(frozen=True, slots=True)
class Window:
    """Complete days, the earliest first; `missing` were asked for and aren't there."""

    partitions: tuple[Partition, ...]
    missing: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """The URLs of all files, in the order of days."""
        return tuple(url for partition in self.partitions for url in partition.files)

    @property
    def rows(self) -> int:
        """Impressions in all days."""
        return sum(partition.rows for partition in self.partitions)

    @property
    def data_versions(self) -> dict[str, str]:
        """The data version of each day."""
        return {partition.day: partition.data_version for partition in self.partitions}


def days_before(day: str, count: int) -> tuple[str, ...]:
    """The `count` days before `day`, the earliest first."""
    last = date.fromisoformat(day)
    return tuple((last - timedelta(days=back)).isoformat() for back in range(count, 0, -1))


def window_before(lake: Lake, dataset: str, day: str, count: int) -> Window:
    """The days of features before `day`; InvalidData where there is none at all."""
    wanted = days_before(day, count)
    have = lake.days(dataset)
    partitions = [features_day(lake, dataset, each) for each in wanted if each in have]
    if not partitions:
        raise InvalidData(
            f"{lake.store.child_url(dataset)} before {day}",
            None,
            f"is there of the {count} day(s) before",
            remedy=f"Make the features of {wanted[0]} to {wanted[-1]} first.",
        )
    return Window(tuple(partitions), tuple(each for each in wanted if each not in have))


def features_day(lake: Lake, dataset: str, day: str) -> Partition:
    """One day of features; InvalidData where its columns are not the ones we know."""
    partition = lake.partition(dataset, day)
    if partition.schema != FEATURES:
        raise InvalidData(
            partition.url, partition.schema, "are no features", remedy="Make the day's features."
        )
    return partition
