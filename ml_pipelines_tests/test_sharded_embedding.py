"""The sharded table against a dense one: the same vectors, the same gradients, half the memory."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from ml_pipelines.workloads.ads_ranking.embedding import ShardedTable, fresh_rows

ROWS, DIM, BATCH, STEPS = 1_003, 4, 64, 3
CPU = torch.device("cpu")


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids (some twice, some on both ranks) and the loss's weights of a rank's share of a step."""
    numbers = torch.Generator().manual_seed(100 * step + rank)
    ids = torch.randint(0, ROWS, (BATCH, 3), generator=numbers)
    ids[:4] = 7
    if step == 1 and rank == 1:
        ids = ids % 10  # all on the first rank: nothing goes to the second one
    return ids, torch.randn(BATCH, 3, DIM, generator=numbers)


def trained(ranks: list[int]) -> ShardedTable:
    """The table after some steps on the shares of `ranks`."""
    table = ShardedTable(ROWS, DIM, seed=5, device=CPU)
    for step in range(STEPS):
        shares = [batch(step, rank) for rank in ranks]
        ids = torch.cat([share[0] for share in shares])
        weights = torch.cat([share[1] for share in shares])
        lookup = table.lookup(ids)
        (lookup.embeddings() * weights).sum().backward()
        table.step(lookup, 0.1)
    return table


def worker(rank: int, folder: str) -> None:
    """One of two workers; leaves its block for the test to compare."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    table = trained([rank])
    ids, _ = batch(9, rank)
    torch.save(
        {
            "first": table.first,
            "weight": table.weight,
            "accumulator": table.accumulator,
            "looked up": table.lookup(ids).embeddings(),
        },
        f"{folder}/{rank}.pt",
    )
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    """What two gloo workers have after training side by side."""
    folder = str(tmp_path_factory.mktemp("blocks"))
    spawn(worker, (folder,), nprocs=2)
    return [torch.load(f"{folder}/{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def dense():
    """What one worker has after training on both shares."""
    return trained([0, 1])


def test_the_rows_are_really_divided(blocks):
    """Each of two workers holds about half of the numbers, and both together hold all rows."""
    sizes = [block["weight"].nbytes + block["accumulator"].nbytes for block in blocks]
    assert sum(sizes) == ROWS * (DIM + 1) * 4
    assert max(sizes) <= 0.51 * sum(sizes)
    assert blocks[1]["first"] == len(blocks[0]["weight"])


@pytest.mark.parametrize("what", ["weight", "accumulator"])
def test_training_divided_is_training_whole(blocks, dense, what):
    """Forward, gradients and updates over two workers end where one worker ends."""
    together = torch.cat([block[what] for block in blocks])
    torch.testing.assert_close(together, getattr(dense, what), rtol=1e-5, atol=1e-6)
    assert not torch.equal(dense.weight, fresh_rows(0, ROWS, DIM, seed=5))


def test_each_worker_gets_the_vectors_it_asked_for(blocks):
    """A lookup answers in the order of asking, whoever owns the rows."""
    whole = torch.cat([block["weight"] for block in blocks])
    for rank in range(2):
        ids, _ = batch(9, rank)
        assert torch.equal(blocks[rank]["looked up"], whole[ids])


def test_gradients_are_those_of_autograd():
    """The gradients sent to the owners equal those that torch gives for a plain lookup."""
    table = ShardedTable(ROWS, DIM, seed=5, device=CPU)
    ids, weights = batch(0, 0)
    plain = table.weight.clone().requires_grad_()
    (plain[ids] * weights).sum().backward()
    lookup = table.lookup(ids)
    (lookup.embeddings() * weights).sum().backward()
    rows, gradient = table.gradient(lookup)
    assert plain.grad is not None
    torch.testing.assert_close(gradient, plain.grad[rows])
    assert set(plain.grad.abs().sum(dim=1).nonzero().flatten().tolist()) <= set(rows.tolist())


@pytest.mark.parametrize("bounds", [(0, 10_000), (8_000, 8_400), (8_191, 8_193)])
def test_a_fresh_row_depends_on_its_number_alone(bounds):
    """Whatever block a row is drawn with, it starts the same."""
    first, last = bounds
    drawn = fresh_rows(first, last, 3, seed=1)
    assert torch.equal(drawn, fresh_rows(0, 20_000, 3, seed=1)[first:last])
    assert not torch.equal(drawn, fresh_rows(first, last, 3, seed=2))
