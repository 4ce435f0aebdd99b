"""What a fake API server answers where nothing is made to fail."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ml_pipelines_tests.fake_kube_faults import RESET, Asked, failure
from ml_pipelines_tests.fake_kube_objects import Object, Place

if TYPE_CHECKING:
    from ml_pipelines_tests.fake_kube_http import Handler


class Answerer:
    """Answers one request as a real server would."""

    def __init__(self, handler: Handler, asked: Asked, *, quiet: bool = False) -> None:
        self.handler = handler
        self.asked = asked
        self.kube = handler.kube
        self.quiet = quiet
        self.place = Place.of(asked.path)

    def run(self) -> None:
        """The answer."""
        kube, asked = self.kube, self.asked
        token = asked.headers.get("Authorization", "").partition(" ")[2].strip()
        if kube.tokens and token not in kube.tokens:
            self._refuse(401, "Unauthorized", "Unauthorized")
            return
        route = kube.route_for(asked.path)
        if route is not None:
            status, data = route(asked)
            self._say(status, data)
        elif any(group in self.place.group for group in kube.absent):
            self._say(404, b"404 page not found\n")
        elif self.place.kind == "pods" and self.place.sub == "log":
            self._log()
        elif asked.method == "GET":
            self._get()
        else:
            self._change()

    def _say(self, status: int, data: bytes) -> None:
        if not self.quiet:
            self.handler.answer(self.asked, status, data)

    def _tell(self, status: int, obj: Any) -> None:
        self._say(status, json.dumps(obj).encode())

    def _refuse(self, status: int, reason: str, message: str, details: Any = None) -> None:
        self._tell(status, failure(status, reason, message, details or {}))

    def _missing(self) -> None:
        self._refuse(
            404, "NotFound", f'{self.place.kind} "{self.place.name}" not found',
            {"name": self.place.name, "kind": self.place.kind},
        )  # fmt: skip

    def _get(self) -> None:
        if self.place.name:
            found = self.kube.objects.get(self.asked.path)
            if found is None:
                self._missing()
            else:
                self._tell(200, found)
        elif self.asked.query.get("watch"):
            self._watch()
        else:
            self._list()

    def _list(self) -> None:
        query, objects = self.asked.query, self.kube.objects
        with objects.changed:
            found = objects.listed(
                self.place, query.get("labelSelector", ""), query.get("fieldSelector", "")
            )
            number = objects.number
        start, limit = int(query.get("continue") or 0), int(query.get("limit") or 0)
        page = found[start : start + limit] if limit else found[start:]
        meta = {"resourceVersion": str(number)}
        if limit and start + limit < len(found):
            meta["continue"] = str(start + limit)
        self._tell(200, {"kind": "List", "apiVersion": "v1", "metadata": meta, "items": page})

    def _change(self) -> None:
        objects, path, method = self.kube.objects, self.asked.path, self.asked.method
        body = self.asked.body if isinstance(self.asked.body, dict) else {}
        dry = "dryRun" in self.asked.query
        with objects.changed:
            if method == "POST":
                name = str((body.get("metadata") or {}).get("name") or "")
                target = f"{path.rstrip('/')}/{name}"
                if objects.get(target) is not None:
                    self._refuse(
                        409, "AlreadyExists", f'{self.place.kind} "{name}" already exists',
                        {"name": name, "kind": self.place.kind},
                    )  # fmt: skip
                else:
                    self._tell(201, body if dry else objects.put(target, body))
                return
            held = objects.get(path)
            if held is None:
                self._missing()
            elif method in {"PATCH", "PUT"}:
                self._tell(200, held if dry else objects.patch(path, body))
            else:
                self._delete(held, body)

    def _delete(self, held: Object, options: Object) -> None:
        wanted = (options.get("preconditions") or {}).get("uid")
        uid = held["metadata"]["uid"]
        if wanted and wanted != uid:
            self._refuse(
                409, "Conflict",
                f'Operation cannot be fulfilled on {self.place.kind} "{self.place.name}": the UID '
                f"in the precondition ({wanted}) does not match the UID in record ({uid}). The "
                "object might have been deleted and then recreated",
            )  # fmt: skip
            return
        self.kube.objects.remove(self.asked.path, at_once=False)
        self._tell(200, {"kind": "Status", "status": "Success"})

    def _watch(self) -> None:
        objects, query = self.kube.objects, self.asked.query
        number = int(query.get("resourceVersion") or 0)
        if 0 < number < objects.compacted:
            self._refuse(
                410, "Expired", f"too old resource version: {number} ({objects.compacted})"
            )  # fmt: skip
            return
        handler = self.handler
        end = time.monotonic() + float(query.get("timeoutSeconds") or 1800)
        handler.begin(self.asked)
        with self._open():
            bookmark = time.monotonic() + self.kube.bookmark_s
            while not handler.ending and time.monotonic() < end:
                with objects.changed:
                    events = [] if self._silent() else list(self._events(number))
                    latest = objects.number
                    if not (events or handler.extra):
                        objects.changed.wait(0.02)
                for event in events:
                    number = event.pop("number")
                    handler.chunk(json.dumps(event).encode() + b"\n")
                while handler.extra:
                    handler.chunk(handler.extra.popleft())
                if time.monotonic() > bookmark and not self._silent():
                    bookmark = time.monotonic() + self.kube.bookmark_s
                    number = max(number, latest)
                    handler.chunk(self._bookmark(number))
        self._finish()

    def _silent(self) -> bool:
        return self.kube.silent or self.handler.silent

    def _events(self, number: int) -> Iterator[Object]:
        query = self.asked.query
        return self.kube.objects.since(
            number, self.place, query.get("labelSelector", ""), query.get("fieldSelector", "")
        )

    def _bookmark(self, number: int) -> bytes:
        obj = {"kind": "Bookmark", "metadata": {"resourceVersion": str(number)}}
        return json.dumps({"type": "BOOKMARK", "object": obj}).encode() + b"\n"

    def _log(self) -> None:
        place, query = self.place, self.asked.query
        names = sorted(c for n, p, c in self.kube.logs if (n, p) == (place.namespace, place.name))
        container = query.get("container") or (names[0] if len(names) == 1 else "")
        if not names:
            self._missing()
            return
        if container not in names:
            self._refuse(
                400, "BadRequest",
                f"a container name must be specified for pod {place.name}, choose one of: {names}",
            )  # fmt: skip
            return
        log = self.kube.logs[place.namespace, place.name, container]
        since = datetime.fromisoformat(query.get("sinceTime") or "1970-01-01T00:00:00+00:00")
        self.handler.begin(self.asked)
        with self._open():
            sent = 0
            while not self.handler.ending:
                with log.changed:
                    ready = [] if log.stalled else log.writes[sent:]
                    done = log.ended or query.get("follow") != "true"
                    if not ready:
                        if done and not log.stalled:
                            break
                        log.changed.wait(0.05)
                sent += len(ready)
                for at, data in ready:
                    if at >= since:
                        self.handler.chunk(data)
        self._finish()

    @contextmanager
    def _open(self) -> Iterator[None]:
        self.handler.ending, self.handler.silent = "", False
        self.kube.streams.add(self.handler)
        try:
            yield
        finally:
            self.kube.streams.discard(self.handler)

    def _finish(self) -> None:
        if self.handler.ending == RESET:
            self.handler.reset()
        else:
            self.handler.chunk(b"")
