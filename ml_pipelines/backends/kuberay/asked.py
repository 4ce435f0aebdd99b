"""What is asked for now and then: events of what is pending, nodes' labels, the server's clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ml_pipelines.backends.kubeapi import KubeError, KubeForbidden, path_of
from ml_pipelines.backends.kuberay.fields import (
    as_dict,
    as_list,
    as_text,
    as_time,
    conditions,
    is_head,
)
from ml_pipelines.backends.kuberay.views import node_of
from ml_pipelines.job.status import DEPLOYMENT_ENDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ml_pipelines.backends.kubeapi import Api
    from ml_pipelines.backends.kuberay.watches import Seen
    from ml_pipelines.clock import Clock

    Object = dict[str, Any]

FIRST_EVENTS_S = 4.0  # of pending; most jobs tell all by themselves sooner
EVENTS_EVERY_S = 10.0
ALL_EVENTS_EVERY_S = 1.0  # for all jobs of this process together
LITTLE_SKEW_S = 3.0  # the server tells whole seconds, and answers take a moment
SKEW_AGAIN_S = 60.0  # after a request that failed
LEFT_S = 5.0  # a job not looked at for so long gives up its turn; loops look several times a second
NODES_AGAIN_S = 600.0  # after an answer that they may not be read


@dataclass(slots=True)
class _Asked:
    since: float
    at: float
    looked: float
    number: int = 0
    found: list[Object] = field(default_factory=list)

    def waits(self, now: float) -> bool:
        """Whether it is to be asked for again, and somebody still wants to know."""
        if now - self.since < FIRST_EVENTS_S or now - self.at < EVENTS_EVERY_S:
            return False
        return now - self.looked <= LEFT_S


class Events:
    """Events of what keeps jobs from running, by their object, for they carry no labels of ours."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._asked: dict[str, _Asked] = {}
        self._at = float("-inf")

    def due(self, name: str, seen: Seen) -> bool:
        """Whether it is time to ask, and its turn; to be called at each look.

        The job that was asked for longest ago comes first, so that none of many is left out.
        """
        if not pending(seen):
            self._asked.pop(name, None)
            return False
        now = self._api.clock.monotonic()
        asked = self._asked.setdefault(name, _Asked(now, now - EVENTS_EVERY_S, now))
        asked.looked = now
        if not asked.waits(now) or now - self._at < ALL_EVENTS_EVERY_S:
            return False
        others = list(self._asked.values())
        return not any(other.at < asked.at and other.waits(now) for other in others)

    def ask(self, name: str, seen: Seen) -> None:
        """Ask now. What can't be had is done without: events never decide alone."""
        asked = self._asked[name]
        asked.at = self._at = self._api.clock.monotonic()
        path = path_of("events", self._api.namespace)
        found: list[Object] = []
        try:
            for fields in objects_in_trouble(seen):
                found += self._api.list(path, fields=fields, budget_s=0.0).items
        except KubeError:
            return
        asked.found = found
        asked.number += 1

    def of(self, name: str) -> tuple[int, list[Object]]:
        """What was told of this job, and a number that changes with it."""
        asked = self._asked.get(name)
        return (asked.number, asked.found) if asked else (0, [])

    def forget(self, name: str) -> None:
        """It is not there any more."""
        self._asked.pop(name, None)


def pending(seen: Seen) -> bool:
    """Whether something of it is still awaited."""
    if seen.rayjob is None or as_dict(seen.rayjob.get("spec")).get("suspend"):
        return False
    status = as_dict(seen.rayjob.get("status"))
    deployment = status.get("jobDeploymentStatus")
    if deployment in DEPLOYMENT_ENDS:
        return False
    return deployment != "Running" or any(map(_unready, seen.pods))


def objects_in_trouble(seen: Seen) -> Iterator[str]:
    """Field selectors of the few objects whose events may say why it waits."""
    if seen.cluster is None:
        if seen.rayjob is not None:
            yield _of(seen.rayjob)
        return
    yield _of(seen.cluster)
    waiting = sorted(filter(_unready, seen.pods), key=_head_first)
    roles: dict[object, Object] = {}
    for pod in waiting:
        roles.setdefault(_head_first(pod), pod)
    for pod in roles.values():
        yield _of(pod)
    for pod in waiting[:1]:
        if (
            "PersistentVolumeClaim"
            in conditions(as_dict(pod.get("status"))).get("PodScheduled", ("", "", ""))[2]
        ):
            yield from _of_claims(pod)


def _of(made: Object) -> str:
    return f"involvedObject.uid={made['metadata']['uid']}"


def _of_claims(pod: Object) -> Iterator[str]:
    for volume in as_list(as_dict(pod.get("spec")).get("volumes")):
        claim = as_text(as_dict(volume["persistentVolumeClaim"]).get("claimName"))
        yield f"involvedObject.kind=PersistentVolumeClaim,involvedObject.name={claim}"


def _unready(pod: Object) -> bool:
    ready = conditions(as_dict(pod.get("status"))).get("Ready", ("", "", ""))[0] == "True"
    return not ready and not pod["metadata"].get("deletionTimestamp")


def _head_first(pod: Object) -> bool:
    return not is_head(pod)


class Skew:
    """How far our wall clock is ahead of the server's: asked for until it is known."""

    def __init__(self, api: Api, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._found: float | None = None
        self._again_at = float("-inf")

    def seconds(self) -> float:
        """0 where it is little, or can't be known."""
        now = self._api.clock.monotonic()
        if self._found is None and now >= self._again_at:
            self._found = self._ask()
            self._again_at = now + SKEW_AGAIN_S
        return self._found or 0.0

    def _ask(self) -> float | None:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        try:
            made = self._api.create(path_of("selfsubjectreviews", ""), review)
        except KubeError:
            return None
        told = as_time(as_dict(made.get("metadata")).get("creationTimestamp"))
        if told is None:
            return None
        ahead = (self._clock.now() - told).total_seconds()
        return ahead if abs(ahead) > LITTLE_SKEW_S else 0.0


class Nodes:
    """Labels of the nodes that pods run on: one request a node, none where it may not be read."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._labels: dict[str, Mapping[str, str]] = {}
        self._closed_until = float("-inf")

    def of(self, pods: Iterable[Object]) -> Mapping[str, Mapping[str, str]]:
        """Labels by node, of those that could be read."""
        for name in sorted({node for pod in pods if (node := node_of(pod))}):
            if name not in self._labels:
                self._ask(name)
        return self._labels

    def _ask(self, name: str) -> None:
        now = self._api.clock.monotonic()
        if now < self._closed_until:
            return
        try:
            made = self._api.get(path_of("nodes", "", name), budget_s=0.0)
        except KubeForbidden:
            self._closed_until = now + NODES_AGAIN_S
        except KubeError:
            self._closed_until = now + EVENTS_EVERY_S
        else:
            self._labels[name] = as_dict(made["metadata"].get("labels"))
