"""A job's birth: checked, recorded, and only then made; or adopted where it was born before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ml_pipelines import settings
from ml_pipelines.errors import AlreadyExists, JournalCorrupt, NotFound, Refused
from ml_pipelines.job.wire import MetricGate
from ml_pipelines.journal import index
from ml_pipelines.journal.entries import Draft
from ml_pipelines.journal.record import Journal
from ml_pipelines.journal.state import Birth, JournalState
from ml_pipelines.lifecycle.platform import Platform
from ml_pipelines.spec.job import JobSpec
from ml_pipelines.spec.manifest import Identity, rayjob, spec_hash
from ml_pipelines.spec.naming import attempt_name


@dataclass(slots=True)
class Job:
    """A job that exists in run storage; `takeover` claims it from a loop that may still live."""

    run_key: str
    spec: JobSpec
    labels: Mapping[str, str]
    journal: Journal
    notices: tuple[str, ...] = ()
    adopted: bool = False
    takeover: bool = False
    gate: MetricGate = field(default_factory=MetricGate)

    def attempt_name(self, number: int) -> str:
        """The RayJob's name of that attempt."""
        return attempt_name(self.run_key, number)


def submit(
    spec: JobSpec,
    *,
    run_key: str,
    labels: Mapping[str, str],
    platform: Platform,
    exclusive: str = "",
) -> Job:
    """Record a new job, or adopt the one of this run key; nothing runs until it is followed.

    `exclusive` names what only one unfinished job may work on (a model's partition). Raises
    InvalidInput or DoesNotFit for a spec that can't be run, Refused where the run key belongs to
    another spec or where another job holds `exclusive`.
    """
    manifest = _manifest(spec, run_key, labels, 1, platform)
    notices = platform.backend.check(manifest)
    digest = spec_hash(manifest)
    journal = platform.journal(run_key)
    state = journal.read()
    adopted = state.birth is not None
    if not adopted:
        if exclusive:
            _take(exclusive, run_key, platform)
        index.mark_open(platform.store, run_key)
        birth = _birth(spec, digest, labels, exclusive, platform)
        journal.append(
            lambda now: None if now.birth else Draft("birth", birth), role="loop", claim=0
        )
        state = journal.read()
    assert state.birth is not None
    _must_match(state.birth, digest, run_key)
    return Job(run_key, spec, labels, journal, notices=notices, adopted=adopted)


def attach(run_key: str, *, platform: Platform, takeover: bool = False) -> Job:
    """The job of that key, to be followed from here. Raises NotFound, Refused."""
    journal = platform.journal(run_key)
    state = journal.read()
    if state.birth is None:
        raise NotFound(
            f"there is no job {run_key!r} in {platform.store.url}",
            remedy="See them with: mlp job list",
        )
    place = platform.backend.place
    if not state.cleaned and not same_place(state.birth.location, place.location):
        raise Refused(
            f"job {run_key} runs on {state.birth.location}, which can't be reached from here "
            f"({place.location})",
            remedy="Attach there.",
        )
    spec = JobSpec.model_validate_json(_json(state.birth.spec))
    return Job(run_key, spec, dict(state.birth.labels), journal, adopted=True, takeover=takeover)


def same_place(born: str, here: str) -> bool:
    """Whether a process here reaches a job born there.

    A location is `host/boot` on the local backend: after a reboot the host still reaches what
    the job left behind, and sees that it is gone.
    """
    return born.split("#", 1)[0] == here.split("#", 1)[0]


def manifest_of(job: Job, attempt: int, platform: Platform) -> dict[str, Any]:
    """The RayJob of one attempt of a job."""
    return _manifest(job.spec, job.run_key, job.labels, attempt, platform)


def release_exclusive(state: JournalState, run_key: str, platform: Platform) -> None:
    """Let the next job have what this one held alone."""
    key = state.birth.data.get("exclusive") if state.birth else ""
    if key and _holder(str(key), platform) == run_key:
        platform.store.delete(_lock(str(key)))


def _manifest(
    spec: JobSpec, run_key: str, labels: Mapping[str, str], attempt: int, platform: Platform
) -> dict[str, Any]:
    identity = Identity(run_key=run_key, attempt=attempt, labels=labels)
    return rayjob(
        spec,
        platform.pools,
        identity,
        runs=platform.settings.runs,
        lake=platform.settings.lake,
    )


def _birth(
    spec: JobSpec, digest: str, labels: Mapping[str, str], exclusive: str, platform: Platform
) -> dict[str, Any]:
    place = platform.backend.place
    return {
        "name": spec.name,
        "owner": spec.owner,
        "spec": spec.model_dump(mode="json"),
        "spec_hash": digest,
        "backend": place.backend,
        "location": place.location,
        "owes_result": spec.owes_result,
        "labels": dict(labels),
        "exclusive": exclusive,
        "code_location": settings.CODE_LOCATION,
        "created_at": platform.clock.now().isoformat(),
    }


def _must_match(birth: Birth, digest: str, run_key: str) -> None:
    if birth.spec_hash != digest:
        raise Refused(
            f"job {run_key} exists with another spec ({birth.spec_hash[:12]}, now {digest[:12]})",
            remedy="Start a new run; a retry must keep the config of the run it retries.",
        )


def _take(key: str, run_key: str, platform: Platform) -> None:
    for _ in range(3):
        try:
            platform.store.create(_lock(key), run_key.encode())
        except AlreadyExists:
            holder = _holder(key, platform)
            if holder == run_key:
                return
            if holder and not _over(holder, platform):
                raise Refused(
                    f"{key} is being worked on by job {holder}",
                    remedy=f"Wait for it, or stop it with: mlp job cancel {holder}",
                ) from None
            platform.store.delete(_lock(key))
        else:
            return
    raise Refused(f"{key} is being taken by several jobs at once", remedy="Try again.")


def _over(run_key: str, platform: Platform) -> bool:
    try:
        state = platform.journal(run_key).read()
    except JournalCorrupt:
        return False
    return state.birth is None or state.ended is not None


def _holder(key: str, platform: Platform) -> str:
    try:
        return platform.store.get(_lock(key)).decode()
    except NotFound:
        return ""


def _lock(key: str) -> str:
    return f"exclusive/{key}"


def _json(data: object) -> str:
    import json

    return json.dumps(data)
