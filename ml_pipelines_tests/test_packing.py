"""The user's folder travels once, named by its content, and without what no job needs."""

from __future__ import annotations

import os
import socket
import zipfile
from pathlib import Path

import pytest

from ml_pipelines.errors import DoesNotFit, InvalidInput
from ml_pipelines.packing import pack
from ml_pipelines.storage import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"file://{tmp_path}/runs")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as users have them: code, a package, a script."""
    return written(
        tmp_path / "project",
        {"train.py": "print(1)\n", "package/__init__.py": "", "run.sh": "#!/bin/sh\n"},
    )


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if (script := folder / "run.sh").exists():
        script.chmod(0o755)
    return folder


def archive(url: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(url.removeprefix("file://"))


def names(url: str) -> list[str]:
    with archive(url) as packed:
        return packed.namelist()


def test_a_folder_becomes_one_archive(folder, store):
    """The archive is named by the hash and holds the files below a single folder, as Ray wants."""
    code = pack(folder, store)
    assert code.url == store.child_url(f"code/{code.sha256}.zip")
    assert names(code.url) == ["code/package/__init__.py", "code/run.sh", "code/train.py"]
    with archive(code.url) as packed:
        assert packed.read("code/train.py") == b"print(1)\n"


def test_ray_unpacks_what_was_packed(folder, store, tmp_path):
    """Ray's own unpacking gives the folder back, its scripts executable."""
    from ray._private.runtime_env.packaging import unzip_package

    url = pack(folder, store).url
    target = tmp_path / "unpacked"
    unzip_package(
        url.removeprefix("file://"), str(target), remove_top_level_directory=True, unlink_zip=False
    )
    found = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert found == {"train.py", "package/__init__.py", "run.sh"}
    assert os.access(target / "run.sh", os.X_OK)


def test_same_files_same_name(folder, store, tmp_path):
    """Neither place nor time of the files is part of their name."""
    elsewhere = written(
        tmp_path / "elsewhere",
        {"run.sh": "#!/bin/sh\n", "package/__init__.py": "", "train.py": "print(1)\n"},
    )
    os.utime(elsewhere / "train.py", (0, 0))
    assert pack(folder, store) == pack(elsewhere, store)
    assert len(store.list("code/")) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "train.py").write_text("print(2)\n"),
        lambda folder: (folder / "train.py").rename(folder / "other.py"),
        lambda folder: (folder / "train.py").chmod(0o755),
        lambda folder: (folder / "new.py").write_text(""),
    ],
    ids=["content", "name", "executable", "new file"],
)
def test_any_change_changes_the_name(folder, store, change):
    """What a job runs is told apart by the name of its code."""
    before = pack(folder, store)
    change(folder)
    assert pack(folder, store) != before


def test_packed_once(folder, store):
    """An archive that is there already is not written again."""
    code = pack(folder, store)
    path = Path(code.url.removeprefix("file://"))
    path.write_bytes(b"as it was")
    assert pack(folder, store) == code
    assert path.read_bytes() == b"as it was"


@pytest.mark.parametrize(
    "name",
    [
        ".git/config", ".venv/bin/python", "package/__pycache__/x.pyc", "node_modules/a.js",
        ".mlp/runs/x", "my.egg-info/PKG-INFO", "package/x.pyc",
    ],
)  # fmt: skip
def test_what_no_job_needs_stays(folder, store, name):
    """Histories, environments, caches and our own folder do not travel."""
    before = pack(folder, store)
    written(folder, {name: "x"})
    assert pack(folder, store) == before


@pytest.mark.parametrize("pattern", ["data", "data/", "data/*", "*.csv", "data/big.csv"])
def test_excluded_by_pattern(folder, store, pattern):
    """A pattern names files or folders, by their name or their path."""
    before = pack(folder, store)
    written(folder, {"data/big.csv": "x"})
    assert pack(folder, store) != before
    assert pack(folder, store, exclude=[pattern]) == before


def test_too_large_names_the_culprits(folder, store):
    """A folder too large is refused with its size, the limit and its largest files."""
    written(folder, {"model.bin": "x" * 3 * 2**20})
    with pytest.raises(DoesNotFit) as caught:
        pack(folder, store, largest=2**20)
    assert "holds 3.0 MiB, more than the 1.0 MiB that travel with a job" in str(caught.value)
    assert "the largest files are model.bin (3.0 MiB), run.sh (0.0 MiB)" in str(caught.value)
    assert store.list("code/") == []


def test_no_folder(store, tmp_path):
    """A folder that isn't there is named."""
    with pytest.raises(InvalidInput, match="absent' is no folder"):
        pack(tmp_path / "absent", store)


def test_empty_folder(store, tmp_path):
    """A folder with nothing to run is refused."""
    with pytest.raises(InvalidInput, match="holds no files"):
        pack(written(tmp_path / "empty", {".git/config": ""}), store)


def test_linked_file_travels_as_a_file(folder, store, tmp_path):
    """A link to a file brings what it points to."""
    (tmp_path / "shared.py").write_text("shared")
    (folder / "linked.py").symlink_to(tmp_path / "shared.py")
    with archive(pack(folder, store).url) as packed:
        assert packed.read("code/linked.py") == b"shared"


@pytest.mark.parametrize(
    ("target", "problem"),
    [("..", "is a link to a folder"), ("nowhere", r"can't be read \(No such file")],
    ids=["folder", "dangling"],
)
def test_other_links_are_refused_or_excluded(folder, store, target, problem):
    """A link that can't travel is refused by its name, and excluding it helps."""
    (folder / "link").symlink_to(target)
    with pytest.raises(InvalidInput, match=f"link' {problem}"):
        pack(folder, store)
    pack(folder, store, exclude=["link"])


def test_sockets_are_passed_over(folder, store, monkeypatch):
    """What holds no content doesn't stop the rest."""
    before = pack(folder, store)
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("editor.sock")
        assert pack(folder, store) == before
