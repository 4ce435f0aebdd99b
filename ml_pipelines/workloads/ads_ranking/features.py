"""Features of impressions: ids hashed, numbers checked, by Ray Data.

    python -m ml_pipelines.workloads.ads_ranking.features        (in a job; see `FeaturesParams`)

Each file of the day's impressions becomes one file of features, in its own order, with row groups
of a fixed size, so the same impressions give the same bytes however many tasks ran. A day whose
features were made of the same impressions by the same code is left as it is.

The result: {"days": {day: {"made", "rows", "data_version", "made_from"}}, "dataset"}.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml_pipelines.errors import InvalidData
from ml_pipelines.storage import Lake, Partition, arrow_filesystem, open_store
from ml_pipelines.workloads.ads_ranking.schema import (
    DENSE_FIELDS,
    FEATURES,
    FEATURES_DATASET,
    ID_FIELDS,
    IMPRESSIONS,
    arrow_schema,
)
from ml_pipelines.workloads.joining import join_ray
from ml_pipelines.workloads.params import parse
from ml_pipelines.workloads.report import Run, driver

if TYPE_CHECKING:
    import pyarrow as pa

Execute = Callable[[Sequence[Mapping[str, str]]], None]

ROW_GROUP_ROWS = 8192
RECIPE = "1"  # raise it when the same impressions are to give other features


@dataclass(frozen=True)
class FeaturesParams:
    """Which days' impressions, and the data sets they lie in and go to."""

    days: tuple[str, ...]
    dataset: str = "impressions"
    output: str = FEATURES_DATASET


def main() -> None:
    """The driver of a features job."""
    with driver() as run:
        run.result(make_features(run, parse(FeaturesParams, run.params)))


def make_features(
    run: Run, params: FeaturesParams, *, execute: Execute | None = None
) -> dict[str, Any]:
    """Make the features that are missing or old, all days in one execution of Ray Data.

    `execute` does `write_features` of each item; by default Ray Data does.
    """
    execute = execute or by_ray_data
    sources = {day: checked(run.lake.partition(params.dataset, day)) for day in params.days}
    made_from = {
        day: {"data_version": source.data_version, "recipe": RECIPE}
        for day, source in sources.items()
    }
    ready = _ready(run.lake, params.output, made_from)
    todo = {day: run.lake.stage(params.output, day) for day in params.days if day not in ready}
    if todo:
        run.progress(f"making features of {len(todo)} day(s)")
        execute(
            [
                {"source": url, "lake": run.lake.store.url, "path": f"{stage.path}/{number:05d}"}
                for day, stage in todo.items()
                for number, url in enumerate(sources[day].files)
            ]
        )
    for day, stage in todo.items():
        ready[day] = run.lake.commit(stage, extra={"made_from": made_from[day]})
    return {
        "dataset": params.output,
        "days": {
            day: {
                "made": day in todo,
                "rows": ready[day].rows,
                "data_version": ready[day].data_version,
                "made_from": made_from[day]["data_version"],
            }
            for day in params.days
        },
    }


def checked(partition: Partition) -> Partition:
    """The day's impressions, if features can be made of them; InvalidData else."""
    for name, kind in IMPRESSIONS.items():
        found = partition.schema.get(name)
        if found != kind:
            raise InvalidData(
                f"{partition.url} column {name}",
                found,
                f"is not the {kind} that features need",
                remedy="Write the day again with it.",
            )
    if not partition.rows:
        raise InvalidData(partition.url, 0, "rows are no day", remedy="Write the day again.")
    return partition


def write_features(item: Mapping[str, str]) -> dict[str, Any]:
    """One file of impressions to one file of features: what a task of Ray Data does."""
    import pyarrow.parquet as pq

    filesystem, path = arrow_filesystem(item["source"])
    source = pq.ParquetFile(path, filesystem=filesystem)
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / "features.parquet"
        # Ids are hashes: dictionaries would only make the file larger.
        with pq.ParquetWriter(
            local, arrow_schema(FEATURES), compression="zstd", use_dictionary=False
        ) as writer:
            for group in range(source.num_row_groups):
                table = source.read_row_group(group, columns=list(IMPRESSIONS), use_threads=False)
                writer.write_table(features_of(table), row_group_size=ROW_GROUP_ROWS)
        open_store(item["lake"]).put_file(f"{item['path']}.parquet", local)
    return {"rows": source.metadata.num_rows}


def features_of(impressions: pa.Table) -> pa.Table:
    """The features of a table of impressions, row for row; InvalidData names a bad column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = {
        "impression_id": impressions["impression_id"],
        "click": impressions["click"],
        **{f"id_{name}": hashed(name, impressions[name]) for name in ID_FIELDS},
    }
    for name in DENSE_FIELDS:
        if not pc.all(pc.is_finite(impressions[name])).as_py():
            raise InvalidData(name, "NaN or infinite", "is no feature", remedy="Mend the source.")
        columns[name] = impressions[name]
    return pa.table(columns).cast(arrow_schema(FEATURES))


def hashed(field: str, values: pa.ChunkedArray) -> pa.Array:
    """31 bits for each value, salted by the field's name: "3" is another id in another field."""
    import pyarrow as pa

    encoded = values.combine_chunks().dictionary_encode()
    codes = [_hash(field, str(value)) for value in encoded.dictionary.to_pylist()]
    return pa.array(codes, pa.int32()).take(encoded.indices)


def _hash(field: str, value: str) -> int:
    digest = hashlib.blake2b(f"{field}\0{value}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFFFFFF


def _ready(
    lake: Lake, dataset: str, made_from: Mapping[str, Mapping[str, str]]
) -> dict[str, Partition]:
    have = lake.days(dataset)
    found = {day: lake.partition(dataset, day) for day in made_from if day in have}
    return {
        day: partition
        for day, partition in found.items()
        if partition.extra.get("made_from") == made_from[day]
    }


def by_ray_data(items: Sequence[Mapping[str, str]]) -> None:
    """Write the features of all items, in parallel."""
    import ray.data

    join_ray()
    ray.data.from_items(list(items), override_num_blocks=len(items)).map(write_features).take_all()


if __name__ == "__main__":
    main()
