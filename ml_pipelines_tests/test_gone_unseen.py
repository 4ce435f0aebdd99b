"""What the next loop does not find, or finds changed: nobody saw how that came."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ml_pipelines.clock import FakeClock
from ml_pipelines.job.events import AttemptEnded
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import VerdictClass
from ml_pipelines_tests.fake_backend import RUNS_ON, loses_its_head, succeeds
from ml_pipelines_tests.touchy import Place, end_of, until


@pytest.fixture
def place(clock: FakeClock) -> Place:
    return Place(clock)


class TestGoneUnseen:
    """What the next loop does not find."""

    def _cut_off_while_running(self, place: Place) -> None:
        stream = place.submit()
        until(stream, Phase.RUNNING)
        stream.close()  # type: ignore[attr-defined]

    def test_job_that_was_deleted_unseen_is_not_run_again(self, place: Place) -> None:
        """A cancel that could not be recorded, or a success that expired: nobody knows."""
        self._cut_off_while_running(place)
        place.backend.jobs.clear()
        assert end_of(list(place.follow())).phase is Phase.LOST
        assert len(place.backend.created) == 1

    def test_machine_started_anew_the_job_is_tried_again(self, place: Place) -> None:
        """After a reboot what ran is gone: INFRA, and a second attempt, at once."""
        self._cut_off_while_running(place)
        place.backend.jobs.clear()
        place.backend.location = "here#boot2"
        at = place.clock.elapsed
        events = list(place.follow())
        (first, _) = [event for event in events if isinstance(event, AttemptEnded)]
        assert first.verdict.cls is VerdictClass.INFRA
        assert "started anew" in first.verdict.sentence
        assert end_of(events).phase is Phase.SUCCEEDED
        assert place.clock.elapsed - at < 60

    def test_machine_started_anew_and_its_objects_stayed(self, place: Place) -> None:
        """A status frozen at RUNNING over a head that nobody saw go: lost, not waited for."""
        place.backend.scripts = [loses_its_head(after=5), succeeds()]
        self._cut_off_while_running(place)
        place.clock.advance(60)
        place.backend.location = "here#boot2"
        at = place.clock.elapsed
        events = list(place.follow())
        assert end_of(events).phase is Phase.SUCCEEDED
        assert len(place.backend.created) == 2
        assert place.clock.elapsed - at < 60

    def test_head_that_was_replaced_unseen(self, place: Place) -> None:
        """Case B12: the work may have run twice behind us; the ledger remembers the head."""
        place.backend.scripts = [RUNS_ON, succeeds()]
        self._cut_off_while_running(place)
        (job,) = place.backend.jobs.values()
        uid, place.backend.on_status = job.view.uid, None
        observe = place.backend.observe

        def with_another_head(name: str) -> Any:
            seen = observe(name)
            pods = tuple(replace(pod, uid=f"{pod.uid}-2") for pod in seen.pods)
            return replace(seen, pods=pods) if uid in str(seen.pods) else seen

        place.backend.observe = with_another_head  # type: ignore[method-assign]
        events = list(place.follow())
        (first, _) = [event for event in events if isinstance(event, AttemptEnded)]
        assert "replaced" in first.verdict.sentence

    def test_created_and_slept_through_is_not_created_again(self, place: Place) -> None:
        """The laptop slept right after the POST; the job ran, ended and expired meanwhile."""

        def sleeps() -> None:
            place.clock.advance(1_000)
            place.backend.jobs.clear()

        place.backend.after["create"] = sleeps
        events = list(place.submit())
        assert end_of(events).phase is Phase.LOST
        assert len(place.backend.created) == 1
