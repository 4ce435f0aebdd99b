"""One attempt as it is watched: its phase, its log, its metrics, its pods, until it ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import asdict

from ml_pipelines.backends.logs import Line, LineAssembler
from ml_pipelines.clock import Clock
from ml_pipelines.errors import BackendUnavailable
from ml_pipelines.job import wire
from ml_pipelines.job.clocks import Clocks, durations
from ml_pipelines.job.events import Event, LogLine, MetricPoint, Notice, PhaseChanged
from ml_pipelines.job.known import Known
from ml_pipelines.job.observation import Observation, PodView
from ml_pipelines.job.phase import Standing, phase_of
from ml_pipelines.job.verdicts import verdict_of
from ml_pipelines.journal.entries import Draft
from ml_pipelines.journal.state import AttemptRecord, JournalState
from ml_pipelines.lifecycle.decide import Sight
from ml_pipelines.lifecycle.logkeeping import TAIL_LINES, LogKeeper, kept_tail
from ml_pipelines.lifecycle.platform import Platform
from ml_pipelines.lifecycle.submit import Job

READ_BYTES = 1 << 20
READS_A_LOOK = 8  # so that a burst of lines can't keep the loop from looking at the job
FINAL_READS_S = 30.0  # how long the rest of an ended driver's log is read
FINISHING_S = {"local": 30.0}

Look = Generator[Event, None, tuple[Draft, ...]]


class Watched:
    """The open attempt, seen again and again.

    `ending` is set once the attempt has ended, `sight` once its verdict is known too.
    """

    def __init__(self, job: Job, attempt: AttemptRecord, platform: Platform) -> None:
        self.number = attempt.number
        self._job = job
        self.ending: Standing | None = None
        self.sight: Sight | None = None
        self.busy = False
        self._name = attempt.name
        self._backend = platform.backend
        self._clock: Clock = platform.clock
        self._clocks = Clocks.of(
            job.spec.limits, finishing_s=FINISHING_S.get(platform.backend.name, 300.0)
        )
        self._known = Known()
        self._told = ("", "")
        self.keeper = LogKeeper(platform.store, job.run_key, attempt.number, platform.clock)
        self._lines = LineAssembler(start=self.keeper.offset)
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._pods: dict[str, PodView] = {}
        self._log_trouble = ""
        self._told_to = self.keeper.offset
        for text in kept_tail(platform.store, job.run_key, attempt.number):
            message = wire.parse(text)
            if isinstance(message, wire.Metric):
                job.gate.admits(message)  # told before, by whoever followed then

    @property
    def durations(self) -> dict[str, float]:
        """Seconds by part: queue, provisioning, run, drain."""
        return durations(self._known)

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines of the log."""
        return tuple(self._tail)

    def look(self) -> Look:
        """Look once; tells what is new, and returns what belongs into the journal."""
        observation = self._backend.observe(self._name)
        now = self._clock.monotonic()
        if self._known.at is None:
            self._known = self._resumed(observation)
        self._known = self._known.after(observation, now)
        standing = phase_of(observation, self._known, self._clocks, now)
        yield from (Notice(news, warning=True) for news in standing.warnings)
        yield from self._read_log()
        changes = list(self._ledger(observation))
        if (standing.phase, standing.sentence) != self._told and standing.verdict is None:
            if standing.phase != self._told[0]:
                note = {"phase": str(standing.phase), "sentence": standing.sentence}
                changes.append(Draft("note", {"number": self.number, **note}))
            self._told = (standing.phase, standing.sentence)
            yield PhaseChanged(standing.phase, standing.sentence, self.number)
        if standing.verdict is not None:
            self.ending = standing
            yield from self._read_rest()
            changes.extend(self._gone(pod) for pod in self._pods.values())
        return tuple(changes)

    def _resumed(self, observation: Observation) -> Known:
        """Where we come to a driver that runs, its clock does not begin again."""
        rayjob = observation.rayjob
        if rayjob is None or rayjob.started_at is None or rayjob.job_status != "RUNNING":
            return Known()
        ran = (self._clock.now() - rayjob.started_at).total_seconds()
        return Known.resuming({"run": max(ran, 0.0)})

    def judge(self, state: JournalState, *, owes_result: bool) -> None:
        """Set `sight` from the ending and from what the driver committed."""
        assert self.ending is not None
        verdict = verdict_of(
            self.ending,
            self._known,
            self.tail,
            owes_result=owes_result,
            has_result=state.result is not None,
        )
        phase = self.ending.phase_with(verdict)
        self.sight = Sight(phase, verdict, self.durations.get("run", 0.0))

    # ── the log ─────────────────────────────────────────────────────────────────────────────

    def _read_log(self) -> Iterator[Event]:
        """Read what is new, a bounded part of it. The log never decides about life or death."""
        self.busy = False
        for _ in range(READS_A_LOOK):
            try:
                chunk = self._backend.read_log(
                    self._name, "driver", self._lines.position, READ_BYTES
                )
            except BackendUnavailable as error:
                if error.message != self._log_trouble:
                    self._log_trouble = error.message
                    yield Notice(f"the log can't be read now: {error.message}", warning=True)
                break
            self._log_trouble = ""
            if not chunk.data and not chunk.lost:
                break
            self.keeper.add(chunk.start, chunk.data)
            yield from self._tell(self._lines.feed_chunk(chunk))
            self.busy = len(chunk.data) >= READ_BYTES
            if not self.busy:
                break
        self.keeper.flush()

    def _read_rest(self) -> Iterator[Event]:
        until = self._clock.monotonic() + FINAL_READS_S
        while True:
            yield from self._read_log()
            if not self.busy or self._clock.monotonic() > until:
                break
        yield from self._tell(self._lines.flush())

    def _tell(self, lines: list[Line]) -> Iterator[Event]:
        if lines:
            self._known = self._known.heard(self._clock.monotonic())
        ends = [*(line.offset for line in lines[1:]), self._lines.cursor]
        for line, end in zip(lines, ends, strict=False):
            self._told_to = end
            match wire.parse(line.text):
                case wire.Metric() as metric:
                    if self._job.gate.admits(metric):
                        yield MetricPoint(metric.step, metric.values, self.number)
                case wire.Progress() as progress:
                    yield Notice(progress.text)
                case wire.Malformed() as malformed:
                    yield Notice(malformed.sentence, warning=True)
                case _:
                    self._tail.append(line.text)
                    yield LogLine("driver", line.text, line.offset, self.number)

    def keep_log(self) -> None:
        """Keep what was told so far, and no more: whoever follows next tells the rest."""
        self.keeper.flush(due=True, upto=self._told_to)

    # ── the ledger ──────────────────────────────────────────────────────────────────────────

    def _ledger(self, observation: Observation) -> Iterator[Draft]:
        """A line when a pod got its machine, and one when it went: what money is made from."""
        seen = {pod.uid: pod for pod in observation.pods if pod.scheduled_at is not None}
        for uid, pod in seen.items():
            if uid not in self._pods and pod.gone_at is None:
                self._pods[uid] = pod
                yield Draft("ledger", {"number": self.number, **_placed(pod)})
        for uid, pod in list(self._pods.items()):
            if uid not in seen or seen[uid].gone_at is not None:
                yield self._gone(seen.get(uid, pod))
                del self._pods[uid]

    def _gone(self, pod: PodView) -> Draft:
        at = pod.gone_at or self._clock.now()
        return Draft(
            "ledger",
            {"number": self.number, "pod": pod.name, "uid": pod.uid, "gone_at": at.isoformat()},
        )


def _placed(pod: PodView) -> dict[str, object]:
    fields = asdict(pod)
    kept = ("name", "uid", "role", "group", "node", "node_type", "spot", "pool")
    assert pod.scheduled_at is not None
    return {
        "pod": pod.name,
        **{name: fields[name] for name in kept if name != "name"},
        "requests": dict(pod.requests),
        "scheduled_at": pod.scheduled_at.isoformat(),
    }
