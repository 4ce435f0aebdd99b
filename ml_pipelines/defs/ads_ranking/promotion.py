"""Moves the champion's pointer: exactly the number after the champion judged against, or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ml_pipelines.defs.ads_ranking.records import Judged
from ml_pipelines.errors import Superseded

if TYPE_CHECKING:
    from ml_pipelines.journal.pointer import Champion, Pointer

TRIES = 3


@dataclass(frozen=True, slots=True)
class Promotion:
    """Who serves now, and why; `champion` is None while the baseline serves."""

    champion: Champion | None
    promoted: bool
    why: str
    judged: Judged


def promote(
    judged: Judged, pointer: Pointer, judge_again: Callable[[Champion | None, int], Judged]
) -> Promotion:
    """Make the challenger champion, if the gate found it better than who is champion now.

    Where another run has promoted since, `judge_again(champion, tries)` judges against the new
    champion; after TRIES such races the challenger is let go.
    """
    for tries in range(1, TRIES + 1):
        champion = pointer.current()
        refusal = judged.why_not(champion)
        if refusal:
            return Promotion(champion, promoted=False, why=refusal, judged=judged)
        number = champion.number if champion else 0
        if number == judged.against:
            try:
                made = pointer.promote(judged.as_champion(), expecting=number)
            except Superseded:
                champion = pointer.current()
            else:
                return Promotion(made, promoted=True, why=judged.sentence, judged=judged)
        judged = judge_again(champion, tries)
    why = "Other runs promoted faster than the gate could judge."
    return Promotion(pointer.current(), promoted=False, why=why, judged=judged)
