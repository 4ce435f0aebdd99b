"""Results of the workloads as materializations: the keys are the workloads' own (see there)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from ml_pipelines.defs.ads_ranking.config import EvaluateConfig, TrainConfig
from ml_pipelines.defs.ads_ranking.promotion import Promotion
from ml_pipelines.defs.ads_ranking.records import (
    Challenger,
    Judged,
    curve,
    number,
    table,
    told,
)
from ml_pipelines.orchestration.resource import JobOutcome
from ml_pipelines.workloads.ads_ranking import gate

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
    """Final numbers, the curve, and what the model was made from."""
    result = outcome.result
    challenger = Challenger(
        model_name=config.model_name,
        run_key=outcome.run_key,
        entry=outcome.entry or 0,
        partition=day,
        model_url=result["model_url"],
        version=result["version"],
    )
    numbers = ("loss", "auc", "samples_per_s", "steps", "rows", "clicks", "workers")
    shown: dict[str, Any] = {name: number(result[name]) for name in numbers}
    shown |= {
        "device": result["device"],
        "window": ", ".join(result["window"]),
        "dagster/uri": challenger.model_url,
        "made from": dg.MetadataValue.json(dict(result["provenance"])),
        "curve": curve(result["curve"]),
    }
    return told(outcome, shown, record=challenger, version=challenger.version)


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
    """The models side by side, with intervals, and the gate as a check."""
    made = judged(outcome, challenger, champion, config)
    check = dg.AssetCheckResult(
        check_name="gate",
        passed=made.valid,
        description=made.sentence,
        metadata={"outcome": made.outcome, "against": made.against, **config.gate.model_dump()},
    )
    result = outcome.result
    shown: dict[str, Any] = {
        "gate": made.told,
        "rows": result["rows"],
        "clicks": result["clicks"],
        "models": table([_model_row(name, m) for name, m in result["models"].items()]),
        "reliability": table(result["reliability"]),
    }
    # One number a key, so that each is a line across partitions.
    for name, numbers in result["models"].items():
        shown[f"auc {name}"] = number(numbers["auc"]["value"])
        shown[f"normalised entropy {name}"] = number(numbers["normalised_entropy"]["value"])
        shown[f"calibration {name}"] = number(numbers["calibration"])
    for name, gain in result["gain"].items():
        shown[f"gain over {name}"] = number(gain["value"])
    return told(outcome, shown, record=made, checks=[check])


def champion(promotion: Promotion) -> dg.MaterializeResult[None]:
    """Who serves, since when, and why."""
    now = promotion.champion
    shown = {
        "promoted": promotion.promoted,
        "why": promotion.why,
        "champion": f"{now.partition} ({now.run_key})" if now else "none: the baseline serves",
        "number": now.number if now else 0,
        "dagster/uri": now.model_url if now else "",
    }
    return told(None, shown, version=now.version if now else "")


def predictions(outcome: JobOutcome, champion: Champion | None) -> dg.MaterializeResult[None]:
    """Where the scores lie and whose they are."""
    result = outcome.result
    shown = {
        "dagster/row_count": result["rows"],
        "dagster/uri": result["url"],
        "scored by": f"champion of {champion.partition}" if champion else "smoothed-CTR baseline",
        "model": dg.MetadataValue.json(result["model"]),
    }
    return told(outcome, shown, version=result["data_version"])


def _model_row(name: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"model": name}
    for metric in ("auc", "normalised_entropy"):
        row |= {
            metric: number(numbers[metric]["value"]),
            f"{metric} low": number(numbers[metric]["low"]),
            f"{metric} high": number(numbers[metric]["high"]),
        }
    return row | {"calibration": number(numbers["calibration"])}
