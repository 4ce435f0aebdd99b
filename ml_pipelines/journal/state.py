"""What a journal says of a job, as plain immutable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Birth:
    """The resolved spec and the place where the job lives; `created_at` is ISO 8601, in UTC."""

    spec: Mapping[str, Any]
    spec_hash: str
    backend: str
    location: str
    owes_result: bool
    labels: Mapping[str, str]
    owner: str
    name: str
    created_at: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Claim:
    """Who holds the loop, or drives the open attempt. `number` is its entry's.

    `attempt`, `incarnation` (1, 2, … within the attempt) and `cluster` are a driver's.
    """

    number: int
    writer: str
    attempt: int = 0
    incarnation: int = 0
    cluster: str = ""
    released: bool = False


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt. `uid` is its RayJob's once that exists; `data` is what its end recorded."""

    number: int
    name: str
    opened_at: str
    uid: str = ""
    ended: bool = False
    verdict: Mapping[str, Any] | None = None
    why: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CancelRecord:
    """The first cancel. `delete` is whether the job's objects go (they do, unless it says no)."""

    reason: str
    by: str
    delete: bool
    at: str


@dataclass(frozen=True, slots=True)
class Commit:
    """Data that counts: `path` in run storage, written before its entry, with its SHA-256."""

    entry: int
    what: str
    path: str
    sha256: str
    attempt: int
    incarnation: int
    at: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EndRecord:
    """How the job ended; `durations` in seconds by part."""

    phase: str
    verdict: Mapping[str, Any] | None
    result: Mapping[str, Any] | None
    durations: Mapping[str, float]
    at: str


@dataclass(frozen=True, slots=True)
class JournalState:
    """Everything that counts in a journal, up to entry `tail`.

    `standing` is the last note of the open attempt that names a phase; `logs` maps an attempt's
    number to what was said of its log; `void` lists entries that do not count, with why.
    """

    run_key: str
    tail: int = 0
    birth: Birth | None = None
    loop: Claim | None = None
    driver: Claim | None = None
    attempts: tuple[AttemptRecord, ...] = ()
    cancelled: CancelRecord | None = None
    commits: tuple[Commit, ...] = ()
    ended: EndRecord | None = None
    ledger: tuple[Mapping[str, Any], ...] = ()
    logs: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[Mapping[str, Any], ...] = ()
    standing: Mapping[str, Any] | None = None
    cleaned: bool = False
    incarnations: int = 0
    void: tuple[tuple[int, str], ...] = ()

    @property
    def open_attempt(self) -> AttemptRecord | None:
        """The attempt that may run now."""
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and not last.ended and self.ended is None else None

    @property
    def result(self) -> Commit | None:
        """The last result that was committed."""
        return self.latest("result")

    def latest(self, what: str) -> Commit | None:
        """The last commit of its kind, over all attempts."""
        return next((each for each in reversed(self.commits) if each.what == what), None)
