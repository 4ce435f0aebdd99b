"""A store in a dictionary: fast, and always right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import AlreadyExists, NotFound
from ml_pipelines.storage import Store, StoredObject


class PlainStore(Store):
    """Objects in `data`, which several stores may share."""

    def __init__(self) -> None:
        self.url = "memory://plain"
        self.data: dict[str, bytes] = {}

    def get(self, path: str) -> bytes:
        if path not in self.data:
            raise NotFound(f"{path} does not exist.")
        return self.data[path]

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self.get(path)[start : start + length]

    def create(self, path: str, data: bytes) -> None:
        if path in self.data:
            raise AlreadyExists(f"{path} exists already.")
        self.data[path] = data

    def put(self, path: str, data: Any) -> None:
        self.data[path] = data if isinstance(data, bytes) else b"".join(data)

    def put_file(self, path: str, local: Path) -> None:
        self.data[path] = local.read_bytes()

    def size(self, path: str) -> int | None:
        return len(self.data[path]) if path in self.data else None

    def objects(self, prefix: str = "", *, after: str = "") -> list[StoredObject]:
        under = f"{prefix.rstrip('/')}/" if prefix else ""
        when = FakeClock().now()
        paths = (p for p in self.data if p.startswith(under) and p > after)
        return [StoredObject(path, len(self.data[path]), "", when) for path in sorted(paths)]

    def delete(self, path: str) -> None:
        self.data.pop(path, None)
