"""Retention: journals are deleted whole, by us; never a pointer's, nor the models it names."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ml_pipelines.journal import index
from ml_pipelines.journal.pointer import Pointer, named_models

if TYPE_CHECKING:
    from ml_pipelines.clock import Clock
    from ml_pipelines.storage import Store

KEEP_DAYS = 90
KEEP_HEARTBEATS_DAYS = 7


def expire(store: Store, clock: Clock, *, days: int = KEEP_DAYS) -> list[str]:
    """Delete the jobs closed more than `days` days ago; returns their run keys.

    A job whose result any champion ever named stays, data and all. Raises StorageError, and
    JournalCorrupt before anything is deleted when a pointer can't be read.
    """
    now = clock.now()
    kept = named_jobs(store)
    gone = []
    for day, run_key in index.closed_keys(store):
        if day >= (now - timedelta(days=days)).date() or run_key in kept:
            continue
        forget(store, run_key)
        # The summary goes last, so that a deletion cut short is finished next time.
        store.delete(f"closed/{day.isoformat()}/{run_key}.json")
        gone.append(run_key)
    _expire_heartbeats(store, now)
    return gone


def named_jobs(store: Store) -> set[str]:
    """Run keys of every job whose model is, or once was, a champion."""
    return {
        champion.run_key
        for model in named_models(store)
        for champion in Pointer(store, model).history()
    }


def forget(store: Store, run_key: str) -> None:
    """Delete everything of a job.

    The journal goes first, from its first entry on: half deleted it has a gap, which is an error
    and can't be taken for a shorter history.
    """
    store.delete_prefix(f"jobs/{run_key}/journal")
    store.delete_prefix(f"jobs/{run_key}")


def _expire_heartbeats(store: Store, now: datetime) -> None:
    oldest = now - timedelta(days=KEEP_HEARTBEATS_DAYS)
    for each in store.objects("processes"):
        if each.modified < oldest:
            store.delete(each.path)
