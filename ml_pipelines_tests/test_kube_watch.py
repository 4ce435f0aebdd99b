"""The shared list-watch, over every way a watch can go wrong."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from ml_pipelines.backends.kubeapi import Api, Reflector, path_of
from ml_pipelines.backends.kubeapi.login import find
from ml_pipelines.backends.kubeapi.reflector import Pace
from ml_pipelines.backends.kubeapi.retries import Limits
from ml_pipelines.backends.kubeapi.store import ObjectStore, prune
from ml_pipelines.clock import SystemClock
from ml_pipelines.errors import BackendUnavailable
from ml_pipelines_tests.fake_kube import END, RESET, FakeKube, Fault

JOBS = path_of("rayjobs", "ads")
JOB = path_of("rayjobs", "ads", "train")
QUICK = Pace(
    silence_s=0.6, lived_s=0.2, first_wait_s=0.02, longest_wait_s=0.2, refused_wait_s=0.2,
    grace_s=0.3,
)  # fmt: skip


@pytest.fixture
def kube() -> Iterator[FakeKube]:
    """A fake API server with one running job."""
    with FakeKube() as server:
        server.objects.put(JOB, _status("RUNNING"))
        yield server


@pytest.fixture
def api(kube: FakeKube, tmp_path: Path) -> Iterator[Api]:
    """Connected to it, in real but short time."""
    environ = {"KUBECONFIG": str(kube.kubeconfig(tmp_path))}
    limits = Limits(connect_s=0.5, read_s=0.5, list_s=0.5, budget_s=1.0)
    connected = Api(find("", "", environ), clock=SystemClock(), limits=limits)
    yield connected
    connected.close()


class Watched:
    """A reflector of the jobs, with every state that its job was ever seen in."""

    def __init__(self, api: Api, **options: Any) -> None:
        self.states: list[str] = []
        self.reflector = Reflector(
            api, JOBS, on_change=self._look, pace=options.pop("pace", QUICK), **options
        )

    def _look(self) -> None:
        self.states.append(self.state)

    @property
    def state(self) -> str:
        """The job's state as held now; empty where there is no job."""
        job = self.reflector.get("train")
        return str(job["status"]["jobStatus"]) if job else ""

    def __enter__(self) -> Self:
        self.reflector.start()
        assert self.reflector.synced(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.reflector.stop()


def test_a_watch_sees_create_modify_and_delete(kube: FakeKube, api: Api) -> None:
    """Each change is seen once and at once, by one list and one watch."""
    with Watched(api) as seen:
        other = f"{JOBS}/other"
        kube.objects.put(other, {})
        kube.objects.put(JOB, _status("SUCCEEDED"))
        _until(lambda: seen.state == "SUCCEEDED" and seen.reflector.get("other") is not None)
        kube.objects.remove(other)
        _until(lambda: seen.reflector.get("other") is None)
        assert seen.reflector.changed() == 4
        assert len(kube.asked) == 2
        seen.reflector.fresh()


def test_labels_choose_what_is_watched(kube: FakeKube, api: Api) -> None:
    """An object that no longer fits is gone, one that comes to fit appears."""
    with Watched(api, labels="team=ads") as seen:
        assert seen.reflector.items() == []
        kube.objects.patch(JOB, {"metadata": {"labels": {"team": "ads"}}})
        _until(lambda: seen.state == "RUNNING")
        kube.objects.patch(JOB, {"metadata": {"labels": {"team": "other"}}})
        _until(lambda: seen.state == "")


@pytest.mark.parametrize("how", [END, RESET])
def test_an_ended_watch_goes_on_where_it_was(kube: FakeKube, api: Api, how: str) -> None:
    """What happened between two watches is not missed, and nothing is listed again."""
    with Watched(api) as seen:
        _until(lambda: len(kube.streams) == 1)
        kube.end_streams(how=how)
        kube.objects.put(JOB, _status("SUCCEEDED"))
        _until(lambda: seen.state == "SUCCEEDED")
        assert len(_lists(kube)) == 1
        assert seen.states == ["RUNNING", "SUCCEEDED"]


def test_bookmarks_keep_the_place_though_nothing_of_ours_changes(kube: FakeKube, api: Api) -> None:
    """Case C10: others' changes and a compaction pass by, and no list is needed."""
    with Watched(api) as seen:
        for i in range(20):
            kube.objects.put(f"/api/v1/namespaces/ads/pods/p{i}", {})
        latest = kube.objects.number
        _until(lambda: int(seen.reflector._store.place) >= latest)
        kube.objects.compact()
        _until(lambda: int(seen.reflector._store.place) >= kube.objects.compacted)
        kube.end_streams()
        kube.objects.put(JOB, _status("SUCCEEDED"))
        _until(lambda: seen.state == "SUCCEEDED")
        assert len(_lists(kube)) == 1


def test_a_place_that_is_gone_is_listed_anew(kube: FakeKube, api: Api) -> None:
    """Case C10: 410 as the answer's status."""
    with Watched(api) as seen:
        _until(lambda: len(kube.streams) == 1)
        kube.script("WATCH", JOBS, Fault(410, "Expired", "too old resource version"))
        kube.end_streams(how=RESET)
        kube.objects.put(JOB, _status("SUCCEEDED"))
        _until(lambda: seen.state == "SUCCEEDED")
        assert len(_lists(kube)) == 2
        assert seen.states == ["RUNNING", "SUCCEEDED"]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}},
        {"type": "ERROR", "object": None},
        {"type": "ERROR"},
        b'{"type": "MODIFIED", "object": {"metada\n',
        b"[1]\n",
    ],
    ids=["410", "no object", "no field", "half a line", "no event"],
)
def test_an_error_in_the_stream_is_recovered_from(kube: FakeKube, api: Api, event: Any) -> None:
    """Case C10: 410 in the stream, an ERROR event that says nothing, a line that is none."""
    with Watched(api) as seen:
        _until(lambda: len(kube.streams) == 1)
        kube.inject(event)
        kube.objects.put(JOB, _status("SUCCEEDED"))
        _until(lambda: seen.state == "SUCCEEDED")
        assert seen.states == ["RUNNING", "SUCCEEDED"]


@pytest.mark.parametrize("fault", [Fault(410, "Expired"), Fault(500), Fault(403, "Forbidden")])
def test_a_watch_that_always_fails_is_no_tight_loop(kube: FakeKube, api: Api, fault: Fault) -> None:
    """Case C10: the waits grow; a refusal is asked about even less often."""
    kube.script("WATCH", JOBS, *[fault] * 1000)
    with Watched(api):
        time.sleep(1.5)
        assert 2 <= len(_watches(kube)) < 30
        assert len(_lists(kube)) < 30


def test_a_watch_that_always_ends_at_once_is_no_tight_loop(kube: FakeKube, api: Api) -> None:
    """A proxy that cuts every answer short must not be asked in a loop."""
    with Watched(api) as seen:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            kube.end_streams()
            time.sleep(0.001)
        assert len(_watches(kube)) < 40
        assert seen.state == "RUNNING"


def test_a_watch_that_falls_silent_is_opened_again(kube: FakeKube, api: Api) -> None:
    """Case C11: the socket stays open, no bookmark comes: noticed within interval plus margin."""
    with Watched(api) as seen:
        _until(lambda: len(kube.streams) == 1)
        kube.silence_streams()
        kube.objects.put(JOB, _status("SUCCEEDED"))
        time.sleep(0.1)
        assert seen.state == "RUNNING"
        _until(lambda: seen.state == "SUCCEEDED")
        assert len(_lists(kube)) == 1


def test_a_black_hole_is_noticed(kube: FakeKube, api: Api) -> None:
    """Case C11: the server takes the request and never begins to answer."""
    with Watched(api) as seen:
        _until(lambda: len(kube.streams) == 1)
        kube.script("WATCH", JOBS, *[Fault(hang_s=30)] * 2)
        kube.end_streams(how=RESET)
        kube.objects.put(JOB, _status("SUCCEEDED"))
        _until(lambda: seen.state == "SUCCEEDED")


def test_stale_and_repeated_events_change_nothing(kube: FakeKube, api: Api) -> None:
    """Case C10: old events replayed after newer ones: no state is told twice, none goes back."""
    old = kube.objects.get(JOB)
    with Watched(api) as seen:
        kube.objects.put(JOB, _status("SUCCEEDED"))
        _until(lambda: seen.state == "SUCCEEDED")
        new = kube.objects.get(JOB)
        kube.inject({"type": "MODIFIED", "object": old})
        kube.inject({"type": "MODIFIED", "object": new})
        kube.inject({"type": "DELETED", "object": old})
        kube.inject({"type": "FROBNICATED", "object": {}})
        kube.objects.put(f"{JOBS}/marker", {})
        _until(lambda: seen.reflector.get("marker") is not None)
        assert seen.states == ["RUNNING", "SUCCEEDED", "SUCCEEDED"]
        assert len(_lists(kube)) == 1


def test_a_token_that_expires_does_not_end_the_watch(
    kube: FakeKube, api: Api, tmp_path: Path
) -> None:
    """Case C13: three times; the credentials are read anew each time."""
    with Watched(api) as seen:
        for number in range(3):
            _until(lambda: len(kube.streams) == 1)
            kube.kubeconfig(tmp_path, token=f"t{number}")
            kube.tokens = {f"t{number}"}
            kube.end_streams(how=RESET)
            kube.objects.put(JOB, _status(f"S{number}"))
            _until(lambda n=number: seen.state == f"S{n}")  # type: ignore[misc]


def test_a_server_that_went_away_is_told_and_its_return_is_noticed(
    kube: FakeKube, api: Api
) -> None:
    """Not at the first blip, but soon, and in words; what was seen stays; then it goes on."""
    with Watched(api) as seen:
        _until(lambda: len(kube.streams) == 1)
        for method in ("WATCH", "GET"):
            kube.script(method, JOBS, *[Fault(503, "ServiceUnavailable", "shutting down")] * 5)
        kube.end_streams(how=RESET)
        _until(lambda: seen.reflector.error is not None)
        seen.reflector.fresh()
        _until(lambda: _stale(seen.reflector))
        with pytest.raises(BackendUnavailable, match=r"has not answered for .*shutting down"):
            seen.reflector.fresh()
        assert seen.state == "RUNNING"
        _until(lambda: not _stale(seen.reflector))


def test_before_the_first_list_nothing_is_fresh(kube: FakeKube, api: Api) -> None:
    """What was never seen is not taken for absent."""
    kube.script("GET", JOBS, *[Fault(403, "Forbidden", "cannot list rayjobs")] * 3)
    reflector = Reflector(api, JOBS, pace=QUICK)
    with pytest.raises(BackendUnavailable):
        reflector.fresh()
    reflector.start()
    _until(lambda: reflector.error is not None)
    with pytest.raises(BackendUnavailable, match="cannot list rayjobs"):
        reflector.fresh()
    assert not reflector.synced(0.0)
    assert reflector.synced(10)
    reflector.fresh()
    reflector.stop()


def test_what_we_created_ourselves_is_there_at_once_and_never_goes_back(
    kube: FakeKube, api: Api
) -> None:
    """`put` stands until the watch tells more; the watch's older news of it change nothing."""
    with Watched(api) as seen:
        kube.silent = True
        seen.reflector.put(api.create(JOBS, {"metadata": {"name": "new"}}))
        assert seen.reflector.get("new") is not None
        kube.silent = False
        kube.objects.remove(f"{JOBS}/new")
        _until(lambda: seen.reflector.get("new") is None)


def test_stopping_is_prompt_and_leaves_nothing(kube: FakeKube, api: Api) -> None:
    """Twenty silent watches end in a moment; threads and files are back to the base."""
    base = threading.active_count(), _open_files()
    kube.silent = True
    reflectors = [Reflector(api, JOBS) for _ in range(20)]
    for reflector in reflectors:
        reflector.start()
    assert all(reflector.synced(10) for reflector in reflectors)
    _until(lambda: len(kube.streams) == 20)
    began = time.monotonic()
    for reflector in reflectors:
        reflector.stop()
    assert time.monotonic() - began < 5
    api.close()
    kube.silent = False
    kube.end_streams()
    _until(lambda: (threading.active_count(), _open_files()) <= base)


def test_an_older_list_is_not_believed_until_it_persists() -> None:
    """A replica that lags is asked again; a server that was set back is believed in the end."""
    store = ObjectStore(prune)
    store.replace([_job("b", 20)], "20")
    assert store.behind("10")
    assert not store.behind("20")
    assert not store.behind("opaque")


def test_a_list_that_began_before_our_own_create_does_not_undo_it() -> None:
    """The answer may be of a moment before it."""
    store = ObjectStore(prune)
    store.put(_job("before", 5))
    store.listing()
    store.put(_job("meanwhile", 11))
    store.replace([], "10")
    assert [job["metadata"]["name"] for job in store.items()] == ["meanwhile"]


def test_an_answer_that_comes_after_the_end_brings_nothing_back() -> None:
    """The watch told of the deletion before our own create's answer was put."""
    store = ObjectStore(prune)
    store.replace([], "10")
    store.apply("ADDED", _job("a", 11))
    store.apply("DELETED", _job("a", 12))
    store.put(_job("a", 11))
    assert store.get("a") is None
    store.put(_job("a", 13, uid="next"))
    assert store.get("a") is not None


def test_a_list_younger_than_what_was_put_is_believed() -> None:
    """It was deleted between our create and that list: no watch would tell of it any more."""
    store = ObjectStore(prune)
    store.listing()
    store.put(_job("a", 11))
    store.replace([], "12")
    assert store.items() == []


def test_a_namesake_is_not_removed_by_its_predecessors_end() -> None:
    """A late DELETED of another uid is no news of the object that is there."""
    store = ObjectStore(prune)
    store.replace([_job("a", 20, uid="new")], "20")
    store.apply("DELETED", _job("a", 21, uid="old"))
    assert store.get("a") is not None
    store.apply("DELETED", _job("a", 22, uid="new"))
    assert store.get("a") is None


def test_what_only_the_server_needs_is_not_kept() -> None:
    """The managedFields are half of an object's size."""
    job = _job("a", 1)
    job["metadata"] |= {
        "managedFields": [{}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "x"},
    }
    kept = prune(job)["metadata"]
    assert "managedFields" not in kept
    assert kept["annotations"] == {"mine": "x"}
    assert "managedFields" in job["metadata"]


def _status(state: str) -> dict[str, Any]:
    return {"status": {"jobStatus": state}}


def _job(name: str, place: int, uid: str = "u") -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": uid, "resourceVersion": str(place)}}


def _lists(kube: FakeKube) -> list[Any]:
    return [one for one in kube.requests("GET", JOBS) if not one.query.get("watch")]


def _watches(kube: FakeKube) -> list[Any]:
    return [one for one in kube.requests("GET", JOBS) if one.query.get("watch")]


def _stale(reflector: Reflector) -> bool:
    try:
        reflector.fresh()
    except BackendUnavailable:
        return True
    return False


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
