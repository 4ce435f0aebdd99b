"""Where each kind of object lives on an API server."""

from __future__ import annotations

from urllib.parse import quote

_CORE = "/api/v1"
_RAY = "/apis/ray.io/v1"
_KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_AUTHORIZATION = "/apis/authorization.k8s.io/v1"

_NAMESPACED = {
    **dict.fromkeys(
        ("configmaps", "events", "limitranges", "persistentvolumeclaims", "pods",
         "resourcequotas", "secrets", "serviceaccounts", "services"), _CORE,
    ),
    **dict.fromkeys(("rayclusters", "rayjobs", "rayservices"), _RAY),
    **dict.fromkeys(("localqueues", "workloads"), _KUEUE),
    **dict.fromkeys(("rolebindings", "roles"), _RBAC),
    "deployments": "/apis/apps/v1",
    "jobs": "/apis/batch/v1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
}  # fmt: skip
_CLUSTER_WIDE = {
    **dict.fromkeys(("namespaces", "nodes", "persistentvolumes"), _CORE),
    **dict.fromkeys(("clusterqueues", "resourceflavors"), _KUEUE),
    **dict.fromkeys(("selfsubjectaccessreviews", "selfsubjectrulesreviews"), _AUTHORIZATION),
    "customresourcedefinitions": "/apis/apiextensions.k8s.io/v1",
    "priorityclasses": "/apis/scheduling.k8s.io/v1",
    "selfsubjectreviews": "/apis/authentication.k8s.io/v1",
    "storageclasses": "/apis/storage.k8s.io/v1",
}


def path_of(kind: str, namespace: str, name: str = "", sub: str = "") -> str:
    """The path of a kind (plural, `rayjobs`), or of one object and what is below it (`log`).

    Without a namespace a namespaced kind's path is that of all namespaces. `sub` may hold slashes
    (`proxy/api/jobs/`).
    """
    if kind in _CLUSTER_WIDE:
        path = f"{_CLUSTER_WIDE[kind]}/{kind}"
    elif namespace:
        path = f"{_NAMESPACED[kind]}/namespaces/{quote(namespace, safe='')}/{kind}"
    else:
        path = f"{_NAMESPACED[kind]}/{kind}"
    if name:
        path += f"/{quote(name, safe=':')}"
    return f"{path}/{quote(sub, safe='/:')}" if sub else path
