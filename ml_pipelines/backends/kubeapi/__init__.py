"""The one place that talks to a Kubernetes API server."""

from ml_pipelines.backends.kubeapi.api import Api, Listing
from ml_pipelines.backends.kubeapi.connecting import connect
from ml_pipelines.backends.kubeapi.errors import (
    KubeAlreadyExists,
    KubeError,
    KubeForbidden,
    KubeGone,
    KubeInvalid,
    KubeNotFound,
    KubeRefused,
    KubeUnauthorized,
    KubeUnavailable,
)
from ml_pipelines.backends.kubeapi.paths import path_of
from ml_pipelines.backends.kubeapi.reflector import Reflector
from ml_pipelines.backends.kubeapi.streaming import Stream

__all__ = [
    "Api",
    "KubeAlreadyExists",
    "KubeError",
    "KubeForbidden",
    "KubeGone",
    "KubeInvalid",
    "KubeNotFound",
    "KubeRefused",
    "KubeUnauthorized",
    "KubeUnavailable",
    "Listing",
    "Reflector",
    "Stream",
    "connect",
    "path_of",
]
