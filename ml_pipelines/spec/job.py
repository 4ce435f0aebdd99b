"""A job as the user asks for it: what to run, on which cluster, within which limits."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue

from ml_pipelines.spec.base import Strict
from ml_pipelines.spec.cluster import ClusterSpec

EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Limits(Strict):
    """Five clocks, in seconds. Queue time counts against none but its own."""

    queue_s: int = Field(86_400, ge=1, le=2_592_000, description="Longest wait in a queue, s.")
    provisioning_s: int = Field(900, ge=1, le=86_400, description="Longest start of machines, s.")
    run_s: int = Field(86_400, ge=1, le=2_592_000, description="Longest run of the driver, s.")
    stall_s: int = Field(1_800, ge=1, le=86_400, description="Silence after which we say so, s.")
    drain_s: int = Field(120, ge=1, le=3_600, description="Longest clean-up before we warn, s.")


class Code(Strict):
    """A packed folder in run storage, named by its content's SHA-256 (`packing.pack`)."""

    url: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class JobSpec(Strict):
    """What the user wants done, once.

    `entrypoint` is an argv list and reaches the driver verbatim. `params` is the workload's own
    config, read by it from the journal. A job that `owes_result` is green only with a result
    committed under a claim that holds.
    """

    name: str = Field(min_length=1, max_length=200, description="For people; any characters.")
    entrypoint: tuple[str, ...] = Field(min_length=1)
    cluster: ClusterSpec = ClusterSpec()
    env: dict[EnvName, str] = {}
    limits: Limits = Limits()
    code: Code | None = None
    params: dict[str, JsonValue] = {}
    owes_result: bool = False
    owner: str = "unknown"
    team: str = ""
    experiment: str = ""
