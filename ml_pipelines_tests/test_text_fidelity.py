"""Arguments and environment reach the driver byte for byte, whatever lies between."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest
import yaml
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from ml_pipelines.spec.encoding import container_env, dump_yaml, json_in_yaml, shell_line
from ml_pipelines.spec.job import EnvValue

ENV_VALUE: TypeAdapter[str] = TypeAdapter(EnvValue)
AWKWARD = (
    "1E-5", "1e-05", "on", "NO", "y", "10:30", "0123", "0o17", "null", "~", "2024-01-01", "",
    "a: b", "- x", "#x", "'", '"', "\\", "\\u0041", "a\tb", "a\nb\n", " x ", "{}", "[", "*a", "&a",
    "!!int 3", "%", "`id`", "$(id)", "$$", "a;b && c", "é", "😀", "\x85", "\u2028", "\ufeff", "\x7f",
    "=", "1_000", "0x1f", ".inf", "<<", "---", "...", "?", "|", ">", "\r\n",
)  # fmt: skip
process_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
awkward_text = st.one_of(st.sampled_from(AWKWARD), process_text)


def ray_sets(value: str) -> str:
    """What Ray makes of a value of `env_vars` (its `update_envs`)."""
    return re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))


def kubernetes_sets(value: str) -> str:
    """What the kubelet makes of a container's environment value: `$$` is `$`, `$(X)` a reference."""
    return re.sub(r"\$(\$|\([^)]*\))", lambda found: "$" if found[1] == "$" else "expanded", value)


@pytest.mark.parametrize("value", AWKWARD, ids=repr)
def test_awkward_values_survive_yaml(value):
    """Case A5: what looks like a number, a date or a truth value arrives as the text it was."""
    text = json_in_yaml({"env_vars": {"A": value}})
    assert yaml.safe_load(text) == {"env_vars": {"A": value}}  # YAML 1.1
    assert json.loads(text) == {"env_vars": {"A": value}}  # JSON, and so YAML 1.2


@given(st.dictionaries(process_text, awkward_text, max_size=5))
def test_any_text_survives_yaml(env):
    """Case A5: any text at all is the same to a YAML 1.1 reader and to a JSON reader."""
    text = json_in_yaml(env)
    assert yaml.safe_load(text) == json.loads(text) == env


@given(
    st.recursive(awkward_text, lambda inner: st.lists(inner) | st.dictionaries(process_text, inner))
)
@example({"a": {"b": "x"}, "c": ["x", "x"]})
def test_printed_manifest_is_the_manifest(value):
    """What `--dry-run` prints reads back as what would have been created."""
    assert yaml.safe_load(dump_yaml({"value": value})) == {"value": value}


@pytest.mark.parametrize("value", ["1e-05", "1E5", "0o17", "1_0", "on", "Null", "~", "12:30:45"])
def test_printed_text_is_quoted_for_every_reader(value):
    """Case A5: text that some YAML reader takes for something else is printed in quotes."""
    assert dump_yaml({"value": value}) == f'value: "{value}"\n'


def test_the_reported_entrypoint():
    """Case A10: operators, quotes, backticks and brackets are one argument list, not a script."""
    argv = ["echo", "a && python x.py", "--q", "SELECT `t`; $X [1]", "--j", '{"a": "b c"}']
    assert _arguments_seen_by_a_shell(argv[1:]) == argv[1:]


@settings(deadline=None, max_examples=40)
@given(st.lists(awkward_text, min_size=1, max_size=8))
def test_shell_gives_the_arguments_back(arguments):
    """Case A10: the shell that Ray starts the driver with sees exactly the arguments given."""
    assert _arguments_seen_by_a_shell(arguments) == arguments


@pytest.mark.parametrize("program", ["if", "while", "A=1", "my tool", "a;b", "~/x"])
def test_program_is_never_syntax(tmp_path, program):
    """A program with a name that a shell takes for syntax is looked up as a program."""
    command = ["/bin/sh", "-c", shell_line([program])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert "not found" in done.stderr or "No such file" in done.stderr


@given(awkward_text)
def test_environment_arrives_or_is_refused(value):
    """Case A11: what is accepted for the environment arrives as it is, both ways it travels."""
    try:
        accepted = ENV_VALUE.validate_python(value)
    except ValidationError:
        assume(False)
    assert ray_sets(accepted) == value
    (entry,) = container_env({"A": accepted})
    assert kubernetes_sets(entry["value"]) == value


@pytest.mark.parametrize("value", ["a$HOME", "${PATH}:/x", "${not there}", "p$$w", "${}"])
def test_what_ray_would_replace_is_refused(value):
    """Case A11: Ray can't be kept from replacing a reference, so it is refused, not altered."""
    with pytest.raises(ValidationError, match="which Ray would replace"):
        ENV_VALUE.validate_python(value)


@pytest.mark.parametrize("value", ["$", "a$ b", "$$", "$(id)", "p`id`", "100%", "$-", "a${b"])
def test_other_dollars_are_welcome(value):
    """Case A11: a dollar that refers to nothing is just a dollar."""
    assert ENV_VALUE.validate_python(value) == value


def _arguments_seen_by_a_shell(arguments: list[str]) -> list[str]:
    line = shell_line(["printf", "%s\\0", *arguments])
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]
