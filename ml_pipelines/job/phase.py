"""When is a job over? The one phase function, for KubeRay and the local Ray alike."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Where a job stands. The last four are ends and are never left."""

    QUEUED = "QUEUED"
    PROVISIONING = "PROVISIONING"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    FINISHING = "FINISHING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    LOST = "LOST"

    @property
    def ended(self) -> bool:
        """Whether this is an end."""
        return self in ENDS


ENDS = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED, Phase.LOST})
