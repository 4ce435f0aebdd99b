"""Time is an argument: the real clock runs, the fake one moves only when told to."""

from __future__ import annotations

from datetime import UTC, timedelta

from ml_pipelines.clock import Clock, FakeClock, SystemClock


def test_system_clock_goes_on():
    """The machine's clocks never go back, and sleeping takes at least as long as was said."""
    clock: Clock = SystemClock()
    before, boot = clock.monotonic(), clock.boottime()
    clock.sleep(0.01)
    assert clock.monotonic() - before >= 0.01
    assert clock.boottime() - boot >= 0.01
    assert clock.now().tzinfo is UTC


def test_fake_clock_sleeps_in_no_time():
    """Half an hour's wait is over at once, and all three times agree on it."""
    clock = FakeClock()
    start = clock.now()
    clock.sleep(1800)
    assert clock.monotonic() == clock.boottime() == 1800
    assert clock.now() - start == timedelta(minutes=30)


def test_fake_clock_never_goes_back():
    """A negative wait is no wait."""
    clock = FakeClock()
    clock.advance(-5)
    assert clock.monotonic() == 0
