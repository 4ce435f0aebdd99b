"""Finding and ending processes: one by its pid and birth, a cluster's by its marker."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
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


def marked(variable: str, value: str) -> list[int]:
    """Pids of our processes that carry `variable=value` in their environment.

    Ray's drivers run in sessions of their own and outlive their head; the environment is what they
    all inherit.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(variable) == value and process.pid != os.getpid():
                found.append(process.pid)
        except psutil.Error:  # another user's, or gone
            continue
    return found


def descendants(pid: int) -> list[int]:
    """Pids of its children and theirs: also those that cleared their environment."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def kill_all(pids: list[int], variable: str, value: str, clock: Clock) -> list[int]:
    """SIGKILL these and all marked ones, and what they start meanwhile, until none is left.

    Returns the marked pids that are still there after 5 s.
    """
    deadline = clock.monotonic() + GONE_S
    left = [*pids, *marked(variable, value)]
    while left and clock.monotonic() <= deadline:
        for pid in left:
            signal_to(pid, signal.SIGKILL)
        clock.sleep(0.05)
        left = marked(variable, value)
    return left


def signal_to(pid: int, number: signal.Signals) -> None:
    """Send a signal; gone already: no error."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
