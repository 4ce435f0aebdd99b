"""Why a job or an attempt ended: a class, its evidence, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class VerdictClass(StrEnum):
    """The classes that decide about retries (see `attempts.BUDGETS`)."""

    SUCCESS = "SUCCESS"
    CANCELLED = "CANCELLED"
    PREEMPTED = "PREEMPTED"
    INFRA = "INFRA"
    CAPACITY = "CAPACITY"
    CONFIG = "CONFIG"
    USER = "USER"
    OOM = "OOM"
    TIMEOUT = "TIMEOUT"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why it ended.

    `sentence` is for people and names the cause; `evidence` quotes what was seen (status fields,
    events, exit codes, log lines), one item a source; `remedy` is what to do now, or empty;
    `warnings` are things worth knowing about a success.
    """

    cls: VerdictClass
    sentence: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    warnings: tuple[str, ...] = ()
    exit_code: int | None = None

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.cls is VerdictClass.SUCCESS
