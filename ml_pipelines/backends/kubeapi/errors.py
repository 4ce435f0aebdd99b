"""What an API server refused or failed to do, as errors of ours that quote its words.

KubeError
├── KubeUnavailable        temporary (a BackendUnavailable): keep watching, never kill
│   ├── KubeUnauthorized   401 although the credentials were read again
│   └── KubeGone           410: the place in the history we asked for is no longer kept
└── KubeRefused            permanent (a BackendRefused)
    ├── KubeInvalid        400, 422 and other requests the server can't take
    ├── KubeForbidden      403: by RBAC, by admission, or by a quota (`quota`)
    ├── KubeNotFound       404: no such object, or no such kind (`kind_missing`)
    └── KubeAlreadyExists  409: the name is taken
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ml_pipelines.errors import BackendError, BackendRefused, BackendUnavailable

if TYPE_CHECKING:
    from ml_pipelines.backends.kubeapi.outcome import Outcome


class KubeError(BackendError):
    """`message` is our sentence, which quotes the server; `said` is the server's words alone."""

    retry_after_s: float | None = None  # what the server asked for, where it did

    def __init__(
        self, message: str, *, status: int = 0, reason: str = "", said: str = "", remedy: str = ""
    ) -> None:
        self.status = status
        self.reason = reason
        self.said = said
        super().__init__(message, remedy=remedy)


class KubeUnavailable(KubeError, BackendUnavailable):
    """No answer, or one that may change."""


class KubeUnauthorized(KubeUnavailable):
    """The server does not know us, although the credentials were read again."""


class KubeGone(KubeUnavailable):
    """What was asked for begins before the history that the server still keeps."""


class KubeRefused(KubeError, BackendRefused):
    """The same request would be refused again."""


class KubeInvalid(KubeRefused):
    """The server can't take this request as it is written."""


class KubeForbidden(KubeRefused):
    """RBAC, an admission rule, or (`quota`) a quota that is used up and may be free later."""

    quota = False


class KubeNotFound(KubeRefused):
    """No such object; `kind_missing`: the server doesn't even know the kind (no CRD)."""

    kind_missing = False


class KubeAlreadyExists(KubeRefused):
    """The name is taken, by ours or by another's; `said` tells whether it is being deleted."""


def error_of(outcome: Outcome, what: str, where: str) -> KubeError:
    """The error for an answer that is final: `what` was asked (`GET /api/…`) of the server `where`.

    `where` names server, context and namespace in one phrase.
    """
    kind, remedy = _kind_of(outcome)
    if outcome.fault:
        message = f"{where} did not answer {what}: {outcome.said}."
    elif kind is KubeUnauthorized:
        message = f"authentication failed: {where} answered {what} with {outcome.told}."
    else:
        message = f"{where} answered {what} with {outcome.told}."
    error = kind(
        message, status=outcome.status, reason=outcome.reason, said=outcome.said, remedy=remedy
    )
    if isinstance(error, KubeForbidden):
        error.quota = outcome.quota
    if isinstance(error, KubeNotFound):
        error.kind_missing = outcome.kind_missing
    return error


def _kind_of(outcome: Outcome) -> tuple[type[KubeError], str]:  # noqa: C901 - one row a status
    status = outcome.status
    if status == 401 and outcome.from_behind:
        return KubeForbidden, "The service behind the API server wants another token."
    if status == 401 or 300 <= status < 400:
        return KubeUnauthorized, "Log in again, or see which account this process runs as."
    if outcome.fault == "certificate":
        return KubeUnavailable, "See the certificate authority in the kubeconfig."
    if status == 410:
        return KubeGone, ""
    if status == 409 and outcome.reason == "AlreadyExists":
        return KubeAlreadyExists, ""
    if status == 403 and outcome.quota:
        return KubeForbidden, "Wait for running jobs to end, or have the quota raised."
    if status == 403:
        return (
            KubeForbidden,
            "Ask the platform team for this right; `mlp doctor` lists what is needed.",
        )
    if status == 404 and outcome.kind_missing:
        return KubeNotFound, "This kind is not installed in the cluster; `mlp doctor` says what is."
    if status == 404:
        return KubeNotFound, ""
    if status in {408, 409, 425, 429} or status >= 500 or status < 400:
        return KubeUnavailable, ""
    return KubeInvalid, ""
