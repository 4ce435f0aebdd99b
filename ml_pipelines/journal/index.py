"""Open jobs and closed ones, found without reading every journal.

open/<run key>                       from before the birth until after the clean-up
closed/<YYYY-MM-DD>/<run key>.json   one summary under the day (UTC) on which it was closed
"""

from __future__ import annotations

import json
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ml_pipelines.storage import Store


def mark_open(store: Store, run_key: str) -> None:
    """Say that there may be a job of this key, before anything of it exists."""
    store.put(f"open/{run_key}", b"")


def close(store: Store, summary: Mapping[str, Any], *, now: datetime) -> None:
    """Leave the summary (plain JSON with `run_key`) under its day; then the open marker goes."""
    run_key = str(summary["run_key"])
    data = json.dumps(summary, allow_nan=False).encode()
    store.put(f"closed/{now.date().isoformat()}/{run_key}.json", data)
    store.delete(f"open/{run_key}")


def open_keys(store: Store) -> list[str]:
    """Run keys of the jobs that were not closed yet, sorted."""
    return [path.removeprefix("open/") for path in store.list("open")]


def closed(store: Store, day: date) -> list[dict[str, Any]]:
    """Summaries of the jobs closed on that day, by run key; one that can't be read is left out."""
    found = []
    for raw in store.get_many(store.list(f"closed/{day.isoformat()}")):
        try:
            summary = json.loads(raw or b"")
        except ValueError:
            continue  # expired this moment, or cut by a full disk elsewhere
        if isinstance(summary, dict) and "run_key" in summary:
            found.append(summary)
    return found


def closed_keys(store: Store) -> list[tuple[date, str]]:
    """(day, run key) of every closed job that is still kept, newest day first."""
    found = []
    for path in store.list("closed"):
        _, day, name = path.split("/", 2)
        try:
            found.append((date.fromisoformat(day), name.removesuffix(".json")))
        except ValueError:
            continue
    return sorted(found, reverse=True)


def find(store: Store, prefix: str) -> list[str]:
    """Run keys of open and closed jobs that begin with this; the exact one alone if it exists."""
    keys = {*open_keys(store), *(key for _, key in closed_keys(store))}
    if prefix in keys:
        return [prefix]
    return sorted(key for key in keys if key.startswith(prefix))
