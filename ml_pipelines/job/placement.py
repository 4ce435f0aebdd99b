"""What keeps a pod from its machine: quota, refusal, no room, no volume, a silent machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ml_pipelines.job.symptom import CONFIG_GRACE_S, Diagnosis
from ml_pipelines.job.verdict import VerdictClass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ml_pipelines.job.observation import Observation, PodView

SILENT_GRACE_S = 600.0  # a kubelet may come back

_QUOTA = re.compile(r"exceeded quota: (?P<name>[^,]+), (?P<numbers>requested: .*)")
_NEVER = (
    (re.compile(r"violates PodSecurity"), "Ask the platform team for a pool that is allowed here."),
    (re.compile(r"error looking up service account"), "Create the pool's service account."),
    (re.compile(r"no PriorityClass with name"), "Correct the pool's priority class."),
    # A webhook that has not heard of the RayCluster yet lets its pods in a moment later.
    (
        re.compile(r"admission webhook .* denied(?!.*RayCluster.* not found)"),
        "Change what the webhook names, or the pool.",
    ),
    (re.compile(r"is invalid: "), "Correct the field that the API server names."),
)


def refused(obs: Observation) -> Diagnosis | None:
    """Pods that Kubernetes does not let exist: a quota, a policy, a missing account."""
    for source, text in _refusals(obs):
        quota = _QUOTA.search(text)
        if quota:
            return Diagnosis(
                f"the quota {quota['name']} is used up: {quota['numbers'].strip()}",
                evidence=(f"{source}: {text}",),
                remedy="Ask for less, wait until others end, or have the quota raised.",
                cls=VerdictClass.CAPACITY,
                key="quota",
            )
        for pattern, remedy in _NEVER:
            if pattern.search(text):
                return Diagnosis(
                    f"Kubernetes refuses the pods: {text}",
                    evidence=(f"{source}: {text}",),
                    remedy=remedy,
                    hopeless=True,
                    cls=VerdictClass.CONFIG,
                    grace_s=CONFIG_GRACE_S,
                    key=f"refused {pattern.pattern}",
                )
    return None


def _refusals(obs: Observation) -> Iterator[tuple[str, str]]:
    if obs.cluster is not None:
        status, reason, message = obs.cluster.conditions.get("ReplicaFailure", ("", "", ""))
        if status == "True":
            # The operator puts the reason before the message once more.
            said = message.removeprefix(reason).strip()
            yield f"RayCluster {obs.cluster.name}: ReplicaFailure {reason}", said
        if obs.cluster.reason:
            yield f"RayCluster {obs.cluster.name}: {obs.cluster.state}", obs.cluster.reason
    for event in reversed(obs.events):
        if _not_made_since(obs, event.reason):
            yield f"event {event.reason} of {event.about}", event.message


def _not_made_since(obs: Observation, reason: str) -> bool:
    """Whether this event's reason tells of pods that are still missing: events outlive their cause."""
    if not reason.startswith("FailedToCreate"):
        return reason == "FailedCreate"
    role = "head" if "Head" in reason else "worker"
    there = sum(pod.role == role for pod in obs.staying)
    desired = obs.cluster.desired_workers if obs.cluster else None
    return there < (1 if role == "head" or desired is None else desired)


def unschedulable(obs: Observation) -> Diagnosis | None:
    """Pods for which the scheduler finds no machine."""
    waiting = [pod for pod in obs.staying if pod.scheduled[0] == "False"]
    if not waiting:
        return None
    pod = waiting[0]
    _, reason, message = pod.scheduled
    others = f" (and {len(waiting) - 1} more)" if len(waiting) > 1 else ""
    evidence = [f"pod {pod.name}: PodScheduled False {reason}: {message}"]
    for event in reversed(obs.events):
        if event.about != f"Pod/{pod.name}":
            continue
        if event.reason == "TriggeredScaleUp":
            return Diagnosis(
                f"{pod.role} {pod.name}{others} waits for a machine that the autoscaler is adding",
                evidence=(f"event TriggeredScaleUp: {event.message}", *evidence),
                cls=VerdictClass.CAPACITY,
                key="scale-up",
            )
        if event.reason == "NotTriggerScaleUp":
            evidence.append(f"event NotTriggerScaleUp: {event.message}")
    unbound = _unbound_claim(obs, pod, message, tuple(evidence))
    if unbound is not None:
        return unbound
    missing_claim = re.search(r'persistentvolumeclaim "([^"]+)" not found', message)
    if missing_claim:
        return Diagnosis(
            f"{pod.role} {pod.name} needs the volume claim {missing_claim[1]}, which isn't there",
            evidence=tuple(evidence),
            remedy="Create the claim, or correct its name in the pool.",
            hopeless=True,
            cls=VerdictClass.CONFIG,
            grace_s=CONFIG_GRACE_S,
            key=f"claim {missing_claim[1]}",
        )
    return Diagnosis(
        f"no machine for {pod.role} {pod.name}{others}: {_why_none(message) or reason}",
        evidence=tuple(evidence),
        remedy=_scheduling_remedy(message, pod),
        cls=VerdictClass.CAPACITY,
        key="unschedulable",
    )


def _why_none(message: str) -> str:
    """The scheduler's sentence without what it says of claims and preemption."""
    return re.split(r"[.,]? (?:no new claims to deallocate|preemption: )", message)[0].strip()


def _unbound_claim(
    obs: Observation, pod: PodView, message: str, evidence: tuple[str, ...]
) -> Diagnosis | None:
    if "unbound immediate PersistentVolumeClaims" not in message:
        return None
    told = next(
        (one for one in reversed(obs.events) if one.about.startswith("PersistentVolumeClaim/")),
        None,
    )
    claim = told.about.partition("/")[2] if told else "it mounts"
    said = f": {told.message}" if told else ""
    never = told is not None and "not found" in told.message
    return Diagnosis(
        f"{pod.role} {pod.name} waits for the volume claim {claim} to be bound{said}",
        evidence=(*evidence, *((f"event {told.reason} of {told.about}{said}",) if told else ())),
        remedy="Have the claim's storage class and volumes put right.",
        hopeless=never,
        cls=VerdictClass.CONFIG if never else VerdictClass.INFRA,
        grace_s=CONFIG_GRACE_S,
        key="claim unbound",
    )


def _scheduling_remedy(message: str, pod: PodView) -> str:
    pool = f"pool {pod.pool}" if pod.pool else "its pool"
    short = sorted(set(re.findall(r"Insufficient ([\w./-]+[\w])", message)))
    if short:
        return f"Ask for less {', '.join(short)}, use another pool than {pool}, or wait."
    silent = "unreachable" in message or "not-ready" in message
    if "were unschedulable" in message or silent:
        what = "don't answer" if silent else "are cordoned"
        return f"Machines of {pool} {what}: wait for them, or use another pool."
    if "untolerated taint" in message and ("affinity" in message or "selector" in message):
        return f"Correct the node selector or the tolerations of {pool}: together they fit no node."
    if "untolerated taint" in message:
        return f"Add the taint's toleration to {pool}."
    if "affinity" in message or "selector" in message:
        return f"No machine has the labels of {pool}: correct its node selector."
    return "Wait, or use another pool."


def volume_trouble(obs: Observation) -> Diagnosis | None:
    """Pods that have a machine and wait for a volume."""
    not_ready = {f"Pod/{pod.name}": pod for pod in obs.pods if not pod.ready}
    # A kubelet says first that it waited in vain for a secret, and only then that there is none.
    newest_first = list(reversed(obs.events))
    newest_first.sort(key=lambda one: "not found" not in one.message)
    for event in newest_first:
        pod = not_ready.get(event.about)
        if pod is None or event.reason not in {"FailedMount", "FailedAttachVolume"}:
            continue
        absent = "not found" in event.message
        return Diagnosis(
            f"{pod.role} {pod.name} can't get a volume: {event.message}",
            evidence=(f"event {event.reason} of {event.about}: {event.message}",),
            remedy="Create what is named, or correct its name in the pool." if absent else "",
            hopeless=absent,
            cls=VerdictClass.CONFIG if absent else VerdictClass.INFRA,
            grace_s=CONFIG_GRACE_S,
            key=f"volume {pod.role}",
        )
    return None


def silent_machine(obs: Observation) -> Diagnosis | None:
    """Pods whose machine does not answer."""
    for pod in obs.staying:
        if pod.phase == "Unknown" or pod.unanswered:
            return Diagnosis(
                f"machine {pod.node} of {pod.role} {pod.name} does not answer",
                evidence=(f"pod {pod.name}: {_silence(pod)}".rstrip(),),
                hopeless=True,
                cls=VerdictClass.INFRA,
                grace_s=SILENT_GRACE_S,
                key="unknown pod",
            )
    return None


def _silence(pod: PodView) -> str:
    if pod.phase == "Unknown":
        return f"phase Unknown {pod.reason} {pod.message}"
    return "Ready False without its kubelet's word"
