"""Run storage does not answer: what is seen then, what is decided, and what is told."""

from __future__ import annotations

import pytest

from ml_pipelines import lifecycle
from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import (
    JournalCorrupt,
    NotFound,
)
from ml_pipelines.job.events import PhaseChanged
from ml_pipelines.job.phase import Phase
from ml_pipelines_tests.fake_backend import RUNS_ON, succeeds
from ml_pipelines_tests.touchy import KEY, SPEC, Place, away, end_of, touchy, until


@pytest.fixture
def place(clock: FakeClock) -> Place:
    return Place(clock)


class TestStorageAway:
    """Run storage does not answer."""

    def test_job_is_watched_from_the_first_look_on(self, place: Place) -> None:
        """The log waits for storage, the job does not: its end is seen."""
        place.backend.scripts = [succeeds(after=60)]
        platform = place.platform()
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)
        back = 400.0

        def touch(_method: str, path: str) -> None:
            if place.backend.jobs and place.clock.elapsed < back:
                away()

        touchy(platform).touch = touch
        events = list(lifecycle.follow(job, platform=platform))
        assert end_of(events).phase is Phase.SUCCEEDED
        assert Phase.FINISHING in {e.phase for e in events if isinstance(e, PhaseChanged)}
        assert len(place.backend.created) == 1

    def test_job_whose_uid_cant_be_noted_is_created_once(self, place: Place) -> None:
        """It ends and expires before its uid is noted; the name is free again, and stays so."""
        platform = place.platform()
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)

        def touch(method: str, _path: str) -> None:
            if place.clock.elapsed > 60:
                place.backend.jobs.clear()
            noting = method == "create" and b'"created"' in touchy(platform).writing
            if noting and place.clock.elapsed < 120:
                away()

        touchy(platform).touch = touch
        assert end_of(list(lifecycle.follow(job, platform=platform))).phase is Phase.SUCCEEDED
        assert len(place.backend.created) == 1

    def test_ledger_lines_of_that_time_are_written_later(self, place: Place) -> None:
        """What isn't written while the pod lives can't be known later: so it is kept for later."""
        place.backend.scripts = [succeeds(after=100)]
        platform = place.platform()
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)

        def touch(_method: str, path: str) -> None:
            if place.backend.jobs and place.clock.elapsed < 60:
                away()

        touchy(platform).touch = touch
        list(lifecycle.follow(job, platform=platform))
        (placed, gone) = place.state.ledger
        assert "scheduled_at" in placed
        assert "gone_at" in gone

    def test_ledger_is_closed_by_whoever_follows_next(self, place: Place) -> None:
        """A pod that was placed under one loop and went under another is in the ledger once."""
        place.backend.scripts = [succeeds(after=60)]
        stream = place.submit()
        until(stream, Phase.RUNNING)
        stream.close()  # type: ignore[attr-defined]
        list(place.follow())
        assert len(place.state.ledger) == 2

    def test_end_is_told_although_the_clean_up_must_wait(self, place: Place) -> None:
        """A success that is recorded is told as one within a minute; the keeper cleans up."""
        platform = place.platform()
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)

        def touch(_method: str, path: str) -> None:
            if "/logs/" in path:
                away()

        touchy(platform).touch = touch
        end = end_of(list(lifecycle.follow(job, platform=platform)))
        assert end.phase is Phase.SUCCEEDED
        assert place.clock.elapsed < 70
        assert not place.state.cleaned
        place.sweep_for_long()
        assert place.state.cleaned

    def test_journal_that_lies_for_a_moment_is_read_again(self, place: Place) -> None:
        """A listing that shows what can't be read yet is no gap for ever."""
        platform = place.platform()
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)
        left = 8

        def touch(method: str, path: str) -> None:
            nonlocal left
            if method == "get" and "journal" in path and place.backend.jobs and left:
                left -= 1
                raise NotFound(path)

        touchy(platform).touch = touch
        assert end_of(list(lifecycle.follow(job, platform=platform))).phase is Phase.SUCCEEDED

    def test_journal_with_a_gap_is_given_up(self, place: Place) -> None:
        """A gap is an error, not an empty journal: nothing is decided on it."""
        place.backend.scripts = [RUNS_ON]
        stream = place.submit()
        until(stream, Phase.RUNNING)
        stream.close()  # type: ignore[attr-defined]
        del place.store.data[f"jobs/{KEY}/journal/00000002.json"]
        with pytest.raises(JournalCorrupt):
            list(place.follow())
        assert len(place.backend.jobs) == 1
