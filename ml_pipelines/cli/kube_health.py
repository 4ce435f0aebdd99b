"""What `mlp doctor` makes of a cluster that it saw: OK, WARN, FAIL, what to do; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ml_pipelines.cli.health import Finding, Level
from ml_pipelines.spec.pools import Pool, Pools
from ml_pipelines.spec.quantity import cpu_cores
from ml_pipelines.spec.rights import Right

Object = Mapping[str, Any]

_OLDEST = (1, 29)  # in which containers that restart among the init containers are on by default


def of_rights(account: str, missing: Sequence[tuple[Right, str]], asked: int) -> Finding:
    """What this identity may not do, of what it was asked."""
    if not missing:
        return Finding(Level.OK, "rights", f"{account} may do all {asked} things that jobs need")
    by_kind: dict[Right, list[str]] = {}
    for right, verb in missing:
        by_kind.setdefault(right, []).append(verb)
    fatal = any(not right.needed_for for right in by_kind)
    lacks = "; ".join(
        f"{', '.join(verbs)} {right.shown}"
        + (f" (for {right.needed_for})" if right.needed_for else "")
        for right, verbs in by_kind.items()
    )
    return Finding(
        Level.FAIL if fatal else Level.WARN,
        "rights",
        f"{account} may not {lacks}",
        "Bind the Roles of deploy/base to it (runs.yaml, nodes.yaml).",
    )


def of_pool(pool: Pool, nodes: Sequence[Object] | None) -> Finding:
    """A pool against the nodes that its selector finds; None where they can't be read."""
    what = f"pool {pool.name}"
    if nodes is None:
        return Finding(Level.OK, what, "can't tell: this identity may not read nodes")
    if not nodes:
        selector = ",".join(f"{key}={value}" for key, value in pool.node_selector.items())
        return Finding(
            Level.WARN,
            what,
            f"no node now ({selector or 'no selector'}); an autoscaler may add one",
            "If none does: correct its node_selector in the platform file.",
        )
    usable = [node for node in nodes if not _shut(node, pool)]
    if not usable:
        taints = sorted({_text(taint) for node in nodes for taint in _shut(node, pool)})
        return Finding(
            Level.FAIL,
            what,
            f"all {_nodes(nodes)} bear a taint that it doesn't tolerate: {', '.join(taints)}",
            "Add the toleration to the pool in the platform file.",
        )
    ready = [node for node in usable if _is_ready(node)]
    too_small = _too_small(pool, usable)
    if too_small:
        return Finding(
            Level.FAIL,
            what,
            too_small,
            "Write into the platform file what a node has left for one pod.",
        )
    gpus = sum(int(_worth(_allocatable(node, pool.gpu_resource))) for node in ready)
    text = f"{_nodes(nodes)}, {len(ready)} ready"
    text += f", {gpus} {pool.gpu_resource} allocatable" if pool.gpus else ""
    if not ready:
        return Finding(Level.WARN, what, text, "Jobs wait until one is: see kubectl get nodes.")
    return Finding(Level.OK, what, text)


def of_names(wanted: Sequence[str], missing: Sequence[str], unseen: Sequence[str]) -> Finding:
    """Objects that the platform file names, as `Secret x`: those not there, those we may not see."""
    what = "names"
    if missing:
        return Finding(
            Level.FAIL,
            what,
            f"the platform file names what isn't there: {', '.join(missing)}",
            "Make them in the namespace, or correct the platform file.",
        )
    if not wanted:
        return Finding(Level.OK, what, "the platform file names none")
    text = f"{len(wanted) - len(unseen)} of {len(wanted)} are there"
    if unseen:
        text += f"; can't tell of {', '.join(unseen)}: this identity may not read such"
    return Finding(Level.OK, what, text)


def of_version(told: str) -> Finding:
    """The server's version, such as `v1.34.4`: the container of the logs needs 1.29."""
    found = re.match(r"v(\d+)\.(\d+)", told)
    if found and (int(found[1]), int(found[2])) < _OLDEST:
        return Finding(
            Level.FAIL,
            "Kubernetes",
            f"{told} knows no sidecar containers, so each pod would wait for its log container",
            "Upgrade the cluster to 1.29 or newer.",
        )
    return Finding(Level.OK, "Kubernetes", told or "its version is not told")


def of_writer(uid: int, pools: Pools, urls: Sequence[str]) -> Finding | None:
    """On a shared volume this machine and the pods write into each other's folders."""
    shared = [url for url in urls if url.startswith("file://")]
    if not shared or uid == pools.run_as_user:
        return None
    return Finding(
        Level.WARN,
        "volume",
        f"you write to {shared[0]} as user {uid}, and pods as user {pools.run_as_user}",
        "Work as that user, or name yours as run_as_user in the platform file, or share the "
        "folders with `umask 0`: else a driver can't record its result.",
    )


def of_operator(seen: Sequence[str] | None) -> Finding:
    """Deployments of the operator as `namespace/name ready/wanted`; None: may not be read."""
    if not seen:
        why = "it is no Deployment here" if seen is not None else "this identity may not look"
        return Finding(
            Level.OK,
            "operator",
            f"can't tell ({why}); a job that nobody takes up within 30 s says so",
        )
    down = [each for each in seen if each.rpartition(" ")[2].startswith("0/")]
    if down:
        return Finding(
            Level.FAIL,
            "operator",
            f"KubeRay's operator is down: {', '.join(down)}",
            "Jobs would not start: see kubectl describe deployment.",
        )
    return Finding(Level.OK, "operator", ", ".join(seen))


def names_of(pools: Pools) -> list[tuple[str, str]]:
    """Kind (plural) and name of each object that the platform file names, without repetition."""
    each = list(pools.pools.values())
    found: list[tuple[str, str | None]] = [
        *(("serviceaccounts", name) for name in (pools.service_account,
                                                 *(pool.service_account for pool in each))),
        *(("secrets", name) for name in (*pools.image_pull_secrets, *pools.secrets)),
        *(("persistentvolumeclaims", volume.claim) for volume in pools.volumes),
        *(("localqueues", pool.queue) for pool in each),
        *(("priorityclasses", pool.priority_class) for pool in each),
    ]  # fmt: skip
    return list(dict.fromkeys((kind, name) for kind, name in found if name))


def _too_small(pool: Pool, nodes: Sequence[Object]) -> str:
    """Which size of the pool no node has, with the largest there is; empty where one fits."""
    sizes = {
        "CPUs": (pool.cpu, "cpu"),
        "memory": (pool.memory, "memory"),
        pool.gpu_resource: (str(pool.gpus), pool.gpu_resource),
    }
    for name, (text, resource) in sizes.items():
        has = [_allocatable(node, resource) for node in nodes]
        most = max(has, key=_worth)
        if _worth(text) > _worth(most):
            return f"it promises {text} {name} to a pod, and no node has more than {most}"
    return ""


def _allocatable(node: Object, resource: str) -> str:
    return str(node.get("status", {}).get("allocatable", {}).get(resource, "0"))


def _worth(quantity: str) -> float:
    try:
        return cpu_cores(quantity)  # of bytes and GPUs too: the units are the same
    except ValueError:
        return 0.0


def _is_ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and not node.get("spec", {}).get("unschedulable")


def _shut(node: Object, pool: Pool) -> list[Object]:
    """The taints that keep the pool's pods off a node; those of a node in trouble pass."""
    return [
        taint
        for taint in node.get("spec", {}).get("taints", ())
        if taint.get("effect") in {"NoSchedule", "NoExecute"}
        and not taint["key"].startswith("node.kubernetes.io/")
        and not any(_tolerates(each, taint) for each in pool.tolerations)
    ]


def _tolerates(toleration: Any, taint: Object) -> bool:
    if toleration.effect and toleration.effect != taint.get("effect"):
        return False
    if not toleration.key:
        return bool(toleration.operator == "Exists")
    if toleration.key != taint["key"]:
        return False
    return bool(toleration.operator == "Exists" or toleration.value == taint.get("value", ""))


def _text(taint: Object) -> str:
    return f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"


def _nodes(nodes: Sequence[Object]) -> str:
    return "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
