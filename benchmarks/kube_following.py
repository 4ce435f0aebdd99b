"""`python -m benchmarks.kube_following NAME QUICK SLOW`: one job on KubeRay, followed by a process.

The settings are the environment's. The driver prints QUICK stamped lines, ten a second, then SLOW
ones, one a second, then when it ends. Prints one line of JSON: see `Report`.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass, field

from benchmarks.local_ray import new_key
from benchmarks.requests_made import Requests
from benchmarks.small import small_job
from ml_pipelines.job.events import AttemptEnded, Event, JobEnded, LogLine, PhaseChanged
from ml_pipelines.lifecycle import follow, open_platform, submit

CODE = """
import time
for n in range({quick} + {slow}):
    print("at", time.time(), flush=True)
    time.sleep(0.1 if n < {quick} else 1.0)
print("end", time.time(), flush=True)
"""
SETTLED_S = 3.0  # from the end of the quick lines to the steady state
HEADROOM_S = 1.0  # the steady state's window ends before the job does


@dataclass(slots=True)
class Report:
    """What was seen of one job: seconds, but `requests` by kind.

    `steady` are those of the `steady_s` in which the driver ran and nothing else happened;
    `started_s` is from submit to the first line; `judged_s` and `end_s` are from the driver's end
    to its attempt's verdict, and to the run's end.
    """

    lags: list[float] = field(default_factory=list)
    started_s: float = 0.0
    driver_ended_at: float = 0.0
    judged_s: float = 0.0
    end_s: float = 0.0
    phase: str = ""
    seconds: float = 0.0
    requests: dict[str, int] = field(default_factory=dict)
    steady: dict[str, int] = field(default_factory=dict)
    steady_s: float = 0.0
    told: list[tuple[float, str]] = field(default_factory=list)


def main(name: str, quick: int, slow: int) -> None:
    """Submit it, follow it to its end, and report."""
    report, requests = Report(), Requests()
    code = CODE.format(quick=quick, slow=slow)
    with open_platform() as platform:
        requests.begin()
        began = time.monotonic()
        job = submit(small_job(code, name), run_key=new_key(), labels={}, platform=platform)
        steady_from = 0.0
        with closing(follow(job, platform=platform)) as events:
            for event in events:
                _note(event, report, time.monotonic() - began)
                if len(report.lags) == quick and not steady_from:
                    steady_from = time.monotonic() + SETTLED_S
        ended = time.monotonic()
    report.seconds = ended - began
    report.requests = dict(requests.between(began, ended))
    until = steady_from + slow - SETTLED_S - HEADROOM_S
    report.steady_s = until - steady_from
    report.steady = dict(requests.between(steady_from, until))
    print(json.dumps(asdict(report)))


def _note(event: Event, report: Report, at: float) -> None:
    now = time.time()
    if isinstance(event, LogLine) and event.text.startswith("at "):
        report.started_s = report.started_s or at
        report.lags.append(now - float(event.text.removeprefix("at ")))
    elif isinstance(event, LogLine) and event.text.startswith("end "):
        report.driver_ended_at = float(event.text.removeprefix("end "))
    elif isinstance(event, PhaseChanged):
        report.told.append((round(at, 1), f"{event.phase}: {event.sentence}"))
    elif isinstance(event, AttemptEnded):
        report.judged_s = now - report.driver_ended_at
    elif isinstance(event, JobEnded):
        report.phase = str(event.phase)
        report.end_s = now - report.driver_ended_at


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
