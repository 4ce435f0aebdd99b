"""The click model: cross layers (DCN-v2) beside a small MLP."""

from __future__ import annotations

import torch
from torch import nn

from ml_pipelines.workloads.ads_ranking.schema import DENSE_FIELDS, ID_FIELDS


class CrossLayer(nn.Module):
    """One cross: x0 * (W x + b) + x, where W = up . down is of low rank."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width)

    def forward(self, x0: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(x, x0, self.up(self.down(x)))


class ClickModel(nn.Module):
    """The dense part. Its input's width follows from the schema and `embedding_dim`."""

    def __init__(self, embedding_dim: int, *, rank: int = 32, hidden: int = 64) -> None:
        super().__init__()
        width = len(ID_FIELDS) * embedding_dim + len(DENSE_FIELDS)
        self.cross = nn.ModuleList(CrossLayer(width, rank) for _ in range(2))
        self.deep = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden // 2), nn.ReLU()
        )
        self.out = nn.Linear(width + hidden // 2, 1)

    def forward(self, embeddings: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """(n, fields, dim) and (n, dense fields) to (n,) logits."""
        x0 = torch.cat([embeddings.flatten(1), dense], dim=1)
        crossed = x0
        for layer in self.cross:
            crossed = layer(x0, crossed)
        logits: torch.Tensor = self.out(torch.cat([crossed, self.deep(x0)], dim=1))
        return logits.squeeze(1)


def fresh_model(embedding_dim: int, *, base_rate: float, seed: int) -> ClickModel:
    """The same weights on every worker; it starts by predicting `base_rate` for all."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ClickModel(embedding_dim)
    rate = min(max(base_rate, 1e-6), 1 - 1e-6)
    nn.init.zeros_(model.out.weight)
    nn.init.constant_(model.out.bias, float(torch.logit(torch.tensor(rate))))
    return model
