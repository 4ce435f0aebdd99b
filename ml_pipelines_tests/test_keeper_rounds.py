"""A keeper's round removes what is over or unwanted, and nothing that it can't know of."""

from __future__ import annotations

import pytest

from ml_pipelines import lifecycle, settings
from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import (
    BackendUnavailable,
)
from ml_pipelines.job.events import AttemptEnded
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import VerdictClass
from ml_pipelines.journal import index
from ml_pipelines_tests.fake_backend import RUNS_ON, loses_its_head
from ml_pipelines_tests.plain_store import PlainStore
from ml_pipelines_tests.touchy import KEY, SPEC, Place, away, end_of, touchy, until


@pytest.fixture
def place(clock: FakeClock) -> Place:
    return Place(clock)


class TestKeeping:
    """The keeper's rounds."""

    def _abandoned(self, place: Place, key: str = KEY) -> None:
        place.backend.scripts = [RUNS_ON]
        stream = place.submit(key=key)
        until(stream, Phase.RUNNING)
        stream.close()  # type: ignore[attr-defined]

    def test_one_corrupt_journal_does_not_stop_the_round(self, place: Place) -> None:
        """Its job is left alone; the others' are removed."""
        self._abandoned(place)
        self._abandoned(place, "zz-other")
        del place.store.data[f"jobs/{KEY}/journal/00000002.json"]
        assert place.sweep(wanted=False) == ["removed zz-other: no run wants it any more"]
        assert [job.view.run_key for job in place.backend.jobs.values()] == [KEY]

    def test_one_plain_bug_does_not_stop_the_round(self, place: Place) -> None:
        """The sentence says what it was."""
        self._abandoned(place)
        self._abandoned(place, "zz-other")
        place.backend.faults = {"delete": [ZeroDivisionError("a bug")]}
        done = place.sweep(wanted=False)
        assert "ZeroDivisionError" in done[0]
        assert "zz-other" in done[1]

    def test_rayjob_whose_journal_cant_be_read_is_left(self, place: Place) -> None:
        """No journal, no word: it may be the open attempt."""
        self._abandoned(place)
        platform = place.platform()

        def touch(_method: str, path: str) -> None:
            if path.startswith("jobs/"):
                away()

        touchy(platform).touch = touch
        assert place.sweep(False, platform) == []
        assert len(place.backend.jobs) == 1

    def test_journal_that_is_not_read_to_its_end_deletes_nothing(self, place: Place) -> None:
        """A stale listing hides attempt 2: its RayJob is unknown, not over."""
        place.backend.scripts = [loses_its_head(), RUNS_ON]
        stream = place.submit()
        until(stream, Phase.RUNNING)
        until(stream, Phase.RUNNING)
        at_first = next(
            number
            for number in range(1, 50)
            if b'"attempt_end"' in place.store.data[f"jobs/{KEY}/journal/{number:08d}.json"]
        )
        stale = PlainStore()
        stale.data = {
            path: data
            for path, data in place.store.data.items()
            if "/journal/" not in path or int(path[-13:-5]) < at_first
        }
        platform = place.platform()
        touchy(platform).data = stale.data
        place.sweep(None, platform)
        assert [job.view.name for job in place.backend.jobs.values()] == [f"{KEY}-a2"]

    def test_backend_that_is_away_does_not_lose_what_was_done(self, place: Place) -> None:
        """The sentences of the round are told, and what could not be seen is."""
        list(place.submit())
        place.backend.faults = {"list": [BackendUnavailable("503")]}
        assert place.sweep() == ["what else there is can't be seen: 503"]

    def test_marker_without_birth_goes_after_a_while(self, place: Place) -> None:
        """Its submitter died in between; a fresh one is left to its submitter."""
        index.mark_open(place.store, "unborn")
        keeper = place.platform()
        assert place.sweep(None, keeper) == []
        place.clock.advance(601)
        assert place.sweep(None, keeper) == ["removed the marker of unborn, which was never born"]
        assert index.open_keys(place.store) == []

    def test_birth_that_was_long_in_coming_marks_itself_again(self, place: Place) -> None:
        """The keeper took the marker right before the birth."""
        platform = place.platform()

        def touch(method: str, path: str) -> None:
            if method == "create" and "/journal/" in path:
                place.store.delete(f"open/{KEY}")

        touchy(platform).touch = touch
        lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)
        assert index.open_keys(place.store) == [KEY]

    def test_marker_of_a_closed_job_goes(self, place: Place) -> None:
        """The last deletion of a clean-up failed: the job is filed away, and told once."""
        list(place.submit())
        index.mark_open(place.store, KEY)
        assert place.sweep() == [f"filed {KEY} away, which was cleaned up before"]
        assert index.open_keys(place.store) == []
        assert len(lifecycle.list_jobs(place.platform())) == 1

    def test_clean_up_that_broke_off_before_its_last_word(self, place: Place) -> None:
        """All was done but for the entry that says so: the keeper still finds the job."""
        platform = place.platform()
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)

        def touch(method: str, _path: str) -> None:
            if method == "create" and b'"cleaned"' in touchy(platform).writing:
                away()

        touchy(platform).touch = touch
        assert end_of(list(lifecycle.follow(job, platform=platform))).phase is Phase.SUCCEEDED
        assert not place.state.cleaned
        assert place.sweep_for_long() == [f"cleaned up after {KEY}"]
        assert place.state.cleaned
        assert index.open_keys(place.store) == []

    def test_ended_job_is_left_to_the_loop_that_cleans_it_up(self, place: Place) -> None:
        """A keeper's round in the midst of a living loop takes what is over, and nothing else."""
        stream = place.submit()
        for event in stream:
            if isinstance(event, AttemptEnded):
                break
        (done,) = place.sweep(wanted=False)
        assert done.startswith(f"removed {KEY}-a1")
        assert end_of(list(stream)).phase is Phase.SUCCEEDED

    def test_job_of_another_machine_is_left(self, place: Place) -> None:
        """Only who reaches the place may judge it."""
        self._abandoned(place)
        place.backend.location = "elsewhere"
        assert place.sweep(wanted=False) == []
        assert len(place.backend.jobs) == 1

    def test_job_of_another_run_storage_is_left(self, place: Place, clock: FakeClock) -> None:
        """Case B2: one run key in two code locations: whoever comes second takes nothing away."""
        place.backend.scripts = [RUNS_ON]
        until(place.submit(), Phase.RUNNING)
        other = Place(clock)
        other.backend = place.backend
        elsewhere = other.platform(settings=settings.load({"MLP_HOME": "/elsewhere"}))
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=elsewhere)
        end = end_of(list(lifecycle.follow(job, platform=elsewhere)))
        assert (end.phase, end.verdict.cls) == (Phase.FAILED, VerdictClass.CONFIG)
        assert "belongs to somebody else" in end.verdict.sentence
        assert other.sweep(False, elsewhere) == []
        lifecycle.cancel(KEY, platform=elsewhere, reason="mine", by="eve")
        assert [job.view.uid for job in place.backend.jobs.values()] == ["uid-1"]
        assert place.state.attempts[-1].ended is False
