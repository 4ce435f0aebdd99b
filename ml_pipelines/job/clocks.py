"""How long each part of an attempt may take, and how long it took."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ml_pipelines.job.status import Cell

if TYPE_CHECKING:
    from ml_pipelines.job.known import Known
    from ml_pipelines.spec.job import Limits


@dataclass(frozen=True, slots=True)
class Clocks:
    """Limits in seconds; each ends the cells it counts in, but `stall_s`, which only warns.

    `finishing_s` is how long the engine may take for its last word after the driver's end
    (KubeRay itself waits up to 300 s); `unseen_s` how long a new object may stay invisible.
    """

    queue_s: float = 86_400.0
    provisioning_s: float = 900.0
    run_s: float = 86_400.0
    stall_s: float = 1_800.0
    finishing_s: float = 300.0
    unseen_s: float = 30.0

    @classmethod
    def of(cls, limits: Limits, *, finishing_s: float = 300.0) -> Clocks:
        """The clocks of a job spec's limits."""
        return cls(
            queue_s=float(limits.queue_s),
            provisioning_s=float(limits.provisioning_s),
            run_s=float(limits.run_s),
            stall_s=float(limits.stall_s),
            finishing_s=finishing_s,
        )


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds by part. Time in a queue is in `queue` and nowhere else."""

    queue: float = 0.0
    provisioning: float = 0.0
    run: float = 0.0
    drain: float = 0.0

    def plus(self, cell: Cell, seconds: float) -> Spent:
        """The same with `seconds` more in the part that `cell` counts in."""
        part = _PART.get(cell)
        return Spent(
            queue=self.queue + seconds * (part == "queue"),
            provisioning=self.provisioning + seconds * (part == "provisioning"),
            run=self.run + seconds * (part == "run"),
            drain=self.drain + seconds * (part == "drain"),
        )

    def entering(self, cell: Cell) -> Spent:
        """What still counts once `cell` is entered: progress resets the clocks before it.

        The wait in queues is reset only by a driver that runs: a queue that admits and evicts
        in turns ends too. The run is never reset.
        """
        queue, provisioning, drain = self.queue, self.provisioning, self.drain
        if cell is Cell.RUNNING:
            queue = provisioning = 0.0
        if cell is Cell.QUEUED:
            provisioning = 0.0
        if _PART.get(cell) != "drain":
            drain = 0.0
        return Spent(queue=queue, provisioning=provisioning, run=self.run, drain=drain)


def durations(known: Known) -> dict[str, float]:
    """Seconds by part of one attempt: "queue", "provisioning", "run", "drain"."""
    return asdict(known.total)


_PART = {
    Cell.NEW: "provisioning",
    Cell.QUEUED: "queue",
    Cell.PROVISIONING: "provisioning",
    Cell.WAITING: "provisioning",
    Cell.PENDING: "provisioning",
    Cell.RETRYING: "provisioning",
    Cell.RUNNING: "run",
    Cell.DONE: "drain",
    Cell.LEAVING: "drain",
}
