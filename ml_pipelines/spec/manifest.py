"""The pure generator: a spec becomes a complete RayJob or RayCluster manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ml_pipelines import settings
from ml_pipelines.errors import InvalidInput
from ml_pipelines.spec import naming
from ml_pipelines.spec.cluster import ClusterSpec
from ml_pipelines.spec.encoding import dump_yaml, json_in_yaml, shell_line
from ml_pipelines.spec.job import JobSpec, Limits
from ml_pipelines.spec.pods import PodMaker
from ml_pipelines.spec.pools import Pools, check_against_pools, queue_of

# How long a finished RayJob keeps its cluster if nobody deletes it: more than the claim time, so
# that whoever takes over still finds the logs.
FINISHED_TTL_S = 300
# How far KubeRay's own clocks lie behind ours.
BACKSTOP_S = 300

RUN_KEY_LABEL = naming.label_key("run_key")
SPEC_HASH_LABEL = naming.label_key("spec_hash")
# Whose run storage holds the job's journal: two code locations may give two jobs one run key.
STORAGE_LABEL = naming.label_key("storage")
# A digest of what the spec says and the manifest has no place for.
UNSEEN_ANNOTATION = naming.label_key("unseen_sha256")
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
KEEP_HEAD_LOST_ANNOTATION = "ray.io/disable-provisioned-head-restart"

# Ray's own words are kept out of the user's log, and small machines are spared; the user's
# environment wins.
LOG_HYGIENE: Mapping[str, str] = {
    "PYTHONUNBUFFERED": "1",
    "RAY_COLOR_PREFIX": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_DATA_LOG_LEVEL": "WARNING",
    "RAY_DATA_PARQUET_FOOTER_NUM_ACTORS": "1",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
}

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose attempt a manifest is.

    `labels` are the run's, by short name (`run`, `asset`, `partition`, `code_location`); any text.
    """

    run_key: str
    attempt: int
    labels: Mapping[str, str] = field(default_factory=dict)


def rayjob(
    spec: JobSpec, pools: Pools, identity: Identity, *, runs: str, lake: str, digest: str = ""
) -> Manifest:
    """The complete RayJob of one attempt: the same arguments give the same bytes.

    `runs` and `lake` are URLs. `digest` is the hash that the job was begun with, by which its
    RayJobs are known whatever became of the pools since; by default this one's. Raises InvalidInput (DoesNotFit) about what the pools can't give.
    """
    check_against_pools(spec, pools)
    env = _environment(spec, pools, identity, runs, lake)
    texts = {
        **identity.labels,
        "job": spec.name,
        "owner": spec.owner,
        "team": spec.team,
        "experiment": spec.experiment,
        "run_key": identity.run_key,
        "attempt": str(identity.attempt),
        "storage": storage_digest(runs),
    }
    pods = PodMaker(pools, env, texts, spec.secrets)
    labels, annotations = pods.metadata(**_machines(spec.cluster, pools))
    annotations[KEEP_HEAD_LOST_ANNOTATION] = "true"
    annotations[UNSEEN_ANNOTATION] = _unseen(spec)
    queue = queue_of(spec.cluster, pools)
    if queue:
        labels[QUEUE_LABEL] = queue
    manifest: Manifest = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": naming.attempt_name(identity.run_key, identity.attempt),
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "entrypoint": shell_line(spec.entrypoint),
            "runtimeEnvYAML": json_in_yaml(_runtime_env(spec, env)),
            "submissionMode": "HTTPMode",
            "backoffLimit": 0,
            **_deadlines(spec.limits, queued_by_kueue=bool(queue)),
            # As Kueue itself does: where it isn't, the job waits, and doesn't pass its queue by.
            **({"suspend": True} if queue else {}),
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": FINISHED_TTL_S,
            "rayClusterSpec": _cluster(spec.cluster, pools, pods),
        },
    }
    return _hashed(manifest, digest)


def raycluster(
    spec: ClusterSpec, pools: Pools, *, name: str, labels: Mapping[str, str]
) -> Manifest:
    """A standing RayCluster; `labels` by short name, any text. Raises InvalidInput."""
    if not naming.is_dns_label(name, naming.CLUSTER_NAME_LENGTH):
        raise InvalidInput(
            "name",
            name,
            "is no name for a cluster",
            remedy="Use lower-case letters, digits and dashes, a letter first, at most "
            f"{naming.CLUSTER_NAME_LENGTH} characters.",
        )
    check_against_pools(spec, pools)
    pods = PodMaker(pools, {**LOG_HYGIENE, **pools.env}, labels)
    own, annotations = pods.metadata(**_machines(spec, pools))
    queue = queue_of(spec, pools)
    if queue:
        own[QUEUE_LABEL] = queue
    manifest: Manifest = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "labels": own, "annotations": annotations},
        "spec": _cluster(spec, pools, pods),
    }
    return _hashed(manifest, "")


def storage_digest(runs: str) -> str:
    """16 hex digits for a run storage's URL: the value of `STORAGE_LABEL`."""
    return hashlib.sha256(runs.rstrip("/").encode()).hexdigest()[:16]


def spec_hash(manifest: Mapping[str, Any]) -> str:
    """32 hex digits over all but who it is for: name, run key, attempt and our labels are left out.

    Two manifests of one hash ask for the same work on the same machines.
    """
    plain = _without_identity(manifest)
    plain["metadata"].pop("name", None)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def to_yaml(manifest: Mapping[str, Any]) -> str:
    """The manifest as YAML, in the order it was made: what `--dry-run` prints."""
    return dump_yaml(manifest)


def _environment(
    spec: JobSpec, pools: Pools, identity: Identity, runs: str, lake: str
) -> dict[str, str]:
    ours = {
        settings.RUNS_VARIABLE: runs,
        settings.LAKE_VARIABLE: lake,
        settings.RUN_KEY_VARIABLE: identity.run_key,
        settings.ATTEMPT_VARIABLE: str(identity.attempt),
        **_trainers(spec.cluster, pools),
    }
    if pools.allow_cpu_without_gpu:
        ours[settings.ALLOW_CPU_VARIABLE] = "1"
    given = {**LOG_HYGIENE, **pools.env}
    # A plain value here would win over the Secret's, for Ray sets its own last.
    plain = {name: value for name, value in given.items() if name not in spec.secrets}
    return dict(sorted({**plain, **spec.env, **ours}.items()))


def _trainers(cluster: ClusterSpec, pools: Pools) -> dict[str, str]:
    """What a workload must know of its workers; a backend that gives it less says so itself."""
    sized = [
        (group, pools.pools[group.pool].gpus if group.gpus is None else group.gpus)
        for group in cluster.workers
    ]
    group, gpus = next((pair for pair in sized if pair[1]), sized[0])
    return {
        settings.WORKERS_VARIABLE: str(group.min_workers),
        settings.GPUS_VARIABLE: str(gpus),
    }


def _runtime_env(spec: JobSpec, env: Mapping[str, str]) -> dict[str, Any]:
    code = {"working_dir": spec.code.url} if spec.code else {}
    return {**code, "env_vars": dict(env)}


def _deadlines(limits: Limits, *, queued_by_kueue: bool) -> dict[str, int]:
    """KubeRay's clocks, each a margin behind our own.

    Both count from the moment KubeRay sees the job, after Kueue let it in. Without Kueue a full
    cluster makes pods wait there, and that is queue time too.
    """
    queue_s = 0 if queued_by_kueue else limits.queue_s
    start_s = queue_s + limits.provisioning_s + BACKSTOP_S
    return {
        "preRunningDeadlineSeconds": start_s,
        "activeDeadlineSeconds": start_s + limits.run_s + BACKSTOP_S,
    }


def _cluster(spec: ClusterSpec, pools: Pools, pods: PodMaker) -> Manifest:
    elastic: Manifest = {}
    if spec.elastic:
        elastic = {"enableInTreeAutoscaling": True, "autoscalerOptions": pods.autoscaler()}
    return {
        "rayVersion": pools.ray_version,
        "authOptions": {"mode": "token"},
        **elastic,
        "headGroupSpec": pods.head(spec.head, elastic=spec.elastic),
        "workerGroupSpecs": [pods.workers(group) for group in spec.workers],
    }


def _machines(cluster: ClusterSpec, pools: Pools) -> dict[str, str]:
    """The labels of the whole: the workers' pools, and whether any of them is spot."""
    names = sorted({group.pool for group in cluster.workers})
    spot = any(pools.pools[name].spot for name in names)
    return {"pool": ".".join(names), "spot": str(spot).lower()}


def _unseen(spec: JobSpec) -> str:
    unseen = spec.model_dump(mode="json", include={"params", "owes_result", "limits"})
    text = json.dumps(unseen, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _hashed(manifest: Manifest, digest: str) -> Manifest:
    """The manifest with its hash as a label of itself and of every pod."""
    digest = digest or spec_hash(manifest)
    cluster = manifest["spec"].get("rayClusterSpec", manifest["spec"])
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for metadata in [manifest["metadata"], *(group["template"]["metadata"] for group in groups)]:
        metadata["labels"][SPEC_HASH_LABEL] = digest
    return manifest


_IDENTITY_ENV = frozenset({settings.RUN_KEY_VARIABLE, settings.ATTEMPT_VARIABLE})


def _without_identity(node: Any) -> Any:
    """A copy without our labels and annotations and without the run's environment."""
    if isinstance(node, Mapping):
        kept = {
            key: _without_identity(value)
            for key, value in node.items()
            if key == UNSEEN_ANNOTATION
            or not (key.startswith(naming.PREFIX) or key in _IDENTITY_ENV)
        }
        if "runtimeEnvYAML" in kept:
            kept["runtimeEnvYAML"] = _without_identity(json.loads(kept["runtimeEnvYAML"]))
        return kept
    if isinstance(node, (list, tuple)):
        return [
            _without_identity(item)
            for item in node
            if not (isinstance(item, Mapping) and item.get("name") in _IDENTITY_ENV)
        ]
    return node
