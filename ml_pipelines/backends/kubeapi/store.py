"""What one list-watch has seen of its objects: never older than before, and never twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

Object = dict[str, Any]


def prune(obj: Object) -> Object:
    """An object without what only the server needs."""
    meta = dict(obj.get("metadata") or {})
    meta.pop("managedFields", None)
    notes = {
        key: value
        for key, value in (meta.get("annotations") or {}).items()
        if key != "kubectl.kubernetes.io/last-applied-configuration"
    }
    if "annotations" in meta:
        meta["annotations"] = notes
    return {**obj, "metadata": meta}


class ObjectStore:
    """The objects by name, with the place in the server's history that they stand for.

    `version` counts the changes. Safe to use from several threads.
    """

    def __init__(self, keep: Callable[[Object], Object]) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._objects: dict[str, Object] = {}
        self._unlisted: set[str] = set()  # what was put since the last list was asked for
        self._last = -1
        self.place = ""
        self.version = 0

    def get(self, name: str) -> Object | None:
        """One object."""
        with self._lock:
            return self._objects.get(name)

    def items(self) -> list[Object]:
        """All objects."""
        with self._lock:
            return list(self._objects.values())

    def put(self, obj: Object) -> None:
        """What a request of ours returned: it stands until the server tells more.

        What isn't held though its place was passed is gone: the watch told its end before us.
        """
        with self._lock:
            name = _name(obj)
            if name not in self._objects and not _beyond(obj, self._last):
                return
            self._unlisted.add(name)
            if _newer(obj, self._objects.get(name)):
                self._objects[name] = self._keep(obj)
                self.version += 1

    def listing(self) -> None:
        """A list is about to be asked for: what is put from now on may be missing in it."""
        with self._lock:
            self._unlisted.clear()

    def behind(self, place: str) -> bool:
        """Whether a list of that place is older than what was seen already."""
        return 0 <= _number(place) < self._last

    def replace(self, items: list[Object], place: str) -> None:
        """What a list returned takes the place of all that was held."""
        with self._lock:
            found = {_name(obj): self._keep(obj) for obj in items if _name(obj)}
            for name in self._unlisted:
                held = self._objects.get(name)
                if held is None or not _beyond(held, _number(place)):
                    continue
                if _newer(held, found.get(name)):
                    found[name] = held
            if found != self._objects:
                self.version += 1
            self._objects = found
            self.place, self._last = place, _number(place)

    def apply(self, event: str, obj: Object) -> None:
        """ADDED, MODIFIED, DELETED or BOOKMARK. What stands before the place held was told once."""
        meta = obj.get("metadata") or {}
        place = str(meta.get("resourceVersion") or "")
        number = _number(place)
        with self._lock:
            if 0 <= number <= self._last:
                return
            if place:
                self.place, self._last = place, number
            name = _name(obj)
            if event == "DELETED":
                self._remove(name, str(meta.get("uid") or ""))
            elif event in {"ADDED", "MODIFIED"} and name and _newer(obj, self._objects.get(name)):
                self._objects[name] = self._keep(obj)
                self.version += 1

    def _remove(self, name: str, uid: str) -> None:
        held = self._objects.get(name)
        if held is not None and _uid(held) in {uid, ""}:
            del self._objects[name]
            self.version += 1


def _name(obj: Mapping[str, Any]) -> str:
    return str((obj.get("metadata") or {}).get("name") or "")


def _uid(obj: Mapping[str, Any]) -> str:
    return str((obj.get("metadata") or {}).get("uid") or "")


def _newer(obj: Object, held: Object | None) -> bool:
    """Whether `obj` may take the place of `held`: not where both are one object's and it's older."""
    return held is None or _beyond(obj, _version(held))


def _beyond(obj: Object, number: int) -> bool:
    """Whether it was written after that place in the server's history, or that can't be told."""
    mine = _version(obj)
    return mine < 0 or number < 0 or mine > number


def _version(obj: Object) -> int:
    return _number(str((obj.get("metadata") or {}).get("resourceVersion") or ""))


def _number(place: str) -> int:
    """A resourceVersion in order, -1 where it is none of the numbers that servers use."""
    return int(place) if place.isascii() and place.isdigit() else -1
