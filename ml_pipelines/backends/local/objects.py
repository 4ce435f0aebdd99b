"""The local RayJobs as files: objects, their status, orders, kept logs.

    rayjobs/<name>.json     one RayJob: uid, manifest, when it was created
    status/<uid>.json       its KubeRay-shaped status, written by the operator alone
    orders/<uid>.stop       end its driver; the cluster stays
    orders/<uid>.delete     remove it with its cluster
    logs/<uid>.log          its driver's log once its head is gone
    objects.lock            held for the moment of a creation or a removal

Every file is written whole under another name and then renamed, so a reader sees all or nothing.
Only this user may read them.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ml_pipelines.backends import rayjob
from ml_pipelines.errors import BackendUnavailable, Refused

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from ml_pipelines.backends.base import Manifest

Made = TypeVar("Made")
TERMINAL = frozenset({"Complete", "Failed", "ValidationFailed"})


@dataclass(frozen=True, slots=True)
class RayJobObject:
    """One RayJob as it was created. `created_at` is UTC, ISO 8601."""

    name: str
    uid: str
    created_at: str
    manifest: Manifest

    def order_key(self) -> tuple[str, str]:
        """Oldest first."""
        return (self.created_at, self.uid)


@dataclass(frozen=True, slots=True)
class Status:
    """A RayJob's status in KubeRay's words, and what we need to go on with it. Times: ISO, UTC."""

    job_status: str = ""
    deployment_status: str = ""
    reason: str = ""
    message: str = ""
    job_id: str = ""
    cluster: str = ""  # id of its head, also after the end
    dashboard_url: str = ""
    driver_exit_code: int | None = None
    submitted: bool = False  # Ray has confirmed that it took the job
    head_starts: int = 0
    assigned_at: str = ""  # the head is this job's from here …
    ready_at: str = ""  # … can run it from here …
    started_at: str = ""
    ended_at: str = ""  # … until here
    head_lost: str = ""  # how the head ended while this job had it
    log: str = ""  # path of the driver's log on its head
    plan: Mapping[str, Any] = field(default_factory=dict)

    @property
    def terminal(self) -> bool:
        """Whether the operator is done with it."""
        return self.deployment_status in TERMINAL

    def having(self, **changes: Any) -> Status:
        """A copy with these fields changed."""
        return replace(self, **changes)


class Objects:
    """The state folder of one local backend."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Path, tuple[int, RayJobObject]] = {}  # by path: inode, what it holds

    def prepare(self) -> None:
        """Make the folders, for this user alone."""
        for path in (self.folder, *map(self.path, ("rayjobs", "status", "orders", "logs"))):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)

    def path(self, *parts: str) -> Path:
        """A path in the state folder."""
        return self.folder.joinpath(*parts)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else creates or removes an object meanwhile."""
        with _opened(self.path("objects.lock")) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def create(self, manifest: Manifest, now: datetime) -> tuple[RayJobObject, bool]:
        """Create, or adopt what has our run key and spec hash; the flag says whether it is new.

        Raises Refused for somebody else's, BackendUnavailable for one that is being deleted.
        """
        name = rayjob.name(manifest)
        self.prepare()
        with self.locked():
            there = self.get(name)
            if there is None:
                made = RayJobObject(name, str(uuid.uuid4()), now.isoformat(), manifest)
                write_json(self._object_path(name), asdict(made))
                return made, True
        if self.ordered(there.uid, "delete"):
            raise BackendUnavailable(f"The RayJob {name} of that name is still being deleted.")
        _refuse_others(there, manifest)
        return there, False

    def get(self, name: str) -> RayJobObject | None:
        """The RayJob of that name."""
        data = read_json(self._object_path(name))
        return known_fields(RayJobObject, data) if data else None

    def all(self) -> list[RayJobObject]:
        """Every RayJob, oldest first."""
        found = []
        for path in self.path("rayjobs").glob("*.json"):
            try:
                made = self._read(path)
            except BackendUnavailable:  # one damaged file must not hide the others
                continue
            if made is not None:
                found.append(made)
        return sorted(found, key=RayJobObject.order_key)

    def status(self, uid: str) -> Status:
        """The operator's last word; an empty status before its first."""
        data = read_json(self.path("status", f"{uid}.json"))
        return known_fields(Status, data) if data else Status()

    def set_status(self, uid: str, status: Status) -> None:
        """The operator's word."""
        write_json(self.path("status", f"{uid}.json"), asdict(status))

    def order(self, name: str, uid: str, what: str) -> bool:
        """Leave the order "stop" or "delete"; false where there is no such object.

        `uid` empty means whichever has the name.
        """
        there = self.get(name)
        if there is None or uid not in {"", there.uid}:
            return False
        with _opened(self.path("orders", f"{there.uid}.{what}")):
            return True

    def ordered(self, uid: str, what: str) -> bool:
        """Whether that order was given."""
        return self.path("orders", f"{uid}.{what}").exists()

    def remove(self, name: str, uid: str) -> None:
        """Forget the object and all that belongs to it; a namesake with another uid stays."""
        with self.locked():
            there = self.get(name)
            if there is not None and there.uid == uid:
                self._object_path(name).unlink(missing_ok=True)
        for path in (
            self.path("status", f"{uid}.json"),
            self.path("orders", f"{uid}.stop"),
            self.path("orders", f"{uid}.delete"),
            self.kept_log(uid),
        ):
            path.unlink(missing_ok=True)

    def kept_log(self, uid: str) -> Path:
        """Where the driver's log lies once its head is gone."""
        return self.path("logs", f"{uid}.log")

    def keep_log(self, uid: str, log: Path) -> None:
        """Save a log from a head that goes; no log, nothing to do."""
        part = self.path("logs", f"{uid}.part")
        try:
            shutil.copyfile(log, part)
        except FileNotFoundError:
            return
        part.chmod(0o600)
        part.rename(self.kept_log(uid))

    def _read(self, path: Path) -> RayJobObject | None:
        """Objects never change, so one file (one inode) is read once."""
        try:
            inode = path.stat().st_ino
        except FileNotFoundError:
            return None
        known = self._known.get(path)
        if known is None or known[0] != inode:
            data = read_json(path)
            if data is None:
                return None
            known = self._known[path] = (inode, known_fields(RayJobObject, data))
        return known[1]

    def _object_path(self, name: str) -> Path:
        return self.path("rayjobs", f"{name}.json")


def write_json(path: Path, data: Any) -> None:
    """Write a file whole or not at all, for this user alone; it survives a loss of power.

    Raises BackendUnavailable (a full disk, say).
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _opened(part) as descriptor, os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(json.dumps(data, indent=1).encode())
            file.flush()
            os.fsync(descriptor)
        part.replace(path)
    except OSError as err:
        part.unlink(missing_ok=True)
        raise BackendUnavailable(f"Can't write {path}: {err}.") from err


def read_json(path: Path) -> dict[str, Any] | None:
    """Read what `write_json` wrote; None where there is nothing."""
    try:
        data: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as err:
        raise BackendUnavailable(f"Can't read {path}: {err}.") from err
    return data


def known_fields(kind: type[Made], data: Mapping[str, Any]) -> Made:
    """An instance from what another version of us wrote: fields that we don't know are passed over."""
    names = {one.name for one in fields(kind)}  # type: ignore[arg-type]  # always a dataclass
    return kind(**{name: value for name, value in data.items() if name in names})


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _refuse_others(there: RayJobObject, manifest: Manifest) -> None:
    ours, theirs = rayjob.run_key(manifest), rayjob.run_key(there.manifest)
    if ours != theirs:
        raise Refused(
            f"The name {there.name} is taken by a RayJob with run key {theirs!r}, not {ours!r}.",
            remedy="Nothing was changed; choose another name.",
        )
    if rayjob.spec_hash(manifest) == rayjob.spec_hash(there.manifest):
        return
    where = next(iter(_differences(there.manifest, manifest, "")), "its spec")
    raise Refused(
        f"A RayJob {there.name} of this run key exists with another spec; it differs in {where}.",
        remedy="Cancel that job first, or submit the same spec to continue it.",
    )


def _differences(old: Any, new: Any, path: str) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            if path == ".metadata" and key in {"labels", "annotations", "name"}:
                continue
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _differences(before, after, f"{path}[{index}]")
    elif old != new:
        yield f"{path.lstrip('.')}: {old!r:.60} there, {new!r:.60} now"
