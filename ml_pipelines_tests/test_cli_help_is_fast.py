"""`--help` of everything: quick, complete, and without the heavy packages."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from ml_pipelines.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator
from pathlib import Path

HEAVY = {"dagster", "ray", "torch", "pyarrow", "pandas", "numpy", "pydantic", "obstore", "requests"}

PROBE = """
import json, sys
from ml_pipelines.cli.main import main
try:
    main(sys.argv[1:], prog_name="mlp")
except SystemExit:
    pass
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})), file=sys.stderr)
"""


def commands(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command and group."""
    yield path
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("words", list(commands()), ids=lambda words: " ".join(words) or "mlp")
def test_help_imports_nothing_heavy(words):
    """A fresh interpreter that shows any help has imported none of the heavy packages."""
    shown = subprocess.run(
        [sys.executable, "-c", PROBE, *words, "--help"], capture_output=True, text=True, check=True
    )
    assert "Usage: mlp" in shown.stdout
    assert set(json.loads(shown.stderr.splitlines()[-1])) & HEAVY == set()


def test_help_takes_less_than_0_3_s() -> None:
    """A fresh `mlp --help` needs less than 0.3 s: of CPU, which a busy machine does not spoil."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "ml_pipelines.cli", "--help"]
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(5)) < 0.3


@pytest.mark.parametrize("words", list(commands()), ids=lambda words: " ".join(words) or "mlp")
def test_every_option_is_explained(words):
    """Every command says what it does, and every option has a help text."""
    command: click.Command = main
    for word in words:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    assert command.help
    unexplained = [
        param.name for param in command.params if isinstance(param, click.Option) and not param.help
    ]
    assert unexplained == []


def test_exit_codes_are_documented():
    """`mlp --help` lists every exit code that a command can end with."""
    shown = subprocess.run(
        [sys.executable, "-m", "ml_pipelines.cli", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    codes = [line.split()[0] for line in shown.partition("Exit codes:")[2].splitlines()[1:] if line]
    assert [code for code in codes if code.isdigit()] == ["0", "1", "2", "3", "4", "5", "130"]


@pytest.mark.parametrize("words", [words for words in commands() if words], ids=" ".join)
def test_the_readme_names_every_command(words: tuple[str, ...]) -> None:
    """No command is missing from the README: on a line of its group."""
    readme = Path(__file__).parents[1] / "README.md"
    lines = [line for line in readme.read_text().splitlines() if f"mlp {words[0]}" in line]
    assert any(words[-1] in line.split() for line in lines)
