"""RayJobs on this machine: written as files, run by an operator.

This side keeps an operator alive and reads what it reports. It never talks to Ray itself; everything it says comes from files that the operator writes, so any
process of this user on this machine can follow any job.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ml_pipelines.backends import rayjob
from ml_pipelines.backends.base import LogChunk, Manifest, Place
from ml_pipelines.backends.local import submission
from ml_pipelines.backends.local.machine import boot_id, hostname, this_machine
from ml_pipelines.backends.local.objects import Objects, RayJobObject, Status
from ml_pipelines.backends.local.record import records
from ml_pipelines.backends.local.sizing import Machine, fit
from ml_pipelines.backends.local.views import Host, observation, rayjob_view, with_lost_head
from ml_pipelines.errors import BackendUnavailable
from ml_pipelines.job.observation import Observation, RayJobView
from ml_pipelines.settings import IDLE_HEAD_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ml_pipelines.clock import Clock

SPAWN_AGAIN_S = 5.0  # an operator needs half a second to take its lock, more on a busy machine
SPAWNS = 4  # as many that never took the lock mean that something is wrong
LOG_LIMIT = 2**20


class StartOperator(Protocol):
    """Starts an operator of a state folder, which lives on after us."""

    def __call__(self, state: Path, log: Path, idle_head_s: float) -> None: ...


def spawn_operator(state: Path, log: Path, idle_head_s: float) -> None:
    """Start it as nobody's child, with its output in `log`."""
    too_long = log.exists() and log.stat().st_size > LOG_LIMIT
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if too_long else os.O_APPEND)
    descriptor = os.open(log, flags, 0o600)
    # Its own environment carries no job's marks: a driver may start one and end before it.
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("MLP_", "RAY_"))
    }
    command = [sys.executable, "-m", "ml_pipelines.backends.local.operator", str(state)]
    try:
        # The shell goes at once, so that no caller keeps a zombie.
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", *command, f"--idle-head-s={idle_head_s}"],
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            check=True,
        )
    finally:
        os.close(descriptor)


class LocalBackend:
    """RayJobs on this machine. `state` is the folder of `objects.Objects`."""

    name = "local"
    streams_logs = False

    def __init__(
        self, state: Path, clock: Clock,
        *, machine: Machine | None = None, idle_head_s: float = IDLE_HEAD_S,
        start_operator: StartOperator = spawn_operator,
    ) -> None:  # fmt: skip
        self._objects = Objects(state.absolute())
        self._clock = clock
        self._machine = machine or this_machine()
        self._idle_head_s = idle_head_s
        self._start_operator = start_operator
        self._host = Host(hostname(), f"local-{self._machine.cpus}cpu")
        self._spawned_at: float | None = None
        self._spawns = 0

    @property
    def place(self) -> Place:
        return Place(self.name, f"{hostname()}:{self._objects.folder}#{boot_id()}")

    def check(self, manifest: Manifest) -> tuple[str, ...]:
        plan, said = fit(manifest, self._machine)
        submission.entrypoint(manifest)
        submission.runtime_env(manifest, plan)
        unset = rayjob.secret_variables(manifest)
        if unset:
            said = (*said, f"{', '.join(unset)}: not set; this machine has no Secrets")
        return said

    def create(self, manifest: Manifest) -> RayJobView:
        self.check(manifest)
        made, _ = self._objects.create(manifest, self._clock.now())
        self._need_operator()
        return rayjob_view(made, self._objects.status(made.uid), deleting=False)

    def observe(self, name: str) -> Observation:
        made = self._objects.get(name)
        if made is None:
            return Observation(rayjob=None)
        status = self._objects.status(made.uid)
        deleting = self._objects.ordered(made.uid, "delete")
        if (deleting or not status.terminal) and not self._operator_lives():
            self._need_operator()
            status = self._seen_by_ourselves(status)
        return observation(made, status, host=self._host, deleting=deleting)

    def read_log(self, name: str, source: str, offset: int, limit: int) -> LogChunk:
        """`source` is "driver"; worker prints are in it too."""
        made = self._objects.get(name)
        if made is None or source != "driver":
            return LogChunk(source, offset, b"")
        live = self._objects.status(made.uid).log
        # A head that goes leaves its log at the second place before the first one is gone.
        for path in (Path(live) if live else None, self._objects.kept_log(made.uid)):
            data = _read_at(path, offset, limit) if path else None
            if data is not None:
                return LogChunk(source, offset, data)
        return LogChunk(source, offset, b"")

    def stop(self, name: str) -> None:
        if self._objects.order(name, "", "stop"):
            self._need_operator()

    def delete(self, name: str, uid: str = "") -> None:
        made = self._objects.get(name)
        if made is None or uid not in {"", made.uid}:
            return
        if self._objects.status(made.uid).terminal and not self._operator_lives():
            self._objects.remove(name, made.uid)
        elif self._objects.order(name, made.uid, "delete"):
            self._need_operator()

    def list(self, labels: Mapping[str, str]) -> list[RayJobView]:
        return [
            self._view(made)
            for made in self._objects.all()
            if labels.items() <= rayjob.labels(made.manifest).items()
        ]

    def _view(self, made: RayJobObject) -> RayJobView:
        deleting = self._objects.ordered(made.uid, "delete")
        return rayjob_view(made, self._objects.status(made.uid), deleting=deleting)

    def _seen_by_ourselves(self, status: Status) -> Status:
        """Without an operator, whether the head is alive is looked at here."""
        if not status.cluster or status.terminal:
            return status
        for record in records(self._objects.path("heads")):
            if record.id == status.cluster and record.here():
                return status
        how = "The Ray head of this job is gone, and so is the operator that watched it."
        return with_lost_head(status, how, self._clock.now().isoformat())

    def _operator_lives(self) -> bool:
        """Whether somebody holds the operator's lock."""
        try:
            descriptor = os.open(self._objects.path("operator.lock"), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _need_operator(self) -> None:
        """Start an operator unless one lives or is about to. Two at once: its lock decides."""
        if self._operator_lives():
            self._spawns = 0
            return
        now = self._clock.monotonic()
        if self._spawned_at is not None and now - self._spawned_at < SPAWN_AGAIN_S:
            return
        log = self._objects.path("operator.log")
        if self._spawns >= SPAWNS:
            self._spawns = 0
            raise BackendUnavailable(
                f"The local operator was started {SPAWNS} times and never ran.",
                remedy=f"See the end of {log}.",
            )
        self._spawned_at, self._spawns = now, self._spawns + 1
        self._start_operator(self._objects.folder, log, self._idle_head_s)


def _read_at(path: Path, offset: int, limit: int) -> bytes | None:
    try:
        with path.open("rb") as log:
            log.seek(offset)
            return log.read(limit)
    except FileNotFoundError:
        return None
