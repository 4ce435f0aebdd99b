"""Our wall time over the same entrypoint through Ray's bare Jobs API, on one warm local head."""

from __future__ import annotations

import shlex
import statistics
import time

import requests

from benchmarks.local_ray import finish, head, new_key, python_job, warm_platform
from benchmarks.row import Row
from ml_pipelines.backends.local.record import HeadRecord
from ml_pipelines.lifecycle import Platform
from ml_pipelines.spec.job import JobSpec

PAIRS = 9
GOAL_S = 1.0
POLL_S = 0.1
SPEC = python_job("print('one'); print('two'); print('three')")
ENDS = {"SUCCEEDED", "FAILED", "STOPPED"}


def run() -> list[Row]:
    """One row: the median over pairs of (ours - bare), from submit to the end as it is told."""
    with warm_platform() as platform:
        record = head(platform.settings)
        api = BareApi(record)
        api.run(SPEC)
        pairs = []
        for pair in range(PAIRS):
            if pair % 2:
                bare, ours = _bare(api), _ours(platform)
            else:
                ours, bare = _ours(platform), _bare(api)
            pairs.append((ours, bare))
        if head(platform.settings).id != record.id:
            raise RuntimeError("the head was replaced meanwhile")
    over = statistics.median(ours - bare for ours, bare in pairs)
    medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
    return [
        Row(
            "our wall time over Ray's bare Jobs API, warm local head",
            round(over, 3),
            "s",
            f"<= +{GOAL_S:g} s",
            over <= GOAL_S,
            f"{PAIRS} pairs; medians: ours {medians[0]:.2f} s, bare {medians[1]:.2f} s",
        )
    ]


def _ours(platform: Platform) -> float:
    began = time.perf_counter()
    finish(SPEC, platform)
    return time.perf_counter() - began


def _bare(api: BareApi) -> float:
    began = time.perf_counter()
    api.run(SPEC)
    return time.perf_counter() - began


class BareApi:
    """Ray's Jobs API as anybody would use it: one POST, then a GET each 0.1 s."""

    def __init__(self, head: HeadRecord) -> None:
        self._url = f"http://127.0.0.1:{head.ports['dashboard-port']}/api/jobs/"
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers["Authorization"] = f"Bearer {head.token}"

    def run(self, spec: JobSpec) -> None:
        """Submit its entrypoint and wait for the end. Raises RuntimeError unless it succeeds."""
        ident = new_key()
        body = {"entrypoint": shlex.join(spec.entrypoint), "submission_id": ident}
        self._session.post(self._url, json=body, timeout=10).raise_for_status()
        while (status := self._status(ident)) not in ENDS:
            time.sleep(POLL_S)
        if status != "SUCCEEDED":
            raise RuntimeError(f"the bare job {ident} ended {status}")

    def _status(self, ident: str) -> str:
        answer = self._session.get(self._url + ident, timeout=10)
        answer.raise_for_status()
        return str(answer.json()["status"])
