"""A Ray cluster as the user thinks of it: a head, and groups of workers on named pools."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from ml_pipelines.spec.base import Strict
from ml_pipelines.spec.quantity import Cpu, Memory

GroupName = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,18}[a-z0-9])?$")]
# `head` is Kueue's name for the head's pod set, `headgroup` KubeRay's.
_RESERVED_GROUPS = frozenset({"head", "headgroup"})


class Head(Strict):
    """The head: it runs the driver and no tasks, on a CPU pool."""

    pool: str = Field(default="cpu", description="Pool of the head; never one with GPUs.")
    cpu: Cpu | None = Field(
        default=None, description="CPUs, such as `1` or `500m`; default: the pool's."
    )
    memory: Memory | None = Field(
        default=None, description="Memory, such as `2Gi`; default: the pool's."
    )


class WorkerGroup(Strict):
    """Workers of one kind.

    Sizes left out are the pool's; where fewer GPUs are asked for than a machine has, that share
    of its CPUs and memory. `max_workers` left out is `min_workers`: a group of fixed size.
    """

    name: GroupName = Field(
        default="workers",
        description="Lower-case letters, digits and dashes, at most 20 characters.",
    )
    pool: str = Field(default="cpu", description="Pool the workers run on.")
    cpu: Cpu | None = Field(default=None, description="CPUs a worker; default: the pool's.")
    memory: Memory | None = Field(default=None, description="Memory a worker; default: the pool's.")
    gpus: int | None = Field(
        default=None, ge=0, le=16, description="GPUs a worker; default: the pool's."
    )
    min_workers: int = Field(default=1, ge=1, le=1000, description="Least number of workers.")
    max_workers: int = Field(default=1, ge=1, le=1000, description="Greatest number of workers.")

    @model_validator(mode="before")
    @classmethod
    def _fixed_unless_said(cls, data: Any) -> Any:
        if isinstance(data, dict) and "min_workers" in data and "max_workers" not in data:
            return {**data, "max_workers": data["min_workers"]}
        return data

    @model_validator(mode="after")
    def _ordered(self) -> WorkerGroup:
        if self.min_workers > self.max_workers:
            raise ValueError(
                f"has min_workers {self.min_workers}, more than max_workers {self.max_workers}; "
                "raise max_workers or leave it out"
            )
        return self


class ClusterSpec(Strict):
    """A Ray cluster; stands alone or inside a job spec."""

    head: Head = Field(default=Head(), description="The head, which runs the driver.")
    workers: tuple[WorkerGroup, ...] = Field(
        default=(WorkerGroup(),),
        min_length=1,
        max_length=7,
        strict=False,
        description="A list of worker groups.",
    )

    @property
    def elastic(self) -> bool:
        """Whether any group may grow: then Ray's autoscaler decides how many workers there are."""
        return any(group.min_workers < group.max_workers for group in self.workers)

    @model_validator(mode="after")
    def _names_differ(self) -> ClusterSpec:
        names = [group.name for group in self.workers]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"has two worker groups called {name!r}; rename one")
            if name in _RESERVED_GROUPS:
                raise ValueError(f"has a worker group called {name!r}, a reserved name; rename it")
        return self
