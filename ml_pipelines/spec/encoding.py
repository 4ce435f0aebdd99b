"""How text reaches the driver unchanged: through a shell, two YAMLs and Kubernetes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

# Words that a shell takes for its own when they stand first and unquoted.
_SHELL_WORDS = frozenset({
    "case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in",
    "select", "then", "time", "until", "while",
})  # fmt: skip
# What may stand raw between double quotes in YAML 1.1 and 1.2 alike. Left out: line breaks that
# only 1.1 knows (U+0085, U+2028, U+2029), the byte-order mark, and what no YAML may hold.
_NOT_IN_YAML = re.compile(
    "[^\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
# Text that every YAML reads as text, even without quotes.
_PLAIN = re.compile(r"[A-Za-z][-A-Za-z0-9_./]*(?: [-A-Za-z0-9_./]+)*")
# Lines that may stand as they are below a `|`.
_BLOCK = re.compile(r"(?! )[\x20-\x7e]+(?:\n[\x20-\x7e]+)+\n?")
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def shell_line(argv: Sequence[str]) -> str:
    """One line that a POSIX shell turns back into exactly `argv`; Ray starts drivers by a shell."""
    program = shlex.quote(argv[0])
    if program == argv[0] and ("=" in program or program in _SHELL_WORDS):
        program = f"'{program}'"
    return " ".join([program, *(shlex.quote(argument) for argument in argv[1:])])


def json_in_yaml(value: Mapping[str, Any]) -> str:
    """JSON that is YAML 1.1 and 1.2 at once, so every reader finds the same strings."""
    text = json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False)
    return _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def container_env(env: Mapping[str, str]) -> list[dict[str, str]]:
    """A container's `env`. Kubernetes reads `$$` as `$` and `$(X)` as a reference."""
    return [{"name": name, "value": value.replace("$", "$$")} for name, value in env.items()]


def dump_yaml(value: Mapping[str, Any]) -> str:
    """Deterministic YAML in the given order, the same to YAML 1.1, 1.2 and Go's readers."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=float("inf"))


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # the base class's signature
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML leaves `1e-05` bare, which other readers take for a number: so quote when in doubt.
    plain = _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS
    block = _BLOCK.fullmatch(text) and " \n" not in text
    style = "|" if block else None if plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
