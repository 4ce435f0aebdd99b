"""What a fake API server is asked, and what it is told to do wrong."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ml_pipelines_tests.fake_kube_objects import Object

END, RESET = "end", "reset"


@dataclass(frozen=True)
class Fault:
    """What becomes of one request. `store`: the server does it first, and only then fails.

    `status` answers (with `reason`, `message`, `headers`, or the raw `body`); `reset` and `end`
    close the connection without an answer; `hang_s` is silent for so long, then closes; `garbage`
    answers 200 with that.
    """

    status: int = 0
    reason: str = ""
    message: str = "made to fail"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    reset: bool = False
    end: bool = False
    hang_s: float = 0.0
    store: bool = False


@dataclass
class Asked:
    """One request, as it came, and the status it was given (0: no answer).

    The headers' names are in title case (`X-Ray-Authorization`).
    """

    at: float
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any
    status: int = 0


class FakeLog:
    """One container's log: bytes as they were written, each write a chunk of its own."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.writes: list[tuple[datetime, bytes]] = []
        self.ended = False
        self.stalled = False

    def write(self, data: bytes, at: datetime | None = None) -> None:
        """More output."""
        with self.changed:
            self.writes.append((at or datetime.now(UTC), data))
            self.changed.notify_all()

    def end(self) -> None:
        """The container is done: followers get what there is, and a clean end."""
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def stall(self, *, on: bool = True) -> None:
        """Followers are sent nothing, though their connections stay open."""
        with self.changed:
            self.stalled = on
            self.changed.notify_all()


def failure(status: int, reason: str, message: str, details: Mapping[str, Any]) -> Object:
    """A Status object."""
    return {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message,
        "reason": reason, "details": dict(details), "code": status,
    }  # fmt: skip
