"""Every setting has its default, and its variable wins over it."""

from __future__ import annotations

import getpass
import re
from pathlib import Path

from ml_pipelines import settings


def test_everything_lies_in_our_folder(tmp_path):
    """With MLP_HOME alone, the lake and run storage are folders in it."""
    found = settings.load({"MLP_HOME": str(tmp_path), "USER": "ann"})
    assert found.home == tmp_path
    assert found.lake == f"file://{tmp_path}/lake"
    assert found.runs == f"file://{tmp_path}/runs"
    assert found.local_state == tmp_path / "local"
    assert (found.backend, found.owner, found.team) == ("local", "ann", "")
    assert found.pools is None


def test_variables_win(tmp_path):
    """Each variable takes the place of its default; a URL loses its last slash."""
    found = settings.load(
        {
            "MLP_HOME": str(tmp_path),
            "MLP_LAKE": "s3://lake/",
            "MLP_RUNS": "gs://runs",
            "MLP_POOLS": "~/pools.yaml",
            "MLP_OWNER": "team-bot",
            "MLP_TEAM": "ads",
            "USER": "ann",
        }
    )
    assert (found.lake, found.runs) == ("s3://lake", "gs://runs")
    assert found.pools == Path.home() / "pools.yaml"
    assert (found.owner, found.team) == ("team-bot", "ads")


def test_empty_variables_are_as_good_as_none(tmp_path):
    """A variable set to nothing means its default."""
    found = settings.load({"MLP_HOME": str(tmp_path), "MLP_LAKE": "", "MLP_POOLS": "", "USER": ""})
    assert found.lake == f"file://{tmp_path}/lake"
    assert found.pools is None
    assert found.owner == getpass.getuser()


def test_nearest_folder_of_ours(tmp_path):
    """Anywhere below a folder with `.mlp`, that is ours."""
    (tmp_path / ".mlp").mkdir()
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert settings.load({}, cwd=below).home == tmp_path / ".mlp"


def test_no_folder_of_ours(tmp_path):
    """Where there is none, ours is in the user's home."""
    assert settings.load({}, cwd=tmp_path).home == Path.home() / ".ml_pipelines"


def test_relative_home_is_made_absolute(tmp_path, monkeypatch):
    """A job started elsewhere still finds what a relative MLP_HOME meant."""
    monkeypatch.chdir(tmp_path)
    assert settings.load({"MLP_HOME": "here"}).home == tmp_path / "here"


def test_every_variable_read_is_described():
    """The description of `load` names each variable that it reads."""
    source = Path(settings.__file__).read_text(encoding="utf-8")
    read = set(re.findall(r'env(?:\.get\(|\[)"(MLP_\w+)"', source))
    read |= {settings.LAKE_VARIABLE, settings.RUNS_VARIABLE}
    described = set(re.findall(r"MLP_[A-Z_]+", settings.load.__doc__ or ""))
    assert read <= described
