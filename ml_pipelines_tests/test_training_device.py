"""Which device training uses, and how many processes: what was asked for decides."""

from __future__ import annotations

import pytest

from ml_pipelines.errors import InvalidInput
from ml_pipelines.workloads.ads_ranking.config import TrainConfig
from ml_pipelines.workloads.ads_ranking.train import processes

CONFIG = TrainConfig(day="2019-11-30", workers=2)


@pytest.mark.parametrize(
    ("cluster", "environ", "expected"),
    [
        pytest.param({"CPU": 4.0}, {}, (2, False), id="no GPU asked for"),
        pytest.param({"GPU": 2.0}, {"MLP_GPUS_PER_WORKER": "1"}, (2, True), id="one a worker"),
        pytest.param({"GPU": 8.0}, {"MLP_GPUS_PER_WORKER": "4"}, (8, True), id="a process a GPU"),
        pytest.param({"GPU": 8.0}, {}, (8, True), id="not told: what Ray sees was asked for"),
        pytest.param({"GPU": 8.0}, {"MLP_GPUS_PER_WORKER": "0"}, (2, False), id="none wanted"),
        pytest.param({}, {"MLP_WORKERS": "1"}, (1, False), id="shrunk to the machine"),
        pytest.param(
            {}, {"MLP_GPUS_PER_WORKER": "1", "MLP_ALLOW_CPU": "1"}, (2, False), id="CPU allowed"
        ),
    ],
)
def test_the_device_follows_what_was_asked_for(cluster, environ, expected):
    """CUDA with one process a GPU where GPUs were asked for, CPUs else."""
    assert processes(CONFIG, cluster, environ) == expected


def test_asked_for_gpus_and_sees_none():
    """A job that asked for GPUs and sees none fails at once, saying what to check."""
    with pytest.raises(InvalidInput, match=r"Ray sees none.*MLP_ALLOW_CPU=1"):
        processes(CONFIG, {"CPU": 4.0}, {"MLP_GPUS_PER_WORKER": "1"})


def test_more_processes_than_lanes():
    """A batch is dealt to 32 lanes, so more worker processes are refused."""
    with pytest.raises(InvalidInput, match="32 lanes"):
        processes(CONFIG, {"GPU": 64.0}, {"MLP_GPUS_PER_WORKER": "32"})
