"""What creating a RayJob takes, against `kubectl create` of the same manifest."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.kube import Bench, bench, cluster_here, not_run
from benchmarks.local_ray import new_key
from benchmarks.row import Row
from benchmarks.simulated_operator import LeftAlone, left_alone
from benchmarks.small import small_job
from ml_pipelines.backends import rayjob
from ml_pipelines.backends.kubeapi import connect
from ml_pipelines.clock import SystemClock
from ml_pipelines.lifecycle import open_platform, submit
from ml_pipelines.lifecycle.submit import manifest_of
from ml_pipelines.spec import manifest as spec_manifest

PAIRS = 9
GOAL_S = 0.3
WHAT = "create call over kubectl create of the same manifest"
GOAL = f"<= +{GOAL_S:g} s"


def run() -> list[Row]:
    """One row: the median over pairs of (ours - kubectl's). The operator leaves these jobs alone."""
    cluster = cluster_here()
    if cluster is None:
        return not_run([(WHAT, GOAL)])
    with bench(cluster, "create") as here:
        return [_create(here)]


def _create(here: Bench) -> Row:
    _ours(here), _kubectl(here)  # the first reads from disk
    ours, theirs, whole = [], [], []
    for pair in range(PAIRS):
        if pair % 2:
            theirs.append(_kubectl(here))
            ours.append(_ours(here))
        else:
            ours.append(_ours(here))
            theirs.append(_kubectl(here))
        whole.append(_submitted(here))
    over = statistics.median(mine - its for mine, its in zip(ours, theirs, strict=True))
    return Row(
        WHAT,
        round(over, 3),
        "s",
        GOAL,
        over <= GOAL_S,
        f"{PAIRS} pairs; medians: ours {statistics.median(ours):.3f} s (kubeconfig read, connected, "
        f"created), kubectl {statistics.median(theirs):.3f} s; with the dry run and the journal "
        f"before it {statistics.median(whole):.3f} s",
    )


def _manifest(here: Bench) -> dict[str, Any]:
    identity = spec_manifest.Identity(run_key=new_key(), attempt=1)
    made = spec_manifest.rayjob(
        small_job("print('one')"),
        here.namespace.pools,
        identity,
        runs=here.settings.runs,
        lake=here.settings.lake,
    )
    return left_alone(made)


def _ours(here: Bench) -> float:
    made = _manifest(here)
    clock = SystemClock()
    began = time.perf_counter()
    api = connect(namespace=here.namespace.name, clock=clock)
    with closing(api), closing(LeftAlone(api, clock)) as backend:
        backend.create(made)
        took = time.perf_counter() - began
        backend.delete(rayjob.name(made))
    return took


def _kubectl(here: Bench) -> float:
    made = _manifest(here)
    path = Path(here.folder) / "manifest.json"
    path.write_text(json.dumps(made), encoding="utf-8")
    command = ["kubectl", "-n", here.namespace.name, "create", "--validate=strict", "-f", str(path)]
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    took = time.perf_counter() - began
    here.namespace.kubectl("delete", "rayjob", rayjob.name(made), "--wait=false")
    return took


def _submitted(here: Bench) -> float:
    """From a job spec: recorded, checked by the server, created."""
    clock = SystemClock()
    with (
        closing(connect(namespace=here.namespace.name, clock=clock)) as api,
        closing(LeftAlone(api, clock)) as backend,
        open_platform(here.settings, backend=backend) as platform,
    ):
        began = time.perf_counter()
        job = submit(small_job("print('one')"), run_key=new_key(), labels={}, platform=platform)
        made = backend.create(manifest_of(job, 1, platform))
        took = time.perf_counter() - began
        backend.delete(made.name, made.uid)
    return took
