"""Fields of Kubernetes objects, any of which may be missing or null."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# What the operator writes on each pod of a Ray cluster.
CLUSTER_LABEL = "ray.io/cluster"
GROUP_LABEL = "ray.io/group"
NODE_TYPE_LABEL = "ray.io/node-type"


def as_dict(value: object) -> Mapping[str, Any]:
    """A mapping; empty where it isn't one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """A list; empty where it isn't one."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """A text; empty where it isn't one."""
    return value if isinstance(value, str) else ""


def as_time(value: object) -> datetime | None:
    """A server's time stamp, in UTC."""
    try:
        found = datetime.fromisoformat(as_text(value))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def labels_of(made: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object's labels."""
    return as_dict(as_dict(made.get("metadata")).get("labels"))


def is_head(pod: Mapping[str, Any]) -> bool:
    """Whether a pod of a Ray cluster is its head."""
    return labels_of(pod).get(NODE_TYPE_LABEL) == "head"


def conditions(status: Mapping[str, Any]) -> dict[str, tuple[str, str, str]]:
    """Conditions by type: (status, reason, message)."""
    return {
        as_text(one.get("type")): (
            as_text(one.get("status")),
            as_text(one.get("reason")),
            as_text(one.get("message")),
        )
        for one in map(as_dict, as_list(status.get("conditions")))
    }
