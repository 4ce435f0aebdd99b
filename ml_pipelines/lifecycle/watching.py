"""One attempt as it is watched: its phase, its log, its pods, until it ends."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from ml_pipelines.clock import Clock
from ml_pipelines.job.clocks import Clocks, durations
from ml_pipelines.job.events import Event, Notice, PhaseChanged
from ml_pipelines.job.known import Known
from ml_pipelines.job.observation import Observation, PodView
from ml_pipelines.job.phase import Phase, Standing, phase_of
from ml_pipelines.job.verdict import VerdictClass
from ml_pipelines.job.verdicts import may_be_a_lost_machine, verdict_of
from ml_pipelines.journal.entries import LEDGER, NOTE, Draft
from ml_pipelines.journal.state import JournalState
from ml_pipelines.lifecycle.decide import Sight, result_entry
from ml_pipelines.lifecycle.platform import Platform
from ml_pipelines.lifecycle.resuming import UNSEEN_S, Past, gone_unseen, memory_of
from ml_pipelines.lifecycle.submit import Job
from ml_pipelines.lifecycle.tailing import LogTail

EVIDENCE_S = 45.0  # Kubernetes calls a silent node lost after some 40 s at most
FINISHING_S = {"local": 30.0}
NOTE_AGAIN_S = 5.0  # a new reason within one phase is noted so much later, then twice as late, …

Look = Generator[Event, None, tuple[Draft, ...]]


class Watched:
    """The open attempt, seen again and again.

    `ending` is set once the attempt has ended, `sight` once its verdict is known too. `made_at` is
    when this process made its RayJob, on `boottime`, None where others did.
    """

    def __init__(self, job: Job, past: Past, platform: Platform, *, made_at: float | None) -> None:
        attempt = past.attempt
        self.number = attempt.number
        self.ending: Standing | None = None
        self.sight: Sight | None = None
        self._name = attempt.name
        self._backend = platform.backend
        self._clock: Clock = platform.clock
        self._clocks = Clocks.of(
            job.spec.limits, finishing_s=FINISHING_S.get(platform.backend.name, 300.0)
        )
        self._location = platform.backend.place.location
        self._past = past
        self._made_at = made_at
        self._known = Known()
        self._told = ("", "")
        self._over_at: float | None = None  # when the attempt was first seen to have ended
        self._noted: dict[str, object] = {}
        self._noted_again = (0.0, NOTE_AGAIN_S)  # not before, and then not for so long
        self._evictions_noted = 0
        self._pods = dict(self._past.pods)  # placed and not gone: uid → name
        self._last: dict[str, PodView] = {}  # each of these as it was seen last
        self.log = LogTail(job, attempt, platform)

    @property
    def durations(self) -> dict[str, float]:
        """Seconds by part: queue, provisioning, run, drain."""
        return durations(self._known)

    def look(self) -> Look:
        """Look once; tells what is new, and returns what belongs into the journal."""
        observation = self._backend.observe(self._name)
        now = self._clock.monotonic()
        if self._known.at is None:
            new = self._made_at is not None and self._clock.boottime() - self._made_at < UNSEEN_S
            self._past = replace(self._past, made=self._past.made and not new)
            self._known = memory_of(self._past, observation, wall=self._server_now(observation))
        self._known = self._known.after(observation, now)
        gone = gone_unseen(self._past, self._known, location=self._location)
        standing = gone or phase_of(observation, self._known, self._clocks, now)
        yield from (Notice(news, warning=True) for news in standing.warnings)
        yield from self.log.read(observation)
        if self.log.heard:
            self.log.heard = False
            self._known = self._known.heard(self._clock.monotonic())
        changes = [*self._ledger(observation), *self._note(standing, now), *self._evictions()]
        if (standing.phase, standing.sentence) != self._told and standing.verdict is None:
            self._told = (standing.phase, standing.sentence)
            yield PhaseChanged(standing.phase, standing.sentence, self.number)
        if standing.verdict is not None:
            if self._over_at is None:
                self._over_at = now
                yield from self.log.read_rest()
            if self._may_learn_more(standing, observation, now):
                yield from self._tell_of_waiting()
                return tuple(changes)
            self.ending = standing
            at = self._server_now(observation)
            changes.extend(self._gone(uid, name, at) for uid, name in self._pods.items())
            self._pods.clear()
        return tuple(changes)

    def _may_learn_more(self, standing: Standing, observation: Observation, now: float) -> bool:
        """A driver may fail seconds after a machine has died, and before Kubernetes knows it."""
        assert self._over_at is not None
        several = len({pod.node for pod in observation.pods if pod.node}) > 1
        early = now - self._over_at < EVIDENCE_S
        return several and early and may_be_a_lost_machine(standing, self._known, self.log.last)

    def _tell_of_waiting(self) -> Iterator[Event]:
        sentence = "the driver failed as if a worker was gone; asking what became of its machine"
        if self._told != (Phase.FINISHING, sentence):
            self._told = (Phase.FINISHING, sentence)
            yield PhaseChanged(Phase.FINISHING, sentence, self.number)

    def _note(self, standing: Standing, now: float) -> Iterator[Draft]:
        """A line when the phase is another one, or the RayJob is seen for the first time.

        And now and then for another reason in one phase: lists of jobs are read from the journal.
        """
        if standing.verdict is not None:
            return
        seen = self._known.seen is not None and self._known.missing == 0
        seen = seen or bool(self._noted.get("seen"))
        phase = {"phase": str(standing.phase), "seen": seen, "location": self._location}
        note = {"number": self.number, "sentence": standing.sentence, **phase}
        after, pause = self._noted_again
        if not phase.items() <= self._noted.items():
            self._noted_again = (now + NOTE_AGAIN_S, NOTE_AGAIN_S * 2)
        elif note != self._noted and now >= after:
            self._noted_again = (now + pause, pause * 2)
        else:
            return
        self._noted = note
        yield Draft(NOTE, note)

    def _evictions(self) -> Iterator[Draft]:
        """A line when a queue took the machines back: the same attempt waits and starts again."""
        lost = [loss for loss in self._known.losses if loss.by_queue]
        for loss in lost[self._evictions_noted :]:
            line = {"number": self.number, "evicted": str(loss.cls), "sentence": loss.sentence}
            yield Draft(NOTE, {**line, "evidence": loss.evidence, "location": self._location})
        self._evictions_noted = len(lost)

    def judge(self, state: JournalState, *, owes_result: bool) -> None:
        """Set `sight` from the ending and from what the driver committed."""
        assert self.ending is not None
        ending = self.ending
        assert ending.verdict is not None
        if ending.phase is Phase.LOST and ending.verdict.cls is VerdictClass.CANCELLED:
            # Nobody saw how the driver ended; where it had committed its result, that tells.
            unseen = replace(ending.verdict, cls=VerdictClass.UNKNOWN)
            ending = replace(ending, verdict=unseen) if state.result and owes_result else ending
        verdict = verdict_of(
            ending,
            self._known,
            self.log.last,
            owes_result=owes_result,
            has_result=state.result is not None,
        )
        self.sight = Sight(
            self.number,
            ending.phase_with(verdict),
            verdict,
            self.durations.get("run", 0.0),
            result_entry(state),
        )

    # ── the ledger ──────────────────────────────────────────────────────────────────────────

    def _ledger(self, observation: Observation) -> Iterator[Draft]:
        """A line when a pod got its machine, and one when it went: what money is made from."""
        rayjob = observation.rayjob
        cluster = rayjob.cluster_name if rayjob else ""
        seen = {pod.uid: pod for pod in observation.pods if pod.scheduled_at is not None}
        for uid, pod in seen.items():
            if uid not in self._pods and pod.gone_at is None:
                self._pods[uid] = pod.name
                line = {"number": self.number, **_placed(pod), "cluster": cluster}
                yield Draft(LEDGER, line)
        for uid, name in list(self._pods.items()):
            if uid not in seen or seen[uid].gone_at is not None:
                last = seen.get(uid) or self._last.get(uid)
                told = (last.gone_at or last.leaves_at) if last else None
                yield self._gone(uid, name, told or self._server_now(observation))
                del self._pods[uid]
        self._last = {uid: pod for uid, pod in seen.items() if uid in self._pods}

    def _gone(self, uid: str, name: str, at: datetime) -> Draft:
        line = {"number": self.number, "pod": name, "uid": uid, "gone_at": at.isoformat()}
        return Draft(LEDGER, line)

    def _server_now(self, observation: Observation) -> datetime:
        """Now, on the clock that the times seen are from."""
        return self._clock.now() - timedelta(seconds=observation.skew_s)


def _placed(pod: PodView) -> dict[str, object]:
    assert pod.scheduled_at is not None
    kept = ("uid", "role", "group", "node", "node_type", "spot", "pool")
    return {
        "pod": pod.name,
        **{name: getattr(pod, name) for name in kept},
        "requests": dict(pod.requests),
        "scheduled_at": pod.scheduled_at.isoformat(),
    }
