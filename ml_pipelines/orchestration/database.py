"""Makes Dagster's database before its programs start, one maker at a time.

Dagster creates its tables without a lock: programs that do so at once may leave it broken for good.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

import dagster as dg

LOCK = ".database.lock"


def prepare(home: Path) -> None:
    """Open Dagster's instance once, alone: whatever tables are missing are made."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / LOCK).open("a") as lock:  # let go of at its close, or with the process
        fcntl.flock(lock, fcntl.LOCK_EX)
        with dg.DagsterInstance.get():
            pass


def main() -> None:
    """Say in one sentence how it went; a failure asks Kubernetes to try again."""
    home = os.environ.get("DAGSTER_HOME", "")
    if not home:
        sys.exit("Dagster's database is not ready: set DAGSTER_HOME.")
    try:
        prepare(Path(home))
    except Exception as problem:  # noqa: BLE001  # of Dagster, its database's driver or the volume
        said = " ".join(str(problem).split()) or type(problem).__name__
        sys.exit(f"Dagster's database in {home} is not ready: {said}")
    sys.stdout.write("Dagster's database is ready.\n")


if __name__ == "__main__":
    main()
