"""The daily chain: impressions, features, model, evaluation, champion, predictions."""

from typing import TYPE_CHECKING

import dagster as dg

from ml_pipelines.defs.ads_ranking import records, results
from ml_pipelines.defs.ads_ranking.config import (
    DATASET,
    EvaluateConfig,
    FeaturesConfig,
    PredictConfig,
    TrainConfig,
)
from ml_pipelines.defs.ads_ranking.launch import checked
from ml_pipelines.defs.ads_ranking.partitions import DAYS, WINDOW
from ml_pipelines.defs.ads_ranking.promotion import promote
from ml_pipelines.defs.ads_ranking.records import Judged
from ml_pipelines.orchestration.identity import code_version
from ml_pipelines.orchestration.resource import RayJobs
from ml_pipelines.orchestration.stores import StoresParam
from ml_pipelines.orchestration.translate import plain_failures

if TYPE_CHECKING:
    from ml_pipelines.journal.pointer import Champion

GROUP = "ads_ranking"
POOL = "ray"  # Dagster's concurrency pool: how many Ray jobs at once
WORKLOADS = "ml_pipelines.workloads.ads_ranking"

impressions = dg.AssetSpec(
    "impressions",
    group_name=GROUP,
    partitions_def=DAYS,
    kinds={"parquet"},
    description="What was shown on each day and whether it was clicked; others write it to the "
    "lake, with a success marker as the last file.",
)


@dg.asset(
    deps=[impressions],
    partitions_def=DAYS,
    group_name=GROUP,
    kinds={"ray", "parquet"},
    pool=POOL,
    code_version=code_version("ads_ranking"),
)
@plain_failures()
def ads_features(
    context: dg.AssetExecutionContext, config: FeaturesConfig, ray: RayJobs, stores: StoresParam
) -> dg.MaterializeResult[None]:
    """What the model sees of each impression: ids hashed, numbers checked.

    Makes the training window's days too, where they are missing or their impressions changed.
    """
    day = checked(context, ray)
    stores.lake().partition(DATASET, day)  # refused here, before any Ray, where it is unusable
    outcome = ray.run(
        context,
        module=f"{WORKLOADS}.features",
        cluster=config.cluster(),
        params=config.params(day=day, have=stores.lake().days(DATASET)),
    )
    return results.features(context, outcome, day)


@dg.asset(
    deps=[dg.AssetDep(ads_features, partition_mapping=WINDOW)],
    partitions_def=DAYS,
    group_name=GROUP,
    kinds={"ray", "pytorch"},
    pool=POOL,
    code_version=code_version("ads_ranking"),
)
@plain_failures()
def ads_model(
    context: dg.AssetExecutionContext, config: TrainConfig, ray: RayJobs
) -> dg.MaterializeResult[None]:
    """The click model, trained on the days before; embeddings sharded over the workers.

    Loss, AUC and examples/s are plotted while it trains. With it are recorded seed, code version,
    config, data version and image.
    """
    day = checked(context, ray)
    outcome = ray.run(
        context,
        module=f"{WORKLOADS}.train",
        cluster=config.cluster(),
        params=config.params(day=day, image=ray.image(config.pool)),
    )
    return results.model(outcome, config, day)


@dg.asset(
    deps=[ads_model, ads_features],
    partitions_def=DAYS,
    group_name=GROUP,
    kinds={"ray"},
    pool=POOL,
    check_specs=[
        dg.AssetCheckSpec(
            "gate",
            asset="ads_evaluation",
            blocking=True,
            description="Better, not better, or too few clicks to tell. Red only when the "
            "evaluation can't be used or the challenger is surely worse than the baseline.",
        )
    ],
)
@plain_failures()
def ads_evaluation(
    context: dg.AssetExecutionContext, config: EvaluateConfig, ray: RayJobs, stores: StoresParam
) -> dg.MaterializeResult:  # type: ignore[type-arg]  # with checks, Dagster wants it bare
    """The new model judged on the day itself, beside the champion and the smoothed-CTR baseline.

    AUC, normalised entropy and calibration with bootstrap intervals; the gate's decision.
    """
    day = checked(context, ray)
    challenger = records.latest_model(context, day)
    champion = stores.pointer(challenger.model_name).current()
    outcome = ray.run(
        context,
        module=f"{WORKLOADS}.evaluate",
        cluster=config.cluster(),
        params=config.params(challenger=challenger, champion=champion),
    )
    return results.evaluation(outcome, challenger, champion, config)


@dg.asset(deps=[ads_evaluation], partitions_def=DAYS, group_name=GROUP, pool=POOL)
@plain_failures()
def ads_champion(
    context: dg.AssetExecutionContext, ray: RayJobs, stores: StoresParam
) -> dg.MaterializeResult[None]:
    """Who serves after this day: the challenger if the gate found it better, else who did before.

    The first champion is the first challenger that beats the baseline. A retrain of an earlier
    day never replaces the champion of a later one. When another run has promoted meanwhile, the
    gate runs again against the new champion.
    """
    judged = records.latest_evaluation(context, checked(context, ray))
    pointer = stores.pointer(judged.challenger.model_name)

    def judge_again(champion: "Champion | None", tries: int) -> Judged:
        context.log.warning("Another run has promoted meanwhile: the gate runs again.")
        config = EvaluateConfig(**judged.config)
        outcome = ray.run(
            context,
            module=f"{WORKLOADS}.evaluate",
            cluster=config.cluster(),
            params=config.params(challenger=judged.challenger, champion=champion),
            what=f"again-{tries}",
        )
        return results.judged(outcome, judged.challenger, champion, config)

    return results.champion(promote(judged, pointer, judge_again))


@dg.asset(
    deps=[ads_champion, ads_features],
    partitions_def=DAYS,
    group_name=GROUP,
    kinds={"ray", "parquet"},
    pool=POOL,
)
@plain_failures()
def ads_predictions(
    context: dg.AssetExecutionContext, config: PredictConfig, ray: RayJobs, stores: StoresParam
) -> dg.MaterializeResult[None]:
    """The day scored by whoever is champion now; by the smoothed-CTR baseline while there is none."""
    day = checked(context, ray)
    champion = stores.pointer(records.latest_model(context, day).model_name).current()
    outcome = ray.run(
        context,
        module=f"{WORKLOADS}.predict",
        cluster=config.cluster(),
        params=config.params(day=day, champion=champion),
    )
    return results.predictions(outcome, champion)
