"""Ctrl-C, SIGTERM and a closed terminal, as one exception, raised once."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within: the first of the signals raises KeyboardInterrupt, later ones are dropped.

    So whoever was interrupted puts things in order undisturbed, before the block ends. The main
    thread's alone.
    """
    dropped = False

    def once(_number: int, _frame: FrameType | None) -> None:
        nonlocal dropped
        if not dropped:
            dropped = True
            raise KeyboardInterrupt

    # Handlers, not SIG_IGN: what is ignored stays ignored in every process started from here.
    before = {number: signal.signal(number, once) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
