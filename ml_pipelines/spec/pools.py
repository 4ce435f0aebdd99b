"""Pools: the kinds of machine that the platform offers, read from a YAML file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, JsonValue, field_validator, model_validator

from ml_pipelines.errors import DoesNotFit, InvalidInput
from ml_pipelines.spec.base import Strict
from ml_pipelines.spec.cluster import ClusterSpec, Head, WorkerGroup
from ml_pipelines.spec.job import EnvName, EnvValue, JobSpec
from ml_pipelines.spec.patching import check_patch
from ml_pipelines.spec.quantity import Cpu, Memory, cpu_cores, memory_bytes
from ml_pipelines.spec.references import check_names
from ml_pipelines.spec.validate import parse, spelling

PACKAGED = Path(__file__).with_name("pools.yaml")

# DNS-1123: what Kubernetes asks of a volume's name, and of other objects'.
ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
PoolName = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,28}[a-z0-9])?$")]


SubdomainName = Annotated[
    str,
    Field(
        max_length=253, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
    ),
]
# Volumes that Ray's pods have anyway.
_RESERVED_VOLUMES = frozenset({"autoscaler-token", "ray-logs", "shared-mem"})
_RAYS_FOLDER = "/tmp/ray"  # noqa: S108 - where Ray keeps its session


class Volume(Strict):
    """A claim (PersistentVolumeClaim) that every pod of a job mounts at `path`."""

    name: ObjectName
    claim: SubdomainName = Field(description="Name of a PersistentVolumeClaim.")
    path: str = Field(
        pattern=r"^(/[^/:\x00]+)+$", description="Where pods see it: an absolute path."
    )
    read_only: bool = Field(default=False, description="Whether pods can only read it.")

    @model_validator(mode="after")
    def _leaves_ray_alone(self) -> Volume:
        if self.name in _RESERVED_VOLUMES:
            raise ValueError(f"has the name {self.name!r}, which Ray's own volume bears; rename it")
        if f"{self.path}/".startswith(f"{_RAYS_FOLDER}/"):
            raise ValueError(f"lies at {self.path}, where Ray keeps its session; choose another")
        return self


class Toleration(Strict):
    """A taint that pods on this pool bear, in Kubernetes' words."""

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""


class Pool(Strict):
    """A kind of machine.

    `cpu`, `memory` and `gpus` are what one machine has for one pod. `price_per_hour` is a
    machine's, in dollars; unknown when left out. `image` and `service_account` stand over the
    platform's; `queue` is a Kueue queue that jobs on this pool wait in, in the order of their
    pools' `priority_class`, of which the head's comes first. `patch` is for what there
    is no field for: a strategic merge patch on the template of every pod here, as `kubectl patch`
    merges it (the containers are `ray-head` and `ray-worker`).
    """

    name: PoolName
    cpu: Cpu = Field(description="CPUs of a machine that a pod can have.")
    memory: Memory = Field(description="Memory of a machine that a pod can have.")
    gpus: int = Field(default=0, ge=0, le=16, description="GPUs of a machine.")
    gpu_resource: str = Field(
        default="nvidia.com/gpu", min_length=1, description="Kubernetes' name of it."
    )
    node_selector: dict[str, str] = Field(default={}, description="Labels of the nodes.")
    tolerations: tuple[Toleration, ...] = Field(default=(), strict=False)
    spot: bool = Field(
        default=False, description="Whether machines are taken away at short notice."
    )
    price_per_hour: float | None = Field(
        default=None, gt=0, description="Dollars an hour of a machine."
    )
    image: str | None = Field(default=None, min_length=1)
    service_account: SubdomainName | None = None
    queue: SubdomainName | None = Field(
        default=None, max_length=63, description="Kueue's LocalQueue."
    )
    priority_class: SubdomainName | None = Field(
        default=None, description="PriorityClass of the pods, and of the job in its queue."
    )
    max_workers: int | None = Field(
        default=None, ge=1, description="Most workers that one job may have."
    )
    patch: dict[str, JsonValue] = Field(
        default={}, description="Strategic merge patch on the pods' template."
    )


class Pools(Strict):
    """The platform file: its pools by name, and what holds for all of them."""

    pools: dict[str, Pool] = Field(min_length=1)
    image: str = Field(default="registry.local/ml-pipelines:dev", min_length=1)
    ray_version: str = Field(
        default="2.60.0", pattern=r"^\d+\.\d+\.\d+$", description="As in the image."
    )
    allow_cpu_without_gpu: bool = Field(
        default=False, description="Whether a workload that asked for GPUs may go on without."
    )
    service_account: SubdomainName | None = None
    image_pull_secrets: tuple[SubdomainName, ...] = Field(default=(), strict=False)
    env: dict[EnvName, EnvValue] = Field(
        default={}, description="Environment of every driver and worker, such as an S3 endpoint."
    )
    secrets: tuple[SubdomainName, ...] = Field(
        default=(), strict=False, description="Secrets whose keys become every pod's environment."
    )
    volumes: tuple[Volume, ...] = Field(
        default=(), strict=False, description="What every pod mounts."
    )
    # Numbers, since Kubernetes can't tell whether a user known by name is root.
    run_as_user: int = Field(default=1000, ge=1)
    run_as_group: int = Field(default=100, ge=1)

    @field_validator("env")
    @classmethod
    def _hold_no_credentials(cls, env: dict[str, str]) -> dict[str, str]:
        check_names(env)
        return env

    @field_validator("volumes")
    @classmethod
    def _differ(cls, volumes: tuple[Volume, ...]) -> tuple[Volume, ...]:
        for field in ("name", "path"):
            values = [getattr(volume, field) for volume in volumes]
            for value in values:
                if values.count(value) > 1:
                    raise ValueError(f"has the {field} {value!r} twice; change one")
        return volumes

    @model_validator(mode="before")
    @classmethod
    def _named_by_key(cls, data: Any) -> Any:
        pools = data.get("pools") if isinstance(data, dict) else None
        if not isinstance(pools, dict):
            return data
        named = {
            key: {"name": key, **pool} if isinstance(pool, dict) else pool
            for key, pool in pools.items()
        }
        return {**data, "pools": named}

    def get(self, name: str, path: str) -> Pool:
        """The pool of that name; `path` is the field that names it. Raises InvalidInput."""
        pool = self.pools.get(name)
        if pool is None:
            raise InvalidInput(path, name, "is no pool", remedy=spelling(name, self.pools))
        return pool

    def for_heads(self) -> str:
        """The pool that heads go to where nobody names one: `cpu`, else the first without GPUs."""
        without = [name for name, pool in self.pools.items() if not pool.gpus]
        usual = Head().pool
        return usual if usual in self.pools or not without else without[0]


def load_pools(path: Path | None = None) -> Pools:
    """Read the platform file, by default the packaged one. Raises InvalidInput."""
    source = path or PACKAGED
    try:
        data = yaml.safe_load(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            "MLP_POOLS", str(source), f"can't be read ({error})", remedy="Name a readable file."
        ) from error
    except yaml.YAMLError as error:
        text = " ".join(str(error).split())
        raise InvalidInput("MLP_POOLS", str(source), f"is no YAML ({text})") from error
    pools = parse(Pools, data, root=f"{source}: ")
    for name, pool in pools.pools.items():
        check_patch(pool.patch, f"{source}: pools.{name}.patch")
    return pools


def check_against_pools(spec: JobSpec | ClusterSpec, pools: Pools) -> None:
    """Refuse what the pools can't give. Raises InvalidInput, DoesNotFit where a number is at fault.

    Nothing that passes here can fail later for a reason that the pools' file knows.
    """
    cluster, root = (spec.cluster, "cluster.") if isinstance(spec, JobSpec) else (spec, "")
    _check_head(cluster.head, pools, f"{root}head")
    for number, group in enumerate(cluster.workers):
        _check_group(group, pools, f"{root}workers[{number}]")
    _check_counts(cluster, pools, root)
    _check_queue(cluster, pools, root)


def queue_of(cluster: ClusterSpec, pools: Pools) -> str | None:
    """The queue that a job on these pools waits in, if any (`check_against_pools` allows one)."""
    return next(iter(_queues(cluster, pools)), None)


def _used(cluster: ClusterSpec) -> Iterator[tuple[str, str]]:
    """Path and name of each pool that the cluster names, the head's first."""
    yield "head.pool", cluster.head.pool
    for number, group in enumerate(cluster.workers):
        yield f"workers[{number}].pool", group.pool


def _check_head(head: Head, pools: Pools, path: str) -> None:
    pool = pools.get(head.pool, f"{path}.pool")
    if pool.gpus:
        without = [name for name, other in pools.pools.items() if not other.gpus]
        remedy = f"Use one without: {', '.join(without)}." if without else "Add a pool without."
        raise InvalidInput(
            f"{path}.pool", head.pool, "has GPUs, which a head would leave idle", remedy=remedy
        )
    _check_size(head, pool, path)


def _check_group(group: WorkerGroup, pools: Pools, path: str) -> None:
    pool = pools.get(group.pool, f"{path}.pool")
    if group.gpus and not pool.gpus:
        having = [name for name, other in pools.pools.items() if other.gpus]
        use = f"Use a pool that has: {', '.join(having)}; or" if having else "No pool has any:"
        raise InvalidInput(
            f"{path}.gpus",
            group.gpus,
            f"is asked of pool `{pool.name}`, whose machines have no GPUs",
            remedy=f"{use} leave gpus out.",
        )
    if group.gpus and group.gpus > pool.gpus:
        raise _too_much(f"{path}.gpus", group.gpus, pool, f"{pool.gpus} GPUs")
    _check_size(group, pool, path)


def _check_size(size: Head | WorkerGroup, pool: Pool, path: str) -> None:
    if size.cpu is not None and cpu_cores(size.cpu) > cpu_cores(pool.cpu):
        raise _too_much(f"{path}.cpu", size.cpu, pool, f"{pool.cpu} CPUs")
    if size.memory is not None and memory_bytes(size.memory) > memory_bytes(pool.memory):
        raise _too_much(f"{path}.memory", size.memory, pool, f"{pool.memory} of memory")


def _too_much(path: str, value: object, pool: Pool, has: str) -> DoesNotFit:
    return DoesNotFit(
        path,
        value,
        f"is more than a machine of pool `{pool.name}` has, {has}",
        remedy="Ask for less or leave it out; several smaller workers may do the same work.",
    )


def _check_counts(cluster: ClusterSpec, pools: Pools, root: str) -> None:
    asked: dict[str, int] = {}
    for number, group in enumerate(cluster.workers):
        asked[group.pool] = asked.get(group.pool, 0) + group.max_workers
        most = pools.pools[group.pool].max_workers
        if most is not None and asked[group.pool] > most:
            raise DoesNotFit(
                f"{root}workers[{number}].max_workers",
                group.max_workers,
                f"makes {asked[group.pool]} workers on pool `{group.pool}`, which allows {most}",
                remedy="Ask for fewer.",
            )


def _check_queue(cluster: ClusterSpec, pools: Pools, root: str) -> None:
    queues = _queues(cluster, pools)
    if len(queues) > 1:
        raise InvalidInput(
            f"{root}workers",
            [name for _, name in _used(cluster)],
            f"are pools of different queues ({', '.join(queues)}), and a job waits in one",
            remedy="Use pools of one queue.",
        )
    if queues and cluster.elastic:
        raise InvalidInput(
            f"{root}workers",
            [(group.min_workers, group.max_workers) for group in cluster.workers],
            f"may grow, but queue `{queues[0]}` admits only clusters of fixed size",
            remedy="Give max_workers the value of min_workers.",
        )


def _queues(cluster: ClusterSpec, pools: Pools) -> list[str]:
    named = (pools.pools[name].queue for _, name in _used(cluster))
    return list(dict.fromkeys(queue for queue in named if queue))
