"""Local RayJobs are files: created once, adopted or refused, removed whole, for one user alone."""

from __future__ import annotations

import multiprocessing
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ml_pipelines.backends import rayjob
from ml_pipelines.backends.local.objects import Objects, Status
from ml_pipelines.errors import BackendUnavailable, Refused
from ml_pipelines_tests.rayjob_manifests import manifest

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    made = Objects(tmp_path / "state")
    made.prepare()
    return made


def test_the_same_manifest_is_adopted(objects: Objects):
    """Case B1: created again after a lost answer, it is one object with one uid."""
    first, new = objects.create(manifest("job-a"), NOW)
    second, again = objects.create(manifest("job-a"), NOW)
    assert (new, again) == (True, False)
    assert first.uid == second.uid
    assert len(objects.all()) == 1


def test_another_run_keys_name_is_refused(objects: Objects):
    """Case B2: a name taken by somebody else is neither adopted nor changed."""
    objects.create(manifest("job-a"), NOW)
    others = manifest("job-b")
    others["metadata"]["name"] = rayjob.name(manifest("job-a"))
    with pytest.raises(Refused, match="'job-a', not 'job-b'"):
        objects.create(others, NOW)
    (only,) = objects.all()
    assert rayjob.run_key(only.manifest) == "job-a"


def test_another_spec_is_refused_with_the_difference(objects: Objects):
    """The same run key with another spec is refused, and says what differs."""
    objects.create(manifest("job-a", ["python", "-m", "train"]), NOW)
    with pytest.raises(Refused, match=r"spec\.entrypoint: 'python -m train' there, 'true' now"):
        objects.create(manifest("job-a"), NOW)


def test_one_that_is_being_deleted_is_not_adopted(objects: Objects):
    """Case B3: a dying namesake is waited for, not adopted."""
    made, _ = objects.create(manifest("job-a"), NOW)
    objects.order(made.name, made.uid, "delete")
    with pytest.raises(BackendUnavailable, match="still being deleted"):
        objects.create(manifest("job-a"), NOW)


def test_many_creators_make_one(objects: Objects):
    """Threads that create the same name at once all get the same object, one of them new."""
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: objects.create(manifest("job-a"), NOW), range(40)))
    assert len({one.uid for one, _ in made}) == 1
    assert sum(new for _, new in made) == 1


def _create(folder: str, queue: multiprocessing.Queue[str]) -> None:
    queue.put(Objects(Path(folder)).create(manifest("job-a"), NOW)[0].uid)


def test_many_processes_make_one(objects: Objects):
    """So do processes."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [
        context.Process(target=_create, args=(str(objects.folder), queue)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    uids = {queue.get(timeout=30) for _ in processes}
    for process in processes:
        process.join()
    assert len(uids) == 1


def test_removal_takes_everything_with_it(objects: Objects, tmp_path: Path):
    """Status, orders and log go with the object."""
    made, _ = objects.create(manifest("job-a"), NOW)
    objects.set_status(made.uid, Status(deployment_status="Running"))
    objects.order(made.name, "", "stop")
    (tmp_path / "log").write_bytes(b"line\n")
    objects.keep_log(made.uid, tmp_path / "log")
    objects.remove(made.name, made.uid)
    assert [path for path in objects.folder.rglob("*") if made.uid in path.name] == []
    assert objects.all() == []


def test_a_namesake_survives_removal(objects: Objects):
    """Removing an object that is gone leaves the next one of its name alone."""
    old, _ = objects.create(manifest("job-a"), NOW)
    objects.remove(old.name, old.uid)
    new, _ = objects.create(manifest("job-a"), NOW)
    objects.remove(old.name, old.uid)
    assert objects.get(new.name) == new


@pytest.mark.parametrize("what", ["stop", "delete"])
def test_orders_hold_for_one_uid(objects: Objects, what: str):
    """An order with another uid is not taken; with the right one, or none, it is."""
    made, _ = objects.create(manifest("job-a"), NOW)
    assert not objects.order(made.name, "another", what)
    assert not objects.ordered(made.uid, what)
    assert objects.order(made.name, made.uid, what)
    assert objects.ordered(made.uid, what)
    assert not objects.order("no-such-job", "", what)


def test_all_are_listed_oldest_first(objects: Objects):
    """The queue is the order of creation."""
    for minute, run_key in enumerate(["job-c", "job-a", "job-b"]):
        objects.create(manifest(run_key), NOW.replace(minute=minute))
    assert [rayjob.run_key(one.manifest) for one in objects.all()] == ["job-c", "job-a", "job-b"]


def test_a_status_survives(objects: Objects):
    """What the operator writes, every process reads."""
    status = Status(job_status="RUNNING", driver_exit_code=3, plan={"groups": []})
    objects.set_status("uid", status)
    assert Objects(objects.folder).status("uid") == status


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.write_bytes(b'{"name": "jo'), id="half-written"),
        pytest.param(lambda path: path.write_bytes(b"\xff"), id="no-text"),
    ],
)
def test_a_damaged_object_is_unavailable(objects: Objects, damage: Callable[[Path], object]):
    """A file that can't be read is a trouble to report, not an absent job."""
    made, _ = objects.create(manifest("job-a"), NOW)
    damage(objects.path("rayjobs", f"{made.name}.json"))
    with pytest.raises(BackendUnavailable, match="Can't read"):
        objects.get(made.name)


def test_a_damaged_object_hides_no_other(objects: Objects):
    """The operator goes on with the rest."""
    damaged, _ = objects.create(manifest("job-a"), NOW)
    objects.path("rayjobs", f"{damaged.name}.json").write_bytes(b"")
    sound, _ = objects.create(manifest("job-b"), NOW)
    assert Objects(objects.folder).all() == [sound]


def test_another_versions_fields_are_passed_over(objects: Objects):
    """An operator that was started before an upgrade may write what we don't know, or less."""
    objects.path("status", "uid.json").write_text('{"job_status": "RUNNING", "new": 1}')
    assert objects.status("uid") == Status(job_status="RUNNING")


def test_a_full_disk_is_said_and_leaves_nothing(objects: Objects):
    """What can't be written whole isn't there at all."""
    taken = objects.path("status", "uid.json")
    taken.mkdir()  # a rename onto a folder fails, as a write to a full disk does
    with pytest.raises(BackendUnavailable, match="Can't write"):
        objects.set_status("uid", Status())
    assert list(objects.path("status").iterdir()) == [taken]


def test_only_this_user_may_read(objects: Objects):
    """Tokens and environments lie here: folders are 0700, files 0600."""
    made, _ = objects.create(manifest("job-a"), NOW)
    objects.set_status(made.uid, Status())
    objects.order(made.name, made.uid, "stop")
    for path in (objects.folder, *objects.folder.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
