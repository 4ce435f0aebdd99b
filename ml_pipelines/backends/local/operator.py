"""The operator of the local backend: a detached process that ends by itself.

There is one for each state folder (a file lock sees to it), started by whoever finds none. It may
be killed at any time: what it knows is in files, and the next one goes on. It ends when there is
neither a RayJob to run nor a head.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ml_pipelines.backends.local.head import RayHeads
from ml_pipelines.backends.local.machine import this_machine
from ml_pipelines.backends.local.objects import Objects
from ml_pipelines.backends.local.reconciler import Reconciler
from ml_pipelines.clock import SystemClock
from ml_pipelines.errors import BackendError, MlPipelinesError
from ml_pipelines.settings import IDLE_HEAD_S

if TYPE_CHECKING:
    from ml_pipelines.clock import Clock

LOCK_NAME = "operator.lock"
POLL_S = 0.1

log = logging.getLogger("operator")


def serve(state: Path, clock: Clock, *, idle_head_s: float) -> None:
    """Be the operator of that folder until there is nothing left to do, unless there is one."""
    objects = Objects(state)
    objects.prepare()
    lock = _take_lock(state / LOCK_NAME, clock)
    if lock is None:
        return
    reconciler = Reconciler(
        objects, RayHeads(state / "heads", clock), clock,
        machine=this_machine(), idle_head_s=idle_head_s,
    )  # fmt: skip
    log.info("operator %s begins", os.getpid())
    reconciler.adopt()
    trouble = ""
    while state.exists():
        try:
            busy = reconciler.step()
            trouble = ""
        except (BackendError, OSError) as err:
            if str(err) != trouble:  # not ten times a second
                log.exception("a pass failed")
            busy, trouble = True, str(err)
        if not busy and _gave_up_lock(objects, reconciler, lock):
            log.info("operator %s ends", os.getpid())
            return
        clock.sleep(POLL_S)
    reconciler.abandon()


def _take_lock(path: Path, clock: Clock) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(20):  # a backend that looks whether we live holds it for a moment
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            clock.sleep(0.05)
        else:
            return descriptor
    os.close(descriptor)
    return None


def _gave_up_lock(objects: Objects, reconciler: Reconciler, lock: int) -> bool:
    """Let go of the lock while nobody can create: whoever creates afterwards finds no operator."""
    with objects.locked():
        if reconciler.wanted():
            return False
        os.close(lock)
        return True


def main() -> None:
    """The command line: `python -m ml_pipelines.backends.local.operator STATE [--idle-head-s N]`."""
    parser = argparse.ArgumentParser(description="The operator of a local state folder.")
    parser.add_argument("state", type=Path)
    parser.add_argument("--idle-head-s", type=float, default=IDLE_HEAD_S)
    options = parser.parse_args()
    os.umask(0o077)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        serve(options.state, SystemClock(), idle_head_s=options.idle_head_s)
    except MlPipelinesError:
        log.exception("the operator failed")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
