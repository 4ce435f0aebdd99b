"""Why it does not run yet: one sentence with its evidence, and what can never heal fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipelines.job.clocks import Clocks
from ml_pipelines.job.containers import IMAGE_GRACE_S
from ml_pipelines.job.diagnosis import why_pending
from ml_pipelines.job.observation import (
    ClusterView,
    ContainerView,
    EventView,
    Observation,
    PodView,
    WorkloadView,
)
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import VerdictClass
from ml_pipelines_tests.sightings import Replay, pod, rayjob, waiting

C = VerdictClass
INITIALIZING = rayjob("", "Initializing")


def seen(*pods: Any, events: tuple[EventView, ...] = (), **fields: Any) -> Observation:
    """An attempt that is being provisioned."""
    return Observation(fields.pop("rayjob", INITIALIZING), pods=pods, events=events, **fields)


def unschedulable(message: str, name: str = "w1", **fields: Any) -> Any:
    """A worker that no machine takes."""
    conditions = {"PodScheduled": ("False", "Unschedulable", message)}
    return pod(name, "worker", ready=False, phase="Pending", conditions=conditions, **fields)


def held(reason: str, message: str = "", **fields: Any) -> Any:
    """A head whose container waits for this reason."""
    return pod(ready=False, phase="Pending", containers=(waiting(reason, message, **fields),))


@dataclass(frozen=True)
class Case:
    """What is seen, and what must be said of it."""

    obs: Observation
    says: tuple[str, ...]
    cls: VerdictClass
    hopeless: bool = False
    remedy: str = ""


GPU = "0/5 nodes are available: 2 Insufficient nvidia.com/gpu, 3 node(s) had untolerated taint {x}."
QUOTA = (
    'pods "c1-worker" is forbidden: exceeded quota: team-a, requested: limits.cpu=8, '
    "used: limits.cpu=2, limited: limits.cpu=4"
)
KUEUE = (
    "couldn't assign flavors to pod set gpu: insufficient unused quota for nvidia.com/gpu in "
    "flavor spot, 2 more needed"
)
IMAGE = 'Back-off pulling image "registry.local/none:1": not found'

CASES = {
    "F4 no GPU free": Case(
        seen(pod(), unschedulable(GPU)),
        ("worker w1", "Insufficient nvidia.com/gpu"),
        C.CAPACITY,
        remedy="less nvidia.com/gpu",
    ),
    "F4 taint": Case(
        seen(
            unschedulable("0/2 nodes are available: 2 node(s) had untolerated taint {gpu: present}")
        ),
        ("untolerated taint",),
        C.CAPACITY,
        remedy="toleration",
    ),
    "F4 no such node": Case(
        seen(
            unschedulable(
                "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
                pool="gpux",
            )
        ),
        ("didn't match Pod's node affinity/selector",),
        C.CAPACITY,
        remedy="pool gpux: correct its node selector",
    ),
    "F4 the autoscaler adds a machine": Case(
        seen(
            unschedulable(GPU),
            events=(EventView("Pod/w1", "TriggeredScaleUp", "pod triggered scale-up: [{a 0->1}]"),),
        ),
        ("the autoscaler is adding",),
        C.CAPACITY,
    ),
    "F4 the autoscaler can't": Case(
        seen(
            unschedulable(GPU),
            unschedulable(GPU, "w2"),
            events=(EventView("Pod/w1", "NotTriggerScaleUp", "max node group size reached"),),
        ),
        ("and 1 more", "Insufficient"),
        C.CAPACITY,
    ),
    "F3 quota in the cluster's condition": Case(
        seen(
            cluster=ClusterView(
                "c1", conditions={"ReplicaFailure": ("True", "FailedCreatePods", QUOTA)}
            )
        ),
        ("team-a", "requested: limits.cpu=8", "used: limits.cpu=2", "limited: limits.cpu=4"),
        C.CAPACITY,
    ),
    "F3 quota in the cluster's reason": Case(
        seen(cluster=ClusterView("c1", state="failed", reason=QUOTA)), ("team-a",), C.CAPACITY
    ),
    "F3 quota in an event": Case(
        seen(events=(EventView("RayCluster/c1", "FailedToCreateWorkerPod", QUOTA),)),
        ("team-a",),
        C.CAPACITY,
    ),
    "F6 Kueue": Case(
        seen(
            rayjob=rayjob("", "Suspended"),
            workload=WorkloadView("wl", "team", {"QuotaReserved": ("False", "Pending", KUEUE)}),
        ),
        ("queue team", KUEUE),
        C.CAPACITY,
        remedy="Ask for less",
    ),
    "F6 suspended and nobody says why": Case(
        seen(rayjob=rayjob("", "", suspended=True)), ("waiting to be admitted",), C.CAPACITY
    ),
    "F1 image": Case(
        seen(held("ImagePullBackOff", IMAGE)),
        ("registry.local/none:1", "not found"),
        C.CONFIG,
        hopeless=True,
        remedy="name and tag",
    ),
    "secret missing": Case(
        seen(held("CreateContainerConfigError", 'secret "token" not found')),
        ('secret "token" not found',),
        C.CONFIG,
        hopeless=True,
        remedy="Create the secret",
    ),
    "secret missing, mounted": Case(
        seen(
            pod(ready=False, phase="Pending", containers=(waiting("ContainerCreating"),)),
            events=(
                EventView(
                    "Pod/h",
                    "FailedMount",
                    'MountVolume.SetUp failed for volume "v": secret "tls" not found',
                ),
            ),
        ),
        ('secret "tls" not found',),
        C.CONFIG,
        hopeless=True,
    ),
    "claim missing": Case(
        seen(unschedulable('0/1 nodes: persistentvolumeclaim "data" not found.')),
        ("volume claim data",),
        C.CONFIG,
        hopeless=True,
        remedy="Create the claim",
    ),
    "service account missing": Case(
        seen(
            events=(
                EventView(
                    "RayCluster/c1",
                    "FailedToCreateHeadPod",
                    "error looking up service account a/b: not found",
                ),
            )
        ),
        ("service account a/b",),
        C.CONFIG,
        hopeless=True,
        remedy="Create the pool's service account",
    ),
    "init container waits": Case(
        seen(
            pod(
                ready=False,
                phase="Pending",
                containers=(
                    ContainerView("wait-gcs", init=True),
                    waiting("PodInitializing"),
                ),
            )
        ),
        ("waits for init container wait-gcs",),
        C.TIMEOUT,
    ),
    "F10 init container failed for good": Case(
        seen(
            pod(
                ready=False,
                phase="Failed",
                containers=(
                    ContainerView("fetch", init=True, terminated_reason="Error", exit_code=1),
                ),
            )
        ),
        ("init container fetch", "exit code 1"),
        C.CONFIG,
        hopeless=True,
    ),
    "crash loop, once": Case(
        seen(held("CrashLoopBackOff", "back-off 10s", restarts=1, exit_code=1)),
        ("fails at every start", "2 starts"),
        C.CONFIG,
    ),
    "crash loop, again and again": Case(
        seen(held("CrashLoopBackOff", "back-off 80s", restarts=5, exit_code=1)),
        ("fails at every start", "6 starts", "exit code 1"),
        C.CONFIG,
        hopeless=True,
    ),
    "F9 out of memory at every start": Case(
        seen(
            held("CrashLoopBackOff", "", restarts=5, exit_code=137, terminated_reason="OOMKilled")
        ),
        ("OOMKilled",),
        C.OOM,
        hopeless=True,
        remedy="more memory",
    ),
    "can't start its container": Case(
        seen(held("RunContainerError", 'exec: "ray": executable file not found in $PATH')),
        ("executable file not found",),
        C.CONFIG,
        hopeless=True,
    ),
    "F10 machine does not answer": Case(
        seen(pod(ready=False, phase="Unknown", node="n1")), ("n1",), C.INFRA, hopeless=True
    ),
    "F11 pending in Ray": Case(
        seen(pod(), pod("w", "worker"), rayjob=rayjob("PENDING", "Running")),
        ("all machines are ready", "not started the driver"),
        C.CONFIG,
        remedy="own resources do not fit",
    ),
    "pulling": Case(
        seen(
            pod(ready=False, phase="Pending", containers=(waiting("ContainerCreating"),)),
            pod("w", "worker"),
            events=(EventView("Pod/h", "Pulling", 'Pulling image "big:1"'),),
        ),
        ("1 of 2 machines ready", 'pulling image "big:1"'),
        C.TIMEOUT,
    ),
    "the operator's own message": Case(
        seen(rayjob=rayjob("", "Initializing", message="starting a local Ray head")),
        ("starting a local Ray head",),
        C.TIMEOUT,
    ),
    "nobody began": Case(
        seen(rayjob=rayjob()), ("nobody has begun",), C.TIMEOUT, remedy="operator"
    ),
    "nothing there": Case(Observation(None), ("nobody has begun",), C.TIMEOUT),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_is_said(case: Case):
    """Cases C18, F1 to F11: the sentence quotes its evidence, the remedy says what to do."""
    diagnosis = why_pending(case.obs)
    for words in case.says:
        assert words in diagnosis.sentence
    assert diagnosis.hopeless is case.hopeless
    assert diagnosis.cls is case.cls
    assert case.remedy in diagnosis.remedy
    assert "\n" not in diagnosis.sentence


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_only_what_can_never_heal_fails_before_the_clock(case: Case):
    """Cases F1, F4: surfaced at the first look; hopeless ends in its grace, the rest waits."""
    replay = Replay(Clocks(queue_s=5_000.0, provisioning_s=5_000.0, unseen_s=5_000.0))
    first = replay.see(case.obs)
    if case.obs.rayjob is not None and not first.phase.ended:
        assert first.sentence == why_pending(case.obs).sentence
    standing = replay.wait(case.obs, 700.0)
    if case.obs.rayjob is not None:
        assert standing.phase.ended is case.hopeless
    if case.hopeless:
        assert standing.verdict is not None
        assert standing.verdict.cls is case.cls
        assert standing.verdict.evidence


def test_an_image_gets_two_minutes():
    """Case F1: ErrImagePull and ImagePullBackOff in turns are one trouble, and fail in 2 min."""
    replay = Replay()
    flapping = [seen(held("ErrImagePull", IMAGE)), seen(held("ImagePullBackOff", IMAGE))]
    replay.see(flapping[0])
    while replay.now < IMAGE_GRACE_S - 5.0:
        assert replay.see(flapping[int(replay.now) % 2], 5.0).phase is Phase.PROVISIONING
    standing = replay.see(flapping[0], 5.0)
    assert standing.phase is Phase.FAILED
    assert "registry.local/none:1" in standing.sentence


def test_one_flap_of_an_image_fails_nothing():
    """Case F1: a registry that hiccups once, and once more much later, is no failure."""
    replay = Replay()
    fine = seen(pod(ready=False, phase="Pending", containers=(waiting("ContainerCreating"),)))
    bad = seen(held("ErrImagePull", IMAGE))
    replay.wait(bad, 60.0)
    replay.wait(fine, 60.0)
    assert replay.wait(bad, 100.0).phase is Phase.PROVISIONING
    assert replay.see(seen(pod())).phase is Phase.PROVISIONING


_WORDS = st.sampled_from(
    ["", "True", "False", "Unknown", "ErrImagePull", "CrashLoopBackOff", "OOMKilled", "not found"]
)
_CONDITIONS = st.dictionaries(
    st.sampled_from(["Ready", "PodScheduled", "DisruptionTarget", "HeadPodReady", "QuotaReserved"]),
    st.tuples(_WORDS, _WORDS, _WORDS | st.text(max_size=8)),
)
_CONTAINERS = st.builds(
    ContainerView,
    name=_WORDS,
    ready=st.booleans(),
    restarts=st.integers(0, 9),
    waiting_reason=_WORDS,
    waiting_message=_WORDS,
    terminated_reason=_WORDS,
    exit_code=st.none() | st.integers(-20, 255),
    init=st.booleans(),
)
_PODS = st.builds(
    PodView,
    name=_WORDS,
    uid=_WORDS,
    role=st.sampled_from(["head", "worker", "?"]),
    phase=st.sampled_from(["", "Pending", "Running", "Failed", "Unknown"]),
    deleting=st.booleans(),
    spot=st.booleans(),
    conditions=_CONDITIONS,
    containers=st.lists(_CONTAINERS, max_size=2).map(tuple),
)
_SIGHTS = st.builds(
    Observation,
    st.sampled_from([None, INITIALIZING, rayjob("RUNNING", "Running"), rayjob("", "Suspended")]),
    cluster=st.none() | st.builds(ClusterView, name=_WORDS, reason=_WORDS, conditions=_CONDITIONS),
    pods=st.lists(_PODS, max_size=3).map(tuple),
    events=st.lists(st.builds(EventView, _WORDS, _WORDS, _WORDS), max_size=2).map(tuple),
    workload=st.none() | st.builds(WorkloadView, name=_WORDS, conditions=_CONDITIONS),
)


@given(st.lists(_SIGHTS, max_size=8))
def test_no_sight_crashes(sights: list[Observation]):
    """Whatever pods, conditions and events hold, there is one sentence."""
    replay = Replay()
    for obs in sights:
        assert why_pending(obs).sentence
        assert replay.see(obs).sentence


@pytest.mark.parametrize(
    ("about", "message", "pods"),
    [
        ("Head", 'admission webhook "rules" denied the request: no', (pod("h1", "head", ready=False),)),
        ("Head", 'admission webhook "mpod.kb.io" denied the request: RayCluster.ray.io "c1" not found', ()),
    ],
    ids=["its pod is there since", "the webhook is behind"],
)  # fmt: skip
def test_a_refusal_that_is_over_fails_nothing(about: str, message: str, pods: tuple[Any, ...]):
    """Case F3: an event outlives its cause by an hour, and a busy webhook knows nothing yet."""
    event = EventView("RayCluster/c1", f"FailedToCreate{about}Pod", message)
    replay = Replay(Clocks(provisioning_s=5_000.0))
    standing = replay.wait(seen(*pods, events=(event,)), 700.0)
    assert standing.phase is Phase.PROVISIONING, standing


def test_a_malformed_image_name_fails_at_once():
    """No registry can heal a name that is none."""
    standing = Replay().see(seen(held("InvalidImageName", 'couldn\'t parse image "a:b:c"')))
    assert standing.phase is Phase.FAILED


def test_a_head_that_is_made_anew_at_every_look_is_a_crash_loop():
    """Case F2: a new head pod every 2 s, each with exit code 127, fails with code and count."""
    replay = Replay()
    ended = ContainerView(
        "ray-head", terminated_reason="Error", exit_code=127, waiting_message="ray: not found"
    )
    for number in range(10):
        head = pod(f"h{number}", ready=False, phase="Failed", containers=(ended,))
        if replay.see(seen(head), 2.0).phase.ended:
            break
    assert replay.standing is not None
    assert replay.standing.phase is Phase.FAILED
    assert replay.now < 15.0
    assert "exit code 127" in replay.standing.sentence
    assert "ray: not found" in "".join(replay.standing.verdict.evidence)  # type: ignore[union-attr]


def test_the_late_start_says_what_it_waited_for():
    """Case F4: at the end of its clock the verdict holds the diagnosis and its class."""
    replay = Replay(Clocks(provisioning_s=100.0))
    standing = replay.wait(seen(pod(), unschedulable(GPU)), 200.0)
    assert standing.phase is Phase.FAILED
    assert standing.verdict is not None
    assert standing.verdict.cls is C.CAPACITY
    assert "not running after 100 s" in standing.sentence
    assert "nvidia.com/gpu" in standing.sentence


def test_a_worker_that_waits_beside_a_running_driver_is_told():
    """The driver runs on; the sentence says what a worker waits for, and nothing is hopeless."""
    replay = Replay()
    obs = Observation(rayjob("RUNNING", "Running"), pods=(pod(), unschedulable(GPU)))
    standing = replay.wait(obs, 600.0)
    assert standing.phase is Phase.RUNNING
    assert standing.sentence.startswith("the driver runs; no machine for worker w1")


DELETED = (
    "Deleted {role} Pod ads/{name}; Pod status: Failed; Pod restart policy: Never; Ray container "
    "terminated status: &ContainerStateTerminated{{ExitCode:{code},Signal:0,Reason:{reason},"
    "Message:,StartedAt:2026-01-01 00:00:{at:02} +0000 UTC,FinishedAt:x,ContainerID:y,}}"
)


def deleted(name: str, code: int = 1, *, at: int = 0, count: int = 1) -> EventView:
    """What the operator says of a worker that it takes away."""
    said = DELETED.format(role="worker", name=name, code=code, reason="Error", at=at)
    return EventView("RayCluster/c1", "DeletedWorkerPod", said, count=count)


def test_workers_that_were_taken_are_no_crash_loop():
    """Case H7: spot workers reclaimed, again and again, while it is provisioned: it goes on."""
    replay = Replay()
    events: tuple[EventView, ...] = ()
    for number in range(5):
        name = f"c1-spot-worker-{number}"
        taken = pod(name, "worker", phase="Failed", reason="Terminated", ready=False)
        replay.wait(seen(pod(), taken), 20.0)
        events = (*events, deleted(name, at=number))
        standing = replay.wait(seen(pod(), events=events), 20.0)
        assert standing.phase is Phase.PROVISIONING, standing
        assert "fails at every start" not in standing.sentence


@pytest.mark.parametrize("code", [137, 143])
def test_workers_that_others_killed_are_no_crash_loop(code: int):
    """Case H7: SIGKILL and SIGTERM come from others; nobody saw why."""
    events = tuple(deleted(f"c1-spot-worker-{n}", code, at=n) for n in range(5))
    assert "fails" not in why_pending(seen(pod(), events=events)).sentence


def test_heads_that_were_taken_are_no_crash_loop():
    """Case H7: a head that is reclaimed at every start has not failed by itself."""
    replay = Replay()
    broken = (ContainerView("ray-head", exit_code=1, terminated_reason="Error"),)
    for number in range(6):
        head = pod(f"h{number}", phase="Failed", reason="Evicted", ready=False, containers=broken)
        standing = replay.wait(seen(head), 20.0)
        assert standing.phase is Phase.PROVISIONING, standing


def test_failed_starts_are_counted_by_group_and_once_a_pod():
    """Two groups that failed once each, and one pod told of twice, are no loop yet."""
    two = (deleted("c1-cpu-worker-a"), deleted("c1-gpu-worker-b"))
    twice = (deleted("c1-cpu-worker-a"), deleted("c1-cpu-worker-a", count=3))
    for events in (two, twice):
        assert "fails" not in why_pending(seen(pod(), events=events)).sentence
    same = tuple(deleted(f"c1-cpu-worker-{n}", at=n) for n in range(3))
    told = why_pending(seen(pod(), events=same))
    assert "fails at every start (exit code 1), 3 times so far" in told.sentence
    assert told.hopeless


def test_an_init_container_of_a_machine_that_was_taken_is_no_configuration():
    """Case H7: a pod evicted while its init container ran is replaced, and the job goes on."""
    init = (ContainerView("wait-gcs-ready", exit_code=143, terminated_reason="Error", init=True),)
    replay = Replay()
    evicted = pod("w1", "worker", phase="Failed", reason="Evicted", ready=False, containers=init)
    assert replay.wait(seen(pod(), evicted), 60.0).phase is Phase.PROVISIONING
