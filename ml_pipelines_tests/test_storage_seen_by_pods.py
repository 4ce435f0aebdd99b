"""Storage that pods can't see is refused before anything is made, in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ml_pipelines import lifecycle, settings
from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import InvalidInput
from ml_pipelines.spec.pools import Pools, Volume
from ml_pipelines.spec.reach import shared_folder
from ml_pipelines_tests.fake_backend import FakeBackend

POOLS: dict[str, Any] = {"pools": {"cpu": {"cpu": 1, "memory": "1Gi"}}}


def pools(*volumes: tuple[str, bool]) -> Pools:
    named = tuple(
        Volume(name=f"v{number}", claim=f"c{number}", path=path, read_only=read_only)
        for number, (path, read_only) in enumerate(volumes)
    )
    return Pools(**POOLS, volumes=named)


@pytest.mark.parametrize("url", ["s3://runs/team", "gs://runs"])
def test_far_stores_are_seen(url: str) -> None:
    """S3 and GCS need no volume."""
    assert shared_folder("MLP_RUNS", url, pools()) is None


def test_a_folder_of_a_volume_is_seen() -> None:
    """A folder below a volume's path is, and the volume is named."""
    assert shared_folder("MLP_RUNS", "file:///shared/runs", pools(("/shared", False))) == "/shared"


@pytest.mark.parametrize(
    "url",
    [
        "file:///home/ann/runs",
        "file:///sharedness/runs",
        "file:///shared/../home",
        "file:///models/runs",
        "memory://runs",
    ],
)
def test_other_places_are_refused(url: str) -> None:
    """This machine's own folders, read-only volumes and memory are not; the remedy names what is."""
    with pytest.raises(InvalidInput, match=r"MLP_RUNS: .* can't be seen by pods.*file:///shared"):
        shared_folder("MLP_RUNS", url, pools(("/shared", False), ("/models", True)))


def opened(home: Path, runs: str, lake: str, volume: Path | None = None) -> None:
    platform = POOLS | {"volumes": []}
    if volume:
        platform["volumes"] = [{"name": "shared", "claim": "c", "path": str(volume)}]
    file = home / "platform.yaml"
    file.write_text(yaml.safe_dump(platform))
    here = settings.load(
        {
            "MLP_HOME": str(home),
            "MLP_BACKEND": "kuberay",
            "MLP_POOLS": str(file),
            "MLP_RUNS": runs,
            "MLP_LAKE": lake,
        }
    )
    with lifecycle.open_platform(here, backend=FakeBackend(FakeClock())):
        pass


def test_nothing_is_made_in_a_place_that_is_refused(tmp_path: Path) -> None:
    """A laptop's folder is refused by its variable, and not even made."""
    with pytest.raises(InvalidInput, match="MLP_RUNS"):
        opened(tmp_path, f"file://{tmp_path}/runs", "s3://lake")
    assert not (tmp_path / "runs").exists()


def test_a_volume_that_is_not_here_is_not_made_up(tmp_path: Path) -> None:
    """Where the shared volume isn't mounted, no folder of its name is made in its place."""
    volume = tmp_path / "nfs"
    with pytest.raises(InvalidInput, match=r"MLP_LAKE.*not here.*Mount it"):
        opened(tmp_path, "s3://runs", f"file://{volume}/lake", volume)
    assert not volume.exists()


def test_a_volume_that_is_here_is_used(tmp_path: Path) -> None:
    """Where it is mounted, run storage on it is reached."""
    volume = tmp_path / "nfs"
    volume.mkdir()
    opened(tmp_path, f"file://{volume}/runs", f"file://{volume}/lake", volume)
    assert (volume / "runs").is_dir()
