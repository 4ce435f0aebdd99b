"""One set of address and credentials, with its connections; replaced as a whole after a 401."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from ml_pipelines.backends.kubeapi.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

_IDLE_CONNECTIONS = 16  # kept for the next request; streams beyond it open and close their own
_USER_AGENT = "ml-pipelines"


class Link:
    """Sends single requests; whoever sends through an old link after a new one came still may."""

    def __init__(self, configuration: Any) -> None:
        import logging

        import urllib3
        from kubernetes.client import ApiClient

        configuration.retries = False
        configuration.connection_pool_maxsize = _IDLE_CONNECTIONS
        configuration.socket_options = [
            *urllib3.connection.HTTPConnection.default_socket_options,
            *_keepalive(),
        ]
        if not configuration.verify_ssl:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        # More streams than idle connections are meant, and worth no warning.
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
        self.server = str(configuration.host).rstrip("/")
        self._client = ApiClient(configuration)
        self._pool = self._client.rest_client.pool_manager
        self._headers = {"User-Agent": _USER_AGENT, "Accept": "application/json"}
        self._client.update_params_for_auth(self._headers, [], ["BearerToken"])

    def send(
        self, method: str, path: str, *, query: Mapping[str, str], body: bytes | None,
        headers: Mapping[str, str], connect_s: float, read_s: float,
    ) -> Any:  # fmt: skip
        """One request; the answer's body is still to be read. Raises what `fault_of` reads."""
        import urllib3

        url = self.server + path
        if query:
            url += f"?{urlencode(query)}"
        return self._pool.request(
            method, url, body=body, headers={**self._headers, **headers},
            timeout=urllib3.Timeout(connect=connect_s, read=read_s),
            preload_content=False, retries=False, redirect=False,
        )  # fmt: skip

    def close(self) -> None:
        """Close the idle connections; one in use closes after its answer."""
        self._pool.clear()


def faults() -> tuple[type[Exception], ...]:
    """What a request that gets no whole answer may raise."""
    from http.client import HTTPException

    from urllib3.exceptions import HTTPError

    return (HTTPError, HTTPException, OSError)


def fault_of(error: BaseException, waited_s: float) -> Outcome:
    """The outcome of a request that got no whole answer."""
    from urllib3 import exceptions as broken

    if isinstance(error, broken.NameResolutionError):
        return Outcome(fault="dns", said="its host name can't be resolved")
    if "Connection refused" in str(error):
        return Outcome(fault="refused", said="the connection was refused")
    if isinstance(error, broken.NewConnectionError):
        return Outcome(fault="unreachable", said=f"it can't be reached ({error})")
    if isinstance(error, broken.ConnectTimeoutError):
        return Outcome(fault="timeout", said="no connection within the time-out")
    if isinstance(error, broken.ReadTimeoutError | TimeoutError):
        return Outcome(fault="timeout", said=f"nothing came for {waited_s:g} s")
    if isinstance(error, broken.SSLError):
        if "CERTIFICATE_VERIFY_FAILED" in str(error) or "match" in str(error):
            return Outcome(fault="certificate", said=f"its certificate can't be trusted ({error})")
        return Outcome(fault="reset", said=f"TLS failed ({error})")
    return Outcome(fault="reset", said=f"the connection broke ({error or type(error).__name__})")


def _keepalive() -> list[tuple[int, int, int]]:
    """Have the kernel notice a peer that vanished, also where we only wait for it to speak."""
    wanted = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 50_000}
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in wanted.items():
        if hasattr(socket, name):  # not every system has them all
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options
