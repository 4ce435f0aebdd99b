"""Checkpoints and models, written by any number of workers, read by any.

    <prefix>/rows-<first>-<last>.f32    rows of the table, float32, row by row, little-endian
    <prefix>/dense.pt                   the replicated part, by torch.save
    <prefix>/manifest.json              meta, and each file's name, size and SHA-256; written last

A folder without its manifest is nothing. The manifest's own SHA-256 goes into the journal's commit,
so what is read is what was committed; whatever differs raises InvalidData, and `restore` then takes
the checkpoint before it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ml_pipelines.errors import InvalidData, NotFound

if TYPE_CHECKING:
    from ml_pipelines.storage import Store

T = TypeVar("T")

FILE_BYTES = 64 * 2**20  # bounds what is in memory at once when a block is written or checked
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Saved:
    """Where a checkpoint or model lies in its store, and its manifest's SHA-256 (empty: any)."""

    prefix: str
    sha256: str


@dataclass(frozen=True, slots=True)
class File:
    """One file of a checkpoint. `first` and `last` are its rows, both 0 for the dense part."""

    name: str
    bytes: int
    sha256: str
    first: int = 0
    last: int = 0


def write_rows(store: Store, prefix: str, first: int, block: NDArray[np.float32]) -> list[File]:
    """Write a worker's block (rows, columns), which begins at row `first` of the table."""
    step = max(FILE_BYTES // max(block[:1].nbytes, 1), 1)
    files = []
    for start in range(0, len(block), step):
        part = np.ascontiguousarray(block[start : start + step], dtype="<f4")
        low, high = first + start, first + start + len(part)
        name = f"rows-{low:012d}-{high:012d}.f32"
        files.append(_write(store, prefix, name, part.tobytes(), first=low, last=high))
    return files


def write_dense(store: Store, prefix: str, data: bytes) -> File:
    """Write the replicated part; one worker does."""
    return _write(store, prefix, "dense.pt", data)


def write_manifest(
    store: Store, prefix: str, files: Sequence[File], meta: Mapping[str, object]
) -> Saved:
    """Make a whole of the files that all workers wrote; the last step."""
    listed = sorted(files, key=lambda file: (file.first, file.name))
    document = {
        "files": [{name: getattr(file, name) for name in File.__slots__} for file in listed],
        **meta,
    }
    data = json.dumps(document, indent=1, sort_keys=True, allow_nan=False).encode()
    store.put(f"{prefix}/{MANIFEST}", data)
    return Saved(prefix, hashlib.sha256(data).hexdigest())


class Folder:
    """A checkpoint or model opened for reading: every byte is checked before it is used."""

    def __init__(self, store: Store, saved: Saved) -> None:
        self._store, self._prefix = store, saved.prefix
        data = self._get(MANIFEST)
        if saved.sha256 and hashlib.sha256(data).hexdigest() != saved.sha256:
            raise self._invalid(MANIFEST, "is not the one that was committed")
        try:
            self.meta: dict[str, Any] = json.loads(data)
            self.files = [File(**file) for file in self.meta.pop("files")]
        except (ValueError, TypeError, KeyError) as err:
            raise self._invalid(MANIFEST, f"can't be read ({err})") from None

    @property
    def version(self) -> str:
        """A hash of the contents alone: the same weights have the same version."""
        told = json.dumps([(file.name, file.sha256) for file in self.files])
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def dense(self) -> bytes:
        """The replicated part."""
        return self._checked(next(file for file in self.files if file.name == "dense.pt"))

    def rows(self, first: int, last: int, columns: int) -> NDArray[np.float32]:
        """Rows [first, last) of the table, (last - first, columns)."""
        block = np.empty((last - first, columns), dtype=np.float32)
        filled = 0
        for file in self.files:
            low, high = max(first, file.first), min(last, file.last)
            if low >= high:
                continue
            part = np.frombuffer(self._checked(file), dtype="<f4").reshape(-1, columns)
            block[low - first : high - first] = part[low - file.first : high - file.first]
            filled += high - low
        if filled != last - first:
            raise self._invalid(MANIFEST, f"lists {filled} of the rows {first} to {last}")
        return block

    def _checked(self, file: File) -> bytes:
        data = self._get(file.name)
        if len(data) != file.bytes or hashlib.sha256(data).hexdigest() != file.sha256:
            raise self._invalid(file.name, "is corrupt: its SHA-256 is not the manifest's")
        return data

    def _get(self, name: str) -> bytes:
        try:
            return self._store.get(self._path(name))
        except NotFound:
            raise self._invalid(name, "is gone") from None

    def _path(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _invalid(self, name: str, problem: str) -> InvalidData:
        return InvalidData(
            self._store.child_url(self._path(name)),
            name,
            problem,
            remedy="Name another model or checkpoint, or train again.",
        )


def restore(
    candidates: Sequence[Saved],
    load: Callable[[Saved], T],
    *,
    agree: Callable[[bool], bool],
    say: Callable[[str], None],
) -> T | None:
    """Load the newest good one of `candidates` (newest first), or None.

    Every worker reads its own rows, so one may find corrupt what others find good: `agree` tells
    whether all of them could load.
    """
    for saved in candidates:
        loaded: T | None = None
        try:
            loaded = load(saved)
        except InvalidData as err:
            say(f"checkpoint skipped: {err}")
        if agree(loaded is not None):
            return loaded
    return None


def _write(
    store: Store, prefix: str, name: str, data: bytes, *, first: int = 0, last: int = 0
) -> File:
    store.put(f"{prefix}/{name}", data)
    return File(name, len(data), hashlib.sha256(data).hexdigest(), first, last)
