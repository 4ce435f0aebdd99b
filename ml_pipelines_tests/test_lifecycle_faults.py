"""Late creations, results that can't be read, loops cut off: one fault each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ml_pipelines import lifecycle, settings
from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import (
    AlreadyExists,
    BackendRefused,
    BackendUnavailable,
    Refused,
    StorageUnavailable,
    Superseded,
)
from ml_pipelines.job.events import AttemptEnded, Event
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import VerdictClass
from ml_pipelines.journal.record import Journal
from ml_pipelines.lifecycle import Platform
from ml_pipelines_tests.fake_backend import RUNS_ON, loses_its_head, succeeds
from ml_pipelines_tests.touchy import KEY, OWES, SPEC, Place, away, end_of, touchy, until


@pytest.fixture
def place(clock: FakeClock) -> Place:
    return Place(clock)


class TestLateCreations:
    """A creation that arrives when others have gone on."""

    def test_cancelled_right_before_the_creation(self, place: Place) -> None:
        """Case E6: the holder had looked already; what it creates then is withdrawn."""
        place.backend.scripts = [RUNS_ON]
        place.backend.before["create"] = place.cancel
        events = list(place.submit())
        assert end_of(events).phase is Phase.CANCELLED
        assert place.backend.created != []
        assert place.backend.jobs == {}

    def test_cancelled_between_decision_and_creation(self, place: Place) -> None:
        """Rule 5: written ahead, then the hold is proved; a claim that is lost creates nothing."""
        platform = place.platform()
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)
        looks = 0

        def touch(method: str, _path: str) -> None:
            nonlocal looks
            looks += method == "objects" and place.state.open_attempt is not None
            if looks == 2:  # the first was for the decision
                touchy(platform).touch = lambda _method, _path: None
                place.cancel()

        touchy(platform).touch = touch
        events = list(lifecycle.follow(job, platform=platform))
        assert end_of(events).phase is Phase.CANCELLED
        assert place.backend.created == []

    def test_cancelled_right_after_the_creation(self, place: Place) -> None:
        """Case E6: created, and not noted yet."""
        place.backend.scripts = [RUNS_ON]
        place.backend.after["create"] = place.cancel
        assert end_of(list(place.submit())).phase is Phase.CANCELLED
        assert place.backend.jobs == {}

    def test_creation_that_the_next_loop_adopts_is_left(self, place: Place) -> None:
        """Superseded between creation and note, with the attempt still open: it is theirs now."""
        streams = []

        def others_take_over() -> None:
            stream = place.follow(takeover=True)
            until(stream, Phase.PROVISIONING)
            streams.append(stream)

        place.backend.after["create"] = others_take_over
        with pytest.raises(Superseded):
            list(place.submit())
        assert end_of(list(streams[0])).phase is Phase.SUCCEEDED
        assert len(place.backend.created) == 1

    def test_ghost_of_an_ended_attempt_goes_while_the_next_one_runs(self, place: Place) -> None:
        """Case B11: a POST in flight landed late; the holder removes it, the open one stays."""
        place.backend.scripts = [loses_its_head(), succeeds(after=200)]
        stream = place.submit()
        until(stream, Phase.RUNNING)
        (ghost,) = place.backend.jobs.values()
        until(stream, Phase.RUNNING)
        place.backend.jobs[ghost.view.name] = ghost
        assert end_of(list(stream)).phase is Phase.SUCCEEDED
        assert place.backend.deleted.count(ghost.view.name) == 2

    def test_a_loop_that_stood_still_removes_nothing_of_the_next_one(self, place: Place) -> None:
        """Case B11: it listed what to remove, and the world had moved on to attempt 2."""
        place.backend.scripts = [loses_its_head(), succeeds(after=300)]
        streams = []

        def others_go_on() -> None:
            place.clock.advance(settings.CLAIM_TIME_S + 1)
            stream = place.follow(takeover=True)
            until(stream, Phase.RUNNING)
            streams.append(stream)

        stream = place.submit()
        for event in stream:
            if isinstance(event, AttemptEnded):
                break
        place.backend.before["list"] = others_go_on
        with pytest.raises(Superseded):
            list(stream)
        assert f"{KEY}-a2" in place.backend.jobs
        assert end_of(list(streams[0])).phase is Phase.SUCCEEDED

    def test_name_of_somebody_else_is_never_deleted(self, place: Place) -> None:
        """Case B2: the name is taken by another run's RayJob, which lives on."""
        place.backend.scripts = [RUNS_ON]
        next(iter(until(place.submit(key="other"), Phase.RUNNING)))
        (theirs,) = place.backend.jobs.values()
        place.backend.jobs = {f"{KEY}-a1": theirs}
        assert end_of(list(place.submit())).verdict.cls is VerdictClass.CONFIG
        assert list(place.backend.jobs.values()) == [theirs]

    def test_uid_that_changed_is_not_ours(self, place: Place) -> None:
        """Cases B5, section 0: another object has our name when the next loop comes."""
        place.backend.scripts = [RUNS_ON]
        stream = place.submit()
        until(stream, Phase.RUNNING)
        stream.close()  # type: ignore[attr-defined]
        (job,) = place.backend.jobs.values()
        job.view = replace(job.view, uid="another", run_key="another")
        job.manifest = {"metadata": {"labels": {}}}
        end = end_of(list(place.follow()))
        assert end.phase is Phase.LOST
        assert len(place.backend.jobs) == 1


class TestResults:
    """A result that can't be read, or comes in at the last moment."""

    def _commits(self, place: Place, at: float, **commit: Any) -> None:
        done = False

        def on_status(_job: Any, elapsed: float) -> None:
            nonlocal done
            if elapsed >= at and not done:
                done = True
                journal = Journal(place.store, KEY, writer="driver", clock=place.clock)
                claim = journal.claim_driver(1, "c")
                journal.commit(claim.number, "result", **commit)

        place.backend.on_status = on_status

    def test_result_in_its_entry(self, place: Place) -> None:
        """What `Run.result` commits is the entry itself."""
        self._commits(place, 3.0, data={"auc": 0.7})
        assert end_of(list(place.submit(OWES))).result == {"auc": 0.7}

    @pytest.mark.parametrize("there", [b'{"auc": 0.7', b"[1]", None], ids=["cut", "list", "gone"])
    def test_result_that_cant_be_read_ends_the_job(self, place: Place, there: bytes | None) -> None:
        """It is not green, and not left for every next claimant to fail at."""
        self._commits(place, 3.0, path="jobs/r.json", sha256="0" * 64 if there else "")
        if there is not None:
            place.store.put("jobs/r.json", there)
        end = end_of(list(place.submit(OWES)))
        assert end.phase is Phase.FAILED
        assert "jobs/r.json" in end.verdict.sentence

    def test_result_that_comes_in_between_verdict_and_end(self, place: Place) -> None:
        """The head was lost, and its driver committed while that was being recorded: success."""
        place.backend.scripts = [loses_its_head()]
        platform = place.platform()
        job = lifecycle.submit(OWES, run_key=KEY, labels={}, platform=platform)

        def touch(method: str, _path: str) -> None:
            if method == "create" and b'"attempt_end"' in touchy(platform).writing:
                touchy(platform).touch = lambda _method, _path: None
                journal = Journal(place.store, KEY, writer="driver", clock=place.clock)
                journal.commit(journal.claim_driver(1, "c").number, "result", data={"auc": 0.7})

        touchy(platform).touch = touch
        end = end_of(list(lifecycle.follow(job, platform=platform)))
        assert end.phase is Phase.SUCCEEDED
        assert len(place.backend.created) == 1

    def test_result_of_a_job_that_vanished_unseen(self, place: Place) -> None:
        """Case G10: it ended and expired while nobody followed; its result tells."""
        place.backend.scripts = [succeeds(after=60)]
        self._commits(place, 50.0, data={"auc": 0.7})
        stream = place.submit(OWES)
        until(stream, Phase.RUNNING)
        stream.close()  # type: ignore[attr-defined]
        place.clock.advance(59)
        place.backend.observe(f"{KEY}-a1")
        place.backend.jobs.clear()
        end = end_of(list(place.follow()))
        assert end.phase is Phase.SUCCEEDED
        assert end.result == {"auc": 0.7}


class TestLeaving:
    """A loop that is cut off leaves the job to the next one, whatever cut it off."""

    @pytest.mark.parametrize("method", ["observe", "create", "read_log"])
    def test_plain_bug_releases_the_claim(self, place: Place, method: str) -> None:
        """Case B6: an exception that nobody planned for; the next one need not wait."""
        place.backend.faults = {method: [ZeroDivisionError("a bug")]}
        with pytest.raises(ZeroDivisionError):
            list(place.submit())
        at = place.clock.elapsed
        assert end_of(list(place.follow())).phase is Phase.SUCCEEDED
        assert place.clock.elapsed - at < 30

    def test_clean_up_waits_for_an_engine_that_comes_back(self, place: Place) -> None:
        """Case C14: who follows a job alone, without a keeper, leaves nothing all the same."""
        place.backend.faults = {"list": [BackendUnavailable("503") for _ in range(6)]}
        assert end_of(list(place.submit())).phase is Phase.SUCCEEDED
        assert place.backend.jobs == {}
        assert place.state.cleaned

    def test_log_that_cant_be_kept_does_not_keep_the_claim(self, place: Place) -> None:
        """Storage fails for the log alone as the loop leaves."""
        place.backend.scripts = [RUNS_ON]
        place.backend.log = lambda t: b"line\n" * int(t)
        platform = place.platform()
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)
        stream = lifecycle.follow(job, platform=platform)
        until(stream, Phase.RUNNING)

        def touch(_method: str, path: str) -> None:
            if "/logs/" in path:
                raise (AlreadyExists if _method == "create" else StorageUnavailable)(path)

        touchy(platform).touch = touch
        stream.close()
        assert place.state.loop.released

    def test_claim_whose_answer_was_lost_is_released(self, place: Place) -> None:
        """It stands in the journal, and the process that made it lives on without it."""
        platform = place.platform()
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)
        store = touchy(platform)

        def touch(method: str, path: str) -> None:
            if method == "create" and "journal" in path:
                store.touch = away
                place.store.data[path] = self._claim(platform)
                raise StorageUnavailable("the answer was lost")

        store.touch = touch
        stream = lifecycle.follow(job, platform=platform)
        assert "decisions wait" in next(stream).sentence  # type: ignore[union-attr]
        store.touch = lambda _method, _path: None
        stream.close()
        assert place.state.loop.released

    def _claim(self, platform: Platform) -> bytes:
        fields = {"number": 2, "kind": "claim", "role": "loop", "writer": platform.process.id,
                  "nonce": "n", "claim": 0, "at": "", "data": {"over": 0}}  # fmt: skip
        return json.dumps(fields).encode()

    def test_two_loops_race_to_claim(self, place: Place) -> None:
        """Both saw the same dead holder; one follows, the other waits and is refused in the end."""
        place.backend.scripts = [RUNS_ON]
        until(place.submit(), Phase.RUNNING)
        place.clock.advance(settings.CLAIM_TIME_S + 1)
        loser = place.platform()
        job = lifecycle.attach(KEY, platform=loser)
        job.takeover = True
        winners: list[Iterator[Event]] = []

        def touch(method: str, path: str) -> None:
            if method == "create" and "journal" in path and not winners:
                winners.append(place.follow(takeover=True))
                until(winners[0], Phase.RUNNING)
                job.takeover = False

        touchy(loser).touch = touch
        stream = lifecycle.follow(job, platform=loser)
        assert "another process" in next(stream).sentence  # type: ignore[union-attr]
        stream.close()
        assert len(place.backend.created) == 1


class TestPlaces:
    """A job lives where it was born."""

    def test_retry_on_another_machine_is_refused(self, place: Place) -> None:
        """It would run the job a second time, beside the first."""
        place.backend.scripts = [RUNS_ON]
        until(place.submit(), Phase.RUNNING)
        place.backend.location = "elsewhere#boot1"
        with pytest.raises(Refused, match="here#boot1"):
            place.submit()

    def test_retry_of_an_ended_job_needs_no_room(self, place: Place) -> None:
        """Case G10: its end is told also where the spec would not fit any more."""
        list(place.submit())
        place.backend.faults = {"check": [BackendRefused("no room")]}
        assert end_of(list(place.submit())).phase is Phase.SUCCEEDED
