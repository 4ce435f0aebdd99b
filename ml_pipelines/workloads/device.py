"""Which device a worker uses: CUDA where GPUs were asked for, else CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ml_pipelines.clock import Clock
from ml_pipelines.errors import InvalidInput
from ml_pipelines.settings import ALLOW_CPU_VARIABLE, GPUS_VARIABLE

if TYPE_CHECKING:
    import torch

JOINING_S = 120.0


def asked_gpus(environ: Mapping[str, str], *, in_cluster: float, workers: int) -> int:
    """GPUs that the job asked for, for each of its workers.

    The backend says so in GPUS_VARIABLE; where it does not, the GPUs that Ray found were asked for.
    """
    told = environ.get(GPUS_VARIABLE)
    return int(float(told)) if told else int(in_cluster) // workers


def wants_cuda(asked: int, *, visible: float, environ: Mapping[str, str]) -> bool:
    """Whether to use CUDA; InvalidInput where GPUs were asked for and none is visible."""
    if not asked or visible:
        return bool(asked)
    if environ.get(ALLOW_CPU_VARIABLE) == "1":
        return False
    raise InvalidInput(
        GPUS_VARIABLE,
        asked,
        "GPUs a worker were asked for, and Ray sees none",
        remedy=f"Check the pool's image and GPU resource, or allow CPUs ({ALLOW_CPU_VARIABLE}=1).",
    )


def await_gpus(
    wanted: float, seen: Callable[[], tuple[float, int]], clock: Clock, *, machines: int
) -> None:
    """Return once Ray knows of the GPUs, or of all machines: they may join after the driver began.

    `seen` gives the GPUs and the machines that have joined.
    """
    until = clock.monotonic() + JOINING_S
    while clock.monotonic() < until:
        gpus, there = seen()
        if gpus >= wanted or there >= machines:
            return
        clock.sleep(0.5)


def a_worker_sees_cuda() -> bool:
    """Whether CUDA is there where Ray says that a GPU is: a test cluster's may be mere numbers."""
    import ray

    @ray.remote(num_gpus=1, num_cpus=0)
    def sees() -> bool:
        import torch

        return torch.cuda.is_available()

    return bool(ray.get(sees.remote()))


def worker_device(*, cuda: bool) -> torch.device:
    """This worker's device, with the settings that make its sums repeatable."""
    import torch

    # An operation that can't be repeated raises from here on. Filling what is new costs time only.
    torch.use_deterministic_algorithms(mode=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if not cuda:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InvalidInput(
            "device", "cuda", "is not visible to this worker", remedy="Check driver and image."
        )
    # Read when cuBLAS starts; without it matrix products may differ from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return torch.device("cuda", torch.cuda.current_device())
