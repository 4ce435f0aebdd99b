"""The Ray head as it was seen: which pod, whether it was ever ready, and how it went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from ml_pipelines.job.observation import Observation, PodView

# A busy head may miss its readiness probe, and a node may be cut off for a while: its pods are
# told to go when their toleration is over, half a minute later.
HEAD_GRACE_S = 60.0
UNSEEN_GAP_S = 30.0  # after so long without a look nobody knows how the head did meanwhile


@dataclass(frozen=True, slots=True)
class Gone:
    """How a head went that had been ready: `sentence` is empty while it stays."""

    sentence: str = ""
    evidence: str = ""
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class HeadMemory:
    """The head of the present cluster: which pod, whether it was ever ready, how often it began."""

    cluster: str = ""
    uid: str = ""
    ready: bool = False
    restarts: int = 0
    uids: frozenset[str] = frozenset()
    unready_since: float | None = None
    seen_at: float | None = None

    def after(self, obs: Observation, now: float) -> tuple[HeadMemory, Gone]:
        """The memory after `obs`, and how the head went, should it have been ready before."""
        named = obs.rayjob.cluster_name if obs.rayjob else ""
        cluster = named or (obs.cluster.name if obs.cluster else "")
        if cluster and self.cluster and cluster != self.cluster:
            return HeadMemory().after(obs, now)
        pod = _head_pod(obs)
        ready, reason, message = _head_ready(obs, pod)
        if ready is None and pod is None and self.ready:
            ready, reason = False, "NotFound"
        unseen = self.seen_at is not None and now - self.seen_at > UNSEEN_GAP_S
        since = now if self.unready_since is None or unseen else self.unready_since
        head = HeadMemory(
            cluster=cluster or self.cluster,
            uid=pod.uid if pod else self.uid,
            ready=self.ready or ready is True,
            restarts=max(self.restarts, _restarts(pod)),
            uids=self.uids | ({pod.uid} if pod and pod.uid else frozenset()),
            unready_since=since if ready is False else None,
            seen_at=now,
        )
        if not self.ready:
            return head, Gone()
        evidence = f"HeadPodReady {ready}: {reason}: {message}".rstrip(": ") if reason else ""
        sentence = _why_gone(self, head, pod=pod, reason=reason, now=now)
        return head, Gone(sentence, evidence, replaced=bool(self.uid) and head.uid != self.uid)

    def starts_but(self, lost: Collection[str]) -> int:
        """How often a head was started in this cluster, restarts included, but for `lost` ones."""
        return max(len(self.uids.difference(lost)), 1) + self.restarts


def younger_head(obs: Observation, margin_s: float) -> str:
    """How the head went that a driver began on, where the present one is younger; else empty."""
    pod, began = _head_pod(obs), obs.rayjob.started_at if obs.rayjob else None
    if pod is None or pod.scheduled_at is None or began is None:
        return ""
    younger = (pod.scheduled_at - began).total_seconds() > margin_s
    return f"was replaced by {pod.name} after the driver had begun" if younger else ""


def made_after_the_end(obs: Observation) -> bool:
    """Whether the present head came when the driver had ended: it had no part in it."""
    pod, ended = _head_pod(obs), obs.rayjob.ended_at if obs.rayjob else None
    came = pod.scheduled_at if pod else None
    return came is not None and ended is not None and came >= ended


def _why_gone(
    before: HeadMemory, head: HeadMemory, *, pod: PodView | None, reason: str, now: float
) -> str:
    if pod and before.uid and pod.uid and pod.uid != before.uid:
        return f"was replaced by {pod.name}"
    if head.restarts > before.restarts:
        return "was restarted"
    if pod and pod.phase in {"Failed", "Succeeded"}:
        how = ": ".join(part for part in (pod.reason, pod.message) if part)
        return f"{'failed' if pod.phase == 'Failed' else 'ended'} ({how or 'no reason given'})"
    if head.unready_since is None or head.unready_since >= now:
        # Status and pods are not read at one instant: what is gone must be gone twice.
        return ""
    if pod and not pod.deleting and reason != "HeadPodNotFound":
        lasted = now - head.unready_since
        return f"was not ready for {lasted:.0f} s" if lasted >= HEAD_GRACE_S else ""
    return "is gone"


def _head_pod(obs: Observation) -> PodView | None:
    heads = [pod for pod in obs.pods if pod.role == "head"]
    alive = [pod for pod in heads if not pod.deleting]
    candidates = alive or heads
    return candidates[-1] if candidates else None


def _head_ready(obs: Observation, pod: PodView | None) -> tuple[bool | None, str, str]:
    condition = obs.cluster.conditions.get("HeadPodReady") if obs.cluster else None
    condition = condition or (pod.conditions.get("Ready") if pod else None)
    if condition is None or condition[0] not in {"True", "False"}:
        return None, "", ""
    return condition[0] == "True", condition[1], condition[2]


def _restarts(pod: PodView | None) -> int:
    return max((one.restarts for one in pod.containers if not one.init), default=0) if pod else 0
