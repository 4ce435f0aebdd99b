"""A job's parameters as a dataclass, checked.

Unknown names, wrong types and values out of range are refused. A field's range stands in its
metadata: `bounded(default, low, high)`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

from ml_pipelines.errors import InvalidInput

T = TypeVar("T")


def bounded(default: float, low: float, high: float) -> Any:
    """A numeric field with a default and the range [low, high]."""
    return dataclasses.field(default=default, metadata={"low": low, "high": high})


def parse(cls: type[T], given: Mapping[str, object]) -> T:
    """Make a `cls` of what was given; InvalidInput names the field, the value and the remedy."""
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    types = get_type_hints(cls)
    for name in given:
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            remedy = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(fields)}."
            raise InvalidInput(f"params.{name}", given[name], "is no known field", remedy=remedy)
    for name, field in fields.items():
        if name not in given and field.default is dataclasses.MISSING:
            raise InvalidInput(f"params.{name}", None, "is missing", remedy="Give it.")
    return cls(**{name: _checked(name, given[name], types[name], fields[name]) for name in given})


def _checked(name: str, value: object, kind: type, field: dataclasses.Field[Any]) -> object:
    if kind is float and type(value) is int:
        value = float(value)
    if kind == tuple[str, ...]:
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            raise InvalidInput(f"params.{name}", value, "is no list of texts", remedy="Write one.")
        return tuple(value)
    if kind in (int, float, str, bool) and type(value) is not kind:
        raise InvalidInput(
            f"params.{name}", value, f"is not of type {kind.__name__}", remedy="Write one."
        )
    low, high = field.metadata.get("low"), field.metadata.get("high")
    if low is not None and not low <= value <= high:  # type: ignore[operator]
        raise InvalidInput(
            f"params.{name}", value, "is out of range", remedy=f"Use {low} to {high}."
        )
    return value
