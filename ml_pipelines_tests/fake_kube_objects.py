"""What a fake API server holds: objects of any kind, their history, and selectors."""

from __future__ import annotations

import copy
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """A path taken apart: `/apis/ray.io/v1/namespaces/ads/rayjobs/x/status`."""

    group: str
    kind: str
    namespace: str = ""
    name: str = ""
    sub: str = ""

    @classmethod
    def of(cls, path: str) -> Place:
        """The place of a path; `/api/v1/pods` is that of all namespaces."""
        parts = [part for part in path.split("/") if part]
        depth = 2 if parts[:1] == ["api"] else 3
        group, rest = "/".join(parts[:depth]), parts[depth:]
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) >= 3:
            namespace, rest = rest[1], rest[2:]
        rest += [""] * 2
        return cls(group, rest[0], namespace, rest[1], "/".join(rest[2:]).strip("/"))

    def covers(self, other: Place) -> bool:
        """Whether this collection holds that object."""
        return (self.group, self.kind) == (other.group, other.kind) and self.namespace in {
            "",
            other.namespace,
        }


@dataclass(frozen=True)
class Change:
    """One entry of the history; `old` is the object before, for selectors."""

    number: int
    place: Place
    event: str
    obj: Object
    old: Object | None


@dataclass
class Objects:
    """Objects by place, one history, one lock. Tests change it from outside, requests from inside.

    `hold`: deletions that a finalizer holds up (the object stays, with a deletionTimestamp).
    """

    hold: Callable[[Place], bool] = lambda _place: False
    now: Callable[[], str] = lambda: "2026-01-01T00:00:00Z"
    changed: threading.Condition = field(default_factory=threading.Condition)
    number: int = 100
    compacted: int = 0
    history: list[Change] = field(default_factory=list)
    _held: dict[Place, Object] = field(default_factory=dict)

    def get(self, path: str) -> Object | None:
        """One object."""
        with self.changed:
            return copy.deepcopy(self._held.get(_bare(path)))

    def put(self, path: str, obj: Mapping[str, Any]) -> Object:
        """Create or replace the object of that path, as some other client would."""
        place = _bare(path)
        with self.changed:
            old = self._held.get(place)
            fresh = copy.deepcopy(dict(obj))
            meta = fresh.setdefault("metadata", {})
            before = (old or {}).get("metadata", {})
            meta.setdefault("uid", before.get("uid") or str(uuid.uuid4()))
            meta.setdefault("creationTimestamp", before.get("creationTimestamp") or self.now())
            meta["name"] = place.name
            if place.namespace:
                meta["namespace"] = place.namespace
            self._record(place, "MODIFIED" if old else "ADDED", fresh, old)
            self._held[place] = fresh
            return copy.deepcopy(fresh)

    def patch(self, path: str, change: Mapping[str, Any]) -> Object:
        """Merge into an object."""
        with self.changed:
            held = copy.deepcopy(self._held[_bare(path)])
            _merge(held, change)
            return self.put(path, held)

    def remove(self, path: str, *, at_once: bool = True) -> None:
        """Delete an object; not `at_once`: with the finalizers that `hold` says."""
        place = _bare(path)
        with self.changed:
            old = self._held[place]
            if not at_once and self.hold(place):
                self.patch(path, {"metadata": {"deletionTimestamp": self.now()}})
                return
            del self._held[place]
            self._record(place, "DELETED", copy.deepcopy(old), old)

    def compact(self) -> None:
        """Forget the history so far: a watch from before it is answered 410."""
        with self.changed:
            self.number += 1
            self.compacted = self.number
            self.changed.notify_all()

    def listed(self, place: Place, labels: str, fields: str) -> list[Object]:
        """The objects of a collection, by name."""
        with self.changed:
            found = [
                copy.deepcopy(obj)
                for where, obj in self._held.items()
                if place.covers(where) and selected(obj, labels, fields)
            ]
        return sorted(found, key=lambda obj: (obj["metadata"].get("namespace", ""), _name(obj)))

    def since(self, number: int, place: Place, labels: str, fields: str) -> Iterator[Object]:
        """The watch events after that number, each with its `number`."""
        for change in [entry for entry in self.history if entry.number > number]:
            if not place.covers(change.place):
                continue
            now = change.event != "DELETED" and selected(change.obj, labels, fields)
            before = change.old is not None and selected(change.old, labels, fields)
            if now or before:
                event = ("MODIFIED" if before else "ADDED") if now else "DELETED"
                yield {"number": change.number, "type": event, "object": change.obj}

    def _record(self, place: Place, event: str, obj: Object, old: Object | None) -> None:
        self.number += 1
        obj["metadata"]["resourceVersion"] = str(self.number)
        self.history.append(Change(self.number, place, event, obj, old))
        self.changed.notify_all()


def selected(obj: Mapping[str, Any], labels: str, fields: str) -> bool:
    """Whether an object fits both selectors (`a=b,c!=d,e,e in (f,g)`)."""
    own = obj["metadata"].get("labels") or {}
    return all(_fits(own.get, term) for term in _terms(labels)) and all(
        _fits(lambda key: _field(obj, key), term) for term in _terms(fields)
    )


def _terms(selector: str) -> list[str]:
    terms: list[str] = []
    depth, start = 0, 0
    for i, char in enumerate(selector):
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            terms.append(selector[start:i])
            start = i + 1
    terms.append(selector[start:])
    return [term.strip() for term in terms if term.strip()]


def _fits(value_of: Callable[[str], Any], term: str) -> bool:
    if " in (" in term:
        key, _, rest = term.partition(" in (")
        return value_of(key.strip()) in {part.strip() for part in rest.rstrip(") ").split(",")}
    if "!=" in term:
        key, _, value = term.partition("!=")
        return bool(value_of(key) != value)
    if "=" in term:
        key, _, value = term.replace("==", "=").partition("=")
        return bool(value_of(key) == value)
    if term.startswith("!"):
        return value_of(term[1:]) is None
    return value_of(term) is not None


def _field(obj: Mapping[str, Any], path: str) -> Any:
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _bare(path: str) -> Place:
    place = Place.of(path)
    return Place(place.group, place.kind, place.namespace, place.name)


def _merge(obj: Object, change: Mapping[str, Any]) -> None:
    for key, value in change.items():
        if value is None:
            obj.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(obj.get(key), dict):
            _merge(obj[key], value)
        else:
            obj[key] = copy.deepcopy(value)


def _name(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"]["name"])
