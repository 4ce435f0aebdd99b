"""Removes what is ours and wanted by nobody, and finishes what others left half done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from ml_pipelines.errors import BackendError, JournalError, MlPipelinesError, StorageError
from ml_pipelines.journal import index
from ml_pipelines.journal.state import JournalState
from ml_pipelines.lifecycle import ending
from ml_pipelines.lifecycle.cancelling import cancel
from ml_pipelines.lifecycle.claiming import held
from ml_pipelines.lifecycle.loop import follow_within
from ml_pipelines.lifecycle.platform import Platform
from ml_pipelines.lifecycle.submit import attach_to_end, same_place
from ml_pipelines.spec.manifest import STORAGE_LABEL, storage_digest

Wish = bool | Literal["cancelled"] | None
Wanted = Callable[[str, Mapping[str, str]], Wish]

ROUND_S = 45.0  # after that long the rest is left for the next round
PATIENCE_S = 10.0  # how long one job's clean-up waits for run storage
UNBORN_S = 600.0  # how long a job may take from its open marker to its birth


def sweep(platform: Platform, wanted: Wanted) -> list[str]:
    """One round of the keeper; returns a sentence for each thing done.

    `wanted(run_key, labels)` says whether somebody may still want the job; None means that it is
    not ours to judge. What it raises ends the round before anything is removed: so a run database
    that can't be read removes nothing. A job is left alone while the process that follows it
    lives, unless "cancelled" is the answer: that goes at once, without the claim time. What was
    cancelled or has ended is finished whoever wanted it. Raises StorageError.
    """
    open_keys = index.open_keys(platform.store)
    states = {key: state for key in open_keys if (state := _read(key, platform)) is not None}
    verdicts = {
        key: wanted(key, state.birth.labels) for key, state in states.items() if state.birth
    }
    until = platform.clock.monotonic() + ROUND_S
    done: list[str] = []
    for key, state in states.items():
        if platform.clock.monotonic() >= until:
            return [*done, "the rest is left for the next round"]
        try:
            done += _settle(key, state, verdicts.get(key), platform)
        except MlPipelinesError as error:
            done.append(f"{key} is left for the next round: {error.message}")
        except Exception as error:  # noqa: BLE001 - one job must not keep the others from it
            done.append(f"{key} is left for the next round: {error!r}")
    return [*done, *_strays(platform)]


def _settle(key: str, state: JournalState, wanted: Wish, platform: Platform) -> Iterator[str]:
    """Finish what has ended or was cancelled, or stop what nobody wants."""
    if state.birth is None:
        yield from _unborn(key, platform)
        return
    if not same_place(state.birth.location, platform.backend.place.location):
        return
    if state.cleaned:
        ending.file_away(key, state, platform)
        yield f"filed {key} away, which was cleaned up before"
        return
    over = state.ended is not None or state.cancelled is not None
    at_once = wanted == "cancelled" and not over  # somebody's will: no lease is waited for
    if not at_once and (not (over or wanted is False) or held(state.loop, platform)):
        return
    if over:
        job = attach_to_end(key, platform=platform)
        for _ in follow_within(job, platform, patience_s=PATIENCE_S):
            pass
        if job.journal.read().cleaned:
            yield f"cleaned up after {key}"
        return
    cancel(key, platform=platform, reason="no run wants it any more", by="the keeper")
    yield f"removed {key}: no run wants it any more"


def _unborn(key: str, platform: Platform) -> Iterator[str]:
    """A marker whose job was never born goes; one that is born after all marks itself again."""
    marker = f"open/{key}"
    if platform.observer.still_s(marker) < UNBORN_S:
        return
    if platform.journal(key).read().birth is None:
        platform.store.delete(marker)
        yield f"removed the marker of {key}, which was never born"


def _strays(platform: Platform) -> list[str]:
    """RayJobs that their journal says are over: created late, or left by a loop cut off.

    Only of an end that is recorded: a journal that could not be read, or not to its end, says
    nothing. What has no journal in our run storage is not ours.
    """
    done = []
    try:
        ours = {STORAGE_LABEL: storage_digest(platform.settings.runs)}
        views = platform.backend.list(ours)
    except BackendError as error:
        return [f"what else there is can't be seen: {error.message}"]
    for view in views:
        state = _read(view.run_key, platform) if view.run_key and not view.deleting else None
        if state is None:
            continue
        over = {attempt.name for attempt in state.attempts if attempt.ended}
        if state.ended is None and view.name not in over:
            continue
        try:
            platform.backend.delete(view.name, view.uid)
        except BackendError as error:
            done.append(f"{view.name} is left for the next round: {error.message}")
        else:
            done.append(f"removed {view.name}: it is no open attempt of {view.run_key}")
    return done


def _read(run_key: str, platform: Platform) -> JournalState | None:
    """The journal of a job, or None where it can't be read: then the job is left alone."""
    try:
        return platform.journal(run_key).read()
    except (JournalError, StorageError):
        return None
