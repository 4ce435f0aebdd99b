"""`python -m benchmarks.following HOME COUNT`: follows a job of COUNT numbered lines.

A local job with its files in HOME, or, where that is `-`, a small one on KubeRay by the settings
of the environment. A process of its own that only follows, so that its peak memory is the
follower's. Prints one line of JSON: lines heard, how many were lost, doubled, torn or not ours,
seconds from the first to the last line and to the end, and the peak resident memory in bytes.
"""

from __future__ import annotations

import json
import re
import sys
import time
from contextlib import closing
from pathlib import Path

from benchmarks.local_ray import new_key, python_job
from benchmarks.small import SMALL
from ml_pipelines.job.events import JobEnded, LogLine
from ml_pipelines.lifecycle import follow, open_platform, submit
from ml_pipelines.settings import load

# 100 characters a line, printed as a loop does it.
CODE = "for i in range({count}): print(f'line {{i:08d}} ' + 'x' * 85)"


def main(home: str, count: int) -> None:
    """Submit the job, follow it to its end, and say what was heard."""
    on_kube = home == "-"
    settings = load() if on_kube else load({"MLP_HOME": home, "USER": "bench"})
    with open_platform(settings) as platform:
        code = CODE.format(count=count)
        spec = python_job(code, cluster=SMALL) if on_kube else python_job(code)
        job = submit(spec, run_key=new_key(), labels={}, platform=platform)
        heard = doubled = lost = torn = other = 0
        expected = 0
        first = last = 0.0
        end: JobEnded | None = None
        with closing(follow(job, platform=platform)) as events:
            for event in events:
                if isinstance(event, LogLine):
                    number = _number(event.text)
                    if number is None:
                        torn += event.text.startswith("line ") or "xxxxx" in event.text
                        other += 1
                        continue
                    last = time.monotonic()
                    first = first or last
                    heard += 1
                    doubled += number < expected
                    lost += max(number - expected, 0)
                    expected = max(expected, number + 1)
                elif isinstance(event, JobEnded):
                    end = event
        ended = time.monotonic()
    assert end is not None
    report = {
        "phase": str(end.phase),
        "heard": heard,
        "lost": lost + count - expected,
        "doubled": doubled,
        "torn": torn,
        "other": other,
        "lines_s": last - first,
        "end_s": ended - last,
        "cpu_s": time.process_time(),
        "peak_bytes": peak_memory(),
    }
    print(json.dumps(report))


def _number(text: str) -> int | None:
    found = re.match(r"line (\d{8}) x{85}$", text)
    return int(found[1]) if found else None


def peak_memory() -> int:
    """This process's greatest resident memory, in bytes.

    Not `ru_maxrss`, which a child inherits from whoever forked it.
    """
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
