"""The README speaks of what there is: commands, settings, files, and what they say of themselves."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import click
import pytest

from ml_pipelines import settings
from ml_pipelines.cli.main import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def commands(group: click.Group, path: str = "mlp") -> dict[str, click.Command]:
    """Every command below a group, by what is typed."""
    found: dict[str, click.Command] = {}
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            found |= commands(command, f"{path} {name}")
        else:
            found[f"{path} {name}"] = command
    return found


def typed() -> set[str]:
    """The commands of mlp as the README writes them; `a | b` are two."""
    found = set()
    for group, verbs in re.findall(r"mlp (job|data) ([a-z]+(?: \| [a-z]+)*)", README):
        found |= {f"mlp {group} {verb}" for verb in verbs.split(" | ")}
    return found | set(re.findall(r"mlp doctor", README))


def tree() -> dict[str, str]:
    """What stands in the tree below `ml_pipelines/`: name and sentence."""
    block = README.split("```\nml_pipelines/", 1)[1].split("```", 1)[0]
    return dict(re.findall(r"^  (\S+)\s+(\S.*)$", block, re.MULTILINE))


def test_every_command_of_mlp_is_named_and_exists() -> None:
    """None is missing, and none is promised that isn't there."""
    assert typed() == set(commands(main))


@pytest.mark.parametrize("line", re.findall(r"^mlp job submit .*$", README, re.MULTILINE))
def test_options_of_submit_exist(line: str) -> None:
    """What the README types before `--` is taken by the command."""
    options = {name for each in commands(main)["mlp job submit"].params for name in each.opts}
    assert set(re.findall(r"--[a-z-]+", line.split(" -- ", maxsplit=1)[0])) <= options


def test_make_targets_exist() -> None:
    """Each `make NAME` is a target, each `make NAME X=…` a variable of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE))
    assert {"run", "dev", "test"} <= named <= targets
    variables = set(re.findall(r"\$\(([A-Z]+)\)", MAKEFILE))
    assert {"DATA"} <= set(re.findall(r"make [a-z]+ ([A-Z]+)=", README)) <= variables


def test_every_setting_is_described() -> None:
    """The table holds the variables that `settings.load` documents, and no others."""
    table = README.split("## Settings", 1)[1].split("##", 1)[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = set(re.findall(r"MLP_[A-Z_]+", settings.load.__doc__ or ""))
    assert set(re.findall(r"MLP_[A-Z_]+", " ".join(rows))) == documented


def test_the_tree_is_the_package() -> None:
    """Every room and every module beside them has a line; the clock alone needs none."""
    package = ROOT / "ml_pipelines"
    rooms = {f"{each.parent.name}/" for each in package.glob("*/__init__.py")}
    modules = {each.name for each in package.glob("*.py")} - {"__init__.py", "clock.py"}
    assert set(tree()) == rooms | modules


@pytest.mark.parametrize("name", [name for name in tree() if name.endswith(".py")])
def test_a_module_says_what_the_tree_says(name: str) -> None:
    """Its line is the first one of its docstring."""
    doc = ast.get_docstring(ast.parse((ROOT / "ml_pipelines" / name).read_text())) or ""
    first = doc.splitlines()[0].removesuffix(".")
    assert tree()[name] == first[:1].lower() + first[1:]


@pytest.mark.parametrize("module", re.findall(r"python -m\s+([\w.]+)", README))
def test_modules_to_run_exist(module: str) -> None:
    """What the README runs by `python -m` can be found."""
    assert module.startswith("ml_pipelines.")
    assert importlib.util.find_spec(module) is not None


def test_how_long_an_idle_head_stays() -> None:
    """The seconds that the README tells are the ones that hold."""
    assert f"after {settings.IDLE_HEAD_S:.0f} s" in README
