"""A Jobs API over real HTTP and heads of no process: the operator's world without a Ray."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ml_pipelines.backends.local.jobsapi import JobsApi
from ml_pipelines.backends.local.record import Size

TOKEN = "token"


@dataclass
class FakeRay:
    """What the server knows: `jobs` by submission id; `faults` are answered first, in turn.

    A fault is a status code, or "lost": the request is carried out and its answer is not given.
    """

    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    submissions: list[dict[str, Any]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    faults: list[int | str] = field(default_factory=list)
    url: str = ""

    def end(self, job_id: str, status: str, **more: Any) -> None:
        """The driver of that job ends."""
        self.jobs[job_id] = {"status": status, **more}

    def answer(self, verb: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Carry a request out."""
        self.requests.append(f"{verb} {path}")
        if path == "/api/jobs/" and verb == "POST":
            if body["submission_id"] in self.jobs:
                return 500, {"error": "already exists"}
            self.submissions.append(body)
            self.jobs[body["submission_id"]] = {"status": "RUNNING"}
            return 200, {"submission_id": body["submission_id"]}
        if path == "/api/jobs/":
            return 200, {}
        job_id = path.removeprefix("/api/jobs/").removesuffix("/stop")
        if job_id not in self.jobs:
            return 404, {}
        if path.endswith("/stop"):
            self.jobs[job_id] = {"status": "STOPPED"}
        return 200, self.jobs[job_id]


@contextmanager
def fake_ray() -> Iterator[FakeRay]:
    """A server on loopback for as long as the block lasts."""
    ray = FakeRay()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._respond()

        def do_POST(self) -> None:
            self._respond()

        def _respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = ray.faults.pop(0) if ray.faults else None
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                fault = 401
            if isinstance(fault, int):
                self._send(fault, {"error": "a fault"})
                return
            code, data = ray.answer(self.command, self.path, json.loads(body or b"{}"))
            if fault == "lost":
                self.close_connection = True
                return
            self._send(code, data)

        def _send(self, code: int, data: dict[str, Any]) -> None:
            text = json.dumps(data).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    ray.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield ray
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class FakeHead:
    """A head of no process; a dead one, until `up`, refuses connections as a starting one does."""

    def __init__(self, ident: str, size: Size, ray: FakeRay, folder: Path) -> None:
        self.id = ident
        self.size = size
        self.dashboard = ray.url.removeprefix("http://")
        self.up = True
        self.is_alive = True
        self.calls: list[str] = []
        self._folder = folder
        self._url = ray.url
        self._api = JobsApi(ray.url, TOKEN)
        self._down = JobsApi("http://127.0.0.1:1", TOKEN)
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def api(self) -> JobsApi:
        return self._api if self.up else self._down

    def alive(self) -> bool:
        return self.is_alive

    def driver_log(self, job_id: str) -> Path:
        return self._folder / f"{job_id}.log"

    def supervisor_log(self, job_id: str) -> Path:
        return self._folder / f"supervisor-{job_id}.log"

    def obituary(self) -> str:
        return "The Ray head was killed by SIGKILL."

    def terminate(self) -> None:
        self.calls.append("terminate")

    def kill(self) -> None:
        self.calls.append("kill")
        self.is_alive = False

    def forget(self) -> None:
        self.calls.append("forget")
        self._api.close()
        self._down.close()


class FakeHeads:
    """Starts fake heads on one fake Ray; `starts_up` says whether they answer at once."""

    def __init__(self, ray: FakeRay, folder: Path) -> None:
        self.ray = ray
        self.folder = folder
        self.starts_up = True
        self.started: list[FakeHead] = []

    def start(self, size: Size) -> FakeHead:
        ident = f"head{len(self.started) + 1}"
        head = FakeHead(ident, size, self.ray, self.folder / ident)
        head.up = self.starts_up
        self.started.append(head)
        return head

    def found(self) -> list[FakeHead]:
        return [head for head in self.started if "forget" not in head.calls]
