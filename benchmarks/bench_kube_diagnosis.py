"""Jobs that can't start on a real cluster: after how many seconds each says why, and whose fault."""

from __future__ import annotations

import time
from contextlib import closing

from benchmarks.kube import Bench, bench, cluster_here, not_run
from benchmarks.row import Row
from ml_pipelines.backends.kubeapi import connect
from ml_pipelines.backends.kuberay import KubeRayBackend
from ml_pipelines.clock import SystemClock
from ml_pipelines.job.diagnosis import why_pending
from ml_pipelines.job.symptom import Diagnosis
from ml_pipelines_tests.test_kuberay_pending import CAUSES, made_for

GOAL_S = 30.0
PATIENCE_S = 60.0
TICK_S = 0.15  # as often as the loop looks


def run() -> list[Row]:
    """A row for each cause; all jobs wait at once."""
    cluster = cluster_here()
    if cluster is None:
        return not_run([(_what(name), _goal(name)) for name in CAUSES])
    with bench(cluster, "waits") as here:
        told = _told(here)
    return [_row(name, told) for name in CAUSES]


def _told(here: Bench) -> dict[str, tuple[Diagnosis, float]]:
    """What is said of each cause, once it is the right thing, and after how long."""
    clock, pools = SystemClock(), here.namespace.pools
    told: dict[str, tuple[Diagnosis, float]] = {}
    with (
        closing(connect(namespace=here.namespace.name, clock=clock)) as api,
        closing(KubeRayBackend(api, clock, scope="namespace")) as backend,
    ):
        waiting: dict[str, tuple[str, float]] = {}
        for name, cause in CAUSES.items():
            began = time.monotonic()
            waiting[name] = (backend.create(made_for(name, cause, pools)).name, began)
        until = time.monotonic() + PATIENCE_S
        while len(told) < len(CAUSES) and time.monotonic() < until:
            for name, (job, began) in waiting.items():
                if name not in told:
                    diagnosis = why_pending(backend.observe(job))
                    if _right(name, diagnosis):
                        told[name] = (diagnosis, time.monotonic() - began)
            time.sleep(TICK_S)
        for job, _ in waiting.values():
            backend.delete(job)
    return told


def _row(name: str, told: dict[str, tuple[Diagnosis, float]]) -> Row:
    if name not in told:
        why = f"not told within {PATIENCE_S:.0f} s"
        return Row(_what(name), None, goal=_goal(name), ok=False, detail=why)
    diagnosis, seconds = told[name]
    said = f"{diagnosis.cls}: {diagnosis.sentence}"
    return Row(_what(name), round(seconds, 1), "s", _goal(name), seconds <= GOAL_S, said)


def _right(name: str, diagnosis: Diagnosis) -> bool:
    """Its words, its class, and whether it can ever heal."""
    cause = CAUSES[name]
    right = (diagnosis.cls, diagnosis.hopeless) == (cause.cls, cause.hopeless)
    return right and cause.words in diagnosis.sentence


def _what(name: str) -> str:
    return f"pending job explained: {name}"


def _goal(name: str) -> str:
    return f"<= {GOAL_S:g} s, {CAUSES[name].cls}"
