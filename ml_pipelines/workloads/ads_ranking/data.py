"""Which examples a step sees, whatever the number of workers.

It is a pure function of (seed, epoch, step). The row groups of the window are put in an order drawn
from (seed, epoch) and laid end to end; the line is cut into `LANES` equal pieces. Lane l gives
batch/LANES rows to every step, in the order of its piece; within a row group rows are shuffled by
(seed, epoch, group). Workers share out the lanes in order, so the rows of a step, taken over all
workers, don't depend on how many there are, and a resumed training finds its place without reading
what came before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ml_pipelines.storage import arrow_filesystem
from ml_pipelines.workloads.ads_ranking.schema import DENSE_FIELDS, ID_FIELDS

if TYPE_CHECKING:
    import pyarrow.parquet as pq

LANES = 32


@dataclass(frozen=True, slots=True)
class Rows:
    """Some examples: ids (n, fields) int32, dense (n, dense fields) float32, click (n,) float32."""

    ids: NDArray[np.int32]
    dense: NDArray[np.float32]
    click: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.click)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of a features file."""

    url: str
    index: int
    rows: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All examples of a window and how they are dealt; `batch_size` counts over all workers."""

    groups: tuple[RowGroup, ...]
    batch_size: int
    seed: int

    @property
    def rows(self) -> int:
        """Examples in an epoch."""
        return sum(group.rows for group in self.groups)

    @property
    def steps(self) -> int:
        """Steps in an epoch, the same for every worker; the last one may be short."""
        longest = -(-self.rows // LANES)
        return -(-longest // (self.batch_size // LANES))

    def batches(
        self, epoch: int, *, rank: int = 0, workers: int = 1, first_step: int = 0
    ) -> Iterator[Rows]:
        """What one of `workers` workers sees from step `first_step` of an epoch on."""
        lanes = range(LANES * rank // workers, LANES * (rank + 1) // workers)
        streams = [self._lane(epoch, lane, first_step) for lane in lanes]
        for step in zip(*streams, strict=True):
            yield _concatenated(step)

    def _lane(self, epoch: int, lane: int, first_step: int) -> Iterator[Rows]:
        share = self.batch_size // LANES
        start, end = self.rows * lane // LANES, self.rows * (lane + 1) // LANES
        reader = self._line(epoch, min(start + first_step * share, end), end)
        held: list[Rows] = []
        for _ in range(first_step, self.steps):
            while sum(map(len, held)) < share and (rows := next(reader, None)) is not None:
                held.append(rows)
            rows = _concatenated(held) if held else _nothing()
            yield _slice(rows, 0, share)
            held = [_slice(rows, share, len(rows))] if len(rows) > share else []

    def _line(self, epoch: int, start: int, end: int) -> Iterator[Rows]:
        """Positions [start, end) of the line of an epoch, one row group at a time."""
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.groups))
        edges = np.cumsum([0, *(self.groups[i].rows for i in order)]).tolist()
        place = bisect_right(edges, start) - 1
        while start < end:
            number = int(order[place])
            rows = self.groups[number].rows
            shuffle = np.random.default_rng([self.seed, epoch, number]).permutation(rows)
            chosen = shuffle[start - edges[place] : min(end, edges[place + 1]) - edges[place]]
            yield _taken(read_group(self.groups[number]), chosen)
            place += 1
            start = edges[place]


def plan(urls: Sequence[str], *, batch_size: int, seed: int) -> Plan:
    """Read the footers of the features files and lay out the epochs."""
    groups = [
        RowGroup(url, index, rows)
        for url in urls
        for index, rows in enumerate(_group_sizes(url))
        if rows
    ]
    return Plan(tuple(groups), batch_size, seed)


def read_group(group: RowGroup) -> Rows:
    """Read one row group, in the order of the file."""
    columns = [*(f"id_{name}" for name in ID_FIELDS), *DENSE_FIELDS, "click"]
    table = _open(group.url).read_row_group(group.index, columns=columns, use_threads=False)
    ids = np.empty((group.rows, len(ID_FIELDS)), dtype=np.int32)
    for column, name in enumerate(ID_FIELDS):
        ids[:, column] = table[f"id_{name}"].to_numpy()
    dense = np.stack([table[name].to_numpy() for name in DENSE_FIELDS], axis=1)
    return Rows(ids, dense, table["click"].to_numpy().astype(np.float32))


def read_file(url: str) -> Iterator[Rows]:
    """All of a features file, one row group at a time, in its own order."""
    for index, rows in enumerate(_group_sizes(url)):
        yield read_group(RowGroup(url, index, rows))


@lru_cache(maxsize=64)
def _open(url: str) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    filesystem, path = arrow_filesystem(url)
    return pq.ParquetFile(path, filesystem=filesystem)


def _group_sizes(url: str) -> list[int]:
    metadata = _open(url).metadata
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


def _taken(rows: Rows, chosen: NDArray[np.int64]) -> Rows:
    return Rows(rows.ids[chosen], rows.dense[chosen], rows.click[chosen])


def _slice(rows: Rows, start: int, end: int) -> Rows:
    return Rows(rows.ids[start:end], rows.dense[start:end], rows.click[start:end])


def _concatenated(parts: Sequence[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    return Rows(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.dense for part in parts]),
        np.concatenate([part.click for part in parts]),
    )


def _nothing() -> Rows:
    return Rows(
        np.empty((0, len(ID_FIELDS)), np.int32),
        np.empty((0, len(DENSE_FIELDS)), np.float32),
        np.empty(0, np.float32),
    )
