"""Requests to one API server: time-outs on every call, retries by kind, errors that quote it."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ml_pipelines.backends.kubeapi import retries
from ml_pipelines.backends.kubeapi.errors import (
    KubeError,
    KubeGone,
    KubeNotFound,
    KubeUnavailable,
    error_of,
)
from ml_pipelines.backends.kubeapi.link import Link, fault_of, faults
from ml_pipelines.backends.kubeapi.outcome import Outcome, read
from ml_pipelines.backends.kubeapi.streaming import Stream
from ml_pipelines.errors import InvalidInput

if TYPE_CHECKING:
    from ml_pipelines.backends.kubeapi.login import Login
    from ml_pipelines.clock import Clock

Object = dict[str, Any]
_NONE: Mapping[str, str] = MappingProxyType({})
_PAGE = 250
_READ = 64 * 1024
_JSON = {"Content-Type": "application/json"}
_MERGE = {"Content-Type": "application/merge-patch+json"}


@dataclass(frozen=True, slots=True)
class Listing:
    """The objects of one moment, and that moment's place in the server's history."""

    items: list[Object]
    resource_version: str


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    read_s: float = retries.DEFAULT.read_s

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Api:
    """One API server as one identity. Safe to share between threads."""

    def __init__(
        self, login: Login, *, clock: Clock, limits: retries.Limits = retries.DEFAULT
    ) -> None:
        self.context = login.context
        self.namespace = login.namespace
        self.clock = clock
        self.limits = limits
        self._login = login
        self._lock = threading.Lock()
        self._link = Link(login.read())

    @property
    def server(self) -> str:
        """The API server's URL."""
        return self._link.server

    @property
    def where(self) -> str:
        """Server, context and namespace in one phrase."""
        whom = f"context {self.context!r}" if self.context else "the pod's own account"
        return f"Kubernetes at {self.server} ({whom}, namespace {self.namespace!r})"

    def get(
        self, path: str, query: Mapping[str, str] = _NONE, *, budget_s: float | None = None
    ) -> Object:
        """One object."""
        request = _Request("GET", path, query, read_s=self.limits.read_s)
        return self._object(request, budget_s)

    def list(
        self, path: str, *, labels: str = "", fields: str = "", budget_s: float | None = None
    ) -> Listing:
        """All objects of a path as of one moment, fetched page by page."""
        for _ in range(2):
            try:
                return self._pages(path, selection(labels, fields), budget_s)
            except KubeGone:  # the moment of the first page was compacted away meanwhile
                continue
        return self._pages(path, selection(labels, fields), budget_s, page=0)

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """Create an object. Raises KubeAlreadyExists also where an earlier try of ours did it."""
        query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        return self._object(self._write("POST", path, query, body, _JSON), None)

    def patch(self, path: str, body: Mapping[str, Any], *, budget_s: float | None = None) -> Object:
        """Change some fields of an object (merge patch)."""
        query = {"fieldValidation": "Strict"}
        return self._object(self._write("PATCH", path, query, body, _MERGE), budget_s)

    def delete(self, path: str, *, uid: str = "", grace_s: int | None = None) -> bool:
        """Delete an object and, in the background, what it owns.

        False where it is not there, or has another uid: then nothing was done.
        """
        options: Object = {
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"
        }  # fmt: skip
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self._bytes(self._write("DELETE", path, {}, options, _JSON), None)
        except KubeNotFound as err:
            if err.kind_missing:
                raise
            return False
        except _AnotherUid:
            return False
        return True

    def send(
        self, method: str, path: str, *, query: Mapping[str, str] = _NONE,
        body: bytes | None = None, headers: Mapping[str, str] = _NONE,
        budget_s: float | None = None,
    ) -> bytes:  # fmt: skip
        """Any other request, such as one to a service behind the server's proxy."""
        request = _Request(method, path, query, body, headers, self.limits.read_s)
        return self._bytes(request, budget_s)

    @contextmanager
    def stream(
        self, path: str, *, query: Mapping[str, str] = _NONE, headers: Mapping[str, str] = _NONE,
        read_timeout_s: float, budget_s: float | None = None,
    ) -> Iterator[Stream]:  # fmt: skip
        """An answer that is read as it comes; see Stream.

        Opening it is tried again as any request is; once it is open, nothing is asked again.
        """
        begin_s = min(read_timeout_s, self.limits.read_s)
        request = _Request("GET", path, query, None, headers, begin_s)
        response = self._answered(request, budget_s)
        opened = Stream(response, str(request), self.where, read_timeout_s)
        try:
            yield opened
        finally:
            opened.close()

    def close(self) -> None:
        """Close the idle connections."""
        self._link.close()

    def _write(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any],
        headers: Mapping[str, str],
    ) -> _Request:  # fmt: skip
        data = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
        return _Request(method, path, query, data, headers, self.limits.write_s)

    def _pages(
        self, path: str, query: Mapping[str, str], budget_s: float | None, page: int = _PAGE
    ) -> Listing:
        items: list[Object] = []
        more = ""
        while True:
            asked = dict(query)
            if page:
                asked["limit"] = str(page)
            if more:
                asked["continue"] = more
            request = _Request("GET", path, asked, read_s=self.limits.list_s)
            found = self._object(request, budget_s)
            items.extend(found.get("items") or ())
            meta = found.get("metadata") or {}
            more = str(meta.get("continue") or "")
            if not more:
                return Listing(items, str(meta.get("resourceVersion") or ""))

    def _object(self, request: _Request, budget_s: float | None) -> Object:
        data = self._bytes(request, budget_s)
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise KubeUnavailable(
                f"{self.where} answered {request} with something that is no Kubernetes object: "
                f"{data[:200]!r}.",
                remedy="See whether a proxy or a login page stands before the API server.",
            )
        return found

    def _bytes(self, request: _Request, budget_s: float | None) -> bytes:
        data: bytes = self._answered(request, budget_s, whole=True)
        return data

    def _answered(self, request: _Request, budget_s: float | None, *, whole: bool = False) -> Any:
        """The good answer's body, as bytes (`whole`) or still to be read. Raises KubeError."""
        budget = self.limits.budget_s if budget_s is None else budget_s
        deadline = self.clock.monotonic() + budget
        logins = others = 0
        note = ""
        while True:
            link = self._link
            outcome, answer = self._once(link, request, whole=whole)
            if outcome.good:
                return answer
            login = outcome.status == 401 or outcome.fault == "certificate"
            logins, others = (logins + 1, others) if login else (logins, others + 1)
            wait = retries.retry_after(
                outcome, logins if login else others,
                deadline - self.clock.monotonic(), random.random(), self.limits,
            )  # fmt: skip
            if wait is None:
                raise self._error(outcome, request, note)
            self.clock.sleep(wait)
            if login:
                note = self._read_credentials_again(link)

    def _once(self, link: Link, request: _Request, *, whole: bool) -> tuple[Outcome, Any]:
        try:
            response = link.send(
                request.method, request.path, query=request.query, body=request.body,
                headers=request.headers, connect_s=self.limits.connect_s, read_s=request.read_s,
            )  # fmt: skip
            if 200 <= response.status < 300 and not whole:
                return Outcome(response.status), response
            body = self._whole(response, request.read_s)
        except faults() as err:
            return fault_of(err, request.read_s), None
        proxied = "/proxy/" in request.path
        return read(response.status, response.headers, body, proxied=proxied), body

    def _whole(self, response: Any, limit_s: float) -> bytes:
        """All of an answer, within a limit: a drop a second must not hold a call for ever."""
        end = self.clock.monotonic() + 2 * limit_s
        parts: list[bytes] = []
        try:
            while chunk := response.read1(_READ):
                parts.append(chunk)
                if self.clock.monotonic() > end:
                    raise TimeoutError  # noqa: TRY301 - the connection is closed below
        except BaseException:
            response.close()
            raise
        response.release_conn()
        return b"".join(parts)

    def _error(self, outcome: Outcome, request: _Request, note: str) -> KubeError:
        if outcome.uid_conflict:
            return _AnotherUid(outcome.said, status=409, reason=outcome.reason, said=outcome.said)
        error = error_of(outcome, str(request), self.where)
        error.retry_after_s = outcome.retry_after_s
        if note:
            error.message = f"{error.message} {note}"
            error.args = (f"{error.message} {error.remedy}".strip(),)
        return error

    def _read_credentials_again(self, refused: Link) -> str:
        """Replace the link that was refused, unless another thread has; why not, where it fails."""
        with self._lock:
            if self._link is not refused:
                return ""
            try:
                self._link = Link(self._login.read())
            except (KubeError, InvalidInput) as err:
                return str(err)
            refused.close()
            return ""


class _AnotherUid(KubeError):
    """The uid precondition of a deletion did not hold."""


def selection(labels: str, fields: str) -> dict[str, str]:
    """A list's or a watch's query for those labels and fields."""
    query = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in query.items() if value}
