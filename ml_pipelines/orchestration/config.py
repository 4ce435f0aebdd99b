"""Launchpad classes that every model shares, in the engineer's words.

They stand apart from the specs, for Dagster's Config can't hold plain pydantic models; a test
proves that limits and defaults agree. Dagster's Launchpad checks names and types only: values are
checked as the step starts, before anything exists, and are told as one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import dagster as dg
from pydantic import ConfigDict, Field, ValidationError, model_validator

from ml_pipelines import settings
from ml_pipelines.errors import InvalidInput
from ml_pipelines.orchestration.translate import failure_of

# Building the specs' validators takes as long as all else of the code location: when used.
if TYPE_CHECKING:
    from ml_pipelines.spec.cluster import ClusterSpec

C = TypeVar("C", bound="LaunchpadConfig")


class LaunchpadConfig(dg.Config):
    """A config whose bad values fail the step with path, value and remedy, and no retry.

    For the outermost class of an asset; nested ones are plain `dg.Config`.
    """

    model_config = ConfigDict(extra="forbid")

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            from ml_pipelines.spec.validate import explain

            raise failure_of(explain(error, root="config", model=type(self))) from None
        except InvalidInput as error:
            raise failure_of(error) from None


class WorkersConfig(LaunchpadConfig):
    """Where it runs: a pool, and how many workers of what size."""

    pool: str = Field(default="cpu", description="Pool of the workers: a kind of machine, by name.")
    workers: int = Field(default=1, ge=1, le=1000, description="Number of workers, 1 to 1000.")
    cpu: str = Field(
        default="", description="CPUs a worker, such as `2` or `500m`; empty: the pool's."
    )
    memory: str = Field(
        default="", description="Memory a worker, such as `512Mi` or `4Gi`; empty: the pool's."
    )

    @model_validator(mode="after")
    def _can_be_had(self) -> WorkersConfig:
        self.cluster()
        return self

    def cluster(self) -> ClusterSpec:
        """The Ray cluster that was asked for. Raises InvalidInput where no pool has it."""
        from ml_pipelines.spec.cluster import ClusterSpec
        from ml_pipelines.spec.pools import check_against_pools, load_pools
        from ml_pipelines.spec.validate import parse

        group: dict[str, Any] = {"pool": self.pool, "min_workers": self.workers}
        group |= {name: value for name in ("cpu", "memory") if (value := getattr(self, name))}
        try:
            pools = load_pools(settings.load().pools)
            head = {"pool": pools.for_heads()}
            cluster = parse(ClusterSpec, {"head": head, "workers": [group]})
            check_against_pools(cluster, pools)
        except InvalidInput as error:
            raise in_launchpad_words(error) from None
        return cluster


def checked_config(cls: type[C], values: Mapping[str, Any], *, root: str) -> C:
    """The config that `values` make. Raises dg.Failure as the class does, `root` before the path."""
    try:
        return cls(**values)
    except dg.Failure as failure:
        raise dg.Failure(
            description=f"{root}.{failure.description}",
            metadata=failure.metadata,
            allow_retries=False,
        ) from None


def in_launchpad_words(error: InvalidInput, *, root: str = "") -> InvalidInput:
    """The same mistake where the Launchpad has it: in one group, with one number of workers."""
    path = re.sub(r"^(cluster\.)?workers\[0\]\.", "config.", error.path)
    path = re.sub(r"\.m(in|ax)_workers$", ".workers", path)
    path = f"{root}.{path}" if root else path
    return type(error)(path, error.value, error.problem, remedy=error.remedy)
