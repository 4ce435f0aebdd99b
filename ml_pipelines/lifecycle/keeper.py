"""Removes what is ours and wanted by nobody, and finishes what others left half done."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ml_pipelines.errors import BackendError, JournalError, Refused, StorageError
from ml_pipelines.journal import index
from ml_pipelines.journal.state import JournalState
from ml_pipelines.lifecycle.cancelling import cancel
from ml_pipelines.lifecycle.loop import follow
from ml_pipelines.lifecycle.platform import Platform
from ml_pipelines.lifecycle.submit import attach, same_place

Wanted = Callable[[str, Mapping[str, str]], bool | None]


def sweep(platform: Platform, wanted: Wanted) -> list[str]:
    """One round of the keeper; returns a sentence for each thing done.

    `wanted(run_key, labels)` says whether somebody may still want the job; None means that it is
    not ours to judge. What it raises ends the round before anything is removed: so a run database
    that can't be read removes nothing. A job is left alone while the process that follows it lives.
    """
    open_keys = index.open_keys(platform.store)
    states = {key: state for key in open_keys if (state := _read(key, platform)) is not None}
    verdicts = {
        key: wanted(key, state.birth.labels) for key, state in states.items() if state.birth
    }
    done: list[str] = []
    for key, state in states.items():
        if state.birth is None:
            continue
        if not same_place(state.birth.location, platform.backend.place.location):
            continue
        sentence = _settle(key, state, verdicts[key], platform)
        if sentence:
            done.append(sentence)
    return done + _strays(platform)


def _settle(key: str, state: JournalState, wanted: bool | None, platform: Platform) -> str:
    """Finish an ended job's clean-up, or stop one that nobody wants."""
    try:
        if state.ended is not None:
            if _held(state, platform):
                return ""
            list(follow(attach(key, platform=platform, takeover=True), platform=platform))
            return f"cleaned up after {key}"
        # A cancelled run's job goes without the claim time; any other waits for its holder.
        if wanted is not False or _held(state, platform):
            return ""
        cancel(key, platform=platform, reason="no run wants it any more", by="the keeper")
    except (BackendError, JournalError, Refused, StorageError) as error:
        return f"{key} is left for the next round: {error.message}"
    return f"removed {key}: no run wants it any more"


def _strays(platform: Platform) -> list[str]:
    """RayJobs that are not their journal's open attempt: created late, or by a loop cut off.

    What has no journal in our run storage is not ours.
    """
    done = []
    for view in platform.backend.list({}):
        state = _read(view.run_key, platform) if view.run_key else None
        if state is None or state.birth is None:
            continue
        attempt = state.open_attempt
        if state.ended is None and (attempt is None or attempt.name == view.name):
            continue
        try:
            platform.backend.delete(view.name, view.uid)
        except BackendError as error:
            done.append(f"{view.name} is left for the next round: {error.message}")
        else:
            done.append(f"removed {view.name}: it is no open attempt of {view.run_key}")
    return done


def _held(state: JournalState, platform: Platform) -> bool:
    loop = state.loop
    if loop is None or loop.released:
        return False
    return not platform.observer.stale(loop.writer)


def _read(run_key: str, platform: Platform) -> JournalState | None:
    """The journal of a job, or None where it can't be read: then the job is left alone."""
    try:
        return platform.journal(run_key).read()
    except (JournalError, StorageError):
        return None
