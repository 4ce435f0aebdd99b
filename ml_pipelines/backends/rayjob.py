"""Reads a RayJob manifest: names, labels, groups, runtime environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from ml_pipelines.errors import BackendRefused
from ml_pipelines.spec import naming
from ml_pipelines.spec.logship import CONTAINER
from ml_pipelines.spec.manifest import RUN_KEY_LABEL, SPEC_HASH_LABEL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ml_pipelines.backends.base import Manifest

POOL = naming.label_key("pool")
SPOT = naming.label_key("spot")

_RUNTIME_ENV_FIELDS = frozenset(
    {"working_dir", "env_vars", "py_modules", "py_executable", "pip", "uv", "conda", "config",
     "excludes", "worker_process_setup_hook"}
)  # fmt: skip


def name(manifest: Manifest) -> str:
    """The object's name."""
    return str(manifest["metadata"]["name"])


def labels(manifest: Manifest) -> Mapping[str, str]:
    """The object's labels."""
    return manifest["metadata"].get("labels") or {}


def run_key(manifest: Manifest) -> str:
    """The job's run key, or empty."""
    return labels(manifest).get(RUN_KEY_LABEL, "")


def spec_hash(manifest: Manifest) -> str:
    """The spec's hash, or empty."""
    return labels(manifest).get(SPEC_HASH_LABEL, "")


def cluster(manifest: Manifest) -> Mapping[str, Any]:
    """The RayCluster's spec."""
    return manifest["spec"].get("rayClusterSpec") or {}


def worker_groups(manifest: Manifest) -> Sequence[Mapping[str, Any]]:
    """The worker groups."""
    return cluster(manifest).get("workerGroupSpecs") or ()


def template_metadata(group: Mapping[str, Any], kind: str) -> Mapping[str, str]:
    """`labels` or `annotations` of a group's pod template."""
    metadata = (group.get("template") or {}).get("metadata") or {}
    return metadata.get(kind) or {}


def resources(group: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the group's first container asks for: limits, else requests."""
    spec = (group.get("template") or {}).get("spec") or {}
    containers = spec.get("containers") or [{}]
    asked = containers[0].get("resources") or {}
    return {**(asked.get("requests") or {}), **(asked.get("limits") or {})}


def secret_variables(manifest: Manifest) -> Sequence[str]:
    """The variables that drivers and workers get from Secrets."""
    spec = (cluster(manifest).get("headGroupSpec") or {}).get("template", {}).get("spec") or {}
    containers = spec.get("containers") or [{}]
    return [str(one["name"]) for one in containers[0].get("env") or () if "valueFrom" in one]


def log_container_requests(group: Mapping[str, Any]) -> Mapping[str, str]:
    """What the container beside Ray that ships its logs asks for; empty where there is none."""
    spec = (group.get("template") or {}).get("spec") or {}
    found = (one for one in spec.get("initContainers") or () if one.get("name") == CONTAINER)
    return next((one["resources"]["requests"] for one in found), {})


def runtime_env(manifest: Manifest) -> dict[str, Any]:
    """The runtime environment as Ray's Jobs API takes it.

    Raises BackendRefused where the YAML can't be meant: it would only be found after the cluster
    is up.
    """
    text = manifest["spec"].get("runtimeEnvYAML") or ""
    try:
        value = yaml.safe_load(text) or {}
    except yaml.YAMLError as err:
        raise BackendRefused(f"spec.runtimeEnvYAML is no YAML: {err}") from err
    if not isinstance(value, dict):
        raise BackendRefused(f"spec.runtimeEnvYAML must be a mapping, not {value!r:.80}.")
    unknown = sorted(set(map(str, value)) - _RUNTIME_ENV_FIELDS)
    if unknown:
        raise BackendRefused(f"spec.runtimeEnvYAML: Ray knows no field {unknown[0]!r}.")
    env = value.get("env_vars") or {}
    if not isinstance(env, dict):
        raise BackendRefused(f"spec.runtimeEnvYAML: env_vars must be a mapping, not {env!r:.80}.")
    for key, content in env.items():
        if not isinstance(key, str) or not isinstance(content, str):
            raise BackendRefused(
                f"spec.runtimeEnvYAML: env_vars[{key!r}] is {content!r:.80}, no text.",
                remedy="Quote it.",
            )
    return value
