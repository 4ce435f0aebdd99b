"""One process that follows many RayJobs: requests, memory, and whether it misses an end.

The operator's part is simulated on the real API server, see `simulated_operator`; the pods lie on
fake nodes. They have no logs: each followed log is one request for as long as its pod lives, which
`kube_follow` measures on real pods.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.kube import NO_TOOL, Bench, bench, cluster_here, fake_nodes, not_run
from benchmarks.row import Row
from benchmarks.simulated_operator import Operator
from ml_pipelines.backends.kubeapi import connect
from ml_pipelines.clock import SystemClock
from ml_pipelines_tests.cluster import Cluster

FEW, MANY = 10, 100
WINDOW_S = 60.0
RATE_GOAL = 0.05
JOBS = 1_000
NODES = 12  # 250 pods each
ACCEPTED_GOAL = 20.0
MEMORY_GOAL = 1_000_000
LIMIT_S = 400.0

GROWTH = f"watches opened: one process, {MANY} jobs, over {FEW} jobs"
ROWS = [
    *((f"API requests per job, one process that follows {count}", f"< {RATE_GOAL:g} /s")
      for count in (FEW, MANY)),
    (GROWTH, "0"),
    (f"{JOBS:,} jobs submitted, accepted by the API server", f">= {ACCEPTED_GOAL:g} /s"),
    (f"{JOBS:,} jobs: memory of the process that follows them, each", f"< {MEMORY_GOAL / 1e6:g} MB"),
    (f"{JOBS:,} jobs: ends missed", "0"),
]  # fmt: skip

Told = dict[str, dict[str, Any]]


def run() -> list[Row]:
    """Six rows; 10 and 100 are measured at the same time, in namespaces of their own."""
    cluster = cluster_here()
    if cluster is None:
        return not_run(ROWS)
    if not cluster.tool:
        return not_run(ROWS, NO_TOOL)
    with fake_nodes(cluster, NODES):
        with ThreadPoolExecutor(2) as pool:
            few, many = pool.map(lambda count: _followed(cluster, count), (FEW, MANY))
        told = _followed(cluster, JOBS, window_s=0.0)
    return [_requests(few, FEW), _requests(many, MANY), _growth(few, many), *_thousand(told)]


def _followed(cluster: Cluster, count: int, *, window_s: float = WINDOW_S) -> Told:
    """What a process tells that follows so many, from their first request to their ends."""
    with bench(cluster, f"x{count}") as here:
        toleration = {"key": "kwok.x-k8s.io/node", "operator": "Exists"}
        selector = {"cloud.google.com/gke-nodepool": "fake"}
        here.add_pool("fake", node_selector=selector, tolerations=[toleration])
        api = connect(namespace=here.namespace.name, clock=SystemClock())
        with (
            closing(api),
            closing(Operator(api, nodes=NODES, workers=count < JOBS)) as operator,
            _process(here, count, window_s) as lines,
        ):
            told: Told = {}
            for line in lines:
                told[line["stage"]] = line
                if line["stage"] == "accepted":
                    operator.run(operator.jobs())
                elif line["stage"] == "ready":
                    operator.end(operator.jobs())
    if "ended" not in told:
        raise RuntimeError(f"the process that follows {count} jobs stopped after {list(told)}")
    return told


@contextmanager
def _process(here: Bench, count: int, window_s: float) -> Iterator[Iterator[dict[str, Any]]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.kube_tracking", str(count), str(window_s)],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1],
        env={**os.environ, **here.environment},
    )  # fmt: skip
    stop = threading.Timer(LIMIT_S, process.kill)
    stop.start()
    try:
        assert process.stdout is not None
        yield map(json.loads, process.stdout)
    finally:
        stop.cancel()
        process.kill()
        process.wait()


def _requests(told: Told, count: int) -> Row:
    made = told["steady"]["requests"]
    rate = sum(made.values()) / WINDOW_S / count
    return Row(
        f"API requests per job, one process that follows {count}",
        round(rate, 5),
        "/s",
        f"< {RATE_GOAL:g} /s",
        rate < RATE_GOAL,
        f"all jobs run, {WINDOW_S:.0f} s, by urllib3's log: {made or 'none'}; "
        f"from submit to end: {told['ended']['requests']}",
    )


def _growth(few: Told, many: Told) -> Row:
    watches = [_watches(told["ended"]["requests"]) for told in (few, many)]
    return Row(
        GROWTH,
        watches[1] - watches[0],
        "",
        "0",
        watches[1] <= watches[0],
        f"in the whole life of the jobs: {watches[0]} with {FEW}, {watches[1]} with {MANY}",
    )


def _watches(made: dict[str, int]) -> int:
    return sum(number for what, number in made.items() if what.startswith("WATCH"))


def _thousand(told: Told) -> list[Row]:
    seconds = told["accepted"]["seconds"]
    rate = JOBS / seconds
    each = max(told["running"]["bytes"], told["ended"]["bytes"]) / JOBS
    missed, late = told["ended"]["missed"], told["ended"]["late"]
    p95 = statistics.quantiles(late, n=20)[-1]
    return [
        Row(ROWS[3][0], round(rate, 1), "/s", ROWS[3][1], rate >= ACCEPTED_GOAL,
            f"{seconds:.1f} s: each checked by a dry run and recorded in its journal, then created; "
            f"the creations alone {JOBS / told['accepted']['creating_s']:.0f} /s"),
        Row(ROWS[4][0], round(each / 1e6, 3), "MB", ROWS[4][1], each < MEMORY_GOAL,
            f"a look at all of them took at most {told['running']['seconds_a_round']:.2f} s"),
        Row(ROWS[5][0], missed, "", ROWS[5][1], missed == 0,
            f"{len(late):,} ends seen; status written -> end seen: "
            f"median {statistics.median(late):.2f} s, p95 {p95:.2f} s, latest {max(late):.2f} s; "
            f"requests from submit to end: {told['ended']['requests']}"),
    ]  # fmt: skip
