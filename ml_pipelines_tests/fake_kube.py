"""A small real HTTP server that answers as an API server does, and fails as none can be made to.

It holds objects of any kind (`objects`), lists in pages, watches with bookmarks, follows logs, and
keeps every request with its time. Faults are scripted a request at a time (`script`), or thrown at
what is open (`end_streams`). `route` puts a service behind the proxy.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from ml_pipelines_tests.fake_kube_faults import END, RESET, Asked, FakeLog, Fault
from ml_pipelines_tests.fake_kube_http import Handler, Server
from ml_pipelines_tests.fake_kube_objects import Object, Objects

__all__ = ["END", "RESET", "Asked", "FakeKube", "FakeLog", "Fault", "Object"]


@dataclass
class _Script:
    method: str
    part: str
    faults: deque[Fault]


class FakeKube:
    """Use as a context manager; `url` and `kubeconfig` say how to reach it.

    `tokens`: who is let in (empty: everybody). `silent`: watches send nothing more, not even
    bookmarks. `absent`: groups (`kueue.x-k8s.io`) whose paths are not known. `skew`: how far the
    server's clock is off.
    """

    def __init__(self, *, bookmark_s: float = 0.2) -> None:
        self.bookmark_s = bookmark_s
        self.tokens: set[str] = set()
        self.silent = False
        self.skew = timedelta()
        self.absent: set[str] = set()
        self.objects = Objects(now=lambda: self.now().strftime("%Y-%m-%dT%H:%M:%SZ"))
        self.asked: list[Asked] = []
        self.logs: dict[tuple[str, str, str], FakeLog] = {}
        self.streams: set[Handler] = set()
        self.most_connections = 0
        self.closing = threading.Event()
        self.lock = threading.RLock()
        self._connections = 0
        self._scripts: list[_Script] = []
        self._routes: dict[str, Callable[[Asked], tuple[int, bytes]]] = {}
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.kube = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="fake-kube", daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.end_streams(how=RESET)
        with self.objects.changed:
            self.objects.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._server.drop_connections()

    def kubeconfig(self, folder: Path, *, token: str = "", user: Mapping[str, Any] | None = None,
                   namespace: str = "ads", context: str = "fake") -> Path:  # fmt: skip
        """A kubeconfig of one context for this server."""
        whom = user if user is not None else {"token": token} if token else {}
        path = folder / "kubeconfig"
        path.write_text(
            json.dumps({
                "apiVersion": "v1", "kind": "Config", "current-context": context,
                "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                "users": [{"name": "u", "user": dict(whom)}],
                "contexts": [{
                    "name": context,
                    "context": {"cluster": "c", "user": "u", "namespace": namespace},
                }],
            })
        )  # fmt: skip
        return path

    def script(self, method: str, part: str, *faults: Fault) -> None:
        """The next requests of that method (`WATCH` is one) whose path holds `part` go so."""
        with self.lock:
            self._scripts.append(_Script(method, part, deque(faults)))

    def route(self, prefix: str, answer: Callable[[Asked], tuple[int, bytes]]) -> None:
        """Whatever lies below that path is answered by a function."""
        self._routes[prefix] = answer

    def log(self, namespace: str, pod: str, container: str) -> FakeLog:
        """The log of a container, made at first use."""
        return self.logs.setdefault((namespace, pod, container), FakeLog())

    def requests(self, method: str = "", part: str = "") -> list[Asked]:
        """What was asked so far."""
        return [
            one for one in list(self.asked)
            if method in {"", one.method} and part in one.path
        ]  # fmt: skip

    def inject(self, event: Any) -> None:
        """Send this to every open watch (bytes: as they are)."""
        line = event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n"
        for stream in list(self.streams):
            stream.extra.append(line)
        with self.objects.changed:
            self.objects.changed.notify_all()

    def end_streams(self, *, how: str = END, part: str = "") -> int:
        """End what is open (watches and followed logs): cleanly (END) or by a RESET; how many."""
        hit = [stream for stream in list(self.streams) if part in stream.path]
        for stream in hit:
            stream.ending = how
        with self.objects.changed:
            self.objects.changed.notify_all()
        for log in list(self.logs.values()):
            with log.changed:
                log.changed.notify_all()
        return len(hit)

    def silence_streams(self) -> None:
        """What is open now sends nothing more, and stays open; what is opened later does."""
        for stream in list(self.streams):
            stream.silent = True

    def now(self) -> datetime:
        """The server's own clock."""
        return datetime.now(UTC) + self.skew

    def fault_for(self, asked: Asked) -> Fault | None:
        """The next scripted fault that fits this request."""
        method = "WATCH" if asked.query.get("watch") else asked.method
        with self.lock:
            for script in self._scripts:
                if script.method == method and script.part in asked.path and script.faults:
                    return script.faults.popleft()
        return None

    def route_for(self, path: str) -> Callable[[Asked], tuple[int, bytes]] | None:
        """The service behind that path."""
        return next((run for prefix, run in self._routes.items() if path.startswith(prefix)), None)

    def count(self, change: int) -> None:
        """Count the connections that are open."""
        with self.lock:
            self._connections += change
            self.most_connections = max(self.most_connections, self._connections)

    @property
    def connections(self) -> int:
        """How many are open now."""
        return self._connections
