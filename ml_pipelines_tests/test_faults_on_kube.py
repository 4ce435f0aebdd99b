"""Real jobs on a real cluster while drivers, pods, nodes, operator, API server or S3 fail.

Each goes through the whole loop: the verdict is true, no work runs twice, each line is told once,
and nothing is left.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import datetime, timedelta

import pytest

from ml_pipelines import lifecycle
from ml_pipelines.clock import SystemClock
from ml_pipelines.errors import BackendRefused
from ml_pipelines.job.events import AttemptEnded, Submitted
from ml_pipelines.job.phase import Phase
from ml_pipelines.job.verdict import VerdictClass
from ml_pipelines_tests.cluster import CLOCK, Cluster, Namespace
from ml_pipelines_tests.kube_lives import Life
from ml_pipelines_tests.kube_rules import applied, policy, suspended, webhook_of_nobody

pytestmark = [pytest.mark.kube, pytest.mark.slow]

MINUTE_S = 60.0
AFTER_AN_OUTAGE_S = 120.0  # kubelets back off after they missed their API server
COUNT = "counting()"
LOST = {VerdictClass.PREEMPTED, VerdictClass.INFRA}
EAT = "eaten = []\nwhile True: eaten.append(b'x' * (64 << 20))"


class WrongClock(SystemClock):
    """A machine whose wall clock is three hours ahead."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=3)


def test_rules_that_refuse(namespace: Namespace) -> None:
    """Case C16: an admission policy refuses the job: before it is recorded, or after, in its words.

    A webhook that can't be reached is no refusal: it is told, and the job waits for it.
    """
    said = "every job names its cost centre"
    with applied(namespace, policy(namespace, "false", said), said):
        with pytest.raises(BackendRefused, match=said) as refused, Life(namespace, COUNT) as early:
            early.ended()
        assert "ask whoever keeps these rules" in refused.value.remedy
    said = "every job names its owner"
    late_rule = policy(namespace, "request.dryRun == true", said)
    with applied(namespace, late_rule, said), Life(namespace, COUNT) as late:
        end = late.ended(60)
        assert (end.phase, end.verdict.cls) == (Phase.FAILED, VerdictClass.CONFIG)
        assert said in end.verdict.sentence
        late.tidy(attempts=0)
    said = "rules.example.org"
    with ExitStack() as lives, applied(namespace, webhook_of_nobody(namespace), said) as away:
        waits = lives.enter_context(Life(namespace, COUNT))
        waits.until_said(said)
        assert not waits.of(Submitted)
        away.close()
        waits.until("it is made", lambda: waits.of(Submitted), 60)


def test_names_that_others_have(namespace: Namespace) -> None:
    """Case B2: a RayJob of somebody else, and one of another code location, are left alone."""
    theirs = suspended("fault-taken-a1")
    namespace.create(theirs)
    with Life(namespace, COUNT, key="fault-taken") as life:
        end = life.ended(60)
        assert (end.phase, end.verdict.cls) == (Phase.FAILED, VerdictClass.CONFIG)
        assert "is none of ours" in end.verdict.sentence
    with Life(namespace, COUNT, key="fault-same", runs="one") as mine:
        mine.until("it is made", lambda: mine.of(Submitted), 60)
        with Life(namespace, COUNT, key="fault-same", runs="other") as other:
            end = other.ended(60)
            assert (end.phase, end.verdict.cls) == (Phase.FAILED, VerdictClass.CONFIG)
            assert "with another spec" in end.verdict.sentence
        with lifecycle.open_platform(other.settings) as platform:
            lifecycle.sweep(platform, lambda _key, _labels: False)
            lifecycle.cancel("fault-same", platform=platform, reason="mine is", by="the other")
        uids = namespace.get("rayjobs", "fault-same-a1")["metadata"]
        assert "deletionTimestamp" not in uids
        assert not mine.of(AttemptEnded)
    assert "deletionTimestamp" not in namespace.get("rayjobs", "fault-taken-a1")["metadata"]


@pytest.mark.timeout(400)
def test_how_a_driver_ends(namespace: Namespace) -> None:
    """Case C6: killed (tried again, on a wrong clock), exit codes 3, 1 and 127: each its class."""
    killed = """
print("attempt", ATTEMPT, flush=True)
os.kill(os.getpid(), 9) if ATTEMPT == 1 else sys.exit(3)
"""
    with (
        Life(namespace, killed, clock=WrongClock()) as twice,
        Life(namespace, "{}['no such key']") as raises,
        Life(namespace, ["no-such-program", "--x"]) as missing,
    ):
        first, end = twice.attempt_ended(1), twice.ended()
        assert first.verdict.cls is VerdictClass.UNKNOWN
        assert "SIGKILL" in first.verdict.sentence
        assert (end.phase, end.verdict.cls, end.verdict.exit_code) == (
            Phase.FAILED, VerdictClass.USER, 3,
        )  # fmt: skip
        for number in (1, 2):
            assert twice.lines(number).count(f"attempt {number}") == 1
        twice.tidy(attempts=2)
        assert max(end.durations.values()) < 240
        end = raises.ended()
        assert (end.phase, end.verdict.cls) == (Phase.FAILED, VerdictClass.USER)
        assert "KeyError: 'no such key'" in end.verdict.sentence
        raises.tidy(attempts=1)
        end = missing.ended()
        assert (end.phase, end.verdict.cls) == (Phase.FAILED, VerdictClass.CONFIG)
        assert "no-such-program" in end.verdict.sentence


@pytest.mark.timeout(400)
def test_out_of_memory(namespace: Namespace) -> None:
    """Case F9: a task eats its worker's memory: OOM, not tried again; the driver eats the head's.

    Where the kernel takes only a process, nothing but its signal tells: tried once more. The task
    eats so slowly that Ray, which looks four times a second, is first.
    """
    task = """
import ray

@ray.remote(num_cpus=1, max_retries=0)
def eat():
    eaten = []
    while True:
        eaten.append(b"x" * (4 << 20))
        time.sleep(0.1)

print("eats", flush=True)
ray.get(eat.remote())
"""
    with (
        Life(namespace, f"print('eats', flush=True)\n{EAT}") as head,
        Life(namespace, task) as worker,
    ):
        end = worker.ended()
        assert (end.phase, end.verdict.cls) == (Phase.FAILED, VerdictClass.OOM), worker.story()
        assert "eats" in worker.lines()
        earlier = {one.verdict.cls for one in worker.of(AttemptEnded)} - {VerdictClass.OOM}
        assert earlier <= {VerdictClass.UNKNOWN}, worker.story()
        worker.tidy(attempts=2 if earlier else 1)
        first, end = head.attempt_ended(1), head.ended()
        alone = first.verdict.cls is VerdictClass.UNKNOWN
        both = {first.verdict.cls, end.verdict.cls}
        assert both <= {VerdictClass.UNKNOWN, VerdictClass.OOM}, head.story()
        assert end.phase is Phase.FAILED
        assert "more memory" in end.verdict.remedy
        assert "eats" in head.lines()
        head.tidy(attempts=2 if alone else 1)


@pytest.mark.timeout(400)
def test_somebody_takes_it_away(namespace: Namespace) -> None:
    """Cases B12, C3: a deleted head or RayCluster is another attempt, a stop or deletion an end."""
    with Life(namespace, COUNT) as headless, Life(namespace, COUNT) as deleted:
        headless.counts()
        head = headless.pod("head")["metadata"]["name"]
        deleted.counts()
        namespace.kubectl("delete", "pod", head, "--wait=false")
        (cluster,) = deleted.objects("rayclusters")
        namespace.kubectl("delete", cluster.lower(), "--wait=false")
        for life in (headless, deleted):
            verdict = life.attempt_ended(1).verdict
            assert verdict.cls is VerdictClass.INFRA, life.story()
            assert len(life.numbered(1)) >= 3
            life.counts(attempt=2)
            assert life.objects("rayjobs") == [f"RayJob/{life.key}-a2"]
        assert headless.platform is not None
        headless.platform.backend.stop(f"{headless.key}-a2")
        namespace.kubectl("delete", "rayjob", f"{deleted.key}-a2", "--wait=false")
        end = headless.ended()
        assert (end.phase, end.verdict.cls) == (Phase.CANCELLED, VerdictClass.CANCELLED)
        assert "stopped the driver through Ray" in end.verdict.sentence
        end = deleted.ended()
        assert (end.phase, end.verdict.cls) == (Phase.LOST, VerdictClass.CANCELLED)
        assert "deleted by somebody else" in end.verdict.sentence
        for life in (headless, deleted):
            life.tidy(attempts=2)
            life.whole(1)
            life.whole(2)


@pytest.mark.timeout(400)
def test_operator_and_storage_are_away_for_a_minute(cluster: Cluster, namespace: Namespace) -> None:
    """Case C14: one job is in mid-run, another is made meanwhile: both go through."""
    with Life(namespace, COUNT) as running, ExitStack() as away:
        running.counts()
        away.enter_context(cluster.fault("operator"))
        with Life(namespace, COUNT) as made:
            made.until("it is made", lambda: made.of(Submitted), 60)
            with cluster.fault("s3"):
                CLOCK.sleep(MINUTE_S)
            away.close()
            running.until_said("until run storage answers")
            running.counts()
            made.counts()
            for life in (running, made):
                assert life.objects("rayjobs") == [f"RayJob/{life.key}-a1"]
                life.let_go()
            for life in (running, made):
                assert life.ended().phase is Phase.SUCCEEDED
                life.whole()
                life.tidy(attempts=1)
            assert len(running.numbered()) > MINUTE_S / 0.3


@pytest.mark.timeout(400)
def test_the_api_server_is_away_for_a_minute(cluster: Cluster, namespace: Namespace) -> None:
    """Case C14: one driver ends meanwhile, another goes on: said, nothing decided, no line lost."""
    with Life(namespace, COUNT) as ends, Life(namespace, COUNT) as goes_on:
        both = (ends, goes_on)
        for life in both:
            life.counts()
        with cluster.fault("api"):
            ends.let_go()
            CLOCK.sleep(MINUTE_S)
            for life in both:
                life.until_said("the job goes on")
                assert not life.of(AttemptEnded), life.story()
        goes_on.counts(more=30)
        goes_on.let_go()
        for life in both:
            end = life.ended()
            assert end.phase is Phase.SUCCEEDED, life.story()
            assert life.lines()[-1] == "let go"
            life.whole()
            life.tidy(attempts=1, gone_s=AFTER_AN_OUTAGE_S)
        assert len(goes_on.numbered()) > MINUTE_S / 0.3


@pytest.mark.timeout(500)
def test_nodes_that_die(cluster: Cluster, namespace: Namespace) -> None:
    """Case H7: the node of a head, and of a worker nobody waits for, dies; another is cut and heals.

    Each lost machine ends its attempt with the evidence, and the next one goes through.
    """
    cluster.needs_tool()
    with ExitStack() as only_one:
        cluster.kubectl("cordon", "spot-1")
        only_one.callback(cluster.kubectl, "uncordon", "spot-1")
        with (
            Life(namespace, COUNT) as head,
            Life(namespace, COUNT, head={"pool": "cpu"}, worker={"pool": "spot"}) as work,
        ):
            for life in (head, work):
                life.counts()
            assert head.pod("head")["spec"]["nodeName"] == "spot-0"
            assert work.pod("worker")["spec"]["nodeName"] == "spot-0"
            only_one.close()
            with cluster.fault("kill", "spot-0"):
                lost = head.attempt_ended(1)
                assert lost.verdict.cls in LOST, head.story()
                assert "the head was lost" in lost.verdict.sentence
                head.counts(attempt=2)
                node = str(head.pod("worker")["spec"]["nodeName"])
                with cluster.fault("cut", node):
                    head.until("node is away", lambda: not cluster.node_ready(node), 60)
                head.counts(attempt=2)
                head.let_go(2)
                lost = work.attempt_ended(1)
                assert lost.verdict.cls in LOST, work.story()
                assert "spot-0" in lost.verdict.sentence
                work.counts(attempt=2)
                work.let_go(2)
                for life in (head, work):
                    assert life.ended().phase is Phase.SUCCEEDED, life.story()
                    life.whole(1)
                    life.whole(2)
            for life in (head, work):
                life.tidy(attempts=2)
