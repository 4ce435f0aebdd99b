"""Loss, AUC and samples/s while training runs, at next to no cost.

The numbers are progressive: each batch is judged before the model learns from it. What is reported
during an epoch is one worker's share, which is a fair sample of all; the epoch's summary is summed
over the workers. The AUC is that of logits put into `BINS` bins.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

EVERY_S = 1.0
BINS = 4096
RANGE = 12.0  # logits beyond ±12 share the outermost bins
HELD_STEPS = 64

# Not clicked by bin, clicked by bin, summed loss: one array, so that workers are summed in one go.
Counts = NDArray[np.float64]


class Step(NamedTuple):
    """What a step predicted of a worker's rows before it learned from them, and the summed loss."""

    logits: torch.Tensor
    click: torch.Tensor
    loss: torch.Tensor


class Progress:
    """Collects what a worker's steps predicted."""

    def __init__(self, *, workers: int) -> None:
        self._workers = workers
        self.start_epoch()

    def start_epoch(self) -> None:
        """Forget everything."""
        self._held: list[Step] = []
        self._epoch = np.zeros(2 * BINS + 1)
        self._told = np.zeros(2 * BINS + 1)  # what of it the last report knew
        self._epoch_started = self._reported = time.monotonic()

    def add(self, step: Step) -> None:
        """Keep what a step told; counting waits, for on a GPU it would stall the steps."""
        self._held.append(step)
        if len(self._held) >= HELD_STEPS:
            self._count()

    def due(self) -> bool:
        """Whether `EVERY_S` has passed since the last report."""
        return time.monotonic() - self._reported >= EVERY_S

    def since_last(self) -> dict[str, float]:
        """Loss and AUC of this worker's rows, samples/s of all workers, since the last report."""
        self._count()
        now = time.monotonic()
        values = _summary(self._epoch - self._told, (now - self._reported) / self._workers)
        self._told = self._epoch.copy()
        self._reported = now
        return values

    def of_epoch(self, over_workers: Callable[[Counts], Counts]) -> dict[str, float]:
        """The same over the whole epoch and all workers; `over_workers` sums an array over them."""
        self._count()
        seconds = time.monotonic() - self._epoch_started
        return _summary(over_workers(self._epoch), seconds)

    def _count(self) -> None:
        if not self._held:
            return
        logits = torch.cat([step.logits for step in self._held])
        click = torch.cat([step.click for step in self._held])
        losses = [step.loss for step in self._held]
        self._held = []
        bins = ((logits + RANGE) * (BINS / (2 * RANGE))).clamp(0, BINS - 1).nan_to_num(0).long()
        counts = torch.bincount(bins + BINS * click.long(), minlength=2 * BINS)
        self._epoch[:-1] += counts.cpu().numpy()
        # Step by step, so the sum does not depend on when somebody asked for it.
        for loss in torch.stack(losses).tolist():
            self._epoch[-1] += loss


def _summary(counts: Counts, seconds: float) -> dict[str, float]:
    other, clicked = counts[:BINS], counts[BINS:-1]
    rows, pairs = counts[:-1].sum(), other.sum() * clicked.sum()
    below = np.cumsum(other) - other / 2
    return {
        "loss": float(counts[-1] / rows) if rows else float("nan"),
        "auc": float((clicked * below).sum() / pairs) if pairs else float("nan"),
        "samples_per_s": float(rows / seconds) if seconds > 0 else 0.0,
    }
