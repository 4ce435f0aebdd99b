"""Counts this process's own requests to the API server, by urllib3's own log of them."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from dataclasses import dataclass

_KIND = re.compile(r"/(?:namespaces/[^/]+/)?([a-z]+)(?:/[^/?]+)?(?:/([a-z]+))?(?:\?|$)")
_FIELDS = 8  # scheme, host, port, method, url, version, status, length: one answered request


@dataclass(frozen=True, slots=True)
class Request:
    """One request that was answered."""

    at: float
    what: str  # "GET pods/log", "WATCH rayjobs"


class Requests(logging.Handler):
    """All requests since `begin`. A watch and a followed log are one each, when they are opened.

    Run storage does not go through urllib3, so what is counted is the API server's alone.
    """

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.made: list[Request] = []

    def begin(self) -> None:
        """Count from here on; to be called once the connection is made, which sets the level."""
        log = logging.getLogger("urllib3.connectionpool")
        log.setLevel(logging.DEBUG)
        log.propagate = False
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple) and len(record.args) == _FIELDS:
            method, url = str(record.args[3]), str(record.args[4])
            self.made.append(Request(time.monotonic(), what(method, url)))

    def between(self, start: float, end: float) -> Counter[str]:
        """How many of each, in that time."""
        return Counter(made.what for made in self.made if start <= made.at < end)


def what(method: str, url: str) -> str:
    """A request in two words."""
    path = url.split("/api", 1)[-1]
    found = _KIND.search(re.sub(r"^(s/[^/]+)?/v[^/]+", "", path))
    kind = "/".join(part for part in found.groups() if part) if found else path
    return f"{'WATCH' if 'watch=1' in url else method} {kind}"
