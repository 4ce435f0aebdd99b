"""Bytes of a log that lie behind a gap, kept in order while the gap may still be filled."""

from __future__ import annotations

from bisect import bisect_right


class Run:
    """Bytes without a gap, from `start` on; `since` is when the first of them came."""

    def __init__(self, start: int, since: float = 0.0) -> None:
        self.start = start
        self.since = since
        self.data = bytearray()

    @property
    def end(self) -> int:
        """The offset behind the last."""
        return self.start + len(self.data)


class Held:
    """Runs that don't touch, in order."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self.size = 0

    def add(self, start: int, text: bytes, now: float) -> None:
        """Keep what of it is new."""
        runs = self._runs
        if runs and runs[-1].end == start:  # nearly always
            runs[-1].data += text
            self.size += len(text)
            return
        place = bisect_right(runs, start, key=lambda run: run.start)
        before = runs[place - 1] if place else None
        if before is not None and before.end > start:
            text, start = text[before.end - start :], before.end
        rest, after = b"", start
        if place < len(runs) and start + len(text) > runs[place].start:
            after = runs[place].end
            text, rest = text[: runs[place].start - start], text[max(after - start, 0) :]
        if text:
            if before is None or before.end != start:
                before = Run(start, now)
                runs.insert(place, before)
            before.data += text
            self.size += len(text)
        if rest:
            self.add(after, rest, now)

    def take(self, upto: int) -> Run | None:
        """The first run, where nothing is missing between `upto` and its start."""
        return self.skip() if self._runs and self._runs[0].start <= upto else None

    def skip(self) -> Run:
        """The first run, whatever is missing before it."""
        run = self._runs.pop(0)
        self.size -= len(run.data)
        return run

    def waits_since(self) -> float:
        """When the first gap was seen; there must be one."""
        return self._runs[0].since

    def delay(self, seconds: float) -> None:
        """So long nothing could come."""
        for run in self._runs:
            run.since += seconds

    def clear(self) -> None:
        """Forget all."""
        self._runs.clear()
        self.size = 0
