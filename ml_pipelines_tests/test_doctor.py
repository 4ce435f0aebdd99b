"""`mlp doctor`: what it makes of a machine, and what it says to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ml_pipelines.cli import health
from ml_pipelines.cli.doctor import examine
from ml_pipelines.cli.health import Finding, GiB, Level
from ml_pipelines_tests.fake_lifecycle import Mlp

if TYPE_CHECKING:
    from pathlib import Path

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
PINNED = {"ray": "2.60.0", "torch": "2.13.0"}

JUDGED = {
    "python 3.11": (health.of_python((3, 11, 7)), OK, "3.11.7"),
    "python 3.12": (health.of_python((3, 12, 1)), FAIL, "3.12.1, but 3.11 is needed"),
    "packages": (health.of_packages({"ray": "2.60.0", "torch": "2.13.0+cpu"}, PINNED), OK, "2 as"),
    "package missing": (health.of_packages({"ray": "2.60.0"}, PINNED), FAIL, "missing: torch"),
    "package other": (
        health.of_packages({"ray": "2.9.0", "torch": "2.13.0"}, PINNED),
        WARN,
        "ray 2.9.0 instead of 2.60.0",
    ),
    "cores": (health.of_cores(8), OK, "8"),
    "one core": (health.of_cores(1), WARN, "1"),
    "memory": (health.of_memory(8 * GiB), OK, "8.0 GiB"),
    "little memory": (health.of_memory(3 * GiB), WARN, "3.0 GiB"),
    "no memory": (health.of_memory(GiB), FAIL, "1.0 GiB"),
    "disk": (health.of_disk("disk", 50 * GiB, 100 * GiB, "/x"), OK, "50.0 GiB free at /x"),
    "disk nearly full": (health.of_disk("disk", 4 * GiB, 100 * GiB, "/x"), WARN, "96% full"),
    "disk full": (health.of_disk("disk", GiB // 2, 100 * GiB, "/x"), FAIL, "0.5 GiB free"),
    "shm": (health.of_shared_memory(2 * GiB), OK, "2.0 GiB"),
    "shm of a container": (health.of_shared_memory(64 * 2**20), WARN, "0.1 GiB"),
    "no shm": (health.of_shared_memory(None), OK, "none"),
    "ports": (health.of_ports(10), OK, "can be opened"),
    "no ports": (health.of_ports(3), FAIL, "only 3 of 10"),
    "temp": (health.of_temp_folder("/tmp"), OK, "/tmp"),
    "long temp": (health.of_temp_folder("/tmp/" + "x" * 60), FAIL, "65 characters long"),
    "no dagster home": (health.of_dagster_home(None, exists=False, has_config=False), OK, "not"),
    "dagster home gone": (
        health.of_dagster_home("/d", exists=False, has_config=False),
        FAIL,
        "DAGSTER_HOME /d does not exist",
    ),
    "dagster home bare": (
        health.of_dagster_home("/d", exists=True, has_config=False),
        WARN,
        "no dagster.yaml",
    ),
    "dagster home": (health.of_dagster_home("/d", exists=True, has_config=True), OK, "/d"),
    "no ray": (health.of_strays({}, []), OK, "none is running"),
    "a ray": (health.of_strays({"c1": [7, 8]}, [5]), OK, "2 processes, looked after by 5"),
    "stray ray": (health.of_strays({"c1": [8, 7]}, []), WARN, "nothing looks after them"),
}


@pytest.mark.parametrize(("finding", "level", "text"), JUDGED.values(), ids=JUDGED.keys())
def test_judgement(finding: Finding, level: Level, text: str) -> None:
    """Each thing seen has its level, and whatever is not OK says what to do."""
    assert finding.level is level
    assert text in finding.sentence
    assert bool(finding.remedy) is (level is not OK)


def test_stray_processes_are_named() -> None:
    """The remedy for strays names their process ids."""
    assert health.of_strays({"c1": [8, 7]}, []).remedy.endswith("kill 7 8")


def test_this_machine(tmp_path: Path) -> None:
    """On this machine everything is looked at, and storage answers."""
    mlp = Mlp(tmp_path / "home")
    found = {finding.what: finding for finding in examine(mlp.settings, {})}
    assert {"python", "packages", "memory", "lake", "run storage", "ports"} <= found.keys()
    assert found["lake"].level is OK
    assert found["run storage"].level is OK
    assert found["MLP_HOME"].level is OK


def test_what_make_setup_installs_is_what_is_pinned(tmp_path: Path) -> None:
    """No pin is of a package that nothing asks for: after `make setup` none is missing."""
    found = {each.what: each for each in examine(Mlp(tmp_path / "home").settings, {})}
    assert found["packages"].level is not FAIL, found["packages"].sentence


def test_a_failure_is_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FAIL ends by 1, with its remedy; every line begins with its level."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "gone"))
    result = Mlp(tmp_path / "home")("doctor")
    assert result.exit_code == 1
    assert f"→ Make it: mkdir -p {tmp_path}/gone" in result.stdout
    assert all(
        line.split()[0] in {"OK", "WARN", "FAIL", "→"} for line in result.stdout.splitlines()
    )
