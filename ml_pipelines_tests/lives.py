"""Seeded random lives of one job: many processes, one clock, and a world that fails at any call.

A life is a pure function of its seed. Each process has its own view of run storage and of the
backend; at any call it may be killed (nothing of it acts again), suspended while others go on (its
heart stops, and it comes back later in the middle of that call), or given a wrong answer.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ml_pipelines import lifecycle, settings
from ml_pipelines.backends.base import LogChunk, Manifest, Place
from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import (
    AlreadyExists,
    BackendUnavailable,
    MlPipelinesError,
    NotFound,
    Refused,
    StorageError,
)
from ml_pipelines.job.events import Event, JobEnded
from ml_pipelines.job.observation import Observation, PodView, RayJobView
from ml_pipelines.job.phase import Phase
from ml_pipelines.journal import index
from ml_pipelines.journal.lease import Observer, Process
from ml_pipelines.journal.record import Journal
from ml_pipelines.journal.state import JournalState
from ml_pipelines.lifecycle import Platform
from ml_pipelines.lifecycle.cancelling import cancelling
from ml_pipelines.spec.job import JobSpec, Limits
from ml_pipelines.spec.manifest import FINISHED_TTL_S, RUN_KEY_LABEL, spec_hash
from ml_pipelines.spec.pools import load_pools
from ml_pipelines.storage import Store, StoredObject
from ml_pipelines_tests.fake_backend import Script, fails, loses_its_head, succeeds
from ml_pipelines_tests.faulty_store import Fault, FaultyStore

KEY = "train-2026-01-01-0123456789"
RUN_S = 600
ENOUGH_CALLS = 60_000  # a life that asks more often than this goes in circles
POOLS = load_pools()

FAULTS = (
    *[Fault.NOT_AT_ALL] * 6,
    *[Fault.LOST_ANSWER] * 4,
    *[Fault.LATE] * 3,
    *[Fault.TWICE] * 2,
    Fault.LIES_YES,
    Fault.LIES_NO,
    *[Fault.DELIVER] * 2,
)


class Killed(BaseException):
    """SIGKILL in the middle of a call."""


class PlainStore(Store):
    """A store in a dictionary: fast, and always right."""

    def __init__(self) -> None:
        self.url = "memory://life"
        self.data: dict[str, bytes] = {}

    def get(self, path: str) -> bytes:
        if path not in self.data:
            raise NotFound(f"{path} does not exist.")
        return self.data[path]

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self.get(path)[start : start + length]

    def create(self, path: str, data: bytes) -> None:
        if path in self.data:
            raise AlreadyExists(f"{path} exists already.")
        self.data[path] = data

    def put(self, path: str, data: Any) -> None:
        self.data[path] = data if isinstance(data, bytes) else b"".join(data)

    def put_file(self, path: str, local: Path) -> None:
        self.data[path] = local.read_bytes()

    def size(self, path: str) -> int | None:
        return len(self.data[path]) if path in self.data else None

    def objects(self, prefix: str = "", *, after: str = "") -> list[StoredObject]:
        under = f"{prefix.rstrip('/')}/" if prefix else ""
        when = FakeClock().now()
        paths = (p for p in self.data if p.startswith(under) and p > after)
        return [StoredObject(path, len(self.data[path]), "", when) for path in sorted(paths)]

    def delete(self, path: str) -> None:
        self.data.pop(path, None)


class LifeStore(FaultyStore):
    """One process' view of run storage: every call may be its last, or go wrong."""

    def __init__(self, actor: Actor) -> None:
        super().__init__(actor.world.store)
        self.actor = actor

    def _fault(self) -> Fault:
        self.actor.called("storage")
        fault = self.actor.world.storage_fault()
        if fault is Fault.DELIVER:
            self.deliver()
        return fault

    def size(self, path: str) -> int | None:
        self._or_no_answer(path)
        return self.inner.size(path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        self._or_no_answer(path)
        return self.inner.get_range(path, start, length)

    def put_file(self, path: str, local: Path) -> None:
        self._or_no_answer(path)
        self.inner.put_file(path, local)

    def delete(self, path: str) -> None:
        self._or_no_answer(path)
        self.inner.delete(path)

    def _or_no_answer(self, path: str) -> None:
        if self._fault() in {Fault.NOT_AT_ALL, Fault.LOST_ANSWER, Fault.LATE}:
            from ml_pipelines.errors import StorageUnavailable

            raise StorageUnavailable(f"{path}: no answer.")


class LifeClock(FakeClock):
    """Each sleep takes longer than asked for, as on a busy machine; hearts beat meanwhile."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def sleep(self, seconds: float) -> None:
        self.elapsed += max(seconds, self.world.rng.uniform(0.3, 2.5))
        self.world.engine.live()
        self.world.hearts()


@dataclass
class RayJob:
    """One RayJob of this world. `late` when its attempt was not the open one as it was made."""

    view: RayJobView
    labels: Mapping[str, str]
    attempt: int
    script: Script
    created: float
    late: bool
    deleting_since: float | None = None
    claimed: int = 0
    committed: bool = False
    fenced: bool = False
    stopped_at: float | None = None
    expired: bool = False

    def status(self, elapsed: float) -> dict[str, Any]:
        """What its script says by now."""
        changes: dict[str, Any] = {}
        for at, change in self.script:
            if elapsed >= at:
                changes |= change
        return changes

    @property
    def ends_at(self) -> float:
        """Seconds after its creation at which its last line plays."""
        return self.script[-1][0]

    @property
    def kind(self) -> str:
        """How its script ends: "success", "mistake" or "lost head"."""
        last = self.script[-1][1]
        if "head_failed" in last:
            return "lost head"
        return "success" if last["job_status"] == "SUCCEEDED" else "mistake"


class Engine:
    """KubeRay and all its nodes: the truth behind every process' backend."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.jobs: dict[str, RayJob] = {}
        self.history: list[RayJob] = []
        self.ghosts: list[tuple[float, Manifest]] = []
        self.boot = "boot1"

    def now(self) -> float:
        return self.world.clock.elapsed

    def live(self) -> dict[str, RayJob]:
        """What is there now; drivers have done by then what they do."""
        for at, manifest in [one for one in self.ghosts if one[0] <= self.now()]:
            self.ghosts.remove((at, manifest))
            if manifest["metadata"]["name"] not in self.jobs:
                self.create(manifest)
        for name, job in list(self.jobs.items()):
            self.drive(job)
            if job.deleting_since is not None and self.now() - job.deleting_since >= 4.0:
                del self.jobs[name]
            elif self.ended(job) and self.now() - job.created - job.ends_at >= FINISHED_TTL_S:
                job.expired = True
                del self.jobs[name]
        return self.jobs

    def ended(self, job: RayJob) -> bool:
        """Whether the engine has said its last word on it."""
        return job.kind != "lost head" and self.elapsed(job) >= job.ends_at

    def reboot(self) -> None:
        """Every driver dies; of those that had not ended, the object may be gone as well."""
        self.boot = f"boot{int(self.boot.removeprefix('boot')) + 1}"
        for name, job in list(self.live().items()):
            if not self.ended(job) and job.stopped_at is None:
                job.stopped_at = self.now()
                if self.world.rng.random() < 0.5:
                    del self.jobs[name]

    def create(self, manifest: Manifest) -> RayJobView:
        """Make or adopt; judges whether it may be made."""
        name = manifest["metadata"]["name"]
        labels = manifest["metadata"]["labels"]
        if name in self.jobs:
            there = self.jobs[name].view
            if there.run_key != labels[RUN_KEY_LABEL] or there.spec_hash != spec_hash(manifest):
                raise Refused(f"RayJob {name} belongs to somebody else")
            return there
        attempt = int(name.rpartition("-a")[2])
        late = self.world.judge_creation(attempt)
        view = RayJobView(
            name,
            f"uid-{len(self.history) + 1}",
            run_key=labels[RUN_KEY_LABEL],
            spec_hash=spec_hash(manifest),
            created_at=self.world.clock.now(),
            job_id=name,
        )
        script = self.world.script_of(attempt)
        made = RayJob(view, labels, attempt, script, self.now(), late)
        self.jobs[name] = made
        self.history.append(made)
        return view

    def delete(self, name: str, uid: str) -> None:
        job = self.jobs.get(name)
        if job is not None and uid in {"", job.view.uid} and job.deleting_since is None:
            self.drive(job)
            job.deleting_since = self.now()

    def drive(self, job: RayJob) -> None:
        """The driver claims its seat two seconds after the creation, and commits at the end."""
        elapsed = self.elapsed(job)
        if not self.world.spec.owes_result or job.fenced or elapsed < 2:
            return
        journal = Journal(
            self.world.store, KEY, writer=f"driver-{job.view.uid}", clock=FakeClock(), budget_s=1
        )
        try:
            if not job.claimed:
                job.claimed = journal.claim_driver(job.attempt, job.view.uid).number
            if job.kind == "success" and elapsed >= job.ends_at - 1 and not job.committed:
                journal.commit(job.claimed, "result", data={"of": job.view.uid})
                job.committed = True
        except MlPipelinesError:
            job.fenced = True

    def elapsed(self, job: RayJob) -> float:
        """How long its driver has lived; a RayJob that is being deleted plays no further."""
        ends = (self.now(), job.deleting_since, job.stopped_at)
        return min(end for end in ends if end is not None) - job.created

    def succeeded(self, job: RayJob) -> bool:
        """Whether its driver has truly ended well."""
        done = job.kind == "success" and self.elapsed(job) >= job.ends_at and not job.fenced
        return done and (job.committed or not self.world.spec.owes_result)

    def observation(self, name: str) -> Observation:
        job = self.live().get(name)
        if job is None:
            return Observation(None)
        changes = job.status(self.elapsed(job))
        failed = changes.pop("head_failed", False) or job.stopped_at is not None
        if job.fenced and changes.get("job_status") == "SUCCEEDED":
            changes |= {"job_status": "FAILED", "deployment_status": "Failed",
                        "reason": "AppFailed", "driver_exit_code": 1}  # fmt: skip
        if "job_status" in changes:
            changes["started_at"] = job.view.created_at
        ready = "deployment_status" in changes and changes["deployment_status"] != "Initializing"
        head = PodView(
            name=f"{name}-head",
            uid=f"{job.view.uid}-head",
            role="head",
            phase="Failed" if failed else "Running",
            node="here",
            pool="cpu",
            reason="HeadDied" if failed else "",
            requests={"cpu": 1.0},
            scheduled_at=job.view.created_at,
            conditions={"Ready": ("True" if ready and not failed else "False", "", "")},
        )
        deleting = job.deleting_since is not None
        return Observation(replace(job.view, deleting=deleting, **changes), pods=(head,))


class LifeBackend:
    """One process' way to the engine: it may not answer, or answer no more."""

    name = "local"

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.engine = actor.world.engine
        self.location = f"here#{self.engine.boot}"

    @property
    def place(self) -> Place:
        return Place("local", self.location)

    def _call(self) -> None:
        self.actor.called("backend")
        if self.actor.world.backend_fails():
            raise BackendUnavailable("no answer")
        if self.actor.world.backend_stumbles():
            raise RuntimeError("a bug in the backend")

    def check(self, manifest: Manifest) -> tuple[str, ...]:
        self._call()
        return ()

    def create(self, manifest: Manifest) -> RayJobView:
        self._call()
        self.engine.live()
        world = self.actor.world
        match world.creation_fault():
            case "lost answer":
                self.engine.create(manifest)
                raise BackendUnavailable("the answer was lost")
            case "late":
                at = self.engine.now() + world.rng.uniform(1.0, 60.0)
                self.engine.ghosts.append((at, manifest))
                raise BackendUnavailable("no answer yet")
        view = self.engine.create(manifest)
        self.actor.called("backend")
        return view

    def observe(self, name: str) -> Observation:
        self._call()
        return self.engine.observation(name)

    def read_log(self, name: str, source: str, offset: int, limit: int) -> LogChunk:
        self._call()
        job = self.engine.live().get(name)
        if job is None:
            return LogChunk(source, offset, b"")
        lines = int(min(self.engine.elapsed(job), job.ends_at))
        data = b"".join(b"line %d of %d\n" % (n, job.attempt) for n in range(lines))
        return LogChunk(source, offset, data[offset : offset + limit])

    def stop(self, name: str) -> None:
        self._call()
        self.engine.delete(name, "")

    def delete(self, name: str, uid: str = "") -> None:
        self._call()
        self.engine.live()
        self.engine.delete(name, uid)

    def list(self, labels: Mapping[str, str]) -> list[RayJobView]:
        self._call()
        return [
            replace(job.view, deleting=job.deleting_since is not None)
            for job in self.engine.live().values()
            if all(job.labels.get(k) == v for k, v in labels.items())
        ]


class Actor:
    """A process: it acts until it is killed, and its heart beats unless it is suspended."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.suspended = False
        self.acting = False
        self.stream: Iterator[Event] | None = None
        self.ends: list[JobEnded] = []
        self.store = LifeStore(self)
        self.process = Process(self.store, world.clock, process_id=name, threaded=False)
        self.beaten = world.clock.elapsed
        loaded = settings.load({"MLP_HOME": "/life"})
        self.platform = Platform(
            self.store,
            LifeBackend(self),
            POOLS,
            world.clock,
            self.process,
            loaded,
            observer=Observer(self.store, world.clock),
        )

    def called(self, what: str) -> None:
        """Every call of this process to the outside comes by here."""
        if not self.alive:
            raise Killed
        self.world.calls += 1
        assert self.world.calls < ENOUGH_CALLS, "it goes in circles"
        self.world.meanwhile(self, what)
        if not self.alive:
            raise Killed

    def act(self, what: Callable[[], Any]) -> Any:
        """Let it do something, to the end or to its own; what it raises on purpose is its answer."""
        if not self.alive or self.acting:
            return None
        self.acting = True
        try:
            return what()
        except Killed:
            return None
        except (MlPipelinesError, RuntimeError) as error:
            self.world.note(f"{self.name}: {type(error).__name__}: {error}")
            return error
        finally:
            self.acting = False

    def step(self, events: int) -> None:
        """Follow for so many events."""

        def go_on() -> None:
            for _ in range(events):
                if self.stream is None:
                    return
                event = next(self.stream, None)
                if event is None:
                    self.stream = None
                    return
                self.world.note(f"{self.name}: {event}")
                if isinstance(event, JobEnded):
                    self.ends.append(event)

        if isinstance(self.act(go_on), Exception):
            self.stream = None

    def leave(self) -> None:
        """Orderly: the stream is closed, and the process says that it is gone."""

        def close() -> None:
            if self.stream is not None:
                self.stream.close()  # type: ignore[attr-defined]
            self.process.stop()

        self.act(close)
        if not self.acting:
            self.alive = False


@dataclass
class World:
    """One life. `wild` is how often things go wrong, from 0 (never) to 1."""

    seed: int
    wild: float = 1.0
    trace: list[str] = field(default_factory=list)
    calls: int = 0
    depth: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.clock: LifeClock = LifeClock(self)
        self.store = PlainStore()
        self.engine = Engine(self)
        self.actors: list[Actor] = []
        self.cancelled = False
        self.unwanted = False
        self.outsider = False
        self.rebooted = False
        self.calm = False
        self.storage_out = 0
        self.backend_out = 0
        # Some lives are full of faults, others have one here and there, or none of a kind.
        self.storage_rate = self.wild * self.rng.choice([0.0, 0.005, 0.03, 0.12])
        self.backend_rate = self.wild * self.rng.choice([0.0, 0.01, 0.08])
        self.kill_rate = self.wild * self.rng.choice([0.0, 0.002, 0.01])
        self.switch_rate = self.wild * self.rng.choice([0.0, 0.004, 0.02])
        self.spec = JobSpec(
            name="train",
            entrypoint=("python", "train.py"),
            owes_result=self.rng.random() < 0.6,
            limits=Limits(run_s=RUN_S),
        )
        kinds = self.rng.choices(["success", "lost", "mistake", "hangs"], [5, 5, 2, 1], k=12)
        self.scripts = [self._script(kind) for kind in kinds]

    def _script(self, kind: str) -> Script:
        after = self.rng.choice([4.0, 30.0, 150.0, 400.0])
        if kind == "success":
            return succeeds(after)
        if kind == "lost":
            return loses_its_head(after)
        return fails(self.rng.choice([1, 3]), after) if kind == "mistake" else succeeds(1e9)

    def script_of(self, attempt: int) -> Script:
        """By attempt, so that who makes it changes nothing."""
        return self.scripts[min(attempt, len(self.scripts)) - 1]

    # ── what goes wrong ─────────────────────────────────────────────────────────────────────

    def storage_fault(self) -> Fault:
        """What happens to this call; an outage lasts for some calls."""
        if self.calm:
            return Fault.FINE
        if self.storage_out:
            self.storage_out -= 1
            return Fault.NOT_AT_ALL
        if self.rng.random() >= self.storage_rate:
            return Fault.FINE
        if self.rng.random() < 0.05:
            self.storage_out = self.rng.randint(5, 200)
        return self.rng.choice(FAULTS)

    def backend_fails(self) -> bool:
        """Whether this call gets no answer."""
        if self.calm:
            return False
        if self.backend_out:
            self.backend_out -= 1
            return True
        if self.rng.random() >= self.backend_rate:
            return False
        if self.rng.random() < 0.1:
            self.backend_out = self.rng.randint(2, 40)
        return True

    def backend_stumbles(self) -> bool:
        """Whether this call hits a plain bug."""
        return not self.calm and self.rng.random() < self.backend_rate / 100

    def creation_fault(self) -> str:
        """What happens to a POST that arrives."""
        if self.calm or self.rng.random() >= 4 * self.backend_rate:
            return ""
        return self.rng.choice(["lost answer", "late"])

    def meanwhile(self, actor: Actor, what: str) -> None:
        """Between two calls of a process: it dies, or others act while it stands still."""
        if self.calm:
            return
        if self.rng.random() < self.kill_rate:
            self.note(f"{actor.name} is killed at a call to {what}")
            actor.alive = False
            return
        if self.depth < 2 and self.rng.random() < self.switch_rate:
            self.depth += 1
            actor.suspended = self.rng.random() < 0.5
            self.note(f"{actor.name} stands still at a call to {what}")
            self.something()
            if self.rng.random() < 0.4:
                self.something()
            self.note(f"{actor.name} goes on")
            actor.suspended = False
            self.depth -= 1

    def hearts(self) -> None:
        """The heartbeat thread of every process that lives."""
        for actor in self.actors:
            due = self.clock.elapsed - actor.beaten >= 15.0 and not actor.process._lock.locked()
            if due and actor.alive and not actor.suspended and actor.stream is not None:
                actor.beaten = self.clock.elapsed
                with self._undisturbed():
                    try:
                        actor.process.beat()
                    except StorageError:
                        continue

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """A heartbeat is a thread of its own: nothing interrupts it here."""
        kill, switch = self.kill_rate, self.switch_rate
        self.kill_rate = self.switch_rate = 0.0
        try:
            yield
        finally:
            self.kill_rate, self.switch_rate = kill, switch

    # ── what people and processes do ────────────────────────────────────────────────────────

    def actor(self, kind: str) -> Actor:
        """A new process."""
        actor = Actor(self, f"{kind}-{len(self.actors)}")
        self.actors.append(actor)
        return actor

    def submits(self) -> None:
        """A run, or its retry."""
        actor = self.actor("run")
        takeover = self.rng.random() < 0.3

        def begin() -> None:
            job = lifecycle.submit(
                self.spec, run_key=KEY, labels={}, platform=actor.platform, exclusive="ads/day"
            )
            job.takeover = takeover
            actor.stream = lifecycle.follow(job, platform=actor.platform)

        self.note(f"{actor.name} submits")
        actor.act(begin)

    def attaches(self, *, takeover: bool) -> None:
        """Somebody follows what is there."""
        actor = self.actor("attach")

        def begin() -> None:
            job = lifecycle.attach(KEY, platform=actor.platform, takeover=takeover)
            actor.stream = lifecycle.follow(job, platform=actor.platform)

        self.note(f"{actor.name} attaches")
        actor.act(begin)

    def cancels(self) -> None:
        """Somebody stops it."""
        actor = self.actor("cancel")
        self.note(f"{actor.name} cancels")
        self.cancelled = True

        def cancel() -> None:
            # Storage never hangs here, so its thread may be waited for: a life has one order.
            events = list(cancelling(KEY, actor.platform, "enough", "ada", record_s=1e6))
            self.note(f"{actor.name}: {events}")
            actor.ends += [event for event in events if isinstance(event, JobEnded)]

        answer = actor.act(cancel)
        actor.alive = False
        if answer is None and actor.ends and self.truth().cancelled:
            left = [
                name
                for name, job in self.engine.jobs.items()
                if job.deleting_since is None and not job.late
            ]
            assert not left, f"cancelled, and {left} runs on"

    def reboots(self) -> None:
        """The machine, with every process on it."""
        self.note("the machine is started anew")
        for actor in self.actors:
            actor.alive = False
        self.rebooted = True
        self.engine.reboot()

    def deletes(self) -> None:
        """Somebody who has nothing to do with us deletes the RayJob."""
        for name in list(self.engine.live()):
            self.note(f"somebody deletes {name}")
            self.outsider = True
            self.engine.delete(name, "")

    def sweeps(self, *, wanted: bool | None) -> None:
        """One round of the keeper, which knows from before whose heart stood still."""
        before = next((a for a in reversed(self.actors) if a.name.startswith("keeper")), None)
        actor = self.actor("keeper")
        if before is not None:
            actor.platform.observer._seen.update(before.platform.observer._seen)
        self.note(f"{actor.name} sweeps")
        self.unwanted |= wanted is False
        done = actor.act(lambda: lifecycle.sweep(actor.platform, lambda _key, _labels: wanted))
        self.note(f"{actor.name}: {done}")
        actor.act(actor.process.stop)
        actor.alive = False

    def something(self) -> None:
        """One thing that happens."""
        following = [a for a in self.actors if a.stream is not None and a.alive and not a.acting]
        choices: list[tuple[float, Callable[[], None]]] = [
            (1.0, self.submits),
            (0.6, lambda: self.attaches(takeover=self.rng.random() < 0.4)),
            (0.25, self.cancels),
            (0.8, lambda: self.sweeps(wanted=True)),
            (0.15, lambda: self.sweeps(wanted=False)),
            (0.1, self.reboots),
            (0.05, self.deletes),
            (0.8, lambda: self.clock.sleep(self.rng.choice([5.0, 40.0, 130.0, 400.0]))),
        ]
        for actor in following:
            choices += [
                (2.0, lambda a=actor: a.step(self.rng.choice([1, 3, 20, 400]))),  # type: ignore[misc]
                (0.4, actor.leave),
                (0.3, lambda a=actor: self._kill(a)),  # type: ignore[misc]
            ]
        weights = [weight for weight, _ in choices]
        self.rng.choices([act for _, act in choices], weights)[0]()

    def _kill(self, actor: Actor) -> None:
        self.note(f"{actor.name} is killed")
        actor.alive = False

    def next_job_takes_its_place(self) -> None:
        """What only one job may work on is free once this one is over."""
        platform = self.actor("next").platform
        lifecycle.submit(
            self.spec, run_key="next", labels={}, platform=platform, exclusive="ads/day"
        )

    def bury(self) -> None:
        """Python closes what is left of the dead; whatever they try then, they are dead."""
        for actor in self.actors:
            actor.alive = False
            if actor.stream is not None:
                with suppress(Killed, MlPipelinesError):
                    actor.stream.close()  # type: ignore[attr-defined]

    def note(self, text: str) -> None:
        """One line of the life's story."""
        self.trace.append(f"{self.clock.elapsed:8.1f} {'  ' * self.depth}{text}")

    # ── the truth ───────────────────────────────────────────────────────────────────────────

    def truth(self) -> JournalState:
        """The journal as it lies in storage."""
        return Journal(self.store, KEY, writer="judge", clock=FakeClock()).read()

    def judge_creation(self, attempt: int) -> bool:
        """Whether this creation comes too late; one that is in time must be allowed."""
        state = self.truth()
        opened = state.open_attempt
        if state.cancelled or opened is None or opened.number != attempt:
            self.note(f"attempt {attempt} is created too late")
            return True
        # What was made too late runs beside until it is seen; its writes are fenced off.
        beside = [
            job.view.name
            for job in self.engine.jobs.values()
            if job.deleting_since is None and not job.late and job.attempt != attempt
        ]
        assert not beside, f"attempt {attempt} is created beside {beside}"
        # A success that owes no result is known to the engine alone, and only as long as it is there.
        again = [
            job.view.name
            for job in self.engine.history
            if not job.late
            and self.engine.succeeded(job)
            and (self.spec.owes_result or job in self.engine.jobs.values())
        ]
        assert not again, f"{again} had succeeded, and attempt {attempt} is created"
        self.note(f"attempt {attempt} is created")
        return False


def live(world: World) -> None:
    """A whole life: its turmoil, then calm, somebody who claims what is left, and the keeper."""
    world.submits()
    for _ in range(world.rng.randint(2, 14)):
        world.something()
    world.calm = True
    world.note("── calm ──")
    for actor in list(world.actors):
        if isinstance(actor.store, FaultyStore) and world.rng.random() < 0.5:
            actor.store.deliver()
    for actor in list(world.actors):
        if world.rng.random() < 0.5:
            world._kill(actor)
    for _ in range(6):
        if world.truth().ended is not None:
            break
        world.clock.sleep(settings.CLAIM_TIME_S + 1)
        world.submits()
        world.actors[-1].step(5000)
    for actor in list(world.actors):
        actor.step(5000)
    for _ in range(4):
        world.sweeps(wanted=None)
        world.clock.sleep(settings.CLAIM_TIME_S + 1)


def judge(world: World) -> None:
    """Nothing lost, doubled, orphaned or silently green."""
    state = world.truth()
    engine = world.engine
    assert state.birth is not None, "lost: it was never born"
    assert state.ended is not None, "lost: it never ended"
    phase = Phase(state.ended.phase)
    truly = [job for job in engine.history if engine.succeeded(job)]
    if phase is Phase.SUCCEEDED:
        # What a job owes it has given with its commit, whatever becomes of its driver then.
        gave = world.spec.owes_result and any(job.committed for job in engine.history)
        assert truly or gave, "silently green: no driver succeeded"
        if world.spec.owes_result:
            assert state.result is not None, "silently green: no result"
            assert state.ended.result == state.result.data
    if not (world.cancelled or world.unwanted or world.outsider):
        in_time = [job for job in truly if not job.late]
        # What ended and expired while nobody looked, and owes no result, has left nothing to tell.
        untold = [job for job in in_time if job.expired and not world.spec.owes_result]
        assert phase is Phase.SUCCEEDED or in_time == untold, f"a success became {phase}"
        mistakes = [
            job.attempt
            for job in engine.history
            if job.kind == "mistake"
            and not job.late
            and engine.elapsed(job) >= job.ends_at
            and not (job.expired and world.rebooted)
        ]
        assert not mistakes or len(state.attempts) == min(mistakes), "a mistake was tried again"
        assert phase is not Phase.CANCELLED, f"nobody cancelled it: {state.ended.verdict}"
    engine.live()
    assert not engine.jobs, f"orphaned: {list(engine.jobs)}"
    assert state.cleaned, "not cleaned"
    assert index.open_keys(world.store) == [], "its open marker stayed"
    world.next_job_takes_its_place()
    told = {end.phase for actor in world.actors for end in actor.ends}
    assert Phase.SUCCEEDED not in told or phase is Phase.SUCCEEDED, "told green, recorded otherwise"


def run_life(seed: int, wild: float = 1.0) -> World:
    """Live and judge; a failure says how to replay it, with the story's end."""
    world = World(seed, wild)
    state = random.getstate()
    random.seed(seed)  # whoever waits for storage jitters
    try:
        live(world)
        judge(world)
    except BaseException as error:
        story = "\n".join(world.trace[-80:])
        raise AssertionError(
            f"life {seed}: {type(error).__name__}: {error}\n{story}\n"
            f"replay: run_life({seed}, wild={wild})"
        ) from error
    finally:
        random.setstate(state)
        world.bury()
    return world


def digest(world: World) -> str:
    """The same for the same life."""
    return hashlib.sha256(json.dumps(world.trace).encode()).hexdigest()
