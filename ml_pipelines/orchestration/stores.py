"""The lake and run storage as a Dagster resource, for assets and sensors."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import dagster as dg

from ml_pipelines import settings

if TYPE_CHECKING:
    from ml_pipelines.journal.pointer import Pointer
    from ml_pipelines.storage import Lake, Store


class Stores:
    """Where data, models and records lie: the URLs of `settings`.

    A plain object, asked for as `StoresParam`: nothing of it is to be set in the Launchpad.
    """

    def lake(self) -> Lake:
        """The lake; one object a URL and process, for it knows the markers that it has read."""
        return _lake(settings.load().lake)

    def runs(self) -> Store:
        """Run storage."""
        from ml_pipelines.storage import open_store

        return open_store(settings.load().runs)

    def pointer(self, model: str) -> Pointer:
        """The champion of a model."""
        from ml_pipelines.journal.pointer import Pointer

        return Pointer(self.runs(), model)


StoresParam = dg.ResourceParam[Stores]


@lru_cache(maxsize=8)
def _lake(url: str) -> Lake:
    from ml_pipelines.storage import Lake, open_store

    return Lake(open_store(url))
