"""Faults that once ended badly, or must never: one each, at the very call where it hurts."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ml_pipelines import lifecycle, settings
from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import (
    AlreadyExists,
    BackendRefused,
    BackendUnavailable,
    JournalCorrupt,
    MlPipelinesError,
    Refused,
    StorageUnavailable,
    Superseded,
)
from ml_pipelines.job.events import AttemptEnded, Event, JobEnded, Notice, PhaseChanged
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import VerdictClass
from ml_pipelines.journal import index
from ml_pipelines.journal.lease import Observer, Process
from ml_pipelines.journal.record import Journal
from ml_pipelines.lifecycle import Platform, exclusive
from ml_pipelines.lifecycle.cancelling import cancelling
from ml_pipelines.spec.job import JobSpec
from ml_pipelines.spec.pools import load_pools
from ml_pipelines.storage import Store
from ml_pipelines_tests.fake_backend import (
    RUNS_ON,
    FakeBackend,
    fails,
    loses_its_head,
    succeeds,
)
from ml_pipelines_tests.plain_store import PlainStore

KEY = "train-2026-01-01-0123456789"
SPEC = JobSpec(name="train", entrypoint=("python", "train.py"))
OWES = SPEC.model_copy(update={"owes_result": True})
POOLS = load_pools()


class TouchyStore(PlainStore):
    """Before each call `touch(method, path)` may act, or raise."""

    def __init__(self, inner: PlainStore) -> None:
        super().__init__()
        self.data = inner.data
        self.touch: Callable[[str, str], None] = lambda _method, _path: None
        self.writing = b""

    def get(self, path: str) -> bytes:
        self.touch("get", path)
        return super().get(path)

    def create(self, path: str, data: bytes) -> None:
        self.writing = data
        self.touch("create", path)
        super().create(path, data)

    def put(self, path: str, data: Any) -> None:
        self.touch("put", path)
        super().put(path, data)

    def put_file(self, path: str, local: Path) -> None:
        self.touch("put_file", path)
        super().put_file(path, local)

    def objects(self, prefix: str = "", *, after: str = "") -> list[Any]:
        self.touch("objects", prefix)
        return super().objects(prefix, after=after)

    def delete(self, path: str) -> None:
        self.touch("delete", path)
        super().delete(path)


@dataclass
class TouchyBackend(FakeBackend):
    """Right before or after a call of that name, `before[name]` or `after[name]` acts once."""

    before: dict[str, Callable[[], Any]] = field(default_factory=dict)
    after: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def _fault(self, method: str) -> None:
        act = self.before.pop(method, None)
        if act is not None:
            act()
        super()._fault(method)

    def create(self, manifest: Any) -> Any:
        view = super().create(manifest)
        act = self.after.pop("create", None)
        if act is not None:
            act()
        return view

    def delete(self, name: str, uid: str = "") -> None:
        super().delete(name, uid)
        act = self.after.pop("delete", None)
        if act is not None:
            act()

    def list(self, labels: Any) -> Any:
        found = super().list(labels)
        act = self.after.pop("list", None)
        if act is not None:
            act()
        return found


class Place:
    """One run storage and one engine; `platform()` is a new process each time."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.store = PlainStore()
        self.backend = TouchyBackend(clock, scripts=[succeeds()])

    def platform(self, **changes: Any) -> Platform:
        store = TouchyStore(self.store)
        whole = Platform(
            store,
            self.backend,
            POOLS,
            self.clock,
            Process(store, self.clock, threaded=False),
            settings.load({"MLP_HOME": "/nowhere"}),
            observer=Observer(store, self.clock),
        )
        return replace(whole, **changes)

    def submit(self, spec: JobSpec = SPEC, key: str = KEY, **options: Any) -> Iterator[Event]:
        platform = self.platform()
        job = lifecycle.submit(spec, run_key=key, labels={}, platform=platform, **options)
        return lifecycle.follow(job, platform=platform)

    def follow(self, *, takeover: bool = False) -> Iterator[Event]:
        platform = self.platform()
        job = lifecycle.attach(KEY, platform=platform, takeover=takeover)
        return lifecycle.follow(job, platform=platform)

    def cancel(self) -> list[Event]:
        return lifecycle.cancel(KEY, platform=self.platform(), reason="enough", by="ada")

    def sweep(self, wanted: bool | None = None, platform: Platform | None = None) -> list[str]:
        return lifecycle.sweep(platform or self.platform(), lambda _key, _labels: wanted)

    def sweep_for_long(self, wanted: bool | None = None) -> list[str]:
        """Three rounds of one keeper, more than a claim time apart."""
        keeper = self.platform()
        done = []
        for _ in range(3):
            done += self.sweep(wanted, keeper)
            self.clock.advance(settings.CLAIM_TIME_S + 1)
        return done

    @property
    def state(self) -> Any:
        return Journal(self.store, KEY, writer="judge", clock=self.clock).read()


@pytest.fixture
def place(clock: FakeClock) -> Place:
    return Place(clock)


def until(stream: Iterator[Event], phase: Phase) -> list[Event]:
    """The events up to that phase."""
    told = []
    for event in stream:
        told.append(event)
        if isinstance(event, PhaseChanged) and event.phase is phase:
            break
    return told


def end_of(events: list[Event]) -> JobEnded:
    assert isinstance(events[-1], JobEnded)
    return events[-1]


def touchy(platform: Platform) -> TouchyStore:
    assert isinstance(platform.store, TouchyStore)
    return platform.store


def away(*_: str) -> None:
    raise StorageUnavailable("run storage: no answer")


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
                from ml_pipelines.errors import NotFound

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
        from ml_pipelines.journal.entries import Draft

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


def test_a_store_is_what_these_tests_say(clock: FakeClock) -> None:
    """The stores of these tests are stores."""
    assert isinstance(TouchyStore(PlainStore()), Store)
    assert fails(1) != succeeds()
