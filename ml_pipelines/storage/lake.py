"""Partitions of data: folders by day, each complete once its success marker is there.

    <dataset>/dt=YYYY-MM-DD/w-<unique>/00000.parquet   one writer's files
    <dataset>/dt=YYYY-MM-DD/_SUCCESS.json              which of them are the partition; written last

A writer's files lie under a name of their own, so nothing that is read is ever overwritten:
replacing a partition is one atomic write of its marker.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from ml_pipelines.errors import InvalidData, InvalidInput, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from ml_pipelines.storage.store import Store, StoredObject

MARKER = "_SUCCESS.json"
_DATASET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,99})*")


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a partition; `name` is relative to the partition's folder."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Partition:
    """One complete day of a data set.

    `files` are URLs, in order; `schema` maps a column to its pyarrow type, written out;
    `data_version` changes with the rows or the schema, and with nothing else. `extra` is what the
    writer wanted remembered with them: what it was made from, which model made it.
    """

    dataset: str
    day: str
    url: str
    files: tuple[str, ...]
    rows: int
    schema: dict[str, str]
    data_version: str
    created: str
    parts: tuple[DataFile, ...] = field(repr=False)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stage:
    """A place for one writer's files of a partition, invisible until it is committed.

    `path` is relative to the lake; Ray may write Parquet files there with any names.
    """

    dataset: str
    day: str
    path: str
    url: str


class Lake:
    """The data sets below one URL."""

    def __init__(self, store: Store) -> None:
        self.store = store
        # By data set and day: what the listing said of the marker, and the data version in it.
        self._versions: dict[str, dict[str, tuple[str, str]]] = {}

    def stage(self, dataset: str, day: str) -> Stage:
        """A new place to write a partition's files to; `commit` makes them the partition."""
        folder = self._folder(dataset, day)
        path = f"{folder}/w-{uuid.uuid4().hex[:12]}"
        return Stage(dataset, day, path, self.store.child_url(path))

    def commit(self, stage: Stage, *, extra: Mapping[str, Any] | None = None) -> Partition:
        """Make the Parquet files of a stage the partition, in place of what was there.

        `extra` (plain JSON) is kept in the marker. Raises InvalidData where there is no file, or
        where their schemas differ.
        """
        files, rows, schema = [], 0, None
        folder = self._folder(stage.dataset, stage.day)
        for each in self.store.objects(stage.path):
            if not each.path.endswith(".parquet"):
                continue
            digest, footer = self._footer(each)
            rows += footer.num_rows
            found = _schema(footer.schema.to_arrow_schema())
            if schema is not None and found != schema:
                raise InvalidData(self.store.child_url(each.path), found, f"differs from {schema}")
            schema = found
            files.append(DataFile(each.path.removeprefix(f"{folder}/"), each.size, digest))
        if schema is None:
            raise InvalidData(stage.url, stage.day, "was given no Parquet file")
        return self._mark(stage, files, rows=rows, schema=schema, extra=extra)

    def write_partition(self, dataset: str, day: str, tables: Iterable[pa.Table]) -> Partition:
        """Write a day, one Parquet file a table, and replace what was there.

        The day is unchanged until all is written. Raises InvalidInput, InvalidData, StorageError.
        """
        import pyarrow.parquet as pq

        stage = self.stage(dataset, day)
        files, rows, schema = [], 0, None
        for number, table in enumerate(tables):
            found = _schema(table.schema)
            if schema is not None and found != schema:
                raise InvalidData(stage.url, found, f"differs from the first table's {schema}")
            schema = found
            buffer = io.BytesIO()
            pq.write_table(table, buffer, compression="zstd")
            data = buffer.getvalue()
            self.store.put(f"{stage.path}/{number:05d}.parquet", data)
            name = f"{stage.path.rsplit('/', 1)[-1]}/{number:05d}.parquet"
            files.append(DataFile(name, len(data), hashlib.sha256(data).hexdigest()))
            rows += table.num_rows
        if schema is None:
            raise InvalidData(stage.url, day, "was given no table")
        return self._mark(stage, files, rows=rows, schema=schema)

    def partition(self, dataset: str, day: str) -> Partition:
        """A complete day. Raises NotFound where nothing is there, InvalidData where it is unusable.

        Unusable is: files without a marker (half-written), a marker that can't be read, a file
        that the marker names and that is gone or of another size.
        """
        folder = self._folder(dataset, day)
        sizes = {each.path: each.size for each in self.store.objects(folder)}
        url = self.store.child_url(folder)
        if not sizes:
            raise NotFound(f"{url} does not exist.", remedy="Write the day, or choose another one.")
        if f"{folder}/{MARKER}" not in sizes:
            raise InvalidData(
                url,
                day,
                f"is half-written: {len(sizes)} file(s) and no {MARKER}",
                remedy="Write the day again; the marker comes last.",
            )
        partition = self._read_marker(dataset, day)
        for part in partition.parts:
            found = sizes.get(f"{folder}/{part.name}")
            if found != part.bytes:
                state = "is missing" if found is None else f"has {found} bytes, not {part.bytes}"
                raise InvalidData(f"{url}/{part.name}", day, state, remedy="Write the day again.")
        return partition

    def days(self, dataset: str) -> dict[str, str]:
        """The complete days of a data set with their data versions, by day.

        One listing; only markers that are new or changed are read.
        """
        stamps: dict[str, str] = {}
        for each in self.store.objects(_checked_dataset(dataset)):
            folder, _, name = each.path.rpartition("/")
            day = folder.removeprefix(f"{dataset}/dt=")
            if name == MARKER and _is_day(day):
                stamps[day] = f"{each.etag} {each.modified.isoformat()} {each.size}"
        known = self._versions.setdefault(dataset, {})
        new = [day for day, stamp in stamps.items() if known.get(day, ("",))[0] != stamp]
        raws = self.store.get_many([f"{self._folder(dataset, day)}/{MARKER}" for day in new])
        for day, raw in zip(new, raws, strict=True):
            known.pop(day, None)
            try:
                version = self._marked(dataset, day, raw or b"").data_version
            except InvalidData:
                continue  # `partition` says what is wrong with it to whoever asks for the day
            known[day] = (stamps[day], version)
        return {day: known[day][1] for day in sorted(stamps) if day in known}

    def read(self, dataset: str, day: str, *, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of a day, in order. Raises as `partition`, and InvalidData for other columns."""
        partition = self.partition(dataset, day)
        try:
            return self._read(partition, columns)
        except NotFound:
            # It was replaced while we read; its new files are what it is now.
            return self._read(self.partition(dataset, day), columns)

    def verify(self, partition: Partition) -> None:
        """Read every byte and compare. Raises InvalidData for a file that isn't what was written."""
        folder = self._folder(partition.dataset, partition.day)
        for part in partition.parts:
            digest = hashlib.sha256()
            for piece in self.store.chunks(f"{folder}/{part.name}"):
                digest.update(piece)
            if digest.hexdigest() != part.sha256:
                raise InvalidData(
                    f"{partition.url}/{part.name}",
                    partition.day,
                    "is not what was written (its SHA-256 differs)",
                    remedy="Write the day again.",
                )

    def _read(self, partition: Partition, columns: Sequence[str] | None) -> pa.Table:
        import pyarrow as pa
        import pyarrow.parquet as pq

        unknown = [name for name in columns or () if name not in partition.schema]
        if unknown:
            raise InvalidData(
                partition.url,
                unknown[0],
                "is no column of it",
                remedy=f"It has {', '.join(partition.schema)}.",
            )
        folder = self._folder(partition.dataset, partition.day)
        tables = []
        for part in partition.parts:
            data = pa.py_buffer(self.store.get(f"{folder}/{part.name}"))
            try:
                tables.append(pq.read_table(pa.BufferReader(data), columns=columns))
            except (pa.ArrowInvalid, OSError) as error:
                raise InvalidData(
                    f"{partition.url}/{part.name}",
                    partition.day,
                    f"is no Parquet file that can be read ({error})",
                    remedy="Write the day again.",
                ) from error
        return pa.concat_tables(tables)

    def _footer(self, each: StoredObject) -> tuple[str, Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        data = self.store.get(each.path)
        try:
            return hashlib.sha256(data).hexdigest(), pq.read_metadata(pa.BufferReader(data))
        except (pa.ArrowInvalid, OSError) as error:
            raise InvalidData(
                self.store.child_url(each.path), each.size, f"is no Parquet file: {error}"
            ) from error

    def _mark(
        self,
        stage: Stage,
        files: Sequence[DataFile],
        *,
        rows: int,
        schema: dict[str, str],
        extra: Mapping[str, Any] | None = None,
    ) -> Partition:
        folder = self._folder(stage.dataset, stage.day)
        fields = {
            "files": [
                {"name": each.name, "bytes": each.bytes, "sha256": each.sha256} for each in files
            ],
            "rows": rows,
            "schema": schema,
            "data_version": _version(files, schema),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "extra": dict(extra or {}),
        }
        replaced = self._replaced(stage.dataset, stage.day)
        self.store.put(f"{folder}/{MARKER}", json.dumps(fields, indent=1).encode())
        # Only what this very marker replaced: another writer's files may be on their way.
        for name in replaced - {each.name for each in files}:
            self.store.delete(f"{folder}/{name}")
        return self._partition(stage.dataset, stage.day, fields)

    def _replaced(self, dataset: str, day: str) -> set[str]:
        try:
            return {part.name for part in self._read_marker(dataset, day).parts}
        except (InvalidData, NotFound):
            return set()

    def _read_marker(self, dataset: str, day: str) -> Partition:
        raw = self.store.get(f"{self._folder(dataset, day)}/{MARKER}")
        return self._marked(dataset, day, raw)

    def _marked(self, dataset: str, day: str, raw: bytes) -> Partition:
        try:
            return self._partition(dataset, day, json.loads(raw))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidData(
                self.store.child_url(f"{self._folder(dataset, day)}/{MARKER}"),
                raw[:80].decode(errors="replace"),
                f"is no success marker that can be read ({type(error).__name__}: {error})",
                remedy="Write the day again.",
            ) from error

    def _partition(self, dataset: str, day: str, fields: Any) -> Partition:
        url = self.store.child_url(self._folder(dataset, day))
        parts = tuple(
            DataFile(_inside(each["name"]), int(each["bytes"]), str(each["sha256"]))
            for each in fields["files"]
        )
        return Partition(
            dataset=dataset,
            day=day,
            url=url,
            files=tuple(f"{url}/{each.name}" for each in parts),
            rows=int(fields["rows"]),
            schema={str(name): str(kind) for name, kind in fields["schema"].items()},
            data_version=str(fields["data_version"]),
            created=str(fields["created"]),
            parts=parts,
            extra=dict(fields.get("extra") or {}),
        )

    def _folder(self, dataset: str, day: str) -> str:
        if not _is_day(day):
            raise InvalidInput("day", day, "is no day", remedy="Write it as YYYY-MM-DD.")
        return f"{_checked_dataset(dataset)}/dt={day}"


def _checked_dataset(name: str) -> str:
    if not _DATASET.fullmatch(name):
        raise InvalidInput(
            "dataset",
            name,
            "is no name of a data set",
            remedy="Use letters, digits, `_`, `-`, `.`.",
        )
    return name


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _inside(name: str) -> str:
    # A marker is data from outside: it must not lead anywhere else.
    if not name or name.startswith("/") or any(part in {"", ".", ".."} for part in name.split("/")):
        raise ValueError(f"{name!r} is no file of this folder")
    return name


def _schema(schema: pa.Schema) -> dict[str, str]:
    return {each.name: str(each.type) for each in schema}


def _version(files: Sequence[DataFile], schema: dict[str, str]) -> str:
    # Names differ from one writing to the next; contents decide.
    told = {"files": [each.sha256 for each in files], "schema": schema}
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()
