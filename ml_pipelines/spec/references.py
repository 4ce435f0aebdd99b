"""Secrets by reference: what names one, and what must be one itself and is refused, unquoted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

# The kind of mistake whose value no message may show.
HIDDEN = "hidden_value"


class Words:
    """What stands in a message where a value would."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


NOT_SHOWN = Words("(not shown)")

_REFERENCE = re.compile(
    r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/(?!\.\.?$)[-._a-zA-Z0-9]{1,253}", re.ASCII
)
# What the makers of credentials begin them with, so that people find them where they are not meant.
_CREDENTIAL = re.compile(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{22}|glpat-[-\w]{20}|hf_[A-Za-z0-9]{30}"
    r"|sk-[-\w]{20}|xox[abeprs]-[-\w]{10}|ya29\.[-\w]{20}|eyJ[-\w]{10,}\.eyJ[-\w]{10,}\.)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
# Parts of a variable's name that say its value is a credential. A token must stand at the end: in
# machine learning most other tokens are words of a text.
_SECRET_NAME = re.compile(
    r"(?:PASSWORD|PASSWD)S?(?:_|$)|(?:^|_)(?:SECRETS?|CREDENTIALS?|"
    r"(?:API|PRIVATE|ACCESS)_?KEYS?)(?:_|$)|TOKEN(?:_?\d+)?$"
)
# Special tokens of a vocabulary.
_TEXT_TOKEN = re.compile(
    r"(?:^|_)(?:PAD|EOS|BOS|UNK|SEP|CLS|MASK|START|STOP|END|SPECIAL|IMAGE|PER)_TOKEN(?:_?\d+)?$"
)
# Such a variable says which one or where it is, or how it must be, and not what it is.
_ABOUT_IT = re.compile(
    r"_(?:FILE|PATH|DIR|FOLDER|URL|URI|HOST|NAME|ID|ARN|TYPE|MODE|PROVIDER|LENGTH|TTL|EXPIRY|"
    r"ENABLED|REQUIRED|REGION|BACKEND|HEADER|COLUMN|VERSION|HELPER|OVERRIDE)S?$"
)
_FILES_OF_CREDENTIALS = frozenset({"GOOGLE_APPLICATION_CREDENTIALS"})
_WORDS_BEGIN = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NO_SECRET = re.compile(r"|true|false|yes|no|on|off|none|null|auto|empty|dummy|[01]", re.IGNORECASE)
# A token of a service, and no word of a text and no number: of one piece, and more than letters.
_LIKE_A_TOKEN = re.compile(r"(?!\d[\d_]*(?:\.\d+)?(?:e\d+)?$)(?=.*\d)[-\w.~+/=:]+|\w{20,}")


def _reference(value: object) -> str:
    if not isinstance(value, str) or not _REFERENCE.fullmatch(value):
        raise PydanticCustomError(
            HIDDEN,
            "names no key of a Secret; write `secret-name/key`, and put the value itself into that "
            "Secret, never into a job",
        )
    return value


def is_credential(value: str) -> bool:
    """Whether it is a credential by its looks."""
    return _CREDENTIAL.search(value) is not None


def gives_secret(name: str, value: str) -> bool:
    """Whether a variable of that name and value is a credential by its name."""
    parts = _WORDS_BEGIN.sub("_", name).upper()
    if parts in _FILES_OF_CREDENTIALS or _ABOUT_IT.search(parts) or _TEXT_TOKEN.search(parts):
        return False
    found = _SECRET_NAME.search(parts)
    if found is None or _NO_SECRET.fullmatch(value):
        return False
    return not found[0].startswith("TOKEN") or _LIKE_A_TOKEN.fullmatch(value) is not None


def not_a_credential(value: str) -> str:
    """`value`, unless it is a credential by its looks: everyone who sees the job would have it."""
    if is_credential(value):
        raise PydanticCustomError(
            HIDDEN,
            "looks like a credential, and everyone who may see the job could read it; put it into "
            "a Secret and name that under `secrets`",
        )
    return value


def check_names(env: Mapping[str, str]) -> None:
    """Refuse plain variables that are credentials by their names."""
    for name in sorted(name for name, value in env.items() if gives_secret(name, value)):
        raise PydanticCustomError(
            HIDDEN,
            "gives {name} itself, and everyone who may see the job could read it; put it into a "
            "Secret and name that under `secrets` (`--secret {name}=secret-name/key`)",
            {"name": name},
        )


SecretKey = Annotated[str, BeforeValidator(_reference)]
