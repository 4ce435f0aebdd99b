"""Results of the workloads as materializations: the keys are the workloads' own (see there)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from ml_pipelines.defs.ads_ranking import gate
from ml_pipelines.defs.ads_ranking.config import EvaluateConfig, TrainConfig
from ml_pipelines.defs.ads_ranking.promotion import Promotion
from ml_pipelines.defs.ads_ranking.records import Challenger, Judged, curve, number, told
from ml_pipelines.orchestration.resource import JobOutcome

if TYPE_CHECKING:
    from ml_pipelines.journal.pointer import Champion


def features(
    context: dg.AssetExecutionContext, outcome: JobOutcome, day: str
) -> dg.MaterializeResult[None]:
    """Rows and data version of the day; the window's days are told as materializations too."""
    days: Mapping[str, Mapping[str, Any]] = outcome.result["days"]
    for other, made in days.items():
        if other != day and made["made"]:
            context.log_event(
                dg.AssetMaterialization(
                    context.asset_key,
                    partition=other,
                    metadata={"dagster/row_count": made["rows"], "job": outcome.run_key},
                    tags={"dagster/data_version": made["data_version"]},
                )
            )
    today = days[day]
    return told(
        outcome,
        {"dagster/row_count": today["rows"], "days made": sum(d["made"] for d in days.values())},
        version=today["data_version"],
    )


def model(outcome: JobOutcome, config: TrainConfig, day: str) -> dg.MaterializeResult[None]:
    """Final numbers, the loss curve, and what the model was made from."""
    result = outcome.result
    challenger = Challenger(
        model_name=config.model_name,
        run_key=outcome.run_key,
        entry=outcome.entry or 0,
        partition=day,
        model_url=result["model_url"],
        version=result["version"],
    )
    names = ("loss", "auc", "samples_per_s", "steps", "seconds")
    return told(
        outcome,
        record=challenger,
        version=challenger.version,
        **{name: number(result.get(name)) for name in names},
        **{
            "model": dg.MetadataValue.url(challenger.model_url),
            "made from": dg.MetadataValue.json(dict(result.get("provenance") or {})),
            "curve": curve(result.get("curve") or []),
        },
    )


def judged(
    outcome: JobOutcome,
    challenger: Challenger,
    champion: Champion | None,
    config: EvaluateConfig,
) -> Judged:
    """The gate's decision on an evaluation."""
    decision = gate.decide(outcome.result, **config.gate.model_dump())
    return Judged(
        challenger=challenger,
        against=champion.number if champion else 0,
        outcome=str(decision.outcome),
        sentence=decision.sentence,
        valid=decision.valid,
        config=config.model_dump(),
        metrics=dict(outcome.result),
    )


def evaluation(
    outcome: JobOutcome, challenger: Challenger, champion: Champion | None, config: EvaluateConfig
) -> dg.MaterializeResult[None]:
    """The three models side by side, with intervals, and the gate as a check."""
    made = judged(outcome, challenger, champion, config)
    check = dg.AssetCheckResult(
        check_name="gate",
        passed=made.valid,
        description=made.sentence,
        metadata={"outcome": made.outcome, "against": made.against, **config.gate.model_dump()},
    )
    return told(outcome, record=made, checks=[check], gate=f"{made.outcome}: {made.sentence}")


def champion(promotion: Promotion) -> dg.MaterializeResult[None]:
    """Who serves, since when, and why."""
    now = promotion.champion
    return told(
        None,
        version=now.version if now else "",
        promoted=promotion.promoted,
        why=promotion.why,
        champion=f"{now.partition} ({now.run_key})" if now else "none: the baseline serves",
        number=now.number if now else 0,
    )


def predictions(outcome: JobOutcome, champion: Champion | None) -> dg.MaterializeResult[None]:
    """Where the scores lie and whose they are."""
    result = outcome.result
    return told(
        outcome,
        version=result["data_version"],
        **{
            "dagster/row_count": result["rows"],
            "scored by": f"champion of {champion.partition}" if champion else "baseline",
            "dagster/uri": result["url"],
        },
    )
