"""Jobs as lists and pages show them, read from the journals and the closed jobs' summaries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ml_pipelines.backends.logs import Line, LineAssembler
from ml_pipelines.errors import BackendUnavailable, InvalidInput, JournalError, NotFound
from ml_pipelines.job.events import LogLine
from ml_pipelines.job.observation import PodView
from ml_pipelines.job.phase import Phase
from ml_pipelines.journal import index
from ml_pipelines.journal.record import Journal
from ml_pipelines.journal.state import AttemptRecord, JournalState
from ml_pipelines.lifecycle.ending import log_url
from ml_pipelines.lifecycle.logkeeping import (
    DRIVER,
    kept_chunks,
    kept_sources,
    start_source,
    starts,
)
from ml_pipelines.lifecycle.platform import Platform
from ml_pipelines.lifecycle.settling import Settling

READ_BYTES = 1 << 20
FOLLOW_S = 0.3


@dataclass(frozen=True, slots=True)
class JobSummary:
    """One job in a list. `sentence` says why it is where it is; times are ISO 8601, in UTC.

    `evictions` counts how often a queue took its machines back.
    """

    run_key: str
    name: str
    owner: str
    backend: str
    phase: Phase
    sentence: str
    attempts: int
    created_at: str
    ended_at: str = ""
    experiment: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    log_url: str = ""
    followed: bool = False
    evictions: int = 0


def list_jobs(platform: Platform, *, days: int = 7) -> list[JobSummary]:
    """Open jobs, and those closed in the last `days` days; newest first."""
    today = platform.clock.now().date()
    found: dict[str, JobSummary] = {}
    for back in range(days):
        for record in index.closed(platform.store, today - timedelta(days=back)):
            summary = _from_record(record)
            found[summary.run_key] = summary
    for key in index.open_keys(platform.store):
        if (summary_now := _open_summary(key, platform)) is not None:
            found[key] = summary_now
    return sorted(found.values(), key=lambda job: job.created_at, reverse=True)


def describe(run_key: str, *, platform: Platform) -> JobSummary:
    """One job. Raises NotFound."""
    state = platform.journal(run_key).read()
    if state.birth is None:
        raise NotFound(
            f"there is no job {run_key!r} in {platform.store.url}",
            remedy="See them with: mlp job list",
        )
    return _from_state(run_key, state, platform)


def read_logs(
    run_key: str,
    *,
    platform: Platform,
    attempt: int | None = None,
    source: str = DRIVER,
    follow: bool = False,
) -> Iterator[LogLine]:
    """A log of an attempt (default: the last): what is kept, then what is newer.

    `driver` is what the driver wrote at all its starts; `driver-2` at one of them; `worker/POD` one
    worker's. With `follow`, until the attempt is over. Raises NotFound, and InvalidInput
    where there is no such log.
    """
    journal = platform.journal(run_key)
    state = journal.read()
    if state.birth is None:
        raise NotFound(f"there is no job {run_key!r} in {platform.store.url}")
    if not state.attempts:
        return
    record = state.attempts[-1] if attempt is None else _attempt(state, attempt)
    clusters = starts(platform.store, run_key, record.number)
    wanted = [(source, source)]
    if source.startswith(DRIVER):
        named = [
            (start_source(number), f"{DRIVER}/{cluster}")
            for number, cluster in enumerate(clusters, start=1)
        ] or [(DRIVER, DRIVER)]
        wanted = [pair for pair in named if source in {DRIVER, pair[0]}]
    elif source not in _sources(record, platform, run_key):
        wanted = []
    if not wanted:
        there = ", ".join(_sources(record, platform, run_key)) or "none yet"
        raise InvalidInput(
            "source",
            source,
            f"is no log of attempt {record.number}",
            remedy=f"There are: {there}.",
        )
    for kept_as, asked in wanted:
        last = asked == wanted[-1][1]
        reading = _Reading(kept_as, asked, record, journal, platform)
        for line in reading.lines(follow=follow and last):
            yield LogLine(kept_as, line.text, line.offset, record.number)


def _sources(record: AttemptRecord, platform: Platform, run_key: str) -> list[str]:
    """What is kept, and the workers that are there now."""
    kept = kept_sources(platform.store, run_key, record.number)
    pods: tuple[PodView, ...] = ()
    if not record.ended:
        with suppress(BackendUnavailable):
            pods = platform.backend.observe(record.name).pods
    live = [f"worker/{pod.name}" for pod in pods if pod.role == "worker" and pod.ships_log]
    return list(dict.fromkeys([*kept, *live]))


@dataclass(frozen=True, slots=True)
class _Reading:
    """One log, under its name in run storage and its name at the backend."""

    kept_as: str
    asked: str
    record: AttemptRecord
    journal: Journal
    platform: Platform

    def lines(self, *, follow: bool) -> Iterator[Line]:
        """What is kept, then what is newer."""
        lines, clock = LineAssembler(), self.platform.clock
        key, number = self.journal.run_key, self.record.number
        for chunk in kept_chunks(self.platform.store, key, number, self.kept_as):
            yield from lines.feed_chunk(chunk)
        settling = Settling(clock)
        while not _over(self.journal.read(), number):
            try:
                chunk = self.platform.backend.read_log(
                    self.record.name, self.asked, lines.position, READ_BYTES
                )
            except BackendUnavailable:
                if not follow:
                    break
                clock.sleep(FOLLOW_S)
                continue
            yield from lines.feed_chunk(chunk)
            if chunk.data:
                settling.heard()
                continue
            if not follow and settling.over(chunk.silent_s):
                break
            clock.sleep(FOLLOW_S)
        yield from lines.flush()


def _attempt(state: JournalState, number: int) -> AttemptRecord:
    for record in state.attempts:
        if record.number == number:
            return record
    raise NotFound(
        f"job {state.run_key} has no attempt {number}", remedy=f"It has {len(state.attempts)}."
    )


def _over(state: JournalState, number: int) -> bool:
    return any(record.number == number and record.ended for record in state.attempts)


def _open_summary(key: str, platform: Platform) -> JobSummary | None:
    try:
        state = platform.journal(key).read()
    except JournalError:
        return None
    return _from_state(key, state, platform) if state.birth else None


def _from_state(key: str, state: JournalState, platform: Platform) -> JobSummary:
    birth = state.birth
    assert birth is not None
    phase, sentence = _standing(state)
    loop = state.loop
    return JobSummary(
        run_key=key,
        name=birth.name,
        owner=birth.owner,
        backend=birth.backend,
        phase=phase,
        sentence=sentence,
        attempts=len(state.attempts),
        created_at=birth.created_at,
        ended_at=state.ended.at if state.ended else "",
        experiment=str(birth.spec.get("experiment") or ""),
        labels=dict(birth.labels),
        log_url=log_url(state),
        followed=bool(loop and not loop.released and not platform.observer.stale(loop.writer)),
        evictions=sum("evicted" in note for note in state.notes),
    )


def _standing(state: JournalState) -> tuple[Phase, str]:
    if state.ended is not None:
        return Phase(state.ended.phase), str((state.ended.verdict or {}).get("sentence") or "")
    if state.cancelled is not None:
        return Phase.FINISHING, "being cancelled"
    if state.standing:
        return Phase(state.standing["phase"]), str(state.standing["sentence"])
    return Phase.PROVISIONING, "not created yet"


def _from_record(record: Mapping[str, Any]) -> JobSummary:
    return JobSummary(**{**record, "phase": Phase(record["phase"])})
