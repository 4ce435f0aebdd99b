"""Which answers of an API server are tried again, and when: the table, without a server."""

from __future__ import annotations

import pytest

from ml_pipelines.backends.kubeapi.errors import (
    KubeAlreadyExists,
    KubeError,
    KubeForbidden,
    KubeGone,
    KubeInvalid,
    KubeNotFound,
    KubeUnauthorized,
    KubeUnavailable,
    error_of,
)
from ml_pipelines.backends.kubeapi.outcome import Outcome, of_status, read
from ml_pipelines.backends.kubeapi.retries import DEFAULT, retry_after
from ml_pipelines.errors import BackendRefused, BackendUnavailable

QUOTA = 'pods "x" is forbidden: exceeded quota: gpus, requested: 4, used: 8, limited: 8'
RBAC = 'rayjobs.ray.io is forbidden: User "x" cannot create resource "rayjobs"'
NO_ROLES_YET = RBAC + '; RBAC: clusterrole.rbac.authorization.k8s.io "view" not found'
UID = "the UID in the precondition (a) does not match the UID in record (b)"

TRIED_AGAIN = [
    Outcome(408),
    Outcome(409, "Conflict", "quota was changed meanwhile"),
    Outcome(429),
    Outcome(403, "Forbidden", NO_ROLES_YET),
    *(Outcome(status) for status in (500, 502, 503, 504)),
    *(Outcome(fault=fault) for fault in ("dns", "refused", "timeout", "reset")),
]
FINAL = [
    Outcome(400),
    Outcome(403, "Forbidden", QUOTA),
    Outcome(403, "Forbidden", RBAC),
    Outcome(404),
    Outcome(405),
    Outcome(409, "AlreadyExists"),
    Outcome(409, "Conflict", UID, uid_conflict=True),
    Outcome(410, "Expired"),
    Outcome(413),
    Outcome(422, "Invalid"),
    Outcome(302),
]


@pytest.mark.parametrize("outcome", TRIED_AGAIN, ids=str)
def test_what_may_change_is_tried_again_with_growing_jittered_waits(outcome: Outcome) -> None:
    """Cases C14, B4: each wait grows to a limit, and no two clients wait the same time."""
    least = [retry_after(outcome, n, 30.0, 0.0) for n in range(1, 9)]
    most = [retry_after(outcome, n, 30.0, 1.0) for n in range(1, 9)]
    assert least == sorted(least, key=lambda wait: wait or 0.0)
    assert all(
        a is not None and b is not None and b == 2 * a for a, b in zip(least, most, strict=True)
    )
    assert most[-1] == DEFAULT.longest_wait_s


@pytest.mark.parametrize("outcome", FINAL, ids=str)
def test_what_would_be_refused_again_is_final_at_once(outcome: Outcome) -> None:
    """Case C16: quota, RBAC, 422 and 404 fail at once; back-off on a quota is the caller's."""
    assert retry_after(outcome, 1, 30.0, 0.5) is None


def test_no_wait_goes_beyond_the_budget() -> None:
    """A call ends when its budget does, also where the server asks for more."""
    assert retry_after(Outcome(503), 1, 0.01, 1.0) is None
    assert retry_after(Outcome(429, retry_after_s=20), 1, 15.0, 0.0) is None


def test_retry_after_is_waited_for_and_capped() -> None:
    """Case C15: at least what the server asked for, at most the cap, and slightly spread."""
    assert retry_after(Outcome(429, retry_after_s=3), 1, 30.0, 0.0) == 3
    spread = retry_after(Outcome(503, retry_after_s=3), 1, 30.0, 1.0)
    assert spread is not None
    assert 3 < spread < 4
    assert retry_after(Outcome(429, retry_after_s=3600), 1, 30.0, 0.0) == DEFAULT.longest_asked_s


def test_a_refused_login_is_tried_at_once_and_then_twice_whatever_the_budget() -> None:
    """Case C13: new credentials get their try; a login that stays refused ends within seconds."""
    waits = [retry_after(Outcome(401), n, 0.0, 1.0) for n in (1, 2, 3)]
    assert waits == [0.0, 2.0, None]


def test_a_401_of_a_service_behind_the_proxy_is_not_ours() -> None:
    """Ray's own 401 through the API server's proxy must not have our credentials read again."""
    outcome = read(401, {}, b"Unauthorized: Missing token", proxied=True)
    assert retry_after(outcome, 1, 30.0, 0.0) is None
    error = error_of(outcome, "GET /x", "Kubernetes")
    assert isinstance(error, KubeForbidden)
    assert "Missing token" in str(error)


ERRORS = [
    (Outcome(400), KubeInvalid),
    (Outcome(401), KubeUnauthorized),
    (Outcome(302), KubeUnauthorized),
    (Outcome(403, said=RBAC), KubeForbidden),
    (Outcome(404), KubeNotFound),
    (Outcome(409, "AlreadyExists"), KubeAlreadyExists),
    (Outcome(409, "Conflict"), KubeUnavailable),
    (Outcome(410), KubeGone),
    (Outcome(413), KubeInvalid),
    (Outcome(422), KubeInvalid),
    (Outcome(429), KubeUnavailable),
    (Outcome(503), KubeUnavailable),
    (Outcome(fault="reset"), KubeUnavailable),
]


@pytest.mark.parametrize(("outcome", "kind"), ERRORS, ids=str)
def test_each_answer_has_its_error(outcome: Outcome, kind: type[KubeError]) -> None:
    """Temporary ones are BackendUnavailable, permanent ones BackendRefused, and never both."""
    error = error_of(outcome, "GET /x", "Kubernetes")
    assert type(error) is kind
    assert isinstance(error, BackendUnavailable) != isinstance(error, BackendRefused)


def test_quota_rbac_missing_kind_and_missing_object_are_told_apart() -> None:
    """Case C16: each with the server's own words."""
    quota = _error(403, QUOTA)
    rbac = _error(403, RBAC)
    assert isinstance(quota, KubeForbidden)
    assert isinstance(rbac, KubeForbidden)
    assert (quota.quota, rbac.quota) == (True, False)
    assert "requested: 4, used: 8" in str(quota)
    assert RBAC in str(rbac)
    no_kind = error_of(read(404, {}, b"404 page not found\n", proxied=False), "GET /x", "K")
    no_object = _error(404, 'rayjobs "x" not found', '{"name": "x"}')
    assert isinstance(no_kind, KubeNotFound)
    assert isinstance(no_object, KubeNotFound)
    assert (no_kind.kind_missing, no_object.kind_missing) == (True, False)


@pytest.mark.parametrize("status", [{}, {"code": None}, {"message": "x", "details": None}])
def test_an_error_event_may_say_nothing(status: dict[str, object]) -> None:
    """Case C10: an ERROR event without an object, or with half of one."""
    assert of_status(status).status == 500


def test_retry_after_as_a_date_is_ignored() -> None:
    """A date would need a clock that agrees with the server's."""
    date = {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}
    assert read(429, date, b"", proxied=False).retry_after_s is None


def _error(code: int, message: str, details: str = "{}") -> KubeError:
    body = f'{{"kind": "Status", "message": "{_quoted(message)}", "details": {details}}}'
    return error_of(read(code, {}, body.encode(), proxied=False), "GET /x", "Kubernetes")


def _quoted(text: str) -> str:
    return text.replace('"', '\\"')
