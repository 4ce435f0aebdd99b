"""RayJobs on Kubernetes: written to the API server, run by the KubeRay operator.

What is observed comes from the watches of this process; a look costs no request.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ml_pipelines.backends import rayjob
from ml_pipelines.backends.base import LogChunk, Manifest, Place, Scope
from ml_pipelines.backends.kubeapi import (
    KubeAlreadyExists,
    KubeForbidden,
    KubeNotFound,
    KubeRefused,
    path_of,
)
from ml_pipelines.backends.kuberay import dashboard, views
from ml_pipelines.backends.kuberay.asked import Events, Nodes, Skew
from ml_pipelines.backends.kuberay.fields import (
    CLUSTER_LABEL,
    as_dict,
    as_text,
    is_head,
    labels_of,
)
from ml_pipelines.backends.kuberay.logs import JobLogs
from ml_pipelines.backends.kuberay.nudges import Nudges
from ml_pipelines.backends.kuberay.refusals import not_ours, refusal
from ml_pipelines.backends.kuberay.watches import Seen, Watch, Watches, unready_head
from ml_pipelines.errors import BackendError, BackendUnavailable
from ml_pipelines.job.observation import Observation, RayJobView
from ml_pipelines.job.status import DEPLOYMENT_ENDS
from ml_pipelines.spec.manifest import RUN_KEY_LABEL
from ml_pipelines.spec.naming import run_key_of

if TYPE_CHECKING:
    from ml_pipelines.backends.kubeapi import Api
    from ml_pipelines.clock import Clock

    Object = dict[str, Any]

HEAD_AGAIN_S = 20.0  # between two questions how a head that is not ready does
CONFIRM_AGAIN_S = 3.0  # between two questions whether a RayJob is really not there
QUOTA_AGAIN_S = 10.0
QUOTA_PATIENCE_S = 900.0


@dataclass(slots=True)
class _Look:
    """The last observation of one RayJob, and what it was made of."""

    changed: tuple[int, ...]
    made_of: tuple[object, ...]
    observation: Observation


@dataclass(slots=True)
class _Missing:
    asked_at: float
    times: int


class KubeRayBackend:
    """RayJobs of one namespace.

    `scope` is what is watched: the jobs that this process follows, or the whole namespace.
    """

    name = "kuberay"
    streams_logs = True

    def __init__(self, api: Api, clock: Clock, *, scope: Scope = "job") -> None:
        self._api = api
        self._clock = clock
        self._watches = Watches(api, scope)
        self._events = Events(api)
        self._nodes = Nodes(api)
        self._skew = Skew(api, clock)
        self._logs = JobLogs(api)
        self._nudges = Nudges(api)
        self._looks: dict[str, _Look] = {}
        self._missing: dict[str, _Missing] = {}
        self._head_asked: dict[str, float] = {}
        self._confirmed: dict[str, tuple[str, ...]] = {}
        self._quota: dict[str, tuple[float, float]] = {}  # since when, and when asked last
        self._place: Place | None = None

    def close(self) -> None:
        """End all watches, and follow no log any more."""
        self._watches.close()
        self._logs.close()

    @property
    def place(self) -> Place:
        if self._place is None:
            made = self._api.get(path_of("namespaces", "", self._api.namespace))
            self._place = Place(self.name, f"{self._api.namespace}/{made['metadata']['uid']}")
        return self._place

    # ── create ──────────────────────────────────────────────────────────────────────────────

    def check(self, manifest: Manifest) -> tuple[str, ...]:
        rayjob.runtime_env(manifest)
        try:
            self._api.create(self._path(), manifest, dry_run=True)
        except KubeAlreadyExists:
            pass  # `create` adopts it, or says whose it is
        except KubeRefused as error:
            told = refusal(error, self._api.where)
            if isinstance(error, KubeForbidden) and error.quota:
                return (f"{told.message.rstrip('.')}; the job waits for it.",)
            raise told from error
        return ()

    def create(self, manifest: Manifest) -> RayJobView:
        name = rayjob.name(manifest)
        self._wait_for_quota(name)
        for _ in range(2):
            try:
                made = self._api.create(self._path(), manifest)
                break
            except KubeAlreadyExists:
                found = self._get(name)
                if found is None:
                    continue  # it went meanwhile
                problem = not_ours(manifest, found)
                if problem is not None:
                    raise problem from None
                made = found
                break
            except KubeRefused as error:
                # Quotas and rules are asked before the name: ours may be there all the same.
                there = self._there(name)
                if there is not None and not_ours(manifest, there) is None:
                    made = there
                    break
                self._note_quota(name, error)
                raise refusal(error, self._api.where) from error
        else:
            raise BackendUnavailable(f"RayJob {name} comes and goes while it is created.")
        self._quota.pop(name, None)
        self._missing.pop(name, None)
        self._watch(name, made).rayjobs.put(made)
        return views.rayjob_view(made)

    def _there(self, name: str) -> Object | None:
        """The RayJob of that name, where it is there and may be read."""
        try:
            return self._get(name)
        except KubeRefused:
            return None

    def _wait_for_quota(self, name: str) -> None:
        """A quota that is used up is asked for at most every 10 s."""
        _, at = self._quota.get(name, (0.0, float("-inf")))
        if self._clock.monotonic() - at < QUOTA_AGAIN_S:
            raise BackendUnavailable(f"RayJob {name} waits for the namespace's quota")

    def _note_quota(self, name: str, error: KubeRefused) -> None:
        """Raises BackendUnavailable where the quota may yet be freed."""
        if not (isinstance(error, KubeForbidden) and error.quota):
            return
        now = self._clock.monotonic()
        since, _ = self._quota.get(name, (now, now))
        self._quota[name] = (since, now)
        if now - since < QUOTA_PATIENCE_S:
            told = refusal(error, self._api.where)
            raise BackendUnavailable(told.message, remedy=told.remedy) from error

    # ── observe ─────────────────────────────────────────────────────────────────────────────

    def observe(self, name: str) -> Observation:
        run_key = run_key_of(name)
        if not run_key:
            return self._observe_once(name)
        watch = self._watches.of(run_key)
        watch.fresh()
        self._ask_for_head(name, watch)
        changed = watch.changed()
        look = self._looks.get(name)
        seen = watch.seen(name)
        self._nudges.look(name, seen, ended=self._logs.driver_ended(name))
        due = self._events.due(name, seen)
        if look is not None and look.changed == changed and not due and seen.rayjob is not None:
            return look.observation
        seen = self._confirmed_view(name, watch, seen)
        if seen.rayjob is None:
            self._looks.pop(name, None)
            self._head_asked.pop(name, None)
            self._events.forget(name)
            return Observation(rayjob=None)
        if due:
            self._events.ask(name, seen)
        number, events = self._events.of(name)
        nodes = self._nodes.of(seen.pods)
        made_of = (*seen.version, number, len(nodes))
        if look is None or look.made_of != made_of:
            look = _Look(changed, made_of, self._observation(seen, events, nodes))
        look.changed = changed
        self._looks[name] = look
        return look.observation

    def _ask_for_head(self, name: str, watch: Watch) -> None:
        """A head that is not ready is asked for now and then: its watch may have fallen silent."""
        seen = watch.seen(name)
        head = unready_head(seen)
        now = self._clock.monotonic()
        if head is None:
            self._head_asked.pop(name, None)
            return
        if now - self._head_asked.setdefault(name, now) < HEAD_AGAIN_S:
            return
        self._head_asked[name] = now
        pairs = [("pods", head, watch.pods)]
        if seen.cluster is not None:
            pairs.append(("rayclusters", seen.cluster, watch.clusters))
        for kind, held, reflector in pairs:
            path = path_of(kind, self._api.namespace, held["metadata"]["name"])
            with suppress(KubeNotFound, KubeForbidden):  # the watch tells its end
                reflector.put(self._api.get(path, budget_s=0.0))

    def _observation(
        self, seen: Seen, events: list[Object], nodes: Mapping[str, Any]
    ) -> Observation:
        assert seen.rayjob is not None
        return views.observation(
            seen.rayjob,
            cluster=seen.cluster,
            pods=seen.pods,
            events=events,
            workload=seen.workload,
            nodes=nodes,
            skew_s=self._skew.seconds(),
        )

    def _confirmed_view(self, name: str, watch: Watch, seen: Seen) -> Seen:
        """What is missing is asked for, since the watches of several kinds tell in any order."""
        if seen.rayjob is None:
            found = self._really_missing(name)
        elif _lacks_head(seen) and self._confirmed.get(name) != seen.version:
            # The operator writes why it takes a head away before it does so.
            found = self._get(name)
            self._confirmed[name] = seen.version
        else:
            self._missing.pop(name, None)
            return seen
        if found is None:
            return Seen(None)
        watch.rayjobs.put(found)
        seen = watch.seen(name)
        # A watch that has passed it without it (its label was taken off) will never show it.
        return seen if seen.rayjob is not None else Seen(found)

    def _really_missing(self, name: str) -> Object | None:
        """A miss may be the watch's being late; twice the server itself is asked, then seldom."""
        now = self._clock.monotonic()
        missing = self._missing.setdefault(name, _Missing(float("-inf"), 0))
        if missing.times >= 2 and now - missing.asked_at < CONFIRM_AGAIN_S:
            return None
        found = self._get(name)
        if found is None:
            missing.asked_at, missing.times = now, missing.times + 1
        else:
            self._missing.pop(name, None)
        return found

    def _observe_once(self, name: str) -> Observation:
        """A RayJob that isn't named as ours are: no watch is worth it."""
        found = self._get(name)
        return Observation(None) if found is None else views.observation(found)

    # ── the rest ────────────────────────────────────────────────────────────────────────────

    def read_log(self, name: str, source: str, offset: int, limit: int) -> LogChunk:
        run_key = run_key_of(name)
        if not run_key:
            return LogChunk(source, offset, b"")
        watch = self._watches.of(run_key)
        watch.fresh()
        seen = watch.seen(name)
        return self._logs.read(name, source, offset, limit, rayjob=seen.rayjob, pods=seen.pods)

    def stop(self, name: str) -> None:
        found = self._get(name)
        status = as_dict(found.get("status")) if found else {}
        cluster, job_id = as_text(status.get("rayClusterName")), as_text(status.get("jobId"))
        if not cluster or not job_id or status.get("jobDeploymentStatus") in DEPLOYMENT_ENDS:
            return
        try:
            made = self._api.get(path_of("rayclusters", self._api.namespace, cluster))
        except KubeNotFound:
            return
        dashboard.stop_job(self._api, made, job_id)

    def delete(self, name: str, uid: str = "") -> None:
        try:
            self._api.delete(self._path(name), uid=uid)
        except KubeNotFound:
            pass  # without its kind nothing of it is there either
        except KubeForbidden as error:
            raise refusal(error, self._api.where) from error
        self._logs.forget(name)
        self._nudges.forget(name)

    def list(self, labels: Mapping[str, str]) -> list[RayJobView]:
        selector = ",".join(
            [f"{key}={value}" for key, value in sorted(labels.items())] or [RUN_KEY_LABEL]
        )
        try:
            found = self._api.list(self._path(), labels=selector).items
        except KubeRefused as error:
            raise refusal(error, self._api.where) from error
        return [views.rayjob_view(one) for one in found]

    def _get(self, name: str) -> Object | None:
        try:
            return self._api.get(self._path(name))
        except KubeNotFound as error:
            if error.kind_missing:
                raise _not_seen(error, self._api) from error
            return None
        except KubeForbidden as error:
            raise _not_seen(error, self._api) from error

    def _path(self, name: str = "") -> str:
        return path_of("rayjobs", self._api.namespace, name)

    def _watch(self, name: str, made: Manifest) -> Watch:
        return self._watches.of(rayjob.run_key(made) or run_key_of(name))


def _not_seen(error: KubeRefused, api: Api) -> BackendError:
    """Whether it is there can't be seen: that is no answer, so whoever watches goes on."""
    told = refusal(error, api.where)
    return BackendUnavailable(told.message, remedy=told.remedy)


def _lacks_head(seen: Seen) -> bool:
    """Whether the job says it runs, and no head that stays is seen."""
    assert seen.rayjob is not None
    status = as_dict(seen.rayjob.get("status"))
    if status.get("jobDeploymentStatus") != "Running":
        return False
    current = as_text(status.get("rayClusterName"))
    return not any(
        is_head(pod)
        and labels_of(pod).get(CLUSTER_LABEL) == current
        and not pod["metadata"].get("deletionTimestamp")
        for pod in seen.pods
    )
