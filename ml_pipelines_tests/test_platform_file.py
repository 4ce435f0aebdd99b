"""What the platform file gives every pod, what it refuses, and how a patch is merged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ml_pipelines.errors import InvalidInput
from ml_pipelines.spec.job import JobSpec
from ml_pipelines.spec.manifest import Identity, Manifest, rayjob, spec_hash
from ml_pipelines.spec.patching import check_patch, patched
from ml_pipelines.spec.pools import Pools, load_pools
from ml_pipelines.spec.references import gives_secret
from ml_pipelines.spec.validate import parse
from ml_pipelines_tests.cluster import Cluster
from ml_pipelines_tests.test_manifest_golden import PLATFORM

TOKEN = "hf_" + "a1B2" * 9
ROLES = ("head", "worker")


def platform(**fields: Any) -> Pools:
    return parse(Pools, {"pools": {"cpu": {"cpu": 4, "memory": "8Gi"}}, **fields})


def made(pools: Pools, **fields: Any) -> Manifest:
    spec = parse(JobSpec, {"name": "a job", "entrypoint": ["true"], **fields})
    return rayjob(spec, pools, Identity(run_key="a-1", attempt=1), runs="s3://r", lake="s3://l")


def pods(manifest: Manifest) -> list[dict[str, Any]]:
    cluster = manifest["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def test_head_and_workers_alike() -> None:
    """Volumes, Secrets and priority reach every pod; the head runs the driver."""
    pools = parse(
        Pools,
        {
            "pools": {"cpu": {"cpu": 4, "memory": "8Gi", "priority_class": "research"}},
            "secrets": ["storage", "more.secrets"],
            "volumes": [{"name": "data", "claim": "data", "path": "/data", "read_only": True}],
        },
    )
    for pod in pods(made(pools, secrets={"HF_TOKEN": "hf/token"})):
        ray = pod["containers"][0]
        assert pod["priorityClassName"] == "research"
        assert [one["secretRef"]["name"] for one in ray["envFrom"]] == ["storage", "more.secrets"]
        assert {"name": "data", "mountPath": "/data", "readOnly": True} in ray["volumeMounts"]
        claim = {"claimName": "data", "readOnly": True}
        assert {"name": "data", "persistentVolumeClaim": claim} in pod["volumes"]
        ref = {"secretKeyRef": {"name": "hf", "key": "token"}}
        assert {"name": "HF_TOKEN", "valueFrom": ref} in ray["env"]


def test_a_secret_stands_over_the_platforms_plain_value() -> None:
    """Ray sets plain variables last, so there must be none of the secret's name."""
    manifest = made(platform(env={"TRACKING": "none"}), secrets={"TRACKING": "a/b"})
    assert '"TRACKING"' not in manifest["spec"]["runtimeEnvYAML"]
    for pod in pods(manifest):
        named = [one for one in pod["containers"][0]["env"] if one["name"] == "TRACKING"]
        assert [set(one) for one in named] == [{"name", "valueFrom"}]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"secrets": {"T": TOKEN}}, "secrets.T: (not shown) names no key of a Secret; write `secr"),
        ({"secrets": {"T": 1234567}}, "secrets.T: (not shown) names no key of a Secret"),
        ({"secrets": {"T": "Ab/c"}}, "secrets.T: (not shown) names no key of a Secret"),
        ({"secrets": {"T": "a/.."}}, "secrets.T: (not shown) names no key of a Secret"),
        ({"secrets": {"MLP_RUNS": "a/b"}}, "secrets.MLP_RUNS: 'MLP_RUNS' is set by the platform"),
        ({"secrets": {"A B": "a/b"}}, "secrets.A B: 'A B' names no variable"),
        (
            {"secrets": {"T": "a/b"}, "env": {"T": "x"}},
            "secrets: {'T': 'a/b'} gives T, which env gives too",
        ),
        ({"env": {"T": TOKEN}}, "env.T: (not shown) looks like a credential"),
        ({"env": {"AWS_SECRET_ACCESS_KEY": "x"}}, "env: (not shown) gives AWS_SECRET_ACCESS_KEY"),
        ({"env": {"db_password": TOKEN[3:]}}, "env: (not shown) gives db_password itself"),
        ({"env": {"apiKey": TOKEN[3:]}}, "env: (not shown) gives apiKey itself"),
        ({"env": {"PW": f"${TOKEN[3:]}"}}, "env.PW: (not shown) holds a `$` with a name"),
        ({"env": {"PW": f"{TOKEN[3:]}\0"}}, "env.PW: (not shown) holds a NUL"),
        ({"env": [f"PW={TOKEN[3:]}"]}, "env: (not shown) is no mapping"),
        ({"envs": {"PW": TOKEN[3:]}}, "envs: (not shown) is for no field"),
        ({"entrypoint": ["x", f"--t={TOKEN}"]}, "entrypoint[1]: (not shown) looks like a cred"),
    ],
)
def test_no_value_in_place_of_a_reference(fields: dict[str, Any], sentence: str) -> None:
    """Case A18: a token where its name belongs is refused, and the refusal does not repeat it."""
    with pytest.raises(InvalidInput) as caught:
        parse(JobSpec, {"name": "a job", "entrypoint": ["true"], **fields})
    assert str(caught.value).startswith(sentence)
    assert TOKEN[3:] not in f"{caught.value}{vars(caught.value)!r}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PASSWORD", "x1"), ("PGPASSWORD", "x1"), ("db_passwd", "x1"), ("CLIENT_SECRET", "x1"),
        ("SECRET_KEY_BASE", "x1"), ("GITHUB_TOKEN", "x1"), ("hfToken", "x1"), ("APIKEY", "x1"),
        ("OPENAI_API_KEY", "x1"), ("SSH_PRIVATE_KEY_PEM", "x1"), ("MY_CREDENTIAL", "x1"),
        ("S3_ACCESS_KEY", "x1"), ("DB_PASSWORD_PROD", "123456"),
    ],
)  # fmt: skip
def test_names_of_credentials(name: str, value: str) -> None:
    """Case A18: the usual names, in any case and wherever the word stands."""
    assert gives_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"), ("MAX_TOKENS", "many"), ("MAX_TOKEN", "4096"),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"), ("PAD_TOKEN", "<pad>"), ("EOS_TOKEN_ID", "2"),
        ("TOKEN_EMBEDDING", "rotary"), ("AWS_ACCESS_KEY_ID", "AKIA"), ("SECRET_NAME", "x1"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/run/x"), ("HF_TOKEN", ""), ("PARTITION_KEY", "x1"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/run/x"), ("SECRETARY", "x1"),
        ("PLACEHOLDER_TOKEN", "<cat>"), ("TRIGGER_TOKEN", "sks"), ("SEPARATOR_TOKEN", "|"),
        ("OPENAI_API_KEY", "EMPTY"), ("MAX_TOKEN", "5e3"), ("NUM_TOKEN", "1_000"),
        ("GIT_CREDENTIAL_HELPER", "store"), ("API_KEY_HEADER", "X-Key"),
    ],
)  # fmt: skip
def test_names_that_only_sound_alike(name: str, value: str) -> None:
    """What models and clients are told of tokens and keys is no credential."""
    assert not gives_secret(name, value)


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"name": "HF_TOKEN", "value": "s3cret"}, "p.spec.containers[0].env[0].value: (not shown)"),
        ({"name": "T", "value": TOKEN}, "p.spec.containers[0].env[0].value: (not shown) looks"),
        ({"value": "s3cret"}, "p.spec.containers[0].env[0]: (not shown) has no name"),
    ],
)
def test_no_credential_in_a_patch(env: dict[str, str], sentence: str) -> None:
    """Case A18: a pool's patch holds none either, and says so without it."""
    with pytest.raises(InvalidInput) as caught:
        check_patch({"spec": {"containers": [{"name": "ray-worker", "env": [env]}]}}, "p")
    assert str(caught.value).startswith(sentence)
    assert env["value"] not in f"{caught.value}{vars(caught.value)!r}"


def test_a_misplaced_patch_repeats_no_environment() -> None:
    """Case A18: what can't be patched may hold one."""
    with pytest.raises(InvalidInput) as caught:
        check_patch({"env": [{"name": "A", "value": "s3cret"}]}, "p")
    assert "s3cret" not in f"{caught.value}{vars(caught.value)!r}"


def test_a_patch_may_name_a_secret() -> None:
    """By reference, which is what it is for."""
    key = {"secretKeyRef": {"name": "hub", "key": "token"}}
    env = [{"name": "HF_TOKEN", "valueFrom": key}, {"name": "MAX_TOKENS", "value": "x"}]
    check_patch({"spec": {"containers": [{"name": "ray-worker", "env": env}]}}, "p")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"env": {"MLP_RUNS": "x"}}, "env.MLP_RUNS: 'MLP_RUNS' is set by the platform"),
        ({"env": {"AWS_SECRET_ACCESS_KEY": "x"}}, "env: (not shown) gives AWS_SECRET"),
        ({"secrets": ["Storage"]}, "secrets[0]: 'Storage' has characters that are not allowed"),
        ({"service_account": "a_b"}, "service_account: 'a_b' has characters that are not"),
        ({"image_pull_secrets": ["-a"]}, "image_pull_secrets[0]: '-a' has characters"),
        (
            {"volumes": [{"name": "a.b", "claim": "a", "path": "/a"}]},
            "volumes[0].name: 'a.b' has characters",
        ),
        (
            {"volumes": [{"name": "a", "claim": "a", "path": "data"}]},
            "volumes[0].path: 'data' has characters that are not allowed here. Expected: Where p",
        ),
        (
            {"volumes": [{"name": "a", "claim": "a", "path": "/tmp/ray/x"}]},
            "volumes[0]: {'name': 'a', 'claim': 'a', 'path': '/tmp/ray/x'} lies at /tmp/ray/x, wh",
        ),
        (
            {"volumes": [{"name": "ray-logs", "claim": "a", "path": "/a"}]},
            "volumes[0]: {'name': 'ray-logs', 'claim': 'a', 'path': '/a'} has the name 'ray-logs'",
        ),
    ],
)
def test_names_that_kubernetes_would_refuse(fields: dict[str, Any], sentence: str) -> None:
    """They are told with their place, before any manifest is made."""
    with pytest.raises(InvalidInput) as caught:
        platform(**fields)
    assert str(caught.value).startswith(sentence)


def test_two_volumes_in_one_place() -> None:
    """The server would refuse every pod; the file is refused instead."""
    twice = [{"name": name, "claim": name, "path": "/data"} for name in ("a", "b")]
    with pytest.raises(InvalidInput, match="has the path '/data' twice"):
        platform(volumes=twice)


TEMPLATE = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "restartPolicy": "Never",
        "tolerations": [{"key": "ours"}],
        "containers": [
            {"name": "ray-worker", "image": "i", "env": [{"name": "A", "value": "1"}]},
            {"name": "beside"},
        ],
    },
}


def merged(patch: dict[str, Any], role: str = "worker") -> dict[str, Any]:
    return patched(TEMPLATE, patch, role=role, path="patch")


def test_a_patch_merges_as_kubernetes_does() -> None:
    """Lists with a merge key by it, tolerations as a whole, null takes away."""
    spec = merged(
        {
            "metadata": {"labels": {"b": "2"}},
            "spec": {
                "tolerations": [{"key": "theirs"}],
                "restartPolicy": None,
                "containers": [
                    {"name": "beside", "$patch": "delete"},
                    {
                        "name": "ray-worker",
                        "image": "j",
                        "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}],
                    },
                    {"name": "another", "image": "k"},
                ],
            },
        }
    )
    assert spec == {
        "metadata": {"labels": {"a": "1", "b": "2"}},
        "spec": {
            "tolerations": [{"key": "theirs"}],
            "containers": [
                {
                    "name": "ray-worker",
                    "image": "j",
                    "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}],
                },
                {"name": "another", "image": "k"},
            ],
        },
    }


KUBECTL_MERGES = [
    {"spec": {"tolerations": [{"key": "theirs"}], "affinity": {"$patch": "delete"}}},
    {"metadata": {"labels": {"b": "2"}, "annotations": {"c": "3"}}},
    {
        "spec": {
            "restartPolicy": None,
            "nodeSelector": {"a": "b"},
            "imagePullSecrets": [{"name": "r"}],
            "volumes": [{"name": "w", "emptyDir": {"medium": "Memory"}}],
            "initContainers": [{"name": "first", "image": "f"}],
            "containers": [
                {"name": "beside", "$patch": "delete"},
                {
                    "name": "ray-worker",
                    "image": "j",
                    "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}],
                    "envFrom": [{"secretRef": {"name": "t"}}],
                    "ports": [{"containerPort": 2}],
                    "volumeMounts": [{"name": "w", "mountPath": "/w"}],
                },
            ],
        }
    },
    {"spec": {"securityContext": {"runAsUser": 5}, "tolerations": None}},
]


@pytest.mark.kube
@pytest.mark.parametrize("patch", KUBECTL_MERGES)
def test_kubectl_merges_the_same(cluster: Cluster, patch: dict[str, Any]) -> None:
    """Our merge against Kubernetes' own; only the order of new items is ours."""
    pod = json.dumps({"apiVersion": "v1", "kind": "Pod", **TEMPLATE})
    options = ("--local", "--type=strategic", "-f", "-", "-p", json.dumps(patch), "-o", "json")
    theirs = json.loads(cluster.kubectl("patch", *options, input=pod))
    ours = merged(patch)
    assert ordered({name: theirs[name] for name in ours}) == ordered(ours)


def ordered(value: Any) -> Any:
    """The same with every list in one order, whoever made it."""
    if isinstance(value, dict):
        return {name: ordered(value[name]) for name in sorted(value)}
    return sorted(map(ordered, value), key=json.dumps) if isinstance(value, list) else value


def test_what_is_said_of_heads_concerns_no_worker() -> None:
    """One pool may hold both."""
    assert merged({"spec": {"containers": [{"name": "ray-head", "image": "j"}]}}) == TEMPLATE


@pytest.mark.parametrize(
    ("patch", "sentence"),
    [
        ({"kind": "Pod"}, "p.kind: 'Pod' can't be patched. Write metadata or spec."),
        ({"metadata": {"name": "x"}}, "p.metadata.name: 'x' can't be patched"),
        ({"metadata": {"labels": None}}, "p.metadata.labels: None is no mapping"),
        ({"metadata": {"labels": {"ml-pipelines.dev/run-key": "x"}}}, "p.metadata.labels.ml-"),
        ({"metadata": {"labels": {"a": 1}}}, "p.metadata.labels.a: 1 is no text"),
        ({"metadata": {"labels": {"$patch": "delete"}}}, "p.metadata.labels.$patch: 'delete' is"),
        ({"spec": None}, "p.spec: None is no mapping"),
        ({"spec": {"$patch": "delete"}}, "p.spec.containers: {'$patch': 'delete'} takes the"),
        ({"spec": {"restartPolicy": "Always"}}, "p.spec.restartPolicy: 'Always' would start Ray"),
        ({"spec": {"containers": [{"image": "x"}]}}, "p.spec.containers[0]: {'image': 'x'} has no"),
        (
            {"spec": {"containers": [{"name": "ray-head", "$patch": "delete"}]}},
            "p.spec.containers: {'containers': [{'name': 'ray-head', '$patch': 'delete'}]} takes",
        ),
        ({"spec": {"$retainKeys": ["a"]}}, "p.spec.$retainKeys: ['a'] is no directive"),
    ],
)
def test_a_patch_can_not_hide_pods_from_us(patch: dict[str, Any], sentence: str) -> None:
    """What we find pods by, and that Ray never starts twice, is not for patching."""
    with pytest.raises(InvalidInput) as caught:
        check_patch(patch, "p")
    assert str(caught.value).startswith(sentence)


def test_a_bad_patch_is_told_as_the_file_is_read(tmp_path: Path) -> None:
    """With the file and the place."""
    file = tmp_path / "platform.yaml"
    file.write_text("pools: {cpu: {cpu: 4, memory: 8Gi, patch: {sepc: {}}}}")
    with pytest.raises(InvalidInput, match=r"platform\.yaml: pools\.cpu\.patch\.sepc: \{\} can't"):
        load_pools(file)


def test_a_patch_is_part_of_what_was_asked_for() -> None:
    """Another patch is another spec hash: no job is adopted across it."""
    plain = platform()
    cpu = plain.pools["cpu"].model_copy(update={"patch": {"spec": {"hostNetwork": True}}})
    other = plain.model_copy(update={"pools": {"cpu": cpu}})
    assert spec_hash(made(plain)) != spec_hash(made(other))
    assert all(pod["hostNetwork"] for pod in pods(made(other)))


def test_the_file_that_uses_every_field() -> None:
    """The golden manifests are made with it; a new field must be in it."""
    used = load_pools(PLATFORM)
    spot = used.pools["spot"].model_fields_set | used.pools["cpu"].model_fields_set
    unused = {"image", "service_account", "queue", "max_workers", "gpu_resource"}
    assert spot == set(type(used.pools["spot"]).model_fields) - unused
    assert used.model_fields_set >= {"env", "secrets", "volumes", "image_pull_secrets"}
