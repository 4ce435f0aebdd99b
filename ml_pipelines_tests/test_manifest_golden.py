"""Manifests are pinned to the byte; `python ml_pipelines_tests/test_manifest_golden.py` rewrites.

Read the difference before committing it: every line is what a cluster would be asked for.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ml_pipelines.spec.cluster import ClusterSpec, WorkerGroup
from ml_pipelines.spec.job import Code, JobSpec, Limits
from ml_pipelines.spec.manifest import Identity, Manifest, raycluster, rayjob, to_yaml
from ml_pipelines.spec.pools import load_pools

GOLDEN = Path(__file__).with_name("golden")


def cpu_job() -> Manifest:
    """A script on the default cluster, as `mlp job submit` makes it."""
    spec = JobSpec(
        name="hello",
        entrypoint=("python", "hello.py", "--greeting", "hello world; it's me"),
        code=Code(url="file:///home/ann/.mlp/runs/code/" + "0" * 64 + ".zip", sha256="0" * 64),
        env={"LEARNING_RATE": "1E-5"},
        owner="ann",
    )
    identity = Identity(
        run_key="hello-0123456789", attempt=1, labels={"code_location": "ml_pipelines"}
    )
    return rayjob(
        spec,
        load_pools(),
        identity,
        runs="file:///home/ann/.mlp/runs",
        lake="file:///home/ann/.mlp/lake",
    )


def spot_training() -> Manifest:
    """The second attempt of a training on two spot GPUs, as a Dagster run makes it."""
    spec = JobSpec(
        name="ads_model",
        entrypoint=("python", "-m", "ml_pipelines.workloads.ads_ranking.train"),
        cluster=ClusterSpec(
            workers=(
                WorkerGroup(name="trainers", pool="spot", gpus=1, min_workers=2, max_workers=2),
                WorkerGroup(name="readers", cpu="3", memory="6Gi", min_workers=1, max_workers=4),
            )
        ),
        limits=Limits(queue_s=3600, provisioning_s=600, run_s=7200),
        params={"model_name": "dcn", "epochs": 2},
        owes_result=True,
        owner="ann+ads@example.org",
        team="ads",
        experiment="wider embeddings",
    )
    identity = Identity(
        run_key="ads-model-2019-11-24-0123456789",
        attempt=2,
        backend_env={"AWS_ENDPOINT_URL": "http://s3.storage:9000"},
        labels={
            "run": "6f0c1a9e-6d43-4f4f-8a2e-0a6f2b1c9d77",
            "asset": "ads_model",
            "partition": "2019-11-24",
            "code_location": "ml_pipelines",
        },
    )
    return rayjob(spec, load_pools(), identity, runs="s3://runs", lake="s3://lake")


def standing_cluster() -> Manifest:
    """A personal cluster."""
    spec = ClusterSpec(workers=(WorkerGroup(pool="gpu", min_workers=1, max_workers=2),))
    return raycluster(spec, load_pools(), name="ann-notebook", labels={"owner": "ann"})


MANIFESTS = {"cpu_job": cpu_job, "spot_training": spot_training, "raycluster": standing_cluster}


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifest_is_the_golden_file(name):
    """The generator makes exactly the manifest that was reviewed."""
    assert to_yaml(MANIFESTS[name]()) == (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", MANIFESTS)
def test_golden_file_reads_back(name):
    """The printed manifest is the manifest."""
    assert yaml.safe_load((GOLDEN / f"{name}.yaml").read_bytes()) == MANIFESTS[name]()


if __name__ == "__main__":
    for name, make in MANIFESTS.items():
        (GOLDEN / f"{name}.yaml").write_text(to_yaml(make()), encoding="utf-8")
