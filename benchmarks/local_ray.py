"""A local Ray of our own for one measurement: a platform in a folder that takes all with it."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil

from ml_pipelines.backends.local.record import HeadRecord, records
from ml_pipelines.job.events import JobEnded
from ml_pipelines.job.phase import Phase
from ml_pipelines.lifecycle import Platform, follow, open_platform, submit
from ml_pipelines.settings import Settings, load
from ml_pipelines.spec.job import JobSpec

GONE_S = 30.0


@contextmanager
def local_ray() -> Iterator[Settings]:
    """Settings whose home is a new folder; after the block its head and operator are gone.

    The head is started by the first job and stays warm for 90 s after each.
    Raises RuntimeError where a process stays.
    """
    home = Path(tempfile.mkdtemp(prefix="mlb-", dir="/tmp"))
    settings = load({"MLP_HOME": str(home), "USER": "bench"}, home)
    try:
        yield settings
    finally:
        heads = records(settings.local_state / "heads")
        # The operator ends its heads and itself once its folder is gone; renamed, it is at once.
        gone = home.with_name(f"{home.name}.gone")
        home.rename(gone)
        _wait_until_gone(home, heads)
        shutil.rmtree(gone)
        shutil.rmtree(home, ignore_errors=True)  # made anew by an operator that had just begun


def head(settings: Settings) -> HeadRecord:
    """The one head there is now."""
    (record,) = records(settings.local_state / "heads")
    return record


def new_key() -> str:
    """A run key that nobody had."""
    return f"bench-{secrets.token_hex(5)}"


def python_job(code: str, **fields: object) -> JobSpec:
    """A job that runs this Python code as its driver."""
    entrypoint = ("python", "-c", code)
    return JobSpec.model_validate({"name": "bench", "entrypoint": entrypoint, **fields})


def finish(spec: JobSpec, platform: Platform, *, run_key: str = "") -> JobEnded:
    """Run a job to its end; one that fails is a RuntimeError with its last lines."""
    job = submit(spec, run_key=run_key or new_key(), labels={}, platform=platform)
    with closing(follow(job, platform=platform)) as events:
        *_, last = events
    if not isinstance(last, JobEnded) or last.phase is not Phase.SUCCEEDED:
        raise RuntimeError(f"the measured job did not succeed: {last}")
    return last


@contextmanager
def warm_platform() -> Iterator[Platform]:
    """A platform whose head is up and has run a job."""
    with local_ray() as settings, open_platform(settings) as platform:
        finish(python_job("print('warm')"), platform)
        yield platform


def _wait_until_gone(home: Path, heads: list[HeadRecord]) -> None:
    until = time.monotonic() + GONE_S
    while left := _processes(home, heads):
        if time.monotonic() > until:
            raise RuntimeError(f"processes stay behind: {left}")
        time.sleep(0.2)


def _processes(home: Path, heads: list[HeadRecord]) -> list[str]:
    """What still runs for that home: its operator, and whatever carries the mark of its heads."""
    marks = [record.mark() for record in heads]
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if str(home / "local") in words or any(mark.on(process) for mark in marks):
            found.append(f"{process.pid} {' '.join(words)[:80]}")
    return found
