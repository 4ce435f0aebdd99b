"""Asks for one run per day and data version, whoever asks first.

Dagster's run keys hold within one schedule or sensor only. So who wants a run first puts its name
under `requests/` in run storage, create-if-absent; another one that comes later leaves the day
alone, and the same one may ask again (its tick may have died before Dagster heard of it, and
Dagster drops the run key if not).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ml_pipelines.errors import AlreadyExists

if TYPE_CHECKING:
    from ml_pipelines.storage import Store

VERSION_TAG = "ml_pipelines/data_version"


def request_key(day: str, version: str) -> str:
    """The run key of a day's run on one version of its data."""
    return f"{day}:{version}"


def may_ask(store: Store, job: str, day: str, version: str, *, by: str) -> bool:
    """Whether `by` is the one that asks for this run. Raises StorageError."""
    path = f"requests/{job}/{day}/{version}"
    try:
        store.create(path, by.encode())
    except AlreadyExists:
        return store.get(path).decode() == by
    return True
