"""`mlp data import|synth|ls`: real and generated impressions, and what lies in the lake."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml_pipelines.storage import Lake, open_store
from ml_pipelines_tests.fake_lifecycle import Mlp


@pytest.fixture
def mlp(tmp_path: Path) -> Mlp:
    """The command line over an empty lake."""
    return Mlp(tmp_path / "home")


@pytest.fixture
def lake(mlp: Mlp) -> Lake:
    """The same lake."""
    return Lake(open_store(mlp.settings.lake))


def test_import(mlp: Mlp, lake: Lake) -> None:
    """The Open Bandit data become seven daily partitions of 60,000 rows."""
    result = mlp("data", "import")
    assert result.exit_code == 0
    days = lake.days("impressions")
    assert list(days) == [f"2019-11-{day}" for day in range(24, 31)]
    assert sum(lake.partition("impressions", day).rows for day in days) == 60_000
    assert len(result.stdout.splitlines()) == 7


def test_import_says_what_it_replaces(mlp: Mlp) -> None:
    """Days that held other data are told apart from those that stay as they were."""
    mlp("data", "synth", "--days", "1", "--rows", "100")
    changed, *new = mlp("data", "import").stdout.splitlines()
    assert changed.endswith("  replaced other data")
    assert not any("replaced" in line for line in new)
    assert all(line.endswith("unchanged") for line in mlp("data", "import").stdout.splitlines())


def test_synth_is_a_function_of_its_options(mlp: Mlp, lake: Lake) -> None:
    """The same options give the same data version, another seed gives another."""
    words = ("data", "synth", "--days", "2", "--rows", "500", "--start", "2026-03-01")
    assert mlp(*words).exit_code == 0
    first = lake.days("impressions")
    mlp(*words)
    assert lake.days("impressions") == first
    mlp(*words, "--seed", "1")
    assert list(lake.days("impressions")) == ["2026-03-01", "2026-03-02"]
    assert lake.days("impressions") != first


def test_ls_of_an_empty_lake(mlp: Mlp) -> None:
    """An empty lake says where it is and how to fill it."""
    result = mlp("data", "ls")
    assert result.stdout == f"The lake {mlp.settings.lake} is empty. Fill it: mlp data import\n"


def test_ls(mlp: Mlp) -> None:
    """Without a name each data set has a line, with one each of its days."""
    mlp("data", "synth", "--days", "3", "--rows", "1000")
    assert mlp("data", "ls").stdout.splitlines()[1].split() == [
        "impressions", "3", "2019-11-24", "2019-11-26",
    ]  # fmt: skip
    lines = [line.split() for line in mlp("data", "ls", "impressions").stdout.splitlines()]
    assert lines[1][:3] == ["2019-11-24", "1,000", "1"]
    assert len(lines) == 4


def test_ls_shows_what_is_unusable(mlp: Mlp, lake: Lake) -> None:
    """A half-written day is listed with what is wrong and what to do."""
    mlp("data", "synth", "--days", "1", "--rows", "100")
    lake.store.put("impressions/dt=2019-11-25/part.parquet", b"half")
    assert "1 and 1 unusable" in mlp("data", "ls").stdout
    shown = mlp("data", "ls", "impressions")
    assert shown.exit_code == 0
    assert "2019-11-25  -     -      is half-written" in shown.stdout
    assert "Write the day again" in shown.stdout


def test_ls_finds_data_sets_in_folders(mlp: Mlp, lake: Lake) -> None:
    """A data set's name may hold folders."""
    lake.store.put("ads/features/dt=2019-11-25/part.parquet", b"half")
    assert mlp("data", "ls").stdout.splitlines()[1].split()[0] == "ads/features"


def test_ls_of_another_name(mlp: Mlp) -> None:
    """An unknown data set is refused with those that exist."""
    mlp("data", "synth", "--days", "1", "--rows", "100")
    result = mlp("data", "ls", "impresions")
    assert result.exit_code == 2
    assert "which holds impressions" in result.stderr
