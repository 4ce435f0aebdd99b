"""From settings to a connected Api."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ml_pipelines.backends.kubeapi.api import Api
from ml_pipelines.backends.kubeapi.login import find

if TYPE_CHECKING:
    from ml_pipelines.clock import Clock


def connect(
    *, context: str = "", namespace: str = "", clock: Clock,
    environ: Mapping[str, str] | None = None,
) -> Api:  # fmt: skip
    """The API server of a kubeconfig's context, or of the pod we run in; nothing is sent yet.

    Empty: the kubeconfig's current context, and the context's (or the pod's) own namespace. Raises
    InvalidInput where there is no such context or no configuration at all, BackendUnavailable where
    the credentials can't be had now.
    """
    return Api(find(context, namespace, os.environ if environ is None else environ), clock=clock)
