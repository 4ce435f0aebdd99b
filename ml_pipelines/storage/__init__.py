"""Lake and run storage: create-if-absent, atomic commit, success markers.

`store` is the one client for files, S3 and GCS; `lake` the partitions with their markers;
`arrow` the same places as pyarrow sees them.
"""

from __future__ import annotations

from ml_pipelines.storage.arrow import arrow_filesystem
from ml_pipelines.storage.lake import Lake, Partition, Stage
from ml_pipelines.storage.store import Store, StoredObject, open_store

__all__ = [
    "Lake",
    "Partition",
    "Stage",
    "Store",
    "StoredObject",
    "arrow_filesystem",
    "open_store",
]
