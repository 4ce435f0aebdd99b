"""What a run was launched with, all of it: checked in its first step, not in the one it is for."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from ml_pipelines.defs.ads_ranking.config import (
    EvaluateConfig,
    FeaturesConfig,
    PredictConfig,
    TrainConfig,
)
from ml_pipelines.defs.ads_ranking.partitions import checked_day
from ml_pipelines.orchestration.config import WorkersConfig, checked_config
from ml_pipelines.orchestration.resource import RayJobs

CONFIGS: Mapping[str, type[WorkersConfig]] = {
    "ads_features": FeaturesConfig,
    "ads_model": TrainConfig,
    "ads_evaluation": EvaluateConfig,
    "ads_predictions": PredictConfig,
}


def checked(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext, ray: RayJobs) -> str:
    """The day of the step, once no step of its run can fail for what the run was launched with.

    Raises InvalidInput for a day that is none, DoesNotFit for workers that can't be had, and
    dg.Failure for any other value; each names its asset and field.
    """
    day = checked_day(context.partition_key)
    ray.check({name: config.cluster() for name, config in configs(context.run).items()})
    return day


def configs(run: dg.DagsterRun) -> dict[str, WorkersConfig]:
    """The config of each Ray asset of the run. Raises dg.Failure naming asset, field and value."""
    ops = run.run_config.get("ops")
    given: Mapping[str, Any] = ops if isinstance(ops, Mapping) else {}
    asked = {key.to_user_string() for key in run.asset_selection or ()} or set(CONFIGS)
    return {
        name: checked_config(cls, (given.get(name) or {}).get("config") or {}, root=name)
        for name, cls in CONFIGS.items()
        if name in asked
    }
