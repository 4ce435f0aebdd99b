"""What must be known of a head to find it again, one file each."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from ml_pipelines.backends.local import processes
from ml_pipelines.backends.local.machine import boot_id
from ml_pipelines.backends.local.objects import known_fields, read_json, write_json
from ml_pipelines.settings import CLUSTER_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Size:
    """What a head offers: logical CPUs and GPUs. Its logical memory is Ray's default."""

    num_cpus: int
    num_gpus: int

    def holds(self, other: Size) -> bool:
        """Whether a job of that size can run on it."""
        return self.num_cpus >= other.num_cpus and self.num_gpus >= other.num_gpus


@dataclass(frozen=True, slots=True)
class HeadRecord:
    """One head. `birth` is when its leading process began, seconds since the epoch."""

    id: str
    boot: str
    folder: str
    token: str
    size: Size
    ports: Mapping[str, int] = field(default_factory=dict)
    pid: int = 0
    birth: float = 0.0

    def mark(self) -> processes.Mark:
        """What its processes inherit."""
        return processes.Mark(CLUSTER_VARIABLE, self.id, self.folder)

    def here(self) -> bool:
        """Whether its leading process is alive on this boot of this machine."""
        return bool(self.pid) and self.boot == boot_id() and processes.alive(self.pid, self.birth)

    def write(self, folder: Path) -> Path:
        """Write it into the folder of heads; returns its file."""
        path = folder / f"{self.id}.json"
        write_json(path, asdict(self))
        return path


def records(folder: Path) -> list[HeadRecord]:
    """The records in a folder of heads."""
    found = []
    for path in sorted(folder.glob("*.json")):
        data = read_json(path)
        if data:
            size = known_fields(Size, data["size"])
            found.append(known_fields(HeadRecord, {**data, "size": size}))
    return found
