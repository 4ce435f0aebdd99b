"""The daily chain of ads ranking over scripted jobs: what runs, what it is told, what it tells."""

from collections.abc import Iterator

import dagster as dg
import pytest

from ml_pipelines.orchestration.stores import Stores
from ml_pipelines.storage import Lake
from ml_pipelines_tests.fake_ads import Ads
from ml_pipelines_tests.lake_days import own_lake, write_day

DAY = "2019-11-30"


@pytest.fixture
def lake() -> Lake:
    lake = own_lake()
    for number in range(24, 31):
        write_day(lake, f"2019-11-{number}")
    return lake


@pytest.fixture
def ads(lake: Lake) -> Iterator[Ads]:
    assert lake
    with dg.DagsterInstance.ephemeral() as instance:
        yield Ads(instance)


def metadata(ads: Ads, asset: str, day: str = DAY) -> dict[str, object]:
    records = ads.instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), asset_partitions=[day]), limit=1
    ).records
    made = records[0].asset_materialization
    assert made is not None
    return {name: value.value for name, value in made.metadata.items()}


def failure(result: dg.ExecuteInProcessResult) -> str:
    [event] = [e for e in result.all_events if e.is_step_failure]
    return str(event.step_failure_data.error_display_string)


def test_a_day_goes_through_the_whole_chain(ads: Ads) -> None:
    """Features, training, evaluation and prediction run once each, in this order."""
    assert ads.run(DAY).success
    assert ads.control.modules() == ["features", "train", "evaluate", "predict"]
    assert [me.name for _, me in ads.control.submitted][:2] == [
        f"ads_features {DAY}", f"ads_model {DAY}",
    ]  # fmt: skip


def test_features_are_made_for_the_window_too(ads: Ads) -> None:
    """The job is told the day and the complete days before it; each becomes a partition."""
    ads.run(DAY)
    days = [f"2019-11-{number}" for number in range(24, 31)]
    assert ads.params("features") == [{"dataset": "impressions", "days": days}]
    partitions = ads.instance.get_materialized_partitions(dg.AssetKey("ads_features"))
    assert sorted(partitions) == days


def test_the_machines_are_the_pools_that_the_assets_name(ads: Ads) -> None:
    """Preprocessing runs on cheap CPU machines, training on GPUs."""
    ads.run(DAY)
    pools = [spec.cluster.workers[0].pool for spec, _ in ads.control.submitted]
    assert pools == ["cpu", "gpu", "cpu", "cpu"]


def test_a_job_knows_where_it_comes_from(ads: Ads) -> None:
    """Run, asset, partition and code location are its labels; one unfinished job a partition."""
    result = ads.run(DAY)
    _, me = ads.control.submitted[1]
    assert me.labels == {
        "run": result.run_id, "asset": "ads_model", "partition": DAY,
        "code-location": "ml_pipelines",
    }  # fmt: skip
    assert me.exclusive == f"ads_model/{DAY}"


def test_training_is_watched_while_it_goes_on(ads: Ads, capfd) -> None:
    """Metrics become observations of the partition; worker prints reach the step's stdout."""
    ads.run(DAY)
    observations = ads.instance.fetch_observations(dg.AssetKey("ads_model"), limit=10).records
    assert 1 <= len(observations) <= 3
    assert all(each.partition_key == DAY for each in observations)
    last = observations[0].asset_observation
    assert last is not None
    assert last.metadata["step"].value == 299
    assert last.metadata["auc"].value == "NaN"
    assert "(RayTrainWorker pid=7) hello" in capfd.readouterr().out


def test_the_model_records_what_it_was_made_from(ads: Ads) -> None:
    """Seed and image, a data version, numbers that plot, and a curve of at most 100 points."""
    ads.run(DAY, ops={"ads_model": {"config": {"seed": 5}}})
    told = metadata(ads, "ads_model")
    assert told["made from"] == {
        "seed": 5, "image": "registry.local/ml-pipelines:dev", "code": "c",
    }  # fmt: skip
    assert told["loss"] == 0.1
    assert told["seconds run"] == 2.0
    records = told["curve"].records  # type: ignore[attr-defined]
    assert len(records) <= 100
    assert records[-1].data["step"] == 299
    version = ads.instance.get_latest_data_version_record(dg.AssetKey("ads_model"))
    assert version is not None
    assert version.asset_materialization is not None
    assert version.asset_materialization.tags is not None
    assert version.asset_materialization.tags["dagster/data_version"] == "model-1"


def test_the_evaluation_shows_the_models_side_by_side(ads: Ads) -> None:
    """A row a model, and one number a key for the plots."""
    ads.run(DAY)
    told = metadata(ads, "ads_evaluation")
    assert [row.data["model"] for row in told["models"].records] == ["challenger", "baseline"]  # type: ignore[attr-defined]
    assert told["auc challenger"] == 0.7
    assert told["gain over baseline"] == 0.05
    assert told["clicks"] == 500


BAD_DAYS = {
    "half-written": "is half-written",
    "missing column": "without the column(s) click",
    "mistyped column": "column affinity is string, not float",
    "zero rows": "0 rows are no day",
    "changed bytes": "is not what was written",
    "missing": "does not exist",
}


@pytest.mark.parametrize(("what", "said"), BAD_DAYS.items(), ids=BAD_DAYS.keys())
def test_a_bad_day_stops_before_any_ray(ads: Ads, lake: Lake, what: str, said: str) -> None:
    """The check of the impressions is red, says what to do, and no Ray job exists."""
    folder = f"impressions/dt={DAY}"
    match what:
        case "half-written":
            lake.store.delete(f"{folder}/_SUCCESS.json")
        case "missing column":
            write_day(lake, DAY, click="")
        case "mistyped column":
            write_day(lake, DAY, affinity="string")
        case "zero rows":
            write_day(lake, DAY, rows=0)
        case "changed bytes":
            [path] = [p for p in lake.store.list(folder) if p.endswith(".parquet")]
            lake.store.put(path, lake.store.get(path)[:-1] + b"?")
        case _:
            lake.store.delete_prefix(folder)
    result = ads.run(DAY)
    assert not result.success
    [check] = [c for c in result.get_asset_check_evaluations() if not c.passed]
    assert said in (check.description or "")
    assert lake.store.child_url(folder) in (check.description or "")
    assert ads.control.submitted == []


def test_an_odd_volume_warns_and_goes_on(ads: Ads, lake: Lake) -> None:
    """A day with far fewer rows than usual is told, and isn't stopped."""
    write_day(lake, DAY, rows=1)
    for number in range(24, 30):
        write_day(lake, f"2019-11-{number}", rows=20)
    result = ads.run(DAY)
    assert result.success
    [check] = [c for c in result.get_asset_check_evaluations() if not c.passed]
    assert check.severity is dg.AssetCheckSeverity.WARN
    assert check.description == "1 rows, where a usual day has 20."


@pytest.mark.parametrize("key", ["2018-01-01", "2019-11-31", "../../etc", "a,b|c...d"])
def test_a_partition_key_that_is_no_day_is_refused(ads: Ads, key: str) -> None:
    """Case G4: out of range or with odd characters, before anything exists."""
    with pytest.raises((dg.DagsterUnknownPartitionError, dg.DagsterInvariantViolationError)):
        ads.run(key)
    assert ads.control.submitted == []


def test_a_lake_that_denies_stops_before_any_ray(ads: Ads, monkeypatch) -> None:
    """A lake that can't be reached is named; nothing is submitted."""
    monkeypatch.setenv("MLP_LAKE", "file:///proc/nowhere")
    result = ads.run(DAY)
    assert not result.success
    assert "file:///proc/nowhere" in failure(result)
    assert ads.control.submitted == []


def test_an_evaluation_without_a_model_says_what_to_do(ads: Ads) -> None:
    """Materialized alone before any training, it names the asset to make first."""
    from ml_pipelines.defs.ads_ranking.assets import ads_evaluation
    from ml_pipelines_tests.fake_ray import fake_ray

    result = dg.materialize(
        [ads_evaluation],
        partition_key=DAY,
        instance=ads.instance,
        resources={"ray": fake_ray(ads.control), "stores": Stores()},
        raise_on_error=False,
    )
    assert "Materialize ads_model for 2019-11-30 first." in failure(result)
