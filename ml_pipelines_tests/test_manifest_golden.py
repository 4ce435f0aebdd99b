"""Manifests are pinned to the byte; `python ml_pipelines_tests/test_manifest_golden.py` rewrites.

Read the difference before committing it: every line is what a cluster would be asked for.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ml_pipelines.spec import logship
from ml_pipelines.spec.cluster import ClusterSpec, WorkerGroup
from ml_pipelines.spec.job import Code, JobSpec, Limits
from ml_pipelines.spec.manifest import (
    SPEC_HASH_LABEL,
    Identity,
    Manifest,
    raycluster,
    rayjob,
    to_yaml,
)
from ml_pipelines.spec.pools import load_pools

GOLDEN = Path(__file__).with_name("golden")
PLATFORM = GOLDEN / "platform.yaml"
SCRIPT = Path(logship.__file__).with_name("ship_logs.py").read_text(encoding="utf-8")


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
        secrets={"TRACKING_TOKEN": "tracking/token"},
        params={"model_name": "dcn", "epochs": 2},
        owes_result=True,
        owner="ann+ads@example.org",
        team="ads",
        experiment="wider embeddings",
    )
    identity = Identity(
        run_key="ads-model-2019-11-24-0123456789",
        attempt=2,
        labels={
            "run": "6f0c1a9e-6d43-4f4f-8a2e-0a6f2b1c9d77",
            "asset": "ads_model",
            "partition": "2019-11-24",
            "code_location": "ml_pipelines",
        },
    )
    return rayjob(spec, load_pools(PLATFORM), identity, runs="s3://runs", lake="s3://lake")


def standing_cluster() -> Manifest:
    """A personal cluster."""
    spec = ClusterSpec(workers=(WorkerGroup(pool="gpu", min_workers=1, max_workers=2),))
    return raycluster(spec, load_pools(), name="ann-notebook", labels={"owner": "ann"})


MANIFESTS = {"cpu_job": cpu_job, "spot_training": spot_training, "raycluster": standing_cluster}


def reviewed(name: str) -> str:
    """A manifest as it is kept: the script beside Ray by its name, and no hash over that."""
    made = MANIFESTS[name]()
    digest = made["metadata"]["labels"][SPEC_HASH_LABEL]
    text = json.dumps(made).replace(json.dumps(SCRIPT), '"ship_logs.py"')
    return to_yaml(json.loads(text.replace(digest, "0" * 32)))


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifest_is_the_golden_file(name):
    """The generator makes exactly the manifest that was reviewed."""
    assert reviewed(name) == (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", MANIFESTS)
def test_printed_manifest_reads_back(name):
    """The printed manifest is the manifest."""
    made = MANIFESTS[name]()
    assert yaml.safe_load(to_yaml(made)) == made


if __name__ == "__main__":
    for name in MANIFESTS:
        (GOLDEN / f"{name}.yaml").write_text(reviewed(name), encoding="utf-8")
