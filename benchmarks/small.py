"""Jobs for a cluster whose pods share the machine that measures: as small as Ray lives in."""

from __future__ import annotations

from typing import Any

from ml_pipelines.spec.job import JobSpec

POOL = "any"  # any of the test cluster's nodes, see `kube.bench`
HEAD = {"cpu": "500m", "memory": "1Gi"}  # with less Ray's head takes a minute to start
WORKER = {"gpus": 0, "cpu": "250m", "memory": "1Gi"}
SMALL: dict[str, Any] = {"head": {"pool": POOL, **HEAD}, "workers": [{"pool": POOL, **WORKER}]}


def small_job(code: str, name: str = "bench", **fields: Any) -> JobSpec:
    """A job that runs this Python code as its driver, in small pods."""
    entrypoint = ("python", "-u", "-c", code)
    spec = {"name": name, "entrypoint": entrypoint, "cluster": SMALL, **fields}
    return JobSpec.model_validate(spec)
