"""What the user wrote wrong comes back as one sentence: path, value, remedy."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from ml_pipelines.errors import InvalidInput
from ml_pipelines.spec.cluster import ClusterSpec, WorkerGroup
from ml_pipelines.spec.job import JobSpec
from ml_pipelines.spec.validate import explain, parse


def job(**fields: Any) -> dict[str, Any]:
    return {"name": "a job", "entrypoint": ["python", "train.py"], **fields}


def workers(**fields: Any) -> dict[str, Any]:
    return job(cluster={"workers": [fields]})


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        pytest.param(
            workers(memry="2Gi"),
            "cluster.workers[0].memry: '2Gi' is for no field we know. Did you mean `memory`?",
            id="misspelt field, nested",
        ),
        pytest.param(
            job(entrypont=["x"]),
            "entrypont: ['x'] is for no field we know. Did you mean `entrypoint`?",
            id="misspelt field",
        ),
        pytest.param(
            {"name": "x", "entrypont": ["x"]},
            "entrypont: ['x'] is for no field we know. Did you mean `entrypoint`?",
            id="misspelt field, told before the one that is missing",
        ),
        pytest.param(
            workers(memory="256GB"),
            "cluster.workers[0].memory: '256GB' is no quantity; write `256G`.",
            id="256GB",
        ),
        pytest.param(
            workers(cpu=-1),
            "cluster.workers[0].cpu: -1 is no quantity; write for example `500m` or `2`.",
            id="-1",
        ),
        pytest.param(
            workers(cpu=float("nan")),
            "cluster.workers[0].cpu: nan is no quantity; write for example `500m` or `2`.",
            id="NaN",
        ),
        pytest.param(
            workers(min_workers=0),
            "cluster.workers[0].min_workers: 0 is too small. Give 1 or more.",
            id="zero workers",
        ),
        pytest.param(
            job(cluster={"workers": []}),
            "cluster.workers: [] has too few items. Give at least 1.",
            id="no worker group",
        ),
        pytest.param(
            workers(min_workers=3, max_workers=2),
            "cluster.workers[0]: {'min_workers': 3, 'max_workers': 2} has min_workers 3, more than "
            "max_workers 2; raise max_workers or leave it out.",
            id="least above greatest",
        ),
        pytest.param(
            workers(gpus="2"),
            "cluster.workers[0].gpus: '2' is no whole number. "
            "Give a whole number, without quotes.",
            id="number in quotes",
        ),
        pytest.param(
            workers(gpus=17),
            "cluster.workers[0].gpus: 17 is too large. Give 16 or less.",
            id="too many GPUs",
        ),
        pytest.param(
            workers(name="My_Group"),
            "cluster.workers[0].name: 'My_Group' has characters that are not allowed here. "
            "Expected: Lower-case letters, digits and dashes, at most 20 characters.",
            id="group name",
        ),
        pytest.param(
            job(cluster={"workers": [{"name": "head"}]}),
            "cluster: {'workers': [{'name': 'head'}]} has a worker group called 'head', "
            "a reserved name; rename it.",
            id="reserved group name",
        ),
        pytest.param(
            {"name": "x"},
            "entrypoint: nothing was given, but a value is required. Add it.",
            id="missing field",
        ),
        pytest.param(
            job(entrypoint="python train.py"),
            "entrypoint: 'python train.py' is no list. Write a list, one item each.",
            id="entrypoint as one text",
        ),
        pytest.param(
            job(entrypoint=[]),
            "entrypoint: [] has too few items. Give at least 1.",
            id="entrypoint empty",
        ),
        pytest.param(
            job(entrypoint=[" ", "x"]),
            "entrypoint: [' ', 'x'] names no program; write for example ['python', 'train.py'].",
            id="entrypoint without a program",
        ),
        pytest.param(
            job(entrypoint=["a\0b"]),
            "entrypoint[0]: 'a\\x00b' holds a NUL, which no process can be given; take it out.",
            id="NUL in an argument",
        ),
        pytest.param(
            job(env={"a-b": "x"}),
            "env.a-b: 'a-b' names no variable; use ASCII letters, digits and underscores.",
            id="name of a variable",
        ),
        pytest.param(
            job(env={"MLP_RUNS": "x"}),
            "env.MLP_RUNS: 'MLP_RUNS' is set by the platform; choose another name.",
            id="variable of ours",
        ),
        pytest.param(
            job(env={"A": None}), "env.A: (not shown) is no text; write it in quotes.", id="env None"
        ),
        pytest.param(
            job(env={"A": "\ud800"}),
            "env.A: (not shown) holds half a character (a lone surrogate); take it out.",
            id="surrogate",
        ),
        pytest.param(
            job(env={"PW": "p$$w`echo hi`"}),
            "env.PW: (not shown) holds a `$` with a name, which Ray would replace on the way; "
            "pass it as an argument of the entrypoint, or by a Secret named under `secrets`.",
            id="A11: what Ray would replace",
        ),
        pytest.param(
            job(limits={"run_s": 0}),
            "limits.run_s: 0 is too small. Give 1 or more.",
            id="limit of nothing",
        ),
        pytest.param(
            job(params={"rate": float("inf")}),
            "params.rate: inf is no finite number. Give a finite number.",
            id="infinite parameter",
        ),
        pytest.param(
            job(code={"url": "file:///x.zip", "sha256": "abc"}),
            "code.sha256: 'abc' has characters that are not allowed here.",
            id="hash",
        ),
        pytest.param([], "input: [] is no mapping. Write fields and their values.", id="no mapping"),
    ],
)  # fmt: skip
def test_one_clear_sentence(data, sentence):
    """Each mistake gets one sentence that names the path and value and says what to write."""
    with pytest.raises(InvalidInput) as caught:
        parse(JobSpec, data)
    assert str(caught.value) == sentence


def test_root_stands_before_the_path():
    """Whoever parses a part of something larger names the whole path."""
    with pytest.raises(InvalidInput) as caught:
        parse(ClusterSpec, {"workers": [{"cpu": "x"}]}, root="train.cluster")
    assert caught.value.path == "train.cluster.workers[0].cpu"
    assert caught.value.value == "x"


def test_explained_without_a_model():
    """An error of pydantic's that is met elsewhere is explained too, without a suggestion."""
    with pytest.raises(ValidationError) as caught:
        ClusterSpec.model_validate({"heads": {}})
    assert str(explain(caught.value)) == "heads: {} is for no field we know. Take it out."


def test_group_is_of_fixed_size_unless_said():
    """A number of workers alone means exactly so many."""
    group = parse(WorkerGroup, {"min_workers": 4})
    assert (group.min_workers, group.max_workers) == (4, 4)
    assert not ClusterSpec(workers=(group,)).elastic


def test_group_grows_where_said():
    """A greater greatest number makes the cluster elastic."""
    cluster = parse(ClusterSpec, {"workers": [{"min_workers": 1, "max_workers": 4}]})
    assert cluster.elastic


def test_env_values_become_text():
    """Case A9: numbers and truth values become the text of their documented form."""
    spec = parse(JobSpec, job(env={"N": 4, "B": True, "F": 1e-5, "T": "on"}))
    assert spec.env == {"N": "4", "B": "true", "F": "1e-05", "T": "on"}


@pytest.mark.parametrize(
    "field", [{"entrypoint": ["x" * 100_001]}, {"env": {"A": "x" * 50_001}}], ids=["argv", "env"]
)
def test_too_long_for_a_process(field):
    """What Linux would not let a process start with is refused before anything exists."""
    with pytest.raises(InvalidInput, match="put data into a file"):
        parse(JobSpec, job(**field))


def test_one_overridden_field_keeps_its_siblings():
    """Case A8: whoever overrides one nested field keeps the defaults of all others."""
    spec = parse(JobSpec, workers(gpus=2))
    (group,) = spec.cluster.workers
    assert group == WorkerGroup(gpus=2)
    assert spec.cluster.head.pool == "cpu"


def test_specs_do_not_change():
    """A spec is a value: nobody changes it after it was checked."""
    spec = parse(JobSpec, job())
    with pytest.raises(ValidationError):
        spec.name = "another"


def test_spec_survives_json():
    """The journal's birth entry gives the same spec back."""
    spec = parse(JobSpec, job(env={"A": "1"}, params={"a": [1, None, {"b": 2.5}]}))
    assert parse(JobSpec, spec.model_dump(mode="json")) == spec
