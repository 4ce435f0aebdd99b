"""A pod of a Ray cluster as a view: what of it is Ray's, what it takes, when it came and went."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from ml_pipelines.backends import rayjob
from ml_pipelines.backends.kuberay.fields import (
    GROUP_LABEL,
    as_dict,
    as_list,
    as_text,
    as_time,
    conditions,
    is_head,
    labels_of,
)
from ml_pipelines.backends.kuberay.logs import log_state
from ml_pipelines.errors import InvalidInput
from ml_pipelines.job.observation import ContainerView, PodView
from ml_pipelines.spec.logship import CONTAINER as LOG_CONTAINER
from ml_pipelines.spec.quantity import cpu_cores, memory_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Object = Mapping[str, Any]

_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_SPOT = {
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "eks.amazonaws.com/capacityType": "SPOT",
    "karpenter.sh/capacity-type": "spot",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
# A node that doesn't answer: what ran there is gone once its time to leave is over.
_UNREACHABLE = "DeletionByTaintManager"


def pod_view(pod: Object, node: Mapping[str, str]) -> PodView:
    """The pod; `node` are its node's labels, empty where they can't be read."""
    metadata, spec, status = pod["metadata"], as_dict(pod.get("spec")), as_dict(pod.get("status"))
    labels = labels_of(pod)
    phase, reason, message = _phase(spec, status)
    return PodView(
        name=as_text(metadata.get("name")),
        uid=as_text(metadata.get("uid")),
        role="head" if is_head(pod) else "worker",
        group=as_text(labels.get(GROUP_LABEL)),
        phase=phase,
        reason=reason,
        message=message,
        node=as_text(spec.get("nodeName")),
        node_type=_node_type(spec, node),
        spot=is_spot(node) if node else labels.get(rayjob.SPOT) == "true",
        pool=as_text(labels.get(rayjob.POOL)),
        deleting=bool(metadata.get("deletionTimestamp")),
        requests=requests(spec),
        conditions=_conditions(spec, status),
        containers=tuple(_containers(spec, status)),
        scheduled_at=_scheduled_at(status),
        gone_at=_gone_at(metadata, status),
        leaves_at=as_time(metadata.get("deletionTimestamp")),
        ships_log=log_state(pod) is not None,
    )


def is_spot(node: Mapping[str, str]) -> bool:
    """Whether a node with these labels may be taken away at short notice."""
    return any(node.get(key, "").lower() == value.lower() for key, value in _SPOT.items())


def _node_type(spec: Mapping[str, Any], node: Mapping[str, str]) -> str:
    chosen = as_dict(spec.get("nodeSelector"))
    return node.get(_INSTANCE_TYPE) or as_text(chosen.get(_INSTANCE_TYPE))


# ── what it takes ───────────────────────────────────────────────────────────────────────────────


def requests(spec: Mapping[str, Any]) -> dict[str, float]:
    """CPUs, bytes of memory and GPUs that the scheduler keeps for the pod.

    Containers that run together add up; an init container that ends before them counts only where
    it asks for more than they do.
    """
    inits = list(map(as_dict, as_list(spec.get("initContainers"))))
    beside = [one for one in inits if one.get("restartPolicy") == "Always"]
    first = [one for one in inits if one.get("restartPolicy") != "Always"]
    beside_s = _sum(map(_asked, beside))
    together = _sum([beside_s, *map(_asked, map(as_dict, as_list(spec.get("containers"))))])
    for one in first:
        alone = _sum([_asked(one), beside_s])
        together = {
            name: max(together.get(name, 0.0), alone.get(name, 0.0)) for name in together | alone
        }
    return {name: amount for name, amount in together.items() if amount}


def _asked(container: Mapping[str, Any]) -> dict[str, float]:
    resources = as_dict(container.get("resources"))
    asked = {**as_dict(resources.get("limits")), **as_dict(resources.get("requests"))}
    found: dict[str, float] = {}
    for name, quantity in asked.items():
        short = _short(name)
        if short:
            found[short] = found.get(short, 0.0) + _amount(short, str(quantity))
    return found


def _short(resource: str) -> str:
    if resource in {"cpu", "memory"}:
        return resource
    # nvidia.com/gpu, amd.com/gpu, nvidia.com/mig-1g.5gb, google.com/tpu
    domain, _, kind = resource.partition("/")
    named = kind.startswith(("gpu", "mig-", "tpu")) or kind.endswith("gpu")
    return "gpu" if domain and named else ""


def _amount(name: str, quantity: str) -> float:
    try:
        return float(memory_bytes(quantity)) if name == "memory" else cpu_cores(quantity)
    except InvalidInput:  # what the server takes and we don't, such as `1e3m`
        return 0.0


def _sum(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0.0) + amount
    return total


# ── how it stands ───────────────────────────────────────────────────────────────────────────────


def _ray(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The status of the container that runs Ray: the first of the spec, wherever it stands here."""
    made = as_list(spec.get("containers"))
    name = as_dict(made[0]).get("name") if made else None
    found = map(as_dict, as_list(status.get("containerStatuses")))
    return next((one for one in found if one.get("name") == name), {})


def _phase(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[str, str, str]:
    """Phase, reason and message; a pod is over with its Ray, whatever else runs in it still."""
    phase = as_text(status.get("phase"))
    reason, message = as_text(status.get("reason")), as_text(status.get("message"))
    ended = as_dict(as_dict(_ray(spec, status).get("state")).get("terminated"))
    if phase == "Running" and ended and spec.get("restartPolicy") == "Never":
        phase = "Failed" if ended.get("exitCode") else "Succeeded"
    if phase == "Failed" and not reason:
        reason = as_text(ended.get("reason"))
        code = ended.get("exitCode")
        message = message or (f"exit code {code}" if code is not None else "")
    return phase, reason, message


def _conditions(
    spec: Mapping[str, Any], status: Mapping[str, Any]
) -> dict[str, tuple[str, str, str]]:
    found = conditions(status)
    ready, reason, _ = found.get("Ready", ("", "", ""))
    if (ready, reason) != ("False", "ContainersNotReady"):
        return found  # a lost node, for one, says so in another reason
    if _ray(spec, status).get("ready") is True:
        # Unready for the log container alone, which restarts by itself.
        found["Ready"] = ("True", "", "")
    return found


def _containers(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterable[ContainerView]:
    """Ray's containers, and the log's as long as it may keep Ray from starting."""
    state = as_dict(_ray(spec, status).get("state"))
    begun = bool(state.get("running") or state.get("terminated"))
    for kind, init in (("initContainerStatuses", True), ("containerStatuses", False)):
        for one in map(as_dict, as_list(status.get(kind))):
            if not (one.get("name") == LOG_CONTAINER and begun):
                yield _container(one, init=init)


def _container(status: Mapping[str, Any], *, init: bool) -> ContainerView:
    state, last = as_dict(status.get("state")), as_dict(status.get("lastState"))
    waiting = as_dict(state.get("waiting"))
    ended = as_dict(state.get("terminated")) or as_dict(last.get("terminated"))
    code = ended.get("exitCode")
    return ContainerView(
        name=as_text(status.get("name")),
        ready=bool(status.get("ready")),
        restarts=int(status.get("restartCount") or 0),
        waiting_reason=as_text(waiting.get("reason")),
        waiting_message=as_text(waiting.get("message")),
        terminated_reason=as_text(ended.get("reason")),
        terminated_message=as_text(ended.get("message")),
        exit_code=code if isinstance(code, int) else None,
        init=init,
    )


# ── when it came and went ───────────────────────────────────────────────────────────────────────


def _scheduled_at(status: Mapping[str, Any]) -> datetime | None:
    for one in map(as_dict, as_list(status.get("conditions"))):
        if one.get("type") == "PodScheduled" and one.get("status") == "True":
            return as_time(one.get("lastTransitionTime"))
    return None


def _gone_at(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> datetime | None:
    """When its machine was free of it: its last container's end, by the server's own clock."""
    leaves = as_time(metadata.get("deletionTimestamp"))
    if (
        leaves is not None
        and conditions(status).get("DisruptionTarget", ("", ""))[1] == _UNREACHABLE
    ):
        return leaves
    if status.get("phase") not in {"Succeeded", "Failed"}:
        return None
    ends = [
        as_time(as_dict(as_dict(as_dict(one).get("state")).get("terminated")).get("finishedAt"))
        for kind in ("containerStatuses", "initContainerStatuses")
        for one in as_list(status.get(kind))
    ]
    known = [end for end in ends if end is not None]
    return max(known) if known else leaves
