"""`python -m benchmarks.kube_tracking COUNT WINDOW_S`: one process that follows COUNT RayJobs.

The settings are the environment's; the operator's part is played by whoever started this. Submits
the jobs, several at a time, watches the whole namespace, and looks at each job as the loop does,
until all have ended. Prints one line of JSON at each of: `accepted`, `running`, `steady` (after
WINDOW_S of nothing new), `ended`.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field

import psutil

from benchmarks.local_ray import new_key
from benchmarks.requests_made import Requests
from benchmarks.simulated_operator import LeftAlone
from benchmarks.small import small_job
from ml_pipelines.backends.kubeapi import connect
from ml_pipelines.clock import SystemClock
from ml_pipelines.job.clocks import Clocks
from ml_pipelines.job.known import Known
from ml_pipelines.job.observation import RayJobView
from ml_pipelines.job.phase import Phase, phase_of
from ml_pipelines.lifecycle import Job, Platform, open_platform, submit
from ml_pipelines.lifecycle.submit import manifest_of
from ml_pipelines.settings import load
from ml_pipelines.spec.job import JobSpec

SUBMITTERS = 8
TICK_S = 0.15
SETTLED_S = 3.0
PATIENCE_S = 300.0


@dataclass(slots=True)
class Track:
    """One job, as it is seen again and again."""

    name: str
    known: Known = field(default_factory=Known)
    phase: Phase = Phase.PROVISIONING
    late_s: float | None = None  # from its end to our seeing it
    ok: bool = False


def main(count: int, window_s: float) -> None:
    """Submit, follow, and say what was seen."""
    settings, clock, requests = load(), SystemClock(), Requests()
    spec = fake_job()
    api = connect(namespace=settings.namespace, clock=clock)
    with (
        closing(api),
        closing(LeftAlone(api, clock, scope="namespace")) as backend,
        open_platform(settings, backend=backend) as platform,
    ):
        requests.begin()
        backend.list({})
        before = _resident()
        began = time.monotonic()
        with ThreadPoolExecutor(SUBMITTERS) as pool:
            jobs = list(pool.map(lambda _: _submit(spec, platform), range(count)))
            recorded = time.monotonic()
            made = list(pool.map(lambda job: _create(job, platform), jobs))
        ended = time.monotonic()
        _say("accepted", seconds=ended - began, creating_s=ended - recorded)
        tracker = Tracker([Track(one.name) for one in made], backend)
        tracker.until(lambda track: track.phase is Phase.RUNNING)
        _say("running", bytes=_resident() - before, seconds_a_round=tracker.round_s)
        if window_s:
            tracker.rounds(SETTLED_S)
            start = time.monotonic()
            tracker.rounds(window_s)
            _say("steady", requests=dict(requests.between(start, time.monotonic())))
        _say("ready")
        tracker.until(lambda track: track.late_s is not None)
        _say(
            "ended",
            late=[track.late_s for track in tracker.tracks if track.late_s is not None],
            missed=sum(track.late_s is None or not track.ok for track in tracker.tracks),
            bytes=_resident() - before,
            requests=dict(requests.between(began, time.monotonic())),
        )


def fake_job() -> JobSpec:
    """A job for the fake nodes."""
    cluster = {"head": {"pool": "fake"}, "workers": [{"pool": "fake", "gpus": 0}]}
    return small_job("print('one')", cluster=cluster)


def _submit(spec: JobSpec, platform: Platform) -> Job:
    return submit(spec, run_key=new_key(), labels={}, platform=platform)


def _create(job: Job, platform: Platform) -> RayJobView:
    return platform.backend.create(manifest_of(job, 1, platform))


class Tracker:
    """Looks at all jobs, one round after another."""

    def __init__(self, tracks: list[Track], backend: LeftAlone) -> None:
        self.tracks = tracks
        self._backend = backend
        self._clocks = Clocks()
        self.round_s = 0.0

    def rounds(self, seconds: float) -> None:
        """Rounds for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.round()
            time.sleep(TICK_S)

    def until(self, holds: object) -> None:
        """Rounds until it holds for all, or patience ends: then some were missed."""
        assert callable(holds)
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and not all(map(holds, self.tracks)):
            self.round()
            time.sleep(TICK_S)

    def round(self) -> None:
        """One look at each that has not ended."""
        began = time.monotonic()
        for track in self.tracks:
            if track.late_s is None:
                self._look(track)
        self.round_s = max(self.round_s, time.monotonic() - began)

    def _look(self, track: Track) -> None:
        seen = self._backend.observe(track.name)
        now = time.monotonic()
        track.known = track.known.after(seen, now)
        standing = phase_of(seen, track.known, self._clocks, now)
        track.phase = standing.phase
        if standing.verdict is not None:
            track.ok = standing.verdict.ok
            said = seen.rayjob.message if seen.rayjob else ""
            track.late_s = time.time() - float(said) if track.ok else 0.0


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


def _say(stage: str, **what: object) -> None:
    print(json.dumps({"stage": stage, **what}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
