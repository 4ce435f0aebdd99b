"""Bytes of a log become lines, each exactly once, in bounded memory.

Logs arrive as chunks cut anywhere: in the middle of a line, of a UTF-8 character, of a JSON
message. Splitting is done on bytes and a line is decoded only when it is whole, so the same bytes
give the same lines however they were cut (the property that `test_log_lines` proves).
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ml_pipelines.backends.base import LogChunk

LINE_LIMIT = 1_000_000  # bytes of one line that are kept


class Line(NamedTuple):
    """One line without its newline; `offset` is where it begins in its source, in bytes."""

    text: str
    offset: int


class LineAssembler:
    r"""Lines of one source.

    A line ends at `\n`. Of a line with carriage returns (a progress bar) the last part that is not
    blank is kept, as a terminal would show it. A line longer than `limit` bytes is cut, and says by
    how much. Bytes that are no UTF-8 become U+FFFD. At most twice `limit` bytes are held.
    """

    def __init__(self, *, start: int = 0, limit: int = LINE_LIMIT) -> None:
        self.cursor = start
        """Offset after the last complete line: where a new assembler would go on."""
        self._limit = limit
        self._seen = start  # offset after the last byte that was fed
        self._part = bytearray()  # of the part since the last carriage return, at most `limit`
        self._dropped = 0  # bytes of that part beyond `limit`
        self._shown: str | None = None  # the last part before it that was not blank

    @property
    def position(self) -> int:
        """Offset of the next byte to feed."""
        return self._seen

    def feed(self, data: bytes) -> list[Line]:
        """Take the next bytes; returns the lines that they complete."""
        *whole, rest = data.split(b"\n")
        lines = [self._end_line(piece, newline=1) for piece in whole[:1]]
        if b"\r" in data or max(map(len, whole), default=0) > self._limit:
            lines += [self._end_line(piece, newline=1) for piece in whole[1:]]
        else:
            lines += self._plain(whole[1:])
        self._add(rest)
        return lines

    def feed_chunk(self, chunk: LogChunk) -> list[Line]:
        """Take a chunk read at `position`, or after a part that is lost: a line says so."""
        lines = []
        if chunk.lost:
            lines += self.flush()
            lines.append(Line(f"[{chunk.lost} bytes of the log are lost]", self._seen))
            self._seen = self.cursor = chunk.start
        return lines + self.feed(chunk.data)

    def flush(self) -> list[Line]:
        """End of the source: what is left is a line too, even without its newline."""
        if self._seen == self.cursor:
            return []
        return [self._end_line(b"", newline=0)]

    def _plain(self, pieces: list[bytes]) -> Iterator[Line]:
        """The usual case, made quick: whole lines that are text as they stand."""
        for piece in pieces:
            yield Line(piece.decode("utf-8", errors="replace"), self.cursor)
            self._seen = self.cursor = self.cursor + len(piece) + 1

    def _end_line(self, piece: bytes, *, newline: int) -> Line:
        self._add(piece)
        text = self._take_part()
        if self._shown is not None and not text.strip():
            text = self._shown
        line = Line(text, self.cursor)
        self._seen += newline
        self.cursor = self._seen
        self._shown = None
        return line

    def _add(self, piece: bytes) -> None:
        self._seen += len(piece)
        *before, last = piece.split(b"\r")
        for part in before:
            self._keep(part)
            text = self._take_part()
            if text.strip():
                self._shown = text
        self._keep(last)

    def _keep(self, part: bytes) -> None:
        room = max(self._limit - len(self._part), 0)
        self._part += part[:room]
        self._dropped += max(len(part) - room, 0)

    def _take_part(self) -> str:
        """The part as text; the next part begins."""
        part, dropped = bytes(self._part), self._dropped
        self._part, self._dropped = bytearray(), 0
        if dropped:
            # The cut may have split a character: the decoder holds its first bytes back.
            decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
            return f"{decoder.decode(part)} […{dropped} more bytes]"
        return part.decode("utf-8", errors="replace")
