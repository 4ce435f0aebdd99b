"""A workload that counts slowly, one line a second: a gap or a repetition in its log is seen."""

from __future__ import annotations

from ml_pipelines.clock import SystemClock
from ml_pipelines.workloads import report


def main() -> None:
    """Count to `lines`, and owe the sum."""
    with report.driver() as run:
        lines = int(run.params["lines"])
        for number in range(lines):
            print(f"count {number}", flush=True)  # noqa: T201 - as a user would
            run.metric(number, counted=float(number))
            SystemClock().sleep(1.0)
        run.result({"sum": sum(range(lines))})


if __name__ == "__main__":
    main()
