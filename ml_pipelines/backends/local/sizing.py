"""How a manifest's sizes become this machine's.

A pool's sizes shrink; the numbers that the user wrote hold, or are refused. Ray's CPUs are
logical: the sum of the workers' shares is what the local head offers, and a share may be a
fraction.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from ml_pipelines import settings
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
    asked: Mapping[str, str] = field(default_factory=dict)  # the same in the manifest's words


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
        group = next(
            (one for one in self.groups if one.asked.get("gpus", "0") != "0"), self.groups[0]
        )
        free = 1.0 if self.num_cpus >= 2 else 0.5
        share = min(group.cpu, (self.num_cpus - free) / group.workers)
        return {
            settings.WORKERS_VARIABLE: str(group.workers),
            "MLP_WORKER_CPUS": f"{_floor(max(share, 0.01)):g}",
            settings.GPUS_VARIABLE: str(group.gpus),
        }

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LocalPlan:
        """Back from `to_json`."""
        return cls(_group_from(data["head"]), tuple(_group_from(one) for one in data["groups"]))


def fit(manifest: Manifest, machine: Machine) -> tuple[LocalPlan, tuple[str, ...]]:
    """The plan for this machine, and one sentence for each group that differs from the manifest.

    Raises DoesNotFit, with the field's path, where the user's own numbers are too large.
    """
    head = _wanted(rayjob.cluster(manifest).get("headGroupSpec") or {}, "head")
    wanted = [_wanted(group, "workers") for group in rayjob.worker_groups(manifest)]
    wanted = wanted or [GroupPlan("workers", head.pool, head.spot, 1, 1.0, 2**30, 0)]
    _refuse_singles(head, wanted, machine)
    groups = [_fewer_workers(group, machine) for group in wanted]
    _refuse_too_many(groups, machine)
    groups = _fit_cpus(groups, machine)
    groups = _fit_memory(groups, machine)
    groups = _fit_gpus(groups, machine)
    head = replace(
        head,
        cpu=min(head.cpu, machine.cpus),
        memory=min(head.memory, int(machine.memory * MEMORY_SHARE) // 4),
    )
    said = (_said(before, after, machine) for before, after in zip(wanted, groups, strict=True))
    return LocalPlan(head, tuple(groups)), tuple(sentence for sentence in said if sentence)


def _wanted(group: Mapping[str, Any], default_name: str) -> GroupPlan:
    asked = {name: str(value) for name, value in rayjob.resources(group).items()}
    labels = rayjob.template_metadata(group, "labels")
    by_user = rayjob.template_metadata(group, "annotations").get(SIZED_BY_USER_ANNOTATION, "")
    gpus = sum(int(value) for key, value in asked.items() if "gpu" in key or "mig-" in key)
    workers = int(group.get("replicas") or group.get("minReplicas") or 1)
    fixed = tuple(field.strip() for field in by_user.split(",") if field.strip())
    asked = {"cpu": "1", "memory": "1Gi", **asked}
    cpu, memory = cpu_cores(asked["cpu"]), memory_bytes(asked["memory"])
    beside = rayjob.log_container_requests(group)  # part of a pool's size, and not there locally
    if beside and "cpu" not in fixed:
        cpu += cpu_cores(beside["cpu"])
    if beside and "memory" not in fixed:
        memory += memory_bytes(beside["memory"])
    return GroupPlan(
        name=str(group.get("groupName") or default_name),
        pool=labels.get(rayjob.POOL, ""),
        spot=labels.get(rayjob.SPOT, "") == "true",
        workers=workers,
        cpu=cpu,
        memory=memory,
        gpus=gpus,
        least=min(int(group.get("minReplicas") or workers), workers),
        fixed=fixed,
        asked={"cpu": asked["cpu"], "memory": asked["memory"], "gpus": str(gpus)},
    )


def _refuse_singles(head: GroupPlan, groups: list[GroupPlan], machine: Machine) -> None:
    named = [("cluster.head", head)]
    named += [(f"cluster.workers[{index}]", group) for index, group in enumerate(groups)]
    for path, group in named:
        for name, asked, there in (
            ("cpu", group.cpu, machine.cpus),
            ("memory", group.memory, machine.memory),
            ("gpus", group.gpus, machine.gpus),
        ):
            if name in group.fixed and asked > there:
                _refuse(path, name, group, machine)


def _fewer_workers(group: GroupPlan, machine: Machine) -> GroupPlan:
    """Where the user allowed fewer workers, there are no more than CPUs."""
    each = group.cpu if "cpu" in group.fixed else 1.0
    return replace(group, workers=min(group.workers, max(group.least, int(machine.cpus / each))))


def _refuse_too_many(groups: list[GroupPlan], machine: Machine) -> None:
    """How many workers is the user's number too: each needs some of a CPU and of the memory."""
    room = int(min(machine.cpus / LEAST_CPU, machine.memory * MEMORY_SHARE / LEAST_MEMORY))
    together = 0
    for index, group in enumerate(groups):
        together += group.workers
        if together > room:
            have = _have(machine)
            raise DoesNotFit(
                f"cluster.workers[{index}].min_workers",
                group.workers,
                f"is more workers than there is room for: this machine has {have['cpu']} and "
                f"{have['memory']}",
                remedy=f"Ask for at most {room} workers in all.",
            )


def _fit_cpus(groups: list[GroupPlan], machine: Machine) -> list[GroupPlan]:
    fixed = _sum_fixed(groups, "cpu", machine, machine.cpus)
    scale = _scale(groups, "cpu", machine.cpus - fixed)
    return [
        group
        if scale == 1.0 or "cpu" in group.fixed
        else replace(group, cpu=max(_floor(group.cpu * scale), LEAST_CPU))
        for group in groups
    ]


def _fit_memory(groups: list[GroupPlan], machine: Machine) -> list[GroupPlan]:
    fixed = _sum_fixed(groups, "memory", machine, machine.memory)
    scale = _scale(groups, "memory", max(machine.memory * MEMORY_SHARE - fixed, 0.0))
    return [
        group
        if scale == 1.0 or "memory" in group.fixed
        else replace(group, memory=max(int(group.memory * scale), LEAST_MEMORY))
        for group in groups
    ]


def _fit_gpus(groups: list[GroupPlan], machine: Machine) -> list[GroupPlan]:
    left = machine.gpus - int(_sum_fixed(groups, "gpus", machine, machine.gpus))
    fitted = []
    for group in groups:
        gpus = group.gpus
        if "gpus" not in group.fixed:
            gpus = min(gpus, left // group.workers)
            left -= gpus * group.workers
        fitted.append(replace(group, gpus=gpus))
    return fitted


def _sum_fixed(groups: list[GroupPlan], field: str, machine: Machine, there: float) -> float:
    """What the user's own numbers take together; refused where that is more than there is."""
    taken = 0.0
    for index, group in enumerate(groups):
        if field in group.fixed:
            taken += group.workers * getattr(group, field)
            if taken > there:
                others = ", with the groups before it," if index else ""
                how = f"for each of {group.workers} worker(s){others} is"
                _refuse(f"cluster.workers[{index}]", field, group, machine, how=how)
    return taken


def _scale(groups: list[GroupPlan], field: str, left: float) -> float:
    """By how much the pools' sizes shrink so that their sum is what is left."""
    wanted = sum(
        group.workers * getattr(group, field) for group in groups if field not in group.fixed
    )
    return min(1.0, left / wanted) if wanted else 1.0


def _refuse(
    path: str, field: str, group: GroupPlan, machine: Machine, *, how: str = "is"
) -> NoReturn:
    raise DoesNotFit(
        f"{path}.{field}",
        group.asked[field],
        f"{how} more than there is: this machine has {_have(machine)[field]}",
        remedy="Ask for less, or leave the field out to take what the machine has.",
    )


def _said(before: GroupPlan, after: GroupPlan, machine: Machine) -> str:
    """How a group differs from what the manifest says, or nothing."""
    have, changes, short = _have(machine), [], []
    if after.workers != before.workers:
        changes.append(f"{after.workers} workers instead of {before.workers}")
        short.append(have["cpu"])
    if after.cpu != before.cpu:
        changes.append(f"{_count(after.cpu, 'CPU')} a worker instead of {before.cpu:g}")
        short.append(have["cpu"])
    if after.memory != before.memory:
        changes.append(f"{_gib(after.memory)} a worker instead of {_gib(before.memory)}")
        short.append(have["memory"])
    if after.gpus != before.gpus:
        changes.append(f"{_count(after.gpus, 'GPU')} a worker instead of {before.gpus}")
        short.append(have["gpus"])
    if not changes:
        return ""
    return f"{after.name}: {', '.join(changes)}; this machine has {', '.join(dict.fromkeys(short))}"


def _have(machine: Machine) -> dict[str, str]:
    return {
        "cpu": _count(machine.cpus, "CPU"),
        "memory": f"{_gib(machine.memory)} of memory",
        "gpus": _count(machine.gpus, "GPU"),
    }


def _count(number: float, what: str) -> str:
    return f"{f'{number:g}' if number else 'no'} {what}" + ("" if number == 1 else "s")


def _floor(value: float) -> float:
    return math.floor(value * 100 + 1e-6) / 100


def _gib(value: float) -> str:
    return f"{value / 2**30:.3g} GiB" if value >= 2**30 else f"{value / 2**20:.3g} MiB"


def _group_from(data: Mapping[str, Any]) -> GroupPlan:
    return GroupPlan(**{**data, "fixed": tuple(data["fixed"])})
