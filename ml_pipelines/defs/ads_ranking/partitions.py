"""The days of ads ranking: one partition a day, from the first day of the data."""

from __future__ import annotations

from collections.abc import Container
from datetime import date, timedelta

import dagster as dg

from ml_pipelines.errors import InvalidInput

TIMEZONE = "UTC"
FIRST_DAY = "2019-11-24"
DAYS = dg.DailyPartitionsDefinition(start_date=FIRST_DAY, timezone=TIMEZONE)

# Staleness looks at so many days before; a longer training window works, but isn't watched.
WINDOW_DAYS = 7
WINDOW = dg.TimeWindowPartitionMapping(start_offset=-WINDOW_DAYS, end_offset=-1)


def checked_day(key: str) -> str:
    """The partition key, if it is one of our days. Raises InvalidInput."""
    try:
        known = date.fromisoformat(key).isoformat() == key and key >= FIRST_DAY
    except ValueError:
        known = False
    if not known:
        raise InvalidInput(
            "partition",
            key,
            f"is no day from {FIRST_DAY} on",
            remedy="Choose another one, written as YYYY-MM-DD.",
        )
    return key


def days_before(day: str, count: int) -> list[str]:
    """The `count` days before `day`, oldest first, none before the first day of the data."""
    end = date.fromisoformat(day)
    days = ((end - timedelta(days=back)).isoformat() for back in range(count, 0, -1))
    return [d for d in days if d >= FIRST_DAY]


def has_history(day: str, have: Container[str]) -> bool:
    """Whether any of the days before, as many as the default window, is there to learn from."""
    return any(before in have for before in days_before(day, WINDOW_DAYS))
