"""The champion of a model: a journal of promotions, each decided against the one before."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ml_pipelines.clock import Clock, SystemClock
from ml_pipelines.errors import InvalidInput, JournalCorrupt, Refused, Superseded
from ml_pipelines.journal.entries import Entry, Undecodable
from ml_pipelines.journal.log import Log
from ml_pipelines.journal.record import Journal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ml_pipelines.storage import Store

PROMOTION = "promotion"
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class Champion:
    """A model that was promoted: `number` is its promotion's, `entry` its result's in its journal.

    `partition` is the day it was trained for, `at` the time of promotion (ISO 8601, UTC).
    """

    run_key: str
    entry: int
    partition: str
    model_url: str
    version: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0
    at: str = ""


class Pointer:
    """Who serves now, and who did. Promotions never expire, nor do the models that they name."""

    def __init__(self, store: Store, model: str, *, clock: Clock | None = None) -> None:
        if not _MODEL.fullmatch(model):
            raise InvalidInput(
                "model name", model, "is none", remedy="Use letters, digits, `_`, `-`, `.`."
            )
        self.model = model
        self._store = store
        self._clock = clock or SystemClock()
        self._log = Log(store, pointer_prefix(model), clock=self._clock)

    def current(self) -> Champion | None:
        """The champion, or None before the first. Raises StorageError or JournalCorrupt."""
        history = self.history()
        return history[-1] if history else None

    def history(self) -> list[Champion]:
        """All champions, the first one first."""
        self._log.refresh()
        return self._champions()

    def promote(self, champion: Champion, *, expecting: int) -> Champion:
        """Make this the champion right after number `expecting` (0: the first one).

        Raises Superseded when another was promoted meanwhile (judge again, against that one),
        and Refused when its journal has no valid result of that entry.
        """
        self._must_be_a_result(champion)
        nonce = uuid.uuid4().hex

        def make(number: int, voids: tuple[int, ...]) -> Entry | None:
            now = self._champions()
            standing = now[-1].number if now else 0
            if standing != expecting:
                raise Superseded(
                    f"the champion of {self.model} is number {standing} now, not {expecting}.",
                    remedy="Evaluate against it.",
                )
            return Entry(
                number=number,
                kind=PROMOTION,
                role="pointer",
                writer=champion.run_key,
                nonce=nonce,
                claim=expecting,
                at=self._clock.now().isoformat(),
                data=_data(champion),
                voids=voids,
            )

        entry = self._log.append(make)
        assert entry is not None
        return replace(champion, number=entry.number, at=entry.at)

    def _must_be_a_result(self, champion: Champion) -> None:
        journal = Journal(self._store, champion.run_key, writer="pointer", clock=self._clock)
        commits = journal.read().commits
        if not any(each.entry == champion.entry and each.what == "result" for each in commits):
            raise Refused(
                f"entry {champion.entry} of job {champion.run_key} is no result that counts, "
                f"so it can't become the champion of {self.model}"
            )

    def _champions(self) -> list[Champion]:
        """Promotions that name the champion right before them; all others are void."""
        found: list[Champion] = []
        records = self._log.records
        voided = {each for r in records if isinstance(r, Entry) for each in r.voids}
        for number, record in enumerate(records, start=1):
            if isinstance(record, Undecodable):
                if number not in voided and number not in self._log.unreadable:
                    raise JournalCorrupt(f"champion of {self.model}: entry {number} can't be read.")
                continue
            standing = found[-1].number if found else 0
            if record.kind == PROMOTION and record.claim == standing and number not in voided:
                found.append(_champion(record))
        return found


def pointer_prefix(model: str) -> str:
    """Where the promotions of a model lie in run storage."""
    return f"models/{model}/champion"


def named_models(store: Store) -> list[str]:
    """Models that have a pointer."""
    return store.list_dirs("models")


def _data(champion: Champion) -> dict[str, Any]:
    return {
        "run_key": champion.run_key,
        "entry": champion.entry,
        "partition": champion.partition,
        "model_url": champion.model_url,
        "version": champion.version,
        "metrics": dict(champion.metrics),
    }


def _champion(entry: Entry) -> Champion:
    data = entry.data
    return Champion(
        run_key=str(data.get("run_key", "")),
        entry=int(data.get("entry", 0)),
        partition=str(data.get("partition", "")),
        model_url=str(data.get("model_url", "")),
        version=str(data.get("version", "")),
        metrics=data.get("metrics") or {},
        number=entry.number,
        at=entry.at,
    )
