"""Bad values in the Launchpad fail in the first second, with path, value and remedy."""

import dagster as dg
import pytest

from ml_pipelines.defs.ads_ranking.config import EvaluateConfig, FeaturesConfig, TrainConfig
from ml_pipelines.orchestration.config import LaunchpadConfig
from ml_pipelines.orchestration.resource import RayJobs
from ml_pipelines_tests.fake_ray import FakeControl, materialize, succeeds

TABLE = {
    "zero workers": (TrainConfig, {"workers": 0}, "config.workers: 0 is too small. Give 1 or more."),
    "zero epochs": (TrainConfig, {"epochs": 0}, "config.epochs: 0 is too small. Give 1 or more."),
    "odd batch": (TrainConfig, {"batch_size": 100}, "config.batch_size: 100 is no multiple of 32; write 96."),
    "not a number": (TrainConfig, {"learning_rate": float("nan")}, "config.learning_rate: nan is"),
    "model name": (TrainConfig, {"model_name": "a/b"}, "config.model_name: 'a/b' has characters"),
    "unknown field": (TrainConfig, {"epocs": 3}, "Did you mean `epochs`?"),
    "nested": (EvaluateConfig, {"gate": {"min_clicks": 0}}, "gate.min_clicks: 0 is too small."),
    "window": (FeaturesConfig, {"window_days": -1}, "config.window_days: -1 is too small."),
}  # fmt: skip


@pytest.mark.parametrize(("cls", "values", "sentence"), TABLE.values(), ids=TABLE.keys())
def test_a_bad_value_is_one_sentence(cls: type[LaunchpadConfig], values, sentence: str) -> None:
    """Path, value and what to do; a Dagster failure that asks for no retry."""
    with pytest.raises(dg.Failure) as raised:
        cls(**values)
    assert sentence in (raised.value.description or "")
    assert raised.value.allow_retries is False


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"memory": "256GB"}, "config.memory: '256GB' is no quantity"),
        ({"cpu": "-1"}, "config.cpu: '-1' is"),
        ({"memory": "NaN"}, "config.memory: 'NaN' is no quantity"),
        ({"pool": "gpus"}, "config.pool: 'gpus' is no pool. Did you mean `gpu`?"),
    ],
    ids=["256GB", "-1", "NaN", "pool"],
)
def test_a_bad_size_is_refused_before_anything_exists(values, sentence: str) -> None:
    """Quantities and pools are checked as the step starts, before any Ray object."""

    @dg.asset
    def model(context: dg.AssetExecutionContext, config: FeaturesConfig, ray: RayJobs) -> None:
        ray.run(context, module="x.train", cluster=config.cluster(), params={})

    control = FakeControl({"train": succeeds()})
    result = materialize(model, control, run_config=dg.RunConfig(ops={"model": {"config": values}}))
    failure = result.failure_data_for_node("model")
    assert failure is not None
    assert failure.user_failure_data is not None
    assert sentence in (failure.user_failure_data.description or "")
    assert control.submitted == []


def test_unchanged_defaults_make_a_cluster() -> None:
    """The defaults are a cluster that the packaged pools know."""
    cluster = TrainConfig().cluster()
    assert cluster.workers[0].pool == "gpu"
    assert cluster.workers[0].min_workers == cluster.workers[0].max_workers == 2
