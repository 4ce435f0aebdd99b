"""The same tests on local files, in memory and on a real S3 protocol: one fixture, three stores."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from ml_pipelines.storage import Store, open_store


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An S3 server on a free loopback port."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_url(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh bucket, and the environment that names its server."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    bucket = f"b-{uuid.uuid4().hex[:12]}"
    requests.put(f"{s3_endpoint}/{bucket}", timeout=10).raise_for_status()
    return f"s3://{bucket}/some/prefix"


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store, on local files and on S3."""
    if request.param == "s3":
        return open_store(request.getfixturevalue("s3_url"))
    return open_store(f"file://{tmp_path}/a store")
