"""When the logs of an ended driver and its workers count as read to their end."""

from __future__ import annotations

import math

from ml_pipelines.clock import Clock

SETTLE_S = 0.8  # how long a log that is still followed must be silent: a line takes this to arrive


class Settling:
    """Silence counts from now on, and from what was told last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()

    def heard(self) -> None:
        """Something came."""
        self._since = self._clock.monotonic()

    def over(self, driver_s: float, workers_s: float = math.inf) -> bool:
        """Whether all is read; for how long each was silent, `silent_s` as in LogChunk.

        Where the driver's log is known to be closed, its workers' silence before that counts too.
        """
        if driver_s == math.inf:
            return workers_s >= SETTLE_S
        return min(driver_s, workers_s, self._clock.monotonic() - self._since) >= SETTLE_S
