"""A store that answers late, twice, wrongly or not at all: a script says when."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum

from ml_pipelines.errors import AlreadyExists, NotFound, StorageUnavailable
from ml_pipelines.storage import Store, StoredObject


class Fault(StrEnum):
    """What happens to the next call."""

    FINE = "fine"
    NOT_AT_ALL = "not at all"  # no answer, nothing done
    LOST_ANSWER = "lost answer"  # done, but no answer
    LATE = "late"  # no answer; done later, when `deliver` is called
    TWICE = "twice"  # done, and the client's own second try finds its first
    LIES_YES = "lies: yes"  # "created" without writing; half of an object as if it were all
    LIES_NO = "lies: no"  # "taken" or "not there" of what isn't so; the newest object not listed
    RIVAL = "rival"  # somebody else acts right before
    DELIVER = "deliver"  # what was late arrives right before


class FaultyStore(Store):
    """Wraps a store. `script` is consumed one fault a call; when it is empty all goes well."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner.url)
        self.inner = inner
        self.script: deque[Fault] = deque()
        self.rival: Callable[[], object] = lambda: None
        self.late: list[tuple[str, bytes]] = []
        self.shown_in_half: set[str] = set()
        self._half_in_a_row: Counter[str] = Counter()
        self._calm = False

    def deliver(self) -> None:
        """Every late write arrives now, in the order of sending; a taken name stays taken."""
        while self.late:
            path, data = self.late.pop(0)
            try:
                self.inner.create(path, data)
            except AlreadyExists:
                continue

    def _fault(self) -> Fault:
        if self._calm or not self.script:
            return Fault.FINE
        fault = self.script.popleft()
        if fault is Fault.DELIVER:
            self.deliver()
        elif fault is Fault.RIVAL:
            with self._calmly():
                self.rival()
        return fault

    @contextmanager
    def _calmly(self) -> Iterator[None]:
        """The rival's own calls are not part of the script."""
        self._calm = True
        try:
            yield
        finally:
            self._calm = False

    def create(self, path: str, data: bytes) -> None:
        match self._fault():
            case Fault.NOT_AT_ALL:
                raise _no_answer(path)
            case Fault.LATE:
                self.late.append((path, data))
                raise _no_answer(path)
            case Fault.LOST_ANSWER:
                self._create_silently(path, data)
                raise _no_answer(path)
            case Fault.TWICE:
                self.inner.create(path, data)
                raise AlreadyExists(f"{path} exists already.")
            case Fault.LIES_YES:
                return
            case Fault.LIES_NO:
                raise AlreadyExists(f"{path} exists already.")
        self.inner.create(path, data)

    def _create_silently(self, path: str, data: bytes) -> None:
        try:
            self.inner.create(path, data)
        except AlreadyExists:
            return

    def get(self, path: str) -> bytes:
        match self._fault():
            case Fault.NOT_AT_ALL | Fault.LOST_ANSWER | Fault.LATE:
                raise _no_answer(path)
            case Fault.LIES_YES:
                return self._half(path)
            case Fault.LIES_NO:
                raise NotFound(f"{path} does not exist.")
        self._half_in_a_row[path] = 0
        return self.inner.get(path)

    def get_many(self, paths: Sequence[str]) -> list[bytes | None]:
        # One after the other: the script has an order.
        return [self._get_or_none(path) for path in paths]

    def _half(self, path: str) -> bytes:
        data = self.inner.get(path)
        self._half_in_a_row[path] += 1
        if self._half_in_a_row[path] >= 3:
            # Whoever looks three times and sees the same may believe it.
            self.shown_in_half.add(path)
        return data[: len(data) // 2]

    def objects(self, prefix: str = "", *, after: str = "") -> list[StoredObject]:
        match self._fault():
            case Fault.NOT_AT_ALL | Fault.LOST_ANSWER | Fault.LATE:
                raise _no_answer(prefix)
            case Fault.LIES_NO:
                return self.inner.objects(prefix, after=after)[:-1]
        return self.inner.objects(prefix, after=after)

    def put(self, path: str, data: bytes | Iterable[bytes]) -> None:
        match self._fault():
            case Fault.NOT_AT_ALL | Fault.LATE:
                raise _no_answer(path)
            case Fault.LOST_ANSWER:
                self.inner.put(path, data)
                raise _no_answer(path)
        self.inner.put(path, data)


def _no_answer(path: str) -> StorageUnavailable:
    return StorageUnavailable(f"{path}: no answer.")
