"""Partitions of the lake: complete or not there, whatever stopped the writer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ml_pipelines.errors import InvalidData, InvalidInput, NotFound, StorageUnavailable
from ml_pipelines.storage import Lake, Store, open_store

DAY = "2026-01-02"
FOLDER = f"clicks/dt={DAY}"
MARKER = f"{FOLDER}/_SUCCESS.json"


def table(*values: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(values, pa.int64()),
            "name": pa.array([f"n{v}" for v in values], pa.string()),
        }
    )


@pytest.fixture
def lake(store: Store) -> Lake:
    """An empty lake, on local files and on S3."""
    return Lake(store)


@pytest.fixture
def local(tmp_path) -> Lake:
    """An empty lake on local files, for what does not depend on the store."""
    return Lake(open_store(f"file://{tmp_path}/lake"))


def test_reads_what_was_written(lake: Lake) -> None:
    """Rows in order over several files; the marker tells rows, schema and version."""
    written = lake.write_partition("clicks", DAY, [table(1, 2), table(3)])
    found = lake.partition("clicks", DAY)
    assert found == written
    assert (found.rows, found.schema) == (3, {"id": "int64", "name": "string"})
    assert lake.read("clicks", DAY).column("id").to_pylist() == [1, 2, 3]
    assert lake.read("clicks", DAY, columns=["name"]).column_names == ["name"]
    assert lake.days("clicks") == {DAY: written.data_version}
    lake.verify(found)


def test_replacing_is_one_step(lake: Lake) -> None:
    """New data has a new version, and the old files are gone after the new marker."""
    old = lake.write_partition("clicks", DAY, [table(1)])
    new = lake.write_partition("clicks", DAY, [table(2)])
    assert new.data_version != old.data_version
    assert lake.days("clicks") == {DAY: new.data_version}
    assert lake.read("clicks", DAY).column("id").to_pylist() == [2]
    assert len(lake.store.list(FOLDER)) == 2


def test_other_tools_may_write_a_stage(lake: Lake) -> None:
    """Parquet files of any name in a stage become the partition, and are nothing before."""
    stage = lake.stage("clicks", DAY)
    for name, rows in (("part-7.parquet", table(7)), ("part-1.parquet", table(1, 2))):
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink)
        lake.store.put(f"{stage.path}/{name}", sink.getvalue().to_pybytes())
    assert lake.days("clicks") == {}
    partition = lake.commit(stage, extra={"made_from": "x"})
    assert (partition.rows, partition.extra) == (3, {"made_from": "x"})
    assert lake.read("clicks", DAY).column("id").to_pylist() == [1, 2, 7]


def test_same_data_has_the_same_version(local: Lake) -> None:
    """Written twice, or on another day, the same rows are the same data."""
    first = local.write_partition("clicks", DAY, [table(1, 2)])
    again = local.write_partition("clicks", DAY, [table(1, 2)])
    other_type = table(1, 2).set_column(0, "id", pa.array([1, 2], pa.int32()))
    changed = local.write_partition("clicks", DAY, [other_type])
    assert first.data_version == again.data_version != changed.data_version


def test_missing_day_is_not_found(local: Lake) -> None:
    """A day with nothing in it is missing, not broken."""
    with pytest.raises(NotFound, match=DAY):
        local.partition("clicks", DAY)


def test_half_written_day_is_refused(lake: Lake) -> None:
    """Case H1's kind: files without the marker are no partition, and the message says so."""
    lake.store.put(f"{FOLDER}/w-x/00000.parquet", b"PAR1")
    with pytest.raises(InvalidData, match=r"dt=2026-01-02.*half-written.*Write the day again"):
        lake.partition("clicks", DAY)
    assert lake.days("clicks") == {}


@pytest.mark.parametrize(
    "marker",
    [
        b"",
        b"{",
        b"[]",
        b'{"files": [], "rows": 1}',
        b'{"files": 3, "rows": 1, "schema": {}, "data_version": "", "created": ""}',
        json.dumps({
            "files": [{"name": "../../other/x.parquet", "bytes": 1, "sha256": ""}],
            "rows": 1,
            "schema": {},
            "data_version": "v",
            "created": "",
        }).encode(),
    ],
    ids=["empty", "cut", "list", "fields missing", "wrong type", "leads elsewhere"],
)  # fmt: skip
def test_corrupt_marker_is_refused(local: Lake, marker: bytes) -> None:
    """It makes the day unusable, not the data set: other days are found all the same."""
    local.write_partition("clicks", "2026-01-01", [table(1)])
    local.store.put(MARKER, marker)
    with pytest.raises(InvalidData, match=r"_SUCCESS.json.*no success marker"):
        local.partition("clicks", DAY)
    assert list(local.days("clicks")) == ["2026-01-01"]


def test_file_of_another_size_is_refused(local: Lake) -> None:
    """A file that was cut or is gone is noticed by the listing alone."""
    part = local.write_partition("clicks", DAY, [table(1)]).parts[0]
    data = local.store.get(f"{FOLDER}/{part.name}")
    local.store.put(f"{FOLDER}/{part.name}", data[:-1])
    with pytest.raises(InvalidData, match=f"has {len(data) - 1} bytes, not {len(data)}"):
        local.partition("clicks", DAY)
    local.store.delete(f"{FOLDER}/{part.name}")
    with pytest.raises(InvalidData, match="is missing"):
        local.read("clicks", DAY)


def test_changed_bytes_are_found_by_verify(local: Lake) -> None:
    """The same size and other bytes: the hash tells."""
    partition = local.write_partition("clicks", DAY, [table(1)])
    path = f"{FOLDER}/{partition.parts[0].name}"
    data = bytearray(local.store.get(path))
    data[10] ^= 1
    local.store.put(path, bytes(data))
    with pytest.raises(InvalidData, match="SHA-256"):
        local.verify(local.partition("clicks", DAY))


def test_zero_rows_are_told(local: Lake) -> None:
    """An empty day is complete and says that it has no rows: whoever needs some refuses it."""
    partition = local.write_partition("clicks", DAY, [table()])
    assert (partition.rows, partition.schema) == (0, {"id": "int64", "name": "string"})
    assert local.read("clicks", DAY).num_rows == 0


def test_no_table_is_refused(local: Lake) -> None:
    """A writer without a table has no schema to promise."""
    with pytest.raises(InvalidData, match="no table"):
        local.write_partition("clicks", DAY, [])
    with pytest.raises(InvalidData, match="no Parquet file"):
        local.commit(local.stage("clicks", DAY))
    assert local.days("clicks") == {}


def test_tables_of_different_schemas_are_refused(local: Lake) -> None:
    """One partition, one schema."""
    with pytest.raises(InvalidData, match="differs"):
        local.write_partition("clicks", DAY, [table(1), pa.table({"id": [1.5]})])
    assert local.days("clicks") == {}


def test_unknown_column_is_said(local: Lake) -> None:
    """The message names the column and those that there are."""
    local.write_partition("clicks", DAY, [table(1)])
    with pytest.raises(InvalidData, match=r"'clicked' is no column.*id, name"):
        local.read("clicks", DAY, columns=["clicked"])


@pytest.mark.parametrize("day", ["2026-1-2", "2026-02-30", "today", "../x", "20260102", ""])
def test_odd_day_is_refused(local: Lake, day: str) -> None:
    """Only YYYY-MM-DD names a day."""
    with pytest.raises(InvalidInput, match="YYYY-MM-DD"):
        local.partition("clicks", day)


@pytest.mark.parametrize("name", ["", "../x", "a b", "/abs", "a//b", ".hidden"])
def test_odd_dataset_is_refused(local: Lake, name: str) -> None:
    """A name never leads out of the lake."""
    with pytest.raises(InvalidInput, match="dataset"):
        local.days(name)


def test_foreign_folders_are_no_days(local: Lake) -> None:
    """What others keep beside the days is not looked at."""
    local.write_partition("clicks", DAY, [table(1)])
    local.store.put("clicks/dt=latest/_SUCCESS.json", b"x")
    local.store.put("clicks/_SUCCESS.json", b"x")
    assert list(local.days("clicks")) == [DAY]


def test_days_reads_only_what_is_new(tmp_path) -> None:
    """Many days cost one listing; a marker is read again only where it changed."""
    store = _Counting(f"file://{tmp_path}/lake")
    lake = Lake(store)
    for number in range(1, 6):
        lake.write_partition("clicks", f"2026-01-0{number}", [table(number)])
    reader = Lake(store)
    store.gets = 0
    reader.days("clicks")
    assert store.gets == 5
    lake.write_partition("clicks", "2026-01-03", [table(33)])
    store.gets = 0
    days = reader.days("clicks")
    assert store.gets == 1
    assert days["2026-01-03"] == lake.partition("clicks", "2026-01-03").data_version


@pytest.mark.parametrize("fails_at", [1, 2, 3], ids=["first file", "second file", "marker"])
@pytest.mark.parametrize("before", [False, True], ids=["new day", "replaced day"])
def test_full_disk_leaves_the_day_as_it_was(tmp_path, fails_at: int, before: bool) -> None:
    """Wherever the disk runs full, no half of a partition can be read as complete."""
    store = _RunsFull(f"file://{tmp_path}/lake")
    lake = Lake(store)
    if before:
        lake.write_partition("clicks", DAY, [table(0)])
    store.full_at = fails_at
    with pytest.raises(StorageUnavailable, match="full"):
        lake.write_partition("clicks", DAY, [table(1), table(2)])
    if before:
        assert Lake(store).read("clicks", DAY).column("id").to_pylist() == [0]
    else:
        assert Lake(store).days("clicks") == {}
        with pytest.raises((InvalidData, NotFound)):
            Lake(store).read("clicks", DAY)


def test_reader_follows_a_replacement(tmp_path) -> None:
    """A day that is replaced while it is read gives its new rows, never a mixture or an error."""
    store = _Replaced(f"file://{tmp_path}/lake")
    lake = Lake(store)
    lake.write_partition("clicks", DAY, [table(1), table(1)])
    store.then = lambda: Lake(open_store(store.url)).write_partition("clicks", DAY, [table(2)])
    assert lake.read("clicks", DAY).column("id").to_pylist() == [2]


class _Counting(Store):
    gets = 0

    def get(self, path: str) -> bytes:
        self.gets += 1
        return super().get(path)


class _RunsFull(Store):
    full_at = 0

    def put(self, path: str, data: bytes | Iterable[bytes]) -> None:
        self.full_at -= 1
        if self.full_at == 0:
            raise StorageUnavailable(f"{path}: no space left.", remedy="The disk is full.")
        super().put(path, data)


class _Replaced(Store):
    then: Callable[[], object] = staticmethod(lambda: None)

    def get(self, path: str) -> bytes:
        if path.endswith("00001.parquet"):
            self.then()
        return super().get(path)
