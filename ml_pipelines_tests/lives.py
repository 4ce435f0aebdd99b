"""Seeded random lives of one job: many processes, one clock, and a world that fails at any call.

A life is a pure function of its seed. Each process has its own view of run storage and of the
backend; at any call it may be killed (nothing of it acts again), suspended while others go on (its
heart stops, and it comes back later in the middle of that call), or given a wrong answer.
"""

from __future__ import annotations

import hashlib
import json
import random

from ml_pipelines import settings
from ml_pipelines.job.phase import Phase
from ml_pipelines.journal import index
from ml_pipelines.lifecycle.logkeeping import kept_log
from ml_pipelines_tests.life_engine import KEY
from ml_pipelines_tests.life_world import World


def live(world: World) -> None:
    """A whole life: its turmoil, then calm, somebody who claims what is left, and the keeper."""
    world.submits()
    for _ in range(world.rng.randint(2, 14)):
        world.something()
    world.calm = True
    world.note("── calm ──")
    for actor in list(world.actors):
        if world.rng.random() < 0.5:
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
            if (job.kind == "mistake" or (job.forgetful and world.spec.owes_result))
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
    if not world.storage_rate:
        for attempt in state.attempts:
            kept = b"".join(kept_log(world.store, KEY, attempt.number))
            made = [job for job in engine.history if job.attempt == attempt.number]
            true = [engine.log(job) for job in made]
            assert not kept or any(log.startswith(kept) for log in true), "a log has a gap"
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
