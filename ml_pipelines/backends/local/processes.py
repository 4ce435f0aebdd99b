"""Finds and ends processes, a cluster's by what they inherit."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ml_pipelines.clock import Clock

GONE_S = 5.0  # SIGKILL takes effect within this, or the process hangs in the kernel


def birth_of(pid: int) -> float | None:
    """When that process began (seconds since the epoch); None where there is none alive."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.create_time()
    except psutil.Error:
        return None


def alive(pid: int, birth: float) -> bool:
    """Whether it is still that very process: pids are used again."""
    now = birth_of(pid)
    return now is not None and abs(now - birth) < 1.0


@dataclass(frozen=True, slots=True)
class Mark:
    """What every process of one cluster inherits: an environment variable and a working folder.

    Drivers run in sessions of their own, and outlive a head that was killed; Ray's agents write
    their titles over their environment, and keep the working folder. Either sign is enough.
    """

    variable: str
    value: str
    folder: str

    def on(self, process: psutil.Process) -> bool:
        """Whether that process carries it."""
        return self._lives_in(process) or self._carries(process)

    def _lives_in(self, process: psutil.Process) -> bool:
        try:
            return process.cwd().startswith(self.folder + os.sep)
        except psutil.Error:  # another user's, or gone
            return False

    def _carries(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(self.variable) == self.value
        except psutil.Error:  # another user's, or gone
            return False


def marked(mark: Mark) -> list[int]:
    """Pids of the processes that carry the mark, ours excepted."""
    return [
        process.pid
        for process in psutil.process_iter()
        if process.pid != os.getpid() and mark.on(process)
    ]


def descendants(pid: int) -> list[int]:
    """Pids of its children and theirs: also those that carry no mark any more."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def kill_all(pids: Sequence[int], mark: Mark, clock: Clock) -> list[int]:
    """SIGKILL these and all marked ones, and what they start meanwhile, until none is left.

    Returns the marked pids that are still there after 5 s.
    """
    deadline = clock.monotonic() + GONE_S
    left = [*pids, *marked(mark)]
    while left and clock.monotonic() <= deadline:
        for pid in left:
            signal_to(pid, signal.SIGKILL)
        clock.sleep(0.05)
        left = marked(mark)
    return left


def signal_to(pid: int, number: signal.Signals) -> None:
    """Send a signal; gone already: no error."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
