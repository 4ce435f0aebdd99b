"""Why does it not run yet? One sentence that quotes its evidence and says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ml_pipelines.job import containers, placement
from ml_pipelines.job.losses import queue_named
from ml_pipelines.job.symptom import CONFIG_GRACE_S, Diagnosis
from ml_pipelines.job.verdict import VerdictClass

if TYPE_CHECKING:
    from collections.abc import Collection

    from ml_pipelines.job.observation import Observation, PodView


def why_pending(obs: Observation, *, head_starts: int = 1, lost: Collection[str] = ()) -> Diagnosis:
    """The one cause worth telling, the most certain first. Never raises.

    `head_starts` counts the heads that were started in this cluster, which one observation can't
    know; no more does it know which pods were `lost` before, by their names.
    """
    return (
        _queued(obs)
        or containers.crash_loop(obs, head_starts, lost)
        or containers.trouble(obs)
        or placement.refused(obs)
        or placement.unschedulable(obs)
        or placement.volume_trouble(obs)
        or placement.silent_machine(obs)
        or _starting(obs)
    )


def _queued(obs: Observation) -> Diagnosis | None:
    rayjob, workload = obs.rayjob, obs.workload
    if rayjob is None:
        return None
    suspended = rayjob.suspended or rayjob.deployment_status in {"Suspending", "Suspended"}
    if not suspended:
        return None
    if workload is None:
        return Diagnosis(
            "suspended, waiting to be admitted by its queue",
            remedy="If it lasts: check that Kueue runs, and that its Workloads may be read here.",
            cls=VerdictClass.CAPACITY,
            key="queue",
        )
    message = next(
        (
            f"{kind}: {text}"
            for kind in ("QuotaReserved", "Admitted", "Evicted")
            for status, _, text in [workload.conditions.get(kind, ("", "", ""))]
            if text and status == ("True" if kind == "Evicted" else "False")
        ),
        "",
    )
    queue = queue_named(workload)
    if not message and workload.conditions.get("Admitted", ("", "", ""))[0] == "True":
        return Diagnosis(f"{queue} has let it in; it starts in a moment", key="queue")
    said = message.split(": ", 1)[1] if message else "no reason given yet"
    never = _never_admitted(said)
    if never:
        return Diagnosis(
            f"{queue} can't admit it: {said}",
            evidence=(f"Workload {workload.name}: {message}",),
            remedy=never,
            hopeless=True,
            cls=VerdictClass.CONFIG,
            grace_s=CONFIG_GRACE_S,
            key="never admitted",
        )
    return Diagnosis(
        f"waiting in {queue}: {said}",
        evidence=(f"Workload {workload.name}: {message}",) if message else (),
        remedy=_until_admitted(said),
        cls=VerdictClass.CAPACITY,
        key="queue",
    )


def _never_admitted(said: str) -> str:
    """What to do about a queue that can't take the job however long it waits; else empty."""
    if "doesn't exist" in said:
        return "Create the queue, or correct its name in the pool."
    # One group of pods a part; what is too large for one kind of machine may fit another's.
    parts = said.split("couldn't assign flavors to pod set")
    if any("> maximum capacity" in one and "insufficient unused quota" not in one for one in parts):
        return "Ask for less than the queue has, or for a pool with a larger queue."
    return ""


def _until_admitted(said: str) -> str:
    """What may be done about a wait that can end by itself."""
    if "inactive" in said or "stopped" in said:
        return "Ask whoever keeps the queue: it takes no jobs now. Nothing is charged meanwhile."
    if "deactivated" in said:
        return "Somebody set it aside in the queue: have its Workload made active, or cancel it."
    return "Ask for less, or for a pool with free quota; nothing is charged while it waits."


def _starting(obs: Observation) -> Diagnosis:
    rayjob = obs.rayjob
    message = rayjob.message.strip() if rayjob else ""
    pods = obs.staying
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


def _pods_starting(obs: Observation, pods: tuple[PodView, ...]) -> Diagnosis:
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
        waits_for_head = init.name == "wait-gcs-ready"
        doing = "waits for the head" if waits_for_head else f"waits for init container {init.name}"
    else:
        doing = "is starting"
    done = len(pods) - len(unready)
    return Diagnosis(
        f"{done} of {len(pods)} machines ready; {pod.role} {pod.name} {doing}",
        evidence=(f"pod {pod.name}: {pod.phase or 'no phase yet'}",),
    )
