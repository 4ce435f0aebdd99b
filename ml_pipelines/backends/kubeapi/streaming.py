"""An answer that is read as it comes: a watch, or a log that is followed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from ml_pipelines.backends.kubeapi.errors import error_of
from ml_pipelines.backends.kubeapi.link import fault_of, faults

_CHUNK = 64 * 1024


class Stream(Iterator[bytes]):
    """Chunks as they come. Ends where the server ended the answer whole, or after `abort`.

    Anything else raises KubeUnavailable: silence for `read_timeout_s`, a reset, half an answer.
    """

    def __init__(self, response: Any, what: str, where: str, read_timeout_s: float) -> None:
        self._response = response
        self._what = what
        self._where = where
        self._read_timeout_s = read_timeout_s
        self._aborted = False
        # The answer began within a shorter time-out; from now on silence is allowed this long.
        connection = response.connection
        if connection is not None and connection.sock is not None:
            connection.sock.settimeout(read_timeout_s)

    def __next__(self) -> bytes:
        if self._aborted:
            raise StopIteration
        try:
            chunk: bytes = self._response.read1(_CHUNK)
        except Exception as err:
            if self._aborted:  # whatever a socket says that another thread has just shut down
                raise StopIteration from err
            if not isinstance(err, faults()):
                raise
            outcome = fault_of(err, self._read_timeout_s)
            raise error_of(outcome, self._what, self._where) from err
        if not chunk:
            raise StopIteration
        return chunk

    def abort(self) -> None:
        """End it from another thread: a read that waits returns at once."""
        self._aborted = True
        try:
            self._response.shutdown()
        except (OSError, RuntimeError, ValueError):  # it has ended by itself meanwhile
            return

    def close(self) -> None:
        """Give the connection back, or up where the answer was not read to its end."""
        if self._response.closed:
            self._response.release_conn()
        else:
            self._response.close()


def json_lines(chunks: Iterable[bytes]) -> Iterator[Any]:
    """Each line's JSON value, as soon as the line is whole. Half a line at the end is dropped."""
    parts: list[bytes] = []
    for chunk in chunks:
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            parts.append(line)
            text = b"".join(parts)
            parts.clear()
            if text.strip():
                yield json.loads(text)
        if rest:
            parts.append(rest)
