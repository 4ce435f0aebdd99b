"""`mlp job submit`: what is asked of the lifecycle, what is shown, and how it ends."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import yaml

from ml_pipelines.errors import BackendRefused, Refused, Superseded
from ml_pipelines.job.events import AttemptEnded, Event, LogLine, MetricPoint, Notice
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import Verdict, VerdictClass
from ml_pipelines.storage import open_store
from ml_pipelines_tests.fake_lifecycle import CANCELLED, USER, Mlp, played

if TYPE_CHECKING:
    from collections.abc import Iterator
from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's working folder, with a script and a package."""
    work = tmp_path / "work"
    (work / "shop").mkdir(parents=True)
    (work / "train.py").write_text("print('training')\n")
    (work / "shop" / "__init__.py").touch()
    (work / "shop" / "train.py").write_text("print('shop')\n")
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def mlp(tmp_path: Path, folder: Path) -> Mlp:
    """The command line over a lifecycle that only plays."""
    return Mlp(tmp_path / "home")


def test_log_on_stdout_and_the_rest_on_stderr(mlp: Mlp) -> None:
    """Standard output holds the job's log and nothing else, so it can be piped."""
    result = mlp("job", "submit", "--", "python", "train.py")
    assert result.exit_code == 0
    assert result.stdout == "hello from the driver\n"
    assert "PROVISIONING starting a Ray head" in result.stderr
    assert "SUCCEEDED" in result.stderr


def test_options_become_the_spec(mlp: Mlp) -> None:
    """Every option lands in its field of the spec; the command stays verbatim."""
    mlp(
        "job", "submit", "--name", "My job", "--workers", "2", "--pool", "gpu", "--cpu", "500m",
        "--memory", "2Gi", "--gpus", "1", "--env", "A=1", "--env", "B=x=y", "--experiment", "exp",
        "--secret", "HF_TOKEN=hf/token", "--limit-run", "1h30m", "--owes-result", "--", "python", "train.py", "--workers", "9", "-h",
    )  # fmt: skip
    [(run_key, spec)] = mlp.lifecycle.asked("submit")
    [group] = spec.cluster.workers
    assert run_key.startswith("my-job-")
    assert spec.entrypoint == ("python", "train.py", "--workers", "9", "-h")
    assert (group.pool, group.min_workers, group.max_workers) == ("gpu", 2, 2)
    assert (group.cpu, group.memory, group.gpus) == ("500m", "2Gi", 1)
    assert spec.env == {"A": "1", "B": "x=y"}
    assert spec.secrets == {"HF_TOKEN": "hf/token"}
    assert spec.limits.run_s == 5400
    assert (spec.owes_result, spec.owner, spec.team, spec.experiment) == (True, "ada", "ads", "exp")


def test_the_double_dash_may_be_left_out(mlp: Mlp) -> None:
    """What stands after the command's first word is the command's."""
    mlp("job", "submit", "--workers", "2", "python", "train.py", "--name", "theirs")
    [(_, spec)] = mlp.lifecycle.asked("submit")
    assert spec.entrypoint == ("python", "train.py", "--name", "theirs")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python", "train.py"), "train"),
        (("python3.11", "-u", "-W", "error", "train.py"), "train"),
        (("python", "-m", "shop.train"), "train"),
        (("python", "-c", "print(1)"), "python"),
        (("sh", "-c", "echo hello"), "sh"),
    ],
    ids=["script", "options", "module", "inline", "program"],
)
def test_a_job_is_named_after_what_it_runs(mlp: Mlp, command: tuple[str, ...], name: str) -> None:
    """Without --name the script, module or program names the job."""
    assert mlp("job", "submit", "--", *command).exit_code == 0
    [(_, spec)] = mlp.lifecycle.asked("submit")
    assert spec.name == name


def test_each_submission_is_a_job_of_its_own(mlp: Mlp) -> None:
    """The same command twice gives two run keys."""
    for _ in range(2):
        mlp("job", "submit", "--", "python", "train.py")
    (first, _), (second, _) = mlp.lifecycle.asked("submit")
    assert first != second


def test_the_folder_travels(mlp: Mlp) -> None:
    """The working folder is packed into run storage, once for the same content."""
    for _ in range(2):
        mlp("job", "submit", "--", "python", "train.py")
    [first, second] = [spec.code for _, spec in mlp.lifecycle.asked("submit")]
    assert first == second
    assert open_store(mlp.settings.runs).list("code/") == [f"code/{first.sha256}.zip"]


def test_another_folder_and_exclusions(mlp: Mlp, folder: Path) -> None:
    """--folder and --exclude decide what travels, and paths are relative to that folder."""
    result = mlp("job", "submit", "--folder", str(folder / "shop"), "--", "python", "train.py")
    assert result.exit_code == 0
    mlp("job", "submit", "--exclude", "shop", "--", "python", "train.py")
    [first, second] = [spec.code for _, spec in mlp.lifecycle.asked("submit")]
    assert first != second


def test_our_own_files_stay(folder: Path) -> None:
    """A home inside the folder is not packed into itself, run after run."""
    mlp = Mlp(folder / "state" / "mlp")
    for _ in range(2):
        assert mlp("job", "submit", "--", "python", "train.py").exit_code == 0
    [first, second] = [spec.code for _, spec in mlp.lifecycle.asked("submit")]
    assert first == second


def test_dry_run_prints_the_manifest_and_creates_nothing(mlp: Mlp) -> None:
    """--dry-run prints what would be sent, and leaves no trace."""
    result = mlp("job", "submit", "--dry-run", "--workers", "2", "--", "python", "train.py")
    manifest = yaml.safe_load(result.stdout)
    assert result.exit_code == 0
    assert manifest["kind"] == "RayJob"
    assert manifest["spec"]["entrypoint"] == "python train.py"
    assert "/code/" in manifest["spec"]["runtimeEnvYAML"]
    assert mlp.lifecycle.calls == []
    assert not mlp.home.exists()


def on_kubernetes(mlp: Mlp, storage: str = "s3://bucket") -> Mlp:
    mlp.backend, mlp.storage = "kuberay", storage
    return mlp


def test_a_dry_run_is_checked_by_the_server(mlp: Mlp) -> None:
    """On Kubernetes the server says whether it would take it; stdout stays the manifest."""
    result = on_kubernetes(mlp)("job", "submit", "--dry-run", "--", "python", "train.py")
    assert result.exit_code == 0
    [(manifest,)] = mlp.lifecycle.asked("check")
    assert yaml.safe_load(result.stdout) == manifest
    assert result.stderr.splitlines()[-1].startswith("Valid: ads/123 would take it")
    assert "note: GPUs fall away" in result.stderr


def test_a_dry_run_that_the_server_refuses_fails(mlp: Mlp) -> None:
    """The manifest is shown all the same, then what the server said; the exit code is an error's."""
    mlp.lifecycle.refuse = BackendRefused("unknown field", remedy="Update the operator.")
    result = on_kubernetes(mlp)("job", "submit", "--dry-run", "--", "python", "train.py")
    assert result.exit_code == BackendRefused.exit_code
    assert "kind: RayJob" in result.stdout
    assert "unknown field" in result.stderr


@pytest.mark.parametrize("dry", [("--dry-run",), ()], ids=["dry run", "submit"])
def test_storage_that_pods_cant_see_is_one_sentence(mlp: Mlp, dry: tuple[str, ...]) -> None:
    """A laptop's folder as run storage is refused before anything exists."""
    result = on_kubernetes(mlp, "")("job", "submit", *dry, "--", "python", "train.py")
    assert result.exit_code == 2
    assert "MLP_RUNS" in result.stderr
    assert "can't be seen by pods" in result.stderr


def test_dry_run_names_the_code_that_would_travel(mlp: Mlp) -> None:
    """The manifest of a dry run names the same code as the real submission."""
    shown = mlp("job", "submit", "--dry-run", "--", "python", "train.py").stdout
    mlp("job", "submit", "--", "python", "train.py")
    [(_, spec)] = mlp.lifecycle.asked("submit")
    assert spec.code.sha256 in shown
    assert spec.code.url in shown


@pytest.mark.parametrize(
    ("phase", "verdict", "code"),
    [(Phase.FAILED, USER, 1), (Phase.LOST, USER, 1), (Phase.CANCELLED, CANCELLED, 5)],
    ids=["failed", "lost", "cancelled"],
)
def test_how_it_ends_is_the_exit_code(mlp: Mlp, phase: Phase, verdict: Verdict, code: int) -> None:
    """Success is 0, failure 1 whatever the driver's code was, cancelled 5."""
    mlp.lifecycle.events = played(phase, verdict)
    result = mlp("job", "submit", "--", "python", "train.py")
    assert result.exit_code == code
    assert f"{verdict.cls}: {verdict.sentence}" in result.stderr


def test_a_failure_is_told_in_full_and_the_name_comes_last(mlp: Mlp) -> None:
    """The traceback and the remedy stand at the end, then commands that name the job."""
    mlp.lifecycle.events = played(Phase.FAILED, USER)
    lines = mlp("job", "submit", "--", "python", "train.py").stderr.splitlines()
    end = lines[next(i for i, line in enumerate(lines) if line.startswith("FAILED")) :]
    assert "  | ValueError: no such column" in end
    assert "  → Mend the script and submit it again." in end
    assert end[-2:] == ["  mlp job status KEY", "  mlp job logs KEY"]


def test_everything_that_happens_is_shown(mlp: Mlp) -> None:
    """Worker lines, metrics, ended attempts and notices each have their line."""
    preempted = Verdict(VerdictClass.PREEMPTED, "the node was taken away")
    mlp.lifecycle.events = [
        Notice("CPUs shrink from 7 to 2"),
        Notice("the log has a gap", warning=True),
        LogLine("worker-1", "from a worker", 0, 1),
        MetricPoint(200, {"loss": 0.41234567, "auc": "NaN"}, 1),
        AttemptEnded(1, preempted, "attempt 2 starts in 5 s"),
        *played(),
    ]
    result = mlp("job", "submit", "--", "python", "train.py")
    assert "[worker-1] from a worker" in result.stdout
    for text in (
        "note: CPUs shrink from 7 to 2",
        "warning: the log has a gap",
        "step 200  loss 0.412346  auc NaN",
        "attempt 1 ended, PREEMPTED: the node was taken away; attempt 2 starts in 5 s",
    ):
        assert text in result.stderr


def test_detach_leaves_it_to_the_background(mlp: Mlp) -> None:
    """--detach submits, follows nothing here, starts the loop and says how to go on."""
    result = mlp("job", "submit", "--detach", "--", "python", "train.py")
    [(run_key, _)] = mlp.lifecycle.asked("submit")
    assert result.exit_code == 0
    assert mlp.lifecycle.asked("follow") == []
    assert mlp.loops == [run_key]
    assert f"mlp job cancel {run_key}" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_detaches(mlp: Mlp, number: signal.Signals) -> None:
    """Ctrl-C, SIGTERM and a closed terminal release the claim and leave the job to a loop."""

    class Interrupting(list[Event]):
        def __iter__(self) -> Iterator[Event]:
            yield from played()[:3]
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)  # a second one disturbs nothing
            yield from played()[3:]

    mlp.lifecycle.events = Interrupting()
    result = mlp("job", "submit", "--", "python", "train.py")
    [(run_key, _)] = mlp.lifecycle.asked("submit")
    assert result.exit_code == 130
    assert mlp.lifecycle.asked("released") == [(run_key,)]
    assert mlp.loops == [run_key]
    assert f"mlp job attach {run_key}" in result.stderr


def test_an_interrupt_before_it_is_submitted_leaves_nothing(mlp: Mlp) -> None:
    """Interrupted in the midst of submitting, the job is cancelled and nothing follows it."""
    mlp.lifecycle.refuse = KeyboardInterrupt()  # type: ignore[assignment]
    result = mlp("job", "submit", "--", "python", "train.py")
    assert result.exit_code == 130
    assert len(mlp.lifecycle.asked("cancel")) == 1
    assert mlp.loops == []
    assert "nothing was left behind" in result.stderr


def test_taken_over_by_another(mlp: Mlp) -> None:
    """When another process attaches, this one says so and leaves the job to it."""
    mlp.lifecycle.events = [*played()[:3], Superseded("another process follows job KEY now")]
    result = mlp("job", "submit", "--", "python", "train.py")
    assert result.exit_code == 3
    assert "another process follows job KEY now" in result.stderr
    assert mlp.loops == []


def test_a_refusal_is_one_sentence(mlp: Mlp) -> None:
    """What the lifecycle refuses is told with its remedy, and exits by 3."""
    mlp.lifecycle.refuse = Refused("a job of that name runs", remedy="Wait for it.")
    result = mlp("job", "submit", "--", "python", "train.py")
    assert result.exit_code == 3
    assert result.stderr.splitlines()[-2:] == ["mlp: a job of that name runs", "  → Wait for it."]
