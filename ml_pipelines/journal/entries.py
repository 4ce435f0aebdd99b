"""One entry of a journal, as JSON; what can't be decoded is told apart, never guessed at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Role = Literal["loop", "driver"]

BIRTH = "birth"
CLAIM = "claim"
RELEASE = "release"
ATTEMPT = "attempt"
CREATED = "created"
ATTEMPT_END = "attempt_end"
CANCEL = "cancel"
COMMIT = "commit"
END = "end"
LEDGER = "ledger"
LOGS = "logs"
NOTE = "note"
CLEANED = "cleaned"


@dataclass(frozen=True, slots=True)
class Draft:
    """What a writer wants to say; `data` is plain JSON."""

    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as it lies in run storage.

    `claim` is the number of the claim it was written under, 0 for none; `nonce` tells apart two
    tries of one writer; `at` is the writer's wall clock (ISO 8601, UTC), for people only; `voids`
    names the undecodable entries right before it, so that they count for nobody.
    """

    number: int
    kind: str
    role: str
    writer: str
    nonce: str
    claim: int
    at: str
    data: Mapping[str, Any] = field(default_factory=dict)
    voids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Undecodable:
    """An entry that can't be read: void as the last one, or where its successor voids it."""

    number: int
    problem: str


Record = Entry | Undecodable


def encode(entry: Entry) -> bytes:
    """The entry's bytes: strict JSON on one line. Raises ValueError for NaN and the like."""
    fields: dict[str, Any] = {
        "number": entry.number,
        "kind": entry.kind,
        "role": entry.role,
        "writer": entry.writer,
        "nonce": entry.nonce,
        "claim": entry.claim,
        "at": entry.at,
        "data": _plain(entry.data),
    }
    if entry.voids:
        fields["voids"] = list(entry.voids)
    return json.dumps(fields, allow_nan=False, separators=(",", ":")).encode()


def decode(number: int, raw: bytes) -> Record:
    """The entry of that number; fields that we don't know are left out."""
    try:
        fields = json.loads(raw)
        entry = Entry(
            number=_typed(fields, "number", int),
            kind=_typed(fields, "kind", str),
            role=_typed(fields, "role", str),
            writer=_typed(fields, "writer", str),
            nonce=_typed(fields, "nonce", str),
            claim=_typed(fields, "claim", int),
            at=_typed(fields, "at", str),
            data=MappingProxyType(_typed(fields, "data", dict)),
            voids=tuple(int(each) for each in fields.get("voids", ())),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return Undecodable(number, f"{type(error).__name__}: {error}")
    if entry.number != number:
        return Undecodable(number, f"it says that it is entry {entry.number}")
    return entry


def _typed(fields: Any, name: str, kind: type) -> Any:
    value = fields[name]
    # bool is an int to isinstance, but no number to us.
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name} is {type(value).__name__}")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
