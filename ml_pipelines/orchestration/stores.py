"""The lake and run storage as a Dagster resource, for assets and sensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from ml_pipelines import settings

if TYPE_CHECKING:
    from ml_pipelines.journal.pointer import Pointer
    from ml_pipelines.storage import Lake, Store


class Stores(dg.ConfigurableResource[Any]):
    """Where data, models and records lie. Empty URLs are the environment's (see settings)."""

    lake_url: str = Field("", description="URL of the lake, such as `s3://bucket/lake`.")
    runs_url: str = Field("", description="URL of run storage, such as `s3://bucket/runs`.")

    def lake(self) -> Lake:
        """The lake."""
        from ml_pipelines.storage import Lake, open_store

        return Lake(open_store(self.lake_url or settings.load().lake))

    def runs(self) -> Store:
        """Run storage."""
        from ml_pipelines.storage import open_store

        return open_store(self.runs_url or settings.load().runs)

    def pointer(self, model: str) -> Pointer:
        """The champion of a model."""
        from ml_pipelines.journal.pointer import Pointer

        return Pointer(self.runs(), model)
