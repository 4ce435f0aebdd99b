"""Rules of a cluster that refuse RayJobs in one namespace, and a RayJob of somebody else's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ml_pipelines_tests.cluster import KubectlFailed, Namespace, wait_for

Object = dict[str, Any]
_CREATED = {
    "apiGroups": ["ray.io"],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["rayjobs"],
}
_API = "admissionregistration.k8s.io/v1"


@contextmanager
def applied(namespace: Namespace, objects: list[Object], said: str) -> Iterator[ExitStack]:
    """Within: RayJobs are refused in these words; closing what it gives lifts the rule earlier.

    The server knows a rule, and that it is gone, a moment after it was told.
    """
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    with ExitStack() as within:
        within.callback(wait_for, "RayJobs can be made", lambda: not _refusal(namespace))
        delete = ("delete", "--ignore-not-found", "-f", "-")
        within.callback(namespace.cluster.kubectl, *delete, input=text)
        namespace.cluster.kubectl("apply", "-f", "-", input=text)
        wait_for(f"{said} is refused", lambda: said in _refusal(namespace))
        yield within


def _refusal(namespace: Namespace) -> str:
    try:
        namespace.create(suspended("is-it-so"))
    except KubectlFailed as error:
        return str(error)
    namespace.kubectl("delete", "rayjob", "is-it-so")
    return ""


def policy(namespace: Namespace, expression: str, message: str) -> list[Object]:
    """An admission policy: a RayJob of this namespace for which the expression is false is refused."""
    name = f"rules-{namespace.name}"
    return [
        {
            "apiVersion": _API,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [_CREATED]},
                "validations": [{"expression": expression, "message": message}],
            },
        },
        {
            "apiVersion": _API,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {
                "policyName": name,
                "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": _only(namespace)},
            },
        },
    ]


def webhook_of_nobody(namespace: Namespace) -> list[Object]:
    """A webhook that no service answers, for what is created in earnest."""
    webhook = {
        "name": "rules.example.org",
        "clientConfig": {"service": {"name": "nobody", "namespace": namespace.name}},
        "rules": [_CREATED],
        "matchConditions": [{"name": "in-earnest", "expression": "request.dryRun != true"}],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "namespaceSelector": _only(namespace),
    }
    return [
        {
            "apiVersion": _API,
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": f"rules-{namespace.name}"},
            "webhooks": [webhook],
        }
    ]


def suspended(name: str) -> Object:
    """A RayJob of somebody else's, which waits for ever and makes no pods."""
    head = {"containers": [{"name": "head", "image": "registry.local/ml-pipelines:dev"}]}
    group = {"rayStartParams": {}, "template": {"spec": head}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name, "labels": {"made-by": "somebody"}},
        "spec": {
            "suspend": True,
            "shutdownAfterJobFinishes": True,
            "entrypoint": "true",
            "rayClusterSpec": {"headGroupSpec": group},
        },
    }


def _only(namespace: Namespace) -> Object:
    return {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}}
