"""What every manifest promises, whatever the spec says."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from ml_pipelines.errors import DoesNotFit, InvalidInput
from ml_pipelines.spec.cluster import ClusterSpec, Head, WorkerGroup
from ml_pipelines.spec.job import Code, JobSpec, Limits
from ml_pipelines.spec.manifest import (
    Identity,
    Manifest,
    raycluster,
    rayjob,
    spec_hash,
    storage_digest,
    to_yaml,
)
from ml_pipelines.spec.pools import Pools, load_pools
from ml_pipelines.spec.quantity import cpu_cores, memory_bytes
from ml_pipelines.spec.validate import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

POOLS = load_pools()
ROOT = "ml-pipelines.dev/"
TRAINERS = WorkerGroup(name="trainers", pool="spot", gpus=1, min_workers=2, max_workers=2)


def job(**fields: Any) -> JobSpec:
    return JobSpec(**{"name": "a job", "entrypoint": ("python", "train.py"), **fields})


def manifest(spec: JobSpec | None = None, pools: Pools = POOLS, **identity: Any) -> Manifest:
    identity = {"run_key": "a-job-0123456789", "attempt": 1, **identity}
    return rayjob(
        spec or job(), pools, Identity(**identity), runs="file:///runs", lake="file:///lake"
    )


def templates(made: Manifest) -> Iterator[dict[str, Any]]:
    cluster = made["spec"].get("rayClusterSpec", made["spec"])
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        yield group["template"]


def pods(made: Manifest) -> list[dict[str, Any]]:
    return [template["spec"] for template in templates(made)]


def test_same_input_same_bytes():
    """Two processes that mean the same job make the same manifest, whatever order they say it in."""
    one = job(env={"A": "1", "B": "2"})
    other = job(env={"B": "2", "A": "1"})
    assert to_yaml(manifest(one)) == to_yaml(manifest(other))


def test_we_own_retries_and_clean_up():
    """Cases A15, E12: KubeRay retries nothing, makes no lost head again, and cleans up late."""
    spec = manifest()["spec"]
    assert spec["submissionMode"] == "HTTPMode"
    assert spec["backoffLimit"] == 0
    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["ttlSecondsAfterFinished"] > 120  # the claim time
    annotations = manifest()["metadata"]["annotations"]
    assert annotations["ray.io/disable-provisioned-head-restart"] == "true"
    assert spec["rayClusterSpec"]["authOptions"] == {"mode": "token"}


def test_backstops_lie_behind_our_clocks():
    """KubeRay's deadlines come only after ours would have fired, queue time included."""
    limits = Limits(queue_s=1000, provisioning_s=200, run_s=3000)
    spec = manifest(job(limits=limits))["spec"]
    assert spec["preRunningDeadlineSeconds"] == 1000 + 200 + 300
    assert spec["activeDeadlineSeconds"] == 1000 + 200 + 300 + 3000 + 300


def test_kueue_queue():
    """A pool's queue is the RayJob's label, and its wait no part of KubeRay's deadlines.

    It is made suspended: a cluster without Kueue would run it past its queue.
    """
    data = {"cpu": {"cpu": 4, "memory": "8Gi", "queue": "team-a"}}
    limits = Limits(queue_s=1000, provisioning_s=200)
    made = manifest(job(limits=limits), parse(Pools, {"pools": data}))
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert made["spec"]["preRunningDeadlineSeconds"] == 500
    assert made["spec"]["suspend"] is True
    assert "kueue.x-k8s.io/queue-name" not in manifest()["metadata"]["labels"]
    assert "suspend" not in manifest()["spec"]


def test_head_does_no_work():
    """The head sits on a CPU pool and offers tasks neither CPUs nor GPUs."""
    made = manifest(job(cluster=ClusterSpec(workers=(TRAINERS,))))
    head = made["spec"]["rayClusterSpec"]["headGroupSpec"]
    assert head["rayStartParams"] == {"num-cpus": "0", "num-gpus": "0"}
    assert head["template"]["metadata"]["labels"][f"{ROOT}pool"] == "cpu"
    ports = head["template"]["spec"]["containers"][0]["ports"]
    assert {"name": "dashboard", "containerPort": 8265} in ports


def test_requests_are_limits():
    """Case A13, A17: every container has requests, limits, and they are the same."""
    made = manifest(job(cluster=ClusterSpec(workers=(TRAINERS, WorkerGroup(cpu="500m")))))
    for pod in pods(made):
        (container,) = pod["containers"]
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert {"cpu", "memory"} <= set(container["resources"]["limits"])


def test_sizes_left_out_are_the_pools_share():
    """One of four GPUs comes with a quarter of the machine, less what runs beside Ray in the pod.

    What the user wrote stands.
    """
    four = {"cpu": "46", "memory": "170Gi", "gpus": 4}
    large = {name: POOLS.pools[name].model_copy(update=four) for name in ("gpu", "spot")}
    pools = POOLS.model_copy(update={"pools": {**POOLS.pools, **large}})
    groups = (TRAINERS, WorkerGroup(name="b", pool="gpu", gpus=2, cpu="3"), WorkerGroup(name="c"))
    _, *workers = pods(manifest(job(cluster=ClusterSpec(workers=groups)), pools))
    limits = [pod["containers"][0]["resources"]["limits"] for pod in workers]
    assert limits == [
        {"cpu": "11450m", "memory": "43456Mi", "nvidia.com/gpu": "1"},
        {"cpu": "3", "memory": "86976Mi", "nvidia.com/gpu": "2"},
        {"cpu": "6950m", "memory": "26560Mi"},
    ]


@pytest.mark.parametrize("elastic", [False, True])
def test_a_pod_is_never_larger_than_its_machine(elastic):
    """Also where the user writes the machine's whole size, and with an autoscaler at the head."""
    most = 2 if elastic else 1
    groups = (
        WorkerGroup(name="a", max_workers=most),
        WorkerGroup(name="b", cpu="7", memory="26Gi"),
        WorkerGroup(name="c", cpu="6990m", memory="1Gi"),
    )
    made = manifest(job(cluster=ClusterSpec(workers=groups)))
    scaler = made["spec"]["rayClusterSpec"].get("autoscalerOptions", {}).get("resources")
    beside_head = [scaler["requests"]] if elastic else []
    for pod, more in zip(pods(made), [beside_head, [], [], []], strict=True):
        asked = [one["resources"]["requests"] for one in pod["containers"]]
        asked += [one["resources"]["requests"] for one in pod["initContainers"]] + more
        assert sum(cpu_cores(one["cpu"]) for one in asked) <= 7
        assert sum(memory_bytes(one["memory"]) for one in asked) <= 26 * 2**30


def test_the_driver_knows_what_was_asked_for():
    """A job that asked for GPUs and is given none can tell: it never trains on CPUs unseen."""
    groups = (WorkerGroup(name="readers"), TRAINERS)
    made = yaml.safe_load(
        manifest(job(cluster=ClusterSpec(workers=groups)))["spec"]["runtimeEnvYAML"]
    )
    assert made["env_vars"]["MLP_WORKERS"] == "2"
    assert made["env_vars"]["MLP_GPUS_PER_WORKER"] == "1"
    plain = yaml.safe_load(manifest()["spec"]["runtimeEnvYAML"])
    assert plain["env_vars"]["MLP_GPUS_PER_WORKER"] == "0"


def test_sizes_say_whose_they_are():
    """The local backend may shrink what the pool said and must refuse what the user wrote."""
    groups = (TRAINERS, WorkerGroup(name="b", cpu="3", memory="1Gi"), WorkerGroup(name="c"))
    cluster = ClusterSpec(head=Head(cpu="1"), workers=groups)
    said = [
        template["metadata"]["annotations"][f"{ROOT}sized-by-user"]
        for template in templates(manifest(job(cluster=cluster)))
    ]
    assert said == ["cpu", "gpus", "cpu,memory", ""]


def test_ray_is_told_whole_cpus():
    """Ray counts whole CPUs: never more than there are, but one at least."""
    groups = (WorkerGroup(cpu="3500m"), WorkerGroup(name="b", cpu="500m"))
    made = manifest(job(cluster=ClusterSpec(workers=groups)))
    workers = made["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert [group["rayStartParams"]["num-cpus"] for group in workers] == ["3", "1"]


def test_elastic_cluster_gets_an_autoscaler():
    """Only where a group may grow does Ray's autoscaler run; it alone, beside the head, may ask."""
    fixed = manifest()
    assert "enableInTreeAutoscaling" not in fixed["spec"]["rayClusterSpec"]
    assert not any(pod["automountServiceAccountToken"] for pod in pods(fixed))
    grows = manifest(job(cluster=ClusterSpec(workers=(WorkerGroup(max_workers=3),))))
    assert grows["spec"]["rayClusterSpec"]["enableInTreeAutoscaling"] is True
    assert not any(pod["automountServiceAccountToken"] for pod in pods(grows))
    has_token = [any("projected" in one for one in pod["volumes"]) for pod in pods(grows)]
    assert has_token == [True, False]
    assert not any("token" in str(one) for one in pods(grows)[0]["containers"][0]["volumeMounts"])


def test_lost_nodes_are_given_up_in_seconds():
    """Every pod leaves a node that is gone after half a minute instead of five."""
    for pod in pods(manifest(job(cluster=ClusterSpec(workers=(TRAINERS,))))):
        lost = {
            toleration["key"]: toleration["tolerationSeconds"]
            for toleration in pod["tolerations"]
            if toleration["effect"] == "NoExecute"
        }
        assert lost == {"node.kubernetes.io/not-ready": 30, "node.kubernetes.io/unreachable": 30}


def test_pods_are_as_safe_as_restricted_asks():
    """Every pod passes Kubernetes' restricted level, and its containers never start again."""
    for pod in pods(manifest()):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod["restartPolicy"] == "Never"
        assert pod["terminationGracePeriodSeconds"] < 30


def test_platform_settings_reach_every_pod():
    """Image, account and pull secrets are the pool's, else the platform's."""
    pools = parse(
        Pools,
        {
            "image": "registry.example/ml:1",
            "ray_version": "2.55.0",
            "service_account": "jobs",
            "image_pull_secrets": ["pull"],
            "pools": {
                "cpu": {"cpu": 4, "memory": "8Gi"},
                "big": {"cpu": 64, "memory": "1Ti", "image": "big:2", "service_account": "big"},
            },
        },
    )
    made = manifest(job(cluster=ClusterSpec(workers=(WorkerGroup(pool="big"),))), pools)
    assert [pod["containers"][0]["image"] for pod in pods(made)] == [
        "registry.example/ml:1",
        "big:2",
    ]
    assert [pod["serviceAccountName"] for pod in pods(made)] == ["jobs", "big"]
    assert all(pod["imagePullSecrets"] == [{"name": "pull"}] for pod in pods(made))
    assert made["spec"]["rayClusterSpec"]["rayVersion"] == "2.55.0"


def test_price_is_written_where_it_was_valid():
    """A pod carries its machine's price; an unknown price is not there at all."""
    data = {"cpu": {"cpu": 4, "memory": "8Gi", "price_per_hour": 0.25}}
    for template in templates(manifest(pools=parse(Pools, {"pools": data}))):
        assert template["metadata"]["annotations"][f"{ROOT}price-per-hour"] == "0.25"
    for template in templates(manifest()):
        assert f"{ROOT}price-per-hour" not in template["metadata"]["annotations"]


def test_labels_are_on_the_job_and_every_pod():
    """KubeRay copies no labels to pods, so each template has them all."""
    spec = job(owner="ann", team="ads", experiment="e1", cluster=ClusterSpec(workers=(TRAINERS,)))
    run = {"run": "r1", "asset": "ads_model", "partition": "2019-11-24", "code_location": "ml"}
    made = manifest(spec, labels=run, attempt=3)
    common = {
        "job": "a-job-" + made["metadata"]["labels"][f"{ROOT}job"].rpartition("-")[2],
        "owner": "ann", "team": "ads", "experiment": "e1", "run": "r1", "asset": "ads_model",
        "partition": "2019-11-24", "code-location": "ml", "run-key": "a-job-0123456789",
        "attempt": "3", "spec-hash": spec_hash(made),
            "storage": storage_digest("file:///runs"),
    }  # fmt: skip
    places = [made, *templates(made)]
    machines = [("spot", "true"), ("cpu", "false"), ("spot", "true")]
    for place, (pool, spot) in zip(places, machines, strict=True):
        wanted = {**common, "pool": pool, "spot": spot}
        assert place["metadata"]["labels"] == {ROOT + key: value for key, value in wanted.items()}
        assert place["metadata"]["annotations"][f"{ROOT}job"] == "a job"


def test_empty_labels_are_left_out():
    """Who has no team has no label for it."""
    assert f"{ROOT}team" not in manifest()["metadata"]["labels"]


def test_run_environment():
    """Cases A6, D13: our variables, the platform's and the user's reach driver and pods alike."""
    spec = job(env={"RAY_DEDUP_LOGS": "1", "MINE": "x$$ y"})
    made = manifest(spec, POOLS.model_copy(update={"env": {"AWS_REGION": "eu", "MINE": "theirs"}}))
    env = yaml.safe_load(made["spec"]["runtimeEnvYAML"])["env_vars"]
    assert env["RAY_DEDUP_LOGS"] == "1"
    assert env["MINE"] == "x$$ y"
    assert env["AWS_REGION"] == "eu"
    assert env["PYTHONUNBUFFERED"] == "1"
    assert env["MLP_RUNS"] == "file:///runs"
    assert env["MLP_LAKE"] == "file:///lake"
    assert env["MLP_RUN_KEY"] == "a-job-0123456789"
    assert env["MLP_ATTEMPT"] == "1"
    for pod in pods(made):
        seen = {entry["name"]: entry["value"] for entry in pod["containers"][0]["env"]}
        assert seen == {**env, "MINE": "x$$$$ y"}  # Kubernetes reads `$$` as `$`


def test_cpu_instead_of_gpu_is_the_platforms_to_allow():
    """Only a platform that says so lets a workload go on without the GPUs it asked for."""
    allows = parse(
        Pools, {"allow_cpu_without_gpu": True, "pools": {"cpu": {"cpu": 4, "memory": "8Gi"}}}
    )
    allowed = yaml.safe_load(manifest(pools=allows)["spec"]["runtimeEnvYAML"])["env_vars"]
    refused = yaml.safe_load(manifest()["spec"]["runtimeEnvYAML"])["env_vars"]
    assert allowed["MLP_ALLOW_CPU"] == "1"
    assert "MLP_ALLOW_CPU" not in refused


def test_code_travels_as_working_dir():
    """A packed folder is named in the runtime env; an image with the code needs none."""
    code = Code(url="s3://runs/code/x.zip", sha256="0" * 64)
    with_code = yaml.safe_load(manifest(job(code=code))["spec"]["runtimeEnvYAML"])
    assert with_code["working_dir"] == "s3://runs/code/x.zip"
    assert "working_dir" not in yaml.safe_load(manifest()["spec"]["runtimeEnvYAML"])


def test_params_stay_out_of_the_manifest():
    """The workload reads its config from the journal; the manifest only knows whether it changed."""
    assert "hunter2" not in json.dumps(manifest(job(params={"token": "hunter2"})))


@pytest.mark.parametrize(
    "identity",
    [
        {"attempt": 2},
        {"run_key": "another-0123456789"},
        {"labels": {"run": "another"}},
    ],
    ids=["attempt", "run key", "run"],
)
def test_hash_is_not_about_whose_it_is(identity):
    """Attempts and runs of the same work have one hash."""
    assert spec_hash(manifest(**identity)) == spec_hash(manifest())


def test_hash_is_not_about_who_asks():
    """A run that goes on in another process, under another user, still finds its job."""
    asked = job(owner="ann", team="ads", experiment="e1")
    assert spec_hash(manifest(asked)) == spec_hash(manifest())


@pytest.mark.parametrize(
    "fields",
    [
        {"entrypoint": ("python", "other.py")},
        {"env": {"A": "1"}},
        {"params": {"epochs": 2}},
        {"owes_result": True},
        {"limits": Limits(stall_s=60)},
        {"cluster": ClusterSpec(workers=(WorkerGroup(cpu="1"),))},
        {"cluster": ClusterSpec(workers=(TRAINERS,))},
        {"code": Code(url="s3://runs/code/x.zip", sha256="0" * 64)},
    ],
    ids=["entrypoint", "env", "params", "owes_result", "limits", "size", "pool", "code"],
)
def test_hash_is_about_the_work(fields):
    """Case B2: whatever changes what is done changes the hash, so it is not adopted silently."""
    assert spec_hash(manifest(job(**fields))) != spec_hash(manifest())


def test_hash_leaves_the_manifest_alone():
    """Hashing reads; what carries the hash as a label has the same hash."""
    made = manifest()
    before = copy.deepcopy(made)
    assert spec_hash(made) == made["metadata"]["labels"][f"{ROOT}spec-hash"]
    assert made == before


def test_pools_are_asked_first():
    """What the pools can't give never becomes a manifest."""
    with pytest.raises(DoesNotFit, match="more than a machine of pool `cpu` has"):
        manifest(job(cluster=ClusterSpec(workers=(WorkerGroup(cpu="64"),))))


def test_standing_cluster():
    """A standing cluster has the same pods, but its head may come back."""
    made = raycluster(ClusterSpec(), POOLS, name="ann", labels={"owner": "ann"})
    assert made["metadata"]["labels"][f"{ROOT}owner"] == "ann"
    assert "ray.io/disable-provisioned-head-restart" not in made["metadata"]["annotations"]
    assert made["spec"]["authOptions"] == {"mode": "token"}


@pytest.mark.parametrize("name", ["Ann", "1st", "a" * 54, "", "a-"], ids=repr)
def test_name_of_a_standing_cluster(name):
    """Case A1: a name that KubeRay would refuse later is refused now."""
    with pytest.raises(InvalidInput, match="is no name for a cluster"):
        raycluster(ClusterSpec(), POOLS, name=name, labels={})
