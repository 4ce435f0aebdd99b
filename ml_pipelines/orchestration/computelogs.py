"""Copies of a step's output to the terminal, which a Ctrl-C there doesn't cut off."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dagster._core.storage.compute_log_manager import CapturedLogContext
from dagster._core.storage.local_compute_log_manager import LocalComputeLogManager
from dagster._serdes import ConfigurableClassData


class SteadyComputeLogs(LocalComputeLogManager):
    """Dagster's own, in its own place below DAGSTER_HOME.

    Dagster copies a step's output by processes that it starts for the step. A terminal sends its
    Ctrl-C to them as well: they would end with tracebacks, and what the step says while it stops
    its job would be lost. So they start with that signal blocked; Dagster ends them by SIGTERM,
    which they must not ignore: Dagster itself ignores it where it was started with Ctrl-C ignored,
    as shells start what is to run in the background.
    """

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config_value(
        cls,
        inst_data: ConfigurableClassData | None,
        config_value: Mapping[str, Any],  # noqa: ARG003 - there is none
    ) -> SteadyComputeLogs:
        folder = Path(os.environ["DAGSTER_HOME"], "storage")
        return cls(base_dir=str(folder), inst_data=inst_data)

    @contextmanager
    def capture_logs(self, log_key: Sequence[str]) -> Generator[CapturedLogContext, None, None]:
        with ExitStack() as stack:
            with interrupts_blocked(), termination_heard():
                captured = stack.enter_context(super().capture_logs(log_key))
            yield captured


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """SIGINT waits until the block is left; processes started within never get it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def termination_heard() -> Iterator[None]:
    """Processes started within don't ignore SIGTERM. Only the main thread can see to that."""
    ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    if not ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
