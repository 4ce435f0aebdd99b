"""The world of a random life: what goes wrong, what people do, and what is true."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from ml_pipelines import lifecycle
from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import MlPipelinesError, StorageError
from ml_pipelines.job.events import JobEnded
from ml_pipelines.journal.record import Journal
from ml_pipelines.journal.state import JournalState
from ml_pipelines.lifecycle.cancelling import cancelling
from ml_pipelines.spec.job import JobSpec, Limits
from ml_pipelines_tests.fake_backend import Script, fails, loses_its_head, succeeds
from ml_pipelines_tests.faulty_store import Fault
from ml_pipelines_tests.life_engine import KEY, Engine
from ml_pipelines_tests.life_process import Actor, Killed, LifeClock
from ml_pipelines_tests.plain_store import PlainStore

RUN_S = 600

FAULTS = (
    *[Fault.NOT_AT_ALL] * 6,
    *[Fault.LOST_ANSWER] * 4,
    *[Fault.LATE] * 3,
    *[Fault.TWICE] * 2,
    Fault.LIES_YES,
    Fault.LIES_NO,
    *[Fault.DELIVER] * 2,
)


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
        self.forgets = self.rng.random() < 0.1
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

    def at_creation(self, actor: Actor) -> None:
        """Right around a POST, where it hurts: it stands still, heart and all, and others go on."""
        if self.calm or self.depth >= 2 or not self.switch_rate or self.rng.random() >= 0.15:
            return
        self.depth += 1
        actor.suspended = True
        self.note(f"{actor.name} stands still in the midst of its creation")
        for _ in range(self.rng.randint(1, 3)):
            match self.rng.choice(["time", "takes over", "cancel", "sweep"]):
                case "time":
                    self.clock.sleep(self.rng.choice([3.0, 130.0]))
                case "takes over":
                    self.attaches(takeover=True)
                    self.actors[-1].step(self.rng.choice([2, 20, 400]))
                case "cancel":
                    self.cancels()
                case "sweep":
                    self.sweeps(wanted=True)
        self.note(f"{actor.name} goes on")
        actor.suspended = False
        self.depth -= 1
        if not actor.alive:
            raise Killed

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
            # Storage never hangs here, so threads may be waited for: a life has one order.
            events = list(
                cancelling(KEY, actor.platform, "enough", "ada", record_s=1e6, keep_s=1e6)
            )
            self.note(f"{actor.name}: {events}")
            unrecorded.extend(e for e in events if "not be recorded" in getattr(e, "sentence", ""))
            actor.ends += [event for event in events if isinstance(event, JobEnded)]

        unrecorded: list[object] = []
        answer = actor.act(cancel)
        actor.alive = False
        if answer is None and actor.ends and not unrecorded:
            state = self.truth()
            assert state.cancelled or state.ended, "it says cancelled, and nothing is recorded"
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
