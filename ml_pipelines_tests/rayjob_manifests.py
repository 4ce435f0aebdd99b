"""RayJob manifests of the shape that the generator makes, for tests of backends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ml_pipelines.spec.cluster import ClusterSpec
from ml_pipelines.spec.job import Code, JobSpec
from ml_pipelines.spec.manifest import Identity, rayjob
from ml_pipelines.spec.pools import Pool, Pools, load_pools


def pools(**kinds: dict[str, Any]) -> Pools:
    """The pools that ship with the package, and these."""
    shipped = load_pools(None)
    made = {name: Pool(name=name, **kind) for name, kind in kinds.items()}
    return shipped.model_copy(update={"pools": {**shipped.pools, **made}})


def manifest(
    run_key: str,
    entrypoint: Sequence[str] = ("true",),
    *,
    env: dict[str, str] | None = None,
    cluster: dict[str, Any] | None = None,
    code: Code | None = None,
    params: dict[str, Any] | None = None,
    of: Pools | None = None,
) -> dict[str, Any]:
    """The manifest of the job's first attempt."""
    spec = JobSpec(
        name=run_key,
        entrypoint=tuple(entrypoint),
        env=env or {},
        cluster=ClusterSpec.model_validate_json(_json(cluster or {})),
        code=code,
        params=params or {},
    )
    identity = Identity(run_key=run_key, attempt=1)
    return rayjob(spec, of or load_pools(None), identity, runs="file:///runs", lake="file:///lake")


def _json(value: dict[str, Any]) -> str:
    import json

    return json.dumps(value)
