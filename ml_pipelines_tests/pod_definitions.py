"""A code location for a code server in a pod: an asset, whose Ray job counts, and the keeper."""

import dagster as dg

from ml_pipelines.orchestration.keeper import build_keeper
from ml_pipelines.orchestration.resource import RayJobs

LINES = 90


@dg.asset
def counted(context: dg.AssetExecutionContext, ray: RayJobs) -> dg.MaterializeResult[None]:
    """How far a small Ray job counted."""
    from ml_pipelines.spec.cluster import ClusterSpec, WorkerGroup

    workers = WorkerGroup(pool="spot", cpu="250m", memory="1Gi", gpus=1)
    outcome = ray.run(
        context,
        module="ml_pipelines_tests.pod_counting",
        cluster=ClusterSpec(workers=(workers,)),
        params={"lines": LINES},
    )
    return dg.MaterializeResult(metadata=outcome.metadata() | {"sum": outcome.result["sum"]})


@dg.definitions
def defs() -> dg.Definitions:
    """One job of one asset, and the keeper."""
    return dg.Definitions(
        assets=[counted],
        jobs=[dg.define_asset_job("counting", selection=[counted])],
        sensors=[build_keeper()],
        resources={"ray": RayJobs()},
    )
