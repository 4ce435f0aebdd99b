"""What of each watched object is kept in memory: a thousand jobs must not cost a megabyte each."""

from __future__ import annotations

from typing import Any

from ml_pipelines.backends.kuberay.fields import as_dict, as_list

Object = dict[str, Any]

_METADATA = (
    "name", "uid", "resourceVersion", "labels", "creationTimestamp", "deletionTimestamp",
)  # fmt: skip
_POD_STATUS = (
    "phase", "reason", "message", "conditions", "containerStatuses", "initContainerStatuses",
)  # fmt: skip
_CLUSTER_STATUS = (
    "state", "reason", "conditions", "desiredWorkerReplicas", "readyWorkerReplicas", "head",
)  # fmt: skip


def rayjob(made: Object) -> Object:
    """All but the spec, which we wrote, and the copy of the cluster's status."""
    status = {k: v for k, v in as_dict(made.get("status")).items() if k != "rayClusterStatus"}
    spec = _only(made.get("spec"), ("suspend",))
    return {"metadata": _metadata(made), "spec": spec, "status": status}


def raycluster(made: Object) -> Object:
    """What its views need."""
    return {"metadata": _metadata(made), "status": _only(made.get("status"), _CLUSTER_STATUS)}


def pod(made: Object) -> Object:
    """What its view needs."""
    spec = as_dict(made.get("spec"))
    containers = {
        kind: [_only(one, ("name", "resources", "restartPolicy")) for one in as_list(spec[kind])]
        for kind in ("containers", "initContainers")
        if kind in spec
    }
    claims = [
        {"persistentVolumeClaim": one["persistentVolumeClaim"]}
        for one in as_list(spec.get("volumes"))
        if "persistentVolumeClaim" in one
    ]
    kept = _only(spec, ("nodeName", "nodeSelector", "restartPolicy"))
    return {
        "metadata": _metadata(made),
        "spec": {**kept, **containers, "volumes": claims},
        "status": _only(made.get("status"), _POD_STATUS),
    }


def workload(made: Object) -> Object:
    """What its view needs, and whose it is."""
    metadata = {**_metadata(made), "ownerReferences": made["metadata"].get("ownerReferences")}
    return {
        "metadata": metadata,
        "spec": _only(made.get("spec"), ("queueName",)),
        "status": _only(made.get("status"), ("conditions",)),
    }


def _metadata(made: Object) -> Object:
    return _only(made.get("metadata"), _METADATA)


def _only(value: object, names: tuple[str, ...]) -> Object:
    found = as_dict(value)
    return {name: found[name] for name in names if name in found}
