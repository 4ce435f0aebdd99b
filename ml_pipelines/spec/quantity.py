"""Kubernetes quantities: `500m`, `1.5Gi`, and what they are worth in cores and bytes."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator

_NUMBER = re.compile(r"^(\d+(?:\.\d+)?|\.\d+)(e\d{1,2}|E\d{1,2})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$")
_SCALE = {
    None: 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
}  # fmt: skip


def _value(text: str) -> float:
    match = _NUMBER.match(text)
    if match is None:
        raise ValueError("is no quantity; write for example `500m`, `2`, `512Mi`, `1.5Gi`")
    number, exponent, suffix = match.groups()
    value = float(number + (exponent or "")) * _SCALE[suffix]
    if value <= 0:
        raise ValueError("must be more than zero")
    return value


def cpu_cores(text: str) -> float:
    """Cores of a CPU quantity: `500m` → 0.5. Raises ValueError."""
    return _value(text)


def memory_bytes(text: str) -> int:
    """Bytes of a memory quantity: `1.5Gi` → 1610612736. Raises ValueError."""
    return int(_value(text))


def _cpu(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("is no quantity of CPUs; write for example `500m` or `2`")  # noqa: TRY004
    text = value if isinstance(value, str) else repr(value)
    cpu_cores(text)
    return text


def _memory(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("is no quantity of memory; write for example `512Mi` or `2Gi`")  # noqa: TRY004
    memory_bytes(value)
    return value


Cpu = Annotated[str, BeforeValidator(_cpu)]
Memory = Annotated[str, BeforeValidator(_memory)]
