"""A step's output reaches the terminal, also while a Ctrl-C stops the step."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from ml_pipelines.orchestration.computelogs import SteadyComputeLogs

ROOT = Path(__file__).parents[1]
STEP = """
import signal, sys, time
import dagster as dg

if "in the background" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

with dg.DagsterInstance.get() as instance:
    with instance.compute_log_manager.capture_logs(["run", "compute_logs", "step"]):
        print("begun", flush=True)
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            print("stopping", flush=True)
            time.sleep(2)  # `tail` looks once a second
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A DAGSTER_HOME with the project's own configuration."""
    shutil.copy(ROOT / "dagster.yaml", tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    return tmp_path


def test_the_projects_configuration_uses_it(home: Path) -> None:
    """Logs lie where Dagster keeps them by default, so the UI and retention find them."""
    with dg.DagsterInstance.get() as instance:
        manager = instance.compute_log_manager
        assert isinstance(manager, SteadyComputeLogs)
        assert manager.inst_data is not None
        place = manager.get_captured_local_path(["run", "compute_logs", "step"], "out")
    assert place == str(home / "storage" / "run" / "compute_logs" / "step.out")


@pytest.mark.parametrize("where", ["at a terminal", "in the background"])
def test_ctrl_c_leaves_the_copying_alone(home: Path, where: str) -> None:
    """The whole process group gets the signal: the last words are copied, no traceback is.

    In the background Dagster ignores SIGTERM; the copying still ends by it.
    """
    with subprocess.Popen(
        [sys.executable, "-c", STEP, where],
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as step:
        assert step.stdout is not None
        assert step.stdout.readline() == "begun\n"
        os.killpg(step.pid, signal.SIGINT)
        said = step.stdout.read()
    assert (step.returncode, said) == (0, "stopping\n")
    kept = home / "storage" / "run" / "compute_logs" / "step.out"
    assert kept.read_text() == "begun\nstopping\n"
