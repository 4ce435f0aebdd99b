"""Which device training uses, and how many processes: what was asked for decides."""

from __future__ import annotations

import pytest

from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import InvalidInput
from ml_pipelines.workloads.ads_ranking.config import TrainConfig
from ml_pipelines.workloads.ads_ranking.train import cpu_share, processes
from ml_pipelines.workloads.device import JOINING_S, await_gpus

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


@pytest.mark.parametrize(("real", "expected"), [(True, (2, True)), (False, (2, False))])
def test_gpus_that_are_mere_numbers(real, expected):
    """Where CPUs are allowed, GPUs that Ray counts and CUDA doesn't see are not used."""
    environ = {"MLP_GPUS_PER_WORKER": "1", "MLP_ALLOW_CPU": "1"}
    assert processes(CONFIG, {"GPU": 2.0}, environ, sees_cuda=lambda: real) == expected


@pytest.mark.parametrize(
    ("cpus", "count", "share"), [(8.0, 2, 1.0), (2.0, 8, 0.25), (2.0, 3, 0.66), (0.0, 2, 0.01)]
)
def test_processes_share_the_cpus(cpus, count, share):
    """A machine may have more GPUs than CPUs: a process claims what all of them can have."""
    assert cpu_share(cpus, count) == share


@pytest.mark.parametrize(
    ("joined", "waited"),
    [
        ([(2.0, 3)], 0.0),
        ([(0.0, 1), (1.0, 2), (2.0, 3)], 1.0),
        ([(0.0, 1), (0.0, 3)], 0.5),
        ([(0.0, 1)], JOINING_S),
    ],
    ids=["there", "one by one", "all there without", "never"],
)
def test_gpus_that_join_after_the_driver_began(joined, waited):
    """They are waited for, until they or all machines are there, and not for ever."""
    clock, left = FakeClock(), list(joined)
    await_gpus(2.0, lambda: left.pop(0) if len(left) > 1 else left[0], clock, machines=3)
    assert clock.elapsed == waited
