"""`mlp job` from end to end: submitted, detached, attached, cancelled; nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ml_pipelines.settings import CLUSTER_VARIABLE as CLUSTER

SCRIPT = """
import time
for number in range(1000):
    print("tick", number)
    time.sleep(0.1)
"""


class Terminal:
    """A folder with a script, and `mlp` as a person calls it there."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder
        self.environ = os.environ | {"MLP_HOME": str(home), "MLP_OWNER": "ada"}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A command in the foreground of its own terminal."""
        process = subprocess.Popen(
            [sys.executable, "-m", "ml_pipelines.cli", *words],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def close(self) -> None:
        """Cancel every job, and end what a failed test left."""
        for job in json.loads(self.ask("job", "list", "--json")):
            self.ask("job", "cancel", job["run_key"])
        for process in self.started:
            process.kill()
            process.communicate()

    def ask(self, *words: str) -> str:
        """What a command prints."""
        process = self.start(*words)
        shown, _ = process.communicate(timeout=60)
        return shown

    def job(self) -> Any:
        """The only job, as JSON."""
        [job] = json.loads(self.ask("job", "list", "--json"))
        return job

    def heads(self) -> set[str]:
        """The marks of the Rays that run for this home."""
        return {path.stem for path in (self.home / "local" / "heads").glob("*.json")}

    def processes(self, heads: set[str]) -> list[str]:
        """Command lines of what runs for this home, and of these Rays."""
        found = []
        for process in psutil.process_iter():
            try:
                environ = process.environ()
                if environ.get("MLP_HOME") == str(self.home) or environ.get(CLUSTER) in heads:
                    found.append(" ".join(process.cmdline()))
            except (psutil.Error, OSError):
                continue
        return found


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A home without jobs. Whatever happens, its job is cancelled."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    terminal = Terminal(tmp_path / "home", folder)
    yield terminal
    terminal.close()


def until(process: subprocess.Popen[str], text: str) -> list[str]:
    """The lines that a command prints up to the one with this text."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if text in line:
            return lines
    raise AssertionError(f"{text!r} never came:\n" + "\n".join(lines))


def ticks(lines: list[str]) -> list[int]:
    """The numbers that the script printed."""
    return [int(line.split()[1]) for line in lines if line.startswith("tick ")]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_detach_attach_cancel(terminal: Terminal) -> None:
    """Ctrl-C leaves the job running and followed; attach goes on in its log; cancel ends it all."""
    submitted = terminal.start("job", "submit", "--", "python", "train.py")
    seen = until(submitted, "tick 3")
    os.killpg(submitted.pid, signal.SIGINT)
    began = time.monotonic()
    rest, _ = submitted.communicate(timeout=30)
    assert submitted.returncode == 130
    assert time.monotonic() - began < 5
    seen += rest.splitlines()

    job = terminal.job()
    assert f"mlp job attach {job['run_key']}" in rest
    assert (job["phase"], job["owner"], job["name"]) == ("RUNNING", "ada", "train")

    heads = terminal.heads()
    assert heads
    assert any("gcs_server" in command for command in terminal.processes(heads))

    attached = terminal.start("job", "attach", job["run_key"])
    again = until(attached, "tick")
    assert "CANCELLED" in terminal.ask("job", "cancel", job["run_key"], "--reason", "enough")
    rest, _ = attached.communicate(timeout=30)
    assert attached.returncode == 5
    assert terminal.job()["sentence"] == "cancelled by ada: enough"

    # Lines that were shown, and those that the background loop took, are all kept, each once.
    kept = ticks(terminal.ask("job", "logs", job["run_key"]).splitlines())
    assert kept == list(range(len(kept)))
    shown = ticks(seen) + ticks(again + rest.splitlines())
    assert shown == sorted(set(shown))

    deadline = time.monotonic() + 30
    while terminal.processes(heads) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert terminal.processes(heads) == []
