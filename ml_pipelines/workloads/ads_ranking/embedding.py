"""An embedding table divided among the workers, exchanged by all-to-all.

Worker r of W owns the rows [r·R/W, (r+1)·R/W): blocks, so a checkpoint's row ranges mean the same
to any number of workers. A step is three calls:

    lookup = table.lookup(rows)        ids out, vectors in; each distinct row travels once
    loss.backward()                    fills the gradient of lookup.vectors
    table.step(lookup, learning_rate)  gradients out to the owners, who update their rows

The optimizer is row-wise Adagrad: one accumulator a row instead of one a number. What a row starts
as is a function of its number and the seed, so any division starts from the same table.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import embedding

INIT_BLOCK = 8192  # rows drawn from one random stream; part of the definition of a fresh table
INIT_SCALE = 0.05
INIT_ACCUMULATOR = 100.0


@dataclass(slots=True)
class Lookup:
    """What a step must remember between the way out and the way back.

    `vectors` (distinct rows, dim) is the leaf whose gradient `step` sends; `inverse` says which of
    them each asked-for row is; `sent` and `received` count rows by peer; `local` are the rows that
    the peers asked of us, by position in our block.
    """

    vectors: torch.Tensor
    inverse: torch.Tensor
    sent: list[int]
    received: list[int]
    local: torch.Tensor

    def embeddings(self) -> torch.Tensor:
        """(…, dim): a vector for each row that was asked for, in the order of asking."""
        # Unlike indexing, whose gradient is summed in the order in which threads happen to come.
        return embedding(self.inverse, self.vectors)


class ShardedTable:
    """This worker's block of a table of `rows` rows of `dim` numbers.

    `first` and `last` bound the block, `weight` (last - first, dim) and `accumulator`
    (last - first,) are float32 on `device`.
    """

    def __init__(self, rows: int, dim: int, *, seed: int, device: torch.device) -> None:
        self.rows, self.dim = rows, dim
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        rank = dist.get_rank() if dist.is_initialized() else 0
        bounds = [rows * r // self.world for r in range(self.world + 1)]
        self.first, self.last = bounds[rank], bounds[rank + 1]
        self._bounds = torch.tensor(bounds[1:-1], device=device)
        self.weight = fresh_rows(self.first, self.last, dim, seed=seed).to(device)
        # Gradients are those of the summed loss, so 1 is about one badly predicted impression; a
        # start at 0 would let ids seen once jump by the full learning rate.
        self.accumulator = torch.full((self.last - self.first,), INIT_ACCUMULATOR, device=device)

    def lookup(self, rows: torch.Tensor) -> Lookup:
        """Fetch the vectors of `rows` (any shape, int64) from their owners."""
        distinct, inverse = torch.unique(rows, return_inverse=True)  # sorted, so grouped by owner
        if self.world == 1:
            sent, received, local = [len(distinct)], [len(distinct)], distinct
        else:
            sent = self._count_by_owner(distinct)
            received = _exchange_counts(sent, rows.device)
            local = _exchange(distinct, sent, received) - self.first
        vectors = _exchange(self.weight[local], received, sent)
        return Lookup(vectors.requires_grad_(), inverse, sent, received, local)

    def gradient(self, lookup: Lookup) -> tuple[torch.Tensor, torch.Tensor]:
        """After `backward`: rows of our block (each once) and the summed gradients of all peers."""
        assert lookup.vectors.grad is not None
        parts = _exchange(lookup.vectors.grad, lookup.sent, lookup.received)
        if self.world == 1:
            return lookup.local, parts
        rows, inverse = torch.unique(lookup.local, return_inverse=True)
        return rows, parts.new_zeros(len(rows), self.dim).index_add_(0, inverse, parts)

    def step(self, lookup: Lookup, learning_rate: float, *, scale: float = 1.0) -> None:
        """Update our rows; `scale` turns the loss's gradients into those of the summed loss."""
        rows, gradient = self.gradient(lookup)
        gradient = gradient * scale
        accumulator = self.accumulator[rows] + gradient.square().mean(dim=1)
        self.accumulator[rows] = accumulator
        self.weight[rows] -= learning_rate * gradient / accumulator.sqrt().unsqueeze(1)

    def _count_by_owner(self, distinct: torch.Tensor) -> list[int]:
        cuts = torch.searchsorted(distinct, self._bounds).tolist()
        edges = [0, *cuts, len(distinct)]
        return [end - start for start, end in itertools.pairwise(edges)]


def fresh_rows(first: int, last: int, dim: int, *, seed: int) -> torch.Tensor:
    """Rows [first, last) of the table that `seed` starts from."""
    rows = np.empty((last - first, dim), dtype=np.float32)
    for block in range(first // INIT_BLOCK, -(-last // INIT_BLOCK)):
        start = block * INIT_BLOCK
        drawn = np.random.default_rng([seed, block]).standard_normal(
            (INIT_BLOCK, dim), dtype=np.float32
        )
        low, high = max(first, start), min(last, start + INIT_BLOCK)
        rows[low - first : high - first] = drawn[low - start : high - start]
    return torch.from_numpy(rows * np.float32(INIT_SCALE))


def _exchange_counts(sent: list[int], device: torch.device) -> list[int]:
    counts = torch.tensor(sent, device=device)
    answer = torch.empty_like(counts)
    dist.all_to_all_single(answer, counts)
    return [int(n) for n in answer.tolist()]


def _exchange(values: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
    """Send each peer its part of `values`, by rows; parts arrive in the order of ranks."""
    if len(sent) == 1:
        return values
    answer = values.new_empty(sum(received), *values.shape[1:])
    dist.all_to_all_single(answer, values.contiguous(), received, sent)
    return answer
