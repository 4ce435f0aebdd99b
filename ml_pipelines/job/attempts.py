"""Is it tried again? A budget for each class of verdict, and a breaker for crash loops."""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from ml_pipelines.job.verdict import Verdict, VerdictClass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# How many attempts a class may cost beyond the first. UNKNOWN counts against INFRA's budget too.
BUDGETS: Mapping[VerdictClass, int] = MappingProxyType(
    {
        # Preemption is nobody's fault and bounded by cost; the number only ends the absurd.
        VerdictClass.PREEMPTED: 100,
        VerdictClass.INFRA: 5,
        VerdictClass.UNKNOWN: 1,
        # Its clock has already waited as long as it may.
        VerdictClass.CAPACITY: 0,
        VerdictClass.CONFIG: 0,
        VerdictClass.USER: 0,
        VerdictClass.OOM: 0,
        VerdictClass.TIMEOUT: 0,
        VerdictClass.CANCELLED: 0,
        VerdictClass.SUCCESS: 0,
    }
)

FIRST_DELAY_S = 10.0
LONGEST_DELAY_S = 300.0
QUICK_S = 120.0  # an attempt that ends sooner has done nothing


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to make another attempt, after which delay in seconds, and one line that says so."""

    retry: bool
    delay_s: float
    sentence: str


def next_attempt(
    history: tuple[Verdict, ...],
    *,
    elapsed_of_last_s: float,
    rand: Callable[[], float] = random.random,
    budgets: Mapping[VerdictClass, int] = BUDGETS,
) -> Decision:
    """Decide after the last verdict of `history` (one verdict an attempt, oldest first).

    `elapsed_of_last_s` is how long the last attempt lived from the start of its driver; `rand`
    gives a number in [0, 1), which spreads the retries of many jobs that one outage ended together.
    """
    last = history[-1]
    if last.ok:
        return Decision(retry=False, delay_s=0.0, sentence="done")
    if _crash_loop(history, elapsed_of_last_s):
        return _no(f"not tried again: it failed twice in the same way at the start ({last.cause})")
    budget = budgets.get(last.cls, 0)
    if not budget:
        return _no(f"not tried again: {_WHY_NOT.get(last.cls, 'another try would end the same')}")
    spent = _spent(history, last.cls)
    if spent > budget or _over_infra(history, last.cls, budgets):
        allowed = "1 retry is" if budget == 1 else f"{budget} retries are"
        return _no(f"not tried again: {spent} attempts ended {last.cls}, {allowed} allowed")
    delay = _delay(history, elapsed_of_last_s, rand())
    number = len(history) + 1
    when = "at once" if delay == 0.0 else f"in {delay:.0f} s"
    of = f"retry {spent} of {budget} for {last.cls}"
    return Decision(retry=True, delay_s=delay, sentence=f"attempt {number} starts {when} ({of})")


_WHY_NOT = {
    VerdictClass.CANCELLED: "it was cancelled",
    VerdictClass.CAPACITY: "it has waited as long as its limit allows",
    VerdictClass.CONFIG: "the same configuration would fail again",
    VerdictClass.USER: "the same code would fail again",
    VerdictClass.OOM: "the same size would run out of memory again",
    VerdictClass.TIMEOUT: "its time is up",
}
_INFRA = frozenset({VerdictClass.INFRA, VerdictClass.UNKNOWN})


def _no(sentence: str) -> Decision:
    return Decision(retry=False, delay_s=0.0, sentence=sentence)


def _crash_loop(history: tuple[Verdict, ...], elapsed_of_last_s: float) -> bool:
    """The same cause twice, the second time at once: a bug, whatever else was going on."""
    if len(history) < 2 or elapsed_of_last_s >= QUICK_S:
        return False
    return bool(history[-1].cause) and history[-1].cause == history[-2].cause


def _spent(history: tuple[Verdict, ...], cls: VerdictClass) -> int:
    return sum(verdict.cls is cls for verdict in history)


def _over_infra(
    history: tuple[Verdict, ...], cls: VerdictClass, budgets: Mapping[VerdictClass, int]
) -> bool:
    together = sum(verdict.cls in _INFRA for verdict in history)
    return cls in _INFRA and together > budgets.get(VerdictClass.INFRA, 0)


def _delay(history: tuple[Verdict, ...], elapsed_of_last_s: float, rand: float) -> float:
    if history[-1].cls is VerdictClass.PREEMPTED and elapsed_of_last_s >= QUICK_S:
        return 0.0
    row = 0
    for verdict in reversed(history):
        if verdict.cls is not history[-1].cls:
            break
        row += 1
    # The exponent is bounded before the power is: a long history must not overflow.
    longest = min(FIRST_DELAY_S * 2.0 ** min(row - 1, 10), LONGEST_DELAY_S)
    return longest * (0.5 + rand / 2)
