"""The background process that follows a detached job."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from ml_pipelines.cli.console import Console, say
from ml_pipelines.cli.interrupt import interruptible
from ml_pipelines.cli.session import Session
from ml_pipelines.errors import (
    BackendUnavailable,
    MlPipelinesError,
    StorageUnavailable,
    Superseded,
)
from ml_pipelines.job.events import LogLine, MetricPoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ml_pipelines.settings import Settings

RETRY_S = 5.0
TRIES = 120


def spawn(run_key: str, settings: Settings) -> str:
    """Start the loop of a job in a session of its own; returns the path of its log."""
    folder = settings.home / "loops"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run_key}.log"
    environ = dict(os.environ) | {
        "MLP_HOME": str(settings.home),
        "MLP_LAKE": settings.lake,
        "MLP_RUNS": settings.runs,
        "MLP_BACKEND": settings.backend,
        "MLP_OWNER": settings.owner,
        "MLP_TEAM": settings.team,
        "PYTHONUNBUFFERED": "1",
    }
    if settings.pools is not None:
        environ["MLP_POOLS"] = str(settings.pools)
    if settings.backend == "kuberay":
        environ |= _pinned(settings, environ)
    with path.open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "ml_pipelines.cli.loop", run_key],
            cwd=folder,  # away from the user's files, whose names may hide modules
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return str(path)


def _pinned(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The cluster and namespace of now: the kubeconfig may point elsewhere before the job ends."""
    from ml_pipelines.backends.kubeapi.login import find

    login = find(settings.kube_context, settings.namespace, environ)
    found = {"MLP_KUBE_CONTEXT": login.context, "MLP_NAMESPACE": login.namespace}
    if files := environ.get("KUBECONFIG"):
        found["KUBECONFIG"] = os.pathsep.join(map(os.path.abspath, files.split(os.pathsep)))
    return found


def run(run_key: str, session: Session) -> None:
    """Follow a job to its end, or until another process takes it over."""
    console = Console(session.clock)
    with session.lifecycle.open_platform(session.settings) as platform:
        job = session.lifecycle.attach(run_key, platform=platform, takeover=False)
        with closing(session.lifecycle.follow(job, platform=platform)) as events:
            for event in events:
                # Lines and metrics are kept in run storage; this log tells of the job's life.
                if not isinstance(event, (LogLine, MetricPoint)):
                    console.show(event)


def _patiently(run_key: str, session: Session) -> None:
    """`run`, again and again while storage or the backend is away, TRIES times in a row."""
    left = TRIES
    while True:
        began = session.clock.monotonic()
        try:
            return run(run_key, session)
        except (StorageUnavailable, BackendUnavailable) as err:
            went_well = session.clock.monotonic() - began > TRIES * RETRY_S
            left = TRIES if went_well else left - 1
            if not left:
                raise
            say(f"trying again in {RETRY_S:.0f} s: {err}")
            session.clock.sleep(RETRY_S)


def main(run_key: str, session: Session) -> int:
    """The process: 0 also when another took over or it was told to stop; the job goes on."""
    try:
        with interruptible():
            _patiently(run_key, session)
    except Superseded:
        say("another process follows this job now")
    except KeyboardInterrupt:
        say("told to stop; the job goes on, `mlp job attach` follows it")
    except MlPipelinesError as err:
        say(f"{type(err).__name__}: {err}")
        return err.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Session()))
