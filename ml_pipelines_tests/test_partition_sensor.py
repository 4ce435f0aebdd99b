"""New and changed days in the lake become runs: each data version once, none lost."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import pytest

from ml_pipelines.definitions import defs
from ml_pipelines.defs.ads_ranking.sensors import DAYS_PER_TICK, ads_ranking_new_data, new_days
from ml_pipelines.orchestration.stores import Stores
from ml_pipelines.storage import Lake
from ml_pipelines_tests.lake_days import own_lake, write_day

DEFS = defs()


class Sensor:
    """The sensor on an instance, with its cursor kept as the daemon keeps it."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance, self.cursor = instance, ""
        self.stores = Stores()

    def tick(
        self, *, keep_cursor: bool = True
    ) -> tuple[list[dg.RunRequest], dg.SensorResult | str]:
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            resources={"stores": self.stores},
            definitions=DEFS,
        ) as context:
            result = ads_ranking_new_data(context)
        if isinstance(result, dg.SkipReason):
            return [], result.skip_message or ""
        assert isinstance(result, dg.SensorResult)
        if keep_cursor:
            self.cursor = result.cursor or ""
        return list(result.run_requests or []), result

    def days(self) -> list[str | None]:
        return [request.partition_key for request in self.tick()[0]]


@pytest.fixture
def sensor() -> Iterator[Sensor]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Sensor(instance)


@pytest.fixture
def lake() -> Lake:
    """A lake whose first day is there, for the others to learn from."""
    lake = own_lake()
    write_day(lake, "2019-11-24")
    return lake


def test_a_new_day_is_asked_for_once(sensor: Sensor, lake: Lake) -> None:
    """A complete day becomes one run request; the next tick has nothing to do."""
    made = write_day(lake, "2019-11-25")
    [request], result = sensor.tick()
    assert request.partition_key == "2019-11-25"
    assert request.run_key == f"2019-11-25:{made.data_version}"
    assert isinstance(result, dg.SensorResult)
    [event] = result.asset_events
    assert isinstance(event, dg.AssetObservation)
    assert event.tags["dagster/data_version"] == made.data_version
    requests, reason = sensor.tick()
    assert requests == []
    assert str(reason).startswith("No new data: 2 complete days, all dealt with")


def test_an_empty_lake_is_no_error(sensor: Sensor) -> None:
    """Case G2: an empty list gives no request."""
    assert sensor.tick() == ([], "No new data: 0 complete days, all dealt with.")


def test_late_days_are_found_wherever_they_sort(sensor: Sensor, lake: Lake) -> None:
    """Case G2: days that arrive late, and sort before those known, are asked for, each once."""
    for day in ("2019-11-28", "2019-11-29"):
        write_day(lake, day)
    assert sensor.days() == ["2019-11-28", "2019-11-29"]
    for day in ("2019-11-25", "2019-11-27"):
        write_day(lake, day)
    assert sensor.days() == ["2019-11-25", "2019-11-27"]
    assert sensor.days() == []


def test_changed_data_is_asked_for_again_and_the_old_never(sensor: Sensor, lake: Lake) -> None:
    """Case G1: version 2 of a day gets one run; version 1 seen again has a spent run key."""
    first = write_day(lake, "2019-11-25", rows=4)
    [request], _ = sensor.tick()
    second = write_day(lake, "2019-11-25", rows=5)
    assert first.data_version != second.data_version
    [again], result = sensor.tick()
    assert again.run_key != request.run_key
    assert again.tags["ml_pipelines/data_version"] == second.data_version[:63]
    assert isinstance(result, dg.SensorResult)
    write_day(lake, "2019-11-25", rows=4)
    [third], _ = sensor.tick()
    assert third.run_key == request.run_key  # which Dagster drops


def test_a_tick_that_dies_loses_nothing(sensor: Sensor, lake: Lake) -> None:
    """Case G3: without its cursor the next tick gives the same run keys, which Dagster dedupes."""
    for number in range(24, 31):
        write_day(lake, f"2019-11-{number}")
    before, _ = sensor.tick(keep_cursor=False)
    after, _ = sensor.tick()
    assert [r.run_key for r in before] == [r.run_key for r in after]
    assert len({r.run_key for r in after}) == 6


def test_many_days_are_worked_through_in_bounded_ticks(sensor: Sensor, lake: Lake) -> None:
    """Case G9: a backlog is asked for 50 a tick, oldest first, and all of it."""
    days = [
        f"2020-{month:02d}-{day:02d}"
        for month in (1, 2, 3, 4)
        for day in range(1, 31)
        if (month, day) != (2, 30)
    ]
    for day in ("2019-12-31", *days):
        write_day(lake, day, rows=1)
    sizes = []
    asked: list[str | None] = []
    while len(asked) < len(days):
        found = sensor.days()
        assert 0 < len(found) <= DAYS_PER_TICK
        sizes.append(len(found))
        asked += found
    assert sizes == [50, 50, 19]
    assert asked == sorted(days)


def test_five_thousand_new_days_are_chosen_quickly() -> None:
    """Case G9: choosing among thousands of days is a matter of milliseconds."""
    days = [date(2019, 11, 24) + timedelta(days=number) for number in range(5000)]
    have = {day.isoformat(): "v" for day in days}
    assert len(new_days(have, {}, first="2019-11-24", last="2040-01-01")) == 4999
    assert new_days(have, have, first="2019-11-24", last="2040-01-01") == []


def test_a_day_with_nothing_before_it_waits(sensor: Sensor) -> None:
    """No run that could only fail is asked for; once an earlier day arrives the day is."""
    lake = own_lake()
    write_day(lake, "2019-11-28")
    requests, reason = sensor.tick()
    assert requests == []
    assert "2019-11-28: none of the 7 days before is there to learn from" in str(reason)
    write_day(lake, "2019-11-27")
    assert sensor.days() == ["2019-11-28"]


def test_a_listing_that_fails_never_looks_empty(sensor: Sensor, lake: Lake, monkeypatch) -> None:
    """A lake that can't be reached skips with the reason; the cursor stays."""
    write_day(lake, "2019-11-25")
    sensor.tick()
    cursor = sensor.cursor
    monkeypatch.setenv("MLP_LAKE", "file:///proc/nowhere")
    requests, reason = sensor.tick()
    assert requests == []
    assert "could not be listed" in str(reason)
    assert sensor.cursor == cursor


def test_half_written_and_odd_folders_are_left_alone(sensor: Sensor, lake: Lake) -> None:
    """Case G4: a day without its marker and names that are no days give no run; others do."""
    lake.store.put("impressions/dt=2019-11-26/part.parquet", b"x")
    for odd in ("dt=a,b|c", "dt=2019-13-01", "dt=2019-11-24x", "other"):
        lake.store.put(f"impressions/{odd}/_SUCCESS.json", b"{}")
    write_day(lake, "2019-11-25")
    assert sensor.days() == ["2019-11-25"]


def test_days_outside_the_partitions_wait(sensor: Sensor, lake: Lake) -> None:
    """Today isn't over, and days before the first are not ours: no request, no cursor entry."""
    today = datetime.now(UTC).date().isoformat()
    write_day(lake, today)
    write_day(lake, "2019-11-23")
    write_day(lake, "2019-11-25")
    assert sensor.days() == ["2019-11-25"]
    assert list(json.loads(sensor.cursor)) == ["2019-11-25"]


def test_a_day_that_vanishes_and_returns_is_not_run_again(sensor: Sensor, lake: Lake) -> None:
    """Case G2: the cursor remembers days whose folder is gone for a while."""
    write_day(lake, "2019-11-25")
    assert sensor.days() == ["2019-11-25"]
    lake.store.delete_prefix("impressions/dt=2019-11-25")
    write_day(lake, "2019-11-26")
    assert sensor.days() == ["2019-11-26"]
    write_day(lake, "2019-11-25")
    assert sensor.days() == []


def test_changed_data_makes_what_was_made_of_it_stale(sensor: Sensor, lake: Lake) -> None:
    """Dagster shows features as stale once the sensor has reported other impressions."""
    from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
    from dagster._core.loader import LoadingContextForTest

    def report() -> None:
        _, result = sensor.tick()
        assert isinstance(result, dg.SensorResult)
        for event in result.asset_events:
            sensor.instance.report_runless_asset_event(event)

    write_day(lake, "2019-11-25", rows=4)
    report()

    @dg.asset(name="ads_features", deps=["impressions"], partitions_def=_days())
    def features(context: dg.AssetExecutionContext) -> None:
        context.log.debug(context.partition_key)

    impressions = dg.AssetSpec("impressions", partitions_def=_days())
    both = dg.Definitions(assets=[impressions, features])
    dg.materialize(
        [features, impressions],
        instance=sensor.instance,
        partition_key="2019-11-25",
        selection=[features],
    )
    graph = both.resolve_asset_graph()

    def status() -> StaleStatus:
        resolver = CachingStaleStatusResolver(
            sensor.instance, graph, LoadingContextForTest(sensor.instance)
        )
        return resolver.get_status(dg.AssetKey("ads_features"), "2019-11-25")

    assert status() is StaleStatus.FRESH
    write_day(lake, "2019-11-25", rows=5)
    report()
    assert status() is StaleStatus.STALE


def _days() -> dg.DailyPartitionsDefinition:
    from ml_pipelines.defs.ads_ranking.partitions import DAYS

    return DAYS
