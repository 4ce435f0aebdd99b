"""Bad input at the command line: one clear sentence, exit code 2, nothing created."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ml_pipelines.errors import StorageDenied
from ml_pipelines_tests.fake_lifecycle import Mlp

if TYPE_CHECKING:
    from pathlib import Path

RUN = ("--", "python", "train.py")

BAD = {
    "no command": ([], "Missing argument '-- COMMAND...'"),
    "unknown option": (["--wrkers", "2", *RUN], "No such option '--wrkers'"),
    "secret without a variable": (["--secret", "hf/token", *RUN], "--secret: '(not shown)' names"),
    "secret itself": (["--secret", "A=s3cret", *RUN], "--secret: (not shown) names no key of a S"),
    "secret and plain": (
        ["--secret", "A=hf/token", "--env", "A=1", *RUN],
        "--secret: {'A': 'hf/token'} gives A, which env gives too",
    ),
    "memory unit": (["--memory", "256GB", *RUN], "--memory: '256GB' is no quantity"),
    "negative memory": (["--memory", "-1", *RUN], "--memory: '-1' is no quantity"),
    "NaN": (["--cpu", "NaN", *RUN], "--cpu: 'NaN' is no quantity"),
    "zero CPUs": (["--cpu", "0", *RUN], "--cpu: '0' must be more than zero"),
    "zero workers": (["--workers", "0", *RUN], "--workers: 0 "),
    "workers no number": (["--workers", "two", *RUN], "'two' is not a valid integer"),
    "too many GPUs": (["--pool", "gpu", "--gpus", "99", *RUN], "--gpus: 99 "),
    "GPUs on a CPU pool": (["--gpus", "1", *RUN], "--gpus: 1 is asked of pool `cpu`"),
    "misspelt pool": (["--pool", "gpus", *RUN], "--pool: 'gpus' is no pool"),
    "more than the pool has": (["--cpu", "99", *RUN], "--cpu: '99' is more than a machine of pool"),
    "env without value": (["--env", "A", *RUN], "--env: '(not shown)' has no value"),
    "env name": (["--env", "a-b=1", *RUN], "--env: "),
    "reserved env": (["--env", "MLP_RUN_KEY=x", *RUN], "--env: "),
    "empty name": (["--name", "", *RUN], "--name: '' is too short"),
    "duration": (["--limit-run", "2 hours", *RUN], "--limit-run: '2 hours' is no duration"),
    "empty duration": (["--limit-run", "", *RUN], "--limit-run: '' is no duration"),
    "zero duration": (["--limit-run", "0s", *RUN], "--limit-run: 0 "),
    "script missing": (["--", "python", "trian.py"], "COMMAND: 'trian.py' is no file in"),
    "script is a folder": (["--", "python", "shop"], "COMMAND: 'shop' is no file in"),
    "script outside": (["--", "python", "../out.py"], "COMMAND: '../out.py' is no file in"),
    "absolute script": (["--", "python", "/etc/x.py"], "COMMAND: '/etc/x.py' is absolute"),
    "folder repeated": (["--", "python", "work/train.py"], "inside work: write `train.py`"),
    "module missing": (["--", "python", "-m", "nosuch.mod"], "COMMAND: 'nosuch.mod' is neither"),
    "submodule missing": (["--", "python", "-m", "shop.tran"], "COMMAND: 'shop.tran' is no module"),
    "program missing": (["--", "nosuchprogram"], "COMMAND: 'nosuchprogram' is no program on PATH"),
    "own program missing": (["--", "./run.sh"], "COMMAND: './run.sh' is no file in"),
    "no such folder": (["--folder", "nosuch", *RUN], "Directory 'nosuch' does not exist"),
}


@pytest.fixture
def mlp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mlp:
    """The command line in a working folder `work`."""
    work = tmp_path / "work"
    (work / "shop").mkdir(parents=True)
    (work / "train.py").touch()
    (work / "shop" / "__init__.py").touch()
    (tmp_path / "out.py").touch()
    monkeypatch.chdir(work)
    return Mlp(tmp_path / "home")


@pytest.mark.parametrize(("words", "sentence"), BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("dry_run", [False, True], ids=["submit", "dry-run"])
def test_bad_submission(mlp: Mlp, words: list[str], sentence: str, *, dry_run: bool) -> None:
    """Each is refused by the option that it was written in, before anything exists."""
    result = mlp("job", "submit", *(["--dry-run"] if dry_run else []), *words)
    assert sentence in result.stderr
    assert result.exit_code == 2
    assert result.stdout == ""
    assert mlp.lifecycle.asked("follow") == []
    assert mlp.loops == []
    assert not (mlp.home / "runs" / "jobs").exists()


def test_every_refusal_says_what_to_do(mlp: Mlp) -> None:
    """The remedy stands on a line of its own."""
    result = mlp("job", "submit", "--", "python", "trian.py")
    assert result.stderr.splitlines()[-1].startswith("  → ")


@pytest.mark.parametrize(
    "words",
    [
        ["jobs"],
        ["job", "run"],
        ["job", "status"],
        ["job", "status", "nosuch"],
        ["job", "attach", "nosuch"],
        ["job", "cancel", "nosuch"],
        ["job", "logs", "nosuch", "--attempt", "0"],
        ["job", "logs", "nosuch", "--tail", "5", "--follow"],
        ["job", "list", "--days", "0"],
        ["data", "import", "--source", "criteo"],
        ["data", "synth", "--rows", "0"],
        ["data", "synth", "--start", "2020-02-30"],
        ["data", "ls", "nosuch"],
    ],
    ids=" ".join,
)
def test_bad_words(mlp: Mlp, words: list[str]) -> None:
    """Unknown commands, keys and values end by 2, never with a traceback."""
    result = mlp(*words)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)


def test_storage_that_refuses_is_named(mlp: Mlp) -> None:
    """Storage that can't be reached ends by 4, with its URL."""
    mlp.lifecycle.refuse = StorageDenied("s3://runs answered 403", remedy="Check the credentials.")
    result = mlp("job", "submit", *RUN)
    assert result.exit_code == 4
    assert "s3://runs answered 403" in result.stderr
