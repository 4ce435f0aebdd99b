"""How a machine was lost: taken away, out of memory, or failed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ml_pipelines.job.verdict import VerdictClass

if TYPE_CHECKING:
    from ml_pipelines.job.observation import ContainerView, PodView, WorkloadView

# Kubernetes' own reasons of the condition DisruptionTarget that mean "somebody wanted the place".
_TAKEN = frozenset({"PreemptionByScheduler", "EvictionByEvictionAPI"})
_UIDS = re.compile(r" \([^()]*UID: [^()]*\)")
# Pod reasons of a node that is shut down under its pods.
_SHUT_DOWN = frozenset({"Terminated", "NodeShutdown", "Shutdown", "Preempting"})


@dataclass(frozen=True, slots=True)
class Loss:
    """One pod that was lost or restarted. `at` is when we saw it, on the observer's clock, s.

    `by_queue`: no pod, but all machines at once; the same attempt waits for others.
    """

    pod: str
    uid: str
    cls: VerdictClass
    sentence: str
    evidence: str
    at: float
    by_queue: bool = False


def loss_of(pod: PodView, *, now: float) -> Loss | None:
    """What took this pod from us, or None while nothing did."""
    found = _killed_for_memory(pod) or _disrupted(pod) or _failed(pod) or _unanswered(pod)
    if found is None:
        return None
    cls, cause, evidence = found
    where = f" on node {pod.node}" if pod.node else ""
    return Loss(pod.name, pod.uid, cls, f"{pod.role} {pod.name}{where} {cause}", evidence, now)


def eviction_of(
    workload: WorkloadView | None, cluster: str, *, now: float, back: bool = False
) -> Loss | None:
    """That the queue took `cluster` from us, or None where it didn't.

    `back`: it did, and has let the job in again since; the Workload may still tell why.
    """
    conditions = workload.conditions if workload else {}
    status, reason, message = conditions.get("Evicted", ("", "", ""))
    if back and status != "True":
        reason, message = "", message.removeprefix("Previously: ")
        if conditions and not message:
            return None  # a queue that knows the job knows nothing of it
    elif status != "True":
        return None
    words = _UIDS.sub("", message.split("; ", 1)[0]) or reason or "no reason given"
    preempted = (reason or words).startswith("Preempted") or not conditions
    name = workload.name if workload else ""
    return Loss(
        name,
        f"evicted from {cluster}",
        VerdictClass.PREEMPTED if preempted else VerdictClass.INFRA,
        f"{queue_named(workload)} took the machines back: {words}",
        f"Workload {name}: Evicted {reason}: {message}".rstrip(": "),
        now,
        by_queue=True,
    )


def queue_named(workload: WorkloadView | None) -> str:
    """How sentences call the queue."""
    return f"queue {workload.queue}" if workload and workload.queue else "its queue"


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


def _unanswered(pod: PodView) -> tuple[VerdictClass, str, str] | None:
    if pod.unanswered and not pod.deleting:
        evidence = f"pod {pod.name}: Ready False without its kubelet's word"
        return VerdictClass.INFRA, "does not answer: its machine is dead or cut off", evidence
    return None


def _said(pod: PodView) -> str:
    return f"pod {pod.name}: {pod.reason}: {pod.message}".rstrip(": ")
