"""What this machine has, and who it is since its last boot."""

from __future__ import annotations

import math
import os
import platform
import re
from functools import cache
from pathlib import Path

from ml_pipelines.backends.local.sizing import Machine


def this_machine() -> Machine:
    """CPUs and memory that this process may use (affinity and control group), and GPUs."""
    import psutil

    memory = psutil.virtual_memory().total
    limit = _read("/sys/fs/cgroup/memory.max")
    if limit.isdigit():
        memory = min(memory, int(limit))
    return Machine(cpus=_cpus(), memory=memory, gpus=_gpus())


def hostname() -> str:
    """This machine's name."""
    return platform.node() or "localhost"


@cache
def boot_id() -> str:
    """Differs after each boot; where the system has none, the time of boot."""
    found = _read("/proc/sys/kernel/random/boot_id")
    if found:
        return found
    import psutil

    return str(int(psutil.boot_time()))


def _cpus() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        cpus = min(cpus, math.ceil(int(quota[0]) / int(quota[1])))
    return max(cpus, 1)


def _gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = sum(1 for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
    if visible is None or not there:
        return there
    return min(there, len([item for item in visible.split(",") if item.strip() not in {"", "-1"}]))


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
