"""The one loop over a scripted backend: what it tells, records and leaves behind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from ml_pipelines import lifecycle, settings
from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import BackendUnavailable, DoesNotFit, QuotaUsedUp, Refused
from ml_pipelines.job import wire
from ml_pipelines.job.events import (
    AttemptEnded,
    Event,
    JobEnded,
    LogLine,
    MetricPoint,
    Notice,
    PhaseChanged,
    Submitted,
)
from ml_pipelines.job.observation import Observation
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import VerdictClass
from ml_pipelines.journal import index
from ml_pipelines.journal.lease import Observer, Process
from ml_pipelines.journal.record import Journal
from ml_pipelines.lifecycle import Platform
from ml_pipelines.spec.job import Code, JobSpec, Limits
from ml_pipelines.spec.pools import load_pools
from ml_pipelines.storage import open_store
from ml_pipelines_tests.fake_backend import (
    RUNS_ON,
    FakeBackend,
    FakeJob,
    fails,
    loses_its_head,
    succeeds,
)

KEY = "train-2026-01-01-0123456789"
SPEC = JobSpec(name="train", entrypoint=("python", "train.py"))

Make = Callable[..., Platform]
T = TypeVar("T")


@pytest.fixture
def make(tmp_path, clock: FakeClock) -> Make:
    """A platform over one run storage; each call is another process."""

    def platform(backend: FakeBackend, **changes: Any) -> Platform:
        store = open_store(f"file://{tmp_path}/runs")
        loaded = settings.load({"MLP_HOME": str(tmp_path)})
        process = Process(store, clock, threaded=False)
        observer = Observer(store, clock)
        whole = Platform(store, backend, load_pools(), clock, process, loaded, observer=observer)
        return replace(whole, **changes)

    return platform


def run(platform: Platform, spec: JobSpec = SPEC, key: str = KEY) -> list[Event]:
    """Submit and follow to the end."""
    job = lifecycle.submit(spec, run_key=key, labels={}, platform=platform)
    return list(lifecycle.follow(job, platform=platform))


def kinds(events: list[Event], kind: type[T]) -> list[T]:
    """The events of one kind."""
    return [event for event in events if isinstance(event, kind)]


def end_of(events: list[Event]) -> JobEnded:
    """The last event, which must be the end."""
    assert isinstance(events[-1], JobEnded)
    return events[-1]


def commit_result(
    platform: Platform, result: dict[str, object]
) -> Callable[[FakeJob, float], None]:
    """A driver that commits a result three seconds after its creation."""
    done = False

    def on_status(job: FakeJob, elapsed: float) -> None:
        nonlocal done
        if elapsed < 3 or done:
            return
        done = True
        data = json.dumps(result).encode()
        path = f"jobs/{KEY}/a1/result.json"
        platform.store.put(path, data)
        journal = Journal(platform.store, KEY, writer="driver", clock=platform.clock)
        claim = journal.claim_driver(1, "cluster-1")
        journal.commit(
            claim.number, "result", path=path, sha256=hashlib.sha256(data).hexdigest(), data={}
        )

    return on_status


class DyingMachine(FakeBackend):
    """A worker on another machine, which is silent after `silent_at` seconds."""

    silent_at = 20.0

    def observe(self, name: str) -> Observation:
        seen = super().observe(name)
        if not seen.pods:
            return seen
        silent = self.clock.monotonic() - self.jobs[name].created >= self.silent_at
        conditions = {
            "Ready": ("False" if silent else "True", "", ""),
            "ContainersReady": ("True", "", ""),
        }
        worker = replace(
            seen.pods[0], name=f"{name}-worker", uid=f"{seen.pods[0].uid}-worker", role="worker",
            node="spot-1", conditions=conditions,
        )  # fmt: skip
        return replace(seen, pods=(*seen.pods, worker))


LOST_PEER = b"RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.9]\n"


class TestADriverThatLostAWorker:
    """Workers see that another one is gone at once; Kubernetes calls its machine silent later."""

    def test_is_not_the_users_fault(self, make: Make, clock: FakeClock) -> None:
        """Case H7: the end waits for what becomes of the machine, and the next attempt goes on."""
        backend = DyingMachine(clock, scripts=[fails(after=5), succeeds()], log=lambda _: LOST_PEER)
        events = run(make(backend))
        first, second = kinds(events, AttemptEnded)
        assert first.verdict.cls is VerdictClass.INFRA
        assert "on node spot-1 does not answer" in first.verdict.sentence
        assert second.verdict.ok
        assert [e.phase for e in kinds(events, PhaseChanged)].count(Phase.FINISHING) == 1

    def test_is_tried_once_more_where_nothing_tells_why(self, make: Make, clock: FakeClock) -> None:
        """Nothing becomes of the machine: one more try, and not five."""
        backend = DyingMachine(clock, scripts=[fails(after=5)], log=lambda _: LOST_PEER)
        backend.silent_at = 1e9
        events = run(make(backend))
        assert [e.verdict.cls for e in kinds(events, AttemptEnded)] == [VerdictClass.UNKNOWN] * 2
        assert end_of(events).phase is Phase.FAILED


class TestAGoodLife:
    """A job that is submitted, runs and ends well."""

    def test_tells_its_phases_in_order_and_ends_once(self, make: Make, clock: FakeClock) -> None:
        """Submitted, provisioning, running, succeeded: each said once, JobEnded last."""
        events = run(make(FakeBackend(clock)))
        phases = [event.phase for event in kinds(events, PhaseChanged)]
        assert phases == [Phase.PROVISIONING, Phase.RUNNING]
        assert len(kinds(events, Submitted)) == 1
        assert end_of(events).phase is Phase.SUCCEEDED
        assert len(kinds(events, JobEnded)) == 1

    def test_leaves_nothing_behind(self, make: Make, clock: FakeClock) -> None:
        """The RayJob is deleted, the open marker goes, and one summary stays under the day."""
        backend = FakeBackend(clock)
        platform = make(backend)
        run(platform)
        assert backend.jobs == {}
        assert index.open_keys(platform.store) == []
        (summary,) = lifecycle.list_jobs(platform)
        assert (summary.run_key, summary.phase) == (KEY, Phase.SUCCEEDED)

    def test_keeps_every_line_of_the_log(self, make: Make, clock: FakeClock) -> None:
        """Case D6: lines are told once, the last ones too, and are read from storage afterwards."""
        log = b"".join(b"line %d\n" % n for n in range(5000)) + b"no newline"
        platform = make(FakeBackend(clock, log=lambda t: log[: int(t * 20_000)]))
        events = run(platform)
        want = [f"line {n}" for n in range(5000)] + ["no newline"]
        assert [line.text for line in kinds(events, LogLine)] == want
        kept = list(lifecycle.read_logs(KEY, platform=platform))
        assert [line.text for line in kept] == want
        assert end_of(events).tail[-1] == "no newline"

    def test_metrics_are_points_and_not_lines(self, make: Make, clock: FakeClock) -> None:
        """A metric's line becomes a point; a step that does not increase is dropped."""
        lines = [wire.encode_metric(step, {"loss": 1.0 / step}) for step in (1, 2, 2, 3)]
        log = "\n".join(["(RayTrainWorker pid=1) " + line for line in lines] + ["bye", ""])
        events = run(make(FakeBackend(clock, log=lambda _: log.encode())))
        assert [point.step for point in kinds(events, MetricPoint)] == [1, 2, 3]
        assert [line.text for line in kinds(events, LogLine)] == ["bye"]

    def test_result_comes_from_run_storage(self, make: Make, clock: FakeClock) -> None:
        """A job that owes a result ends with what its driver committed."""
        backend = FakeBackend(clock)
        platform = make(backend)
        backend.on_status = commit_result(platform, {"auc": 0.71})
        events = run(platform, SPEC.model_copy(update={"owes_result": True}))
        assert end_of(events).phase is Phase.SUCCEEDED
        assert end_of(events).result == {"auc": 0.71}

    def test_the_ledger_has_each_pod_scheduled_and_gone(self, make: Make, clock: FakeClock) -> None:
        """What money is made from is written while the pod lives."""
        platform = make(FakeBackend(clock))
        run(platform)
        ledger = platform.journal(KEY).read().ledger
        assert [sorted(set(item) & {"scheduled_at", "gone_at"}) for item in ledger] == [
            ["scheduled_at"],
            ["gone_at"],
        ]


class TestABadEnd:
    """Jobs that fail, each with its verdict."""

    def test_exit_without_an_owed_result_is_not_green(self, make: Make, clock: FakeClock) -> None:
        """The driver said success and committed nothing: the job failed."""
        events = run(make(FakeBackend(clock)), SPEC.model_copy(update={"owes_result": True}))
        assert end_of(events).phase is Phase.FAILED
        assert "result" in end_of(events).verdict.sentence

    def test_users_mistake_is_not_tried_again(self, make: Make, clock: FakeClock) -> None:
        """Exit code 3 ends the job at its first attempt, with the code and the last lines."""
        backend = FakeBackend(clock, scripts=[fails(3)], log=lambda _: b"ValueError: no\n")
        events = run(make(backend))
        assert end_of(events).verdict.cls is VerdictClass.USER
        assert end_of(events).tail == ("ValueError: no",)
        assert len(backend.created) == 1

    def test_an_eviction_costs_no_attempt(self, make: Make, clock: FakeClock) -> None:
        """Case F6: the same RayJob waits and starts again; told once, noted once, and listed."""
        running = {"suspended": False, "deployment_status": "Running", "job_status": "RUNNING"}
        leaving = {"suspended": True, "deployment_status": "Suspended", "job_status": ""}
        script = (
            (0.0, {"deployment_status": "Initializing", "cluster_name": "c1"}),
            (1.0, running),
            (4.0, leaving | {"cluster_name": ""}),
            (9.0, running | {"cluster_name": "c2"}),
            (12.0, {"deployment_status": "Complete", "job_status": "SUCCEEDED"}),
        )
        platform = make(FakeBackend(clock, scripts=[script]))
        events = run(platform)
        phases = [event.phase for event in kinds(events, PhaseChanged)]
        assert phases == [Phase.PROVISIONING, Phase.RUNNING, Phase.QUEUED, Phase.RUNNING]
        assert end_of(events).phase is Phase.SUCCEEDED
        assert end_of(events).durations["queue"] == pytest.approx(5.0, abs=0.5)
        assert len(kinds(events, AttemptEnded)) == 1
        told = [event.sentence for event in kinds(events, Notice)]
        state = platform.journal(KEY).read()
        noted = [(note["evicted"], note["sentence"]) for note in state.notes if "evicted" in note]
        assert noted == [("PREEMPTED", told[0])]
        assert lifecycle.describe(KEY, platform=platform).evictions == 1

    def test_lost_head_is_tried_again_under_a_new_name(self, make: Make, clock: FakeClock) -> None:
        """INFRA has a budget: the second attempt starts after the first one's pods are gone."""
        backend = FakeBackend(clock, scripts=[loses_its_head(), succeeds()])
        events = run(make(backend))
        assert end_of(events).phase is Phase.SUCCEEDED
        assert len(set(backend.created)) == 2
        (first, _) = kinds(events, AttemptEnded)
        assert first.verdict.cls is VerdictClass.INFRA
        assert "attempt 2" in first.decision

    def test_run_limit_ends_the_job(self, make: Make, clock: FakeClock) -> None:
        """A driver that runs longer than `limits.run_s` is ended with TIMEOUT and deleted."""
        backend = FakeBackend(clock, scripts=[RUNS_ON])
        spec = SPEC.model_copy(update={"limits": Limits(run_s=60)})
        events = run(make(backend), spec)
        assert end_of(events).verdict.cls is VerdictClass.TIMEOUT
        assert backend.jobs == {}

    def test_what_does_not_fit_creates_nothing(self, make: Make, clock: FakeClock) -> None:
        """A spec the backend refuses leaves no journal, no marker, no RayJob."""
        refusal = DoesNotFit("cluster.workers[0].cpu", "64", "is more than the 2 CPUs here")
        platform = make(FakeBackend(clock, faults={"check": [refusal]}))
        with pytest.raises(DoesNotFit):
            run(platform)
        assert platform.store.list("") == []


class TestFaults:
    """The world fails while the loop runs."""

    def test_lost_answer_to_create_makes_one_rayjob(self, make: Make, clock: FakeClock) -> None:
        """Case B1: stored, and the answer lost: the loop tries again and adopts its own."""
        backend = FakeBackend(clock, lost_answers=1)
        events = run(make(backend))
        assert end_of(events).phase is Phase.SUCCEEDED
        assert len(backend.created) == 1

    def test_blind_times_never_kill(self, make: Make, clock: FakeClock) -> None:
        """Case C14: a backend that doesn't answer for a while is waited for."""
        away: list[Exception] = [BackendUnavailable("503") for _ in range(200)]
        backend = FakeBackend(clock, scripts=[succeeds(after=400)], faults={"observe": away})
        events = run(make(backend))
        assert end_of(events).phase is Phase.SUCCEEDED
        assert backend.deleted == backend.created
        assert any("503" in notice.sentence for notice in kinds(events, Notice))

    def test_name_of_somebody_else_is_refused(self, make: Make, clock: FakeClock) -> None:
        """Case B2: a RayJob of our name with another run key is neither adopted nor deleted."""
        backend = FakeBackend(clock, faults={"create": [Refused("belongs to somebody else")]})
        events = run(make(backend))
        assert end_of(events).verdict.cls is VerdictClass.CONFIG
        assert backend.deleted == []

    def test_a_quota_that_stays_full_is_capacity(self, make: Make, clock: FakeClock) -> None:
        """Case C16: no room for the job itself, for all the time we waited: nothing is wrong."""
        full: list[Exception] = [QuotaUsedUp("exceeded quota: jobs") for _ in range(9)]
        verdict = end_of(run(make(FakeBackend(clock, faults={"create": full})))).verdict
        assert verdict.cls is VerdictClass.CAPACITY
        assert "exceeded quota" in verdict.sentence

    def test_same_run_key_with_another_spec_is_refused(self, make: Make, clock: FakeClock) -> None:
        """A run key belongs to one spec."""
        platform = make(FakeBackend(clock))
        run(platform)
        other = SPEC.model_copy(update={"entrypoint": ("python", "other.py")})
        with pytest.raises(Refused, match="another spec: it differs in entrypoint"):
            lifecycle.submit(other, run_key=KEY, labels={}, platform=platform)

    def test_a_changed_platform_file_or_package_keeps_its_jobs(
        self, make: Make, clock: FakeClock
    ) -> None:
        """Case B6: the user's spec decides; what was begun goes on with the code it began with."""
        first = SPEC.model_copy(update={"code": Code(url="s3://a", sha256="a" * 64)})
        backend = FakeBackend(clock)
        lifecycle.submit(first, run_key=KEY, labels={}, platform=make(backend))
        pools = load_pools().model_copy(update={"image": "registry.local/next:2", "pools": {}})
        again = SPEC.model_copy(
            update={"code": Code(url="s3://b", sha256="b" * 64), "owner": "somebody else"}
        )
        job = lifecycle.submit(again, run_key=KEY, labels={}, platform=make(backend, pools=pools))
        assert job.adopted
        assert job.spec == first
        assert "goes on with the code" in job.notices[0]

    def test_a_pool_that_has_gone_ends_the_job(self, make: Make, clock: FakeClock) -> None:
        """A second attempt finds the platform file without its pool: told, and in the journal."""
        backend = FakeBackend(clock, scripts=[loses_its_head(), succeeds()])
        platform = make(backend)
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)
        events: list[Event] = []
        for event in lifecycle.follow(job, platform=platform):
            events.append(event)
            if isinstance(event, AttemptEnded):
                break
        pools = load_pools()
        left = {name: pool for name, pool in pools.pools.items() if name != "cpu"}
        later = make(backend, pools=pools.model_copy(update={"pools": left}))
        job = lifecycle.attach(KEY, platform=later, takeover=True)
        end = end_of(list(lifecycle.follow(job, platform=later)))
        assert end.verdict.cls is VerdictClass.CONFIG
        assert "cluster.head.pool: 'cpu' is no pool" in end.verdict.sentence
        ended = later.journal(KEY).read().ended
        assert ended is not None
        assert ended.verdict == end.verdict.to_json()
        assert len(backend.created) == 1

    def test_older_journals_may_hold_what_a_new_job_may_not(
        self, make: Make, clock: FakeClock
    ) -> None:
        """A job is not lost because the rules of its environment's names became stricter."""
        old = SPEC.model_copy(update={"env": {"MY_PASSWORD": "x1"}})
        platform = make(FakeBackend(clock))
        lifecycle.submit(old, run_key=KEY, labels={}, platform=platform)
        assert lifecycle.attach(KEY, platform=platform).spec == old

    def test_two_jobs_on_the_same_thing_are_refused(self, make: Make, clock: FakeClock) -> None:
        """Two runs of one partition at once: the second says who works on it."""
        platform = make(FakeBackend(clock))
        lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform, exclusive="ads/d1")
        with pytest.raises(Refused, match=KEY):
            lifecycle.submit(SPEC, run_key="b", labels={}, platform=platform, exclusive="ads/d1")

    def test_the_next_job_gets_what_an_ended_one_held(self, make: Make, clock: FakeClock) -> None:
        """The hold on a partition ends with its job."""
        platform = make(FakeBackend(clock))
        for key in ("a", "b"):
            job = lifecycle.submit(
                SPEC, run_key=key, labels={}, platform=platform, exclusive="ads/d1"
            )
            assert end_of(list(lifecycle.follow(job, platform=platform))).phase is Phase.SUCCEEDED


class TestGoingOn:
    """Loops that are cut off, and those that go on after them."""

    def _cut_off(self, platform: Platform, backend: FakeBackend) -> list[Event]:
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)
        told = []
        stream = lifecycle.follow(job, platform=platform)
        for event in stream:
            told.append(event)
            if isinstance(event, LogLine) and event.text == "line 100":
                break
        stream.close()
        return told

    def test_loop_that_left_in_order_is_followed_at_once(
        self, make: Make, clock: FakeClock
    ) -> None:
        """Case B6: the next process claims the job, creates nothing, and goes on in the log."""
        log = b"".join(b"line %d\n" % n for n in range(300))
        backend = FakeBackend(
            clock, scripts=[succeeds(after=60)], log=lambda t: log[: int(t * 200)]
        )
        before = self._cut_off(make(backend), backend)
        at = clock.monotonic()
        after = run(make(backend))
        assert clock.monotonic() - at < settings.CLAIM_TIME_S
        assert len(backend.created) == 1
        lines = [line.text for line in kinds(before + after, LogLine)]
        assert lines == [f"line {n}" for n in range(300)]
        assert end_of(after).phase is Phase.SUCCEEDED

    def test_silent_loop_is_followed_after_the_claim_time(
        self, make: Make, clock: FakeClock
    ) -> None:
        """A loop that was killed holds its claim until its heartbeat was still for long enough."""
        backend = FakeBackend(clock, scripts=[succeeds(after=600)])
        killed = make(backend)
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=killed)
        stream = lifecycle.follow(job, platform=killed)
        next(stream)  # and never again: it was killed, but for the object that Python keeps
        at = clock.monotonic()
        after = run(make(backend))
        assert clock.monotonic() - at >= settings.CLAIM_TIME_S
        assert end_of(after).phase is Phase.SUCCEEDED
        assert len(backend.created) == 1
        stream.close()

    def test_ended_job_is_told_again_and_not_run_again(self, make: Make, clock: FakeClock) -> None:
        """Case G10: a retry of a run whose job had ended takes its end."""
        backend = FakeBackend(clock)
        run(make(backend))
        again = run(make(backend))
        assert end_of(again).phase is Phase.SUCCEEDED
        assert len(backend.created) == 1

    def test_job_of_another_machine_is_refused(self, make: Make, clock: FakeClock) -> None:
        """Only a process that reaches the place may claim."""
        platform = make(FakeBackend(clock))
        lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)
        with pytest.raises(Refused, match="there#boot1"):
            lifecycle.attach(KEY, platform=make(FakeBackend(clock, location="there#boot1")))


class TestCancel:
    """Whoever cancels leaves nothing behind."""

    @pytest.mark.parametrize("lines", [0, 1, 2, 3])
    def test_in_each_phase(self, make: Make, clock: FakeClock, lines: int) -> None:
        """Case E1: cancelled before the creation, while it starts, and while it runs."""
        backend = FakeBackend(clock, scripts=[RUNS_ON])
        platform = make(backend)
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)
        stream = lifecycle.follow(job, platform=platform)
        for _ in range(lines):
            next(stream)
        stream.close()
        events = lifecycle.cancel(KEY, platform=make(backend), reason="enough", by="ada")
        assert backend.jobs == {}
        assert end_of(events).phase is Phase.CANCELLED
        assert "ada" in end_of(events).verdict.sentence
        assert index.open_keys(platform.store) == []

    def test_takes_over_from_a_living_loop(self, make: Make, clock: FakeClock) -> None:
        """The loop that followed tells the cancel instead of trying again."""
        backend = FakeBackend(clock, scripts=[RUNS_ON])
        platform = make(backend)
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)
        stream = lifecycle.follow(job, platform=platform)
        next(stream)
        lifecycle.cancel(KEY, platform=make(backend), reason="enough", by="ada")
        rest = list(stream)
        assert end_of(rest).phase is Phase.CANCELLED
        assert len(backend.created) <= 1
        assert backend.jobs == {}

    def test_keeps_what_the_driver_wrote(self, make: Make, clock: FakeClock) -> None:
        """Case D14: the log's last lines are kept before they go with the head."""
        log = b"".join(b"line %d\n" % n for n in range(300)) + b"half a line"
        backend = FakeBackend(clock, scripts=[RUNS_ON], log=lambda _: log)
        platform = make(backend)
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)
        stream = lifecycle.follow(job, platform=platform)
        while not isinstance(next(stream), LogLine):
            pass
        lifecycle.cancel(KEY, platform=make(backend))
        stream.close()
        kept = [line.text for line in lifecycle.read_logs(KEY, platform=make(backend))]
        assert kept == [f"line {n}" for n in range(300)] + ["half a line"]

    def test_ended_job_stays_as_it_ended(self, make: Make, clock: FakeClock) -> None:
        """A cancel that comes late changes nothing."""
        platform = make(FakeBackend(clock))
        run(platform)
        assert end_of(lifecycle.cancel(KEY, platform=platform)).phase is Phase.SUCCEEDED


class TestKeeper:
    """The keeper removes what nobody wants, and nothing else."""

    def _abandoned(self, make: Make, backend: FakeBackend) -> Platform:
        platform = make(backend)
        job = lifecycle.submit(SPEC, run_key=KEY, labels={"run": "r1"}, platform=platform)
        stream = lifecycle.follow(job, platform=platform)
        for event in stream:
            if isinstance(event, PhaseChanged) and event.phase is Phase.RUNNING:
                break
        stream.close()
        return platform

    def test_removes_a_job_that_no_run_wants(self, make: Make, clock: FakeClock) -> None:
        """Case E8: its run is over for good and its loop has left."""
        backend = FakeBackend(clock, scripts=[RUNS_ON])
        self._abandoned(make, backend)
        done = lifecycle.sweep(make(backend), lambda _key, _labels: False)
        assert backend.jobs == {}
        assert len(done) == 1

    @pytest.mark.parametrize("answer", [True, None], ids=["wanted", "not ours to judge"])
    def test_leaves_alone(self, make: Make, clock: FakeClock, answer: bool | None) -> None:
        """Case E8: a live run's job, and a personal one."""
        backend = FakeBackend(clock, scripts=[RUNS_ON])
        self._abandoned(make, backend)
        assert lifecycle.sweep(make(backend), lambda _key, _labels: answer) == []
        assert len(backend.jobs) == 1

    def test_unreadable_run_database_removes_nothing(self, make: Make, clock: FakeClock) -> None:
        """Case E8: what can't be asked about is left alone."""
        backend = FakeBackend(clock, scripts=[RUNS_ON])
        self._abandoned(make, backend)

        def wanted(_key: str, _labels: object) -> bool:
            raise OSError("database is away")

        with pytest.raises(OSError, match="away"):
            lifecycle.sweep(make(backend), wanted)
        assert len(backend.jobs) == 1

    def test_followed_job_waits_for_the_claim_time(self, make: Make, clock: FakeClock) -> None:
        """A loop whose lease is fresh is not swept; when it is stale it is."""
        backend = FakeBackend(clock, scripts=[RUNS_ON])
        platform = make(backend)
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)
        stream = lifecycle.follow(job, platform=platform)
        next(stream), next(stream)
        keeper = make(backend)
        assert lifecycle.sweep(keeper, lambda _key, _labels: False) == []
        clock.advance(settings.CLAIM_TIME_S + 1)
        assert lifecycle.sweep(keeper, lambda _key, _labels: False) != []
        assert backend.jobs == {}

    def test_cancelled_runs_job_goes_without_the_claim_time(
        self, make: Make, clock: FakeClock
    ) -> None:
        """A run that somebody cancelled will claim nothing: its job's lease isn't waited for."""
        backend = FakeBackend(clock, scripts=[RUNS_ON])
        platform = make(backend)
        job = lifecycle.submit(SPEC, run_key=KEY, labels={}, platform=platform)
        stream = lifecycle.follow(job, platform=platform)
        next(stream), next(stream)
        began = clock.monotonic()
        assert lifecycle.sweep(make(backend), lambda _key, _labels: "cancelled") != []
        assert backend.jobs == {}
        assert clock.monotonic() - began < settings.CLAIM_TIME_S
        stream.close()

    def test_late_creation_is_removed_after_the_end(self, make: Make, clock: FakeClock) -> None:
        """Case E6: a POST that landed after the cancel leaves a RayJob that no journal opens."""
        backend = FakeBackend(clock, scripts=[RUNS_ON])
        platform = self._abandoned(make, backend)
        (ghost,) = backend.jobs.values()
        lifecycle.cancel(KEY, platform=platform)
        backend.jobs[ghost.view.name] = ghost
        assert lifecycle.sweep(make(backend), lambda _key, _labels: None) != []
        assert backend.jobs == {}
