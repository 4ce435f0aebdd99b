"""The connections of a fake API server: whole answers, answers in chunks, and none at all."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ml_pipelines_tests.fake_kube_answers import Answerer
from ml_pipelines_tests.fake_kube_faults import Asked, Fault, failure

if TYPE_CHECKING:
    from ml_pipelines_tests.fake_kube import FakeKube


class Server(ThreadingHTTPServer):
    """A thread a connection; counts them, and can drop them all."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    kube: FakeKube

    def __init__(self, *args: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        self.kube.count(1)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        self.kube.count(-1)
        with suppress(OSError):
            # With "linger 0" set, close() resets; a shutdown before it would end politely.
            if request.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER) == 0:
                request.shutdown(socket.SHUT_WR)
        request.close()

    def handle_error(self, *_: Any) -> None:
        """A client that went away is no news."""

    def drop_connections(self) -> None:
        for request in list(self._open):
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    """One connection; `ending`, `silent` and `extra` are set from outside while it streams."""

    protocol_version = "HTTP/1.1"
    server: Server
    ending = ""
    silent = False

    def setup(self) -> None:
        super().setup()
        self.kube = self.server.kube
        self.extra: deque[bytes] = deque()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return format_datetime(self.kube.now(), usegmt=True)

    def log_message(self, *_: Any) -> None:
        """Nothing on the terminal."""

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PATCH = do_PUT = do_DELETE = do_GET  # noqa: N815

    def _serve(self) -> None:
        url = urlsplit(self.path)
        size = int(self.headers.get("Content-Length") or 0)
        data = self.rfile.read(size) if size else b""
        try:
            body: Any = json.loads(data) if data else None
        except ValueError:
            body = data
        asked = Asked(
            time.monotonic(), self.command, unquote(url.path), dict(parse_qsl(url.query)),
            {key.title(): value for key, value in self.headers.items()}, body,
        )  # fmt: skip
        with self.kube.lock:
            self.kube.asked.append(asked)
        fault = self.kube.fault_for(asked)
        if fault is not None and fault.store:
            Answerer(self, asked, quiet=True).run()
        if fault is None:
            Answerer(self, asked).run()
        else:
            self._fail(asked, fault)

    def _fail(self, asked: Asked, fault: Fault) -> None:
        if fault.hang_s:
            self.kube.closing.wait(fault.hang_s)
        if fault.status:
            status = failure(fault.status, fault.reason, fault.message, fault.details)
            data = fault.body if fault.body is not None else json.dumps(status).encode()
            # Said, or a client's next request may meet the closing and be lost by chance.
            self.answer(asked, fault.status, data, {**fault.headers, "Connection": "close"})
        elif fault.reset:
            self.reset()
        self.close_connection = True

    def answer(
        self, asked: Asked, status: int, data: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """A whole answer."""
        asked.status = status
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if not any(key.lower() == "content-type" for key in headers or ()):
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin(self, asked: Asked) -> None:
        """An answer in chunks."""
        asked.status = 200
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def chunk(self, data: bytes) -> None:
        """One chunk, byte for byte; an empty one ends the answer."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def reset(self) -> None:
        """Break the connection as a dying peer does."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
