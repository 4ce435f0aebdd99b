"""A job cancelled in each phase: how long until nothing of it is left on the cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.kube import Bench, bench, cluster_here, not_run
from benchmarks.local_ray import new_key
from benchmarks.row import Row
from benchmarks.small import HEAD, POOL, WORKER, small_job
from ml_pipelines.errors import MlPipelinesError
from ml_pipelines.job.events import Event, LogLine, PhaseChanged
from ml_pipelines.job.phase import Phase
from ml_pipelines.lifecycle import cancel, follow, submit
from ml_pipelines.spec.job import JobSpec
from ml_pipelines_tests.kueue_queues import make_queue

GOAL_S = 30.0
REACH_S = 150.0
GONE_S = 90.0
KINDS = ("rayjobs", "rayclusters", "pods", "services", "secrets", "workloads.kueue.x-k8s.io")
# At its end it says so, and takes a moment to end: that is when its end is waited for.
DRIVER = "import time; print('here', flush=True); time.sleep({seconds}); print('bye', flush=True)"


@dataclass(frozen=True, slots=True)
class Case:
    """Which job, and which event means that it is there where it shall be cancelled."""

    what: str
    reached: Callable[[Event], bool]
    seconds: int = 600
    pool: str = POOL


def _phase(phase: Phase, word: str = "") -> Callable[[Event], bool]:
    return lambda event: (
        isinstance(event, PhaseChanged) and event.phase is phase and word in event.sentence
    )


def _said(text: str) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, LogLine) and event.text == text


CASES = (
    Case("queued by Kueue", _phase(Phase.QUEUED), pool="queued"),
    Case("provisioning, just created", _phase(Phase.PROVISIONING)),
    Case("waiting for a machine", _phase(Phase.PROVISIONING, "no machine"), pool="nowhere"),
    Case("machines ready, driver not started", _phase(Phase.PENDING)),
    Case("running", _phase(Phase.RUNNING)),
    Case("finishing", _said("bye"), seconds=3),
)
GOAL = f"<= {GOAL_S:g} s"


def run() -> list[Row]:
    """A row a phase. Three cost nothing and wait at once; the others are real and take turns."""
    cluster = cluster_here()
    if cluster is None:
        return not_run([(_what(case), GOAL) for case in CASES])
    if cluster.get("crd", "workloads.kueue.x-k8s.io") is None and not cluster.tool:
        return [*not_run([(_what(CASES[0]), GOAL)], "not run: no Kueue here"), *_rows(cluster, 1)]
    return _rows(cluster, 0)


def _rows(cluster: Any, first: int) -> list[Row]:
    with bench(cluster, "cancel") as here:
        here.add_pool("nowhere", node_selector={"no-such-label": "x"})
        if first:
            return _all(here, CASES[first:])
        with make_queue(here.namespace, here.folder) as queue:
            queue.stop("Hold")
            _add_queued_pool(here, queue.platform_file)
            return _all(here, CASES)


def _add_queued_pool(here: Bench, platform_file: Path) -> None:
    """A pool as the tests' platform file has one in the queue."""
    pools = yaml.safe_load(platform_file.read_text(encoding="utf-8"))["pools"]
    queue = next(pool["queue"] for pool in pools.values() if pool.get("queue"))
    here.add_pool("queued", queue=queue)


def _all(here: Bench, cases: tuple[Case, ...]) -> list[Row]:
    waiting = [case for case in cases if case.pool != POOL]
    with ThreadPoolExecutor(len(waiting)) as pool:
        rows = dict(zip(waiting, pool.map(lambda case: _row(here, case), waiting), strict=True))
    rows |= {case: _row(here, case) for case in cases if case not in rows}
    return [rows[case] for case in cases]


def _row(here: Bench, case: Case) -> Row:
    seconds, at = _cancelled(here, _job(case), case)
    left = f"{', '.join(KINDS[:-1])} and Workloads; cancelled at: {at}"
    if seconds is None:
        return Row(_what(case), None, goal=GOAL, ok=False, detail=f"still there: {left}")
    return Row(_what(case), round(seconds, 1), "s", GOAL, seconds <= GOAL_S, f"no {left}")


def _what(case: Case) -> str:
    return f"cancel -> nothing left: {case.what}"


def _job(case: Case) -> JobSpec:
    cluster = {"head": {"pool": case.pool, **HEAD}, "workers": [{"pool": case.pool, **WORKER}]}
    return small_job(DRIVER.format(seconds=case.seconds), cluster=cluster)


def _cancelled(here: Bench, spec: JobSpec, case: Case) -> tuple[float | None, str]:
    """Follow it until it is there, cancel it as another process would, see it go."""
    key, there, seen = new_key(), threading.Event(), [""]

    def follow_it() -> None:
        with here.platform() as platform:
            job = submit(spec, run_key=key, labels={}, platform=platform)
            with closing(follow(job, platform=platform)) as events, suppress(MlPipelinesError):
                for event in events:
                    if isinstance(event, PhaseChanged):
                        seen[0] = f"{event.phase}, {event.sentence}"
                    if case.reached(event):
                        there.set()

    thread = threading.Thread(target=follow_it, daemon=True)
    thread.start()
    with here.platform() as other:
        if not there.wait(REACH_S):
            cancel(key, platform=other, by="bench")
            raise RuntimeError(f"{case.what}: not reached, last {seen[0]}")
        at, began = seen[0], time.monotonic()
        cancel(key, platform=other, by="bench")
    took = None
    while time.monotonic() - began < GONE_S:
        if not _left(here, key):
            took = time.monotonic() - began
            break
        time.sleep(0.3)
    thread.join(GONE_S)
    return took, at


def _left(here: Bench, key: str) -> bool:
    """Whether anything is there that was made for the job: all of it bears the RayJob's name."""
    kinds = ",".join(KINDS if here.cluster.get("crd", KINDS[-1]) else KINDS[:-1])
    return key in here.namespace.kubectl("get", kinds, "-o", "name", "--ignore-not-found")
