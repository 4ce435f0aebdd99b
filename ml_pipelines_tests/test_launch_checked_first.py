"""Whatever a run was launched with is checked in its first step, for all of its steps."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from ml_pipelines.defs.ads_ranking import assets
from ml_pipelines.defs.ads_ranking.config import PredictConfig, TrainConfig
from ml_pipelines.defs.ads_ranking.jobs import CHAIN
from ml_pipelines.defs.ads_ranking.launch import CONFIGS
from ml_pipelines.errors import DoesNotFit
from ml_pipelines.lifecycle import open_platform
from ml_pipelines.orchestration.config import LaunchpadConfig
from ml_pipelines.orchestration.control import PlatformControl
from ml_pipelines.orchestration.stores import Stores
from ml_pipelines.spec.cluster import ClusterSpec
from ml_pipelines_tests.fake_ads import Ads
from ml_pipelines_tests.fake_ray import fake_ray
from ml_pipelines_tests.lake_days import own_lake, write_day

DAY = "2019-11-30"

BAD = {
    "range": ("ads_model", {"epochs": 0}, "ads_model.config.epochs: 0 is too small. Give 1"),
    "cross-field": ("ads_model", {"batch_size": 100}, "ads_model.config.batch_size: 100 is no mult"),
    "NaN": ("ads_model", {"learning_rate": float("nan")}, "ads_model.config.learning_rate: nan"),
    "quantity": ("ads_evaluation", {"memory": "256GB"}, "ads_evaluation.config.memory: '256GB'"),
    "nested": ("ads_evaluation", {"gate": {"min_clicks": 0}}, "ads_evaluation.config.gate.min_clic"),
    "pool": ("ads_predictions", {"pool": "gpux"}, "ads_predictions.config.pool: 'gpux' is no pool"),
    "workers": ("ads_predictions", {"workers": 0}, "ads_predictions.config.workers: 0 is too small"),
    "CPUs": ("ads_model", {"cpu": "4"}, "ads_model.config.cpu: '4' is more than there is"),
}  # fmt: skip


@pytest.fixture
def ads() -> Iterator[Ads]:
    for number in range(24, 31):
        write_day(own_lake(), f"2019-11-{number}")
    with dg.DagsterInstance.ephemeral() as instance:
        made = Ads(instance)
        made.control.cpus = 2
        yield made


def failures(result: dg.ExecuteInProcessResult) -> dict[str, str]:
    """What each failed step says of it."""
    return {
        str(event.step_key): str(event.step_failure_data.user_failure_data.description)  # type: ignore[union-attr]
        for event in result.all_events
        if event.is_step_failure
    }


@pytest.mark.parametrize(("asset", "config", "said"), BAD.values(), ids=BAD.keys())
def test_a_later_step_s_bad_value_ends_the_first(
    ads: Ads, asset: str, config: dict[str, Any], said: str
) -> None:
    """Asset, field, value and remedy at once; no job of an earlier step has run for nothing."""
    result = ads.run(DAY, ops={asset: {"config": config}})
    [(step, sentence)] = failures(result).items()
    assert step == "impressions_schema_and_volume"
    assert sentence.startswith(said)
    assert ads.control.submitted == []
    assert [e for e in result.all_events if "RETRY" in e.event_type_value] == []


def test_a_part_of_the_chain_is_checked_too(ads: Ads) -> None:
    """Launched without the check of the impressions, the first asset looks at all that follow."""
    assert ads.run(DAY).success
    before = len(ads.control.submitted)
    result = dg.materialize(
        [assets.ads_model, assets.ads_predictions],
        partition_key=DAY,
        instance=ads.instance,
        resources={"ray": fake_ray(ads.control), "stores": Stores()},
        run_config={"ops": {"ads_predictions": {"config": {"workers": -1}}}},
        raise_on_error=False,
    )
    assert next(iter(failures(result).values())).startswith("ads_predictions.config.workers: -1")
    assert len(ads.control.submitted) == before


def test_the_machine_is_asked() -> None:
    """The real control asks the backend, which refuses more CPUs than there are."""
    with open_platform() as platform:
        control = PlatformControl(platform)
        control.check(TrainConfig().cluster())
        control.check(PredictConfig().cluster())
        huge = ClusterSpec.model_validate(
            {"workers": [{"pool": "cpu", "min_workers": 900, "cpu": 7}]}
        )
        with pytest.raises(DoesNotFit, match="this machine has"):
            control.check(huge)
        assert platform.store.list("jobs") == []


def test_every_config_of_the_chain_is_known() -> None:
    """An asset with a config of its own is in the list that is checked."""
    for made in CHAIN:
        config = made.op.config_schema.config_type
        fields = getattr(config, "fields", {})
        assert bool(fields) == (made.key.to_user_string() in CONFIGS)
        if fields:
            cls: type[LaunchpadConfig] = CONFIGS[made.key.to_user_string()]
            assert set(cls.model_fields) == set(fields)
