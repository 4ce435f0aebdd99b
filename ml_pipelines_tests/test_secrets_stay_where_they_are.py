"""What whoever submits has in the environment is written nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ml_pipelines import lifecycle, settings
from ml_pipelines.lifecycle.submit import manifest_of
from ml_pipelines.spec.job import JobSpec
from ml_pipelines_tests.fake_lifecycle import Mlp

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "MY_API_TOKEN")
TOKEN = "t0ps3cret"
LITERAL = "hf_" + "a1B2" * 9


def test_the_submitters_environment_is_copied_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case A18: neither manifest nor journal nor any file of ours holds a credential."""
    for name in NAMES:
        monkeypatch.setenv(name, TOKEN)
    monkeypatch.setenv("MLP_HOME", str(tmp_path))
    spec = JobSpec(name="a job", entrypoint=("true",), secrets={"MY_API_TOKEN": "api/token"})
    with lifecycle.open_platform(settings.load()) as platform:
        job = lifecycle.submit(spec, run_key="a-job-1", labels={}, platform=platform)
        assert TOKEN not in repr(manifest_of(job, 1, platform))
        reference = {"secretKeyRef": {"name": "api", "key": "token"}}
        assert str(reference) in repr(manifest_of(job, 1, platform))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("journal" in str(path) for path in files)
    for path in files:
        assert TOKEN.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    "written",
    [
        ("--secret", f"A={LITERAL}"),
        ("--secret", LITERAL),
        ("--secret", f"A={LITERAL}", "--dry-run"),
        ("--env", f"A={LITERAL}"),
        ("--env", LITERAL[3:]),
        ("--env", f"My_Password={LITERAL[3:]}"),
        ("--env", f"A=${LITERAL[3:]}"),
        ("--env", f"AWS_SECRET_ACCESS_KEY={TOKEN}/{LITERAL}"),
    ],
)
def test_a_secret_typed_in_the_wrong_place_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: tuple[str, ...]
) -> None:
    """Case A18: the command line refuses it, and neither says it nor writes it anywhere."""
    monkeypatch.chdir(tmp_path)
    result = Mlp(tmp_path / "home")("job", "submit", *written, "--", "python", "-c", "1")
    assert result.exit_code == 2
    assert "not shown" in result.stderr
    assert LITERAL[3:] not in f"{result.stdout}{result.stderr}{result.exception!r}"
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or LITERAL[3:].encode() not in path.read_bytes()
