"""Checkpoints: read as written, whatever the division; anything else is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ml_pipelines.errors import InvalidData
from ml_pipelines.storage import Store, open_store
from ml_pipelines.workloads import checkpoint
from ml_pipelines.workloads.checkpoint import Folder, Saved

TABLE = np.arange(30, dtype=np.float32).reshape(10, 3)


@pytest.fixture
def store(tmp_path) -> Store:
    """A store of its own."""
    return open_store(f"file://{tmp_path}")


@pytest.fixture
def saved(store) -> Saved:
    """A checkpoint that two workers wrote, of 6 and 4 rows."""
    files = [
        *checkpoint.write_rows(store, "c", 0, TABLE[:6]),
        *checkpoint.write_rows(store, "c", 6, TABLE[6:]),
        checkpoint.write_dense(store, "c", b"dense"),
    ]
    return checkpoint.write_manifest(store, "c", files, {"step": 7})


@pytest.mark.parametrize("bounds", [(0, 10), (0, 5), (5, 10), (3, 7), (6, 6)])
def test_any_range_of_rows_can_be_read(store, saved, bounds):
    """Rows are found in whichever files hold them."""
    folder = Folder(store, saved)
    assert np.array_equal(folder.rows(bounds[0], bounds[1], 3), TABLE[bounds[0] : bounds[1]])
    assert folder.dense() == b"dense"
    assert folder.meta == {"step": 7}


def test_large_blocks_are_cut_into_files(store, monkeypatch):
    """No file is larger than the limit, and the rows come back whole."""
    monkeypatch.setattr(checkpoint, "FILE_BYTES", 4 * 12)
    files = checkpoint.write_rows(store, "c", 0, TABLE)
    assert [file.last - file.first for file in files] == [4, 4, 2]
    saved = checkpoint.write_manifest(store, "c", files, {})
    assert np.array_equal(Folder(store, saved).rows(0, 10, 3), TABLE)


def read_all(store: Store, saved: Saved) -> None:
    """Read every byte of a checkpoint."""
    folder = Folder(store, saved)
    folder.rows(0, 10, 3)
    folder.dense()


def flipped(data: bytes) -> bytes:
    """The same length, one bit off."""
    return bytes([data[0] ^ 1]) + data[1:]


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("rows-000000000006-000000000010.f32", flipped, "is corrupt"),
        ("rows-000000000006-000000000010.f32", lambda data: data[:-4], "is corrupt"),
        ("rows-000000000006-000000000010.f32", None, "is gone"),
        ("dense.pt", flipped, "is corrupt"),
        ("manifest.json", flipped, "committed"),
        ("manifest.json", None, "is gone"),
    ],
    ids=["bit", "short", "missing", "dense", "manifest", "no manifest"],
)
def test_whatever_differs_is_refused(store, saved, name, damage, said):
    """Case H1: a file that is missing, short or changed is named, and never used."""
    path = f"c/{name}"
    if damage is None:
        store.delete(path)
    else:
        store.put(path, damage(store.get(path)))
    with pytest.raises(InvalidData, match=said) as caught:
        read_all(store, saved)
    assert name in str(caught.value)
    assert caught.value.remedy


def test_missing_rows_are_noticed(store, saved):
    """A manifest that does not cover the rows asked for is no checkpoint of that table."""
    with pytest.raises(InvalidData, match="lists 10 of the rows 0 to 12"):
        Folder(store, saved).rows(0, 12, 3)


def test_a_manifest_that_can_not_be_read(store):
    """A manifest that is no JSON of ours is refused also where no hash is known."""
    store.put("c/manifest.json", json.dumps({"files": [{"bad": 1}]}).encode())
    with pytest.raises(InvalidData, match="can't be read"):
        Folder(store, Saved("c", ""))


def test_one_worker_that_fails_makes_all_fall_back():
    """A checkpoint that one worker can't read is used by none."""
    tried: list[str] = []

    def load(saved: Saved) -> str:
        tried.append(saved.prefix)
        return saved.prefix

    loaded = checkpoint.restore(
        [Saved("new", ""), Saved("old", "")],
        load,
        agree=lambda ok: ok and tried[-1] != "new",  # another worker found `new` corrupt
        say=print,
    )
    assert (loaded, tried) == ("old", ["new", "old"])
