"""What an API server says when it won't take a RayJob, as sentences of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ml_pipelines.backends import rayjob
from ml_pipelines.backends.kubeapi import KubeForbidden, KubeNotFound
from ml_pipelines.errors import BackendRefused, QuotaUsedUp, Refused
from ml_pipelines.spec import naming
from ml_pipelines.spec.manifest import SPEC_HASH_LABEL

if TYPE_CHECKING:
    from ml_pipelines.backends.base import Manifest
    from ml_pipelines.backends.kubeapi import KubeRefused

_UNKNOWN_FIELD = re.compile(r'unknown field "([^"]+)"')
_RULES = re.compile(
    r"""admission webhook "([^"]+)" denied the request:?\s*(.*)"""
    r"""|ValidatingAdmissionPolicy '([^']+)' with binding '[^']*' denied request:?\s*(.*)""",
    re.DOTALL,
)
_SHOWN = 5  # differing fields
_NO_VALUE = object()


def refusal(error: KubeRefused, where: str) -> BackendRefused:
    """Why this RayJob can't be created there, and what to do."""
    said = error.said or error.message
    if isinstance(error, KubeNotFound):
        if error.kind_missing:
            return BackendRefused(
                f"KubeRay is not installed here: {where} knows no RayJob (ray.io/v1).",
                remedy="Have the KubeRay operator and its CRDs installed, or name another cluster.",
            )
        return BackendRefused(
            f"The namespace is not there: {said}.", remedy="Create it, or set MLP_NAMESPACE."
        )
    fields = _UNKNOWN_FIELD.findall(said)
    if fields:
        named = ", ".join(dict.fromkeys(fields))
        return BackendRefused(
            f"This operator is too old for {named}: its CRDs don't know it.",
            remedy="Have KubeRay upgraded, its CRDs too (1.6 or newer).",
        )
    rules = _RULES.search(said)
    if rules:
        whose, why = rules[1] or rules[3], rules[2] or rules[4] or ""
        return BackendRefused(
            f"The cluster's rules ({whose}) refuse this job: {why.strip() or said}",
            remedy="Change what it names, or ask whoever keeps these rules.",
        )
    if isinstance(error, KubeForbidden):
        if error.quota:
            return QuotaUsedUp(
                f"The namespace's quota is used up: {said}",
                remedy="Wait until others end, or have the quota raised.",
            )
        return BackendRefused(
            f"A right is missing: {said}",
            remedy="Have the Role of deploy/base bound to this identity; mlp doctor lists all.",
        )
    return BackendRefused(
        f"The API server refuses this RayJob: {said}", remedy="Correct the field that it names."
    )


def not_ours(manifest: Manifest, found: Manifest) -> Refused | None:
    """Why the RayJob that has our name isn't ours, or None where it is."""
    name, ours, theirs = rayjob.name(manifest), rayjob.run_key(manifest), rayjob.run_key(found)
    if ours != theirs or not ours:
        whose = f"belongs to job {theirs}" if theirs else "is none of ours"
        labels = found["metadata"].get("labels") or {}
        owner = labels.get(naming.label_key("owner"), "")
        return Refused(
            f"RayJob {name} is there already and {whose}{f' of {owner}' if owner else ''}.",
            remedy="Give this job another name, or have the other one removed.",
        )
    if rayjob.spec_hash(manifest) == rayjob.spec_hash(found):
        return None
    different = list(differences(manifest, found))
    told = "; ".join(different[:_SHOWN]) or "a spec hash, though no field that we set"
    more = f"; and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
    return Refused(
        f"RayJob {name} is there already with another spec: {told}{more}.",
        remedy="Cancel that job first, or submit this one under another name.",
    )


def differences(manifest: Manifest, found: Manifest) -> Iterator[str]:
    """Fields of the spec that we'd set otherwise; what the server added counts for nothing."""
    yield from _compare("spec", manifest["spec"], found.get("spec"))


def _compare(path: str, ours: Any, theirs: Any) -> Iterator[str]:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for key, value in ours.items():
            yield from _compare(f"{path}.{key}", value, theirs.get(key, _NO_VALUE))
    elif isinstance(ours, (list, tuple)) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from _compare(f"{path}[{number}]", one, other)
    elif ours != theirs and not path.endswith(f"labels.{SPEC_HASH_LABEL}"):
        there = "nothing" if theirs is _NO_VALUE else _short(theirs)
        yield f"{path} is {there} there, {_short(ours)} here"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
