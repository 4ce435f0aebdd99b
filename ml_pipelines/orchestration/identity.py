"""Which job a Dagster step means: its logical run, its run key, its labels.

The *logical run* is the oldest ancestor reached through automatic retries only. A manual
re-execution shares Dagster's root run id but is a new wish of a person, hence a new job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import dagster as dg

from ml_pipelines.settings import CODE_LOCATION
from ml_pipelines.spec.naming import run_key

RETRIED_BY_TAG = "dagster/auto_retry_run_id"
WILL_RETRY_TAG = "dagster/will_retry"

RUN_LABEL = "run"
ASSET_LABEL = "asset"
PARTITION_LABEL = "partition"
LOCATION_LABEL = "code-location"

_PACKAGE = Path(__file__).parents[1]


class Run(Protocol):
    """What we read of a `DagsterRun`."""

    @property
    def run_id(self) -> str:
        """Its id."""

    @property
    def parent_run_id(self) -> str | None:
        """The run it was made from by a retry or a re-execution."""

    @property
    def tags(self) -> Mapping[str, str]:
        """Its tags."""


R = TypeVar("R", bound=Run)


@dataclass(frozen=True, slots=True)
class StepIdentity:
    """The job of one step.

    `exclusive` names what only one unfinished job may work on: an asset's partition. `retried`
    when an earlier run of the same logical run may have begun the job.
    """

    run_key: str
    name: str
    labels: Mapping[str, str]
    exclusive: str
    retried: bool


def logical_run(run: R, find: Callable[[str], R | None]) -> str:
    """Id of the oldest run reached from `run` through automatic retries only."""
    seen = {run.run_id}
    while run.parent_run_id and run.parent_run_id not in seen:
        parent = find(run.parent_run_id)
        if parent is None or parent.tags.get(RETRIED_BY_TAG) != run.run_id:
            break
        seen.add(parent.run_id)
        run = parent
    return run.run_id


def latest_run(run: R, find: Callable[[str], R | None]) -> R:
    """The newest run reached from `run` through automatic retries: the way back down."""
    seen = {run.run_id}
    while (child_id := run.tags.get(RETRIED_BY_TAG)) and child_id not in seen:
        child = find(child_id)
        if child is None:
            break
        seen.add(child_id)
        run = child
    return run


def identify(context: dg.AssetExecutionContext, *, what: str = "") -> StepIdentity:
    """The identity of the job of this step; `what` tells several jobs of one step apart."""
    asset = context.asset_key.to_user_string()
    partition = context.partition_key if context.has_partition_key else ""
    origin = logical_run(context.run, context.instance.get_run_by_id)
    key = run_key(
        asset,
        location=CODE_LOCATION,
        logical_run=origin,
        step=f"{asset}:{what}" if what else asset,
        partition=partition,
    )
    labels = {RUN_LABEL: origin, ASSET_LABEL: asset, LOCATION_LABEL: CODE_LOCATION}
    if partition:
        labels[PARTITION_LABEL] = partition
    return StepIdentity(
        run_key=key,
        name=" ".join(part for part in (asset, partition, what) if part),
        labels=labels,
        exclusive="/".join(part for part in (asset, partition) if part),
        retried=origin != context.run.run_id,
    )


def code_version(workload: str) -> str:
    """Twelve digits of a hash of everything that runs for a workload; new code makes it stale."""
    folder = _PACKAGE / "workloads"
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.py"), *(folder / workload).rglob("*.py")]):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
