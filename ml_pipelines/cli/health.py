"""What `mlp doctor` makes of what it saw: OK, WARN, FAIL, what to do; pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GiB = 2**30
# Sockets lie up to 60 characters below the temp folder, and a socket's path has at most 107.
LONGEST_TEMP = 45
# Ray stops spilling objects, and then jobs, on a disk that is fuller than this.
FULLEST_DISK = 0.95
PORTS_A_HEAD = 10


class Level(StrEnum):
    """How bad it is: FAIL keeps jobs from running, WARN may."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's. `remedy` says what to do, and is empty where all is well."""

    level: Level
    what: str
    sentence: str
    remedy: str = ""


def of_python(version: tuple[int, ...]) -> Finding:
    """The interpreter's version, major first."""
    text = ".".join(str(part) for part in version[:3])
    if version[:2] == (3, 11):
        return Finding(Level.OK, "python", text)
    return Finding(
        Level.FAIL, "python", f"{text}, but 3.11 is needed", "Make .venv with it: make setup"
    )


def of_packages(installed: Mapping[str, str], pinned: Mapping[str, str]) -> Finding:
    """Versions by package name; local parts such as `+cpu` don't count."""
    missing = [name for name in pinned if name not in installed]
    if missing:
        return Finding(
            Level.FAIL, "packages", f"missing: {_some(missing)}", "Install them: make setup"
        )
    other = [
        f"{name} {installed[name]} instead of {version}"
        for name, version in pinned.items()
        if installed[name].partition("+")[0] != version
    ]
    if other:
        return Finding(
            Level.WARN,
            "packages",
            f"not the versions known to work together: {_some(other)}",
            "Install those: make setup",
        )
    return Finding(Level.OK, "packages", f"{len(pinned)} as pinned")


def of_cores(cores: float) -> Finding:
    """CPUs that this process may use."""
    if cores < 2:
        return Finding(
            Level.WARN, "cores", f"{cores:g}", "Ray starts slowly on fewer than 2: give it more."
        )
    return Finding(Level.OK, "cores", f"{cores:g}")


def of_memory(available: int) -> Finding:
    """Bytes of memory that may be used now."""
    text = f"{available / GiB:.1f} GiB available"
    if available < 1.5 * GiB:
        remedy = "A local Ray with one worker needs about 1.5 GiB: end something else."
        return Finding(Level.FAIL, "memory", text, remedy)
    if available < 4 * GiB:
        remedy = "`make run` needs about 4 GiB: end something else, or ask for fewer workers."
        return Finding(Level.WARN, "memory", text, remedy)
    return Finding(Level.OK, "memory", text)


def of_disk(what: str, free: int, total: int, folder: str) -> Finding:
    """Bytes of the disk that `folder` lies on."""
    text = f"{free / GiB:.1f} GiB free at {folder}"
    if free < GiB:
        return Finding(Level.FAIL, what, text, "Make room: 1 GiB is the least.")
    if free < (1 - FULLEST_DISK) * total:
        remedy = f"Ray refuses work on a disk more than {FULLEST_DISK:.0%} full: make room."
        return Finding(Level.WARN, what, f"{text}, {1 - free / total:.0%} full", remedy)
    return Finding(Level.OK, what, text)


def of_shared_memory(free: int | None) -> Finding:
    """Bytes free in /dev/shm; None where there is none."""
    if free is None:
        return Finding(Level.OK, "shm", "none here; Ray uses files")
    text = f"{free / GiB:.1f} GiB free in /dev/shm"
    if free < GiB // 2:
        remedy = "Ray's objects go to disk and are slow; in a container: --shm-size=2g"
        return Finding(Level.WARN, "shm", text, remedy)
    return Finding(Level.OK, "shm", text)


def of_ports(free: int) -> Finding:
    """How many loopback ports could be opened, of PORTS_A_HEAD."""
    if free < PORTS_A_HEAD:
        return Finding(
            Level.FAIL,
            "ports",
            f"only {free} of {PORTS_A_HEAD} ports could be opened on 127.0.0.1",
            "Allow listening on loopback, or end what holds the ports.",
        )
    return Finding(Level.OK, "ports", "loopback ports can be opened")


def of_temp_folder(path: str) -> Finding:
    """The folder for temporary files, where Dagster's and others' sockets lie."""
    if len(path) > LONGEST_TEMP:
        return Finding(
            Level.FAIL,
            "temp",
            f"{path} is {len(path)} characters long; sockets below it need at most {LONGEST_TEMP}",
            "Set TMPDIR to a short folder, such as /tmp.",
        )
    return Finding(Level.OK, "temp", path)


def of_dagster_home(value: str | None, *, exists: bool, has_config: bool) -> Finding:
    """The environment variable DAGSTER_HOME."""
    if not value:
        return Finding(Level.OK, "dagster", "DAGSTER_HOME is not set; make run and dev set it")
    if not exists:
        return Finding(
            Level.FAIL,
            "dagster",
            f"DAGSTER_HOME {value} does not exist, and Dagster refuses to start",
            f"Make it: mkdir -p {value}",
        )
    if not has_config:
        return Finding(
            Level.WARN,
            "dagster",
            f"{value} holds no dagster.yaml: dead runs would be neither noticed nor retried",
            f"Copy ours: cp dagster.yaml {value}/",
        )
    return Finding(Level.OK, "dagster", value)


def of_strays(heads: Mapping[str, Sequence[int]], operators: Sequence[int]) -> Finding:
    """Processes of local Rays, by cluster, and the processes that look after them."""
    if not heads:
        return Finding(Level.OK, "local ray", "none is running")
    pids = sorted(pid for members in heads.values() for pid in members)
    text = f"{len(heads)} running, {len(pids)} processes"
    if operators:
        return Finding(Level.OK, "local ray", f"{text}, looked after by {_pids(operators)}")
    return Finding(
        Level.WARN,
        "local ray",
        f"{text}, and nothing looks after them",
        "The next mlp job command does; or end them: kill " + _pids(pids),
    )


def _pids(pids: Sequence[int]) -> str:
    return " ".join(str(pid) for pid in pids)


def _some(items: Sequence[str]) -> str:
    more = f" and {len(items) - 5} more" if len(items) > 5 else ""
    return ", ".join(items[:5]) + more
