"""What keeps a container from running: its image, its configuration, its own failing."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ml_pipelines.job.losses import loss_of, out_of_memory
from ml_pipelines.job.observation import ContainerView
from ml_pipelines.job.symptom import CONFIG_GRACE_S, Diagnosis
from ml_pipelines.job.verdict import VerdictClass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ml_pipelines.job.observation import Observation, PodView

IMAGE_GRACE_S = 120.0  # a registry may hiccup
MAX_STARTS = 4  # of a head or an init container, before we call it a crash loop
_REMEDY_MEMORY = "Give it more memory."

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


# What the operator says when it replaces a pod that has failed and is never restarted.
_REPLACED = re.compile(
    r"Deleted (?P<role>head|worker) Pod (?:\S+/)?(?P<pod>\S+); Pod status: (?P<phase>\w+);.*"
    r"Ray container terminated status: (?:nil|&ContainerStateTerminated\{ExitCode:(?P<code>-?\d+),"
    r"Signal:\d+,Reason:(?P<reason>\w*),Message:(?P<message>.*),StartedAt:"
    r"(?P<began>[^,]*))",
    re.DOTALL,
)
# SIGKILL and SIGTERM: somebody else ended it, unless the kernel says that it was for its memory.
_KILLED = frozenset({137, 143})


def crash_loop(obs: Observation, head_starts: int, lost: Collection[str] = ()) -> Diagnosis | None:
    """A container that fails at every start; `lost` names pods that something took from us."""
    replaced = _replaced_again(obs, {*lost, *_taken(obs)})
    if replaced is not None:
        return replaced
    for pod, container in _containers(obs):
        starts = container.restarts + 1
        if pod.role == "head" and not container.init:
            starts = max(starts, head_starts)
        looping = container.waiting_reason == "CrashLoopBackOff" or starts >= MAX_STARTS
        failed = container.exit_code not in {None, 0} or container.waiting_reason
        if container.ready or not looping or not failed:
            continue
        how = _how_it_ended(container)
        memory = out_of_memory(container)
        what = "init container" if container.init else "container"
        return Diagnosis(
            f"{what} {container.name} of {pod.role} {pod.name} fails at every start{how}"
            f" ({starts} starts)",
            evidence=_container_evidence(pod, container),
            remedy=_REMEDY_MEMORY if memory else "Read its log; try the image by itself.",
            hopeless=starts >= MAX_STARTS,
            cls=VerdictClass.OOM if memory else VerdictClass.CONFIG,
            key=f"crash {pod.role}",
        )
    return None


def _taken(obs: Observation) -> set[str]:
    """Pods that something took from us by now: they did not fail by themselves."""
    losses = (loss_of(pod, now=0.0) for pod in obs.pods)
    return {loss.pod for loss in losses if loss and loss.cls is not VerdictClass.OOM}


def _replaced_again(obs: Observation, lost: Collection[str]) -> Diagnosis | None:
    """Pods of one group that fail and are made anew by the operator, each time the same way."""
    told = [
        (event, found)
        for event in obs.events
        if event.reason in {"DeletedHeadPod", "DeletedWorkerPod"}
        and (found := _REPLACED.search(event.message))
        and (found["code"] not in {None, "0"} or found["phase"] == "Failed")
        and found["pod"] not in lost
        and not _was_killed(found["code"], found["reason"])
    ]
    if not told:
        return None
    last, found = told[-1]
    # One pod may be told of twice; a head may have the same name at each start.
    failed = len(
        {(other["pod"], other["began"]) for _, other in told if _group(other) == _group(found)}
    )
    if failed < 2:
        return None
    memory = found["reason"] == "OOMKilled"
    ended = ContainerView("", terminated_reason=found["reason"] or "")
    how = _how_it_ended(replace(ended, exit_code=int(found["code"]))) if found["code"] else ""
    said = f": {found['message'].strip()}" if found["message"] else ""
    return Diagnosis(
        f"the {found['role']} fails at every start{how}, {failed} times so far{said[:300]}",
        evidence=(f"event {last.reason} of {last.about}: {last.message}",),
        remedy=_REMEDY_MEMORY if memory else "Read its log; try the image by itself.",
        hopeless=failed + 1 >= MAX_STARTS,
        cls=VerdictClass.OOM if memory else VerdictClass.CONFIG,
        key=f"crash {_group(found)}",
    )


def _group(found: re.Match[str]) -> str:
    """The group of a pod, by its name without the random end."""
    return found["role"] if found["role"] == "head" else found["pod"].rpartition("-")[0]


def _was_killed(code: str | int | None, reason: str | None) -> bool:
    return code is not None and int(code) in _KILLED and reason != "OOMKilled"


def trouble(obs: Observation) -> Diagnosis | None:
    """An image, a configuration or a start that fails."""
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
        killed = _was_killed(container.exit_code, container.terminated_reason)
        if container.exit_code not in {None, 0} and not container.ready and not killed:
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
    memory = out_of_memory(container)
    what = "init container" if container.init else "container"
    # A pod that is never restarted has had its only try.
    final = pod.phase == "Failed" and container.init
    said = f": {container.terminated_message[:300]}" if container.terminated_message else ""
    return Diagnosis(
        f"{what} {container.name} of {pod.role} {pod.name} failed{_how_it_ended(container)}{said}",
        evidence=_container_evidence(pod, container),
        remedy=_REMEDY_MEMORY if memory else "Read its log; it is started again.",
        hopeless=final,
        cls=VerdictClass.OOM if memory else VerdictClass.CONFIG,
        grace_s=10.0,
        key=f"failed {pod.role} {pod.name}",
    )


def _containers(obs: Observation) -> Iterator[tuple[PodView, ContainerView]]:
    taken = _taken(obs)
    for pod in obs.staying:
        if pod.name in taken:
            continue
        for container in sorted(pod.containers, key=lambda one: not one.init):
            yield pod, container


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
        parts.append(container.terminated_message)
    said = ": ".join(part for part in parts if part)
    return (f"pod {pod.name}, container {container.name}: {said}",)


def _image_in(message: str) -> str:
    found = re.search(r'image (?:name |tag )?"([^"]+)"', message)
    return found[1] if found else ""
