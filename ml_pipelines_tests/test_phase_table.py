"""Every row of the table of RayJob status words, and every other pair of words too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipelines.job.clocks import Clocks, durations
from ml_pipelines.job.known import Known
from ml_pipelines.job.observation import Observation, RayJobView, WorkloadView
from ml_pipelines.job.phase import Phase, phase_of
from ml_pipelines.job.status import DEPLOYMENT_STATUSES, JOB_STATUSES, REASONS
from ml_pipelines.job.verdict import VerdictClass
from ml_pipelines.spec.job import Limits
from ml_pipelines_tests.sightings import (
    ABSENT,
    GRACE,
    RUNNING,
    Replay,
    ended,
    rayjob,
    status,
)

C = VerdictClass
JOBS = (*JOB_STATUSES, "Failure", "succeeded", "\x00\u2603" * 200)
DEPLOYMENTS = (*DEPLOYMENT_STATUSES, "Frobnicating", "complete")

GOES_ON = [
    pytest.param("", "", Phase.PROVISIONING, id="no status yet"),
    pytest.param("", "Initializing", Phase.PROVISIONING, id="initializing"),
    pytest.param("RUNNING", "Initializing", Phase.PROVISIONING, id="initializing, stale job"),
    pytest.param("", "Suspending", Phase.QUEUED, id="suspending"),
    pytest.param("", "Suspended", Phase.QUEUED, id="suspended"),
    pytest.param("", "Running", Phase.PENDING, id="not yet submitted"),
    pytest.param("PENDING", "Running", Phase.PENDING, id="pending in Ray"),
    pytest.param("RUNNING", "Running", Phase.RUNNING, id="running"),
    pytest.param("SUCCEEDED", "Running", Phase.FINISHING, id="nearly done"),
    pytest.param("FAILED", "Running", Phase.FINISHING, id="failing"),
    pytest.param("FAILED", "Retrying", Phase.PROVISIONING, id="retrying is no end"),
    pytest.param("", "Waiting", Phase.PENDING, id="interactive"),
    pytest.param("RUNNING", "Frobnicating", Phase.PROVISIONING, id="unknown word"),
]


@pytest.mark.parametrize(("job", "deployment", "phase"), GOES_ON)
def test_what_goes_on(job: str, deployment: str, phase: Phase):
    """These rows of the table are no ends."""
    standing = Replay().see(status(job, deployment))
    assert standing.phase is phase
    assert standing.verdict is None
    assert standing.sentence


ENDS = [
    pytest.param("STOPPED", "Complete", "", Phase.CANCELLED, C.CANCELLED, False, id="C3 stopped"),
    pytest.param("SUCCEEDED", "Complete", "", Phase.SUCCEEDED, C.SUCCESS, False, id="success"),
    pytest.param("SUCCEEDED", "Complete", GRACE, Phase.SUCCEEDED, C.SUCCESS, True, id="C6 late"),
    pytest.param("FAILED", "Failed", "AppFailed", Phase.FAILED, C.USER, False, id="C6 app"),
    pytest.param("FAILED", "Failed", GRACE, Phase.FAILED, C.INFRA, False, id="C6 given up"),
    pytest.param("RUNNING", "Failed", "DeadlineExceeded", Phase.FAILED, C.TIMEOUT, False, id="C1"),
    pytest.param("PENDING", "Failed", "SubmissionFailed", Phase.FAILED, C.INFRA, False, id="C1b"),
    pytest.param(
        "RUNNING", "Failed", "JobStatusCheckTimeoutExceeded", Phase.FAILED, C.INFRA, False, id="C1c"
    ),
    pytest.param(
        "", "Failed", "PreRunningDeadlineExceeded", Phase.FAILED, C.TIMEOUT, False, id="C1d"
    ),
    pytest.param(
        "SUCCEEDED", "Failed", "SubmissionFailed", Phase.SUCCEEDED, C.SUCCESS, True, id="B7"
    ),
    pytest.param("FAILED", "Complete", "", Phase.FAILED, C.USER, False, id="B8"),
    pytest.param("RUNNING", "Complete", "", Phase.FAILED, C.UNKNOWN, False, id="no end of driver"),
    pytest.param("RUNNING", "Failed", "NewReason", Phase.FAILED, C.UNKNOWN, False, id="new reason"),
    pytest.param(
        "RUNNING", "Failed", "AppFailed", Phase.FAILED, C.INFRA, False, id="driver not found"
    ),
]


@pytest.mark.parametrize(("job", "deployment", "reason", "phase", "cls", "warns"), ENDS)
def test_what_ends(
    job: str, deployment: str, reason: str, phase: Phase, cls: VerdictClass, warns: bool
):
    """Cases B7, B8, C1, C3, C6: these rows end at the first sight, also after a run."""
    for before in ((), (RUNNING,)):
        replay = ended(*before, status(job, deployment, reason, message="the operator's words"))
        assert replay.standing is not None
        assert replay.standing.phase is phase
        verdict = replay.standing.verdict
        assert verdict is not None
        assert verdict.cls is cls
        assert bool(verdict.warnings) is warns
        assert "the operator's words" in "".join(verdict.evidence)


@pytest.mark.parametrize("job", JOBS)
def test_validation_failed_ends_whatever_the_job_says(job: str):
    """Case A1: ValidationFailed ends at once, is never retried, and gives the operator's words."""
    obs = status(job, "ValidationFailed", "ValidationFailed", message="name is 60 characters long")
    standing = ended(obs).standing
    assert standing is not None
    assert standing.verdict is not None
    assert standing.phase is Phase.FAILED
    assert standing.verdict.cls is C.CONFIG
    assert "name is 60 characters long" in standing.sentence


@pytest.mark.parametrize(
    ("job", "phase", "cls"),
    [
        ("SUCCEEDED", Phase.SUCCEEDED, C.SUCCESS),
        ("FAILED", Phase.FAILED, C.USER),
        ("STOPPED", Phase.CANCELLED, C.CANCELLED),
    ],
)
@pytest.mark.parametrize("grace_s", [30.0, 300.0])
def test_an_ended_driver_waits_a_bounded_grace(
    job: str, phase: Phase, cls: VerdictClass, grace_s: float
):
    """Case C2: the engine gets `finishing_s` for its last word, not a second more."""
    replay = Replay(Clocks(finishing_s=grace_s))
    replay.see(RUNNING)
    replay.see(status(job, "Running"))
    assert replay.wait(status(job, "Running"), grace_s - 1).phase is Phase.FINISHING
    standing = replay.see(status(job, "Running"), 1.0)
    assert standing.phase is phase
    assert standing.verdict is not None
    assert standing.verdict.cls is cls
    assert durations(replay.known)["drain"] == grace_s


def test_failing_may_turn_into_retrying():
    """Case B10: FAILED, Retrying, nothing, a new cluster and job id: one attempt, one success."""
    replay = Replay()
    replay.see_all(
        [
            RUNNING,
            status("FAILED", "Running"),
            status("FAILED", "Retrying"),
            status(job_id="", cluster_name=""),
            status("", "Initializing", job_id="id2", cluster_name="c2"),
            status("RUNNING", "Running", job_id="id2", cluster_name="c2"),
        ]
    )
    assert replay.standing is not None
    assert replay.standing.phase is Phase.RUNNING
    assert replay.known.seen is not None
    assert replay.known.seen.job_id == "id2"
    standing = replay.see(status("SUCCEEDED", "Complete", job_id="id2", cluster_name="c2"))
    assert standing.phase is Phase.SUCCEEDED


def test_missing_status_is_pending_until_the_start_is_late():
    """Case C8: no status at all is waited for on our own clock."""
    replay = Replay(Clocks(provisioning_s=60.0))
    replay.see(status())
    assert replay.wait(status(), 59.0).phase is Phase.PROVISIONING
    standing = replay.see(status(), 1.0)
    assert standing.phase is Phase.FAILED
    assert standing.verdict is not None
    assert standing.verdict.cls is C.TIMEOUT
    assert "operator" in standing.verdict.remedy


def test_unknown_words_warn_once():
    """Case C4: an unknown word is no end and warns once, however often it comes."""
    replay = Replay()
    odd = status("RUNNING", "Frobnicating")
    replay.see_all([RUNNING, odd, odd, odd, RUNNING, odd])
    assert len(replay.warnings) == 1
    assert "Frobnicating" in replay.warnings[0]
    assert replay.standing is not None
    assert replay.standing.phase is Phase.RUNNING
    assert replay.see(status("Failure", "Running")).phase is Phase.RUNNING


def test_an_unknown_word_runs_on_the_clock_before_it():
    """Case C4: a word we don't know can't keep a job for ever."""
    replay = Replay(Clocks(run_s=100.0))
    replay.see(RUNNING)
    standing = replay.wait(status("RUNNING", "Frobnicating"), 1_000.0)
    assert standing.phase is Phase.FAILED
    assert standing.verdict is not None
    assert standing.verdict.cls is C.TIMEOUT


def test_queue_time_counts_against_nothing_but_its_own_clock():
    """Case F6: 30 minutes of queue, run, preempted, queue, run again under new ids: no time-out."""
    replay = Replay(Clocks(queue_s=3_600.0, provisioning_s=600.0, run_s=900.0))
    queued = Observation(
        rayjob("", "Suspended", suspended=True),
        workload=WorkloadView(
            "w", "team", {"QuotaReserved": ("False", "Pending", "2 more GPUs needed")}
        ),
    )
    assert "2 more GPUs needed" in replay.see(queued).sentence
    for ids in ({"job_id": "id1"}, {"job_id": "id2", "cluster_name": "c2"}):
        assert replay.wait(queued, 1_800.0).phase is Phase.QUEUED
        assert replay.wait(status("", "Initializing", **ids), 300.0).phase is Phase.PROVISIONING
        assert replay.wait(status("RUNNING", "Running", **ids), 300.0).phase is Phase.RUNNING
    spent = durations(replay.known)
    assert spent["queue"] == pytest.approx(3_600.0, abs=40.0)
    assert spent["provisioning"] == pytest.approx(600.0, abs=40.0)
    assert spent["run"] == pytest.approx(600.0, abs=40.0)


_QUEUED = Observation(
    rayjob("", "Suspended"),
    workload=WorkloadView("w", "team", {"QuotaReserved": ("False", "Pending", "no quota")}),
)


@pytest.mark.parametrize(
    ("obs", "clocks", "cls", "limit"),
    [
        pytest.param(
            status("", "Suspended"), Clocks(queue_s=50.0), C.CAPACITY, "Kueue", id="queue"
        ),
        pytest.param(_QUEUED, Clocks(queue_s=50.0), C.CAPACITY, "no quota", id="full queue"),
        pytest.param(
            status("", "Initializing"),
            Clocks(provisioning_s=50.0),
            C.TIMEOUT,
            "provisioning_s",
            id="start",
        ),
        pytest.param(RUNNING, Clocks(run_s=50.0), C.TIMEOUT, "limits.run_s", id="run"),
    ],
)
def test_each_clock_ends_what_it_measures(
    obs: Observation, clocks: Clocks, cls: VerdictClass, limit: str
):
    """A limit that passes ends the attempt, at its second, and says which one or why."""
    replay = Replay(clocks)
    standing = replay.wait(obs, 100.0, every_s=1.0)
    assert standing.phase is Phase.FAILED
    assert replay.now == pytest.approx(51.0)
    assert standing.verdict is not None
    assert standing.verdict.cls is cls
    assert limit in standing.verdict.sentence + standing.verdict.remedy


def test_a_queue_that_admits_and_evicts_in_turns_ends_too():
    """Only a driver that runs resets the wait in queues."""
    replay = Replay(Clocks(queue_s=1_000.0))
    turns = 0
    while not (replay.standing and replay.standing.phase.ended):
        replay.wait(status("", "Suspended"), 100.0)
        if replay.standing is not None and not replay.standing.phase.ended:
            replay.wait(status("", "Initializing"), 300.0)
        turns += 1
        assert turns < 20
    assert turns > 5


def test_silence_only_warns():
    """The stall clock warns once in its time and ends nothing."""
    replay = Replay(Clocks(stall_s=100.0))
    replay.see(RUNNING)
    replay.wait(RUNNING, 250.0)
    assert len(replay.warnings) == 2
    replay.known = replay.known.heard(replay.now)
    assert replay.wait(RUNNING, 90.0).phase is Phase.RUNNING
    assert len(replay.warnings) == 2


@pytest.mark.parametrize("last", [status("SUCCEEDED", "Complete"), status("SUCCEEDED", "Running")])
def test_gone_after_the_end_keeps_the_verdict(last: Observation):
    """Case C7: what is deleted after its success has succeeded, at the next look."""
    replay = Replay()
    replay.see_all([RUNNING, last])
    standing = replay.see(ABSENT)
    assert standing.phase is Phase.SUCCEEDED


def test_gone_before_the_end_is_lost_after_one_look_more():
    """A 404 before the end is confirmed once, and then it was deleted by somebody else."""
    replay = Replay()
    replay.see(RUNNING)
    assert replay.see(ABSENT).phase is Phase.RUNNING
    standing = replay.see(ABSENT)
    assert standing.phase is Phase.LOST
    assert standing.verdict is not None
    assert "deleted by somebody else" in standing.sentence
    assert "RUNNING/Running" in standing.verdict.evidence[0]


def test_one_missing_answer_is_no_loss():
    """A 404 between two sightings changes nothing."""
    replay = Replay()
    assert replay.see_all([RUNNING, ABSENT, RUNNING, ABSENT, RUNNING]).phase is Phase.RUNNING


def test_never_shown_is_lost_after_its_clock():
    """An object that the engine took and never shows ends on the clock of the unseen."""
    replay = Replay(Clocks(unseen_s=30.0))
    replay.see(ABSENT)
    assert replay.wait(ABSENT, 29.0, every_s=1.0).phase is Phase.PROVISIONING
    standing = replay.see(ABSENT)
    assert standing.phase is Phase.LOST
    assert standing.verdict is not None
    assert standing.verdict.cls is C.INFRA


@pytest.mark.parametrize("job", ["RUNNING", "PENDING", ""])
def test_being_deleted_is_bounded(job: str):
    """Case E10: an object held by its finalizer is lost after the grace, not watched for ever."""
    replay = Replay(Clocks(finishing_s=60.0))
    replay.see(RUNNING)
    leaving = status(job, "Running", deleting=True)
    assert replay.see(leaving).phase is Phase.FINISHING
    assert replay.wait(leaving, 100.0).phase is Phase.LOST


def test_an_end_is_never_taken_back():
    """Case C10: a stale reading after the end changes nothing."""
    replay = Replay()
    replay.see_all([RUNNING, status("SUCCEEDED", "Complete")])
    for stale in (RUNNING, status(), status("", "Retrying"), ABSENT, status(uid="other")):
        assert replay.see(stale).phase is Phase.SUCCEEDED


@pytest.mark.parametrize("before", [(), (RUNNING,)], ids=["new", "after a run"])
@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_every_pair_of_words_ends_or_has_a_clock(deployment: str, before: tuple[Observation, ...]):
    """No pair of words crashes, none is watched for ever, and only success is success."""
    for job in JOBS:
        _plays_to_its_end(job, deployment, before)


def _plays_to_its_end(job: str, deployment: str, before: tuple[Observation, ...]) -> None:
    replay = Replay()
    for obs in before:
        replay.see(obs)
    standing = replay.wait(status(job, deployment), 2 * 86_400.0 + 1_000.0, every_s=497.0)
    assert standing.phase.ended
    assert standing.verdict is not None
    assert standing.verdict.sentence == standing.sentence
    told = {"Complete", "Failed", "Running", "", "Suspending", "Suspended"}
    succeeded = job == "SUCCEEDED" and deployment in told
    assert standing.verdict.ok is succeeded


_VIEWS = st.builds(
    RayJobView,
    name=st.just("j"),
    uid=st.sampled_from(["u1", "u1", "u1", "u2", ""]),
    job_status=st.sampled_from(JOBS) | st.text(max_size=5),
    deployment_status=st.sampled_from(DEPLOYMENTS) | st.text(max_size=5),
    reason=st.sampled_from([*REASONS, "Odd"]) | st.text(max_size=5),
    message=st.text(max_size=20),
    cluster_name=st.sampled_from(["", "c1", "c2"]),
    job_id=st.sampled_from(["", "id1", "id2"]),
    suspended=st.booleans(),
    deleting=st.booleans(),
    driver_exit_code=st.none() | st.integers(-20, 300),
)


@given(st.lists(st.tuples(st.none() | _VIEWS, st.floats(0.0, 1e4)), max_size=30))
def test_no_history_crashes_or_revives(history: list[tuple[RayJobView | None, float]]):
    """Whatever is seen in whatever order: no exception, no clock back, no life after the end."""
    replay = Replay()
    end: Phase | None = None
    for view, gap in history:
        standing = replay.see(Observation(view), gap)
        assert (standing.verdict is not None) is standing.phase.ended
        if replay.known.ended is not None and end is None:
            end = standing.phase
        if end is not None:
            assert standing.phase is end
    assert all(seconds >= 0.0 for seconds in durations(replay.known).values())
    assert sum(durations(replay.known).values()) <= replay.now + 1e-6


def test_limits_become_clocks():
    """The clocks of a job spec are its limits, in seconds."""
    clocks = Clocks.of(Limits(queue_s=1, provisioning_s=2, run_s=3, stall_s=4), finishing_s=30.0)
    assert (clocks.queue_s, clocks.provisioning_s, clocks.run_s) == (1.0, 2.0, 3.0)
    assert (clocks.stall_s, clocks.finishing_s) == (4.0, 30.0)


def test_who_takes_over_goes_on_with_the_time_spent():
    """A new process does not give the driver its whole limit again."""
    known = Known.resuming({"run": 90.0, "queue": 500.0, "unheard_of": 1.0})
    replay = Replay(Clocks(run_s=100.0, queue_s=100.0), known)
    replay.see(RUNNING)
    assert replay.wait(RUNNING, 9.0, every_s=1.0).phase is Phase.RUNNING
    assert replay.see(RUNNING).phase is Phase.FAILED
    assert durations(replay.known)["queue"] == 500.0


def test_phase_is_a_function():
    """The same sight, memory and time give the same answer, and change nothing."""
    known = Known().after(RUNNING, 1.0)
    first = phase_of(RUNNING, known, Clocks(), 2.0)
    assert phase_of(RUNNING, known, Clocks(), 2.0) == first
