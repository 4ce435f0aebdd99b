"""What was seen on a real cluster is understood: views, phases, diagnoses and verdicts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from ml_pipelines.backends.kuberay import views
from ml_pipelines.job.containers import MAX_STARTS
from ml_pipelines.job.diagnosis import why_pending
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import VerdictClass
from ml_pipelines.job.verdicts import verdict_of
from ml_pipelines_tests import recordings
from ml_pipelines_tests.sightings import Replay

C = VerdictClass


@dataclass(frozen=True)
class Cause:
    """What must be said of a recording; `words` are in the sentence, `remedy` in the remedy."""

    cls: VerdictClass
    words: tuple[str, ...]
    remedy: str
    hopeless: bool = True


CAUSES = {
    "noselector": Cause(C.CAPACITY, ("no machine for head", "(and 1 more)"), "pool cpu", False),
    "taint": Cause(C.CAPACITY, ("untolerated taint",), "tolerations of pool cpu", False),
    "toobig": Cause(C.CAPACITY, ("Insufficient cpu",), "Ask for less cpu", False),
    "quota0": Cause(
        C.CAPACITY, ("quota team-a", "requested: limits.cpu=500m", "limited: limits.cpu=100m"),
        "Ask for less", False,
    ),
    "image": Cause(C.CONFIG, ("can't pull image registry.local/none:1",), "image's name"),
    "badimage": Cause(C.CONFIG, ("registry.local/None:1:2", "must be lowercase"), "image's name"),
    "secret": Cause(C.CONFIG, ('secret "no-such-secret" not found',), "Create the secret"),
    "secretkey": Cause(C.CONFIG, ("couldn't find key nokey in Secret",), "Create the secret"),
    "secretvolume": Cause(C.CONFIG, ("volume", '"no-such-secret" not found'), "Create what"),
    "pvc": Cause(C.CONFIG, ("volume claim no-such-claim",), "Create the claim"),
    "pvcpending": Cause(C.CONFIG, ("claim c to be bound", '"nope" not found'), "storage class"),
    "account": Cause(C.CONFIG, ('serviceaccount "nobody" not found',), "service account"),
    "priority": Cause(C.CONFIG, ("no PriorityClass with name nope",), "priority class"),
    "psa": Cause(C.CONFIG, ("violates PodSecurity", "privileged=true"), "allowed here"),
    "crash": Cause(C.CONFIG, ("the head fails at every start", "exit code 127"), "Read its log"),
    "startfail": Cause(C.CONFIG, ("fails at every start", "/no/such/binary"), "image"),
    "initcrash": Cause(C.CONFIG, ("the head fails at every start",), "Read its log"),
    "headoom": Cause(C.OOM, ("fails at every start", "OOMKilled"), "more memory"),
    "sidecar": Cause(C.CAPACITY, ("no machine for worker",), "labels of pool cpu", False),
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSES)
def test_why_it_waits(name: str):
    """Cases F1 to F10: 22 s after the creation the cause is told, with class, words and remedy."""
    cause = CAUSES[name]
    told = why_pending(recordings.last(f"pending_{name}").seen())
    for words in cause.words:
        assert words in told.sentence
    assert "\n" not in told.sentence
    assert cause.remedy in told.remedy
    assert (told.cls, told.hopeless) == (cause.cls, cause.hopeless)
    assert told.evidence


def test_a_cordoned_machine():
    """The scheduler's own words for nodes that were taken out of service."""
    message = (
        "0/4 nodes are available: 2 node(s) didn't match Pod's node affinity/selector, 2 node(s) "
        "were unschedulable. no new claims to deallocate, preemption: 0/4 nodes are available: 4 "
        "Preemption is not helpful for scheduling."
    )
    seen = recordings.last("pending_noselector").seen()
    conditions = {"PodScheduled": ("False", "Unschedulable", message)}
    pods = tuple(replace(pod, conditions=conditions) for pod in seen.pods)
    told = why_pending(replace(seen, pods=pods))
    assert told.sentence.endswith("2 node(s) were unschedulable")
    assert "cordoned" in told.remedy


def replayed(recording: str, name: str = "", *, until_s: float = 1e9) -> Replay:
    """A loop that looks twice at each moment."""
    replay = Replay()
    at = 0.0
    for moment in recordings.moments(recording):
        for pause in (max(moment.at_s - at, 0.1), 0.2):
            standing = replay.see(moment.seen(name), pause)
            if standing.phase.ended or replay.now > until_s:
                return replay
        at = moment.at_s
    return replay


ENDS: dict[str, tuple[Phase, VerdictClass, str]] = {
    "succeeds": (Phase.SUCCEEDED, C.SUCCESS, "succeeded"),
    "stopped": (Phase.CANCELLED, C.CANCELLED, "stopped the driver through Ray"),
    "deadline": (Phase.FAILED, C.TIMEOUT, "the engine's deadline passed"),
    "headdel": (Phase.FAILED, C.INFRA, "the head is gone"),
    "clusterdel": (Phase.FAILED, C.INFRA, "the head was lost"),
    "headoom": (Phase.FAILED, C.OOM, "running low on memory"),
    "headoomk": (Phase.FAILED, C.UNKNOWN, "most often out of memory"),
    "workeroom": (Phase.FAILED, C.UNKNOWN, "WorkerCrashedError"),
    "jobdel": (Phase.LOST, C.CANCELLED, "deleted by somebody else"),
    "cut": (Phase.SUCCEEDED, C.SUCCESS, "succeeded"),
}


@pytest.mark.parametrize("name", ENDS)
def test_how_it_ends(name: str):
    """Cases C1, C3, B12, F9: deadline beside RUNNING, STOPPED, lost heads, a node cut and healed."""
    phase, cls, words = ENDS[name]
    replay = replayed(name)
    assert replay.standing is not None
    verdict = verdict_of(replay.standing, replay.known, ())
    assert (replay.standing.phase_with(verdict), verdict.cls) == (phase, cls)
    assert words in verdict.sentence
    assert verdict.evidence


def test_a_head_that_is_cut_off_for_a_moment_is_not_lost():
    """A node's link down for 24 s: HeadPodReady is False without a reason, and the job goes on."""
    seen = [moment.seen() for moment in recordings.moments("cut")]
    assert any(one.cluster and one.cluster.conditions["HeadPodReady"][0] == "False" for one in seen)
    [warning] = replayed("cut").warnings
    assert "on node spot-1 does not answer: its machine is dead or cut off" in warning


def test_a_worker_on_a_dead_node():
    """Case H7: it stays Terminating for ever beside RUNNING; the attempt ends, as PREEMPTED."""
    replay = replayed("kill")
    assert replay.standing is not None
    assert replay.standing.phase is Phase.RUNNING
    (told,) = replay.warnings
    assert "was preempted" in told
    last = recordings.last("kill").seen()
    standing = replay.wait(last, 60.0)
    assert standing.phase is Phase.RUNNING
    standing = replay.wait(last, 60.0)
    assert standing.verdict is not None
    assert (standing.phase, standing.verdict.cls) == (Phase.FAILED, C.PREEMPTED)
    assert "no other took its place" in standing.sentence
    assert "DeletionByTaintManager" in standing.verdict.evidence[0]


def test_a_worker_that_is_replaced():
    """The operator makes another: the job goes on."""
    replay = replayed("workerdel")
    assert replay.standing is not None
    assert replay.standing.phase is Phase.RUNNING
    assert replay.wait(recordings.last("workerdel").seen(), 300.0).phase is Phase.RUNNING


def test_the_operator_refuses_a_spec():
    """Case A1: ValidationFailed, which nothing leaves, is an end of class CONFIG."""
    standing = Replay().see(recordings.last("pending_validation").seen())
    assert standing.verdict is not None
    assert standing.verdict.cls is C.CONFIG
    assert "shutdownAfterJobFinishes set to false" in standing.verdict.sentence


def test_a_late_start_names_what_it_waited_for():
    """PreRunningDeadlineExceeded: the class is that of the cause, here an image."""
    replay = Replay()
    replay.see(recordings.last("pending_image").seen())
    rayjob = recordings.last("pending_prerun").seen().rayjob
    assert rayjob is not None
    seen = recordings.last("pending_image").seen()
    assert seen.rayjob is not None
    late = replace(seen, rayjob=replace(rayjob, uid=seen.rayjob.uid))
    standing = replay.see(late)
    assert standing.verdict is not None
    assert standing.verdict.cls is C.CONFIG
    assert "registry.local/none:1" in standing.verdict.sentence


def test_what_can_never_heal_fails():
    """Case F2: a head that fails at every start ends the attempt, and says how it fails."""
    replay = Replay()
    for _ in range(MAX_STARTS):
        standing = replay.see(recordings.last("pending_crash").seen(), 0.2)
    assert standing.phase is Phase.FAILED
    assert "exit code 127" in standing.sentence


# ── queues ──────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_says_why():
    """Case F6: the Workload's own words; a queue that isn't there is no queue to wait in."""
    seen = [moment.seen("second-a1") for moment in recordings.moments("kueue")]
    told = [why_pending(one) for one in seen if one.rayjob and one.workload]
    assert any(
        "waiting in queue team: couldn't assign flavors to pod set head: insufficient unused "
        "quota for cpu" in one.sentence
        for one in told
    )
    assert {one.cls for one in told} == {C.CAPACITY}
    nowhere = why_pending(recordings.last("kueue").seen("nowhere-a1"))
    assert "no-such-queue doesn't exist" in nowhere.sentence
    assert (nowhere.cls, nowhere.hopeless) == (C.CONFIG, True)


def test_an_eviction_is_no_failure():
    """Case F6: evicted by a higher priority, waits, is admitted again: PREEMPTED, told once."""
    replay = replayed("kueue", "first-a1")
    assert replay.standing is not None
    assert replay.standing.phase is Phase.PROVISIONING
    assert [loss.cls for loss in replay.known.losses] == [C.PREEMPTED]
    (told,) = replay.warnings
    assert told.startswith("queue team took the machines back: Preempted to accommodate a workload")


# ── what is kept of each object ─────────────────────────────────────────────────────────────────


def test_the_ledgers_view_of_a_pod():
    """Node, pool, requests with the log's container, and the server's own times."""
    running = next(moment.seen() for moment in recordings.moments("headdel"))
    head, worker = running.pods
    assert (head.role, worker.role, head.pool) == ("head", "worker", "cpu")
    assert head.node.startswith("spot-")
    assert (head.spot, head.node_type) == (True, "g2-standard-48")
    assert head.requests == {"cpu": pytest.approx(0.65), "memory": 1.0625 * 2**30}
    assert head.scheduled_at is not None
    assert (head.gone_at, head.leaves_at) == (None, None)
    gone = [pod.gone_at for m in recordings.moments("clusterdel") for pod in m.seen().pods]
    assert any(gone)


def test_the_log_container_never_speaks_for_ray():
    """A log container that died makes neither its pod nor its head unready, and is no failure."""
    moment = recordings.last("headdel")
    pods = [with_dead_log(pod) for pod in recordings.last("stopped").objects["pods"]]
    objects = {**recordings.last("stopped").objects, "pods": pods}
    seen = replace(moment, objects=objects).seen()
    assert all(pod.ready for pod in seen.pods)
    assert all(one.name != "log" for pod in seen.pods for one in pod.containers)
    for cluster in objects["rayclusters"]:
        for condition in cluster["status"]["conditions"]:
            if condition["type"] == "HeadPodReady":
                condition.update(status="False", reason="Error", message="log: ")
    seen = replace(moment, objects=objects).seen()
    assert seen.cluster is not None
    assert seen.cluster.conditions["HeadPodReady"][0] == "True"


def with_dead_log(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod, its log container killed for its memory."""
    status = pod["status"]
    inits = [
        {**one, "ready": False, "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
        if one["name"] == "log"
        else one
        for one in status["initContainerStatuses"]
    ]
    conditions = [
        {**one, "status": "False", "reason": "ContainersNotReady"}
        if one["type"] == "Ready"
        else one
        for one in status["conditions"]
    ]
    return {**pod, "status": {**status, "initContainerStatuses": inits, "conditions": conditions}}


def test_missing_fields_are_no_error():
    """Case C8: no status, null, empty, and null parts of it."""
    bare: dict[str, Any] = {"metadata": {"name": "j-a1", "uid": "u"}}
    statuses: list[dict[str, Any]] = [{}, {"status": None}, {"status": {}}]
    for status in [*statuses, {"status": {"rayJobInfo": None}}]:
        view = views.rayjob_view({**bare, **status})
        assert (view.job_status, view.deployment_status, view.started_at) == ("", "", None)
    pod = {"metadata": {"name": "p", "uid": "u", "labels": None}, "status": None}
    cluster = {"metadata": {"name": "c", "uid": "u"}, "status": {"conditions": None, "head": {}}}
    seen = views.observation(bare, cluster=cluster, pods=[pod], events=[])
    assert seen.pods[0].role == "worker"
    assert not seen.pods[0].ready
