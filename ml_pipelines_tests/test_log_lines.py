"""Bytes become lines, each exactly once, however the bytes were cut."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipelines.backends.base import LogChunk
from ml_pipelines.backends.logs import Line, LineAssembler

LIMIT = 12

pieces = st.sampled_from(
    [
        b"a",
        b"  ",
        b"\n",
        b"\r",
        b"\r\n",
        "█".encode(),
        "é".encode(),
        b"\xe2",
        b"\xff",
        b"{}",
        b"0123456789",
    ]
)
logs = st.lists(pieces, max_size=60).map(b"".join)


def lines_of(data: bytes, cuts: list[int] | None = None, *, limit: int = LIMIT) -> list[Line]:
    """All lines of `data`, fed in chunks that end at `cuts`."""
    assembler = LineAssembler(limit=limit)
    found, start = [], 0
    for end in sorted({min(cut, len(data)) for cut in cuts or []} | {len(data)}):
        found += assembler.feed(data[start:end])
        start = end
    return found + assembler.flush()


@given(logs, st.lists(st.integers(0, 600), max_size=20))
def test_any_chunking_gives_the_same_lines(data: bytes, cuts: list[int]):
    """Cases D1, D7, D10: cut anywhere, the same bytes are the same lines at the same offsets."""
    assert lines_of(data, cuts) == lines_of(data)


@given(logs, st.integers(0, 600))
def test_a_new_assembler_goes_on_at_the_cursor(data: bytes, cut: int):
    """Case D1: a stream cut in the middle of a line and read again gives each line once."""
    first = LineAssembler(limit=LIMIT)
    before = first.feed(data[:cut])
    second = LineAssembler(start=first.cursor, limit=LIMIT)
    after = second.feed(data[first.cursor :]) + second.flush()
    assert before + after == lines_of(data)


@given(logs)
def test_every_newline_ends_one_line(data: bytes):
    """There are as many lines as newlines, and one more where bytes are left."""
    left = 0 if data.endswith(b"\n") or not data else 1
    assert len(lines_of(data)) == data.count(b"\n") + left


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"one\ntwo\n", [("one", 0), ("two", 4)], id="plain"),
        pytest.param(b"no newline", [("no newline", 0)], id="rest"),
        pytest.param(b"", [], id="nothing"),
        pytest.param(b"\n\n", [("", 0), ("", 1)], id="empty-lines"),
        pytest.param(b"dos\r\nnext", [("dos", 0), ("next", 5)], id="crlf"),
        pytest.param(b"10%\r50%\r100%\ndone\n", [("100%", 0), ("done", 13)], id="D11-progress-bar"),
        pytest.param(b"10%\r50%\r   \n", [("50%", 0)], id="D11-cleared-bar"),
        pytest.param(b"a\xe2b\n", [("a\ufffdb", 0)], id="D7-invalid"),
        pytest.param(b"\xe9t\xe9\n", [("\ufffdt\ufffd", 0)], id="D7-latin-1"),
        pytest.param("█x\n".encode(), [("█x", 0)], id="D7-glyph"),
    ],
)
def test_lines_and_their_offsets(data: bytes, expected: list[tuple[str, int]]):
    """Cases D7, D11: glyphs stay whole, bad bytes become U+FFFD, a bar shows its last state."""
    assert lines_of(data, limit=1000) == expected


def test_a_line_over_the_limit_is_cut_and_says_so():
    """Case D10: a 5 MB line is one line, cut, in bounded memory."""
    assembler = LineAssembler(limit=1000)
    tracemalloc.start()
    lines = [line for _ in range(5000) for line in assembler.feed(b"x" * 1000)]
    lines += assembler.feed(b"\nnext\n")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [line.text for line in lines] == ["x" * 1000 + " […4999000 more bytes]", "next"]
    assert peak < 100_000


def test_a_cut_never_splits_a_character():
    """The limit falls into a glyph: the glyph is left out whole."""
    assert lines_of("██████\n".encode(), limit=4)[0].text == "█ […14 more bytes]"


def test_lost_bytes_are_marked():
    """Case D3: bytes that exist no more leave a line that says how many."""
    assembler = LineAssembler()
    assembler.feed(b"half of a li")
    lines = assembler.feed_chunk(LogChunk("driver", start=100, data=b"next\n", lost=88))
    assert lines == [
        Line("half of a li", 0),
        Line("[88 bytes of the log are lost]", 12),
        Line("next", 100),
    ]
    assert assembler.cursor == assembler.position == 105
