"""A strategic merge patch on a pod template, as Kubernetes itself would merge it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from ml_pipelines.errors import InvalidInput
from ml_pipelines.spec.naming import PREFIX
from ml_pipelines.spec.references import NOT_SHOWN, gives_secret, is_credential

# Lists whose items Kubernetes merges by a key (`patchMergeKey` in its API types). Every other list
# is replaced as a whole: tolerations, envFrom, args and command among them.
_MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "schedulingGates": "name",
}
_DIRECTIVE = "$patch"
_ROLES = ("head", "worker")

Node = Mapping[str, Any]


def patched(template: Node, patch: Node, *, role: str, path: str) -> dict[str, Any]:
    """The pod template with the patch merged in.

    What the patch says of container `ray-head` concerns heads alone, of `ray-worker` workers
    alone. `path` is the patch's, for messages. Raises InvalidInput.
    """
    mine = copy.deepcopy(dict(patch))
    spec = mine.get("spec")
    if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
        others = {f"ray-{name}" for name in _ROLES if name != role}
        spec["containers"] = [
            one
            for one in spec["containers"]
            if not (isinstance(one, dict) and one.get("name") in others)
        ]
    return _merged(template, mine, path)


def check_patch(patch: Node, path: str) -> None:
    """Refuse what no patch may do: hide pods from us, hold a credential, or be no patch at all.

    What the fields mean is for the server to say. Raises InvalidInput.
    """
    _check_secrets(patch, path)
    _check_names(patch, ("metadata", "spec"), path)
    metadata = _mapping(patch.get("metadata", {}), f"{path}.metadata")
    _check_names(metadata, ("labels", "annotations"), f"{path}.metadata")
    for name, texts in metadata.items():
        where = f"{path}.metadata.{name}"
        for key, text in _mapping(texts, where).items():
            if key.startswith((PREFIX, "$")):
                raise InvalidInput(f"{where}.{key}", text, "is ours to set", remedy="Take it out.")
            if not isinstance(text, str | None):
                raise InvalidInput(
                    f"{where}.{key}", text, "is no text", remedy="Write it in quotes."
                )
    spec = _mapping(patch.get("spec", {}), f"{path}.spec")
    for role in _ROLES:
        ours = {"restartPolicy": "Never", "containers": [{"name": f"ray-{role}"}]}
        made = patched({"spec": ours}, patch, role=role, path=path).get("spec", {})
        if (made.get("containers") or [{}])[0].get("name") != f"ray-{role}":
            raise InvalidInput(
                f"{path}.spec.containers", _told(spec), f"takes the container ray-{role} away",
                remedy="Patch its fields instead.",
            )  # fmt: skip
        if made.get("restartPolicy") != "Never":
            raise InvalidInput(
                f"{path}.spec.restartPolicy", made.get("restartPolicy"),
                "would start Ray again in a pod that has lost its work", remedy="Take it out.",
            )  # fmt: skip


def _check_names(node: Node, known: Sequence[str], path: str) -> None:
    for name, value in node.items():
        if name not in known:
            raise InvalidInput(
                f"{path}.{name}",
                _told(value, f"{path}.{name}"),
                "can't be patched",
                remedy=f"Write {' or '.join(known)}.",
            )


def _mapping(value: Any, path: str) -> Node:
    if not isinstance(value, Mapping):
        raise InvalidInput(
            path, _told(value, path), "is no mapping", remedy="Write fields and their values."
        )
    return value


def _check_secrets(node: Any, path: str) -> None:
    """Refuse credentials, by their looks anywhere and in an environment by their names too."""
    if isinstance(node, str) and is_credential(node):
        raise _secret(path, "looks like a credential")
    if isinstance(node, Mapping):
        name, value = node.get("name"), node.get("value")
        if _is_env(path) and value is not None and gives_secret(str(name or ""), str(value)):
            raise _secret(f"{path}.value", f"gives {name} itself")
        for key, below in node.items():
            _check_secrets(below, f"{path}.{key}")
    elif isinstance(node, list):
        for number, below in enumerate(node):
            _check_secrets(below, f"{path}[{number}]")


def _secret(path: str, problem: str) -> InvalidInput:
    return InvalidInput(
        path, NOT_SHOWN, f"{problem}, and everyone who may see pods could read it",
        remedy="Put it into a Secret, and name that under `secrets` of the platform file or job.",
    )  # fmt: skip


def _is_env(path: str) -> bool:
    """Whether an item of an environment is there."""
    return path.rpartition("[")[0].endswith(".env")


def _told(value: Any, path: str = "") -> Any:
    """The value for a message, unless an environment is in it."""
    return NOT_SHOWN if path.endswith(".env") or "env" in repr(value) else value


def _merged(old: Node, patch: Node, path: str) -> dict[str, Any]:
    made = dict(old)
    for name, value in patch.items():
        where = f"{path}.{name}"
        _check_directive(name, value, where)
        if value is None:
            made.pop(name, None)
        elif isinstance(value, Mapping):
            below = made.get(name)
            if value.get(_DIRECTIVE) == "delete":
                made.pop(name, None)
            else:
                made[name] = _merged(below if isinstance(below, Mapping) else {}, value, where)
        elif isinstance(value, list) and name in _MERGE_KEYS:
            made[name] = _merged_list(made.get(name) or (), value, _MERGE_KEYS[name], where)
        else:
            made[name] = value
    made.pop(_DIRECTIVE, None)
    return made


def _merged_list(
    old: Sequence[Node], patch: Sequence[Any], key: str, path: str
) -> list[dict[str, Any]]:
    """The items of `old`, in their order, each merged with its patch; then the new ones.

    (Kubernetes puts new ones first; Ray's container has to stay the first.)
    """
    items = [dict(item) for item in old]
    for number, change in enumerate(patch):
        where = f"{path}[{number}]"
        if not isinstance(change, Mapping) or key not in change:
            raise InvalidInput(
                where,
                _told(change, path),
                f"has no {key}, which says what it changes",
                remedy=f"Add `{key}`.",
            )
        at = next((i for i, item in enumerate(items) if item.get(key) == change[key]), None)
        if change.get(_DIRECTIVE) == "delete":
            items = [item for item in items if item.get(key) != change[key]]
        elif at is None:
            items.append(_merged({}, change, where))
        else:
            items[at] = _merged(items[at], change, where)
    return items


def _check_directive(name: str, value: Any, path: str) -> None:
    if name.startswith("$") and not (name == _DIRECTIVE and value == "delete"):
        raise InvalidInput(
            path, value, "is no directive that is known here", remedy="Write `$patch: delete`."
        )
