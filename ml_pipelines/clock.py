"""Time as an argument: whoever waits or measures is given a clock, so tests need not wait."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """The three times we use, and the only way to wait."""

    def monotonic(self) -> float:
        """Seconds since some start, never going back: for time-outs and durations."""

    def boottime(self) -> float:
        """As `monotonic`, but counting suspension too: for leases (a closed laptop ages)."""

    def now(self) -> datetime:
        """The wall clock, in UTC: for people and money, never for decisions."""

    def sleep(self, seconds: float) -> None:
        """Wait; a signal's exception may cut it short."""


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        # CLOCK_BOOTTIME is Linux's; elsewhere monotonic is the nearest there is.
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return time.clock_gettime(clock)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class FakeClock:
    """A clock that moves only when told to or slept on: a 30-minute wait tests in no time."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self.elapsed = 0.0

    def monotonic(self) -> float:
        return self.elapsed

    def boottime(self) -> float:
        return self.elapsed

    def now(self) -> datetime:
        from datetime import timedelta

        return self._start + timedelta(seconds=self.elapsed)

    def sleep(self, seconds: float) -> None:
        self.elapsed += max(seconds, 0.0)

    advance = sleep
