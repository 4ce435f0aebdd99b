"""Cancel leaves nothing behind, whatever storage, engine and other loops do meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ml_pipelines import lifecycle
from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import (
    BackendRefused,
    BackendUnavailable,
    Refused,
)
from ml_pipelines.job.events import AttemptEnded, Event, Notice
from ml_pipelines.job.phase import Phase
from ml_pipelines.journal.entries import Draft
from ml_pipelines.journal.record import Journal
from ml_pipelines.lifecycle.cancelling import cancelling
from ml_pipelines_tests.fake_backend import RUNS_ON
from ml_pipelines_tests.touchy import KEY, SPEC, Place, away, end_of, touchy, until


@pytest.fixture
def place(clock: FakeClock) -> Place:
    return Place(clock)


class TestCancelling:
    """Cancel deletes first, and whatever storage says."""

    def _running(self, place: Place) -> Iterator[Event]:
        place.backend.scripts = [RUNS_ON]
        stream = place.submit()
        until(stream, Phase.RUNNING)
        return stream

    def test_storage_that_hangs_does_not_hold_up_the_deletion(self, place: Place) -> None:
        """Rule 6: S3 is black-holed; the RayJob goes all the same, and that is said."""
        self._running(place)
        platform = place.platform()
        answers = threading.Event()

        def touch(_method: str, _path: str) -> None:
            answers.wait(60)

        touchy(platform).touch = touch
        place.backend.after["delete"] = answers.set
        events = list(cancelling(KEY, platform, "enough", "ada", record_s=0.05))
        assert answers.is_set()
        assert end_of(events).phase is Phase.CANCELLED
        assert place.state.cleaned

    @pytest.mark.parametrize("error", [BackendUnavailable("503"), ZeroDivisionError("a bug")])
    def test_log_that_cant_be_kept_does_not_hold_up_the_deletion(
        self, place: Place, error: Exception
    ) -> None:
        """The last lines are worth keeping, and never worth a job that runs on."""
        self._running(place)
        place.backend.faults = {"read_log": [error]}
        assert end_of(place.cancel()).phase is Phase.CANCELLED
        assert place.backend.jobs == {}

    def test_unrecorded_cancel_is_said(self, place: Place) -> None:
        """Rule 6: it retries, then says that it stays unrecorded and what to do."""
        self._running(place)
        platform = place.platform()
        touchy(platform).touch = away
        events = lifecycle.cancel(KEY, platform=platform, by="ada")
        assert place.backend.jobs == {}
        (notice,) = [event for event in events if isinstance(event, Notice)]
        assert "mlp job cancel" in notice.sentence
        assert place.clock.elapsed < 60

    def test_entry_is_retried_after_the_deletion(self, place: Place) -> None:
        """Storage comes back within the time: recorded, and finished as any other."""
        self._running(place)
        platform = place.platform()

        def touch(_method: str, _path: str) -> None:
            if place.backend.jobs:
                away()

        touchy(platform).touch = touch
        events = lifecycle.cancel(KEY, platform=platform, by="ada")
        assert end_of(events).phase is Phase.CANCELLED
        assert place.state.cleaned

    def test_corrupt_journal_does_not_keep_a_job_alive(self, place: Place) -> None:
        """What can't be read can be stopped."""
        self._running(place)
        del place.store.data[f"jobs/{KEY}/journal/00000002.json"]
        events = place.cancel()
        assert place.backend.jobs == {}
        assert end_of(events).phase is Phase.CANCELLED

    def test_spec_of_another_version_can_be_stopped(self, place: Place) -> None:
        """After an upgrade: it can't be followed, but it can be cancelled."""
        self._running(place).close()  # type: ignore[attr-defined]
        path = f"jobs/{KEY}/journal/00000001.json"
        place.store.data[path] = place.store.data[path].replace(b'"entrypoint"', b'"command"')
        with pytest.raises(Refused, match="another version"):
            place.follow()
        assert end_of(place.cancel()).phase is Phase.CANCELLED
        assert place.backend.jobs == {}
        assert place.state.cleaned

    def test_canceller_that_died_is_finished_by_the_keeper(self, place: Place) -> None:
        """Cancelled, not ended, and nobody there: finished even where no run is asked about it."""
        stream = self._running(place)
        journal = Journal(place.store, KEY, writer="died", clock=place.clock)
        journal.append(lambda _: Draft("cancel", {"by": "ada"}), role="loop", claim=0)
        end = end_of(list(stream))
        assert end.phase is Phase.CANCELLED
        assert not place.state.ended
        place.sweep_for_long(wanted=None)
        assert place.state.ended.phase == "CANCELLED"
        assert place.backend.jobs == {}

    def test_loop_waits_for_a_cancel_while_storage_fails(self, place: Place) -> None:
        """Taken over by a cancel, and then the journal can't be read for a while."""
        place.backend.scripts = [RUNS_ON]
        platform = place.platform()
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)
        stream = lifecycle.follow(job, platform=platform)
        until(stream, Phase.RUNNING)
        place.cancel()
        left = 5

        def touch(_method: str, _path: str) -> None:
            nonlocal left
            if left and place.clock.elapsed > 1:
                left -= 1
                away()

        touchy(platform).touch = touch
        assert end_of(list(stream)).phase is Phase.CANCELLED

    def test_cancel_that_comes_between_success_and_end(self, place: Place) -> None:
        """The journal's order decides: it was not ended yet, so it is cancelled, once."""
        stream = place.submit()
        for event in stream:
            if isinstance(event, AttemptEnded):
                break
        assert end_of(place.cancel()).phase is Phase.CANCELLED
        assert end_of(list(stream)).phase is Phase.CANCELLED

    def test_cancel_of_an_ended_job_needs_no_backend(self, place: Place) -> None:
        """It stays as it ended, also while the engine is away."""
        list(place.submit())
        place.backend.faults = {"list": [BackendUnavailable("away")] * 500}
        assert end_of(place.cancel()).phase is Phase.SUCCEEDED

    @pytest.mark.parametrize("method", ["list", "delete"])
    def test_backend_that_comes_back_within_the_time(self, place: Place, method: str) -> None:
        """Case C14: each verb fails five times in a row."""
        self._running(place)
        place.backend.faults = {method: [BackendUnavailable("503") for _ in range(5)]}
        assert end_of(place.cancel()).phase is Phase.CANCELLED
        assert place.backend.jobs == {}

    def test_deletion_that_is_refused_does_not_hide_the_end(self, place: Place) -> None:
        """Case E5: a clean-up that fails is a warning; the success stays one."""
        place.backend.faults = {"delete": [BackendRefused("403") for _ in range(9)]}
        events = list(place.submit())
        assert end_of(events).phase is Phase.SUCCEEDED
        assert any("403" in event.sentence for event in events if isinstance(event, Notice))
