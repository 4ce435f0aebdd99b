"""Hundreds of random lives of a job: nothing lost, doubled, orphaned or silently green.

A failure names its seed: `lives.run_life(seed)` lives it again, call by call.
"""

from __future__ import annotations

import pytest

from ml_pipelines.job.phase import Phase
from ml_pipelines_tests.life_world import World
from ml_pipelines_tests.lives import digest, run_life

LIVES = 150
IN_ONE_TEST = 30


@pytest.mark.parametrize("first", range(0, LIVES, IN_ONE_TEST))
def test_lives(first: int) -> None:
    """Processes die, stand still and come back; storage and backend fail; people cancel."""
    for seed in range(first, first + IN_ONE_TEST):
        run_life(seed)


@pytest.mark.parametrize("seed", range(1_000, 1_012))
def test_quiet_lives(seed: int) -> None:
    """Without faults, only people and processes that come and go."""
    run_life(seed, wild=0.0)


def test_a_life_is_a_function_of_its_seed() -> None:
    """Lived twice it is the same to the last event; so a failure can be looked at."""
    assert digest(run_life(17)) == digest(run_life(17))


def test_lives_are_as_wild_as_they_claim() -> None:
    """All that can happen happens in some of them, or the others prove nothing."""
    worlds = [run_life(seed) for seed in range(2_010, 2_050)]
    story = "\n".join(line for world in worlds for line in world.trace)
    for sign in (
        "is killed at a call",
        "stands still at a call",
        "cancels",
        "the machine is started anew",
        "created too late",
        "decisions wait until run storage answers",
        "no run wants it any more",
    ):
        assert sign in story, f"no life in which {sign!r}"
    assert {end for world in worlds for end in _ends(world)} >= {
        Phase.SUCCEEDED,
        Phase.FAILED,
        Phase.CANCELLED,
    }


def _ends(world: World) -> set[Phase]:
    ended = world.truth().ended
    return {Phase(ended.phase)} if ended else set()
