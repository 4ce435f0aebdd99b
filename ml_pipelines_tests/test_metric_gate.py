"""Metrics reach people with steps that strictly increase, from the driver that counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ml_pipelines.job.wire import Metric, MetricGate


def passed(gate: MetricGate, *metrics: tuple[int, int]) -> list[int]:
    """The steps that pass, of (step, claim) pairs."""
    return [step for step, claim in metrics if gate.admits(Metric(step, {"loss": 1.0}, claim))]


def test_steps_strictly_increase():
    """Case H2: the same step twice, or an earlier one, is dropped."""
    assert passed(MetricGate(), (0, 1), (1, 1), (1, 1), (0, 1), (5, 1), (3, 1)) == [0, 1, 5]


def test_the_next_attempt_repeats_nothing():
    """Case H2: an attempt that resumes at step 3 is heard again from step 6."""
    gate = MetricGate()
    assert passed(gate, *[(n, 4) for n in range(6)]) == [0, 1, 2, 3, 4, 5]
    assert passed(gate, *[(n, 9) for n in range(3, 8)]) == [6, 7]


def test_a_superseded_driver_is_not_heard():
    """Case B11: once a newer claim is seen, late lines of the older one are dropped."""
    gate = MetricGate()
    assert passed(gate, (1, 4), (2, 9), (3, 4), (4, 9)) == [1, 2, 4]
    gate.fence(12)
    assert passed(gate, (5, 9), (6, 12)) == [6]
    gate.fence(3)
    assert passed(gate, (7, 11)) == []


def test_a_script_without_a_claim_is_heard():
    """A job that owes nothing makes no claim; its metrics pass while nobody claims."""
    gate = MetricGate()
    assert passed(gate, (1, 0), (2, 0)) == [1, 2]
    assert passed(gate, (3, 5), (4, 0)) == [3]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=60))
def test_whatever_comes_the_steps_increase(metrics: list[tuple[int, int]]):
    """Over any history the steps that pass increase strictly, and so do their claims."""
    gate = MetricGate()
    through = [
        (step, claim) for step, claim in metrics if gate.admits(Metric(step, {"a": 1.0}, claim))
    ]
    steps = [step for step, _ in through]
    claims = [claim for _, claim in through]
    assert steps == sorted(set(steps))
    assert claims == sorted(claims)
