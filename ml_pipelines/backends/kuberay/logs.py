"""The logs of followed RayJobs: which pod tells which log, each followed once, by one request.

Sources are `driver` (of the incarnation that runs now, or ran last), `driver/CLUSTER` (of one that
is named by its RayCluster) and `worker/POD`.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ml_pipelines.backends.base import LogChunk
from ml_pipelines.backends.kubeapi import path_of
from ml_pipelines.backends.kuberay.fields import (
    CLUSTER_LABEL,
    as_dict,
    as_list,
    as_text,
    is_head,
    labels_of,
)
from ml_pipelines.backends.kuberay.podlog import BUFFER_BYTES, PodLog
from ml_pipelines.spec.logship import CONTAINER, DRIVER_LOG, WORKER_TAG

if TYPE_CHECKING:
    from ml_pipelines.backends.kubeapi import Api

    Object = Mapping[str, Any]

WORKER_BYTES = 1 << 20  # of each worker that wait to be read


@dataclass(slots=True)
class _Attempt:
    """What was ever seen of one RayJob: its pods go before their logs are read."""

    cluster: str = ""  # that it runs on, or ran on last
    heads: dict[str, tuple[str, str]] = field(default_factory=dict)  # cluster → made at, pod
    job_ids: dict[str, str] = field(default_factory=dict)  # cluster → Ray's submission id
    begun: dict[str, bool] = field(default_factory=dict)  # pod → whether its log is over
    logs: dict[str, PodLog] = field(default_factory=dict)  # source → what is followed
    pods: dict[str, str] = field(default_factory=dict)  # source → of which pod

    def head(self, cluster: str) -> str:
        """The newest head pod that was seen of it."""
        return self.heads.get(cluster, ("", ""))[1]


class JobLogs:
    """Follows the logs that are asked for, as long as they are."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._attempts: dict[str, _Attempt] = {}

    def read(
        self,
        name: str,
        source: str,
        offset: int,
        limit: int,
        *,
        rayjob: Object | None,
        pods: Iterable[Object],
    ) -> LogChunk:
        """As Backend.read_log; `rayjob` and `pods` as the API server shows them now."""
        with self._lock:
            attempt = self._attempts.setdefault(name, _Attempt())
            _learn(attempt, rayjob, pods)
            kind, _, whose = source.partition("/")
            if kind == "driver":
                whose = whose or attempt.cluster
            source_key = f"{kind}/{whose}"
            pod = attempt.head(whose) if kind == "driver" else whose
            log = attempt.logs.get(source_key)
            if log is None or (attempt.pods[source_key] != pod and not log.came):
                # Not followed yet, or its head was replaced before the driver began.
                opened = self._open(attempt, kind, whose, offset)
                if opened is None:
                    return LogChunk(source, offset, b"")
                if log is not None:
                    log.stop()
                attempt.logs[source_key] = log = opened
                attempt.pods[source_key] = pod
            if attempt.begun.get(attempt.pods[source_key]) and not log.container_over:
                log.is_over()
        return log.read(source, offset, limit)

    def driver_ended(self, name: str) -> bool:
        """Whether the log of its driver is followed, and nobody writes it any more."""
        with self._lock:
            attempt = self._attempts.get(name)
            log = attempt.logs.get(f"driver/{attempt.cluster}") if attempt else None
        return log is not None and log.ended

    def forget(self, name: str) -> None:
        """Nobody wants these logs any more."""
        with self._lock:
            attempt = self._attempts.pop(name, None)
        for log in attempt.logs.values() if attempt else ():
            log.stop()

    def close(self) -> None:
        """Follow nothing any more."""
        for name in list(self._attempts):
            self.forget(name)

    def _open(self, attempt: _Attempt, kind: str, whose: str, offset: int) -> PodLog | None:
        """Follow it where its container has begun; before that the server would only refuse."""
        pod, tag, room = whose, WORKER_TAG, WORKER_BYTES
        if kind == "driver":
            pod, job_id = attempt.head(whose), attempt.job_ids.get(whose, "")
            if not job_id:
                return None
            tag, room = driver_tag(job_id), BUFFER_BYTES
        if pod not in attempt.begun:
            return None
        path = path_of("pods", self._api.namespace, pod, "log")
        return PodLog(self._api, path, tag, start=offset, room=room)


def driver_tag(job_id: str) -> str:
    """The tag of a driver's records: the CRC of its log file's name."""
    return f"{zlib.crc32(DRIVER_LOG.format(job_id).encode()):08x}"


def log_state(pod: Object) -> bool | None:
    """Whether a pod's log container is over; None before it has begun, or where there is none."""
    status = as_dict(pod.get("status"))
    for one in map(as_dict, as_list(status.get("initContainerStatuses"))):
        state = as_dict(one.get("state"))
        if one.get("name") == CONTAINER and (state.get("running") or state.get("terminated")):
            return not state.get("running") and status.get("phase") in {"Succeeded", "Failed"}
    return None


def _learn(attempt: _Attempt, rayjob: Object | None, pods: Iterable[Object]) -> None:
    status = as_dict(rayjob.get("status")) if rayjob else {}
    cluster, job_id = as_text(status.get("rayClusterName")), as_text(status.get("jobId"))
    if cluster:
        attempt.cluster = cluster
    if cluster and job_id:
        attempt.job_ids[cluster] = job_id
    for pod in pods:
        metadata = as_dict(pod.get("metadata"))
        name = as_text(metadata.get("name"))
        if is_head(pod):
            made = as_text(metadata.get("creationTimestamp"))
            cluster = as_text(labels_of(pod).get(CLUSTER_LABEL))
            attempt.heads[cluster] = max(attempt.heads.get(cluster, ("", "")), (made, name))
        state = log_state(pod)
        if state is not None:
            attempt.begun[name] = state
