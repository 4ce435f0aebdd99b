"""Storage that takes connections and never answers: refused within seconds, left within seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ml_pipelines import lifecycle, settings
from ml_pipelines.clock import SystemClock
from ml_pipelines.errors import StorageUnavailable
from ml_pipelines.journal.lease import Process
from ml_pipelines.storage import open_store

SOON_S = 11.0


class Hanging:
    """An S3 server that answers `fine` until it is told to `hang`."""

    def __init__(self) -> None:
        self.hangs = threading.Event()
        self.asked = threading.Event()  # while it hangs
        self.over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                if outer.hangs.is_set():
                    outer.asked.set()
                    outer.over.wait()
                self.rfile.read(int(self.headers["content-length"] or 0))
                self.send_response(200)
                self.send_header("ETag", '"1"')
                self.send_header("content-length", "0")
                self.end_headers()

            do_GET = do_PUT  # noqa: N815 - the name that the server calls

            def log_message(self, *_: object) -> None:
                """Nothing to stderr."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    server = Hanging()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server.server_port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "test")
    yield server
    server.close()


def test_a_platform_on_hanging_storage_is_refused_soon(s3: Hanging, tmp_path: Path) -> None:
    """Whoever can't reach run storage is told within some 10 s, with the URL."""
    s3.hangs.set()
    here = settings.load({"MLP_HOME": str(tmp_path), "MLP_RUNS": "s3://runs/team"})
    began = time.monotonic()
    with pytest.raises(StorageUnavailable, match="s3://runs/team"), lifecycle.open_platform(here):
        pass
    assert time.monotonic() - began < SOON_S


def test_who_leaves_waits_for_no_storage(s3: Hanging) -> None:
    """Storage that began to hang in mid-beat holds up no exit: the lease runs out by itself."""
    process = Process(open_store("s3://runs"), SystemClock(), beat_s=0.05)
    process.start()
    s3.hangs.set()
    assert s3.asked.wait(10)
    began = time.monotonic()
    process.stop()
    assert time.monotonic() - began < SOON_S


def test_a_goodbye_is_brief(s3: Hanging) -> None:
    """Storage that hangs when we say that we leave holds us up for seconds, not for a minute."""
    process = Process(open_store("s3://runs"), SystemClock(), threaded=False)
    process.start()
    s3.hangs.set()
    began = time.monotonic()
    process.stop()
    assert time.monotonic() - began < SOON_S
