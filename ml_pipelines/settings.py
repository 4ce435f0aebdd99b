"""Every environment variable and file that we read, in one place."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Set by us in every driver and worker of a job; a workload reads them through `JobEnvironment`.
RUNS_VARIABLE = "MLP_RUNS"
LAKE_VARIABLE = "MLP_LAKE"
RUN_KEY_VARIABLE = "MLP_RUN_KEY"
ATTEMPT_VARIABLE = "MLP_ATTEMPT"
CLUSTER_VARIABLE = "MLP_CLUSTER_ID"
WORKERS_VARIABLE = "MLP_WORKERS"  # of the group that trains: the first with GPUs, else the first
GPUS_VARIABLE = "MLP_GPUS_PER_WORKER"
ALLOW_CPU_VARIABLE = "MLP_ALLOW_CPU"  # "1": a workload that asked for GPUs may go on without

CODE_LOCATION = "ml_pipelines"
CLAIM_TIME_S = 120.0
IDLE_HEAD_S = 90.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Where our files are. All paths absolute; `lake` and `runs` are URLs (`file://`, `s3://`…)."""

    home: Path
    lake: str
    runs: str
    pools: Path | None
    backend: str
    owner: str
    team: str
    kube_context: str = ""
    namespace: str = ""

    @property
    def local_state(self) -> Path:
        """The local backend's folder: its RayJob objects and heads."""
        return self.home / "local"


def load(environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Settings:
    """Read the environment.

    MLP_HOME   our folder; default: the nearest `.mlp` at or above the working folder,
               else ~/.ml_pipelines
    MLP_LAKE   the lake's URL; default: file://$MLP_HOME/lake
    MLP_RUNS   run storage's URL; default: file://$MLP_HOME/runs
    MLP_POOLS  the pools' YAML file; default: the one that ships with the package
    MLP_BACKEND  `local` (default) or `kuberay`
    MLP_KUBE_CONTEXT  the kubeconfig's context; default: its current one, or the pod's own account
    MLP_NAMESPACE  where jobs run; default: the context's namespace, or the pod's
    MLP_OWNER, MLP_TEAM  who jobs are labelled with; default: who runs this, empty
    """
    env = os.environ if environ is None else environ
    home = Path(env["MLP_HOME"]).expanduser() if env.get("MLP_HOME") else _find_home(cwd)
    home = home.absolute()
    pools = env.get("MLP_POOLS")
    return Settings(
        home=home,
        lake=(env.get(LAKE_VARIABLE) or f"file://{home}/lake").rstrip("/"),
        runs=(env.get(RUNS_VARIABLE) or f"file://{home}/runs").rstrip("/"),
        pools=Path(pools).expanduser().absolute() if pools else None,
        backend=env.get("MLP_BACKEND") or "local",
        owner=env.get("MLP_OWNER") or env.get("USER") or _login(),
        team=env.get("MLP_TEAM") or "",
        kube_context=env.get("MLP_KUBE_CONTEXT") or "",
        namespace=env.get("MLP_NAMESPACE") or "",
    )


def _find_home(cwd: Path | None) -> Path:
    start = (cwd or Path.cwd()).absolute()
    for folder in (start, *start.parents):
        if (folder / ".mlp").is_dir():
            return folder / ".mlp"
    return Path.home() / ".ml_pipelines"


def s3_endpoint(environ: Mapping[str, str] | None = None) -> str | None:
    """The S3 server's URL, where it isn't Amazon's: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL."""
    env = os.environ if environ is None else environ
    return env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or None


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user that no file names
        return "unknown"
