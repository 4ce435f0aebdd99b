"""What each asset tells Dagster, and what the next one reads of it.

The machine-readable part of a materialization is its metadata entry `record`; the rest is for
people: numbers plot across partitions, tables hold curves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from ml_pipelines.errors import InvalidData
from ml_pipelines.orchestration.resource import JobOutcome
from ml_pipelines.workloads.ads_ranking.gate import Outcome

if TYPE_CHECKING:
    from ml_pipelines.journal.pointer import Champion

RECORD = "record"
CURVE_POINTS = 100


@dataclass(frozen=True, slots=True)
class Challenger:
    """A trained model: the job and journal entry of its result, and where it lies."""

    model_name: str
    run_key: str
    entry: int
    partition: str
    model_url: str
    version: str


@dataclass(frozen=True, slots=True)
class Judged:
    """An evaluation with the gate's decision.

    `against` is the champion's number, 0 for none; `config` is the EvaluateConfig's fields.
    """

    challenger: Challenger
    against: int
    outcome: str
    sentence: str
    valid: bool
    config: Mapping[str, Any]
    metrics: Mapping[str, Any]

    @property
    def told(self) -> str:
        """Outcome and reason in one sentence."""
        if self.sentence.lower().startswith(self.outcome):
            return self.sentence
        return f"{self.outcome}: {self.sentence}"

    def why_not(self, champion: Champion | None) -> str:
        """Why the challenger isn't to be promoted, in one sentence; empty where it is."""
        if self.outcome != Outcome.BETTER:
            return self.sentence
        if champion is not None and champion.partition > self.challenger.partition:
            return (
                f"The champion is of {champion.partition}: a retrain of the earlier "
                f"{self.challenger.partition} never replaces it."
            )
        return ""

    def as_champion(self) -> Champion:
        """The challenger as it would be promoted."""
        from ml_pipelines.journal.pointer import Champion

        return Champion(
            run_key=self.challenger.run_key,
            entry=self.challenger.entry,
            partition=self.challenger.partition,
            model_url=self.challenger.model_url,
            version=self.challenger.version,
            metrics=self.metrics,
        )


def latest_model(context: dg.AssetExecutionContext, day: str) -> Challenger:
    """The newest model trained for that day. Raises InvalidData."""
    return Challenger(**_latest(context, "ads_model", day))


def latest_evaluation(context: dg.AssetExecutionContext, day: str) -> Judged:
    """The newest evaluation of that day. Raises InvalidData."""
    record = _latest(context, "ads_evaluation", day)
    return Judged(**{**record, "challenger": Challenger(**record["challenger"])})


def _latest(context: dg.AssetExecutionContext, asset: str, day: str) -> dict[str, Any]:
    records = dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), asset_partitions=[day])
    found = context.instance.fetch_materializations(records, limit=1).records
    materialization = found[0].asset_materialization if found else None
    record = materialization.metadata.get(RECORD) if materialization else None
    if not isinstance(record, dg.JsonMetadataValue) or not isinstance(record.data, dict):
        raise InvalidData(
            asset, day, "was never made", remedy=f"Materialize {asset} for {day} first."
        )
    return record.data


def told(
    outcome: JobOutcome | None,
    metadata: Mapping[str, Any],
    *,
    record: Challenger | Judged | None = None,
    version: str = "",
    checks: Sequence[dg.AssetCheckResult] = (),
) -> dg.MaterializeResult[None]:
    """A materialization: what it says, what the next asset reads, its data version."""
    shown = dict(metadata)
    if outcome is not None:
        shown |= outcome.metadata()
    if record is not None:
        shown[RECORD] = dg.MetadataValue.json(asdict(record))
    return dg.MaterializeResult(
        metadata=shown,
        data_version=dg.DataVersion(version) if version else None,
        check_results=list(checks),
    )


def curve(points: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """A table of at most CURVE_POINTS rows, the last one always among them."""
    stride = max(1, -(-len(points) // CURVE_POINTS))
    thinned = list(points[::-1][::stride][::-1])
    return table(thinned)


def table(rows: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """Rows of numbers and texts as a table, for reading: five digits a number.

    Columns are in the order of the first row.
    """
    columns = list(rows[0]) if rows else []
    schema = dg.TableSchema(
        columns=[dg.TableColumn(name, _column_type(rows, name)) for name in columns]
    )
    records = [dg.TableRecord({name: _readable(row.get(name)) for name in columns}) for row in rows]
    return dg.MetadataValue.table(records, schema)


def _readable(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def number(value: object) -> float | int | str:
    """A number that plots; what JSON has no number for is shown as text."""
    if isinstance(value, int):
        return value
    if not isinstance(value, (float, str)):
        return "unknown"
    return float(value) if math.isfinite(float(value)) else str(value)


def _column_type(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    kinds = {type(row.get(name)) for row in rows}
    if kinds <= {int}:
        return "int"
    return "float" if kinds <= {int, float} else "string"
