"""One answer of an API server, or the lack of one, as plain values to decide upon."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SHOWN = 600


@dataclass(frozen=True, slots=True)
class Outcome:
    """`fault` is set where there was no whole answer.

    It is one of dns, refused, unreachable, timeout, reset, certificate. `said` is the server's message, or the fault in words. `from_behind`: a service behind the
    server's proxy answered, not the server.
    """

    status: int = 0
    reason: str = ""
    said: str = ""
    retry_after_s: float | None = None
    fault: str = ""
    kind_missing: bool = False
    uid_conflict: bool = False
    from_behind: bool = False

    @property
    def good(self) -> bool:
        """Whether the request was done."""
        return not self.fault and 200 <= self.status < 300

    @property
    def quota(self) -> bool:
        """Whether a used-up quota is why."""
        return self.status == 403 and "exceeded quota" in self.said

    @property
    def told(self) -> str:
        """Status, reason and message in one phrase."""
        head = f"{self.status} {self.reason}".strip()
        return f"{head}: {self.said.rstrip('.')}" if self.said else head


def read(status: int, headers: Mapping[str, str], body: bytes, *, proxied: bool) -> Outcome:
    """What an answer with this status, these headers and this body says."""
    said = _status_object(body) if status >= 300 else {}
    details = said.get("details") or {}
    message = str(said.get("message") or "") or _plain(body, status)
    return Outcome(
        status=status,
        reason=str(said.get("reason") or ""),
        said=message,
        retry_after_s=_seconds(headers.get("Retry-After"), details.get("retryAfterSeconds")),
        # A missing object is named; a missing kind is told in a general phrase, or by no Status.
        kind_missing=status == 404 and not proxied and not details.get("name"),
        # In the words of the two places that check it: a precondition on the UID failed.
        uid_conflict=status == 409 and "UID" in message and "recondition" in message,
        from_behind=proxied and not said,
    )


def of_status(status: Mapping[str, Any]) -> Outcome:
    """The Status object that a watch sends within its stream, however much of it is missing."""
    details = status.get("details") or {}
    return Outcome(
        status=int(status.get("code") or 500),
        reason=str(status.get("reason") or ""),
        said=str(status.get("message") or "an error event that says nothing"),
        retry_after_s=_seconds(None, details.get("retryAfterSeconds")),
    )


def _status_object(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except ValueError:
        return {}
    return said if isinstance(said, dict) and said.get("kind") == "Status" else {}


def _plain(body: bytes, status: int) -> str:
    if status < 300:
        return ""
    text = " ".join(body[: 4 * _SHOWN].decode("utf-8", "replace").split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _seconds(*texts: object) -> float | None:
    """The first that is a number. A date (the other form of Retry-After) needs agreeing clocks."""
    for text in texts:
        try:
            return max(float(str(text)), 0.0)
        except ValueError:
            continue
    return None
