"""What came of a day, for people: metrics beside the baseline's, the gate, places, times."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from ml_pipelines import settings
from ml_pipelines.defs.ads_ranking.jobs import CHAIN
from ml_pipelines.defs.ads_ranking.records import RECORD

METRICS = {"auc": "AUC", "normalised_entropy": "normalised entropy"}


def text(
    result: dg.ExecuteInProcessResult,
    *,
    day: str,
    data: str,
    took_s: float,
    planted_auc: float = 0.0,
) -> str:
    """The report of a run, whole or as far as it came.

    `planted_auc` is the best that any model can reach, 0 where nobody knows it.
    """
    told = {asset.key.to_user_string(): _told(result, asset) for asset in CHAIN}
    state = "green" if result.success else "stopped" if interrupted(result) else "FAILED"
    lines = ["", f"{day} ({data}): {state} after {took_s:.0f} s", ""]
    if record := told["ads_evaluation"].get(RECORD):
        lines += _models(record["metrics"])
        if planted_auc:
            lines.append(f"{'truth':<13}{planted_auc:.4f} is the best AUC there can be")
        lines.append("")
        lines.append(f"gate         {told['ads_evaluation']['gate']}")
    if champion := told["ads_champion"]:
        lines.append(f"champion     {champion['champion']}")
        if champion["promoted"]:
            lines[-1] += ", promoted just now"
        elif champion["why"] not in told["ads_evaluation"].get("gate", ""):
            lines.append(f"             {champion['why']}")
    lines += _places(told)
    lines += [f"times        {_times(told)}"]
    lines += ["", *(_failures(result) if not result.success else []), *_next(data, told)]
    return "\n".join(lines)


def interrupted(result: dg.ExecuteInProcessResult) -> bool:
    """Whether somebody stopped it."""
    return any(
        e.step_failure_data.error is not None
        and e.step_failure_data.error.cls_name == "DagsterExecutionInterruptedError"
        for e in result.all_events
        if e.is_step_failure
    )


def _told(result: dg.ExecuteInProcessResult, asset: dg.AssetsDefinition) -> dict[str, Any]:
    """Metadata of what the run made of an asset; empty if it did not come so far."""
    name = asset.key.to_user_string()
    made = [
        each
        for each in result.get_asset_materialization_events()
        if each.asset_key == asset.key
        and each.partition == result.dagster_run.tags["dagster/partition"]
    ]
    if not made:
        return {}
    materialization = made[-1].materialization
    assert materialization.asset_key.to_user_string() == name
    return {
        key: value.data if isinstance(value, dg.JsonMetadataValue) else value.value
        for key, value in materialization.metadata.items()
    }


def _models(metrics: Mapping[str, Any]) -> list[str]:
    heads = "".join(f"{title:<26}" for title in METRICS.values())
    lines = [f"{metrics['rows']:,} impressions, {metrics['clicks']:,} clicks, 95 % intervals", ""]
    lines.append(f"             {heads}calibration")
    for name in ("challenger", "champion", "baseline"):
        if model := metrics["models"].get(name):
            cells = "".join(f"{_interval(model[metric]):<26}" for metric in METRICS)
            lines.append(f"{name:<13}{cells}{_number(model['calibration'])}")
    return lines


def _interval(told: Mapping[str, Any]) -> str:
    return f"{_number(told['value'])} ({_number(told['low'])} to {_number(told['high'])})"


def _number(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _places(told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    if model := told["ads_model"]:
        lines.append(f"model        {model['dagster/uri']}")
        lines.append(f"training log {model.get('log', '')}")
    if predictions := told["ads_predictions"]:
        rows = f"{predictions['dagster/row_count']:,} rows by the {predictions['scored by']}"
        lines.append(f"predictions  {rows}: {predictions['dagster/uri']}")
    return lines


def _times(told: Mapping[str, Mapping[str, Any]]) -> str:
    parts = []
    for name, metadata in told.items():
        seconds = [v for key, v in metadata.items() if key.startswith("seconds ")]
        if seconds:
            start = metadata.get("seconds provisioning", 0.0)
            parts.append(f"{name.removeprefix('ads_')} {sum(seconds):.0f} s (start {start:.0f})")
    return ", ".join(parts) or "nothing ran"


def _failures(result: dg.ExecuteInProcessResult) -> list[str]:
    lines = []
    for event in result.all_events:
        if not event.is_step_failure:
            continue
        if interrupted(result):
            lines.append(f"{event.step_key} was stopped; its job is cancelled, nothing runs on.")
            continue
        failure = event.step_failure_data.user_failure_data
        error = event.step_failure_data.error
        why = (failure.description if failure else None) or (error.message if error else "")
        lines.append(f"{event.step_key} failed: {(why or '').strip()}")
    lines += [
        f"check {check.check_name} of {check.asset_key.to_user_string()}: {check.description}"
        for check in result.get_asset_check_evaluations()
        if not check.passed
    ]
    return [*lines, ""]


def _next(data: str, told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    home = settings.load().home
    if home.is_relative_to(Path.cwd()):
        home = home.relative_to(Path.cwd())
    mlp = f"MLP_HOME={home} .venv/bin/mlp"
    commands = [
        (f"make dev DATA={data}", "the runs, plots and the Launchpad in the Dagster UI"),
        (f"{mlp} job list", ""),
    ]
    if job := told["ads_model"].get("job"):
        commands.append((f"{mlp} job logs {job}", ""))
    if data != "synthetic":
        commands.append(("make run DATA=synthetic", "data in which a challenger wins"))
    # As comments, what they are for may be pasted with them.
    lines = [f"{command:<28} # {why}" if why else command for command, why in commands]
    return [f"{'' if number else 'next':<13}{line}" for number, line in enumerate(lines)]
