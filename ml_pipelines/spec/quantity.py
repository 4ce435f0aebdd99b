"""Kubernetes quantities: `500m`, `1.5Gi`, and what they are worth in cores and bytes."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator

# Kubernetes allows an exponent or a suffix, never both. ASCII digits only.
_QUANTITY = re.compile(
    r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([eE][+-]?[0-9]{1,2})|(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi))?"
)
_SCALE = {
    None: Decimal(1), "m": Decimal("1e-3"),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9),
    "T": Decimal(10**12), "P": Decimal(10**15),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30),
    "Ti": Decimal(2**40), "Pi": Decimal(2**50),
}  # fmt: skip
_LEAST_CORES = Decimal("0.001")
_LEAST_BYTES = 2**20


def cpu_cores(text: str) -> float:
    """Cores of a CPU quantity: `500m` → 0.5. Raises ValueError."""
    return float(_value(text, like="`500m` or `2`"))


def memory_bytes(text: str) -> int:
    """Bytes of a memory quantity: `1.5Gi` → 1610612736. Raises ValueError."""
    return int(_value(text, like="`512Mi` or `1.5Gi`"))


def millicores(cores: float) -> str:
    """The quantity of so many cores, rounded down: 0.5 → `500m`, 2.0 → `2`."""
    thousandths = int(Decimal(str(cores)) * 1000)
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


def mebibytes(count: int) -> str:
    """The quantity of so many bytes, rounded down to MiB: 1610612736 → `1536Mi`."""
    return f"{count // 2**20}Mi"


def _value(text: str, *, like: str) -> Decimal:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"is no quantity; write {_meant(text) or f'for example {like}'}")
    number, exponent, suffix = match.groups()
    value = Decimal(number + (exponent or "")) * _SCALE[suffix]
    if value <= 0:
        raise ValueError(f"must be more than zero; write for example {like}")
    return value


def _meant(text: str) -> str:
    """What was probably meant: `256GB` → `256G`, ` 2Gi` → `2Gi`; else empty."""
    bare = text.strip().removesuffix("B").strip()
    return f"`{bare}`" if bare != text and _QUANTITY.fullmatch(bare) else ""


def _cpu(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("is no quantity of CPUs; write for example `500m` or `2`")  # noqa: TRY004
    text = value if isinstance(value, str) else repr(value)
    if _value(text, like="`500m` or `2`") < _LEAST_CORES:
        raise ValueError("is less than `1m`, the smallest share of a CPU there is")
    return text


def _memory(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("has no unit; write for example `512Mi` or `2Gi`, in quotes")  # noqa: TRY004
    if memory_bytes(value) < _LEAST_BYTES:
        # `512m` is half a byte to Kubernetes, and never what was meant.
        raise ValueError("is less than 1 MiB; write the unit, for example `512Mi` or `2Gi`")
    return value


# The text is kept as it was written; compare with `cpu_cores` and `memory_bytes`.
Cpu = Annotated[str, BeforeValidator(_cpu)]
Memory = Annotated[str, BeforeValidator(_memory)]
