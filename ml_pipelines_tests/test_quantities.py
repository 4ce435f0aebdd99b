"""Quantities mean what Kubernetes means by them, and what can't be meant is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from ml_pipelines.spec.quantity import (
    Cpu,
    Memory,
    cpu_cores,
    mebibytes,
    memory_bytes,
    millicores,
)

CPU: TypeAdapter[str] = TypeAdapter(Cpu)
MEMORY: TypeAdapter[str] = TypeAdapter(Memory)


@pytest.mark.parametrize(
    ("text", "cores"),
    [("0.5", 0.5), ("500m", 0.5), ("1e3", 1000.0), ("2", 2.0), (".25", 0.25), ("1e-1", 0.1)],
    ids=str,
)
def test_cores(text, cores):
    """Case A13: a CPU quantity is worth so many cores."""
    assert cpu_cores(text) == cores


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("512Mi", 536_870_912),
        ("2G", 2_000_000_000),
        ("1.5Gi", 1_610_612_736),
        ("1e3", 1_000),
        ("0.1Gi", 107_374_182),
        ("1Pi", 2**50),
    ],
    ids=str,
)
def test_bytes(text, count):
    """Case A13: a memory quantity is worth so many bytes, to the byte."""
    assert memory_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    [" 2Gi", "2Gi ", "2Gi\n", "256GB", "-1", "0", "0Gi", "NaN", "inf", "", "Gi", "1e3Mi", "1,5",
     "1_000", "0x10", "٢", "1ki", "2gi", "--1", "1 Gi"],
    ids=repr,
)  # fmt: skip
def test_refused(text):
    """Case A13: what Kubernetes would refuse, or read otherwise than it was meant, is refused."""
    with pytest.raises(ValueError):
        cpu_cores(text)
    with pytest.raises(ValidationError):
        MEMORY.validate_python(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("256GB", "`256G`"),
        ("512MiB", "`512Mi`"),
        (" 2Gi", "`2Gi`"),
        ("lots", "`512Mi`"),
        ("512m", "less than 1 MiB"),
        ("64", "less than 1 MiB"),
    ],
)
def test_refusal_says_what_to_write(text, hint):
    """A refused quantity comes with the one that was probably meant."""
    with pytest.raises(ValidationError, match=hint):
        MEMORY.validate_python(text)


@pytest.mark.parametrize(
    ("written", "kept"), [(2, "2"), (0.5, "0.5"), ("500m", "500m"), ("1e3", "1e3")], ids=repr
)
def test_cpu_keeps_what_was_written(written, kept):
    """A CPU may be a number or a text, and stays as it was written."""
    assert CPU.validate_python(written) == kept


@pytest.mark.parametrize("value", [True, float("nan"), None, [1], 0, -2, "0.5m"], ids=repr)
def test_no_cpu(value):
    """Neither a truth value nor anything below a thousandth of a CPU is a number of CPUs."""
    with pytest.raises(ValidationError):
        CPU.validate_python(value)


@pytest.mark.parametrize("value", [2, 2.5, True, None], ids=repr)
def test_memory_needs_a_unit(value):
    """A bare number of memory could mean anything, so it is refused."""
    with pytest.raises(ValidationError):
        MEMORY.validate_python(value)


@given(st.integers(1, 10_000_000))
def test_millicores_are_read_back(thousandths):
    """A quantity made of cores is worth those cores."""
    assert cpu_cores(millicores(thousandths / 1000)) == thousandths / 1000


@given(st.integers(2**20, 2**50))
def test_mebibytes_round_down(count):
    """A quantity made of bytes is worth them to the MiB, and never more."""
    assert 0 <= count - memory_bytes(mebibytes(count)) < 2**20
