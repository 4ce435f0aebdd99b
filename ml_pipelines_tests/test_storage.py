"""One storage client: the same promises on local files and on S3, and errors that are ours."""

from __future__ import annotations

import os
import pickle
import subprocess
import threading
import uuid
from pathlib import Path

import pytest

from ml_pipelines.errors import (
    AlreadyExists,
    InvalidInput,
    NotFound,
    StorageDenied,
    StorageError,
    StorageUnavailable,
)
from ml_pipelines.storage import Store, arrow_filesystem, open_store


class TestObjects:
    """What every store can do."""

    def test_reads_back_what_was_put(self, store: Store) -> None:
        """An object is there whole, and the last writing is the one that counts."""
        store.put("a/b.txt", b"one")
        store.put("a/b.txt", b"second")
        assert store.get("a/b.txt") == b"second"
        assert store.size("a/b.txt") == 6
        assert store.exists("a/b.txt")

    def test_create_takes_a_name_once(self, store: Store) -> None:
        """Create-if-absent refuses a taken name and leaves its bytes as they are."""
        store.create("n/00000001.json", b"first")
        with pytest.raises(AlreadyExists):
            store.create("n/00000001.json", b"second")
        assert store.get("n/00000001.json") == b"first"

    def test_one_of_many_creators_wins(self, store: Store) -> None:
        """Eight threads at one name: exactly one succeeds, and its bytes are there."""
        won = []

        def create(number: int) -> None:
            try:
                store.create("race", str(number).encode())
            except AlreadyExists:
                return
            won.append(number)

        threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [store.get("race")] == [str(number).encode() for number in won]

    def test_what_is_missing_is_not_found(self, store: Store) -> None:
        """Reads of a missing object say so; its size is None, its deletion no error."""
        with pytest.raises(NotFound, match="nowhere does not exist"):
            store.get("nowhere")
        with pytest.raises(NotFound):
            store.get_range("nowhere", 0, 1)
        assert store.size("nowhere") is None
        store.delete("nowhere")

    def test_ranges_end_with_the_object(self, store: Store) -> None:
        """A range reads at most what is there, and nothing after the end."""
        store.put("r", b"0123456789")
        assert store.get_range("r", 2, 3) == b"234"
        assert store.get_range("r", 8, 100) == b"89"
        assert store.get_range("r", 10, 5) == b""

    def test_lists_by_folder_in_order(self, store: Store) -> None:
        """A listing is recursive and sorted; a prefix is a folder, not the beginning of a name."""
        for path in ("x/2", "x/1/deep", "xy/3", "z"):
            store.put(path, b".")
        assert store.list("x") == ["x/1/deep", "x/2"]
        assert store.list("x", after="x/1/deep") == ["x/2"]
        assert store.list("none") == []
        assert store.list_dirs() == ["x", "xy"]
        assert store.list_dirs("x") == ["1"]

    def test_deletes_a_folder_and_only_that(self, store: Store) -> None:
        """delete_prefix leaves the neighbour whose name begins alike; the whole store is refused."""
        for path in ("x/1", "x/2/3", "xy/1"):
            store.put(path, b".")
        store.delete_prefix("x")
        assert store.list() == ["xy/1"]
        with pytest.raises(InvalidInput, match="everything"):
            store.delete_prefix("/")

    def test_streams_in_and_out(self, store: Store, tmp_path: Path) -> None:
        """Pieces and files go in, pieces come out, and all bytes are the same."""
        pieces = [bytes([number]) * 3_000_000 for number in range(4)]
        store.put("big", pieces)
        assert b"".join(store.chunks("big")) == b"".join(pieces)
        (tmp_path / "local").write_bytes(b"from a file")
        store.put_file("copied", tmp_path / "local")
        assert store.get("copied") == b"from a file"

    def test_broken_stream_leaves_nothing(self, store: Store) -> None:
        """What fails in the middle was never there, and what was there before stays."""

        def pieces():
            yield b"x" * 6_000_000
            raise RuntimeError("the source broke")

        store.put("kept", b"before")
        for path in ("new", "kept"):
            with pytest.raises(RuntimeError, match="the source broke"):
                store.put(path, pieces())
        assert store.list() == ["kept"]
        assert store.get("kept") == b"before"

    def test_odd_names_survive(self, store: Store) -> None:
        """Spaces, percent signs, equal signs and umlauts come back as they went in."""
        path = "dt=2026-01-01/a b%20ü#.txt"
        store.put(path, b"odd")
        assert store.list() == [path]
        assert store.get(path) == b"odd"

    def test_travels_to_another_process(self, store: Store) -> None:
        """A store is pickled by its URL."""
        store.put("a", b"1")
        again = pickle.loads(pickle.dumps(store))
        assert (again.url, again.get("a")) == (store.url, b"1")

    def test_check_leaves_nothing(self, store: Store) -> None:
        """The probe is written and taken away."""
        store.check()
        assert store.list() == []

    def test_arrow_sees_the_same_objects(self, store: Store) -> None:
        """Pyarrow's file system and path for the URL lead to what we wrote."""
        store.put("d/x.bin", b"12345")
        system, root = arrow_filesystem(store.url)
        with system.open_input_file(f"{root}/d/x.bin") as file:
            assert file.read() == b"12345"


def test_memory_stores_of_one_name_are_one() -> None:
    """Two openings of memory://x see each other; another name doesn't."""
    name = uuid.uuid4().hex
    open_store(f"memory://{name}").put("a", b"1")
    assert open_store(f"memory://{name}").get("a") == b"1"
    assert open_store(f"memory://{name}-other").list() == []


@pytest.mark.parametrize("url", ["", "/tmp/x", "ftp://host/x", "s3://", "file://"])
def test_url_that_names_no_place_is_refused(url: str) -> None:
    """The message names the URL and the schemes that we take."""
    with pytest.raises(InvalidInput, match="names no place"):
        open_store(url)


def test_path_out_of_the_store_is_refused(tmp_path: Path) -> None:
    """`..` never leads anywhere."""
    with pytest.raises(InvalidInput, match="usable name"):
        open_store(f"file://{tmp_path}/s").get("../secret")


def test_missing_bucket_is_said(s3_url: str) -> None:
    """No bucket is storage that can't be used, not an object that isn't there."""
    store = open_store("s3://no-such-bucket-here/x")
    with pytest.raises(StorageUnavailable, match="s3://no-such-bucket-here/x"):
        store.check()
    with pytest.raises(StorageUnavailable, match="Create the bucket"):
        store.get("a")


def test_403_is_denied_with_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lake that answers 403 is named, and nothing is tried again."""
    with _Answering(403) as (endpoint, requests):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        store = open_store("s3://lake/data")
        with pytest.raises(StorageDenied, match=r"s3://lake/data.*credentials"):
            store.check()
        assert len(requests) == 1


def test_nobody_there_is_unavailable(monkeypatch: pytest.MonkeyPatch, unused_port: int) -> None:
    """A refused connection is tried again for a bounded time and then said, with the URL."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    store = open_store("s3://lake/data")
    with pytest.raises(StorageUnavailable, match="s3://lake/data"):
        store.get("x")


def test_folder_that_may_not_be_written_is_denied(tmp_path: Path) -> None:
    """A read-only place is a matter of permissions, not an outage."""
    with pytest.raises(StorageDenied):
        open_store("file:///sys/kernel/no-such-folder/x").check()


class TestFullDisk:
    """A disk of 64 KiB."""

    @pytest.fixture
    def small(self, tmp_path: Path):
        mount = tmp_path / "small"
        mount.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)]
        if (
            os.geteuid() != 0
            or subprocess.run(command, capture_output=True, check=False).returncode
        ):
            pytest.skip("a small disk can't be mounted here")
        yield open_store(f"file://{mount}")
        subprocess.run(["umount", str(mount)], check=True)

    @pytest.mark.parametrize("how", ["put", "create", "stream"])
    def test_says_so_and_leaves_nothing(self, small: Store, how: str) -> None:
        """The error says that the disk is full; no part of the object can be read."""
        data = b"x" * 200_000
        write = {
            "put": lambda: small.put("big", data),
            "create": lambda: small.create("big", data),
            "stream": lambda: small.put("big", [data] * 40),
        }[how]
        with pytest.raises(StorageUnavailable, match="disk is full"):
            write()
        assert small.list() == []
        assert list(Path(str(small.local_path())).iterdir()) == []

    def test_what_was_there_stays(self, small: Store) -> None:
        """A replacement that does not fit leaves the old object whole."""
        small.put("result", b"old")
        with pytest.raises(StorageError):
            small.put("result", b"x" * 200_000)
        assert small.get("result") == b"old"


@pytest.fixture
def unused_port() -> int:
    """A loopback port that nobody listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Answering:
    """A server that answers every request with one status; notes the paths."""

    def __init__(self, status: int) -> None:
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        paths: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                paths.append(self.path)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._paths = paths
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> tuple[str, list[str]]:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}", self._paths

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
