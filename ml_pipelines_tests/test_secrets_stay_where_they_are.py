"""What whoever submits has in the environment is written nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ml_pipelines import lifecycle, settings
from ml_pipelines.lifecycle.submit import manifest_of
from ml_pipelines.spec.job import JobSpec

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "MY_API_TOKEN")
TOKEN = "t0ps3cret"


def test_the_submitters_environment_is_copied_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case A18: neither manifest nor journal nor any file of ours holds a credential."""
    for name in NAMES:
        monkeypatch.setenv(name, TOKEN)
    monkeypatch.setenv("MLP_HOME", str(tmp_path))
    spec = JobSpec(name="a job", entrypoint=("true",))
    with lifecycle.open_platform(settings.load()) as platform:
        job = lifecycle.submit(spec, run_key="a-job-1", labels={}, platform=platform)
        assert TOKEN not in repr(manifest_of(job, 1, platform))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("journal" in str(path) for path in files)
    for path in files:
        assert TOKEN.encode() not in path.read_bytes()
