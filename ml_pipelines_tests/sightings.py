"""Builders of observations, and a replay of many of them through memory and phase function."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ml_pipelines.job.clocks import Clocks
from ml_pipelines.job.known import Known
from ml_pipelines.job.observation import (
    ClusterView,
    ContainerView,
    Observation,
    PodView,
    RayJobView,
)
from ml_pipelines.job.phase import Phase, Standing, phase_of

if TYPE_CHECKING:
    from collections.abc import Iterable

GRACE = "JobDeploymentStatusTransitionGracePeriodExceeded"


def status(job: str = "", deployment: str = "", reason: str = "", **fields: Any) -> Observation:
    """A RayJob with these status words and nothing around it."""
    return Observation(rayjob(job, deployment, reason, **fields))


def rayjob(job: str = "", deployment: str = "", reason: str = "", **fields: Any) -> RayJobView:
    """A RayJob with these status words."""
    return RayJobView(
        **{"name": "j-a1", "uid": "u1", "cluster_name": "c1", "job_id": "id1", **fields},
        job_status=job,
        deployment_status=deployment,
        reason=reason,
    )


ABSENT = Observation(None)


def pod(name: str = "h", role: str = "head", **fields: Any) -> PodView:
    """A pod that is ready, but for what `fields` say."""
    ready = fields.pop("ready", True)
    conditions = {
        "PodScheduled": ("True", "", ""),
        "Ready": (str(ready), "" if ready else "ContainersNotReady", ""),
        **fields.pop("conditions", {}),
    }
    return PodView(
        **{"name": name, "uid": f"uid-{name}", "role": role, "phase": "Running", **fields},
        conditions=conditions,
    )


def waiting(reason: str, message: str = "", **fields: Any) -> ContainerView:
    """A container that waits for this reason."""
    return ContainerView(
        **{"name": "ray-head", **fields}, waiting_reason=reason, waiting_message=message
    )


def cluster(ready: str = "True", reason: str = "", message: str = "") -> ClusterView:
    """A RayCluster whose HeadPodReady says this."""
    return ClusterView("c1", conditions={"HeadPodReady": (ready, reason, message)})


@dataclass
class Replay:
    """Feeds observations to the memory, as a loop does, on a clock of its own."""

    clocks: Clocks = field(default_factory=Clocks)
    known: Known = field(default_factory=Known)
    now: float = 0.0
    standing: Standing | None = None
    warnings: list[str] = field(default_factory=list)

    def see(self, obs: Observation, after_s: float = 1.0) -> Standing:
        """Let `after_s` pass, then observe."""
        self.now += after_s
        self.known = self.known.after(obs, self.now)
        self.standing = phase_of(obs, self.known, self.clocks, self.now)
        self.warnings += self.standing.warnings
        return self.standing

    def see_all(self, observations: Iterable[Observation]) -> Standing:
        """Observe each of them, a second apart."""
        for obs in observations:
            self.see(obs)
        assert self.standing is not None
        return self.standing

    def wait(self, obs: Observation, seconds: float, *, every_s: float = 10.0) -> Standing:
        """Observe the same until `seconds` have passed or it has ended."""
        until = self.now + seconds
        while self.now < until:
            if self.see(obs, min(every_s, until - self.now)).phase.ended:
                break
        assert self.standing is not None
        return self.standing


def ended(*observations: Observation, clocks: Clocks | None = None) -> Replay:
    """A replay of these, which must have ended by the last."""
    replay = Replay(clocks or Clocks())
    replay.see_all(observations)
    assert replay.standing is not None
    assert replay.standing.phase.ended, replay.standing
    return replay


RUNNING = status("RUNNING", "Running")
ENDS = (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED, Phase.LOST)
