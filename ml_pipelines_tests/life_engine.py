"""KubeRay and its nodes in a random life: RayJobs that live by scripts, and whoever asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ml_pipelines.backends.base import LogChunk, Manifest, Place
from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import BackendUnavailable, MlPipelinesError, Refused
from ml_pipelines.job.observation import Observation, PodView, RayJobView
from ml_pipelines.journal.record import Journal
from ml_pipelines.spec.manifest import FINISHED_TTL_S, RUN_KEY_LABEL, spec_hash
from ml_pipelines_tests.fake_backend import Script

if TYPE_CHECKING:
    from ml_pipelines_tests.life_process import Actor
    from ml_pipelines_tests.life_world import World

KEY = "train-2026-01-01-0123456789"


@dataclass
class RayJob:
    """One RayJob of this world.

    `late` when its attempt was not the open one as it was made; a `forgetful` driver ends well and
    commits nothing.
    """

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
    forgetful: bool = False
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
        made.forgetful = made.kind == "success" and self.world.forgets
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
            gives = job.kind == "success" and not job.forgetful
            if gives and elapsed >= job.ends_at - 1 and not job.committed:
                journal.commit(job.claimed, "result", data={"of": job.view.uid})
                job.committed = True
        except MlPipelinesError:
            job.fenced = True

    def elapsed(self, job: RayJob) -> float:
        """How long its driver has lived; a RayJob that is being deleted plays no further."""
        ends = (self.now(), job.deleting_since, job.stopped_at)
        return min(end for end in ends if end is not None) - job.created

    def log(self, job: RayJob) -> bytes:
        """What its driver has written: a line a second."""
        lines = int(min(self.elapsed(job), job.ends_at))
        return b"".join(b"line %d of %d\n" % (n, job.attempt) for n in range(lines))

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
    streams_logs = False

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
        world.at_creation(self.actor)
        view = self.engine.create(manifest)
        world.at_creation(self.actor)
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
        return LogChunk(source, offset, self.engine.log(job)[offset : offset + limit])

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
