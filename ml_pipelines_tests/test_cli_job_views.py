"""`mlp job list|status|logs|attach|cancel`: what they show and what they ask for."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ml_pipelines.cli.console import span
from ml_pipelines.cli.loop import main as loop_main
from ml_pipelines.errors import Refused, StorageUnavailable, Superseded
from ml_pipelines.job.phase import Phase
from ml_pipelines.journal import index
from ml_pipelines.lifecycle import JobSummary
from ml_pipelines.storage import open_store
from ml_pipelines_tests.fake_lifecycle import FakeLifecycle, Mlp, played

if TYPE_CHECKING:
    from pathlib import Path

RUNNING = JobSummary(
    run_key="train-1111111111",
    name="train",
    owner="ada",
    backend="local",
    phase=Phase.RUNNING,
    sentence="the driver runs",
    attempts=2,
    created_at="2026-05-01T11:58:00+00:00",
)
FAILED = JobSummary(
    run_key="train-2222222222",
    name="train",
    owner="bob",
    backend="local",
    phase=Phase.FAILED,
    sentence="the driver ended with exit code 3",
    attempts=1,
    created_at="2026-05-01T10:00:00+00:00",
    ended_at="2026-05-01T10:00:07+00:00",
    experiment="autumn",
    log_url="file:///runs/driver.log",
)


@pytest.fixture
def mlp(tmp_path: Path) -> Mlp:
    """Two jobs: one runs, one failed. It is noon on 2026-05-01."""
    lifecycle = FakeLifecycle(jobs=[RUNNING, FAILED], lines=["one", "two", "three"])
    mlp = Mlp(tmp_path / "home", lifecycle)
    for job in lifecycle.jobs:
        index.mark_open(open_store(mlp.settings.runs), job.run_key)
    return mlp


def test_list(mlp: Mlp) -> None:
    """Case J2: one line a job, what it took fixed once it has ended: key, phase, owner, age, why."""
    result = mlp("job", "list")
    assert [line.split(maxsplit=4)[:4] for line in result.stdout.splitlines()] == [
        ["RUN", "KEY", "PHASE", "OWNER"],
        ["train-1111111111", "RUNNING", "ada", "2"],
        ["train-2222222222", "FAILED", "bob", "1"],
    ]
    assert "2 min 00 s  2 min 00 s  the driver runs" in result.stdout
    assert "2 h 00 min  7.0 s" in result.stdout


def test_a_name_moves_nobodys_cursor(tmp_path: Path) -> None:
    """Case I3: control characters of names and reasons are shown, never sent to the terminal."""
    evil = replace(FAILED, name="a\x1b]8;;http://x\x1b\\b", owner="x\ny", sentence="\x1b[2J<img>\r")
    mlp = Mlp(tmp_path / "home", FakeLifecycle(jobs=[evil]))
    index.mark_open(open_store(mlp.settings.runs), evil.run_key)
    for words in (["list"], ["status", evil.run_key]):
        shown = mlp("job", *words).stdout
        assert "\x1b" not in shown
        assert "\r" not in shown
        assert "\\x1b[2J<img>\\r" in shown
        assert "x\\ny" in shown


def test_list_of_nothing(tmp_path: Path) -> None:
    """An empty list says where it looked and what to do."""
    result = Mlp(tmp_path)("job", "list")
    assert f"No jobs in file://{tmp_path}/runs in the last 7 days." in result.stdout
    assert "mlp job submit" in result.stdout


def test_the_homes_that_make_uses_are_named(tmp_path: Path) -> None:
    """In a clone `mlp` looks into `.mlp`, where `make` keeps a home for each data set."""
    mlp = Mlp(tmp_path)
    (tmp_path / "synthetic" / "runs").mkdir(parents=True)
    (tmp_path / "synthetic" / "lake").mkdir()
    where = f"MLP_HOME={tmp_path}/synthetic"
    assert f"{where} mlp job list" in mlp("job", "list").stdout
    assert f"{where} mlp data ls" in mlp("data", "ls").stdout
    assert f"Try {where}." in mlp("job", "status", "nosuch").stderr


@pytest.mark.parametrize("words", [("list",), ("status", FAILED.run_key)], ids=["list", "status"])
def test_json(mlp: Mlp, words: tuple[str, ...]) -> None:
    """--json prints all that is known, for programs."""
    shown = json.loads(mlp("job", *words, "--json").stdout)
    record = shown[1] if isinstance(shown, list) else shown
    assert record["phase"] == "FAILED"
    assert record["experiment"] == "autumn"


def test_status(mlp: Mlp) -> None:
    """One fact a line, and the next command."""
    lines = mlp("job", "status", FAILED.run_key).stdout.splitlines()
    assert "phase       FAILED: the driver ended with exit code 3" in lines
    assert "took        7.0 s" in lines
    assert lines[-1] == "next        mlp job logs train-2222222222"


def test_status_of_a_job_that_nobody_follows(mlp: Mlp) -> None:
    """A job without a loop is told apart: nobody decides about it."""
    shown = mlp("job", "status", RUNNING.run_key).stdout
    assert "followed    no" in shown
    assert "mlp job attach train-1111111111" in shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [((), "one\ntwo\nthree\n"), (("--tail", "2"), "two\nthree\n")],
    ids=["all", "tail"],
)
def test_logs(mlp: Mlp, words: tuple[str, ...], shown: str) -> None:
    """The kept log on standard output, whole or its last lines."""
    result = mlp("job", "logs", *words, FAILED.run_key)
    assert (result.exit_code, result.stdout) == (0, shown)


def test_logs_of_an_attempt_followed(mlp: Mlp) -> None:
    """--attempt and --follow reach the lifecycle."""
    mlp("job", "logs", "--attempt", "2", "-f", RUNNING.run_key)
    assert mlp.lifecycle.asked("read_logs") == [(RUNNING.run_key, 2, True)]


def test_logs_of_an_attempt_that_never_was(mlp: Mlp) -> None:
    """Bad input, not an outage: the exit code and the sentence say so."""
    result = mlp("job", "logs", "--attempt", "7", FAILED.run_key)
    assert result.exit_code == 2
    assert "--attempt: 7 is no attempt of" in result.stderr


def test_the_beginning_of_a_key_is_enough(mlp: Mlp) -> None:
    """A key may be shortened while only one job begins so."""
    assert mlp("job", "logs", "train-1").exit_code == 0
    result = mlp("job", "logs", "train")
    assert result.exit_code == 2
    assert "begins 2 jobs: train-1111111111, train-2222222222" in result.stderr


def test_attach_takes_over_and_follows(mlp: Mlp) -> None:
    """Attaching claims the loop from whoever has it, shows the job and ends by its end."""
    result = mlp("job", "attach", "train-1")
    assert mlp.lifecycle.asked("attach") == [(RUNNING.run_key, True)]
    assert result.stdout == "hello from the driver\n"
    assert result.exit_code == 0


def test_attach_interrupted_detaches_again(mlp: Mlp) -> None:
    """Ctrl-C in an attached job leaves it to a background process once more."""
    mlp.lifecycle.events = [*played()[:3], KeyboardInterrupt()]
    result = mlp("job", "attach", "train-1")
    assert result.exit_code == 130
    assert mlp.loops == [RUNNING.run_key]


def test_cancel(mlp: Mlp) -> None:
    """Cancelling says who and why, tells the end and succeeds."""
    result = mlp("job", "cancel", "--reason", "wrong data", "train-1")
    assert mlp.lifecycle.asked("cancel") == [(RUNNING.run_key, "wrong data", "ada")]
    assert "CANCELLED" in result.stderr
    assert "Nothing was cancelled" not in result.stderr
    assert result.exit_code == 0


def test_cancel_of_what_has_ended(mlp: Mlp) -> None:
    """It stays as it ended, and nobody is left to think that it was stopped."""
    result = mlp("job", "cancel", FAILED.run_key)
    assert "Nothing was cancelled: it had ended before." in result.stderr
    assert result.exit_code == 0


def test_a_pipe_that_closes_early_is_no_error(mlp: Mlp) -> None:
    """`mlp job logs KEY | head` ends without a traceback."""
    mlp.lifecycle.lines = ["x" * 100] * 10
    result = mlp("job", "logs", "--tail", "1", FAILED.run_key)
    assert result.stdout == "x" * 100 + "\n"


# ── the background loop ─────────────────────────────────────────────────────────────────────────


def test_loop_follows_to_the_end(mlp: Mlp, capsys: pytest.CaptureFixture[str]) -> None:
    """It claims without taking over, and its log tells of the job's life, not of its lines."""
    assert loop_main("train-1111111111", mlp.session()) == 0
    assert mlp.lifecycle.asked("attach") == [(RUNNING.run_key, False)]
    shown = capsys.readouterr()
    assert "SUCCEEDED" in shown.err
    assert "hello from the driver" not in shown.out + shown.err


@pytest.mark.parametrize(
    ("raised", "code"),
    [(Superseded("taken"), 0), (KeyboardInterrupt(), 0), (Refused("another machine's"), 3)],
    ids=["taken over", "told to stop", "refused"],
)
def test_loop_leaves(mlp: Mlp, raised: BaseException, code: int) -> None:
    """Taken over or told to stop it leaves in order; what is refused is an error."""
    mlp.lifecycle.events = [*played()[:2], raised]
    assert loop_main(RUNNING.run_key, mlp.session()) == code


def test_loop_waits_for_storage(mlp: Mlp) -> None:
    """Run storage that is away is tried again, for ten minutes."""
    mlp.lifecycle.refuse = StorageUnavailable("file:///runs does not answer")
    assert loop_main(RUNNING.run_key, mlp.session()) == 4
    assert mlp.clock.elapsed == pytest.approx(600, abs=10)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (59.94, "59.9 s"),
        (61, "1 min 01 s"),
        (7200, "2 h 00 min"),
        (4e5, "4 d 15 h"),
    ],
    ids=str,
)
def test_span(seconds: float, text: str) -> None:
    """Durations are written for people."""
    assert span(seconds) == text
