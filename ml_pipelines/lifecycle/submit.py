"""A job's birth: checked, recorded, and only then made; or adopted where it was born before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from ml_pipelines import settings
from ml_pipelines.errors import NotFound, Refused
from ml_pipelines.job.wire import MetricGate
from ml_pipelines.journal import index
from ml_pipelines.journal.entries import Draft
from ml_pipelines.journal.record import Journal
from ml_pipelines.journal.state import Birth, JournalState
from ml_pipelines.lifecycle import exclusive as holds
from ml_pipelines.lifecycle.platform import Platform
from ml_pipelines.spec.job import RECORDED, JobSpec
from ml_pipelines.spec.manifest import Identity, rayjob, spec_hash, storage_digest
from ml_pipelines.spec.naming import attempt_name
from ml_pipelines.spec.validate import explain

# What says whose the job is, for people, and what a new package brings: neither is the work.
_UNCOMPARED = {"name", "code", "owner", "team", "experiment"}


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
    digest: str = ""  # of the manifest that it was begun with
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
    another spec or another place, or where another job holds `exclusive`. An adopted job goes on
    with the spec and the code that it was begun with.
    """
    journal = platform.journal(run_key)
    state = journal.read()
    adopted = state.birth is not None
    notices: tuple[str, ...] = ()
    digest = ""
    # What was begun goes on, also where it would be refused today: a quota that it fills itself, a
    # platform file that has changed.
    if not adopted:
        manifest = _manifest(spec, run_key, labels, 1, platform)
        digest = spec_hash(manifest)
        notices = () if state.ended else platform.backend.check(manifest)
    if exclusive and not state.ended:
        holds.take(exclusive, run_key, platform)
    if not adopted:
        index.mark_open(platform.store, run_key)
        birth = _birth(spec, digest, labels, exclusive, platform)
        journal.append(
            lambda now: None if now.birth else Draft("birth", birth), role="loop", claim=0
        )
        state = journal.read()
    assert state.birth is not None
    recorded = _recorded(state.birth, run_key)
    _must_match(recorded, spec, run_key)
    if recorded.code != spec.code:
        notices = (*notices, f"Job {run_key} goes on with the code that it was begun with.")
    _must_reach(state, run_key, platform)
    if not state.cleaned:
        # Again: the keeper may have taken the marker of a birth that was long in coming.
        index.mark_open(platform.store, run_key)
    if exclusive and not state.ended:
        holds.must_hold(exclusive, run_key, platform)
    begun = state.birth.spec_hash
    return Job(run_key, recorded, labels, journal, notices=notices, adopted=adopted, digest=begun)


def attach(run_key: str, *, platform: Platform, takeover: bool = False) -> Job:
    """The job of that key, to be followed from here.

    Raises NotFound; Refused where it runs in a place that can't be reached from here, or where its
    spec was written by a version that this one doesn't understand.
    """
    return _attach(run_key, platform, takeover=takeover, to_end_it=False)


def attach_to_end(run_key: str, *, platform: Platform) -> Job:
    """As `attach` with takeover, for a job that will only be stopped or cleaned up.

    That needs no spec: so another version's job can be removed too.
    """
    return _attach(run_key, platform, takeover=True, to_end_it=True)


def _attach(run_key: str, platform: Platform, *, takeover: bool, to_end_it: bool) -> Job:
    journal = platform.journal(run_key)
    state = journal.read()
    birth = state.birth
    if birth is None:
        raise NotFound(
            f"there is no job {run_key!r} in {platform.store.url}",
            remedy="See them with: mlp job list",
        )
    _must_reach(state, run_key, platform)
    try:
        spec = _recorded(birth, run_key)
    except Refused:
        if not to_end_it:
            raise
        spec = JobSpec(name="unreadable", entrypoint=("false",))
    labels = dict(birth.labels)
    begun = birth.spec_hash
    return Job(run_key, spec, labels, journal, adopted=True, takeover=takeover, digest=begun)


def _recorded(birth: Birth, run_key: str) -> JobSpec:
    """The spec that the job was begun with. Raises Refused where it can't be read any more."""
    try:
        return JobSpec.model_validate_json(json.dumps(dict(birth.spec)), context=RECORDED)
    except ValidationError as error:
        raise Refused(
            f"the spec of job {run_key} was written by another version of this package: "
            f"{explain(error).message}",
            remedy=f"Follow it with that version, or stop it: mlp job cancel {run_key}",
        ) from error


def same_place(born: str, here: str) -> bool:
    """Whether a process here reaches a job born there.

    A location is `host/boot` on the local backend: after a reboot the host still reaches what
    the job left behind, and sees that it is gone.
    """
    return born.split("#", 1)[0] == here.split("#", 1)[0]


def manifest_of(job: Job, attempt: int, platform: Platform) -> dict[str, Any]:
    """The RayJob of one attempt of a job."""
    return _manifest(job.spec, job.run_key, job.labels, attempt, platform, job.digest)


def _manifest(
    spec: JobSpec,
    run_key: str,
    labels: Mapping[str, str],
    attempt: int,
    platform: Platform,
    digest: str = "",
) -> dict[str, Any]:
    identity = Identity(run_key=run_key, attempt=attempt, labels=labels)
    return rayjob(
        spec,
        platform.pools,
        identity,
        runs=platform.settings.runs,
        lake=platform.settings.lake,
        digest=digest,
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
        "storage": storage_digest(platform.settings.runs),
        "backend": place.backend,
        "location": place.location,
        "owes_result": spec.owes_result,
        "labels": dict(labels),
        "exclusive": exclusive,
        "code_location": settings.CODE_LOCATION,
        "created_at": platform.clock.now().isoformat(),
    }


def _must_match(recorded: JobSpec, spec: JobSpec, run_key: str) -> None:
    """What the user asked for decides, not what the platform or a new package makes of it."""
    before, now = (one.model_dump(mode="json", exclude=_UNCOMPARED) for one in (recorded, spec))
    different = [name for name, value in now.items() if before[name] != value]
    if different:
        raise Refused(
            f"job {run_key} exists with another spec: it differs in {', '.join(different)}",
            remedy="Start a new run; a retry must keep the config of the run it retries.",
        )


def _must_reach(state: JournalState, run_key: str, platform: Platform) -> None:
    born, here = state.birth, platform.backend.place
    assert born is not None
    if not state.cleaned and not same_place(born.location, here.location):
        raise Refused(
            f"job {run_key} runs on {born.location}, which can't be reached from here "
            f"({here.location})",
            remedy="Attach there.",
        )
