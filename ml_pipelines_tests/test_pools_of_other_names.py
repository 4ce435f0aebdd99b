"""A platform file may call its pools as it likes."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
import yaml

from ml_pipelines import settings
from ml_pipelines.cli.submission import Request, spec_of
from ml_pipelines.orchestration.config import WorkersConfig

POOLS = {
    "pools": {
        "a100": {"cpu": 8, "memory": "64Gi", "gpus": 4},
        "small": {"cpu": 2, "memory": "4Gi"},
        "large": {"cpu": 16, "memory": "64Gi"},
    }
}


@pytest.fixture(autouse=True)
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform without the usual `cpu` and `gpu`."""
    file = tmp_path / "platform.yaml"
    file.write_text(yaml.safe_dump(POOLS, sort_keys=False))
    monkeypatch.setenv("MLP_POOLS", str(file))


@pytest.mark.parametrize("pool", ["a100", "large"])
def test_the_launchpad_takes_them(pool: str) -> None:
    """Workers go where they were asked to, the head to the first pool without GPUs."""
    cluster = WorkersConfig(pool=pool).cluster()
    assert cluster.workers[0].pool == pool
    assert cluster.head.pool == "small"


def test_mlp_takes_them() -> None:
    """As `mlp job submit --pool a100` does."""
    spec = spec_of(Request(command=("true",), pool="a100", gpus=1), settings.load())
    assert (spec.cluster.workers[0].pool, spec.cluster.head.pool) == ("a100", "small")


def test_a_default_that_is_not_there_is_told_with_what_is() -> None:
    """The Launchpad's default fails before anything exists, and names the pools there are."""
    with pytest.raises(dg.Failure, match=r"config.pool: 'cpu' is no pool.*a100, large, small"):
        WorkersConfig()
