"""The training loop of one worker; all workers run it side by side.

It knows nothing of Ray: run by Ray Train, by torchrun or alone it is the same, and with the same
number of workers it gives the same model, bit for bit. What one worker does in a step:

    rows    its lanes' share of the batch (`data`)
    lookup  vectors of the rows' ids, from whichever worker owns them (`embedding`)
    model   one logit a row; the dense part's gradients are averaged by DDP (`model`)
    update  Adam for the dense part, row-wise Adagrad for the rows that were looked up
"""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

from ml_pipelines.clock import Clock, SystemClock
from ml_pipelines.errors import InvalidData, StorageUnavailable
from ml_pipelines.workloads import checkpoint
from ml_pipelines.workloads.ads_ranking import data
from ml_pipelines.workloads.ads_ranking.config import Outcome, Task
from ml_pipelines.workloads.ads_ranking.embedding import ShardedTable
from ml_pipelines.workloads.ads_ranking.model import fresh_model
from ml_pipelines.workloads.ads_ranking.progress import Progress, Step
from ml_pipelines.workloads.device import worker_device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ml_pipelines.storage import Store

MODEL_TRIES = 120  # of writing the model at the end, while storage is away
RETRY_EVERY_S = 5.0
CURVE_POINTS = 500
SLOWEST = 0.02  # the learning rates' factor at the end


class Trainer:
    """One worker's part of the model, its optimizers and its place in the data."""

    def __init__(self, task: Task, store: Store) -> None:
        self.task, self.store, self.config = task, store, task.config
        self.device = worker_device(cuda=task.cuda)
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.workers = dist.get_world_size() if dist.is_initialized() else 1
        config = self.config
        self.table = ShardedTable(
            config.hash_buckets, config.embedding_dim, seed=config.seed, device=self.device
        )
        self.dense = fresh_model(
            config.embedding_dim, base_rate=task.base_rate, seed=config.seed
        ).to(self.device)
        self.model: nn.Module = self.dense
        if self.workers > 1:
            self.model = DistributedDataParallel(self.dense, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.Adam(self.dense.parameters(), lr=config.dense_learning_rate)
        self.step = 0  # over all epochs; the next one to be done

    def train_step(self, rows: data.Rows, slow: float) -> Step:
        """Forward, backward, update at `slow` times the configured learning rates."""
        ids = torch.from_numpy(rows.ids).to(self.device).long() % self.config.hash_buckets
        numbers = torch.from_numpy(rows.dense).to(self.device)
        click = torch.from_numpy(rows.click).to(self.device)
        lookup = self.table.lookup(ids)
        logits = self.model(lookup.embeddings(), numbers)
        # DDP averages over workers, and the sum over all workers is what we mean: so times workers.
        loss = binary_cross_entropy_with_logits(logits, click, reduction="sum")
        (loss * (self.workers / self.config.batch_size)).backward()  # type: ignore[no-untyped-call]
        self.table.step(
            lookup, self.config.learning_rate * slow, scale=self.config.batch_size / self.workers
        )
        self.optimizer.param_groups[0]["lr"] = self.config.dense_learning_rate * slow
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        self.step += 1
        return Step(logits.detach(), click, loss.detach())

    # -- checkpoints ------------------------------------------------------------------------------

    def save(
        self,
        prefix: str,
        *,
        optimizer: bool,
        meta: Mapping[str, object],
        say: Callable[[str], None],
    ) -> checkpoint.Saved | None:
        """Write a checkpoint (`optimizer`) or a model; None, for all, while storage is away.

        All workers call it and all get the answer.
        """
        block = self.table.weight
        state = {"model": self.dense.state_dict()}
        if optimizer:
            block = torch.cat([block, self.table.accumulator.unsqueeze(1)], dim=1)
            state["optimizer"] = self.optimizer.state_dict()
        files: list[checkpoint.File] = []
        written = True
        try:
            files = checkpoint.write_rows(self.store, prefix, self.table.first, block.cpu().numpy())
            if self.rank == 0:
                files.append(checkpoint.write_dense(self.store, prefix, _dumped(state)))
        except StorageUnavailable as err:
            say(f"not written at step {self.step}: {err}")
            written = False
        if not _all(written, self.device):
            return None
        files = _gather(files)
        saved = None
        if self.rank == 0:
            try:
                told = {"step": self.step, **meta}
                saved = checkpoint.write_manifest(self.store, prefix, files, told)
            except StorageUnavailable as err:
                say(f"not written at step {self.step}: {err}")
        return _broadcast(saved)

    def restore(self, say: Callable[[str], None]) -> int | None:
        """Take up the newest good checkpoint; its step, or None where there is none."""
        loaded = checkpoint.restore(
            self.task.resume, self._load, agree=lambda ok: _all(ok, self.device), say=say
        )
        if loaded is None:
            return None
        meta, block, state = loaded
        block = torch.from_numpy(block).to(self.device)
        self.table.weight = block[:, :-1].contiguous()
        self.table.accumulator = block[:, -1].contiguous()
        self.dense.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = int(str(meta["step"]))
        return self.step

    def _load(self, saved: checkpoint.Saved) -> tuple[dict[str, object], Any, dict[str, Any]]:
        folder = checkpoint.Folder(self.store, saved)
        learned_from = self.task.provenance.get("data_versions")
        if folder.meta["data_versions"] != learned_from:
            raise InvalidData(
                f"{saved.prefix} data_versions",
                folder.meta["data_versions"],
                f"are not those of the window now, {learned_from}",
            )
        block = folder.rows(self.table.first, self.table.last, self.table.dim + 1)
        state = torch.load(io.BytesIO(folder.dense()), map_location=self.device, weights_only=True)
        return folder.meta, block, state


def slowing(step: int, steps: int) -> float:
    """The learning rates' factor at `step` of `steps`: from 1 straight down to SLOWEST."""
    return max(1 - step / steps, SLOWEST)


def train(
    task: Task,
    store: Store,
    *,
    metric: Callable[..., None],
    say: Callable[[str], None],
    committed: Callable[[checkpoint.Saved, int], None],
) -> Outcome:
    """Train, from the newest good checkpoint if there is one, and write the model.

    `metric(step, **values)` is called by rank 0 at a bounded rate; `committed(saved, step)` by
    every rank when a checkpoint is whole, so that the driver may record it.
    """
    config = task.config
    plan = data.plan(task.urls, batch_size=config.batch_size, seed=config.seed)
    steps = config.epochs * plan.steps
    trainer = Trainer(task, store)
    resumed_from = trainer.restore(say)
    if resumed_from is not None:
        say(f"resumed after step {resumed_from} of {steps}")
    progress = Progress(workers=trainer.workers)
    curve: list[dict[str, float]] = []
    summary = {"loss": float("nan"), "auc": float("nan"), "samples_per_s": float("nan")}
    started = time.monotonic()

    def told(values: dict[str, float]) -> None:
        if trainer.rank == 0:
            metric(trainer.step, **values)
            curve.append({"step": trainer.step, **values})
            if len(curve) > CURVE_POINTS:
                del curve[1::2]

    for epoch in range(trainer.step // plan.steps, config.epochs):
        first = trainer.step - epoch * plan.steps
        progress.start_epoch()
        for rows in plan.batches(
            epoch, rank=trainer.rank, workers=trainer.workers, first_step=first
        ):
            progress.add(trainer.train_step(rows, slowing(trainer.step, steps)))
            if progress.due():
                told(progress.since_last())
            if trainer.step % config.checkpoint_steps == 0 and trainer.step < steps:
                _checkpoint(trainer, committed, say)
        summary = progress.of_epoch(lambda counts: _sum(counts, trainer.device))
        told(summary)

    seconds = time.monotonic() - started
    return Outcome(
        model=_write_model(trainer, say, SystemClock()),
        steps=trainer.step,
        resumed_from=resumed_from,
        loss=summary["loss"],
        auc=summary["auc"],
        samples_per_s=summary["samples_per_s"],
        seconds=seconds,
        table_bytes=trainer.table.weight.nbytes + trainer.table.accumulator.nbytes,
        curve=curve,
    )


def _checkpoint(
    trainer: Trainer,
    committed: Callable[[checkpoint.Saved, int], None],
    say: Callable[[str], None],
) -> None:
    prefix = f"{trainer.task.prefix}checkpoints/{trainer.step:09d}"
    meta = {"data_versions": trainer.task.provenance.get("data_versions")}
    saved = trainer.save(prefix, optimizer=True, meta=meta, say=say)
    if saved is not None:  # else the training goes on, and the next one may succeed
        committed(saved, trainer.step)


def _write_model(trainer: Trainer, say: Callable[[str], None], clock: Clock) -> checkpoint.Saved:
    prefix, meta = f"{trainer.task.prefix}model", trainer.task.provenance
    for _ in range(MODEL_TRIES):
        saved = trainer.save(prefix, optimizer=False, meta=meta, say=say)
        if saved is not None:
            return saved
        clock.sleep(RETRY_EVERY_S)
    raise StorageUnavailable(f"{trainer.store.child_url(prefix)} could not be written.")


# -- the few collectives that are not the embedding's ---------------------------------------------


def _gather(files: list[checkpoint.File]) -> list[checkpoint.File]:
    if not dist.is_initialized():
        return files
    gathered: list[list[checkpoint.File]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, files)
    return [file for part in gathered for file in part]


def _broadcast(saved: checkpoint.Saved | None) -> checkpoint.Saved | None:
    box = [saved]
    if dist.is_initialized():
        dist.broadcast_object_list(box, src=0)
    return box[0]


def _all(ok: bool, device: torch.device) -> bool:
    return not _sum(np.array([0.0 if ok else 1.0]), device).any()


def _sum(values: NDArray[np.float64], device: torch.device) -> NDArray[np.float64]:
    if not dist.is_initialized():
        return values
    tensor = torch.from_numpy(values).to(device)
    dist.all_reduce(tensor)
    return np.asarray(tensor.cpu().numpy())


def _dumped(state: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()  # a file's own name would be written into the bytes
    torch.save(state, buffer)
    return buffer.getvalue()
