"""What a queue does to a job is understood: admitted, evicted, let in again, seen or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ml_pipelines.job.clocks import Clocks, durations
from ml_pipelines.job.diagnosis import why_pending
from ml_pipelines.job.observation import Observation, WorkloadView
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import VerdictClass
from ml_pipelines.job.verdicts import verdict_of
from ml_pipelines.journal.state import AttemptRecord
from ml_pipelines.lifecycle.resuming import Past, memory_of
from ml_pipelines_tests import recordings
from ml_pipelines_tests.sightings import RUNNING, Replay, cluster, pod, rayjob, status

C = VerdictClass
TAKEN = "queue ml-pipelines took the machines back: "
PREEMPTED = f"{TAKEN}Preempted to accommodate a workload due to prioritization in the ClusterQueue"


def played(
    recording: str, *, without: Callable[[Observation], bool] = lambda _: False
) -> tuple[Replay, list[Phase]]:
    """A loop that looks twice at each moment but those that it misses, and the phases it saw."""
    replay, at, phases = Replay(), 0.0, list[Phase]()
    for moment in recordings.moments(recording):
        seen = moment.seen()
        if seen.rayjob is None or without(seen):
            continue
        for pause in (max(moment.at_s - at, 0.1), 0.05):
            phase = replay.see(seen, pause).phase
            phases += [phase] if phases[-1:] != [phase] else []
            if phase.ended:
                return replay, phases
        at = moment.at_s
    return replay, phases


def seen_in(recording: str, wanted: Callable[[Observation], bool]) -> Iterator[Observation]:
    """The moments of a recording that are like that."""
    return filter(wanted, (moment.seen() for moment in recordings.moments(recording)))


def is_suspended(seen: Observation) -> bool:
    """Whether the queue holds the job."""
    return seen.rayjob is not None and seen.rayjob.suspended


START = [Phase.QUEUED, Phase.PROVISIONING, Phase.PENDING, Phase.RUNNING]


def test_an_eviction_of_a_job_that_runs():
    """Case F6: the same RayJob waits and starts anew; no head is lost; PREEMPTED is told once."""
    replay, phases = played("kueue_evicted")
    assert phases == [*START, *START, Phase.SUCCEEDED]
    assert replay.warnings == [PREEMPTED]
    (loss,) = replay.known.losses
    assert (loss.cls, loss.by_queue) == (C.PREEMPTED, True)
    assert "UID: " in loss.evidence
    spent = durations(replay.known)
    assert spent["queue"] == pytest.approx(8.0, abs=1.5)
    assert spent["run"] == pytest.approx(19.5, abs=1.5)


@pytest.mark.parametrize("knows", [True, False], ids=["with its words", "without"])
def test_an_eviction_that_nobody_saw(knows: bool):
    """It was suspended and let in between two looks: the new cluster tells, the Workload why."""
    replay, at = Replay(), 0.0
    for moment in recordings.moments("kueue_evicted"):
        seen = moment.seen()
        evicted = seen.workload and seen.workload.conditions.get("Evicted", ("", ""))[0] == "True"
        if is_suspended(seen) or evicted:
            continue
        seen = seen if knows else replace(seen, workload=None)
        replay.see(seen, max(moment.at_s - at, 0.1))
        at = moment.at_s
    assert replay.standing is not None
    assert replay.standing.phase is Phase.SUCCEEDED
    unknown = "its queue took the machines back: no reason given"
    assert replay.warnings == [PREEMPTED if knows else unknown]
    assert [loss.cls for loss in replay.known.losses] == [C.PREEMPTED]


def test_evicted_twice():
    """Each eviction is told, also before anything ran; the first admission is none."""
    replay, phases = played("kueue_twice")
    turn = [Phase.QUEUED, Phase.PROVISIONING]
    assert phases == [*turn, *turn, Phase.QUEUED]
    assert replay.warnings == [PREEMPTED, PREEMPTED]


def test_other_evictions():
    """A stopped queue, a job that was set aside, machines that were not ready in Kueue's time."""
    replay, _ = played("kueue_stopped")
    assert replay.warnings == [
        f"{TAKEN}The ClusterQueue is stopped",
        f"{TAKEN}The workload is deactivated",
        f"{TAKEN}Exceeded the PodsReady timeout kq-lab-b/rayjob-late-a1-3fda7",
    ]
    assert {loss.cls for loss in replay.known.losses} == {C.INFRA}


def test_the_engines_own_deadline_begins_with_the_admission():
    """It waited for 20 s with a deadline of 15 s, which then passed 15 s after it was let in."""
    replay, phases = played("kueue_stopped")
    assert phases[-1] is Phase.FAILED
    ended = replay.known.ended
    assert ended is not None
    assert ended.reason == "PreRunningDeadlineExceeded"
    assert replay.now > 40.0


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("is inactive", "Ask whoever keeps the queue"),
        ("The workload is deactivated", "have its Workload made active"),
    ],
)
def test_what_to_do_about_a_wait(words: str, remedy: str):
    """A queue that takes nobody may again: it waits, and the remedy fits."""
    told = [why_pending(seen) for seen in seen_in("kueue_stopped", is_suspended)]
    (first, *_) = [one for one in told if words in one.sentence]
    assert first.sentence.startswith("waiting in queue ml-pipelines: ")
    assert remedy in first.remedy
    assert (first.cls, first.hopeless) == (C.CAPACITY, False)


def test_suspended_beside_a_driver_that_still_runs():
    """Evicted, and the operator has not begun: QUEUED, however its pods go; no head is lost."""
    replay = Replay()
    replay.see(replace(RUNNING, cluster=cluster(), pods=(pod(),)))
    leaving = Observation(
        rayjob("RUNNING", "Running", suspended=True),
        cluster=cluster("False", "HeadPodNotFound"),
        pods=(pod(deleting=True, ready=False),),
    )
    for gone in (leaving, replace(leaving, pods=()), replace(leaving, cluster=None, pods=())):
        assert replay.wait(gone, 30.0, every_s=0.2).phase is Phase.QUEUED
    assert replay.warnings == []
    assert durations(replay.known)["run"] < 1.0


@pytest.mark.parametrize(
    ("word", "phase"), [("SUCCEEDED", Phase.SUCCEEDED), ("STOPPED", Phase.CANCELLED)]
)
def test_evicted_after_its_driver_had_ended(word: str, phase: Phase):
    """It must not run again: the end that the operator would forget stands."""
    for suspending in (
        status(word, "Suspending", suspended=True),
        status("", "Suspended", suspended=True, cluster_name="", job_id=""),
    ):
        replay = Replay()
        replay.see(RUNNING)
        assert replay.see(status(word, "Running", suspended=True)).phase is Phase.FINISHING
        assert replay.see(suspending).phase is phase


def test_a_driver_that_failed_as_it_was_evicted_starts_again():
    """Its machines were taken from under it: that failure is nobody's."""
    replay = Replay()
    replay.see(RUNNING)
    replay.see(status("FAILED", "Running", suspended=True))
    again = status("FAILED", "Suspending", suspended=True)
    assert replay.see(again).phase is Phase.QUEUED
    assert replay.see(status("SUCCEEDED", "Complete", cluster_name="c2")).phase is Phase.SUCCEEDED


def test_a_driver_that_fails_after_it_was_let_in_again():
    """An eviction a minute ago explains no failure of the start after it."""
    evicted = WorkloadView("w", "team", {"Evicted": ("True", "Preempted", "Preempted for another")})
    replay = Replay()
    replay.see(RUNNING)
    queued = Observation(rayjob("", "Suspended", suspended=True), workload=evicted)
    replay.wait(queued, 10.0)
    replay.wait(status("RUNNING", "Running", cluster_name="c2", job_id="id2"), 10.0)
    failed = status("FAILED", "Failed", "AppFailed", cluster_name="c2", job_id="id2")
    standing = replay.see(failed)
    verdict = verdict_of(standing, replay.known, ["ValueError: no such column"])
    assert verdict.cls is C.USER
    assert replay.warnings == ["queue team took the machines back: Preempted for another"]


def test_too_large_for_one_kind_of_machine_only():
    """What waits for another kind is not without hope; what is too large for all is."""
    small = "insufficient unused quota for cpu in flavor spot, 1 more needed"
    large = "insufficient quota for cpu in flavor gpu, request > maximum capacity (4)"

    def told(said: str) -> bool:
        workload = WorkloadView("w", "team", {"QuotaReserved": ("False", "Pending", said)})
        seen = Observation(rayjob("", "Suspended", suspended=True), workload=workload)
        return why_pending(seen).hopeless

    lead = "couldn't assign flavors to pod set"
    assert not told(f"{lead} head: {small}; {lead} workers: {large}, {small}")
    assert told(f"{lead} head: {small}; {lead} workers: {large}")


def test_half_an_hour_in_the_queue_costs_nothing_else():
    """Case F6: run limits of a minute each hold, with 30 minutes of waiting around an eviction."""
    replay = Replay(Clocks(queue_s=2_000.0, provisioning_s=60.0, run_s=100.0))
    waits = status("", "Suspended", suspended=True, cluster_name="", job_id="")
    for number, wait_s in ((1, 1_800.0), (2, 1_900.0)):
        names = {"cluster_name": f"c{number}", "job_id": f"id{number}"}
        replay.wait(waits, wait_s)
        replay.wait(status("", "Initializing", **names), 50.0)
        assert replay.wait(status("RUNNING", "Running", **names), 40.0).phase is Phase.RUNNING
    spent = durations(replay.known)
    assert spent["queue"] == pytest.approx(3_700.0, abs=40.0)
    assert spent["run"] == pytest.approx(80.0, abs=30.0)


def test_who_takes_over_a_job_that_waits():
    """Its first wait goes on counting; an eviction that nobody saw is told."""
    created = datetime(2026, 12, 1, tzinfo=UTC)
    past = Past(AttemptRecord(1, "j-a1", "", uid="u1"), made=True, seen=True)
    waits = status("", "Suspended", suspended=True, cluster_name="", created_at=created)
    known = memory_of(past, waits, wall=created + timedelta(seconds=500))
    replay = Replay(Clocks(queue_s=600.0), known)
    assert replay.wait(waits, 90.0).phase is Phase.QUEUED
    ended = replay.wait(waits, 20.0)
    assert ended.verdict is not None
    assert ended.verdict.cls is C.CAPACITY

    past = replace(past, cluster="c1", head="h1")
    known = memory_of(past, status("RUNNING", "Running", cluster_name="c2"), wall=created)
    replay = Replay(known=known)
    replay.see(status("RUNNING", "Running", cluster_name="c2"))
    assert replay.warnings == ["its queue took the machines back: no reason given"]
