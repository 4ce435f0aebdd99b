"""How a machine was lost: taken away, out of memory, or failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ml_pipelines.job.verdict import VerdictClass

if TYPE_CHECKING:
    from ml_pipelines.job.observation import ContainerView, PodView, WorkloadView

# Kubernetes' own reasons of the condition DisruptionTarget that mean "somebody wanted the place".
_TAKEN = frozenset({"PreemptionByScheduler", "EvictionByEvictionAPI"})
# Pod reasons of a node that is shut down under its pods.
_SHUT_DOWN = frozenset({"Terminated", "NodeShutdown", "Shutdown", "Preempting"})


@dataclass(frozen=True, slots=True)
class Loss:
    """One pod that was lost or restarted. `at` is when we saw it, on the observer's clock, s."""

    pod: str
    uid: str
    cls: VerdictClass
    sentence: str
    evidence: str
    at: float


def loss_of(pod: PodView, *, now: float) -> Loss | None:
    """What took this pod from us, or None while nothing did."""
    found = _killed_for_memory(pod) or _disrupted(pod) or _failed(pod)
    if found is None:
        return None
    cls, cause, evidence = found
    where = f" on node {pod.node}" if pod.node else ""
    return Loss(pod.name, pod.uid, cls, f"{pod.role} {pod.name}{where} {cause}", evidence, now)


def eviction_of(workload: WorkloadView, *, now: float) -> Loss | None:
    """What the queue took from us again, or None where it took nothing."""
    status, reason, message = workload.conditions.get("Evicted", ("", "", ""))
    if status != "True":
        return None
    cls = VerdictClass.PREEMPTED if reason == "Preempted" else VerdictClass.INFRA
    where = f"queue {workload.queue}" if workload.queue else "its queue"
    evidence = f"Workload {workload.name}: Evicted {reason}: {message}".rstrip(": ")
    sentence = f"{where} took the machines back ({reason or 'no reason given'})"
    return Loss(workload.name, evidence, cls, sentence, evidence, now)


def out_of_memory(container: ContainerView) -> bool:
    """Whether the kernel killed this container for its memory limit."""
    return container.terminated_reason == "OOMKilled"


def _killed_for_memory(pod: PodView) -> tuple[VerdictClass, str, str] | None:
    for container in pod.containers:
        if out_of_memory(container):
            evidence = f"container {container.name}: OOMKilled, exit code {container.exit_code}"
            return VerdictClass.OOM, "ran out of memory", evidence
    return None


def _disrupted(pod: PodView) -> tuple[VerdictClass, str, str] | None:
    status, reason, message = pod.conditions.get("DisruptionTarget", ("", "", ""))
    evidence = f"pod {pod.name}: DisruptionTarget {reason}: {message}".rstrip(": ")
    if status == "True":
        if reason in _TAKEN or pod.spot:
            return VerdictClass.PREEMPTED, "was preempted", evidence
        return VerdictClass.INFRA, "lost its machine", evidence
    if pod.reason in _SHUT_DOWN:
        return VerdictClass.PREEMPTED, "was shut down with its machine", _said(pod)
    return None


def _failed(pod: PodView) -> tuple[VerdictClass, str, str] | None:
    if pod.reason in {"NodeLost", "Evicted"}:
        return VerdictClass.INFRA, "lost its machine", _said(pod)
    return None


def _said(pod: PodView) -> str:
    return f"pod {pod.name}: {pod.reason}: {pod.message}".rstrip(": ")
