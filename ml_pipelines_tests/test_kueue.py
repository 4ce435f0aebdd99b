"""Jobs that wait in a queue, on a real cluster with Kueue: reasons, clocks, evictions, ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from ml_pipelines import lifecycle, settings
from ml_pipelines.errors import BackendUnavailable
from ml_pipelines.job.events import Event, JobEnded, LogLine, MetricPoint, Notice, PhaseChanged
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import VerdictClass
from ml_pipelines.journal.state import JournalState
from ml_pipelines.lifecycle.logkeeping import kept_log
from ml_pipelines.lifecycle.platform import Platform
from ml_pipelines.spec.job import JobSpec
from ml_pipelines_tests.cluster import CLOCK, Cluster, Namespace, storage_of, wait_for
from ml_pipelines_tests.kueue_queues import Queue, queue
from ml_pipelines_tests.rayjob_manifests import manifest

__all__ = ["queue"]  # a fixture

pytestmark = [pytest.mark.kube, pytest.mark.timeout(400)]

COUNTING = (sys.executable, "-m", "ml_pipelines_tests.pod_counting")
SLEEPING = (sys.executable, "-c", "import time; print('sleeps'); time.sleep(600)")
REASON_S = 30.0
GONE_S = 30.0

Kind = TypeVar("Kind")


@dataclass
class Followed:
    """A job that a thread follows, and all that was told of it."""

    run_key: str
    platform: Platform
    events: list[Event] = field(default_factory=list)
    thread: threading.Thread | None = None

    def of(self, kind: type[Kind]) -> list[Kind]:
        """The events of that kind so far."""
        return [event for event in list(self.events) if isinstance(event, kind)]

    def said(self) -> list[str]:
        """The sentences of all phases so far."""
        return [event.sentence for event in self.of(PhaseChanged)]

    def until(self, phase: Phase, words: str = "", *, timeout_s: float = REASON_S) -> str:
        """The sentence with which it entered the phase, once it has."""

        def found() -> str:
            last = self.of(PhaseChanged)[-1:]
            return next(
                (one.sentence for one in last if one.phase is phase and words in one.sentence), ""
            )

        try:
            return str(wait_for(f"{phase} {words}", found, timeout_s=timeout_s))
        except AssertionError as err:
            raise AssertionError(f"{err}; told: {self.events[-20:]}") from None

    def ended(self, *, timeout_s: float) -> JobEnded:
        """The end, once it has come."""
        wait_for(f"{self.run_key} ends", lambda: self.of(JobEnded), timeout_s=timeout_s)
        return self.of(JobEnded)[0]

    def state(self) -> JournalState:
        """Its journal."""
        return self.platform.journal(self.run_key).read()


@dataclass
class Room:
    """Where these tests submit: a namespace, its queue, run storage of its own."""

    namespace: Namespace
    queue: Queue
    settings: settings.Settings
    platform: Platform
    count: int = 0

    def follow(self, name: str, pool: str, *argv: str, **more: Any) -> Followed:
        """Submit a job of a head and workers on `pool`, and follow it in a thread."""
        workers = more.pop("workers", 1)
        head = {"team": "team", "narrow": "spare"}.get(pool, "far")
        spec = JobSpec.model_validate({
            "name": name,
            "entrypoint": list(argv or SLEEPING),
            "cluster": {"head": {"pool": head},
                        "workers": [{"pool": pool, "min_workers": workers}]},
            **more,
        })  # fmt: skip
        followed = Followed(name, self.platform)
        job = lifecycle.submit(spec, run_key=name, labels={}, platform=self.platform)

        def follow() -> None:
            for event in lifecycle.follow(job, platform=self.platform):
                followed.events.append(event)

        followed.thread = threading.Thread(target=follow, daemon=True)
        followed.thread.start()
        return followed

    def left(self, run_key: str) -> list[str]:
        """What the cluster still has of that job."""
        kinds = "rayjobs.ray.io,rayclusters.ray.io,pods,workloads.kueue.x-k8s.io"
        names = [one["metadata"]["name"] for one in self.namespace.items(kinds)]
        return [name for name in names if name.removeprefix("rayjob-").startswith(f"{run_key}-a")]

    def is_clean(self, run_key: str) -> None:
        """Nothing is left of it, and its quota is free again, within the time for it."""
        wait_for(f"nothing left of {run_key}", lambda: not self.left(run_key), timeout_s=GONE_S)

    def rayjob(self, run_key: str) -> dict[str, Any]:
        """Its RayJob."""
        found: dict[str, Any] = self.namespace.get("rayjob", f"{run_key}-a1")
        return found

    def urgent(self, name: str) -> Callable[[], None]:
        """A job of a higher priority, whose pods fit nowhere; returns what removes it."""
        shape = {"head": {"pool": "far"}, "workers": [{"pool": "urgent", "min_workers": 2}]}
        made = manifest(name, SLEEPING, cluster=shape, of=self.platform.pools)
        view = self.platform.backend.create(made)
        return lambda: self.platform.backend.delete(view.name, view.uid)


@pytest.fixture(scope="module")
def room(
    namespace: Namespace, queue: Queue, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Room]:
    """The platform as the command line opens it, for pools that wait in the queue."""
    storage = storage_of(namespace)
    home = {"MLP_HOME": str(tmp_path_factory.mktemp("mlp"))}
    environ = {**namespace.environment(), **storage, **home, "MLP_POOLS": str(queue.platform_file)}
    loaded = settings.load(environ)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", environ["KUBECONFIG"])
        with lifecycle.open_platform(loaded) as platform:
            yield Room(namespace, queue, loaded, platform)


def test_a_queue_that_is_closed(room: Room) -> None:
    """Case F6: each wait has its reason within 30 s; Terminate leaves nothing; its clock ends it."""
    room.queue.stop("Hold")
    held = room.follow("held", "waiting")
    late = room.follow("late", "waiting", limits={"queue_s": 6, "provisioning_s": 1, "run_s": 1})
    lost = room.follow("lost", "lost")
    large = room.follow("large", "waiting", workers=9)
    said = held.until(Phase.QUEUED, "is inactive")
    assert said.startswith("waiting in queue ml-pipelines: ClusterQueue ml-pipelines-")
    said = lost.until(Phase.QUEUED, "doesn't exist")
    assert "queue no-such-queue can't admit it: LocalQueue no-such-queue doesn't exist" in said
    verdict = late.ended(timeout_s=40).verdict
    assert verdict.cls is VerdictClass.CAPACITY
    assert "still in the queue after 6 s" in verdict.sentence
    assert "is inactive" in verdict.sentence
    assert "Ask whoever keeps the queue" in verdict.remedy
    assert late.of(JobEnded)[0].durations["provisioning"] < 2.0
    wait_for("lists have the reason", lambda: "is inactive" in _listed(room, "held"), timeout_s=20)
    room.queue.stop("None")
    held.until(Phase.PROVISIONING, "no machine for head")
    said = large.until(Phase.QUEUED, "maximum capacity")
    assert "can't admit it" in said
    began = CLOCK.monotonic()
    for one in (held, lost, large):
        lifecycle.cancel(one.run_key, platform=room.platform, by="test")
        assert one.ended(timeout_s=30).phase is Phase.CANCELLED
    for one in (held, late, lost, large):
        room.is_clean(one.run_key)
    assert CLOCK.monotonic() - began < GONE_S
    wait_for("the quota is free", lambda: room.queue.reserved() == "0", timeout_s=GONE_S)


def _listed(room: Room, run_key: str) -> str:
    jobs = lifecycle.list_jobs(room.platform)
    return next((one.sentence for one in jobs if one.run_key == run_key), "")


def test_evicted_before_it_runs(room: Room) -> None:
    """Eviction while machines are made, twice, and cancelled while it waits: nothing is left."""
    job = room.follow("twice", "waiting", limits={"provisioning_s": 30})
    for turn in (1, 2):
        job.until(Phase.PROVISIONING, "no machine for head")
        remove = room.urgent(f"urgent-{turn}")
        job.until(Phase.QUEUED, "waiting in queue ml-pipelines: couldn't assign flavors")
        told = [one.sentence for one in job.of(Notice) if "took the machines back" in one.sentence]
        assert len(told) == turn, told
        if turn == 1:
            remove()
    assert lifecycle.cancel("twice", platform=room.platform, by="test")
    assert job.ended(timeout_s=30).phase is Phase.CANCELLED
    room.is_clean("twice")
    remove()
    wait_for("the quota is free", lambda: room.queue.reserved() == "0", timeout_s=GONE_S)


@pytest.mark.slow
def test_evicted_while_it_runs(room: Room) -> None:
    """Cases F6, F8: the same RayJob waits, starts again, and ends well; its quota is free then."""
    params = {"lines": 12}
    job = room.follow("counts", "team", *COUNTING, params=params, owes_result=True)
    wait_for(
        "the driver counts",
        lambda: [one for one in job.of(MetricPoint) if one.step >= 3],
        timeout_s=150,
    )
    uid = room.rayjob("counts")["metadata"]["uid"]
    remove = room.urgent("urgent-3")
    job.until(Phase.QUEUED, "ml-pipelines", timeout_s=20)
    job.until(Phase.QUEUED, "couldn't assign flavors", timeout_s=60)
    assert room.rayjob("counts")["metadata"]["uid"] == uid
    remove()
    end = job.ended(timeout_s=200)
    assert (end.phase, end.verdict.cls) == (Phase.SUCCEEDED, VerdictClass.SUCCESS), end
    assert end.result == {"sum": 66}
    assert end.durations["queue"] > 1.0

    state = job.state()
    assert [one.number for one in state.attempts] == [1]
    (noted,) = [one for one in state.notes if "evicted" in one]
    (told,) = [one.sentence for one in job.of(Notice) if "took the machines back" in one.sentence]
    assert noted["evicted"] == "PREEMPTED"
    assert noted["sentence"] == told
    assert lifecycle.describe("counts", platform=room.platform).evictions == 1
    assert told.startswith("queue ml-pipelines took the machines back: Preempted to accommodate")
    _is_whole(job, state)
    room.is_clean("counts")
    wait_for("the quota is free", lambda: room.queue.reserved() == "0", timeout_s=GONE_S)


def _is_whole(job: Followed, state: JournalState) -> None:
    """Metrics, both starts' logs, told and kept, and the ledger of both sets of machines."""
    steps = [one.step for one in job.of(MetricPoint)]
    assert steps == sorted(set(steps))
    assert steps[-1] == 11
    told = [one.text for one in job.of(LogLine) if one.text.startswith("count ")]
    again = len(told) - 1 - told[::-1].index("count 0")
    assert told[:again] == [f"count {number}" for number in range(again)]
    assert told[again:] == [f"count {number}" for number in range(12)]
    for source, lines in (("driver", told[:again]), ("driver-2", told[again:])):
        kept = b"".join(kept_log(job.platform.store, job.run_key, 1, source)).decode()
        assert [one for one in kept.splitlines() if one.startswith("count ")] == lines
    assert state.incarnations == 2
    placed = [line for line in state.ledger if "scheduled_at" in line]
    gone = [line["uid"] for line in state.ledger if "gone_at" in line]
    assert len({line["cluster"] for line in placed}) == 2
    assert sorted(line["uid"] for line in placed) == sorted(gone)
    assert len(placed) == 4


@pytest.mark.slow
def test_it_holds_a_part_of_its_machines(room: Room) -> None:
    """Gang start: short of one worker no driver starts; at its clock it lets go: CAPACITY."""
    job = room.follow("gang", "narrow", workers=2, limits={"provisioning_s": 25})
    wait_for("it holds a part", lambda: _placed(room, "gang"), timeout_s=25)
    end = job.ended(timeout_s=60)
    assert end.verdict.cls is VerdictClass.CAPACITY, end
    assert "no machine for worker" in end.verdict.sentence
    assert job.of(LogLine) == []
    assert len(job.state().attempts) == 1
    room.is_clean("gang")


def _placed(room: Room, run_key: str) -> list[str]:
    pods = room.namespace.items("pods")
    names = [one["metadata"]["name"] for one in pods if one["spec"].get("nodeName")]
    return [name for name in names if name.startswith(f"{run_key}-a1-")]


def test_the_queues_webhook_is_away(room: Room, cluster: Cluster) -> None:
    """A create that Kueue can't look at is refused for now, in words, and taken once it can."""
    if not cluster.tool:
        pytest.skip("takes Kueue away from everybody: set MLP_CLUSTER_TOOL")
    made = manifest("unseen", of=room.platform.pools, cluster={"workers": [{"pool": "waiting"}]})
    manager = ("deployment/kueue-controller-manager", "-n", "kueue-system")
    found: list[object] = []

    def create() -> None:
        try:
            found.append(room.platform.backend.create(made))
        except BackendUnavailable as err:
            found.append(err)

    thread = threading.Thread(target=create, daemon=True)
    cluster.kubectl("scale", *manager, "--replicas=0")
    try:
        wait_for(
            "Kueue is away",
            lambda: not cluster.items("pods", "-n", "kueue-system"),
            timeout_s=60,
        )
        thread.start()
        CLOCK.sleep(3.0)
        assert thread.is_alive()
        assert room.left("unseen") == []
    finally:
        cluster.kubectl("scale", *manager, "--replicas=1")
        cluster.kubectl("rollout", "status", *manager, "--timeout=90s", timeout_s=100)
    thread.join(60)
    if isinstance(found[0], BackendUnavailable):
        assert "webhook" in found[0].message
        wait_for("it is taken", lambda: _created(room, made), timeout_s=60)
    wait_for("the queue has it", lambda: room.queue.workloads("unseen"), timeout_s=REASON_S)
    room.platform.backend.delete("unseen-a1")
    room.is_clean("unseen")


def _created(room: Room, made: dict[str, Any]) -> bool:
    try:
        room.platform.backend.create(made)
    except BackendUnavailable:
        return False
    return True
