"""Why does it not run yet? One sentence that quotes its evidence and says what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ml_pipelines.job.verdict import VerdictClass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ml_pipelines.job.observation import ContainerView, Observation, PodView

IMAGE_GRACE_S = 120.0  # a registry may hiccup
CONFIG_GRACE_S = 120.0  # a secret may be created a moment after the job
UNKNOWN_GRACE_S = 600.0  # a kubelet may come back
MAX_STARTS = 4  # of a head or an init container, before we call it a crash loop


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why an attempt does not run yet.

    `hopeless` means that it can't heal by itself: it fails once it has been true for `grace_s`
    seconds. `key` names the trouble, so that it is known again in the next observation. `cls` is
    the verdict's class, should it end the attempt.
    """

    sentence: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    hopeless: bool = False
    cls: VerdictClass = VerdictClass.TIMEOUT
    grace_s: float = 0.0
    key: str = "start"


def why_pending(obs: Observation, *, head_starts: int = 1) -> Diagnosis:
    """The one cause worth telling, the most certain first. Never raises.

    `head_starts` counts the heads that were started in this cluster, which one observation can't
    know.
    """
    return (
        _queued(obs)
        or _crash_loop(obs, head_starts)
        or _container_trouble(obs)
        or _refused_pods(obs)
        or _unschedulable(obs)
        or _volume_trouble(obs)
        or _unknown_pod(obs)
        or _starting(obs)
    )


# --- the queue ------------------------------------------------------------------------------


def _queued(obs: Observation) -> Diagnosis | None:
    rayjob, workload = obs.rayjob, obs.workload
    if rayjob is None:
        return None
    suspended = rayjob.suspended or rayjob.deployment_status in {"Suspending", "Suspended"}
    if not suspended:
        return None
    if workload is None:
        return Diagnosis("suspended, waiting to be admitted by its queue", key="queue")
    message = next(
        (
            f"{kind}: {text}"
            for kind in ("QuotaReserved", "Admitted", "Evicted")
            for status, _, text in [workload.conditions.get(kind, ("", "", ""))]
            if text and status == ("True" if kind == "Evicted" else "False")
        ),
        "",
    )
    queue = f"queue {workload.queue}" if workload.queue else "its queue"
    said = message.split(": ", 1)[1] if message else "no reason given yet"
    return Diagnosis(
        f"waiting in {queue}: {said}",
        evidence=(f"Workload {workload.name}: {message}",) if message else (),
        remedy="Ask for less, or for a pool with free quota; nothing is charged while it waits.",
        cls=VerdictClass.CAPACITY,
        key="queue",
    )


# --- containers -----------------------------------------------------------------------------

_IMAGE = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
    }
)
_START = frozenset(
    {"RunContainerError", "CreateContainerError", "StartError", "ContainerCannotRun"}
)


def _crash_loop(obs: Observation, head_starts: int) -> Diagnosis | None:
    for pod, container in _containers(obs):
        starts = container.restarts + 1
        if pod.role == "head" and not container.init:
            starts = max(starts, head_starts)
        looping = container.waiting_reason == "CrashLoopBackOff" or starts >= MAX_STARTS
        failed = container.exit_code not in {None, 0} or container.waiting_reason
        if container.ready or not looping or not failed:
            continue
        how = _how_it_ended(container)
        memory = container.terminated_reason == "OOMKilled"
        what = "init container" if container.init else "container"
        return Diagnosis(
            f"{what} {container.name} of {pod.role} {pod.name} fails at every start{how}"
            f" ({starts} starts)",
            evidence=_container_evidence(pod, container),
            remedy="Give it more memory." if memory else "Read its log; try the image by itself.",
            hopeless=starts >= MAX_STARTS,
            cls=VerdictClass.OOM if memory else VerdictClass.CONFIG,
            key=f"crash {pod.role}",
        )
    return None


def _container_trouble(obs: Observation) -> Diagnosis | None:
    for pod, container in _containers(obs):
        reason, message = container.waiting_reason, container.waiting_message
        if reason in _IMAGE:
            return _image_trouble(pod, container)
        if reason == "CreateContainerConfigError":
            return Diagnosis(
                f"{pod.role} {pod.name} needs something that isn't there: {message or reason}",
                evidence=_container_evidence(pod, container),
                remedy="Create the secret or config map named, or correct its name in the pool.",
                hopeless=True,
                cls=VerdictClass.CONFIG,
                grace_s=CONFIG_GRACE_S,
                key=f"config {message[:100]}",
            )
        if reason in _START:
            return Diagnosis(
                f"{pod.role} {pod.name} can't start its container: {message or reason}",
                evidence=_container_evidence(pod, container),
                remedy="Check the image: it must hold Ray and a shell.",
                hopeless=True,
                cls=VerdictClass.CONFIG,
                grace_s=CONFIG_GRACE_S,
                key=f"start {reason}",
            )
        if container.exit_code not in {None, 0} and not container.ready:
            return _failed_once(pod, container)
    return None


def _image_trouble(pod: PodView, container: ContainerView) -> Diagnosis:
    message = container.waiting_message or container.waiting_reason
    image = _image_in(message)
    named = f"image {image}" if image else f"the image of container {container.name}"
    return Diagnosis(
        f"{pod.role} {pod.name} can't pull {named}: {message}",
        evidence=_container_evidence(pod, container),
        remedy="Check the image's name and tag, and the pool's image pull secret.",
        hopeless=True,
        cls=VerdictClass.CONFIG,
        grace_s=0.0 if container.waiting_reason == "InvalidImageName" else IMAGE_GRACE_S,
        key=f"image {pod.role} {pod.group}",
    )


def _failed_once(pod: PodView, container: ContainerView) -> Diagnosis:
    memory = container.terminated_reason == "OOMKilled"
    what = "init container" if container.init else "container"
    # A pod that is never restarted has had its only try.
    final = pod.phase == "Failed" and container.init
    return Diagnosis(
        f"{what} {container.name} of {pod.role} {pod.name} failed{_how_it_ended(container)}",
        evidence=_container_evidence(pod, container),
        remedy="Give it more memory." if memory else "Read its log; it is started again.",
        hopeless=final,
        cls=VerdictClass.OOM if memory else VerdictClass.CONFIG,
        grace_s=10.0,
        key=f"failed {pod.role}",
    )


# --- pods that may not exist, or find no machine --------------------------------------------

_QUOTA = re.compile(r"exceeded quota: (?P<name>[^,]+), (?P<numbers>requested: .*)")
_NEVER = (
    (re.compile(r"violates PodSecurity"), "Ask the platform team for a pool that is allowed here."),
    (re.compile(r"error looking up service account"), "Create the pool's service account."),
    (re.compile(r"no PriorityClass with name"), "Correct the pool's priority class."),
    (re.compile(r"admission webhook .* denied"), "Change what the webhook names, or the pool."),
    (re.compile(r"is invalid: "), "Correct the field that the API server names."),
)


def _refused_pods(obs: Observation) -> Diagnosis | None:
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
            yield f"RayCluster {obs.cluster.name}: ReplicaFailure {reason}", message
        if obs.cluster.reason:
            yield f"RayCluster {obs.cluster.name}: {obs.cluster.state}", obs.cluster.reason
    for event in reversed(obs.events):
        if event.reason.startswith("FailedToCreate") or event.reason == "FailedCreate":
            yield f"event {event.reason} of {event.about}", event.message


def _unschedulable(obs: Observation) -> Diagnosis | None:
    waiting = [pod for pod in _head_first(obs) if _scheduled(pod)[0] == "False"]
    if not waiting:
        return None
    pod = waiting[0]
    _, reason, message = _scheduled(pod)
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
        f"no machine for {pod.role} {pod.name}{others}: {message or reason}",
        evidence=tuple(evidence),
        remedy=_scheduling_remedy(message, pod),
        cls=VerdictClass.CAPACITY,
        key="unschedulable",
    )


def _scheduling_remedy(message: str, pod: PodView) -> str:
    pool = f"pool {pod.pool}" if pod.pool else "its pool"
    short = sorted(set(re.findall(r"Insufficient ([\w./-]+[\w])", message)))
    if short:
        return f"Ask for less {', '.join(short)}, use another pool than {pool}, or wait."
    if "untolerated taint" in message:
        return f"Add the taint's toleration to {pool}."
    if "affinity" in message or "selector" in message:
        return f"No machine has the labels of {pool}: correct its node selector."
    return "Wait, or use another pool."


# --- pods that have a machine ---------------------------------------------------------------


def _volume_trouble(obs: Observation) -> Diagnosis | None:
    not_ready = {f"Pod/{pod.name}": pod for pod in obs.pods if not pod.ready}
    for event in reversed(obs.events):
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


def _unknown_pod(obs: Observation) -> Diagnosis | None:
    for pod in _head_first(obs):
        if pod.phase == "Unknown":
            return Diagnosis(
                f"machine {pod.node} of {pod.role} {pod.name} does not answer",
                evidence=(f"pod {pod.name}: phase Unknown {pod.reason} {pod.message}".rstrip(),),
                hopeless=True,
                cls=VerdictClass.INFRA,
                grace_s=UNKNOWN_GRACE_S,
                key="unknown pod",
            )
    return None


def _starting(obs: Observation) -> Diagnosis:
    rayjob = obs.rayjob
    message = rayjob.message.strip() if rayjob else ""
    pods = _head_first(obs)
    if pods and all(pod.ready for pod in pods):
        if rayjob is not None and rayjob.job_status == "PENDING":
            return Diagnosis(
                "all machines are ready, and Ray has not started the driver",
                evidence=("jobStatus PENDING with every pod Ready",),
                remedy="If it lasts: the entrypoint's own resources do not fit on any machine, or"
                " its runtime environment takes long to install.",
                cls=VerdictClass.CONFIG,
                key="ray pending",
            )
        return Diagnosis("all machines are ready; the job is being submitted", key="submitting")
    if pods:
        return _pods_starting(obs, pods)
    if message:
        return Diagnosis(message, evidence=(f"RayJob: {message}",))
    if rayjob is None or not rayjob.deployment_status:
        return Diagnosis(
            "accepted; nobody has begun with it yet",
            remedy="If it lasts: check that the KubeRay operator runs and watches this namespace.",
            key="new",
        )
    return Diagnosis("the machines are being asked for")


def _pods_starting(obs: Observation, pods: list[PodView]) -> Diagnosis:
    unready = [pod for pod in pods if not pod.ready]
    pod = unready[0]
    pulling = next(
        (
            event.message
            for event in reversed(obs.events)
            if event.about == f"Pod/{pod.name}" and event.reason == "Pulling"
        ),
        "",
    )
    init = next((one for one in pod.containers if one.init and not one.ready), None)
    if pulling and any(one.waiting_reason for one in pod.containers):
        doing = f"is {pulling[0].lower()}{pulling[1:]}"
    elif init is not None and not init.waiting_reason and init.exit_code is None:
        doing = f"waits for its init container {init.name}"
    else:
        doing = "is starting"
    done = len(pods) - len(unready)
    return Diagnosis(
        f"{done} of {len(pods)} machines ready; {pod.role} {pod.name} {doing}",
        evidence=(f"pod {pod.name}: {pod.phase or 'no phase yet'}",),
    )


# --- reading pods ---------------------------------------------------------------------------


def _head_first(obs: Observation) -> list[PodView]:
    """The pods that are there to stay, the head before the workers."""
    alive = [pod for pod in obs.pods if not pod.deleting]
    return sorted(alive, key=lambda pod: (pod.role != "head", pod.name))


def _containers(obs: Observation) -> Iterator[tuple[PodView, ContainerView]]:
    for pod in _head_first(obs):
        for container in sorted(pod.containers, key=lambda one: not one.init):
            yield pod, container


def _scheduled(pod: PodView) -> tuple[str, str, str]:
    return pod.conditions.get("PodScheduled", ("", "", ""))


def _how_it_ended(container: ContainerView) -> str:
    if container.exit_code is None:
        return ""
    reason = container.terminated_reason
    named = f", {reason}" if reason and reason != "Error" else ""
    return f" (exit code {container.exit_code}{named})"


def _container_evidence(pod: PodView, container: ContainerView) -> tuple[str, ...]:
    parts = [container.waiting_reason, container.waiting_message]
    if container.exit_code is not None:
        parts += [container.terminated_reason, f"exit code {container.exit_code}"]
    said = ": ".join(part for part in parts if part)
    return (f"pod {pod.name}, container {container.name}: {said}",)


def _image_in(message: str) -> str:
    found = re.search(r'image "([^"]+)"', message)
    return found[1] if found else ""
