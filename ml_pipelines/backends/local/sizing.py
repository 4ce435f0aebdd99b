"""How a manifest's sizes become this machine's: pool sizes shrink, users' numbers hold or refuse.

Ray's CPUs are logical: the sum of the workers' shares is what the local head offers, and a share
may be a fraction. What shrank is said in one sentence each.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ml_pipelines.backends import rayjob
from ml_pipelines.errors import DoesNotFit
from ml_pipelines.spec.pods import SIZED_BY_USER_ANNOTATION
from ml_pipelines.spec.quantity import cpu_cores, memory_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ml_pipelines.backends.base import Manifest

MEMORY_SHARE = 0.8  # of the machine: the rest is the system's and Ray's own
LEAST_CPU = 0.1  # a worker's logical share never goes below this
LEAST_MEMORY = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is: CPUs, memory in bytes, GPUs."""

    cpus: int
    memory: int
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One group as it runs here: `cpu`, `memory` (bytes) and `gpus` are one worker's."""

    name: str
    pool: str
    spot: bool
    workers: int
    cpu: float
    memory: int
    gpus: int
    least: int = 1
    fixed: tuple[str, ...] = ()  # what the user wrote by number: "cpu", "memory", "gpus"
    wanted_gpus: int = 0


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """One RayJob as it runs here."""

    head: GroupPlan
    groups: tuple[GroupPlan, ...]

    @property
    def num_cpus(self) -> int:
        """Logical CPUs of the local head: the workers' sum, rounded up (Ray takes whole ones)."""
        return max(1, math.ceil(sum(group.workers * group.cpu for group in self.groups) - 1e-6))

    @property
    def num_gpus(self) -> int:
        """GPUs of the local head."""
        return sum(group.workers * group.gpus for group in self.groups)

    def environment(self) -> dict[str, str]:
        """What the driver is told of its share.

        MLP_WORKERS         workers of the training group (the first that asked for GPUs, else the
                            first)
        MLP_WORKER_CPUS     CPUs that each may claim: together they leave one CPU of the head's
                            for Ray Data, whose tasks take whole ones
        MLP_GPUS_PER_WORKER GPUs that each may claim
        """
        group = next((one for one in self.groups if one.wanted_gpus), self.groups[0])
        free = 1.0 if self.num_cpus >= 2 else 0.5
        share = min(group.cpu, (self.num_cpus - free) / group.workers)
        return {
            "MLP_WORKERS": str(group.workers),
            "MLP_WORKER_CPUS": f"{_floor(max(share, 0.01)):g}",
            "MLP_GPUS_PER_WORKER": str(group.gpus),
        }

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LocalPlan:
        """Back from `to_json`."""
        return cls(_group_from(data["head"]), tuple(_group_from(one) for one in data["groups"]))


def fit(manifest: Manifest, machine: Machine) -> tuple[LocalPlan, tuple[str, ...]]:
    """The plan for this machine, and a sentence for each thing that differs from the manifest.

    Raises DoesNotFit, with the field's path, where the user's own numbers are too large.
    """
    said: list[str] = []
    head = _wanted(rayjob.cluster(manifest).get("headGroupSpec") or {}, "head")
    groups = [_wanted(group, "workers") for group in rayjob.worker_groups(manifest)]
    groups = groups or [GroupPlan("workers", head.pool, head.spot, 1, 1.0, 2**30, 0)]
    _refuse_singles(head, groups, machine)
    head = replace(
        head,
        cpu=min(head.cpu, machine.cpus),
        memory=min(head.memory, int(machine.memory * MEMORY_SHARE) // 4),
    )
    groups = _fewer_workers(groups, machine, said)
    groups = _fit_cpus(groups, machine, said)
    groups = _fit_memory(groups, machine, said)
    groups = _fit_gpus(groups, machine, said)
    return LocalPlan(head, tuple(groups)), tuple(said)


def _wanted(group: Mapping[str, Any], default_name: str) -> GroupPlan:
    asked = rayjob.resources(group)
    labels = rayjob.template_metadata(group, "labels")
    by_user = rayjob.template_metadata(group, "annotations").get(SIZED_BY_USER_ANNOTATION, "")
    gpus = sum(int(value) for key, value in asked.items() if "gpu" in key or "mig-" in key)
    workers = int(group.get("replicas") or group.get("minReplicas") or 1)
    return GroupPlan(
        name=str(group.get("groupName") or default_name),
        pool=labels.get(rayjob.POOL, ""),
        spot=labels.get(rayjob.SPOT, "") == "true",
        workers=workers,
        cpu=cpu_cores(str(asked.get("cpu", "1"))),
        memory=memory_bytes(str(asked.get("memory", "1Gi"))),
        gpus=gpus,
        least=min(int(group.get("minReplicas") or workers), workers),
        fixed=tuple(field.strip() for field in by_user.split(",") if field.strip()),
        wanted_gpus=gpus,
    )


def _refuse_singles(head: GroupPlan, groups: list[GroupPlan], machine: Machine) -> None:
    named = [("cluster.head", head)]
    named += [(f"cluster.workers[{index}]", group) for index, group in enumerate(groups)]
    for path, group in named:
        if "cpu" in group.fixed and group.cpu > machine.cpus:
            _refuse(f"{path}.cpu", _number(group.cpu), _has(machine.cpus, "CPU"))
        if "memory" in group.fixed and group.memory > machine.memory:
            _refuse(f"{path}.memory", _gib(group.memory), f"{_gib(machine.memory)} of memory")
        if "gpus" in group.fixed and group.gpus > machine.gpus:
            _refuse(f"{path}.gpus", str(group.gpus), _has(machine.gpus, "GPU"))


def _fewer_workers(groups: list[GroupPlan], machine: Machine, said: list[str]) -> list[GroupPlan]:
    """Where the user allowed fewer workers, there are no more than CPUs."""
    fewer = []
    for group in groups:
        most = max(group.least, math.floor(machine.cpus / (group.cpu if _is_fixed(group) else 1)))
        if group.workers > most:
            said.append(
                f"{group.name}: {most} instead of {group.workers} workers, "
                f"for this machine has {_has(machine.cpus, 'CPU')}"
            )
            group = replace(group, workers=most)  # noqa: PLW2901 - the same group, smaller
        fewer.append(group)
    return fewer


def _is_fixed(group: GroupPlan) -> bool:
    return "cpu" in group.fixed


def _fit_cpus(groups: list[GroupPlan], machine: Machine, said: list[str]) -> list[GroupPlan]:
    fixed = sum(group.workers * group.cpu for group in groups if _is_fixed(group))
    for index, group in enumerate(groups):
        if _is_fixed(group) and fixed > machine.cpus:
            _refuse_sum(f"cluster.workers[{index}].cpu", _number(group.cpu), group,
                        fixed > group.workers * group.cpu, _has(machine.cpus, "CPU"))  # fmt: skip
    wanted = sum(group.workers * group.cpu for group in groups if not _is_fixed(group))
    scale = min(1.0, (machine.cpus - fixed) / wanted) if wanted else 1.0
    if scale == 1.0:
        return groups
    shrunk = []
    for group in groups:
        if not _is_fixed(group):
            cpu = max(_floor(group.cpu * scale), LEAST_CPU)
            said.append(_shrunk(group, _number(group.cpu), _cpus(cpu), _has(machine.cpus, "CPU")))
            group = replace(group, cpu=cpu)  # noqa: PLW2901 - the same group, smaller
        shrunk.append(group)
    return shrunk


def _fit_memory(groups: list[GroupPlan], machine: Machine, said: list[str]) -> list[GroupPlan]:
    fixed = sum(group.workers * group.memory for group in groups if "memory" in group.fixed)
    for index, group in enumerate(groups):
        if "memory" in group.fixed and fixed > machine.memory:
            _refuse_sum(f"cluster.workers[{index}].memory", _gib(group.memory), group,
                        fixed > group.workers * group.memory,
                        f"{_gib(machine.memory)} of memory")  # fmt: skip
    wanted = sum(group.workers * group.memory for group in groups if "memory" not in group.fixed)
    left = max(machine.memory * MEMORY_SHARE - fixed, 0.0)
    scale = min(1.0, left / wanted) if wanted else 1.0
    if scale == 1.0:
        return groups
    shrunk = []
    for group in groups:
        if "memory" not in group.fixed:
            memory = max(int(group.memory * scale), LEAST_MEMORY)
            said.append(
                _shrunk(group, _gib(group.memory), f"{_gib(memory)} memory", _gib(machine.memory))
            )
            group = replace(group, memory=memory)  # noqa: PLW2901 - the same group, smaller
        shrunk.append(group)
    return shrunk


def _fit_gpus(groups: list[GroupPlan], machine: Machine, said: list[str]) -> list[GroupPlan]:
    left, fitted = machine.gpus, []
    for index, group in enumerate(groups):
        gpus = min(group.gpus, left // group.workers)
        if gpus < group.gpus and "gpus" in group.fixed:
            _refuse_sum(f"cluster.workers[{index}].gpus", str(group.gpus), group,
                        left < machine.gpus, _has(machine.gpus, "GPU"))  # fmt: skip
        if gpus < group.gpus:
            how = f"{gpus} a worker instead of {group.gpus}" if gpus else "it runs on CPUs"
            said.append(f"{group.name}: {how}, for this machine has {_has(machine.gpus, 'GPU')}")
        left -= gpus * group.workers
        fitted.append(replace(group, gpus=gpus))
    return fitted


def _refuse(path: str, value: str, there_is: str, *, how: str = "is") -> None:
    raise DoesNotFit(
        path, value, f"{how} more than there is: this machine has {there_is}",
        remedy="Ask for less, or leave the field out to take what the machine has.",
    )  # fmt: skip


def _refuse_sum(path: str, value: str, group: GroupPlan, others: bool, there_is: str) -> None:
    times = f"for each of {group.workers} workers is"
    _refuse(path, value, there_is, how=f"{times}, with the other groups," if others else times)


def _shrunk(group: GroupPlan, before: str, after: str, there_is: str) -> str:
    of = f" of pool {group.pool}" if group.pool else ""
    return (
        f"{group.name}: {after} a worker instead of the {before}{of}, "
        f"for this machine has {there_is}"
    )


def _has(number: int, what: str) -> str:
    return f"{number or 'no'} {what}" + ("" if number == 1 else "s")


def _floor(value: float) -> float:
    return math.floor(value * 100 + 1e-6) / 100


def _cpus(value: float) -> str:
    return f"{value:g} CPU" + ("" if value == 1 else "s")


def _number(value: float) -> str:
    return f"{value:g}"


def _gib(value: float) -> str:
    return f"{value / 2**30:.3g} GiB" if value >= 2**30 else f"{value / 2**20:.3g} MiB"


def _group_from(data: Mapping[str, Any]) -> GroupPlan:
    return GroupPlan(**{**data, "fixed": tuple(data["fixed"])})
