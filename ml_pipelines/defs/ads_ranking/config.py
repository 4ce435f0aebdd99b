"""What can be set in the Launchpad for each asset, with units and limits."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field, field_validator

from ml_pipelines.defs.ads_ranking.partitions import days_before
from ml_pipelines.orchestration.config import WorkersConfig

if TYPE_CHECKING:
    from ml_pipelines.defs.ads_ranking.records import Challenger
    from ml_pipelines.journal.pointer import Champion

DATASET = "impressions"
LANES = 32  # how a batch is dealt to workers (workloads/ads_ranking/data.py)


class FeaturesConfig(WorkersConfig):
    """Impressions to what the model sees, on cheap CPU machines (Ray Data)."""

    pool: str = Field(default="cpu", description="Pool of the workers: a kind of machine, by name.")
    window_days: int = Field(
        default=7,
        ge=0,
        le=365,
        description="Also make the features of so many days before, where they are missing or "
        "their impressions changed; days, 0 to 365. At least the model's window.",
    )

    def params(self, *, day: str, have: Mapping[str, str]) -> dict[str, Any]:
        """The workload's params; `have` are the days whose impressions are complete."""
        window = [d for d in days_before(day, self.window_days) if d in have]
        return {"dataset": DATASET, "days": [*window, day]}


class TrainConfig(WorkersConfig):
    """Training on a trailing window of days (Ray Train)."""

    model_name: str = Field(
        default="ads_ranking",
        pattern=r"^[a-z][a-z0-9_-]{0,39}$",
        description="Name of the model; each has a champion of its own. Lower-case letters, "
        "digits, _ and -, at most 40.",
    )
    pool: str = Field(
        default="gpu",
        description="Pool of the workers. One with GPUs trains on CUDA; the local machine runs it "
        "on CPUs where it has none, and says so.",
    )
    workers: int = Field(
        default=2,
        ge=1,
        le=LANES,
        description="Number of workers, 1 to 32; embeddings are shared out.",
    )
    window_days: int = Field(
        default=7, ge=1, le=365, description="Days before the day to train on; days, 1 to 365."
    )
    epochs: int = Field(default=1, ge=1, le=100, description="Passes over the window, 1 to 100.")
    batch_size: int = Field(
        default=2048,
        ge=LANES,
        le=1_048_576,
        description="Examples a step over all workers; a multiple of 32, 32 to 1048576.",
    )
    learning_rate: float = Field(
        default=0.5, ge=1e-6, le=10.0, description="Step size of the embeddings, 0.000001 to 10."
    )
    dense_learning_rate: float = Field(
        default=0.015, ge=1e-6, le=1.0, description="Step size of the dense part, 0.000001 to 1."
    )
    embedding_dim: int = Field(
        default=16, ge=1, le=512, description="Numbers an embedding, 1 to 512."
    )
    hash_buckets: int = Field(
        default=2**20,
        ge=1024,
        le=2**31 - 1,
        description="Rows of the embedding table, 1024 to 2147483647.",
    )
    checkpoint_steps: int = Field(
        default=500, ge=1, le=1_000_000, description="Steps between checkpoints, 1 to 1000000."
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="Seed of weights and data order, 0 to 2147483647.",
    )

    @field_validator("batch_size")
    @classmethod
    def _divides(cls, size: int) -> int:
        if size % LANES:
            raise ValueError(f"is no multiple of {LANES}; write {size // LANES * LANES}")
        return size

    def params(self, *, day: str, image: str) -> dict[str, Any]:
        """The workload's params; `image` is only remembered with the model."""
        names = (
            "model_name", "window_days", "epochs", "batch_size", "learning_rate",
            "dense_learning_rate", "embedding_dim", "hash_buckets", "workers",
            "checkpoint_steps", "seed",
        )  # fmt: skip
        return {"day": day, "image": image, **{name: getattr(self, name) for name in names}}


class GateConfig(dg.Config):
    """What a challenger must show to become champion."""

    min_clicks: int = Field(
        default=100,
        ge=1,
        le=1_000_000_000,
        description="With fewer clicks on the day nothing can be told, and the gate says so; "
        "clicks, 1 to 1000000000.",
    )
    min_gain: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="The gain in normalised entropy must be above this with its whole interval, "
        "0 to 1.",
    )


class EvaluateConfig(WorkersConfig):
    """The model judged on the day itself, beside champion and baseline."""

    pool: str = Field(default="cpu", description="Pool of the workers: a kind of machine, by name.")
    replicates: int = Field(
        default=500, ge=10, le=100_000, description="Resamples for the intervals, 10 to 100000."
    )
    seed: int = Field(
        default=0, ge=0, le=2**31 - 1, description="Seed of the resamples, 0 to 2147483647."
    )
    gate: GateConfig = Field(default=GateConfig(), description="What a challenger must show.")

    def params(self, *, challenger: "Challenger", champion: "Champion | None") -> dict[str, Any]:
        """The workload's params: the day is the one that the challenger was trained for."""
        return {
            "day": challenger.partition,
            "challenger": challenger.model_url,
            "champion": champion.model_url if champion else "",
            "replicates": self.replicates,
            "seed": self.seed,
        }


class PredictConfig(WorkersConfig):
    """The day scored by the champion (Ray Data)."""

    pool: str = Field(default="cpu", description="Pool of the workers: a kind of machine, by name.")
    window_days: int = Field(
        default=7,
        ge=1,
        le=365,
        description="Days before the day that the baseline learns from, while there is no "
        "champion; days, 1 to 365.",
    )

    def params(self, *, day: str, champion: "Champion | None") -> dict[str, Any]:
        """The workload's params."""
        model_url = champion.model_url if champion else ""
        return {"day": day, "model_url": model_url, "window_days": self.window_days}
