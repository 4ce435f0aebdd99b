"""From the words of `mlp job submit` to a job spec, or to what is wrong."""

from __future__ import annotations

import importlib.util
import re
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ml_pipelines.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ml_pipelines.settings import Settings
    from ml_pipelines.spec.job import JobSpec
    from ml_pipelines.storage import Store

_PYTHON = re.compile(r"^python(3(\.\d+)?)?$")
_DURATION = re.compile(r"^(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$")
_UNITS = (86_400, 3_600, 60, 1)
# Options of `python` that take a value of their own.
_VALUED = {"-W", "-X", "--check-hash-based-pycs"}

# Which option a field of the spec was written by: errors name what the user typed.
_OPTIONS = {
    "name": "--name",
    "code": "--folder",
    "entrypoint": "COMMAND",
    "experiment": "--experiment",
    "cluster.workers[0].pool": "--pool",
    "cluster.workers[0].cpu": "--cpu",
    "cluster.workers[0].memory": "--memory",
    "cluster.workers[0].gpus": "--gpus",
    "cluster.workers[0].min_workers": "--workers",
    "cluster.workers[0].max_workers": "--workers",
    "cluster.workers[0]": "--workers",
    "limits.run_s": "--limit-run",
}
# Fields that hold what was written by name.
_OPTIONS_OF_NAMES = {"env": "--env", "secrets": "--secret"}


@dataclass(frozen=True, slots=True)
class Request:
    """What was typed."""

    command: tuple[str, ...]
    name: str | None = None
    workers: int = 1
    pool: str = "cpu"
    cpu: str | None = None
    memory: str | None = None
    gpus: int | None = None
    env: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()
    experiment: str = ""
    limit_run: str | None = None
    owes_result: bool = False


def spec_of(request: Request, settings: Settings) -> JobSpec:
    """The job spec of a request, its code not yet packed. Raises InvalidInput."""
    from ml_pipelines.spec.job import JobSpec
    from ml_pipelines.spec.pools import check_against_pools, load_pools
    from ml_pipelines.spec.validate import parse

    pools = load_pools(settings.pools)
    group: dict[str, Any] = {
        "pool": request.pool,
        "min_workers": request.workers,
    }
    sizes = {"cpu": request.cpu, "memory": request.memory, "gpus": request.gpus}
    group |= {field: value for field, value in sizes.items() if value is not None}
    data: dict[str, Any] = {
        "name": job_name(request.command) if request.name is None else request.name,
        "entrypoint": request.command,
        "cluster": {"head": {"pool": pools.for_heads()}, "workers": (group,)},
        "env": environment(request.env),
        "secrets": references(request.secret),
        "limits": {} if request.limit_run is None else {"run_s": seconds(request.limit_run)},
        "owes_result": request.owes_result,
        "owner": settings.owner,
        "team": settings.team,
        "experiment": request.experiment,
    }
    with options_named():
        spec = parse(JobSpec, data)
        # Asked again when it is submitted; here, before a large folder is packed for nothing.
        check_against_pools(spec, pools)
    return spec


def left_out(exclude: Sequence[str], folder: Path, settings: Settings) -> tuple[str, ...]:
    """What does not travel: the user's patterns, and our own files where they lie inside."""
    home, packed = settings.home.resolve(), folder.resolve()
    if home != packed and home.is_relative_to(packed):
        return (*exclude, home.relative_to(packed).as_posix())
    return tuple(exclude)


def run_key_of(spec: JobSpec, nonce: str, settings: Settings) -> str:
    """The key of a new job: every submission is one of its own."""
    from ml_pipelines.spec.naming import run_key

    return run_key(spec.name, location=settings.owner, logical_run=nonce, step="", partition="")


def dry_run_of(
    spec: JobSpec, run_key: str, folder: Path, exclude: Sequence[str], settings: Settings
) -> dict[str, Any]:
    """The manifest of the first attempt, as it would be sent; nothing is created."""
    from ml_pipelines.lifecycle.platform import check_storage_urls
    from ml_pipelines.packing import pack
    from ml_pipelines.spec.manifest import Identity, rayjob
    from ml_pipelines.spec.pools import load_pools

    nowhere = cast("Store", _Nowhere(settings.runs))
    spec = spec.model_copy(update={"code": pack(folder, nowhere, exclude=exclude)})

    identity = Identity(run_key=run_key, attempt=1)
    pools = load_pools(settings.pools)
    check_storage_urls(settings, pools)
    with options_named():
        return rayjob(spec, pools, identity, runs=settings.runs, lake=settings.lake)


@dataclass(frozen=True, slots=True)
class _Nowhere:
    """Run storage that is never reached: it holds whatever is asked for."""

    url: str

    def exists(self, path: str) -> bool:
        return bool(path)

    def child_url(self, path: str) -> str:
        return f"{self.url}/{path}"


@contextmanager
def options_named() -> Iterator[None]:
    """Within: an InvalidInput about a field names the option that the user typed instead."""
    try:
        yield
    except InvalidInput as err:
        option = _OPTIONS.get(err.path) or _OPTIONS_OF_NAMES.get(err.path.partition(".")[0])
        if option is None:
            raise
        raise type(err)(option, err.value, err.problem, remedy=err.remedy) from err


def job_name(command: Sequence[str]) -> str:
    """A name for people: the script's or module's, else the program's."""
    script, module = target(command)
    if module:
        return module.rsplit(".", 1)[-1]
    return Path(script or (command[0] if command else "job")).stem or "job"


def environment(pairs: Sequence[str]) -> Mapping[str, str]:
    """`K=V` pairs as a mapping; the last of a name wins. Raises InvalidInput, which shows none."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidInput(
                "--env", "(not shown)", "has no value", remedy="Write `--env NAME=value`."
            )
        values[name] = value
    return values


def references(pairs: Sequence[str]) -> Mapping[str, str]:
    """`K=NAME/KEY` pairs as a mapping. Raises InvalidInput, which shows no value: it may be one."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, reference = pair.partition("=")
        if not equals:
            raise InvalidInput(
                "--secret", "(not shown)", "names no variable",
                remedy="Write `--secret NAME=secret-name/key`.",
            )  # fmt: skip
        values[name] = reference
    return values


def seconds(text: str) -> int:
    """Seconds of `90s`, `15m`, `2h`, `1d`, `1h30m`. Raises InvalidInput."""
    match = _DURATION.match(text)
    if not text or match is None:
        raise InvalidInput(
            "--limit-run", text, "is no duration",
            remedy="Write for example `90s`, `15m`, `2h`, `1d` or `1h30m`.",
        )  # fmt: skip
    parts = (int(part or 0) for part in match.groups())
    return sum(part * unit for part, unit in zip(parts, _UNITS, strict=True))


def target(command: Sequence[str]) -> tuple[str, str]:
    """The script and the module that a command runs; one or both are empty."""
    if not command:
        return "", ""
    if not _is_python(command[0]):
        return (command[0], "") if "/" in command[0] else ("", "")
    words = iter(command[1:])
    for word in words:
        if word == "-m":
            return "", next(words, "")
        if word == "-c":
            return "", ""
        if word in _VALUED:
            next(words, "")
        elif word == "-" or not word.startswith("-"):
            return word, ""
    return "", ""


def check_command(command: Sequence[str], folder: Path) -> None:
    """Refuse a command whose program, script or module isn't there. Raises InvalidInput."""
    script, module = target(command)
    program = command[0]
    if module:
        _check_module(module, folder)
    elif script:
        _check_script(script, folder, travels=_is_python(program))
    elif "/" not in program and not _is_python(program) and shutil.which(program) is None:
        raise InvalidInput(
            "COMMAND", program, "is no program on PATH",
            remedy="Write `./NAME` for one in the folder, or `python SCRIPT`.",
        )  # fmt: skip


def _is_python(program: str) -> bool:
    return _PYTHON.match(Path(program).name) is not None


def _check_script(script: str, folder: Path, *, travels: bool) -> None:
    """Scripts travel with the folder; a program (`travels` false) may be the machine's own."""
    path, home = (folder / script).resolve(), folder.resolve()
    inside = path.is_relative_to(home)
    if Path(script).is_absolute():
        if path.is_file() and not travels and not inside:
            return
        remedy = (
            f"Write `{path.relative_to(home)}`."
            if inside
            else f"Say `--folder {path.parent}` and write `{path.name}`."
        )
        raise InvalidInput(
            "COMMAND", script, "is absolute: the folder travels, this path does not", remedy=remedy
        )
    if inside and path.is_file():
        return
    head, *rest = Path(script).parts
    if rest and head == home.name and home.joinpath(*rest).is_file():
        remedy = f"The command runs inside {home.name}: write `{Path(*rest)}`."
    else:
        remedy = "Paths are relative to that folder; choose another with `--folder`."
    raise InvalidInput("COMMAND", script, f"is no file in {home}", remedy=remedy)


def _check_module(module: str, folder: Path) -> None:
    top, *rest = module.split(".")
    if (folder / top).is_dir() or (folder / f"{top}.py").is_file():
        place = folder.joinpath(top, *rest)
        if place.with_suffix(".py").is_file() or place.is_dir():
            return
        problem = f"is no module in {folder.resolve()}"
    elif top.isidentifier() and importlib.util.find_spec(top) is not None:
        return
    else:
        problem = f"is neither a module in {folder.resolve()} nor an installed one"
    raise InvalidInput(
        "COMMAND", module, problem, remedy="Check its spelling, or choose `--folder`."
    )
