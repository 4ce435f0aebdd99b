"""Judge a model on its day, beside the champion and the CTR baseline.

    python -m ml_pipelines.workloads.ads_ranking.evaluate        (in a job; see `EvaluateParams`)

The baseline is fitted on the very days that the challenger learned from. All intervals are from one
paired bootstrap over the day's impressions. The result:

    day, rows, clicks, seconds
    champion       the champion's URL, or ""
    models         {"challenger"|"champion"|"baseline": {"auc", "normalised_entropy": {"value",
                   "low", "high"}, "calibration", "version"}}
    gain           {"baseline"|"champion": {"value", "low", "high"}}: how much lower the
                   challenger's normalised entropy is; above 0 is better
    auc_gain       the same for the AUC
    reliability    [{"predicted", "seen", "rows"}] of the challenger, by deciles of its prediction

Numbers that don't exist (the AUC of a day without clicks) are the text "NaN".
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ml_pipelines.workloads.ads_ranking import data, metrics
from ml_pipelines.workloads.ads_ranking.schema import FEATURES_DATASET
from ml_pipelines.workloads.ads_ranking.scoring import Scorer, TrainedModel, fitted_baseline
from ml_pipelines.workloads.ads_ranking.window import Window, features_day
from ml_pipelines.workloads.params import bounded, parse
from ml_pipelines.workloads.report import driver

if TYPE_CHECKING:
    from ml_pipelines.storage import Lake


@dataclass(frozen=True)
class EvaluateParams:
    """Whom to judge on which day. `challenger` and `champion` are URLs; no champion is ""."""

    day: str
    challenger: str
    champion: str = ""
    features: str = FEATURES_DATASET
    replicates: int = bounded(500, 10, 100_000)
    seed: int = bounded(0, 0, 2**31 - 1)


def main() -> None:
    """The driver of an evaluation job."""
    with driver() as run:
        run.result(evaluate(run.lake, parse(EvaluateParams, run.params)))


def evaluate(lake: Lake, params: EvaluateParams) -> dict[str, Any]:
    """The result described above."""
    started = time.monotonic()
    challenger = TrainedModel(params.challenger)
    trained_on = tuple(challenger.meta["data_versions"])
    window = Window(tuple(features_day(lake, params.features, day) for day in trained_on), ())
    scorers: dict[str, Scorer] = {"challenger": challenger, "baseline": fitted_baseline(window)}
    versions = {"challenger": challenger.version, "baseline": ""}
    if params.champion:
        champion = TrainedModel(params.champion)
        scorers["champion"], versions["champion"] = champion, champion.version

    click, predicted = scored_day(lake, params, scorers)
    drawn = metrics.bootstrap(click, predicted, replicates=params.replicates, seed=params.seed)
    return {
        "day": params.day,
        "rows": len(click),
        "clicks": int(click.sum()),
        "champion": params.champion,
        "models": {
            name: {
                "auc": _told(metrics.interval(metrics.auc(click, p), drawn[name]["auc"])),
                "normalised_entropy": _told(
                    metrics.interval(metrics.normalised_entropy(click, p), drawn[name]["ne"])
                ),
                "calibration": _number(metrics.calibration(click, p)),
                "version": versions[name],
            }
            for name, p in predicted.items()
        },
        **_gains(click, predicted, drawn),
        "reliability": metrics.reliability(click, predicted["challenger"]),
        "seconds": time.monotonic() - started,
    }


def scored_day(
    lake: Lake, params: EvaluateParams, scorers: Mapping[str, Scorer]
) -> tuple[metrics.Floats, dict[str, metrics.Floats]]:
    """Clicks and every scorer's probabilities of the day's rows."""
    clicks: list[metrics.Floats] = []
    predicted: dict[str, list[metrics.Floats]] = {name: [] for name in scorers}
    for url in features_day(lake, params.features, params.day).files:
        for rows in data.read_file(url):
            clicks.append(rows.click)
            for name, scorer in scorers.items():
                predicted[name].append(scorer.score(rows))
    return np.concatenate(clicks), {name: np.concatenate(p) for name, p in predicted.items()}


def _gains(
    click: metrics.Floats,
    predicted: Mapping[str, metrics.Floats],
    drawn: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    ours = predicted["challenger"]
    gain, auc_gain = {}, {}
    for name, p in predicted.items():
        if name == "challenger":
            continue
        entropy = metrics.normalised_entropy(click, p) - metrics.normalised_entropy(click, ours)
        gain[name] = _told(metrics.interval(entropy, drawn[name]["ne"] - drawn["challenger"]["ne"]))
        area = metrics.auc(click, ours) - metrics.auc(click, p)
        auc_gain[name] = _told(
            metrics.interval(area, drawn["challenger"]["auc"] - drawn[name]["auc"])
        )
    return {"gain": gain, "auc_gain": auc_gain}


def _told(interval: metrics.Interval) -> dict[str, float | str]:
    return {name: _number(getattr(interval, name)) for name in ("value", "low", "high")}


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else "NaN"


if __name__ == "__main__":
    main()
