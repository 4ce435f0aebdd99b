"""A manifest's sizes on a small machine: the pool's shrink, the user's hold or are refused."""

from __future__ import annotations

from typing import Any

import pytest

from ml_pipelines.backends.local.sizing import LocalPlan, Machine, fit
from ml_pipelines.errors import DoesNotFit
from ml_pipelines_tests.rayjob_manifests import manifest, pools

GIB = 2**30
SMALL = Machine(cpus=2, memory=8 * GIB)
GPUS_1 = Machine(cpus=16, memory=128 * GIB, gpus=1)
GPUS_8 = Machine(cpus=64, memory=512 * GIB, gpus=8)
POOLS = pools(four={"cpu": "4", "memory": "4Gi"}, gpus={"cpu": "8", "memory": "64Gi", "gpus": 2})


def plan(machine: Machine, *groups: dict[str, Any], **cluster: Any) -> tuple[LocalPlan, str]:
    """The plan for these worker groups, and all that is said of it."""
    named = [{"name": f"g{index}", **group} for index, group in enumerate(groups)]
    made = manifest("j", cluster={"workers": named, **cluster}, of=POOLS)
    fitted, said = fit(made, machine)
    return fitted, "; ".join(said)


def workers(least: int, most: int | None = None, pool: str = "four", **size: Any) -> dict[str, Any]:
    """One worker group."""
    return {"pool": pool, "min_workers": least, "max_workers": most or least, **size}


@pytest.mark.parametrize(
    ("machine", "group", "per_worker", "num_cpus", "environment"),
    [
        pytest.param(SMALL, workers(2), (2, 1.0), 2, ("2", "0.5", "0"), id="two-of-4-on-2"),
        pytest.param(SMALL, workers(1), (1, 2.0), 2, ("1", "1", "0"), id="one-of-4-on-2"),
        pytest.param(SMALL, workers(3), (3, 0.66), 2, ("3", "0.33", "0"), id="three-of-4-on-2"),
        pytest.param(SMALL, workers(2, cpu="500m"), (2, 0.5), 1, ("2", "0.25", "0"), id="halves"),
        pytest.param(SMALL, workers(2, cpu="1"), (2, 1.0), 2, ("2", "0.5", "0"), id="written"),
        pytest.param(GPUS_1, workers(2), (2, 4.0), 8, ("2", "3.5", "0"), id="fits"),
        pytest.param(
            GPUS_8, workers(2, pool="gpus"), (2, 8.0), 16, ("2", "7.5", "2"), id="gpus-fit"
        ),
        pytest.param(
            GPUS_1, workers(1, pool="gpus"), (1, 8.0), 8, ("1", "7", "1"), id="fewer-gpus"
        ),
        pytest.param(
            SMALL, workers(2, pool="gpu"), (2, 1.0), 2, ("2", "0.5", "0"), id="gpus-fall-away"
        ),
    ],
)
def test_shares(machine, group, per_worker, num_cpus, environment):
    """Workers and CPUs of each, the head's logical CPUs, and what the driver is told."""
    fitted, _ = plan(machine, group)
    (only,) = fitted.groups
    told = fitted.environment()
    assert (only.workers, only.cpu) == per_worker
    assert fitted.num_cpus == num_cpus
    assert (
        told["MLP_WORKERS"],
        told["MLP_WORKER_CPUS"],
        told["MLP_GPUS_PER_WORKER"],
    ) == environment


@pytest.mark.parametrize(
    ("machine", "group", "sentence"),
    [
        pytest.param(
            SMALL,
            workers(2),
            "g0: 1 CPU a worker instead of 4, 3.2 GiB a worker instead of 4 GiB; "
            "this machine has 2 CPUs, 8 GiB of memory",
            id="cpus-and-memory",
        ),
        pytest.param(
            Machine(2, 64 * GIB),
            workers(1, pool="gpus", cpu="1", memory="1Gi"),
            "g0: no GPUs a worker instead of 2; this machine has no GPUs",
            id="no-gpus",
        ),
        pytest.param(
            GPUS_1,
            workers(1, pool="gpus"),
            "g0: 1 GPU a worker instead of 2; this machine has 1 GPU",
            id="fewer-gpus",
        ),
        pytest.param(GPUS_8, workers(2), "", id="nothing-to-say"),
    ],
)
def test_what_differs_is_said(machine, group, sentence):
    """One sentence for each thing that is not as the manifest has it."""
    assert plan(machine, group)[1] == sentence


@pytest.mark.parametrize(
    ("groups", "path", "words"),
    [
        pytest.param([workers(1, cpu="4")], "cluster.workers[0].cpu", "has 2 CPUs", id="cpu"),
        pytest.param([workers(2, cpu="2")], "cluster.workers[0].cpu", "2 worker(s)", id="cpu-sum"),
        pytest.param(
            [workers(1, cpu="1"), workers(1, cpu="2")],
            "cluster.workers[1].cpu",
            "with the groups before it",
            id="cpu-groups",
        ),
        pytest.param(
            [workers(1, pool="gpu", gpus=0, memory="9Gi")],
            "cluster.workers[0].memory",
            "has 8 GiB",
            id="memory",
        ),
        pytest.param(
            [workers(3, memory="3Gi")], "cluster.workers[0].memory", "3 worker(s)", id="memory-sum"
        ),
        pytest.param(
            [workers(1), workers(1, pool="gpu", gpus=1)],
            "cluster.workers[1].gpus",
            "has no GPUs",
            id="gpus",
        ),
    ],
)
def test_numbers_of_the_user_are_refused(groups, path, words):
    """What the user wrote and the machine has not is refused with path, value and remedy."""
    with pytest.raises(DoesNotFit) as refused:
        plan(SMALL, *groups)
    assert refused.value.path == path
    assert words in str(refused.value)
    assert refused.value.remedy


def test_more_workers_than_there_is_room_for_are_refused():
    """The number of workers is the user's too: 99 of them never start on two CPUs."""
    with pytest.raises(DoesNotFit, match="at most 20 workers") as refused:
        plan(SMALL, workers(1), workers(99))
    assert refused.value.path == "cluster.workers[1].min_workers"


def test_the_heads_own_number_is_refused():
    """A head that the user made larger than the machine is refused too."""
    with pytest.raises(DoesNotFit, match=r"cluster\.head\.cpu"):
        plan(SMALL, workers(1), head={"cpu": "3"})


def test_two_groups_share():
    """A group sized by the user keeps its number; the pool's group gets what is left."""
    fitted, _ = plan(Machine(8, 64 * GIB), workers(2, cpu="3"), workers(2))
    assert [(group.workers, group.cpu) for group in fitted.groups] == [(2, 3.0), (2, 1.0)]
    assert fitted.num_cpus == 8


def test_a_plan_survives_json():
    """The operator keeps the plan in the status file."""
    fitted, _ = plan(SMALL, workers(2), workers(1, pool="gpu"))
    assert LocalPlan.from_json(fitted.to_json()) == fitted
