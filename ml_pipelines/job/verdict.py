"""Why a job or an attempt ended: a class, its evidence, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    `warnings` are things worth knowing about a success; `cause` is the same for the same failure
    (exception type and place, without values), or empty.
    """

    cls: VerdictClass
    sentence: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    warnings: tuple[str, ...] = ()
    exit_code: int | None = None
    cause: str = ""

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.cls is VerdictClass.SUCCESS

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, for the journal."""
        plain = asdict(self)
        plain["class"] = str(plain.pop("cls"))
        plain["evidence"] = list(self.evidence)
        plain["warnings"] = list(self.warnings)
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Verdict:
        """The inverse of `to_json`; a class or field that a newer version wrote is no error."""
        name = str(plain.get("class", ""))
        known = name in VerdictClass.__members__
        code = plain.get("exit_code")
        return cls(
            cls=VerdictClass(name) if known else VerdictClass.UNKNOWN,
            sentence=str(plain.get("sentence", "")),
            evidence=tuple(str(one) for one in plain.get("evidence", ())),
            remedy=str(plain.get("remedy", "")),
            warnings=tuple(str(one) for one in plain.get("warnings", ())),
            exit_code=code if isinstance(code, int) else None,
            cause=str(plain.get("cause", "")),
        )
