"""`mlp doctor`: what is wrong with this machine, and how to mend it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ml_pipelines.cli import health
from ml_pipelines.cli.health import Finding, Level
from ml_pipelines.errors import InvalidInput, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ml_pipelines.cli.session import Session
    from ml_pipelines.settings import Settings

_COLORS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;#]+)")
_RAY_TEMP = Path("/tmp")  # noqa: S108 - where the local backend makes Ray's folders, to be short
_OPERATOR = "ml_pipelines.backends.local.operator"


@click.command()
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """Check this machine, and say what to mend. Exit code 1 if a job could not run."""
    session: Session = ctx.obj
    worst = Level.OK
    for finding in examine(session.settings, os.environ):
        level = click.style(f"{finding.level:<4}", fg=_COLORS[finding.level])
        click.echo(f"{level}  {finding.what:<12} {finding.sentence}")
        if finding.remedy:
            click.echo(f"      {'':<12} → {finding.remedy}")
        worst = max(worst, finding.level, key=list(Level).index)
    ctx.exit(1 if worst is Level.FAIL else 0)


def examine(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """All findings about this machine, the cheapest first."""
    import psutil

    yield health.of_python(sys.version_info[:3])
    yield _packages()
    if settings.backend == "local":
        yield health.of_cores(_cores())
        yield health.of_memory(_available_memory(psutil.virtual_memory().available))
        yield _disk("disk", settings.home)
        yield _disk("ray's disk", _RAY_TEMP)
        yield _writable("ray's temp", _RAY_TEMP)
        yield health.of_temp_folder(tempfile.gettempdir())
        yield health.of_shared_memory(_shared_memory())
        yield health.of_ports(_open_ports(health.PORTS_A_HEAD))
    yield _writable("MLP_HOME", settings.home)
    if settings.backend == "local":
        yield from _storage(settings)
        yield health.of_strays(*_local_rays())
    else:
        yield from _platform(settings)
    yield _dagster_home(environ.get("DAGSTER_HOME"))


def _storage(settings: Settings) -> Iterator[Finding]:
    yield _reach("lake", settings.lake)
    yield _reach("run storage", settings.runs)


def _platform(settings: Settings) -> Iterator[Finding]:
    """The platform file, storage as the pods see it, and the cluster."""
    from ml_pipelines.cli import kube_doctor, kube_health
    from ml_pipelines.spec.pools import load_pools

    try:
        pools = load_pools(settings.pools)
    except InvalidInput as err:
        yield Finding(Level.FAIL, "pools", err.message, err.remedy)
        return
    unseen = kube_doctor.storage_seen_by_pods(settings, pools)
    if unseen:
        yield unseen
    else:
        yield from _storage(settings)
        writer = kube_health.of_writer(os.getuid(), pools, [settings.runs, settings.lake])
        if writer:
            yield writer
    yield from kube_doctor.examine(settings, pools)


def _packages() -> Finding:
    """What is installed against constraints.txt, or against our own requirements outside a clone."""
    from importlib import metadata

    installed = {
        _canonical(dist.metadata["Name"]): dist.version for dist in metadata.distributions()
    }
    constraints = Path(__file__).parents[2] / "constraints.txt"
    if not constraints.is_file():
        return Finding(Level.OK, "packages", "not checked: constraints.txt is not here")
    pins = (_PIN.match(line) for line in constraints.read_text().splitlines())
    return health.of_packages(
        installed, {_canonical(pin[1]): pin[2] for pin in pins if pin is not None}
    )


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _cores() -> float:
    """CPUs that we may use: the affinity's, or a container's quota where that is less."""
    count = float(len(os.sched_getaffinity(0)))
    quota, _, period = _cgroup("cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        count = min(count, int(quota) / int(period))
    return count


def _available_memory(machine: int) -> int:
    """What the machine has left, or a container's limit leaves where that is less."""
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit.isdigit() and used.isdigit():
        return min(machine, int(limit) - int(used))
    return machine


def _cgroup(name: str) -> str:
    path = Path("/sys/fs/cgroup") / name
    return path.read_text().strip() if path.is_file() else ""


def _disk(what: str, folder: Path) -> Finding:
    usage = shutil.disk_usage(_existing(folder))
    return health.of_disk(what, usage.free, usage.total, str(folder))


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _shared_memory() -> int | None:
    folder = Path("/dev/shm")  # noqa: S108 - looked at, not written to
    return shutil.disk_usage(folder).free if folder.is_dir() else None


def _open_ports(wanted: int) -> int:
    with ExitStack() as stack:
        for opened in range(wanted):
            try:
                listener = stack.enter_context(socket.socket())
                listener.bind(("127.0.0.1", 0))
                listener.listen(1)
            except OSError:
                return opened
    return wanted


def _writable(what: str, folder: Path) -> Finding:
    existing = _existing(folder)
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as err:
        return Finding(
            Level.FAIL,
            what,
            f"{existing} can't be written to: {err.strerror}",
            "Give it to this user, or point MLP_HOME elsewhere.",
        )
    made = "" if existing == folder else " (will be made)"
    return Finding(Level.OK, what, f"{folder}{made}")


def _reach(what: str, url: str) -> Finding:
    from ml_pipelines.storage import open_store

    try:
        open_store(url).check()
    except (StorageError, InvalidInput) as err:
        return Finding(Level.FAIL, what, err.message, err.remedy)
    return Finding(Level.OK, what, url)


def _local_rays() -> tuple[dict[str, list[int]], list[int]]:
    """Processes that carry our marker, by cluster, and the operators that look after them."""
    import psutil

    from ml_pipelines.settings import CLUSTER_VARIABLE

    heads: dict[str, list[int]] = {}
    operators = []
    for process in psutil.process_iter():
        try:
            if _OPERATOR in process.cmdline():
                operators.append(process.pid)
            elif cluster := process.environ().get(CLUSTER_VARIABLE):
                heads.setdefault(cluster, []).append(process.pid)
        except (psutil.Error, OSError):
            continue  # another user's, or gone meanwhile
    return heads, operators


def _dagster_home(value: str | None) -> Finding:
    folder = Path(value or "/nonexistent")
    return health.of_dagster_home(
        value, exists=folder.is_dir(), has_config=(folder / "dagster.yaml").is_file()
    )
