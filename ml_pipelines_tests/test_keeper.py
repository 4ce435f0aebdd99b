"""The keeper removes what no Dagster run will claim any more, and nothing else."""

from collections.abc import Iterator

import dagster as dg
import pytest

from ml_pipelines.errors import StorageUnavailable
from ml_pipelines.orchestration.keeper import build_keeper, wanted_by

Status = dg.DagsterRunStatus
OURS = {"code-location": "ml_pipelines", "asset": "ads_model"}


@dg.op
def nothing() -> None:
    """Does nothing."""


@dg.job
def empty() -> None:
    nothing()


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def run(instance: dg.DagsterInstance, status: Status, **tags: str) -> str:
    named = {f"dagster/{name}": value for name, value in tags.items()}
    return instance.create_run_for_job(empty, status=status, tags=named).run_id


TABLE = {
    "not started": (Status.NOT_STARTED, {}, True),
    "starting": (Status.STARTING, {}, True),
    "live": (Status.STARTED, {}, True),
    "being terminated": (Status.CANCELING, {}, True),
    "succeeded": (Status.SUCCESS, {}, False),
    "cancelled": (Status.CANCELED, {}, "cancelled"),
    "failed for good": (Status.FAILURE, {"will_retry": "false"}, False),
    "failed before the tag was written": (Status.FAILURE, {}, False),
    "failed, its retry is to come": (Status.FAILURE, {"will_retry": "true"}, True),
}


@pytest.mark.parametrize(("status", "tags", "wanted"), TABLE.values(), ids=TABLE.keys())
def test_a_job_is_wanted_as_long_as_its_run_may_claim_it(instance, status, tags, wanted) -> None:
    """Case E8: only jobs of runs that are over for good go."""
    run_id = run(instance, status, **tags)
    assert wanted_by(instance.get_run_by_id)("key", OURS | {"run": run_id}) is wanted


def test_the_newest_retry_decides(instance: dg.DagsterInstance) -> None:
    """A job of a failed run lives while its retry runs, and goes when that is over too."""
    retry = run(instance, Status.STARTED)
    first = run(instance, Status.FAILURE, will_retry="true", auto_retry_run_id=retry)
    wanted = wanted_by(instance.get_run_by_id)
    assert wanted("key", OURS | {"run": first})
    over = run(instance, Status.CANCELED)
    second = run(instance, Status.FAILURE, will_retry="true", auto_retry_run_id=over)
    assert wanted("key", OURS | {"run": second}) == "cancelled"


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"owner": "ann"},
        {"code-location": "others", "run": "over"},
        {"code-location": "ml_pipelines"},
        {"code-location": "ml_pipelines", "run": "unknown-to-this-instance"},
    ],
    ids=["no labels", "personal", "other code location", "no run", "unknown run"],
)
def test_what_is_not_ours_is_never_touched(instance: dg.DagsterInstance, labels) -> None:
    """Case E8: personal jobs, other code locations and unknown runs are somebody else's."""
    assert wanted_by(instance.get_run_by_id)("key", labels) is None


def tick(instance: dg.DagsterInstance, sweep) -> str:
    keeper = build_keeper(sweep)
    with dg.build_sensor_context(instance=instance) as context:
        result = keeper.evaluate_tick(context)
    return result.skip_message or ""


def test_a_tick_says_what_it_removed(instance: dg.DagsterInstance) -> None:
    """The tick's text is the sweep's own sentences."""
    over = run(instance, Status.FAILURE)
    live = run(instance, Status.STARTED)
    jobs = {"old": OURS | {"run": over}, "new": OURS | {"run": live}}

    def sweep(wanted) -> list[str]:
        return [f"removed {key}" for key, labels in jobs.items() if wanted(key, labels) is False]

    assert tick(instance, sweep) == "removed old"
    del jobs["old"]
    assert tick(instance, sweep) == "Nothing to remove."


def test_nothing_goes_when_the_run_database_is_away(instance: dg.DagsterInstance) -> None:
    """Case E8: no answer is not "over"; the tick skips and says why."""
    deleted: list[str] = []

    def sweep(wanted) -> list[str]:
        instance.run_storage.dispose()
        find = wanted_by(broken)
        if not find("key", OURS | {"run": "x"}):
            deleted.append("key")
        return deleted

    def broken(_run_id: str) -> None:
        raise StorageUnavailable("the run database does not answer")

    assert "Nothing was removed" in tick(instance, sweep)
    assert deleted == []


def test_any_driver_error_of_the_database_counts_as_away() -> None:
    """The keeper reads through Dagster, whose storage raises its driver's own errors."""

    class Broken:
        def get_run_by_id(self, run_id: str) -> None:
            raise OSError("connection reset")

    from ml_pipelines.orchestration import keeper

    find = keeper._finder(Broken())  # type: ignore[arg-type]  # all that is read of it
    with pytest.raises(keeper._DatabaseAwayError):
        wanted_by(find)("key", OURS | {"run": "x"})
