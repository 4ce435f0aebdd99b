"""A Ray cluster as the user thinks of it: a head, and groups of workers on named pools."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from ml_pipelines.spec.base import Strict
from ml_pipelines.spec.quantity import Cpu, Memory

GroupName = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,18}[a-z0-9])?$")]


class Head(Strict):
    """The head: it runs the driver and no tasks, on a CPU pool."""

    pool: str = Field("cpu", description="Pool of the head; never one with GPUs.")
    cpu: Cpu | None = Field(None, description="CPUs, such as `1` or `500m`; default: the pool's.")
    memory: Memory | None = Field(None, description="Memory, such as `2Gi`; default: the pool's.")


class WorkerGroup(Strict):
    """Workers of one kind. Sizes left out are the pool's."""

    name: GroupName = "workers"
    pool: str = Field("cpu", description="Pool the workers run on.")
    cpu: Cpu | None = Field(None, description="CPUs a worker; default: the pool's.")
    memory: Memory | None = Field(None, description="Memory a worker; default: the pool's.")
    gpus: int | None = Field(None, ge=0, le=16, description="GPUs a worker; default: the pool's.")
    min_workers: int = Field(1, ge=1, le=1000, description="Least number of workers.")
    max_workers: int = Field(1, ge=1, le=1000, description="Greatest number of workers.")

    @model_validator(mode="after")
    def _ordered(self) -> WorkerGroup:
        if self.min_workers > self.max_workers:
            raise ValueError(
                f"min_workers {self.min_workers} is more than max_workers {self.max_workers}"
            )
        return self


class ClusterSpec(Strict):
    """A Ray cluster; stands alone or inside a job spec."""

    head: Head = Head()
    workers: tuple[WorkerGroup, ...] = Field((WorkerGroup(),), min_length=1, max_length=7)

    @model_validator(mode="after")
    def _names_differ(self) -> ClusterSpec:
        names = [group.name for group in self.workers]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two worker groups are called {name!r}")
            if name in {"head", "headgroup"}:
                raise ValueError(f"a worker group can't be called {name!r}: Kueue reserves it")
        return self
