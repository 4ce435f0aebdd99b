"""Jobs for a cluster whose pods share the machine that measures: as small as Ray lives in."""

from __future__ import annotations

from typing import Any

from ml_pipelines.spec.job import JobSpec

SMALL: dict[str, Any] = {
    "head": {"pool": "cpu", "cpu": "300m", "memory": "1Gi"},
    "workers": [{"pool": "gpu", "gpus": 0, "cpu": "200m", "memory": "1Gi"}],
}


def small_job(code: str, name: str = "bench", **fields: Any) -> JobSpec:
    """A job that runs this Python code as its driver, in small pods."""
    entrypoint = ("python", "-u", "-c", code)
    spec = {"name": name, "entrypoint": entrypoint, "cluster": SMALL, **fields}
    return JobSpec.model_validate(spec)
