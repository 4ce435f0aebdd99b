"""When a request is sent again, and how long each may take: the whole table, without I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ml_pipelines.backends.kubeapi.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds. The budget covers the waits and the tries of one call together.

    A write may pass several webhooks of 10 s each; a list may be megabytes.
    """

    connect_s: float = 5.0
    read_s: float = 10.0
    write_s: float = 25.0
    list_s: float = 30.0
    budget_s: float = 30.0
    first_wait_s: float = 0.25
    longest_wait_s: float = 5.0
    longest_asked_s: float = 20.0  # a Retry-After beyond it is cut to it
    login_tries: int = 3  # how often a 401 in a row has the credentials read again


DEFAULT = Limits()
_NOT_YET = frozenset({408, 425, 429})


def retry_after(
    outcome: Outcome, attempt: int, left_s: float, jitter: float, limits: Limits = DEFAULT
) -> float | None:
    """Seconds to wait before the next try, or None where this outcome is final.

    `attempt` counts the tries made so far (1 after the first), `left_s` is what is left of the
    budget, `jitter` a random number from 0 to 1. A 401 counts tries, not the budget: whoever has
    just got new credentials needs one more try, whatever the time.
    """
    if outcome.good or not retryable(outcome):
        return None
    if outcome.status == 401 or outcome.fault == "certificate":
        if attempt >= limits.login_tries:
            return None
        return (attempt - 1) * (1.0 + jitter)  # at once, then after a second or two
    wait = min(limits.first_wait_s * 2.0 ** (attempt - 1), limits.longest_wait_s)
    wait *= 0.5 + jitter / 2  # never in step with the others that were refused in that moment
    if outcome.retry_after_s is not None:
        asked = min(outcome.retry_after_s, limits.longest_asked_s)
        wait = max(wait, asked + jitter * 0.5)
    return wait if wait < left_s else None


def retryable(outcome: Outcome) -> bool:
    """Whether the same request may be answered otherwise later."""
    status = outcome.status
    if outcome.fault:
        return True
    if status == 401:
        return not outcome.from_behind
    if status == 409:
        return outcome.reason != "AlreadyExists" and not outcome.uid_conflict
    if status == 403:
        # An API server that has just started does not know its roles yet.
        return "RBAC: " in outcome.said and "not found" in outcome.said
    return status in _NOT_YET or status >= 500 or 200 <= status < 300
