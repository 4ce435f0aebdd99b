"""Requests to an API server that fails in every way it can, over real connections."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from ml_pipelines.backends.kubeapi import (
    Api,
    KubeAlreadyExists,
    KubeError,
    KubeForbidden,
    KubeInvalid,
    KubeNotFound,
    KubeUnavailable,
    connect,
    path_of,
)
from ml_pipelines.backends.kubeapi.login import find
from ml_pipelines.backends.kubeapi.retries import Limits
from ml_pipelines.clock import FakeClock
from ml_pipelines_tests.fake_kube import END, RESET, FakeKube, Fault

JOBS = path_of("rayjobs", "ads")
JOB = path_of("rayjobs", "ads", "train")
LOG = path_of("pods", "ads", "head", "log")
QUICK = Limits(connect_s=0.5, read_s=0.15, write_s=0.15, list_s=0.15)


@pytest.fixture
def kube() -> Iterator[FakeKube]:
    """A fake API server with one job and one pod's log."""
    with FakeKube() as server:
        server.objects.put(JOB, {"spec": {"suspend": False}})
        server.log("ads", "head", "log").write(b"one\n")
        yield server


@pytest.fixture
def api(kube: FakeKube, clock: FakeClock, tmp_path: Path) -> Iterator[Api]:
    """Connected to it; waits between tries take no time, but are counted."""
    config = {"KUBECONFIG": str(kube.kubeconfig(tmp_path))}
    connected = Api(find("", "", config), clock=clock, limits=QUICK)
    yield connected
    connected.close()


def _read_log(api: Api) -> bytes:
    with api.stream(LOG, query={"container": "log"}, read_timeout_s=1.0) as chunks:
        return b"".join(chunks)


VERBS: dict[str, tuple[str, str, Callable[[Api], object]]] = {
    "get": ("GET", JOB, lambda api: api.get(JOB)),
    "list": ("GET", JOBS, lambda api: api.list(JOBS)),
    "create": ("POST", JOBS, lambda api: api.create(JOBS, {"metadata": {"name": "new"}})),
    "patch": ("PATCH", JOB, lambda api: api.patch(JOB, {"spec": {"suspend": True}})),
    "delete": ("DELETE", JOB, lambda api: api.delete(JOB)),
    "log": ("GET", LOG, _read_log),
}
FAULTS = {
    "etcd timed out": Fault(500, "InternalError", "etcdserver: request timed out"),
    "bad gateway": Fault(502, body=b"<html>Bad Gateway</html>"),
    "unavailable": Fault(503, "ServiceUnavailable"),
    "reset": Fault(reset=True),
    "closed": Fault(end=True),
    "silence": Fault(hang_s=0.3),
    "request timed out": Fault(408),
}


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_temporary_fault_is_survived(
    kube: FakeKube, api: Api, verb: str, fault: str, times: int
) -> None:
    """Case C14: each verb and fault, once and five times in a row; done once, and no more."""
    method, path, call = VERBS[verb]
    kube.script(method, path, *[FAULTS[fault]] * times)
    call(api)
    assert len(kube.requests(method)) == times + 1
    assert (kube.objects.get(f"{JOBS}/new") is not None) == (verb == "create")
    assert (kube.objects.get(JOB) is None) == (verb == "delete")


def test_waits_between_tries_grow_and_end_with_the_budget(
    kube: FakeKube, api: Api, clock: FakeClock
) -> None:
    """Case C14: a server that stays away is given up after the budget, in words that name it."""
    kube.script("GET", JOB, *[Fault(503, "ServiceUnavailable", "try later")] * 100)
    with pytest.raises(KubeUnavailable) as caught:
        api.get(JOB)
    assert 10 < clock.elapsed <= QUICK.budget_s
    assert 6 <= len(kube.requests("GET")) <= 20
    for word in ("try later", kube.url, "'fake'", "'ads'", f"GET {JOB}", "503"):
        assert word in str(caught.value)


def test_a_budget_of_nothing_is_one_try(kube: FakeKube, api: Api) -> None:
    """Whoever repeats by itself asks once."""
    kube.script("GET", JOB, Fault(503))
    with pytest.raises(KubeUnavailable):
        api.get(JOB, budget_s=0.0)
    assert len(kube.requests()) == 1


@pytest.mark.parametrize(
    "lost",
    [
        Fault(reset=True, store=True),
        Fault(504, "Timeout", store=True),
        Fault(hang_s=0.3, store=True),
    ],
    ids=["reset", "504", "hang"],
)
def test_a_create_whose_answer_was_lost_is_told_as_taken(
    kube: FakeKube, api: Api, lost: Fault
) -> None:
    """Case B1: one object only, and whoever created it can look whether it is his own."""
    kube.script("POST", JOBS, lost)
    with pytest.raises(KubeAlreadyExists, match='rayjobs "new" already exists'):
        api.create(JOBS, {"metadata": {"name": "new"}})
    assert len(api.list(JOBS).items) == 2


def test_a_conflict_that_is_no_namesake_is_tried_again(kube: FakeKube, api: Api) -> None:
    """Case B4: 409 by a quota's admission, twice, and then it is created, once."""
    kube.script("POST", JOBS, *[Fault(409, "Conflict", "resourcequota was modified")] * 2)
    assert api.create(JOBS, {"metadata": {"name": "new"}})["metadata"]["uid"]
    assert len(kube.requests("POST")) == 3


@pytest.mark.parametrize("verb", ["get", "create", "delete", "log"])
def test_retry_after_is_waited_for(kube: FakeKube, api: Api, clock: FakeClock, verb: str) -> None:
    """Case C15: 429 with Retry-After 3: at least 3 s, and nothing done twice."""
    method, path, call = VERBS[verb]
    kube.script(method, path, Fault(429, "TooManyRequests", headers={"Retry-After": "3"}))
    call(api)
    assert 3 <= clock.elapsed < 4
    assert len(kube.requests(method)) == 2


def test_an_absurd_retry_after_is_capped(kube: FakeKube, api: Api, clock: FakeClock) -> None:
    """Case C15: an hour is not waited for."""
    kube.script("GET", JOB, Fault(429, headers={"Retry-After": "3600"}))
    api.get(JOB)
    assert clock.elapsed < 21


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(403, "Forbidden", "exceeded quota: gpus, requested: 4, used: 8"), KubeForbidden),
        (Fault(403, "Forbidden", 'User "x" cannot create rayjobs'), KubeForbidden),
        (Fault(422, "Invalid", "spec.entrypoint: Required value"), KubeInvalid),
        (Fault(400, "BadRequest", 'admission webhook "x" denied the request'), KubeInvalid),
        (Fault(404, "NotFound", "the server could not find the requested resource"), KubeNotFound),
    ],
    ids=["quota", "rbac", "422", "webhook", "no kind"],
)
def test_a_permanent_refusal_fails_at_once_in_the_servers_words(
    kube: FakeKube, api: Api, fault: Fault, kind: type[KubeError]
) -> None:
    """Case C16: one request, and its message."""
    kube.script("POST", JOBS, fault)
    with pytest.raises(kind) as caught:
        api.create(JOBS, {"metadata": {"name": "new"}})
    assert fault.message in str(caught.value)
    assert caught.value.said == fault.message
    assert len(kube.requests("POST")) == 1


def test_a_group_that_is_not_installed_is_told_as_such(kube: FakeKube, api: Api) -> None:
    """Case I8: a missing CRD is not a missing object, also for a deletion."""
    kube.absent.add("ray.io")
    for call in (lambda: api.list(JOBS), lambda: api.delete(JOB)):
        with pytest.raises(KubeNotFound) as caught:
            call()
        assert caught.value.kind_missing


def test_deleting_names_its_terms_and_leaves_namesakes_alone(kube: FakeKube, api: Api) -> None:
    """Case E11: in the background, never orphaning, only that uid; a missing object is no error."""
    assert not api.delete(JOB, uid="another")
    uid = api.get(JOB)["metadata"]["uid"]
    assert api.delete(JOB, uid=uid, grace_s=5)
    options = kube.requests("DELETE")[-1].body
    assert options["propagationPolicy"] == "Background"
    assert options["preconditions"] == {"uid": uid}
    assert options["gracePeriodSeconds"] == 5
    assert not api.delete(JOB, uid=uid)


def test_a_dry_run_is_validated_strictly_and_stores_nothing(kube: FakeKube, api: Api) -> None:
    """`--dry-run` asks the server, and leaves it as it was."""
    api.create(JOBS, {"metadata": {"name": "new"}}, dry_run=True)
    query = kube.requests("POST")[0].query
    assert query == {"fieldValidation": "Strict", "dryRun": "All"}
    assert len(api.list(JOBS).items) == 1


def test_a_long_list_comes_in_pages_and_starts_over_when_its_moment_is_gone(
    kube: FakeKube, api: Api
) -> None:
    """Case C10: 410 in the middle of a list; every object once."""
    for i in range(600):
        kube.objects.put(f"{JOBS}/j{i:03}", {"metadata": {"labels": {"team": "ads"}}})
    pages = len(kube.requests("GET"))
    assert len(api.list(JOBS, labels="team=ads").items) == 600
    assert len(kube.requests("GET")) - pages == 3
    kube.script("GET", JOBS, Fault(410, "Expired"))
    names = [item["metadata"]["name"] for item in api.list(JOBS).items]
    assert len(names) == len(set(names)) == 601


def test_an_answer_that_is_no_object_is_quoted(kube: FakeKube, api: Api) -> None:
    """A login page in front of the server answers 200 to everything."""
    kube.script("GET", JOB, Fault(200, body=b"<html>Please log in</html>"))
    with pytest.raises(KubeUnavailable, match="Please log in"):
        api.get(JOB)


def test_a_server_whose_clock_is_off_is_no_matter(kube: FakeKube, api: Api) -> None:
    """Neither its Date nor its timestamps are compared with our clock."""
    kube.skew = timedelta(days=-400)
    api.create(JOBS, {"metadata": {"name": "new"}})
    assert api.get(f"{JOBS}/new")["metadata"]["creationTimestamp"] < "2026"


def test_a_log_comes_byte_for_byte_and_ends_cleanly(kube: FakeKube, api: Api) -> None:
    """Cases D1, D7: half a glyph in a chunk stays half a glyph."""
    glyph = "█".encode()
    log = kube.log("ads", "head", "log")
    log.write(glyph[:1])
    log.write(glyph[1:] + b"\xe2\xff no newline")
    assert _read_log(api) == b"one\n" + glyph + b"\xe2\xff no newline"


def test_a_stream_that_breaks_is_told_from_one_that_ends(kube: FakeKube, api: Api) -> None:
    """Case D1: a clean end is an end, a reset or half an answer is an error."""
    query = {"container": "log", "follow": "true"}
    with api.stream(LOG, query=query, read_timeout_s=5.0) as chunks:
        assert next(chunks) == b"one\n"
        kube.end_streams(how=END)
        assert list(chunks) == []
    with api.stream(LOG, query=query, read_timeout_s=5.0) as chunks:
        assert next(chunks) == b"one\n"
        kube.end_streams(how=RESET)
        with pytest.raises(KubeUnavailable, match="broke"):
            next(chunks)


def test_a_stream_that_falls_silent_is_given_up(kube: FakeKube, api: Api) -> None:
    """Case C11: headers, some bytes, then nothing, with the socket open."""
    query = {"container": "log", "follow": "true"}
    with api.stream(LOG, query=query, read_timeout_s=0.3) as chunks:
        assert next(chunks) == b"one\n"
        with pytest.raises(KubeUnavailable, match=r"nothing came for 0\.3 s"):
            next(chunks)


def test_a_silent_stream_can_be_ended_from_another_thread(kube: FakeKube, api: Api) -> None:
    """Whoever stops following need not wait for the silence to end."""
    query = {"container": "log", "follow": "true"}
    with api.stream(LOG, query=query, read_timeout_s=60.0) as chunks:
        assert next(chunks) == b"one\n"
        began = time.monotonic()
        threading.Timer(0.1, chunks.abort).start()
        assert list(chunks) == []
        assert time.monotonic() - began < 5


def test_fifty_jobs_with_watch_and_log_all_go_on_and_leave_nothing(
    kube: FakeKube, api: Api
) -> None:
    """Case C12: a hundred streams and requests beside them; files and threads back to the base."""
    base = _open_files(), threading.active_count()
    seen: list[bytes] = []
    ready = threading.Barrier(101, timeout=30)

    def follow(path: str, query: dict[str, str]) -> None:
        with api.stream(path, query=query, read_timeout_s=30.0) as chunks:
            seen.append(next(chunks))
            ready.wait()
            seen.extend(chunks)

    streams = [(LOG, {"container": "log", "follow": "true"}), (JOBS, {"watch": "1"})] * 50
    threads = [threading.Thread(target=follow, args=one) for one in streams]
    for thread in threads:
        thread.start()
    ready.wait()
    assert api.get(JOB)
    assert len(kube.streams) == 100
    kube.end_streams()
    for thread in threads:
        thread.join(30)
    assert len(seen) >= 100
    assert kube.most_connections <= 102
    api.close()
    _wait_for(lambda: (_open_files(), threading.active_count()) <= base)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_connecting_sends_nothing(kube: FakeKube, clock: FakeClock, tmp_path: Path) -> None:
    """A code location loads while its cluster is away."""
    environ = {"KUBECONFIG": str(kube.kubeconfig(tmp_path))}
    api = connect(clock=clock, environ=environ)
    assert (api.context, api.namespace, api.server) == ("fake", "ads", kube.url)
    assert not kube.asked
