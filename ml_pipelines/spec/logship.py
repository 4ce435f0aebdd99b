"""The container beside Ray that writes its log files, with their places, to its own stdout.

So Kubernetes' plain log API carries them, and every log agent has them; `docs/logs.md` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONTAINER = "log"
DRIVER_LOG = "job-driver-{}.log"  # Ray's file of one submission id
WORKER_TAG = "worker"
# The name that the operator gives this very volume where an autoscaler shares it.
_VOLUME = "ray-logs"
_MOUNT = "/tmp/ray"  # noqa: S108 - where Ray keeps its session
_SIZE = {"cpu": "50m", "memory": "64Mi"}
_SCRIPT = Path(__file__).with_name("ship_logs.py")

Template = dict[str, Any]


def add_log_container(spec: Template, role: str, security: Mapping[str, Any]) -> None:
    """Put the container into a pod's spec, whose first container is Ray.

    It is a sidecar in Kubernetes' own sense (an init container that restarts): it begins before
    Ray and ends after it, and the pod ends, fails and is ready by Ray alone.
    """
    ray = spec["containers"][0]
    mount = {"name": _VOLUME, "mountPath": _MOUNT}
    spec.setdefault("volumes", []).append({"name": _VOLUME, "emptyDir": {}})
    ray.setdefault("volumeMounts", []).append(mount)
    spec.setdefault("initContainers", []).append(
        {
            "name": CONTAINER,
            "image": ray["image"],
            "restartPolicy": "Always",
            "command": ["python3", "-ISuc", _SCRIPT.read_text(encoding="utf-8"), role],
            "resources": {"requests": dict(_SIZE), "limits": dict(_SIZE)},
            "securityContext": {**security, "readOnlyRootFilesystem": True},
            "volumeMounts": [{**mount, "readOnly": True}],
        }
    )
