"""Pod templates of heads and workers: sizes, places, labels, and what keeps them safe."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ml_pipelines.spec import naming
from ml_pipelines.spec.cluster import Head, WorkerGroup
from ml_pipelines.spec.encoding import container_env
from ml_pipelines.spec.logship import add_log_container
from ml_pipelines.spec.patching import patched
from ml_pipelines.spec.pools import Pool, Pools
from ml_pipelines.spec.quantity import cpu_cores, mebibytes, memory_bytes, millicores

# Which of `cpu`, `memory`, `gpus` the user wrote, as a comma-separated list: the local backend may
# shrink the others, which are the pool's.
SIZED_BY_USER_ANNOTATION = naming.label_key("sized_by_user")
PRICE_ANNOTATION = naming.label_key("price_per_hour")

# A pod on a node that is gone: Kubernetes' own default waits five minutes.
LOST_NODE_S = 30
# A cancelled job has to be gone within 30 s.
GRACE_S = 20
# For Ray's autoscaler, a second container beside the head.
_AUTOSCALER_SIZE = {"cpu": "500m", "memory": "512Mi"}
_IDLE_WORKER_S = 60
_TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - where clients look
# The operator lets the head's account resize the cluster. Only the autoscaler gets the token that
# proves it: the driver, which runs beside it, is the user's code.
_AUTOSCALER_TOKEN: Mapping[str, Any] = {
    "name": "autoscaler-token",
    "projected": {
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
            {"configMap": {
                "name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}],
            }},
            {"downwardAPI": {
                "items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}],
            }},
        ]
    },
}  # fmt: skip

_HEAD_PORTS = {"gcs-server": 6379, "dashboard": 8265, "metrics": 8080}

Template = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Size:
    cpu: str
    memory: str
    gpus: int
    by_user: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PodMaker:
    """Makes the group specs of one cluster.

    `texts` are its labels by short name, any text; `secrets` the job's, `secret-name/key` by the
    variable's name.
    """

    pools: Pools
    env: Mapping[str, str]
    texts: Mapping[str, str]
    secrets: Mapping[str, str] = field(default_factory=dict)

    def metadata(self, **more: str) -> tuple[dict[str, str], dict[str, str]]:
        """Labels, and annotations with the full texts of those that a label can't hold."""
        labels: dict[str, str] = {}
        annotations: dict[str, str] = {}
        for name, text in sorted({**self.texts, **more}.items()):
            key, value = naming.label_key(name), naming.label_value(text)
            if value:
                labels[key] = value
            if value != text:
                annotations[key] = text
        return labels, annotations

    def head(self, head: Head, *, elastic: bool) -> Template:
        """The head group: on a CPU pool and without CPUs for tasks, which belong on workers."""
        pool = self.pools.pools[head.pool]
        template = self._template("head", pool, _size(head, pool, gpus=0), elastic=elastic)
        if elastic:
            template["spec"].setdefault("volumes", []).append(
                copy.deepcopy(dict(_AUTOSCALER_TOKEN))
            )
        template["spec"]["containers"][0]["ports"] = [
            {"name": name, "containerPort": port} for name, port in _HEAD_PORTS.items()
        ]
        return {
            "rayStartParams": {"num-cpus": "0", "num-gpus": "0"},
            "template": _patched(template, "head", pool),
        }

    def workers(self, group: WorkerGroup) -> Template:
        """One worker group."""
        pool = self.pools.pools[group.pool]
        size = _size(group, pool, gpus=pool.gpus if group.gpus is None else group.gpus)
        return {
            "groupName": group.name,
            "replicas": group.min_workers,
            "minReplicas": group.min_workers,
            "maxReplicas": group.max_workers,
            "rayStartParams": {
                # Ray counts whole CPUs; rounding up would promise what isn't there.
                "num-cpus": str(max(1, int(cpu_cores(size.cpu)))),
                "num-gpus": str(size.gpus),
            },
            "template": _patched(self._template("worker", pool, size), "worker", pool),
        }

    def autoscaler(self) -> Template:
        """Ray's autoscaler, for clusters that may grow."""
        return {
            "version": "v2",
            "idleTimeoutSeconds": _IDLE_WORKER_S,
            "resources": {"requests": dict(_AUTOSCALER_SIZE), "limits": dict(_AUTOSCALER_SIZE)},
            "securityContext": _container_security(),
            "volumeMounts": [
                {"name": _AUTOSCALER_TOKEN["name"], "mountPath": _TOKEN_FOLDER, "readOnly": True}
            ],
        }

    def _template(self, role: str, pool: Pool, size: _Size, *, elastic: bool = False) -> Template:
        pools = self.pools
        labels, annotations = self.metadata(pool=pool.name, spot=str(pool.spot).lower())
        annotations[SIZED_BY_USER_ANNOTATION] = ",".join(size.by_user)
        if pool.price_per_hour is not None:
            annotations[PRICE_ANNOTATION] = repr(pool.price_per_hour)
        resources = {"cpu": size.cpu, "memory": size.memory}
        if size.gpus:
            resources[pool.gpu_resource] = str(size.gpus)
        spec: Template = {
            # Ray can't go on in a restarted container; the operator makes a new pod instead.
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE_S,
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": pools.run_as_user,
                "runAsGroup": pools.run_as_group,
                "fsGroup": pools.run_as_group,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "tolerations": _tolerations(pool),
            "containers": [
                {
                    "name": f"ray-{role}",
                    "image": pool.image or pools.image,
                    "env": [*container_env(self.env), *_secret_env(self.secrets)],
                    "resources": {"requests": resources, "limits": dict(resources)},
                    "securityContext": _container_security(),
                }
            ],
        }
        account = pool.service_account or pools.service_account
        optional = {
            "serviceAccountName": account,
            "imagePullSecrets": [{"name": name} for name in pools.image_pull_secrets],
            "nodeSelector": dict(pool.node_selector),
            "priorityClassName": pool.priority_class,
        }
        spec.update({name: value for name, value in optional.items() if value})
        self._add_storage(spec)
        add_log_container(spec, role, _container_security())
        beside = [spec["initContainers"][-1]["resources"]["requests"]]
        room = _with_room(size, pool, beside + [_AUTOSCALER_SIZE] * elastic)
        for amounts in spec["containers"][0]["resources"].values():
            amounts.update(room)
        return {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}

    def _add_storage(self, spec: Template) -> None:
        """The platform's volumes and Secrets, to Ray's container."""
        ray, pools = spec["containers"][0], self.pools
        if pools.secrets:
            ray["envFrom"] = [{"secretRef": {"name": name}} for name in pools.secrets]
        for volume in pools.volumes:
            mode = {"readOnly": True} if volume.read_only else {}
            claim = {"claimName": volume.claim, **mode}
            spec.setdefault("volumes", []).append(
                {"name": volume.name, "persistentVolumeClaim": claim}
            )
            ray.setdefault("volumeMounts", []).append(
                {"name": volume.name, "mountPath": volume.path, **mode}
            )


def _with_room(size: _Size, pool: Pool, beside: list[dict[str, str]]) -> dict[str, str]:
    """Ray's part of a pod: a pool's size is for all of it, so what runs beside Ray is taken off.

    What the user wrote stays where the machine has room for both. A size that is hardly more than
    what runs beside it is smaller than the machine, and stays too.
    """
    cpu, memory = cpu_cores(size.cpu), memory_bytes(size.memory)
    rest = {
        "cpu": (cpu_cores(pool.cpu) if "cpu" in size.by_user else cpu)
        - sum(cpu_cores(other["cpu"]) for other in beside),
        "memory": (memory_bytes(pool.memory) if "memory" in size.by_user else memory)
        - sum(memory_bytes(other["memory"]) for other in beside),
    }
    changed = {}
    if cpu / 2 <= rest["cpu"] < cpu:
        changed["cpu"] = millicores(round(rest["cpu"], 3))
    if memory / 2 <= rest["memory"] < memory:
        changed["memory"] = mebibytes(int(rest["memory"]))
    return changed


def _patched(template: Template, role: str, pool: Pool) -> Template:
    if not pool.patch:
        return template
    return patched(template, pool.patch, role=role, path=f"pools.{pool.name}.patch")


def _secret_env(secrets: Mapping[str, str]) -> list[Template]:
    """A container's `env` from keys of Secrets; where one is missing, the container can't start."""
    made = []
    for variable, reference in sorted(secrets.items()):
        name, _, key = reference.partition("/")
        ref = {"name": name, "key": key}
        made.append({"name": variable, "valueFrom": {"secretKeyRef": ref}})
    return made


def _container_security() -> Template:
    """What Kubernetes' "restricted" level asks of a container."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _tolerations(pool: Pool) -> list[Template]:
    own = [
        {name: value for name, value in toleration.model_dump().items() if value}
        for toleration in pool.tolerations
    ]
    lost = [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": LOST_NODE_S,
        }
        for state in ("not-ready", "unreachable")
    ]
    return own + lost


def _size(asked: Head | WorkerGroup, pool: Pool, *, gpus: int) -> _Size:
    """What was asked for; the rest from the pool: all of a machine, or the share its GPUs are."""
    share = gpus / pool.gpus if gpus else 1.0
    cpu, memory = pool.cpu, pool.memory
    if share < 1:
        cpu = millicores(cpu_cores(pool.cpu) * share)
        memory = mebibytes(int(memory_bytes(pool.memory) * share))
    written = [name for name in ("cpu", "memory", "gpus") if getattr(asked, name, None) is not None]
    return _Size(asked.cpu or cpu, asked.memory or memory, gpus, tuple(written))
