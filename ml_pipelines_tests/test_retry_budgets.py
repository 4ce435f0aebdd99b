"""Which failures are tried again, how often, and after how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipelines.job.attempts import BUDGETS, LONGEST_DELAY_S, next_attempt
from ml_pipelines.job.verdict import Verdict, VerdictClass

C = VerdictClass
LONG_S = 3_600.0


def made(*classes: VerdictClass, cause: str = "") -> tuple[Verdict, ...]:
    """A history of attempts that ended so."""
    return tuple(Verdict(cls, "it ended", cause=cause) for cls in classes)


def retries(cls: VerdictClass, elapsed_s: float = LONG_S) -> int:
    """How often a job is tried again that always ends so."""
    history = made(cls)
    while next_attempt(history, elapsed_of_last_s=elapsed_s, rand=lambda: 0.5).retry:
        history += made(cls)
        assert len(history) < 1_000
    return len(history) - 1


@pytest.mark.parametrize("cls", VerdictClass)
def test_each_class_has_a_budget(cls: VerdictClass):
    """A job that always ends the same way is tried again as often as its class allows."""
    assert retries(cls) == BUDGETS[cls]


@pytest.mark.parametrize("cls", [C.CONFIG, C.USER, C.OOM, C.TIMEOUT, C.CANCELLED, C.CAPACITY])
def test_what_would_fail_again_is_not_tried(cls: VerdictClass):
    """Case B10: a bug, a wrong configuration and a time-out cost one attempt, and say why."""
    decision = next_attempt(made(cls), elapsed_of_last_s=LONG_S)
    assert not decision.retry
    assert decision.sentence.startswith("not tried again: ")
    assert len(decision.sentence) > 25


def test_infra_has_five():
    """Case C6: infrastructure is tried five times more."""
    assert retries(C.INFRA) == 5


def test_unknown_counts_against_infra_too():
    """An end without evidence is tried once more, out of the same budget."""
    full = made(C.INFRA, C.INFRA, C.INFRA, C.INFRA, C.INFRA, C.UNKNOWN)
    assert not next_attempt(full, elapsed_of_last_s=LONG_S).retry
    assert not next_attempt(made(C.UNKNOWN, C.INFRA, C.UNKNOWN), elapsed_of_last_s=LONG_S).retry
    assert next_attempt(made(C.INFRA, C.UNKNOWN), elapsed_of_last_s=LONG_S).retry


def test_preemption_costs_infra_nothing():
    """Case H7: budgets are separate."""
    history = made(*[C.PREEMPTED] * 20, *[C.INFRA] * 5)
    assert next_attempt(history, elapsed_of_last_s=LONG_S).retry
    assert not next_attempt(history + made(C.INFRA), elapsed_of_last_s=LONG_S).retry


def test_success_is_done():
    """Nothing follows a success."""
    assert not next_attempt(made(C.INFRA, C.SUCCESS), elapsed_of_last_s=1.0).retry


def test_the_same_crash_twice_at_the_start_is_a_bug():
    """The breaker: the same cause twice within two minutes of the start ends it, even on spot."""
    history = made(C.PREEMPTED, C.PREEMPTED, cause="ValueError at train.py in step")
    decision = next_attempt(history, elapsed_of_last_s=100.0)
    assert not decision.retry
    assert "ValueError at train.py in step" in decision.sentence


@pytest.mark.parametrize(
    ("history", "elapsed_s"),
    [
        pytest.param(made(C.INFRA, C.INFRA, cause="KeyError"), 200.0, id="it ran a while"),
        pytest.param(
            made(C.INFRA, cause="KeyError") + made(C.INFRA, cause="OSError"),
            5.0,
            id="another cause",
        ),
        pytest.param(made(C.INFRA, C.INFRA), 5.0, id="no cause known"),
        pytest.param(made(C.INFRA, cause="KeyError"), 5.0, id="the first time"),
    ],
)
def test_the_breaker_needs_all_of_it(history: tuple[Verdict, ...], elapsed_s: float):
    """Twice, the same, and soon: otherwise the budget decides."""
    assert next_attempt(history, elapsed_of_last_s=elapsed_s).retry


def test_delays_grow_from_ten_seconds_to_five_minutes():
    """Attempts of one class wait longer each time, up to a bound."""
    delays = [
        next_attempt(made(*[C.INFRA] * n), elapsed_of_last_s=0.0, rand=lambda: 0.999).delay_s
        for n in range(1, 6)
    ]
    assert delays == sorted(delays)
    assert delays[0] == pytest.approx(10.0, rel=0.01)
    assert delays[-1] == pytest.approx(160.0, rel=0.01)


def test_a_preempted_attempt_that_ran_starts_at_once():
    """Waiting helps nobody where the machine was wanted by others, unless it is in a row."""
    assert next_attempt(made(C.PREEMPTED), elapsed_of_last_s=600.0).delay_s == 0.0
    quick = [
        next_attempt(made(*[C.PREEMPTED] * n), elapsed_of_last_s=5.0, rand=lambda: 0.0).delay_s
        for n in (1, 2, 3)
    ]
    assert quick == [5.0, 10.0, 20.0]


@given(
    st.lists(st.sampled_from(VerdictClass), min_size=1, max_size=2_000),
    st.floats(0.0, 1e7),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_every_history_has_a_decision(classes: list[VerdictClass], elapsed_s: float, at: float):
    """A decision, one line, a bounded delay."""
    decision = next_attempt(made(*classes), elapsed_of_last_s=elapsed_s, rand=lambda: at)
    assert 0.0 <= decision.delay_s <= LONGEST_DELAY_S
    assert decision.sentence
    assert "\n" not in decision.sentence
    assert not decision.retry or BUDGETS[classes[-1]] > 0
