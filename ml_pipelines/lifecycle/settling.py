"""When a log counts as read to its end."""

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

    def over(self, silent_s: float) -> bool:
        """Whether all is read; `silent_s` as in LogChunk."""
        if silent_s == math.inf:
            return True
        return min(silent_s, self._clock.monotonic() - self._since) >= SETTLE_S
