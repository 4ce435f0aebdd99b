"""The last Python traceback in a log, whoever printed it and through whatever prefix."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# What Ray puts before the lines of a worker: its name, pid and, from afar, address.
_PREFIX = re.compile(r"^\([^()]{0,200}pid=\d+[^()]{0,100}\) ?")
_BEGIN = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?')
_END = re.compile(
    r"^(?!INFO|WARNING|DEBUG|ERROR|CRITICAL)(?P<type>[A-Za-z_][\w.]*)(?::\s?(?P<message>.*))?$"
)
_NAMED = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt|Exit|Failure|Timeout)\b")
_CHAINED = re.compile(
    r"During handling of the above exception|direct cause of the following exception"
)
LONGEST = 60  # lines kept of one traceback


@dataclass(frozen=True, slots=True)
class Trace:
    """One traceback. `kind` is the exception's type as printed (`ml_pipelines.errors.NotFound`)."""

    kind: str
    message: str
    place: str  # "train.py:12 in step", or empty
    lines: tuple[str, ...]
    before: tuple[str, ...] = ()  # of the tracebacks that it says it came from

    @property
    def cause(self) -> str:
        """The same for the same failure: the type and place, without values and line numbers."""
        return f"{self.kind} at {re.sub(r':[0-9]+', '', self.place)}" if self.place else self.kind

    @property
    def sentence(self) -> str:
        """For people: type, first line of the message, place."""
        said = f": {self.message}" if self.message else ""
        where = f" ({self.place})" if self.place else ""
        return f"{self.kind}{said}{where}"


def plain(line: str) -> str:
    """The line without colours and without Ray's prefix."""
    return _PREFIX.sub("", _ANSI.sub("", line).rstrip("\r\n"))


def names_an_error(text: str) -> bool:
    """Whether this plain line is the last one of a traceback: an exception by its name."""
    return bool(_NAMED.match(text)) and _END.match(text) is not None


def last_trace(lines: Sequence[str]) -> Trace | None:
    """The last traceback of a log's last lines; one whose beginning is cut off is found too."""
    texts = [plain(line) for line in lines]
    starts = [number for number, text in enumerate(texts) if text.strip() == _BEGIN]
    if starts:
        found = _from(texts, starts[-1])
        if found is not None:
            return replace(found, before=_before(texts, starts))
    for text in reversed(texts):
        if _NAMED.match(text) and (end := _END.match(text)):
            return Trace(end["type"], (end["message"] or "").strip()[:500], "", (text,))
    return None


def _from(texts: Sequence[str], start: int) -> Trace | None:
    indent = len(texts[start]) - len(texts[start].lstrip())
    place = ""
    for number in range(start + 1, len(texts)):
        text = texts[number][indent:] if not texts[number][:indent].strip() else texts[number]
        frame = _FRAME.match(text)
        if frame:
            place = _place(frame, place)
        elif text and not text[0].isspace() and (end := _END.match(text)):
            kept = tuple(texts[start : number + 1])
            return Trace(end["type"], (end["message"] or "").strip()[:500], place, _short(kept))
    return None


def _before(texts: Sequence[str], starts: Sequence[int]) -> tuple[str, ...]:
    """What stands from the first traceback of the last one's chain on."""
    first = starts[-1]
    for start in reversed(starts[:-1]):
        if not any(_CHAINED.search(text) for text in texts[max(first - 3, 0) : first]):
            break
        first = start
    return tuple(texts[first : starts[-1]])


def _place(frame: re.Match[str], before: str) -> str:
    # The user's own code is worth more than the library that it called last.
    if "site-packages" in frame["file"] and before:
        return before
    name = frame["file"].rsplit("/", 1)[-1]
    inside = f" in {frame['function']}" if frame["function"] else ""
    return f"{name}:{frame['line']}{inside}"


def _short(lines: tuple[str, ...]) -> tuple[str, ...]:
    if len(lines) <= LONGEST:
        return lines
    half = LONGEST // 2
    return (*lines[:half], f"… {len(lines) - LONGEST} lines …", *lines[-half:])
