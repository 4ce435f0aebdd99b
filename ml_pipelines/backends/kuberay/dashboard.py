"""Ray's own API, reached through the API server's proxy with the cluster's token."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from ml_pipelines.backends.kubeapi import KubeForbidden, KubeNotFound, path_of
from ml_pipelines.backends.kuberay.fields import as_dict, as_text
from ml_pipelines.errors import BackendRefused, BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ml_pipelines.backends.kubeapi import Api

# `Authorization` belongs to the API server on this way.
_TOKEN_HEADER = "x-ray-authorization"  # noqa: S105 - a header's name
_PORT = "dashboard"


def stop_job(api: Api, cluster: Mapping[str, Any], job_id: str) -> None:
    """Ask Ray to end the driver: SIGTERM, then SIGKILL. A job that Ray doesn't know is no error.

    Nothing of ours needs it: jobs are ended by deleting them. So our Role doesn't give the rights,
    and BackendRefused says so.
    """
    head = as_dict(as_dict(cluster.get("status")).get("head"))
    service = as_text(head.get("serviceName"))
    if not service:
        raise BackendUnavailable(f"RayCluster {cluster['metadata']['name']} has no head yet.")
    name = str(cluster["metadata"]["name"])
    path = path_of(
        "services", api.namespace, f"{service}:{_PORT}", f"proxy/api/jobs/{job_id}/stop"
    )  # fmt: skip
    try:
        headers = {"Content-Type": "application/json", **_token(api, name)}
        api.send("POST", path, body=b"{}", headers=headers)
    except KubeNotFound:
        return  # neither the service nor the job is there
    except KubeForbidden as error:
        raise BackendRefused(
            f"Stopping a driver through Ray's own API needs rights to Secrets and to services/proxy"
            f" in {api.namespace}, which the Role of deploy/base leaves out: "
            f"{error.said or error.message}",
            remedy="End the job instead, which deletes it: mlp job cancel.",
        ) from error


def _token(api: Api, cluster: str) -> dict[str, str]:
    """The header with the token that the operator made for this cluster; none where it made none."""
    try:
        secret = api.get(path_of("secrets", api.namespace, cluster))
        token = base64.b64decode(secret["data"]["auth_token"]).decode()
    except KubeNotFound:
        return {}
    except (KeyError, TypeError, binascii.Error, UnicodeDecodeError) as err:
        raise BackendUnavailable(
            f"Secret {cluster} does not hold the token of Ray's API: {err!r}."
        ) from err
    return {_TOKEN_HEADER: f"Bearer {token}"}
