"""The KubeRay backend against an API server that fails as no real one can be made to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ml_pipelines import lifecycle
from ml_pipelines.backends import rayjob
from ml_pipelines.backends.kubeapi import Api, path_of
from ml_pipelines.backends.kubeapi.login import find
from ml_pipelines.backends.kubeapi.retries import Limits
from ml_pipelines.backends.kuberay import KubeRayBackend
from ml_pipelines.backends.kuberay.asked import EVENTS_EVERY_S, FIRST_EVENTS_S, SKEW_AGAIN_S
from ml_pipelines.backends.kuberay.backend import QUOTA_PATIENCE_S
from ml_pipelines.backends.kuberay.nudges import ANNOTATION
from ml_pipelines.backends.kuberay.watches import Seen
from ml_pipelines.clock import FakeClock, SystemClock
from ml_pipelines.errors import BackendRefused, BackendUnavailable, QuotaUsedUp, Refused
from ml_pipelines.job.observation import Observation
from ml_pipelines.spec.manifest import RUN_KEY_LABEL
from ml_pipelines_tests import recordings, touchy
from ml_pipelines_tests.fake_kube import RESET, Asked, FakeKube, Fault
from ml_pipelines_tests.fake_kube_objects import Place
from ml_pipelines_tests.rayjob_manifests import manifest

JOBS = path_of("rayjobs", "ads")
QUICK = Limits(connect_s=0.5, read_s=0.3, write_s=0.3, list_s=1.0, budget_s=2.0)
MADE = manifest("train", ["true"])
NAME = rayjob.name(MADE)
JOB = path_of("rayjobs", "ads", NAME)


@pytest.fixture
def kube() -> Iterator[FakeKube]:
    with FakeKube() as server:
        server.objects.put(path_of("namespaces", "", "ads"), {})
        yield server


@pytest.fixture
def connect(kube: FakeKube, clock: FakeClock, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes backends for the fake server, whose waits take no time."""
    made: list[Any] = []

    def backend(**options: Any) -> KubeRayBackend:
        config = {"KUBECONFIG": str(kube.kubeconfig(tmp_path))}
        api = Api(find("", "", config), clock=clock, limits=QUICK)
        one = KubeRayBackend(api, clock, **options)
        made.extend([one, api])
        return one

    yield backend
    for one in made:
        one.close()


@pytest.fixture
def backend(connect: Callable[..., KubeRayBackend]) -> KubeRayBackend:
    return connect()


def until(backend: KubeRayBackend, condition: Callable[[Observation], bool]) -> Observation:
    """Observe until the watch has told it."""
    wall = SystemClock()
    deadline = wall.monotonic() + 10.0
    while not condition(seen := backend.observe(NAME)):
        assert wall.monotonic() < deadline, seen
        wall.sleep(0.02)
    return seen


def stored(kube: FakeKube) -> list[dict[str, Any]]:
    """The RayJobs that are there."""
    return kube.objects.listed(Place.of(JOBS), "", "")


def watched(kube: FakeKube) -> list[Asked]:
    """The watches that were begun."""
    return [one for one in kube.requests("GET") if one.query.get("watch")]


def put(kube: FakeKube, **status: Any) -> None:
    """The RayJob, with this status."""
    kube.objects.put(JOB, {**MADE, "status": status})


def put_recorded(kube: FakeKube, recording: str) -> None:
    """All objects of a recording's last moment, under our names."""
    moment = recordings.last(recording).objects
    (job,) = moment["rayjobs"]
    status = job["status"]
    cluster = f"{NAME}-abcde"
    put(kube, **{**status, "rayClusterName": cluster})
    for found in moment["rayclusters"]:
        labels = MADE["metadata"]["labels"]
        metadata = {"labels": labels}
        kube.objects.put(
            path_of("rayclusters", "ads", cluster),
            {"metadata": metadata, "status": found["status"]},
        )
    for number, pod in enumerate(moment["pods"]):
        labels = {**pod["metadata"]["labels"], **MADE["metadata"]["labels"]}
        labels["ray.io/cluster"] = cluster
        kube.objects.put(
            path_of("pods", "ads", f"{cluster}-{number}"),
            {"metadata": {"labels": labels}, "spec": pod["spec"], "status": pod["status"]},
        )


# ── create ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "fault",
    [Fault(store=True, reset=True), Fault(store=True, status=504), Fault(store=True, hang_s=1.0)],
    ids=["reset", "504", "hangs"],
)
def test_a_creation_whose_answer_is_lost(backend: KubeRayBackend, kube: FakeKube, fault: Fault):
    """Case B1: stored, then no answer: read back and adopted; one RayJob, its uid."""
    kube.script("POST", "/rayjobs", fault)
    made = backend.create(MADE)
    (found,) = stored(kube)
    assert made.uid == found["metadata"]["uid"]
    assert until(backend, lambda seen: seen.rayjob is not None).rayjob == made


def test_another_conflict_is_tried_again(backend: KubeRayBackend, kube: FakeKube):
    """Case B4: 409 that is not AlreadyExists, twice, then 201: one RayJob, no duplicate reported."""
    conflict = Fault(status=409, reason="Conflict", message="quota: please try again")
    kube.script("POST", "/rayjobs", conflict, conflict)
    backend.create(MADE)
    assert len(stored(kube)) == 1


def test_a_name_taken_by_others(backend: KubeRayBackend, kube: FakeKube):
    """Case B2: neither adopted nor touched, and it says whose it is."""
    kube.objects.put(JOB, {"metadata": {"labels": {"app": "theirs"}}, "spec": {}})
    with pytest.raises(Refused, match=r"is there already and is none of ours"):
        backend.create(MADE)
    assert not kube.requests("DELETE")


def test_a_name_taken_by_another_job_of_ours(backend: KubeRayBackend, kube: FakeKube):
    """Case B2: two code locations in one namespace may not take each other's."""
    other = manifest("train", ["true"])
    other["metadata"]["labels"][RUN_KEY_LABEL] = "elsewhere"
    kube.objects.put(JOB, other)
    with pytest.raises(Refused, match=r"belongs to job elsewhere"):
        backend.create(MADE)


def test_the_same_job_with_another_spec(backend: KubeRayBackend, kube: FakeKube):
    """Case B5: refused, with the fields that differ; what the server added is no difference."""
    other = manifest(
        "train", ["python", "other.py"], cluster={"workers": [{"min_workers": 2, "max_workers": 2}]}
    )
    other["spec"]["rayClusterSpec"]["upgradeStrategy"] = {"type": "None"}
    kube.objects.put(JOB, other)
    with pytest.raises(Refused) as caught:
        backend.create(MADE)
    assert "spec.entrypoint is 'python other.py' there, 'true' here" in caught.value.message
    assert "workerGroupSpecs[0].replicas is 2 there, 1 here" in caught.value.message
    assert "upgradeStrategy" not in caught.value.message


REFUSALS: dict[str, tuple[Fault, str, str]] = {
    "no CRDs": (
        Fault(status=404, reason="NotFound", message="the server could not find the requested resource"),
        "KubeRay is not installed here", "installed",
    ),
    "no namespace": (
        Fault(
            status=404, reason="NotFound", message='namespaces "ads" not found',
            details={"name": "ads", "kind": "namespaces"},
        ),
        'namespaces "ads" not found', "MLP_NAMESPACE",
    ),
    "old CRDs": (
        Fault(
            status=400, reason="BadRequest",
            message='strict decoding error: unknown field "spec.preRunningDeadlineSeconds", '
            'unknown field "spec.rayClusterSpec.authOptions"',
        ),
        "too old for spec.preRunningDeadlineSeconds, spec.rayClusterSpec.authOptions", "upgraded",
    ),
    "RBAC": (
        Fault(
            status=403, reason="Forbidden",
            message='rayjobs.ray.io is forbidden: User "ann" cannot create resource "rayjobs" in '
            'API group "ray.io" in the namespace "ads"',
        ),
        'User "ann" cannot create resource "rayjobs"', "Role",
    ),
    "webhook": (
        Fault(
            status=403, reason="Forbidden",
            message='admission webhook "rules.example.org" denied the request: no owner',
        ),
        "rules (rules.example.org) refuse this job: no owner", "Change what it names",
    ),
    "policy": (
        Fault(
            status=422, reason="Invalid",
            message="rayjobs.ray.io \"x\" is forbidden: ValidatingAdmissionPolicy 'rules' with "
            "binding 'here' denied request: no owner",
        ),
        "rules (rules) refuse this job: no owner", "Change what it names",
    ),
    "quota": (
        Fault(
            status=403, reason="Forbidden",
            message='rayjobs.ray.io "x" is forbidden: exceeded quota: jobs, requested: '
            "count/rayjobs.ray.io=1, used: count/rayjobs.ray.io=5, limited: count/rayjobs.ray.io=5",
        ),
        "limited: count/rayjobs.ray.io=5", "quota raised",
    ),
    "invalid": (
        Fault(status=422, reason="Invalid", message='RayJob "x" is invalid: spec.suspend: bad'),
        "spec.suspend: bad", "Correct",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(REFUSALS.keys() - {"quota"}))
def test_what_the_server_refuses(backend: KubeRayBackend, kube: FakeKube, kind: str):
    """Case C16: refused at once, in the server's words, with what to do; nothing exists."""
    fault, words, remedy = REFUSALS[kind]
    kube.script("POST", "/rayjobs", fault)
    with pytest.raises(BackendRefused) as caught:
        backend.check(MADE)
    assert words in caught.value.message
    assert remedy in caught.value.remedy
    (asked,) = kube.requests("POST", "/rayjobs")
    assert (asked.query["dryRun"], asked.query["fieldValidation"]) == ("All", "Strict")
    assert stored(kube) == []


@pytest.mark.parametrize("kind", ["no CRDs", "old CRDs"])
def test_a_refused_job_is_not_recorded(
    backend: KubeRayBackend, kube: FakeKube, clock: FakeClock, kind: str
):
    """Case C16: a cluster without KubeRay, or with an old one, is told before there is a job."""
    kube.script("POST", "/rayjobs", REFUSALS[kind][0])
    place = touchy.Place(clock)
    platform = place.platform(backend=backend)
    with pytest.raises(BackendRefused):
        lifecycle.submit(touchy.SPEC, run_key=touchy.KEY, labels={}, platform=platform)
    assert place.store.data == {}
    assert stored(kube) == []


@pytest.mark.parametrize("kind", ["quota", "policy"])
def test_ours_is_found_where_another_could_not_be_made(
    backend: KubeRayBackend, kube: FakeKube, kind: str
):
    """Case B1: a server asks its quotas and rules before the name; the RayJob there is adopted."""
    uid = backend.create(MADE).uid
    kube.script("POST", "/rayjobs", REFUSALS[kind][0])
    assert backend.create(MADE).uid == uid
    assert len(stored(kube)) == 1


def test_a_quota_that_is_used_up_is_waited_for(backend: KubeRayBackend, kube: FakeKube):
    """Case C16: the dry run says so and refuses nothing, since the quota may be freed."""
    kube.script("POST", "/rayjobs", REFUSALS["quota"][0])
    [notice] = backend.check(MADE)
    assert "limited: count/rayjobs.ray.io=5" in notice
    assert notice.endswith("; the job waits for it.")


def test_a_job_that_was_begun_is_not_checked_again(
    backend: KubeRayBackend, kube: FakeKube, clock: FakeClock
):
    """Case B6: rules that came later, or a quota that it fills itself, don't refuse its retry."""
    platform = touchy.Place(clock).platform(backend=backend)
    lifecycle.submit(touchy.SPEC, run_key=touchy.KEY, labels={}, platform=platform)
    kube.script("POST", "/rayjobs", REFUSALS["old CRDs"][0])
    again = lifecycle.submit(touchy.SPEC, run_key=touchy.KEY, labels={}, platform=platform)
    assert again.adopted


def test_a_quota_that_may_be_freed(backend: KubeRayBackend, kube: FakeKube, clock: FakeClock):
    """Case C16: at most one request in 10 s while the quota is used up, then it is created."""
    full = REFUSALS["quota"][0]
    kube.script("POST", "/rayjobs", full, full)
    for _ in range(15):
        with pytest.raises(BackendUnavailable, match="quota"):
            backend.create(MADE)
        clock.sleep(1.0)
    assert len(kube.requests("POST", "/rayjobs")) == 2
    clock.sleep(10.0)
    assert backend.create(MADE).name == NAME


# ── observe ─────────────────────────────────────────────────────────────────────────────────────


def test_looking_costs_no_request(backend: KubeRayBackend, kube: FakeKube):
    """A thousand looks at what did not change: no request, and the very same observation."""
    backend.create(MADE)
    put_recorded(kube, "stopped")
    first = until(backend, lambda seen: len(seen.pods) == 2 and seen.cluster is not None)
    before = len(kube.asked)
    for _ in range(1000):
        assert backend.observe(NAME) is first
    assert len(kube.asked) == before


def test_a_change_is_seen(backend: KubeRayBackend, kube: FakeKube):
    """From the watch, without asking."""
    backend.create(MADE)
    put(kube, jobStatus="RUNNING", jobDeploymentStatus="Failed", reason="DeadlineExceeded")
    seen = until(backend, lambda seen: bool(seen.rayjob and seen.rayjob.reason))
    assert seen.rayjob is not None
    assert seen.rayjob.job_status == "RUNNING"


def test_one_set_of_watches_for_a_namespace(connect: Callable[..., KubeRayBackend], kube: FakeKube):
    """The watches do not grow with the jobs that a process follows."""
    backend = connect(scope="namespace")
    names = []
    for number in range(20):
        made = manifest(f"job-{number}", ["true"])
        names.append(backend.create(made).name)
    for name in names:
        assert backend.observe(name).rayjob is not None
    wall = SystemClock()
    deadline = wall.monotonic() + 10
    while len(watched(kube)) < 3:
        assert wall.monotonic() < deadline
        wall.sleep(0.02)
    assert len(watched(kube)) == 3


def test_a_miss_is_confirmed(backend: KubeRayBackend, kube: FakeKube, clock: FakeClock):
    """Only the server's own answer says that a RayJob is gone, and it is not asked at each look."""
    made = backend.create(MADE)
    until(backend, lambda seen: seen.rayjob is not None)
    backend.delete(NAME, made.uid)
    until(backend, lambda seen: seen.rayjob is None)
    for _ in range(50):
        assert backend.observe(NAME).rayjob is None
        clock.sleep(0.15)
    assert 2 <= len(kube.requests("GET", f"/rayjobs/{NAME}")) <= 8


def test_a_server_that_is_away(backend: KubeRayBackend, kube: FakeKube, clock: FakeClock):
    """Case C14: not seen is not gone: BackendUnavailable, and then the job goes on."""
    backend.create(MADE)
    put(kube, jobStatus="RUNNING", jobDeploymentStatus="Running")
    until(backend, lambda seen: bool(seen.rayjob and seen.rayjob.job_status))
    down = [Fault(status=503)] * 2000
    for method in ("GET", "WATCH"):
        kube.script(method, "/ads/", *down)
    kube.end_streams(how=RESET)
    with pytest.raises(BackendUnavailable, match="has not answered for"):
        look_on(backend, clock)


def look_on(backend: KubeRayBackend, clock: FakeClock) -> None:
    """A loop's looks, for minutes of its time."""
    for _ in range(500):
        backend.observe(NAME)
        clock.sleep(0.5)
        SystemClock().sleep(0.01)


def test_rights_that_are_missing_are_no_missing_job(backend: KubeRayBackend, kube: FakeKube):
    """Case C13: 403 on reading says nothing of the job."""
    kube.script("GET", f"/rayjobs/{NAME}", *[Fault(status=403, reason="Forbidden")] * 20)
    with pytest.raises(BackendUnavailable):
        backend.observe(NAME)


def test_a_job_whose_label_was_taken_off_is_not_gone(
    backend: KubeRayBackend, kube: FakeKube, clock: FakeClock
):
    """The watch by label says that it is gone, and the server that it is there: it is."""
    backend.create(MADE)
    until(backend, lambda seen: seen.rayjob is not None)
    kube.objects.patch(JOB, {"metadata": {"labels": {RUN_KEY_LABEL: None}}})
    jobs = backend._watches.of(rayjob.run_key(MADE)).rayjobs
    wall = SystemClock()
    deadline = wall.monotonic() + 10.0
    while jobs.get(NAME) is not None:
        assert wall.monotonic() < deadline
        wall.sleep(0.02)
    for _ in range(20):
        assert backend.observe(NAME).rayjob is not None
        clock.sleep(0.5)


def test_a_head_that_seems_gone_is_asked_about(backend: KubeRayBackend, kube: FakeKube):
    """Watches of two kinds tell in any order: a queue's eviction is no lost head."""
    backend.create(MADE)
    put_recorded(kube, "headdel")
    until(backend, lambda seen: seen.cluster is not None and len(seen.pods) == 1)
    for _ in range(50):
        backend.observe(NAME)
    # Once for what the watches told, of which some may have come after the first look; not a look.
    assert 1 <= len(kube.requests("GET", f"/rayjobs/{NAME}")) <= 3


def test_the_operator_is_made_to_look_when_the_driver_has_ended(
    backend: KubeRayBackend, kube: FakeKube, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
):
    """It asks Ray each 3 s; a change of the RayJob makes it ask at once. At most three times."""
    backend.create(MADE)
    put(kube, jobDeploymentStatus="Running", jobStatus="RUNNING")
    until(backend, lambda seen: seen.rayjob is not None and seen.rayjob.job_status == "RUNNING")
    backend.observe(NAME)
    assert kube.requests("PATCH") == []
    monkeypatch.setattr(backend._logs, "driver_ended", lambda _: True)
    for _ in range(20):
        backend.observe(NAME)
        clock.sleep(0.1)
    asked = kube.requests("PATCH", f"/rayjobs/{NAME}")
    assert len(asked) == 3
    assert ANNOTATION in stored(kube)[0]["metadata"]["annotations"]
    put(kube, jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")
    until(backend, lambda seen: seen.rayjob is not None and seen.rayjob.job_status == "SUCCEEDED")
    clock.sleep(10)
    backend.observe(NAME)
    assert len(kube.requests("PATCH")) == 3


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_nudge_that_fails_changes_nothing(
    backend: KubeRayBackend, kube: FakeKube, clock: FakeClock, monkeypatch: pytest.MonkeyPatch,
    status: int,
):  # fmt: skip
    """Where the Role is an older one it is left to the operator."""
    backend.create(MADE)
    put(kube, jobDeploymentStatus="Running", jobStatus="RUNNING")
    until(backend, lambda seen: seen.rayjob is not None and seen.rayjob.job_status == "RUNNING")
    monkeypatch.setattr(backend._logs, "driver_ended", lambda _: True)
    kube.script("PATCH", f"/rayjobs/{NAME}", *[Fault(status=status, reason="Forbidden")] * 9)
    for _ in range(20):
        assert backend.observe(NAME).rayjob is not None
        clock.sleep(0.1)
    assert len(kube.requests("PATCH")) == (1 if status == 403 else 3)


def test_events_are_asked_for_while_something_is_pending(
    backend: KubeRayBackend, kube: FakeKube, clock: FakeClock
):
    """By their object, once in 10 s, from 4 s on; none where all is well."""
    backend.create(MADE)
    put_recorded(kube, "pending_secretvolume")
    until(backend, lambda seen: len(seen.pods) == 2 and seen.cluster is not None)
    assert kube.requests("GET", "/events") == []
    clock.sleep(FIRST_EVENTS_S)
    for _ in range(100):
        backend.observe(NAME)
    asked = kube.requests("GET", "/events")
    assert {one.query["fieldSelector"].partition("=")[0] for one in asked} == {"involvedObject.uid"}
    assert len(asked) == 3
    clock.sleep(EVENTS_EVERY_S)
    backend.observe(NAME)
    assert len(kube.requests("GET", "/events")) == 6


def test_nodes_that_may_not_be_read(backend: KubeRayBackend, kube: FakeKube):
    """The pods' own labels serve then, and it is asked once."""
    kube.script("GET", "/nodes/", Fault(status=403, reason="Forbidden"))
    backend.create(MADE)
    put_recorded(kube, "stopped")
    seen = until(backend, lambda seen: len(seen.pods) == 2)
    assert {pod.spot for pod in seen.pods} == {False}
    assert len(kube.requests("GET", "/nodes/")) == 1


def test_a_clock_that_is_wrong(backend: KubeRayBackend, kube: FakeKube, clock: FakeClock):
    """Clock skew: how far ours is from the server's is known; durations use the server's times."""
    kube.skew = timedelta(hours=-3)
    kube.objects.put(path_of("selfsubjectreviews", "", "x"), {})
    backend.create(MADE)
    seen = backend.observe(NAME)
    told = seen.rayjob.created_at if seen.rayjob else None
    assert told is not None
    assert abs((clock.now() - told).total_seconds() - seen.skew_s) < 5


def test_a_clock_that_could_not_be_asked_for(
    backend: KubeRayBackend, kube: FakeKube, clock: FakeClock
):
    """One failed request is not taken for a right clock: it is asked for again, not at each look."""
    kube.skew = timedelta(hours=-3)
    kube.objects.put(path_of("selfsubjectreviews", "", "x"), {})
    kube.script("POST", "selfsubjectreviews", Fault(status=403, reason="Forbidden"))
    skew = backend._skew
    assert [skew.seconds() for _ in range(3)] == [0.0] * 3
    assert len(kube.requests("POST", "selfsubjectreviews")) == 1
    clock.sleep(SKEW_AGAIN_S)
    assert skew.seconds() != 0
    assert skew.seconds() != 0
    assert len(kube.requests("POST", "selfsubjectreviews")) == 2


def test_no_pending_job_of_many_is_left_out(
    backend: KubeRayBackend, kube: FakeKube, clock: FakeClock
):
    """In turn, one job a second, though the same ones are looked at first in each round."""
    events = backend._events
    names = [f"job-{number}" for number in range(25)]
    waiting = {
        name: Seen({"metadata": {"uid": name}, "status": {"jobDeploymentStatus": "Initializing"}})
        for name in [*names, "left"]
    }
    asked: Counter[str] = Counter()
    events.due("left", waiting["left"])  # whoever followed it doesn't any more
    for _ in range(120):
        clock.sleep(1.0)
        for name in names:
            if events.due(name, waiting[name]):
                events.ask(name, waiting[name])
                asked[name] += 1
    assert 110 <= sum(asked.values()) <= 120
    assert sorted(asked) == sorted(names)
    assert max(asked.values()) - min(asked.values()) <= 1


# ── the rest ────────────────────────────────────────────────────────────────────────────────────


def test_delete_names_its_uid(backend: KubeRayBackend, kube: FakeKube):
    """Case E11: in the background, with the uid; 404 is no error, and 500 is tried again."""
    made = backend.create(MADE)
    kube.script("DELETE", "/rayjobs", Fault(status=500))
    backend.delete(NAME, made.uid)
    asked = kube.requests("DELETE", "/rayjobs")[-1]
    assert asked.body["propagationPolicy"] == "Background"
    assert asked.body["preconditions"] == {"uid": made.uid}
    backend.delete(NAME, made.uid)


def test_a_list_by_labels(backend: KubeRayBackend, kube: FakeKube):
    """Label selectors, and all pages."""
    for number in range(7):
        backend.create(manifest(f"job-{number}", ["true"]))
    kube.objects.put(path_of("rayjobs", "ads", "theirs"), {"spec": {}})
    assert len(backend.list({})) == 7
    assert [view.name for view in backend.list({RUN_KEY_LABEL: "job-3"})] == ["job-3-a1"]
    assert backend.list({RUN_KEY_LABEL: "job-3", "a": "b"}) == []


def test_stop_through_the_proxy(backend: KubeRayBackend, kube: FakeKube):
    """Case I5: to the head's service by the name its status says, with Ray's own token."""
    backend.create(MADE)
    put(kube, jobId="id-1", rayClusterName="c1", jobDeploymentStatus="Running")
    kube.objects.put(
        path_of("rayclusters", "ads", "c1"), {"status": {"head": {"serviceName": "odd-svc"}}}
    )
    kube.objects.put(path_of("secrets", "ads", "c1"), {"data": {"auth_token": "dG9rZW4="}})
    asked = []

    def answer(request: Asked) -> tuple[int, bytes]:
        asked.append(request)
        return 200, b'{"stopped": true}'

    kube.route(path_of("services", "ads", "odd-svc:dashboard", "proxy"), answer)
    backend.stop(NAME)
    (request,) = asked
    assert request.path.endswith("/proxy/api/jobs/id-1/stop")
    assert request.headers["X-Ray-Authorization"] == "Bearer token"
    put(kube, jobId="id-1", rayClusterName="c1", jobDeploymentStatus="Complete")
    backend.stop(NAME)
    assert len(asked) == 1


def test_stop_without_its_rights_says_so(backend: KubeRayBackend, kube: FakeKube):
    """Our Role leaves them out, and deletion needs none of them."""
    backend.create(MADE)
    put(kube, jobId="id-1", rayClusterName="c1", jobDeploymentStatus="Running")
    kube.objects.put(
        path_of("rayclusters", "ads", "c1"), {"status": {"head": {"serviceName": "odd-svc"}}}
    )
    kube.script("POST", "/proxy/", Fault(status=403, reason="Forbidden"))
    with pytest.raises(BackendRefused, match="which the Role of deploy/base leaves out") as caught:
        backend.stop(NAME)
    assert "mlp job cancel" in str(caught.value.remedy)


def test_close_ends_all_watches(connect: Callable[..., KubeRayBackend], kube: FakeKube):
    """No thread and no connection is left."""
    import threading

    with closing(connect()) as backend:
        backend.observe(NAME)
        assert any("watch" in one.name for one in threading.enumerate())
    assert not any("watch /apis" in one.name for one in threading.enumerate())


def test_a_quota_that_stays_full_is_no_mistake(
    backend: KubeRayBackend, kube: FakeKube, clock: FakeClock
):
    """Case C16: after all the patience there is, it is room that lacks, and nothing is wrong."""
    full = REFUSALS["quota"][0]
    kube.script("POST", "/rayjobs", full, full)
    with pytest.raises(BackendUnavailable, match="quota"):
        backend.create(MADE)
    clock.sleep(QUOTA_PATIENCE_S)
    with pytest.raises(QuotaUsedUp, match="limited: count"):
        backend.create(MADE)


def test_a_head_that_is_not_ready_is_asked_for(
    backend: KubeRayBackend, kube: FakeKube, clock: FakeClock
):
    """Case C14: a watch that fell silent must not lose a head that is ready again."""
    backend.create(MADE)
    put_recorded(kube, "workerdel")
    put(kube, jobStatus="RUNNING", jobDeploymentStatus="Running", rayClusterName=f"{NAME}-abcde")
    head = path_of("pods", "ads", f"{NAME}-head")
    labels = {
        **MADE["metadata"]["labels"],
        "ray.io/node-type": "head",
        "ray.io/cluster": f"{NAME}-abcde",
    }

    def stands(ready: str) -> None:
        conditions = [{"type": "Ready", "status": ready}]
        kube.objects.put(
            head, {"metadata": {"labels": labels}, "status": {"conditions": conditions}}
        )

    stands("False")
    until(backend, lambda seen: any(one.name == f"{NAME}-head" for one in seen.pods))
    before = len(kube.requests("GET", head))
    for _ in range(60):
        backend.observe(NAME)
        clock.sleep(1.0)
    assert 2 <= len(kube.requests("GET", head)) - before <= 3
