"""A job as the user asks for it: what to run, on which cluster, within which limits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    ValidationInfo,
    field_validator,
)

from ml_pipelines import settings
from ml_pipelines.spec.base import Strict
from ml_pipelines.spec.cluster import ClusterSpec
from ml_pipelines.spec.encoding import shell_line
from ml_pipelines.spec.references import SecretKey, check_names, not_a_credential

_RESERVED_ENV = frozenset({
    settings.RUNS_VARIABLE,
    settings.LAKE_VARIABLE,
    settings.RUN_KEY_VARIABLE,
    settings.ATTEMPT_VARIABLE,
    settings.CLUSTER_VARIABLE,
})  # fmt: skip
# One string of a process's arguments may hold 128 KiB on Linux, and Ray passes each of these as
# one; the rest of the room is for the quoting.
_LONGEST_ENTRYPOINT = 100_000
_LARGEST_ENV = 50_000
# The context to read a spec in that is in a journal: its job lives, whatever a new one may not have.
RECORDED: Mapping[str, object] = {"recorded": True}
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
# Ray replaces exactly these in the values of `env_vars`, and offers no way to escape them.
_RAY_REPLACES = re.compile(r"\$(?:[A-Za-z0-9_]+|\{[^}]*\})")


def _process_text(value: str) -> str:
    """`value`, if a process can be given it as an argument or in its environment."""
    if "\0" in value:
        raise ValueError("holds a NUL, which no process can be given; take it out")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError("holds half a character (a lone surrogate); take it out")
    return not_a_credential(value)


def _env_name(name: str) -> str:
    if not _ENV_NAME.fullmatch(name):
        raise ValueError("names no variable; use ASCII letters, digits and underscores")
    if name in _RESERVED_ENV:
        raise ValueError("is set by the platform; choose another name")
    return name


def _env_text(value: object) -> str:
    """The text of an environment value: 4 → `4`, True → `true`, 1e-5 → `1e-05`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    if not isinstance(value, str):
        raise ValueError("is no text; write it in quotes")  # noqa: TRY004
    if _RAY_REPLACES.search(value):
        raise ValueError(
            "holds a `$` with a name, which Ray would replace on the way; pass it as an argument "
            "of the entrypoint, or by a Secret named under `secrets`"
        )
    return _process_text(value)


EnvName = Annotated[str, AfterValidator(_env_name)]
EnvValue = Annotated[str, BeforeValidator(_env_text)]
Argument = Annotated[str, AfterValidator(_process_text)]


class Limits(Strict):
    """Five clocks, in seconds. Queue time counts against none but its own."""

    queue_s: int = Field(
        default=86_400, ge=1, le=2_592_000, description="Longest wait in a queue, s."
    )
    provisioning_s: int = Field(
        default=900, ge=1, le=86_400, description="Longest start of machines, s."
    )
    run_s: int = Field(
        default=86_400, ge=1, le=2_592_000, description="Longest run of the driver, s."
    )
    stall_s: int = Field(
        default=1_800, ge=1, le=86_400, description="Silence after which we say so, s."
    )
    drain_s: int = Field(
        default=120, ge=1, le=3_600, description="Longest clean-up before we warn, s."
    )


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
    entrypoint: tuple[Argument, ...] = Field(
        min_length=1, strict=False, description="A list of arguments, the program first."
    )
    cluster: ClusterSpec = Field(default=ClusterSpec(), description="The Ray cluster to run on.")
    env: dict[EnvName, EnvValue] = Field(
        default={}, description="Environment of driver and workers."
    )
    secrets: dict[EnvName, SecretKey] = Field(
        default={}, description="Environment from Secrets: a variable's name to `secret-name/key`."
    )
    limits: Limits = Field(default=Limits(), description="How long each part may take.")
    code: Code | None = Field(
        default=None, description="A packed working folder; none: the image has it."
    )
    params: dict[str, JsonValue] = Field(default={}, description="The workload's own config.")
    owes_result: bool = Field(
        default=False, description="Whether success needs a committed result."
    )
    owner: str = Field(default="unknown", description="Who is asked when something is wrong.")
    team: str = Field(default="", description="Who pays.")
    experiment: str = Field(default="", description="What the job belongs to.")

    @field_validator("entrypoint")
    @classmethod
    def _names_a_program(cls, entrypoint: tuple[str, ...]) -> tuple[str, ...]:
        if not entrypoint[0].strip():
            raise ValueError("names no program; write for example ['python', 'train.py']")
        if len(shell_line(entrypoint).encode()) > _LONGEST_ENTRYPOINT:
            raise ValueError(f"is longer than {_LONGEST_ENTRYPOINT} bytes; put data into a file")
        return entrypoint

    @field_validator("env")
    @classmethod
    def _fits_a_process(cls, env: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if sum(len(name.encode()) + len(value.encode()) for name, value in env.items()) > (
            _LARGEST_ENV
        ):
            raise ValueError(f"is larger than {_LARGEST_ENV} bytes; put data into a file")
        if info.context is not RECORDED:
            check_names(env)
        return env

    @field_validator("secrets")
    @classmethod
    def _named_once(cls, secrets: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        for name in sorted(secrets.keys() & info.data.get("env", {}).keys()):
            raise ValueError(f"gives {name}, which env gives too; take it out of one of them")
        return secrets

    @field_validator("params")
    @classmethod
    def _are_plain_json(cls, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        try:
            json.dumps(params, allow_nan=False)
        except ValueError:
            raise ValueError("holds NaN or Infinity, which JSON can't carry") from None
        return params
