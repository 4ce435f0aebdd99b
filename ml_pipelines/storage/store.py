"""One storage client for local files, S3, GCS and memory, with create-if-absent.

Every call has a time-out and is retried by the client below; what remains is raised as one of
ours: NotFound, AlreadyExists, StorageDenied (not to us), StorageUnavailable (may change).
Every write is atomic: an object is there whole or not at all.
"""

from __future__ import annotations

import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import GCSStore, LocalStore, MemoryStore, S3Store

from ml_pipelines.errors import (
    AlreadyExists,
    InvalidInput,
    NotFound,
    StorageDenied,
    StorageError,
    StorageUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from obstore.store import ClientConfig, ObjectStore, RetryConfig

READERS = 16
CHUNK_BYTES = 8 * 1024 * 1024
# What the client says only in words: EPERM, EACCES, EROFS; ENOSPC, EDQUOT; HTTP's codes.
_DENIED = re.compile(r"os error (1|13|30)\)|40[13] (Forbidden|Unauthorized)")
_NO_CREDENTIALS = "//169.254.169.254/"
_FULL = re.compile(r"os error (28|122)\)")
SCHEMES = ("file://", "s3://", "gs://", "memory://")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client waits for a far store: seconds, and how often it tries again."""

    connect_s: float
    request_s: float
    retries: int
    retry_s: float  # no new try after so long


PATIENT = Patience(connect_s=5, request_s=60, retries=6, retry_s=60)
# For whoever waits in front of a terminal, or is leaving: an answer of some kind within 10 s.
BRIEF = Patience(connect_s=3, request_s=4, retries=6, retry_s=3)

# One store a name, so that two openings of memory://x see each other.
_memories: dict[str, MemoryStore] = {}


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What a listing says of one object; `modified` is the server's time, for people only."""

    path: str
    size: int
    etag: str
    modified: datetime


def open_store(url: str) -> Store:
    """The store at a URL: `file:///dir`, `s3://bucket/prefix`, `gs://…`, `memory://name`.

    A folder is made where it is missing. S3 and GCS read their usual environment variables
    (AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, …). Raises InvalidInput, StorageDenied,
    StorageUnavailable.
    """
    return Store(url)


class Store:
    """One URL's objects. Paths are relative to it, with `/` between and no `.` or `..` parts."""

    def __init__(self, url: str, patience: Patience = PATIENT) -> None:
        if not url.startswith(SCHEMES) or not url.partition("://")[2]:
            raise InvalidInput(
                "storage URL", url, "names no place", remedy=f"Begin it with {', '.join(SCHEMES)}."
            )
        self.url = url.rstrip("/")
        with self._errors(""):
            self._objects = _connect(self.url, patience)

    def brief(self) -> Store:
        """The same place, given up on within 10 s a call."""
        far = self.url.startswith(("s3://", "gs://"))
        return Store(self.url, BRIEF) if far else self

    def __reduce__(self) -> tuple[type[Store], tuple[str]]:
        return type(self), (self.url,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def get(self, path: str) -> bytes:
        """The whole object. Raises NotFound."""
        with self._errors(path):
            return bytes(obstore.get(self._objects, path).bytes())

    def get_many(self, paths: Sequence[str]) -> list[bytes | None]:
        """Several whole objects, at once where they are far; None for one that isn't there."""
        if self.local_path() is not None or len(paths) < 2:
            return [self._get_or_none(path) for path in paths]
        with ThreadPoolExecutor(min(len(paths), READERS)) as pool:
            return list(pool.map(self._get_or_none, paths))

    def _get_or_none(self, path: str) -> bytes | None:
        try:
            return self.get(path)
        except NotFound:
            return None

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """At most `length` bytes from `start`; empty at or after the end. Raises NotFound."""
        size = self.size(path)
        if size is None:
            raise NotFound(f"{self.child_url(path)} does not exist.")
        end = min(start + length, size)
        if end <= start:
            return b""
        with self._errors(path):
            return bytes(obstore.get_range(self._objects, path, start=start, end=end))

    def chunks(self, path: str) -> Iterator[bytes]:
        """The object in pieces of a few MB, for what need not be in memory whole."""
        with self._errors(path):
            for piece in obstore.get(self._objects, path).stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(piece)

    def create(self, path: str, data: bytes) -> None:
        """Write an object only if there is none of that name. Raises AlreadyExists.

        The client retries by itself, so AlreadyExists may mean one's own, earlier try; after
        StorageUnavailable the object may be there, or appear later.
        """
        with self._errors(path):
            obstore.put(self._objects, path, data, mode="create")

    def put(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Write or replace an object; nothing of it is seen before all of it is written."""
        with self._errors(path):
            obstore.put(self._objects, path, data if isinstance(data, bytes) else iter(data))

    def put_file(self, path: str, local: Path) -> None:
        """Write or replace an object with a local file's content."""
        with self._errors(path):
            obstore.put(self._objects, path, local)

    def size(self, path: str) -> int | None:
        """Bytes of an object, or None where there is none."""
        try:
            with self._errors(path):
                return obstore.head(self._objects, path)["size"]
        except NotFound:
            return None

    def exists(self, path: str) -> bool:
        """Whether there is an object of that name."""
        return self.size(path) is not None

    def objects(self, prefix: str = "", *, after: str = "") -> list[StoredObject]:
        """Everything below `prefix/`, by path; `after` leaves out that path and those before."""
        found = []
        with self._errors(prefix):
            for page in obstore.list(self._objects, prefix or None, offset=after or None):
                found += [
                    StoredObject(m["path"], m["size"], m["e_tag"] or "", m["last_modified"])
                    for m in page
                ]
        return sorted(found, key=lambda each: each.path)

    def list_dirs(self, prefix: str = "") -> list[str]:
        """Names of the folders right below `prefix/`, sorted."""
        with self._errors(prefix):
            listing = obstore.list_with_delimiter(self._objects, prefix or None)
        return sorted(path.rsplit("/", 1)[-1] for path in listing["common_prefixes"])

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        """Paths of everything below `prefix/`, sorted; `after` as for `objects`."""
        return [each.path for each in self.objects(prefix, after=after)]

    def delete(self, path: str) -> None:
        """Remove an object; one that is not there is no error."""
        try:
            with self._errors(path):
                obstore.delete(self._objects, path)
        except NotFound:
            return

    def delete_prefix(self, prefix: str) -> None:
        """Remove everything below `prefix/`, in the order of the names."""
        if not prefix.strip("/"):
            raise InvalidInput("prefix", prefix, "would remove everything in the store")
        for path in self.list(prefix):
            self.delete(path)

    def child_url(self, path: str) -> str:
        """The URL of a path in this store."""
        return f"{self.url}/{path}" if path else self.url

    def local_path(self, path: str = "") -> Path | None:
        """Where the path lies on this machine; None unless the store is `file://`."""
        if not self.url.startswith("file://"):
            return None
        return Path(self.url.removeprefix("file://")) / path

    def check(self, *, write: bool = True) -> None:
        """Reach the store within some 10 s, and write and remove a probe in it.

        Raises StorageDenied or StorageUnavailable, naming the URL.
        """
        probe, brief = f".probe-{uuid.uuid4().hex[:12]}", self.brief()
        try:
            with self._errors(""):
                next(iter(obstore.list(brief._objects, ".probe", chunk_size=1)), None)  # noqa: SLF001 - another of ours
            if write:
                brief.put(probe, b"probe")
                brief.delete(probe)
        except NotFound as error:
            raise StorageUnavailable(
                f"{self.url} can't be used: {error.message}", remedy="Create the bucket."
            ) from error

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            _raise_ours(error, self.child_url(path))


def _connect(url: str, patience: Patience) -> ObjectStore:
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        return LocalStore(rest, mkdir=True)
    name, _, prefix = rest.partition("/")
    if scheme == "memory":
        return _memories.setdefault(rest, MemoryStore())
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=patience.connect_s),
        "timeout": timedelta(seconds=patience.request_s),
    }
    retry: RetryConfig = {
        "max_retries": patience.retries,
        "retry_timeout": timedelta(seconds=patience.retry_s),
    }
    if scheme == "gs":
        return GCSStore(name, prefix=prefix or None, client_options=client, retry_config=retry)
    # Plain HTTP only where AWS_ENDPOINT_URL names it (a server of one's own).
    client["allow_http"] = True
    return S3Store(name, prefix=prefix or None, client_options=client, retry_config=retry)


def _raise_ours(error: Exception, url: str) -> NoReturn:
    # The client appends its source after an empty line; the first line says it all.
    text = str(error).strip().partition("\n")[0][:300]
    if isinstance(error, AlreadyExistsError):
        raise AlreadyExists(f"{url} exists already.") from error
    if isinstance(error, NotFoundError | FileNotFoundError) and "NoSuchBucket" not in str(error):
        raise NotFound(f"{url} does not exist.") from error
    if isinstance(error, ValueError) and not isinstance(error, BaseError):
        raise InvalidInput("storage path", url, f"is no usable name: {text}") from error
    kind, remedy = _classify(error)
    raise kind(f"{url}: {text.rstrip('.')}.", remedy=remedy) from error


def _classify(error: Exception) -> tuple[type[StorageError], str]:
    text = str(error)
    if _NO_CREDENTIALS in text:  # the client's last resort, asked when nothing else names any
        return StorageDenied, "Give credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
    denied = isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError)
    if denied or _DENIED.search(text):
        return StorageDenied, "Check the credentials and permissions for this URL."
    if _FULL.search(text):
        return StorageUnavailable, "The disk is full: make room there."
    if "NoSuchBucket" in text:
        return StorageUnavailable, "Create the bucket, or correct the URL."
    return StorageUnavailable, "Check that the storage is up and reachable from here."
