"""The daily retrain: of the day that has just ended, once, and only where its data is there."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import dagster as dg
import pytest

from ml_pipelines.definitions import defs
from ml_pipelines.defs.ads_ranking import schedules, sensors
from ml_pipelines.defs.ads_ranking.schedules import ads_ranking_daily_retrain, last_whole_day
from ml_pipelines.orchestration.requests import may_ask
from ml_pipelines.orchestration.stores import Stores
from ml_pipelines.storage import Lake
from ml_pipelines_tests.lake_days import own_lake, write_day

TICK = datetime(2019, 11, 26, 3, tzinfo=UTC)


@pytest.fixture
def lake() -> Lake:
    """A lake whose first day is there, for the others to learn from."""
    lake = own_lake()
    write_day(lake, "2019-11-24")
    return lake


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def tick(instance: dg.DagsterInstance, at: datetime = TICK) -> dg.RunRequest | str:
    context = dg.build_schedule_context(
        instance=instance,
        scheduled_execution_time=at,
        resources={"stores": Stores()},
        repository_def=defs().get_repository_def(),
    )
    data = ads_ranking_daily_retrain.evaluate_tick(context)
    return data.run_requests[0] if data.run_requests else (data.skip_message or "")


def test_the_tick_asks_for_the_day_that_has_ended(instance, lake: Lake) -> None:
    """At 03:00 UTC of the 26th the 25th is asked for, tagged with its data version."""
    made = write_day(lake, "2019-11-25")
    request = tick(instance)
    assert isinstance(request, dg.RunRequest)
    assert request.partition_key == "2019-11-25"
    assert request.run_key == f"2019-11-25:{made.data_version}"
    assert request.tags["ml_pipelines/data_version"] == made.data_version[:63]


def test_a_day_without_data_skips_with_the_reason(instance, lake: Lake) -> None:
    """Nothing in the lake, or a half-written day: no run, and the tick says which."""
    assert "2019-11-25 isn't complete in the lake" in str(tick(instance))
    lake.store.put("impressions/dt=2019-11-25/part.parquet", b"x")
    assert "half-written" in str(tick(instance))


def test_a_day_with_nothing_to_learn_from_skips(instance) -> None:
    """The first day of all has no days before it: no run that could only fail."""
    write_day(own_lake(), "2019-11-25")
    assert tick(instance) == "None of the 7 days before 2019-11-25 is in the lake."


def test_a_lake_that_fails_skips_with_the_reason(instance, monkeypatch) -> None:
    """A lake that can't be reached is named; no run is asked for."""
    monkeypatch.setenv("MLP_LAKE", "file:///proc/nowhere")
    reason = tick(instance)
    assert "file:///proc/nowhere" in str(reason)


def test_the_same_tick_twice_is_one_run(instance, lake: Lake) -> None:
    """Case G8: a tick that is evaluated again gives the same run key, which Dagster dedupes."""
    write_day(lake, "2019-11-25")
    first, second = tick(instance), tick(instance)
    assert isinstance(first, dg.RunRequest)
    assert isinstance(second, dg.RunRequest)
    assert first.run_key == second.run_key


def test_missed_ticks_are_each_their_own_day(instance, lake: Lake) -> None:
    """Case G8: three ticks after a pause ask for three days, none twice."""
    for day in ("2019-11-25", "2019-11-26", "2019-11-27"):
        write_day(lake, day)
    requests = [tick(instance, TICK + timedelta(days=n)) for n in range(3)]
    assert [r.partition_key for r in requests if isinstance(r, dg.RunRequest)] == [
        "2019-11-25", "2019-11-26", "2019-11-27",
    ]  # fmt: skip


def new_data(instance: dg.DagsterInstance) -> list[str | None]:
    with dg.build_sensor_context(
        instance=instance, resources={"stores": Stores()}, definitions=defs()
    ) as context:
        result = sensors.ads_ranking_new_data(context)
    return [r.partition_key for r in getattr(result, "run_requests", None) or []]


def test_what_the_sensor_asked_for_the_schedule_leaves(instance, lake: Lake) -> None:
    """The same day on the same data is never retrained by both; changed data is again."""
    write_day(lake, "2019-11-25")
    assert new_data(instance) == ["2019-11-25"]
    assert "was asked for already on this data" in str(tick(instance))
    write_day(lake, "2019-11-25", rows=9)
    assert isinstance(tick(instance), dg.RunRequest)


def test_what_the_schedule_asked_for_the_sensor_leaves(instance, lake: Lake) -> None:
    """The other way round too, even if both ticked at the same moment."""
    write_day(lake, "2019-11-25")
    assert isinstance(tick(instance), dg.RunRequest)
    assert new_data(instance) == []


def test_only_one_of_two_may_ask(lake: Lake) -> None:
    """Who comes first asks, and may ask again after a tick that died; who comes second may not."""
    store = Stores().runs()
    assert may_ask(store, "job", "2019-11-25", "v1", by="sensor")
    assert not may_ask(store, "job", "2019-11-25", "v1", by="schedule")
    assert may_ask(store, "job", "2019-11-25", "v1", by="sensor")
    assert may_ask(store, "job", "2019-11-25", "v2", by="schedule")


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin", "UTC"])
@pytest.mark.parametrize("hour", [(0, 5), (0, 30), (2, 30), (3, 0)], ids=lambda h: f"{h[0]}h{h[1]}")
def test_every_local_day_is_meant_once_over_both_changes_of_the_clock(zone: str, hour) -> None:
    """Cases G5, G7: over a year of ticks each local day is asked for exactly once, in order."""
    local = ZoneInfo(zone)
    start = datetime(2026, 1, 1, hour[0], hour[1], tzinfo=local)
    ticks = [(start + timedelta(days=n)).astimezone(UTC) for n in range(365)]
    days = [last_whole_day(each, zone) for each in ticks]
    first = datetime(2025, 12, 31, tzinfo=UTC).date()
    assert days == [(first + timedelta(days=n)).isoformat() for n in range(365)]


def test_the_schedule_names_its_time_zone() -> None:
    """A schedule without a time zone would mean the machine's own."""
    assert ads_ranking_daily_retrain.execution_timezone == "UTC"
    assert schedules.RETRAIN_AT == "0 3 * * *"
