"""Ray's Jobs API over plain HTTP, without importing ray.

Every call has a time-out. No answer, or one that may change, is BackendUnavailable; a request that
Ray will never take is BackendRefused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import requests

from ml_pipelines.errors import BackendRefused, BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

ANSWER_S = 3.0
SUBMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class RayJobInfo:
    """What Ray says of one submission. Statuses: PENDING RUNNING STOPPED SUCCEEDED FAILED."""

    status: str
    message: str = ""
    error_type: str = ""
    exit_code: int | None = None


class JobsApi:
    """The Jobs API of one head."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy from the environment can't reach our loopback
        self._session.headers["Authorization"] = f"Bearer {token}"

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            return self._call("GET", "/api/jobs/", ANSWER_S).ok
        except BackendUnavailable:
            return False

    def submit(
        self, job_id: str, entrypoint: str, *, runtime_env: Mapping[str, Any],
        metadata: Mapping[str, str],
    ) -> None:  # fmt: skip
        """Submit once under that id: a lost answer is resolved by `info`, never by trying blindly.

        Raises BackendRefused with Ray's words, BackendUnavailable where it may have been taken.
        """
        body = {
            "entrypoint": entrypoint, "submission_id": job_id,
            "runtime_env": runtime_env, "metadata": metadata,
        }  # fmt: skip
        answer = self._call("POST", "/api/jobs/", SUBMIT_S, body)
        if answer.status_code == requests.codes.bad_request:
            raise BackendRefused(f"Ray refused the job: {_last_line(answer.text)}")
        _need_ok(answer)

    def info(self, job_id: str) -> RayJobInfo | None:
        """What became of it; None where Ray does not know it."""
        answer = self._call("GET", f"/api/jobs/{job_id}", ANSWER_S)
        if answer.status_code == requests.codes.not_found:
            return None
        _need_ok(answer)
        try:
            data = answer.json()
            return RayJobInfo(
                status=str(data["status"]),
                message=data.get("message") or "",
                error_type=data.get("error_type") or "",
                exit_code=data.get("driver_exit_code"),
            )
        except (ValueError, KeyError, AttributeError) as err:
            raise BackendUnavailable(f"Ray's answer can't be read: {answer.text[:200]!r}") from err

    def stop(self, job_id: str) -> None:
        """Ask for SIGTERM to the driver, and SIGKILL 3 s later. Unknown to Ray: no error."""
        answer = self._call("POST", f"/api/jobs/{job_id}/stop", ANSWER_S)
        if answer.status_code != requests.codes.not_found:
            _need_ok(answer)

    def close(self) -> None:
        """Give the connections back."""
        self._session.close()

    def _call(
        self, verb: str, path: str, timeout: float, body: Mapping[str, Any] | None = None
    ) -> requests.Response:
        try:
            return self._session.request(verb, self._url + path, json=body, timeout=timeout)
        except requests.RequestException as err:
            raise BackendUnavailable(f"No answer from Ray at {self._url}: {err}") from err


def _need_ok(answer: requests.Response) -> None:
    if not answer.ok:
        raise BackendUnavailable(f"Ray answered {answer.status_code}: {_last_line(answer.text)}")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:500] if lines else "no reason given"
