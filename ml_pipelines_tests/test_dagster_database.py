"""Dagster's database is made by one program at a time, however many start at once."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

MODULE = "ml_pipelines.orchestration.database"
DATABASES = ("history/runs.db", "history/runs/index.db", "schedules/schedules.db")


def started(home: Path | str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", MODULE],
        env=os.environ | {"DAGSTER_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> tuple[int, str]:
    text, _ = process.communicate(timeout=100)
    return process.returncode, text


def heads(file: Path) -> int:
    with closing(sqlite3.connect(file)) as database:
        [(count,)] = database.execute("select count(*) from alembic_version").fetchall()
    return int(count)


def test_several_at_once_make_one_database(tmp_path: Path) -> None:
    """Each is ready, and each database has one version; without the lock it often has more."""
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    processes = [started(tmp_path) for _ in range(4)]
    assert [said(each) for each in processes] == [(0, "Dagster's database is ready.\n")] * 4
    assert [heads(tmp_path / each) for each in DATABASES] == [1, 1, 1]


def test_it_says_why_it_is_not_ready(tmp_path: Path) -> None:
    """A home that can't be written to is a sentence and a failure, which Kubernetes tries again."""
    (tmp_path / "file").touch()
    code, text = said(started(tmp_path / "file" / "dagster"))
    assert code == 1
    assert text.startswith(f"Dagster's database in {tmp_path}/file/dagster is not ready: ")
    assert text.count("\n") == 1
    assert said(started("")) == (1, "Dagster's database is not ready: set DAGSTER_HOME.\n")
