"""What Ray's Jobs API is given for a manifest, verbatim."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from ml_pipelines.backends import rayjob
from ml_pipelines.errors import BackendRefused

if TYPE_CHECKING:
    from ml_pipelines.backends.base import Manifest
    from ml_pipelines.backends.local.sizing import LocalPlan

DOLLAR_VARIABLE = "MLP_DOLLAR"  # "$" in the environment of every head
_REMOVED_BY_RAY = re.compile(r"\$\{[A-Z0-9_]+\}")


def entrypoint(manifest: Manifest) -> str:
    """The shell line for Ray, which runs it under `sh -c`.

    A plain argv is prefixed with `exec`: without a shell between, the driver dies with its head.
    Raises BackendRefused where there is none.
    """
    line = str(manifest["spec"].get("entrypoint") or "")
    if not line.strip():
        raise BackendRefused("spec.entrypoint is empty: there is nothing to run.")
    try:
        argv = shlex.split(line)
    except ValueError:
        return line
    return f"exec {line}" if shlex.join(argv) == line else line


def runtime_env(manifest: Manifest, plan: LocalPlan) -> dict[str, Any]:
    """The manifest's runtime environment, and what the driver is told of its share."""
    value = rayjob.runtime_env(manifest)
    env = {key: literal(key, text) for key, text in (value.get("env_vars") or {}).items()}
    return {**value, "env_vars": {**env, **plan.environment()}}


def literal(name: str, value: str) -> str:
    """Such a text that Ray's expansion of `$NAME` gives back `value`, byte for byte.

    Ray expands variables in env_vars, and then removes what still looks like `${NAME}`: only that
    can't be passed, and raises BackendRefused.
    """
    if _REMOVED_BY_RAY.search(value):
        raise BackendRefused(
            f"env[{name!r}] contains {_REMOVED_BY_RAY.findall(value)[0]!r}, which Ray removes.",
            remedy="Write the value itself, or another notation.",
        )
    return value.replace("$", f"${{{DOLLAR_VARIABLE}}}")
