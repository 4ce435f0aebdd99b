"""Turns what pydantic found wrong into one sentence: path, value, remedy."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ml_pipelines.errors import InvalidInput
from ml_pipelines.spec.references import HIDDEN, NOT_SHOWN, Words

Model = TypeVar("Model", bound=BaseModel)
Location = Sequence[int | str]


_NOTHING = Words("nothing")

# What pydantic puts at the end of a path for a mapping's key, and for a number within JSON.
_NOT_FIELDS = frozenset({"[key]", "float"})
# Type of pydantic's error → (what is wrong, what to do). `{name}` is the error's context.
_SENTENCES: Mapping[str, tuple[str, str]] = {
    "missing": ("was given, but a value is required", "Add it."),
    "greater_than_equal": ("is too small", "Give {ge} or more."),
    "less_than_equal": ("is too large", "Give {le} or less."),
    "greater_than": ("is too small", "Give more than {gt}."),
    "less_than": ("is too large", "Give less than {lt}."),
    "finite_number": ("is no finite number", "Give a finite number."),
    "string_type": ("is no text", "Write it in quotes."),
    "int_type": ("is no whole number", "Give a whole number, without quotes."),
    "int_from_float": ("is no whole number", "Give a whole number."),
    "float_type": ("is no number", "Give a number, without quotes."),
    "bool_type": ("is neither true nor false", "Write true or false, without quotes."),
    "tuple_type": ("is no list", "Write a list, one item each."),
    "list_type": ("is no list", "Write a list, one item each."),
    "dict_type": ("is no mapping", "Write fields and their values."),
    "model_type": ("is no mapping", "Write fields and their values."),
    "string_pattern_mismatch": ("has characters that are not allowed here", ""),
    "string_too_short": ("is too short", "Give at least {min_length} characters."),
    "string_too_long": ("is too long", "Give at most {max_length} characters."),
    "too_short": ("has too few items", "Give at least {min_length}."),
    "too_long": ("has too many items", "Give at most {max_length}."),
    "literal_error": ("is none of the values allowed", "Write {expected}."),
    "string_unicode": ("holds characters that are no Unicode text", "Take them out."),
}


def parse(model: type[Model], data: object, *, root: str = "") -> Model:
    """`data` as a `model`, strictly; raises InvalidInput about the first thing wrong with it."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise explain(error, root, model=model) from None


def explain(
    err: ValidationError, root: str = "", *, model: type[BaseModel] | None = None
) -> InvalidInput:
    """The first error as an InvalidInput. With `model`, a misspelt field gets a suggestion.

    `root` stands before the path: `cluster` gives `cluster.workers[0].gpus`.
    """
    # An unknown field is often why another one is missing, so it is told first.
    first = min(err.errors(include_url=False), key=lambda error: error["type"] != "extra_forbidden")
    location, kind, context = first["loc"], first["type"], first.get("ctx", {})
    hidden = _may_be_secret(location)
    if location and location[-1] in _NOT_FIELDS:
        location = location[:-1]
    path, value = path_of(location, root), NOT_SHOWN if hidden else first["input"]
    if kind == "extra_forbidden":
        return InvalidInput(
            path, value, "is for no field we know", remedy=_nearest(model, location)
        )
    if kind == HIDDEN:
        return InvalidInput(path, NOT_SHOWN, str(first["msg"]))
    if kind == "value_error":
        return InvalidInput(path, value, str(context["error"]))
    problem, remedy = _SENTENCES.get(kind, (f"is wrong: {first['msg']}", ""))
    if kind == "missing":
        value = _NOTHING
    hint = remedy.format(**context) if context else remedy
    return InvalidInput(path, value, problem, remedy=hint or _description(model, location))


def _may_be_secret(location: Location) -> bool:
    """Whether what stands there is an environment's, also a misspelt one's; names are told."""
    return bool(location) and str(location[0]).lower().startswith("env") and location[-1] != "[key]"


def path_of(location: Location, root: str = "") -> str:
    """`("workers", 0, "gpus")` → `workers[0].gpus`, below `root`."""
    text = root
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text and not text.endswith(" ") else part
    return text.removesuffix(": ") or "input"


def spelling(name: str, known: Iterable[str]) -> str:
    """What to do about an unknown name: the nearest known one, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"Did you mean `{near[0]}`?"
    return f"Write one of: {', '.join(names)}."


def _nearest(model: type[BaseModel] | None, location: Location) -> str:
    owner = _model_at(model, location[:-1])
    return spelling(str(location[-1]), owner.model_fields) if owner else "Take it out."


def _description(model: type[BaseModel] | None, location: Location) -> str:
    owner = _model_at(model, location[:-1])
    field = owner.model_fields.get(str(location[-1])) if owner and location else None
    return f"Expected: {field.description}" if field and field.description else ""


def _model_at(model: type[BaseModel] | None, location: Location) -> type[BaseModel] | None:
    """The model that the fields at `location` belong to, if it can be told."""
    here: Any = model
    for part in location:
        if _is_model(here) and isinstance(part, str):
            field = here.model_fields.get(part)
            here = field.annotation if field else None
        else:  # an item of a list or a value of a mapping: the last type argument that isn't `...`
            here = next((arg for arg in reversed(typing.get_args(here)) if arg is not ...), None)
        here = _first(typing.get_args(here), _is_model) if _is_union(here) else here
    return here if _is_model(here) else None


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in {typing.Union, types.UnionType}


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _first(options: Iterable[Any], fits: Callable[[Any], bool]) -> Any:
    return next((option for option in options if fits(option)), None)
