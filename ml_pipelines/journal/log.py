"""Numbered entries made by create-if-absent: a total order for any number of writers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from ml_pipelines.errors import (
    AlreadyExists,
    JournalCorrupt,
    NotFound,
    StorageDenied,
    StorageUnavailable,
    Undecided,
)
from ml_pipelines.journal.entries import Entry, Record, decode, encode

if TYPE_CHECKING:
    from ml_pipelines.clock import Clock
    from ml_pipelines.storage import Store

BUDGET_S = 60.0
READS = 3
PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0

Make = Callable[[int, tuple[int, ...]], Entry | None]


class Log:
    """The entries below one prefix. Keeps what it has read: entries never change."""

    def __init__(
        self, store: Store, prefix: str, *, clock: Clock, budget_s: float = BUDGET_S
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._clock = clock
        self._budget_s = budget_s
        self.records: tuple[Record, ...] = ()
        """What was read so far, from entry 1; another tuple whenever anything changed."""

    @property
    def unreadable(self) -> tuple[int, ...]:
        """Numbers of the undecodable entries at the end, which the next entry must void."""
        numbers: list[int] = []
        for record in reversed(self.records):
            if isinstance(record, Entry):
                break
            numbers.append(record.number)
        return tuple(reversed(numbers))

    def refresh(self) -> None:
        """Read what is new. Raises StorageError; JournalCorrupt where a number is missing."""
        known = len(self.records)
        listed = {
            _number(path)
            for path in self._store.list(self._prefix, after=self._path(known) if known else "")
        }
        numbers = range(known + 1, max(listed, default=0) + 1)
        answers = self._store.get_many([self._path(number) for number in numbers])
        for number, raw in zip(numbers, answers, strict=True):
            record = None if raw is None else decode(number, raw)
            if not isinstance(record, Entry):
                record = self._look(number) or record
            if record is None:
                self._raise_missing(number, listed=number in listed)
            self.records = (*self.records, record)
        for number in self._doubtful():
            # It may have been the answer that was wrong, not the entry.
            record = self._look(number)
            if isinstance(record, Entry):
                self.records = (*self.records[: number - 1], record, *self.records[number:])

    def append(self, make: Make) -> Entry | None:
        """Append what `make(number, voids)` says; it is asked again for each number that is lost.

        Returns the entry once it surely is in storage, or None when `make` returned None. Raises
        Undecided when storage did not say in time, StorageError when nothing was written, and
        whatever `make` raises.
        """
        deadline = self._clock.monotonic() + self._budget_s
        entry: Entry | None = None
        while True:
            try:
                self._refresh_until(deadline)
            except StorageUnavailable as error:
                if entry is None:
                    raise
                raise self._undecided(entry.number) from error
            if entry is not None and self._is_own(entry):
                return entry  # it could not be read at first
            entry = make(len(self.records) + 1, self.unreadable)
            if entry is None:
                return None
            self._settle(entry, deadline)
            if self._is_own(entry):
                return entry

    def _doubtful(self) -> list[int]:
        """Numbers of undecodable entries that no later entry voids."""
        doubtful: list[int] = []
        voided: tuple[int, ...] = ()
        for record in reversed(self.records):
            if isinstance(record, Entry):
                voided = record.voids
            elif record.number not in voided:
                doubtful.append(record.number)
        return doubtful

    def _refresh_until(self, deadline: float) -> None:
        pause = PAUSE_S
        while True:
            try:
                self.refresh()
            except StorageUnavailable:
                if self._clock.monotonic() >= deadline:
                    raise
            else:
                return
            pause = self._rest(pause)

    def _is_own(self, entry: Entry) -> bool:
        """Whether the entry lies there as its number, and its successor could read it."""
        held, *later = self.records[entry.number - 1 : entry.number + 1]
        if any(isinstance(each, Entry) and entry.number in each.voids for each in later):
            return False
        return isinstance(held, Entry) and held.nonce == entry.nonce

    def _settle(self, entry: Entry, deadline: float) -> None:
        """Write the same bytes at the same number until it is known what that number holds.

        Storage is not believed: an error may hide a write, now or later; a success may be none;
        *taken* may be one's own earlier try. Only what is read there counts.
        """
        data = encode(entry)
        unclear = False
        pause = PAUSE_S
        while True:
            try:
                self._store.create(self._path(entry.number), data)
                unclear = True
            except AlreadyExists:
                pass
            except StorageDenied:
                if not unclear:
                    raise
            except StorageUnavailable:
                unclear = True
            held = self._held(entry.number)
            if held is not None:
                self.records = (*self.records, held)
                return
            if self._clock.monotonic() >= deadline:
                raise self._undecided(entry.number)
            pause = self._rest(pause)

    def _undecided(self, number: int) -> Undecided:
        return Undecided(
            f"{self._store.child_url(self._path(number))}: storage did not say within "
            f"{self._budget_s:.0f} s whether the entry was written.",
            remedy="Nothing was done on its account; try again when storage answers.",
        )

    def _held(self, number: int) -> Record | None:
        try:
            return self._look(number)
        except (StorageUnavailable, StorageDenied):
            return None

    def _look(self, number: int) -> Record | None:
        """An entry, looked at more than once before it is called missing or unreadable."""
        found: Record | None = None
        for look in range(READS):
            if look:
                self._clock.sleep(PAUSE_S)
            try:
                found = decode(number, self._store.get(self._path(number)))
            except NotFound:
                continue
            if isinstance(found, Entry):
                return found
        return found

    def _raise_missing(self, number: int, *, listed: bool) -> NoReturn:
        url = self._store.child_url(self._path(number))
        if listed:
            raise StorageUnavailable(f"{url} is listed, but said not to exist.")
        raise JournalCorrupt(
            f"{url} is missing, and later entries are there.",
            remedy="Restore it from the bucket's versions, or start the job anew.",
        )

    def _path(self, number: int) -> str:
        return f"{self._prefix}/{number:08d}.json"

    def _rest(self, pause: float) -> float:
        self._clock.sleep(pause * random.uniform(0.5, 1.0))
        return min(pause * 2, LONGEST_PAUSE_S)


def _number(path: str) -> int:
    stem = path.rsplit("/", 1)[-1].removesuffix(".json")
    return int(stem) if stem.isdigit() else 0
