"""Secrets by reference: what names one, and what must be one itself and is refused, unquoted."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

# The kind of mistake whose value no message may show.
HIDDEN = "hidden_value"

_REFERENCE = re.compile(
    r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/(?!\.\.?$)[-._a-zA-Z0-9]{1,253}", re.ASCII
)
# What the makers of credentials begin them with, so that people find them where they are not meant.
_CREDENTIAL = re.compile(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{22}|glpat-[-\w]{20}|hf_[A-Za-z0-9]{30}"
    r"|sk-[-\w]{20}|xox[abeprs]-[-\w]{10}|ya29\.[-\w]{20}|eyJ[-\w]{10,}\.eyJ[-\w]{10,}\.)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_CREDENTIAL_NAMES = frozenset({"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"})


def _reference(value: object) -> str:
    if not isinstance(value, str) or not _REFERENCE.fullmatch(value):
        raise PydanticCustomError(
            HIDDEN,
            "names no key of a Secret; write `secret-name/key`, and put the value itself into that "
            "Secret, never into a job",
        )
    return value


def not_a_credential(value: str) -> str:
    """`value`, unless it is a credential by its looks: everyone who sees the job would have it."""
    if _CREDENTIAL.search(value):
        raise PydanticCustomError(
            HIDDEN,
            "looks like a credential, and everyone who may see the job could read it; put it into "
            "a Secret and name that under `secrets`",
        )
    return value


def check_names(names: dict[str, str]) -> None:
    """Refuse plain variables that are credentials by their names."""
    for name in sorted(_CREDENTIAL_NAMES & names.keys()):
        raise PydanticCustomError(
            HIDDEN,
            "gives {name} itself; put it into a Secret and name that under `secrets`",
            {"name": name},
        )


SecretKey = Annotated[str, BeforeValidator(_reference)]
