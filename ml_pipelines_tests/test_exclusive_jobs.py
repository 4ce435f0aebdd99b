"""Two jobs at once on what only one may work on: one is refused, whatever happens between."""

from __future__ import annotations

import random

import pytest

from ml_pipelines import lifecycle
from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import (
    MlPipelinesError,
    Refused,
)
from ml_pipelines.journal import index
from ml_pipelines.journal.record import Journal
from ml_pipelines.lifecycle import exclusive
from ml_pipelines_tests.touchy import SPEC, Place, end_of, touchy


@pytest.fixture
def place(clock: FakeClock) -> Place:
    return Place(clock)


class TestExclusive:
    """Two runs of the same partition at once."""

    def test_second_is_refused_by_name(self, place: Place) -> None:
        """It says what is worked on, by which job, and what to do."""
        place.submit(key="a", exclusive="ads_model/2019-11-24")
        with pytest.raises(Refused) as refused:
            place.submit(key="b", exclusive="ads_model/2019-11-24")
        assert "ads_model/2019-11-24 is being worked on by job a" in refused.value.message
        assert "mlp job cancel a" in refused.value.remedy
        assert index.open_keys(place.store) == ["a"]

    def test_other_partitions_are_free(self, place: Place) -> None:
        """A backfill's days run beside each other."""
        place.submit(key="a", exclusive="ads_model/2019-11-24")
        place.submit(key="b", exclusive="ads_model/2019-11-25")

    def test_retry_of_the_holder_goes_on(self, place: Place) -> None:
        """The same job may come again."""
        place.submit(exclusive="ads_model/2019-11-24")
        assert end_of(list(place.submit(exclusive="ads_model/2019-11-24"))).phase.ended

    def test_holder_that_was_never_born_is_followed(self, place: Place) -> None:
        """It crashed between its hold and its birth: the next one waits a moment, no more."""
        exclusive.take("ads_model/2019-11-24", "crashed", place.platform())
        at = place.clock.elapsed
        place.submit(exclusive="ads_model/2019-11-24")
        assert place.clock.elapsed - at <= exclusive.UNBORN_S + 1

    def test_holder_that_is_born_after_all_is_refused(self, place: Place) -> None:
        """It stood still between its hold and its birth for so long that another followed it."""
        slow = place.platform()

        def touch(method: str, path: str) -> None:
            if path == "open/a" and method == "put":
                touchy(slow).touch = lambda _method, _path: None
                place.submit(key="b", exclusive="ads_model/2019-11-24")

        touchy(slow).touch = touch
        with pytest.raises(Refused, match="by job b"):
            lifecycle.submit(
                SPEC, run_key="a", labels={}, platform=slow, exclusive="ads_model/2019-11-24"
            )

    @pytest.mark.parametrize("first", range(0, 120, 40))
    def test_of_many_that_meet_one_works(self, clock: FakeClock, first: int) -> None:
        """Submitters that stand still or die at any call: never two at work on one thing."""
        for seed in range(first, first + 40):
            _meet(seed, Place(clock))


def _meet(seed: int, place: Place) -> None:
    rng = random.Random(seed)
    returned: set[str] = set()
    depth = 0

    def submits(key: str) -> None:
        nonlocal depth
        platform = place.platform()

        def touch(_method: str, _path: str) -> None:
            nonlocal depth
            if rng.random() < 0.02:
                raise KeyboardInterrupt
            if depth < 3 and rng.random() < 0.08:
                depth += 1
                place.clock.advance(rng.choice([0.0, 3.0, 30.0]))
                submits(rng.choice("abcd"))
                depth -= 1

        touchy(platform).touch = touch
        try:
            lifecycle.submit(SPEC, run_key=key, labels={}, platform=platform, exclusive="x/y")
        except (MlPipelinesError, KeyboardInterrupt):
            return
        returned.add(key)
        if rng.random() < 0.3:
            touchy(platform).touch = lambda _method, _path: None
            lifecycle.cancel(key, platform=platform)

    def ended(key: str) -> bool:
        journal = Journal(place.store, key, writer="judge", clock=place.clock)
        return journal.read().ended is not None

    for _ in range(8):
        submits(rng.choice("abcd"))
        working = [key for key in sorted(returned) if not ended(key)]
        assert len(working) <= 1, f"seed {seed}: {working} work on one thing"
