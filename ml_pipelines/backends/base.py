"""What a backend can do: create, observe, read logs, stop, delete, list, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from ml_pipelines.job.observation import Observation, RayJobView

Manifest = Mapping[str, Any]
Scope = Literal["job", "namespace"]
"""What a backend watches: the jobs that this process follows, or all of its namespace."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the jobs of a backend live; only a process that reaches it may claim them.

    `location` is cluster and namespace for KubeRay, host and boot id for the local Ray.
    """

    backend: str
    location: str


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of one log. `data` holds whole bytes as written; `start` is its first byte's offset.

    `lost` counts bytes between the asked and the returned offset that exist no more. `silent_s` says
    of an empty piece for how long nothing has come, in seconds, since the log is followed: 0 while
    it can't be followed, infinite where nothing is under way.
    """

    source: str
    start: int
    data: bytes
    lost: int = 0
    silent_s: float = math.inf

    @property
    def end(self) -> int:
        """Offset of the byte after the last."""
        return self.start + len(self.data)

    @property
    def quiet_s(self) -> float:
        """`silent_s` of any piece: one that tells something is no silence."""
        return 0.0 if self.data or self.lost else self.silent_s


class Backend(Protocol):
    """One way to run RayJobs.

    Every call has a time-out and retries what is temporary; what remains is raised as
    BackendUnavailable (keep watching) or BackendRefused (permanent). Where it `streams_logs`, what
    is written takes a moment to be read, and each Ray cluster's driver has a log of its own.
    """

    name: str
    streams_logs: bool

    @property
    def place(self) -> Place:
        """Where this backend's jobs live."""

    def check(self, manifest: Manifest) -> tuple[str, ...]:
        """Refuse what can't run here (DoesNotFit, BackendRefused), before anything exists.

        Returns sentences about what will be different from what the manifest says.
        """

    def create(self, manifest: Manifest) -> RayJobView:
        """Create the RayJob, or adopt it where one of that name has our run key and spec hash.

        Raises Refused where the name belongs to somebody else.
        """

    def observe(self, name: str) -> Observation:
        """What is seen of the RayJob of that name now."""

    def read_log(self, name: str, source: str, offset: int, limit: int) -> LogChunk:
        """At most `limit` bytes of a log from `offset`; empty data where there is no more yet."""

    def stop(self, name: str) -> None:
        """Ask the driver to end (SIGTERM, then SIGKILL); the cluster stays. Not there: no error."""

    def delete(self, name: str, uid: str = "") -> None:
        """Remove the RayJob with its cluster, running or not; `uid` guards against a namesake.

        Returns once the server has taken the order; not there: no error.
        """

    def list(self, labels: Mapping[str, str]) -> list[RayJobView]:
        """The RayJobs that carry these labels."""
