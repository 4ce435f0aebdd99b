"""Packs the user's folder, named by its content's hash, into run storage once."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ml_pipelines.errors import DoesNotFit, InvalidInput
from ml_pipelines.spec.job import Code

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ml_pipelines.storage import Store

# What no job needs. A pattern is matched with each file's and folder's name and with its path
# below the packed folder.
LEFT_OUT = (
    ".git", ".hg", ".svn", ".venv", "venv", "node_modules",
    "__pycache__", "*.pyc", "*.egg-info", ".pytest_cache", ".mypy_cache", ".ruff_cache",
    ".hypothesis", ".ipynb_checkpoints", ".mlp", ".tmp_dagster_home_*", ".DS_Store", ".#*",
)  # fmt: skip
LARGEST_FOLDER = 200 * 2**20

# Ray takes a single top folder away when it unpacks.
_TOP = "code"
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class _File:
    name: str  # relative, with `/`
    path: Path
    size: int
    executable: bool


def pack(
    folder: Path, store: Store, *, exclude: Sequence[str] = (), largest: int = LARGEST_FOLDER
) -> Code:
    """Put `folder` into run storage as `code/<sha256>.zip`, unless it is there already.

    The hash is over names, contents and which files are executable, so the same files give the
    same name on any machine. `exclude` adds patterns to LEFT_OUT; `largest` is in bytes. Raises
    InvalidInput about a folder that can't travel, DoesNotFit about one too large.
    """
    files = sorted(_files(folder, (*LEFT_OUT, *exclude)), key=lambda file: file.name)
    if not files:
        raise InvalidInput(
            "code", str(folder), "holds no files to pack", remedy="Name the folder of your code."
        )
    _check_size(folder, files, largest)
    with tempfile.TemporaryDirectory(prefix="mlp-pack-") as temporary:
        archive = Path(temporary) / "code.zip"
        digest = _zip(files, archive)
        path = f"code/{digest}.zip"
        # Its name is its content: whoever was faster has put the same.
        if not store.exists(path):
            store.put_file(path, archive)
    return Code(url=store.child_url(path), sha256=digest)


def _files(folder: Path, left_out: Sequence[str]) -> Iterator[_File]:
    if not folder.is_dir():
        raise InvalidInput("code", str(folder), "is no folder", remedy="Name one that exists.")
    for parent, folders, names in os.walk(folder, onerror=_unreadable):
        below = Path(parent)
        kept = [name for name in folders if not _matches(below / name, folder, left_out)]
        for name in kept:
            if (below / name).is_symlink():
                raise _stays_here(below / name, "is a link to a folder, which may lie anywhere")
        folders[:] = kept
        for name in names:
            path = below / name
            if not _matches(path, folder, left_out):
                yield from _file(path, folder)


def _file(path: Path, folder: Path) -> Iterator[_File]:
    name = path.relative_to(folder).as_posix()
    try:
        name.encode()
        status = path.stat()
    except UnicodeEncodeError:
        raise _stays_here(path, "has a name that is no UTF-8") from None
    except OSError as error:
        raise _stays_here(path, f"can't be read ({error.strerror})") from error
    if stat.S_ISREG(status.st_mode):  # sockets and pipes hold nothing that could travel
        yield _File(name, path, status.st_size, bool(status.st_mode & stat.S_IXUSR))


def _zip(files: Sequence[_File], archive: Path) -> str:
    """Write the archive and return the hash of what was read, in one pass over the files."""
    content = hashlib.sha256()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target:
        for file in files:
            try:
                data = file.path.read_bytes()
            except OSError as error:
                raise _stays_here(file.path, f"can't be read ({error.strerror})") from error
            mode = 0o755 if file.executable else 0o644
            entry = zipfile.ZipInfo(f"{_TOP}/{file.name}", _LONG_AGO)
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(entry, data)
            header = f"{file.name}\0{mode:o}\0{len(data)}\0"
            content.update(header.encode())
            content.update(data)
    return content.hexdigest()


def _check_size(folder: Path, files: Sequence[_File], largest: int) -> None:
    total = sum(file.size for file in files)
    if total <= largest:
        return
    top = sorted(files, key=lambda file: file.size, reverse=True)[:3]
    names = ", ".join(f"{file.name} ({_mib(file.size)})" for file in top)
    raise DoesNotFit(
        "code",
        str(folder),
        f"holds {_mib(total)}, more than the {_mib(largest)} that travel with a job",
        remedy=f"Exclude what the job doesn't need; the largest files are {names}.",
    )


def _matches(path: Path, folder: Path, patterns: Sequence[str]) -> bool:
    relative = path.relative_to(folder).as_posix()
    return any(
        fnmatch.fnmatchcase(path.name, pattern)
        or fnmatch.fnmatchcase(relative, pattern.rstrip("/"))
        for pattern in patterns
    )


def _unreadable(error: OSError) -> None:
    raise _stays_here(Path(error.filename), f"can't be read ({error.strerror})") from error


def _stays_here(path: Path, problem: str) -> InvalidInput:
    return InvalidInput("code", str(path), problem, remedy="Exclude it, or put a plain one there.")


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
