"""Pools are read strictly, and what they can't give is refused with the numbers."""

from __future__ import annotations

import pytest

from ml_pipelines.errors import DoesNotFit, InvalidInput
from ml_pipelines.spec.cluster import ClusterSpec, WorkerGroup
from ml_pipelines.spec.job import JobSpec
from ml_pipelines.spec.pools import Pools, check_against_pools, load_pools, queue_of
from ml_pipelines.spec.validate import parse

POOLS = parse(
    Pools,
    {
        "pools": {
            "cpu": {"cpu": 8, "memory": "32Gi"},
            "gpu": {"cpu": 46, "memory": "170Gi", "gpus": 4, "queue": "team-a", "max_workers": 6},
            "other": {"cpu": 8, "memory": "32Gi", "queue": "team-b"},
        }
    },
)


def test_packaged_pools():
    """The package brings pools named cpu, gpu and spot, with an image and a Ray version."""
    pools = load_pools()
    assert set(pools.pools) == {"cpu", "gpu", "spot"}
    assert pools.get("spot", "x").spot
    assert not pools.get("cpu", "x").gpus
    assert pools.image == "registry.local/ml-pipelines:dev"
    assert not pools.allow_cpu_without_gpu


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("pools: {cpu: {cpu: 4}}", "{file}: pools.cpu.memory: nothing was given"),
        ("pools: {cpu: {cpu: 4, memory: 8GB}}", "{file}: pools.cpu.memory: '8GB' is no quantity"),
        (
            "pools: {cpu: {cpu: 4, memory: 8Gi, gpu: 1}}",
            "{file}: pools.cpu.gpu: 1 is for no field we know. Did you mean `gpus`?",
        ),
        (
            "pools: {cpu: {cpu: 4, memory: 8Gi, tolerations: [{effect: NoSchedul}]}}",
            "{file}: pools.cpu.tolerations[0].effect: 'NoSchedul' is none of the values allowed.",
        ),
        ("pools: {}", "{file}: pools: {{}} has too few items. Give at least 1."),
        ("pools: [", "MLP_POOLS: '{file}' is no YAML (while parsing"),
        ("", "{file}: None is no mapping."),
    ],
    ids=["missing", "quantity", "misspelt", "effect", "no pool", "no YAML", "empty"],
)
def test_bad_platform_file(tmp_path, text, sentence):
    """A mistake in the platform file is told with the file, the path and the value."""
    file = tmp_path / "pools.yaml"
    file.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        load_pools(file)
    assert str(caught.value).startswith(sentence.format(file=file))


def test_missing_platform_file(tmp_path):
    """A platform file that isn't there is named together with the variable that names it."""
    with pytest.raises(InvalidInput, match=r"MLP_POOLS: '.*absent.yaml' can't be read"):
        load_pools(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("cluster", "kind", "sentence"),
    [
        pytest.param(
            {"head": {"pool": "cpus"}},
            InvalidInput,
            "head.pool: 'cpus' is no pool. Did you mean `cpu`?",
            id="pool misspelt",
        ),
        pytest.param(
            {"workers": [{}, {"name": "b", "pool": "tpu-v5"}]},
            InvalidInput,
            "workers[1].pool: 'tpu-v5' is no pool. Write one of: cpu, gpu, other.",
            id="pool unknown",
        ),
        pytest.param(
            {"head": {"pool": "gpu"}},
            InvalidInput,
            "head.pool: 'gpu' has GPUs, which a head would leave idle. "
            "Use one without: cpu, other.",
            id="head on GPUs",
        ),
        pytest.param(
            {"workers": [{"gpus": 1}]},
            InvalidInput,
            "workers[0].gpus: 1 is asked of pool `cpu`, whose machines have no GPUs. "
            "Use a pool that has: gpu; or leave gpus out.",
            id="GPU of a pool without",
        ),
        pytest.param(
            {"workers": [{"pool": "gpu", "gpus": 8}]},
            DoesNotFit,
            "workers[0].gpus: 8 is more than a machine of pool `gpu` has, 4 GPUs. "
            "Ask for less or leave it out; several smaller workers may do the same work.",
            id="GPUs",
        ),
        pytest.param(
            {"workers": [{"cpu": "8500m"}]},
            DoesNotFit,
            "workers[0].cpu: '8500m' is more than a machine of pool `cpu` has, 8 CPUs. "
            "Ask for less or leave it out; several smaller workers may do the same work.",
            id="CPUs",
        ),
        pytest.param(
            {"head": {"memory": "33Gi"}},
            DoesNotFit,
            "head.memory: '33Gi' is more than a machine of pool `cpu` has, 32Gi of memory. "
            "Ask for less or leave it out; several smaller workers may do the same work.",
            id="memory of the head",
        ),
        pytest.param(
            {"workers": [{"pool": "gpu", "min_workers": 7}]},
            DoesNotFit,
            "workers[0].max_workers: 7 makes 7 workers on pool `gpu`, which allows 6. "
            "Ask for fewer.",
            id="workers",
        ),
        pytest.param(
            {"workers": [{"pool": "gpu"}, {"name": "b", "pool": "other"}]},
            InvalidInput,
            "workers: ['cpu', 'gpu', 'other'] are pools of different queues (team-a, team-b), "
            "and a job waits in one. Use pools of one queue.",
            id="two queues",
        ),
        pytest.param(
            {"workers": [{"pool": "gpu", "min_workers": 1, "max_workers": 2}]},
            InvalidInput,
            "workers: [(1, 2)] may grow, but queue `team-a` admits only clusters of fixed size. "
            "Give max_workers the value of min_workers.",
            id="elastic in a queue",
        ),
    ],
)  # fmt: skip
def test_refused_by_the_pools(cluster, kind, sentence):
    """Case F7: what the pools can't give is refused in one sentence, before anything exists."""
    with pytest.raises(InvalidInput) as caught:
        check_against_pools(parse(ClusterSpec, cluster), POOLS)
    assert type(caught.value) is kind
    assert str(caught.value) == sentence


def test_path_of_a_job_names_the_cluster():
    """Within a job the path starts at the job."""
    cluster = ClusterSpec(workers=(WorkerGroup(gpus=1),))
    with pytest.raises(InvalidInput) as caught:
        check_against_pools(JobSpec(name="x", entrypoint=("x",), cluster=cluster), POOLS)
    assert caught.value.path == "cluster.workers[0].gpus"


def test_what_fits_passes():
    """Exactly a machine's worth is not too much."""
    full = {"pool": "gpu", "cpu": 46, "memory": "170Gi", "gpus": 4, "min_workers": 6}
    cluster = parse(ClusterSpec, {"workers": [full]})
    check_against_pools(cluster, POOLS)
    assert queue_of(cluster, POOLS) == "team-a"
