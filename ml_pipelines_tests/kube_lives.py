"""Whole lives of small jobs on a real cluster, each followed by a thread, for tests of faults."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from ml_pipelines import lifecycle, settings
from ml_pipelines.clock import Clock, SystemClock
from ml_pipelines.errors import MlPipelinesError
from ml_pipelines.job.events import (
    AttemptEnded,
    Event,
    JobEnded,
    LogLine,
    Notice,
    PhaseChanged,
    Submitted,
)
from ml_pipelines.lifecycle import Platform
from ml_pipelines.spec.cluster import ClusterSpec
from ml_pipelines.spec.job import JobSpec
from ml_pipelines.spec.manifest import RUN_KEY_LABEL
from ml_pipelines.storage import open_store
from ml_pipelines_tests.cluster import Namespace, storage_of, wait_for

START_S = 200.0  # a Ray cluster's start on a machine that is busy with others
GONE_S = 45.0

Kind = TypeVar("Kind")

# Each start leaves an object of its own; `counting()` prints numbered lines until it is let go.
PRELUDE = """
import os, sys, threading, time, uuid
from ml_pipelines.storage import open_store

KEY, ATTEMPT = os.environ["MLP_RUN_KEY"], int(os.environ["MLP_ATTEMPT"])
store = open_store(os.environ["MLP_RUNS"]).brief()
store.put(f"starts/{KEY}/{ATTEMPT}/{uuid.uuid4().hex}", b"")

def wait_for_word(heard):
    while not heard.is_set():
        try:
            if store.exists(f"go/{KEY}/{ATTEMPT}"):
                heard.set()
        except Exception:
            pass
        time.sleep(0.5)

def counting():
    heard, n = threading.Event(), 0
    threading.Thread(target=wait_for_word, args=(heard,), daemon=True).start()
    while not heard.is_set():
        print("line", n, flush=True)
        n += 1
        time.sleep(0.2)
    print("let go", flush=True)

"""

Small = dict[str, Any]
HEAD: Small = {"pool": "spare", "cpu": "500m", "memory": "1Gi"}
WORKER: Small = {"pool": "gpu", "gpus": 0, "cpu": "250m", "memory": "1Gi"}


class Life:
    """One job, submitted and followed in a thread as a run does, for as long as the block lasts.

    What the follower tells is in `events`; leaving the block cancels a job that has not ended.
    """

    def __init__(
        self,
        namespace: Namespace,
        program: str | Sequence[str],
        *,
        head: Small | None = None,
        worker: Small | None = None,
        clock: Clock | None = None,
        key: str = "",
        runs: str = "",
        **more: Any,
    ) -> None:
        self.namespace = namespace
        self.key = key or f"fault-{uuid.uuid4().hex[:6]}"
        argv = ("python", "-c", PRELUDE + program) if isinstance(program, str) else tuple(program)
        cluster = {"head": HEAD | (head or {}), "workers": [WORKER | (worker or {})]}
        self.spec = JobSpec(
            name="fault", entrypoint=argv, cluster=ClusterSpec.model_validate(cluster), **more
        )
        self.clock = clock or SystemClock()
        environ = namespace.environment() | storage_of(namespace, runs)
        environ["MLP_POOLS"] = str(_with_spare(namespace))
        self.settings = settings.load(environ)
        self.store = open_store(self.settings.runs)
        self.events: list[Event] = []
        self.problem: BaseException | None = None
        self.platform: Platform | None = None
        self._ready = threading.Event()
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._live, name=self.key, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_for(f"{self.key} is submitted", self._begun, timeout_s=60)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._thread.is_alive():
            self._cancel()
            self._thread.join(90)
        if kind is None and self.problem is not None:
            raise self.problem

    def _live(self) -> None:
        try:
            with lifecycle.open_platform(self.settings, clock=self.clock) as platform:
                self.platform = platform
                job = lifecycle.submit(
                    self.spec, run_key=self.key, labels={"asset": "fault"}, platform=platform
                )
                self._ready.set()
                for event in lifecycle.follow(job, platform=platform):
                    self.events.append(event)
        except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
            self.problem = error
            self._ready.set()

    def _begun(self) -> bool:
        self._raise_problem()
        return self._ready.is_set()

    def _raise_problem(self) -> None:
        if self.problem is not None:
            problem, self.problem = self.problem, None
            raise problem

    def _cancel(self) -> None:
        try:
            with lifecycle.open_platform(self.settings) as platform:
                lifecycle.cancel(self.key, platform=platform, reason="the test is over", by="test")
        except MlPipelinesError:
            return  # the namespace goes, with all that is in it

    # ── what was told ───────────────────────────────────────────────────────────────────────

    def until(self, what: str, told: Callable[[], Any], timeout_s: float = START_S) -> Any:
        """Wait for something told; shows all that was told where it does not come."""

        def look() -> Any:
            self._raise_problem()
            return told()

        try:
            return wait_for(f"{self.key}: {what}", look, timeout_s=timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from None

    def story(self) -> str:
        """All but the numbered lines, for a failed test's reader."""
        told = [one for one in self.events if not isinstance(one, LogLine)]
        return "\n".join([*map(str, told), f"last lines: {self.lines()[-5:]}"])

    def lines(self, attempt: int = 0) -> list[str]:
        """The driver's lines as they were told; of one attempt, or of the last."""
        number = attempt or max((one.attempt for one in self.of(Submitted)), default=1)
        return [one.text for one in self.of(LogLine) if one.attempt == number]

    def numbered(self, attempt: int = 0) -> list[str]:
        """The lines that `counting()` printed."""
        return [text for text in self.lines(attempt) if text.startswith("line ")]

    def of(self, kind: type[Kind]) -> list[Kind]:
        """The events of one kind."""
        return [one for one in list(self.events) if isinstance(one, kind)]

    def until_said(self, words: str, timeout_s: float = 60) -> None:
        """Wait for a notice or a phase's sentence that holds these words."""

        def said() -> bool:
            told: list[Notice | PhaseChanged] = [*self.of(Notice), *self.of(PhaseChanged)]
            return any(words in one.sentence for one in told)

        self.until(words, said, timeout_s)

    def counts(self, attempt: int = 1, more: int = 3) -> None:
        """Wait until the attempt's driver has printed so many further lines."""
        now = len(self.numbered(attempt))
        self.until(
            f"{more} more lines of attempt {attempt}",
            lambda: len(self.numbered(attempt)) >= now + more,
            timeout_s=START_S + more,
        )

    def let_go(self, attempt: int = 1) -> None:
        """Tell the driver of an attempt to stop counting."""
        self.store.put(f"go/{self.key}/{attempt}", b"")

    def attempt_ended(self, number: int, timeout_s: float = START_S) -> AttemptEnded:
        """Wait for the end of an attempt."""

        def found() -> AttemptEnded | None:
            return next((one for one in self.of(AttemptEnded) if one.attempt == number), None)

        ended: AttemptEnded = self.until(f"attempt {number} has ended", found, timeout_s)
        return ended

    def ended(self, timeout_s: float = START_S) -> JobEnded:
        """Wait for the job's end."""
        self.until("the job has ended", lambda: self.of(JobEnded), timeout_s)
        self._thread.join(30)
        (end,) = self.of(JobEnded)
        return end

    # ── what is there ───────────────────────────────────────────────────────────────────────

    def objects(self, kinds: str) -> list[str]:
        """Names of this job's objects of these kinds that the server has."""
        found = self.namespace.items(kinds, "-l", f"{RUN_KEY_LABEL}={self.key}")
        return [f"{one['kind']}/{one['metadata']['name']}" for one in found]

    def pod(self, role: str) -> dict[str, Any]:
        """The head's or the worker's pod that stays."""
        labels = f"{RUN_KEY_LABEL}={self.key},ray.io/node-type={role}"
        (pod,) = [one for one in self.namespace.items("pods", "-l", labels)
                  if "deletionTimestamp" not in one["metadata"]]  # fmt: skip
        return dict(pod)

    def whole(self, attempt: int = 1) -> None:
        """Each numbered line of an attempt was told once, in order, and is kept so."""
        told = self.numbered(attempt)
        assert told, self.story()
        assert told == [f"line {n}" for n in range(len(told))], self.story()
        with lifecycle.open_platform(self.settings) as platform:
            kept = [
                line.text
                for line in lifecycle.read_logs(
                    self.key, platform=platform, attempt=attempt, follow=False
                )
                if line.source == "driver"
            ]
        assert kept[: len(self.lines(attempt))] == self.lines(attempt)

    def tidy(self, attempts: int, *, gone_s: float = GONE_S) -> None:
        """Each attempt's driver was started once, and within `gone_s` nothing is left."""
        starts = [path.split("/")[2] for path in self.store.list(f"starts/{self.key}/")]
        assert sorted(starts) == [f"{n + 1}" for n in range(attempts)], self.story()
        names = [one.name for one in self.of(Submitted)]
        assert names == [f"{self.key}-a{n + 1}" for n in range(attempts)]
        wait_for(f"{self.key}'s RayJobs are gone", lambda: not self.objects("rayjobs"))
        kinds = "rayclusters,pods,services"
        wait_for(f"{self.key} is gone", lambda: not self.objects(kinds), timeout_s=gone_s)


def _with_spare(namespace: Namespace) -> Path:
    """The platform file with a pool for heads on the spot nodes, of which there are two."""
    path = namespace.platform_file.with_name("with-spare.yaml")
    if not path.exists():
        platform = yaml.safe_load(namespace.platform_file.read_text(encoding="utf-8"))
        spot = platform["pools"]["spot"]
        platform["pools"]["spare"] = {key: value for key, value in spot.items() if key != "gpus"}
        path.write_text(yaml.safe_dump(platform, sort_keys=False), encoding="utf-8")
    return path
