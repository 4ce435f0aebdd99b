"""What every backend must do, as tests: a backend's test module inherits them.

The module gives a fixture `arena` of scope "module": one backend for all tests, which share
whatever is expensive to start.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from ml_pipelines.backends import rayjob
from ml_pipelines.backends.base import Backend
from ml_pipelines.backends.logs import LineAssembler
from ml_pipelines.clock import Clock, SystemClock
from ml_pipelines.errors import Refused
from ml_pipelines.job.observation import Observation
from ml_pipelines.spec.manifest import RUN_KEY_LABEL
from ml_pipelines.spec.pools import Pools
from ml_pipelines_tests.rayjob_manifests import manifest

ENDS = frozenset({"Complete", "Failed", "ValidationFailed"})
START_S = 100.0  # a cold start on a machine that is busy with other tests
LOG_S = 20.0  # the last lines may come a moment after the end

TELL_ALL = """
import json, os, sys
print(json.dumps([sys.argv[1:], {name: os.environ.get(name) for name in sys.argv[1:]}]))
print("wörker \\u2588", file=sys.stderr)
print("no newline", end="")
"""
WAIT = "import time; print('waiting'); time.sleep(600)"


@dataclass
class Arena:
    """A backend under test. `left_of(name)` lists what is left of a RayJob that was deleted.

    `gone_s` is how long that may take, `sizes` what each head and worker asks for.
    """

    backend: Backend
    left_of: Callable[[str], list[str]]
    clock: Clock = field(default_factory=SystemClock)
    count: int = 0
    pools: Pools | None = None
    sizes: dict[str, str] = field(default_factory=dict)
    start_s: float = START_S
    gone_s: float = 10.0

    def manifest(self, run_key: str, argv: Sequence[str], **more: Any) -> dict[str, Any]:
        """A job of one head and `workers` workers, that runs `argv`."""
        count = more.pop("workers", 1)
        cluster = {
            "head": dict(self.sizes),
            "workers": [{**self.sizes, "min_workers": count, "max_workers": count}],
        }
        return manifest(run_key, argv, cluster=cluster, of=self.pools, **more)

    @contextmanager
    def job(self, *argv: str, **more: Any) -> Iterator[str]:
        """A RayJob that runs `argv`, for as long as the block lasts; gives its name."""
        self.count += 1
        argv = argv or (sys.executable, "-c", WAIT)
        made = self.manifest(f"contract-{self.count}", argv, **more)
        name = rayjob.name(made)
        self.backend.create(made)
        try:
            yield name
        finally:
            self.backend.delete(name)

    def until(
        self, name: str, condition: Callable[[Observation], bool], *, seconds: float = 0.0
    ) -> Observation:
        """Observe until the condition holds."""
        deadline = self.clock.monotonic() + (seconds or self.start_s)
        while True:
            seen = self.backend.observe(name)
            if condition(seen):
                return seen
            assert self.clock.monotonic() < deadline, seen
            self.clock.sleep(0.05)

    def ended(self, name: str) -> Observation:
        """Observe until the engine has said its last word."""
        return self.until(name, lambda seen: bool(seen.rayjob) and words(seen)[1] in ENDS)

    def running(self, name: str) -> Observation:
        """Observe until the driver runs and has written a line of its own."""
        self.until(name, lambda seen: bool(seen.rayjob) and words(seen)[0] == "RUNNING")
        return self.until(name, lambda _: "waiting" in self.lines(name))

    def lines_with(self, name: str, last: str) -> list[str]:
        """The driver's log, once it holds that line."""
        deadline = self.clock.monotonic() + LOG_S
        while last not in (lines := self.lines(name)):
            assert self.clock.monotonic() < deadline, lines
            self.clock.sleep(0.2)
        return lines

    def lines(self, name: str) -> list[str]:
        """The driver's log so far, read in small pieces."""
        assembler = LineAssembler()
        found = []
        while True:
            chunk = self.backend.read_log(name, "driver", assembler.position, 61)
            found += assembler.feed_chunk(chunk)
            if not chunk.data:
                return [line.text for line in found + assembler.flush()]


def words(seen: Observation) -> tuple[str, str, str]:
    """KubeRay's three words."""
    assert seen.rayjob is not None
    return seen.rayjob.job_status, seen.rayjob.deployment_status, seen.rayjob.reason


class BackendContract:
    """The contract. The last test may end what the others shared."""

    def test_a_driver_that_succeeds(self, arena: Arena):
        """Cases A5, A10, A11, D6, D7: argv, environment and log arrive byte-equal and whole."""
        env = {"ONE": "1E-5", "TWO": "on", "THREE": "a: b\n\tc", "FOUR": "p$$ `echo hi`\"'\\;&&"}
        odd = ["$HOME", "`id`", "a b;c&&d", "'\"\\", "[1]", "█ ", ""]
        argv = [*env, *odd]
        with arena.job("python", "-c", TELL_ALL, *argv, env=env) as name:
            seen = arena.ended(name)
            lines = arena.lines_with(name, "no newline")
        assert words(seen) == ("SUCCEEDED", "Complete", "")
        assert seen.rayjob is not None
        assert seen.rayjob.driver_exit_code in {0, None}
        told = next(line for line in lines if line.startswith("[["))
        assert json.loads(told) == [argv, {**dict.fromkeys(odd), **env}]
        assert lines[-2:] == ["wörker █", "no newline"]

    def test_its_pods_are_seen(self, arena: Arena):
        """The ledger needs head and workers with node, pool, requests and times."""
        with arena.job("true", workers=2) as name:
            arena.ended(name)
            seen = arena.backend.observe(name)
        assert sorted(pod.role for pod in seen.pods) == ["head", "worker", "worker"]
        assert len({pod.uid for pod in seen.pods}) == 3
        for pod in seen.pods:
            assert pod.node
            assert pod.pool == "cpu"
            assert pod.requests["cpu"] > 0
            assert pod.scheduled_at is not None

    def test_a_driver_that_fails(self, arena: Arena):
        """Case C6: the user's own failure, with exit code and log."""
        with arena.job("python", "-c", "print('boom'); raise SystemExit(3)") as name:
            seen = arena.ended(name)
            assert arena.lines_with(name, "boom")
        assert words(seen) == ("FAILED", "Failed", "AppFailed")
        assert seen.rayjob is not None
        assert seen.rayjob.driver_exit_code in {3, None}

    def test_creating_again_adopts(self, arena: Arena):
        """Cases B1, B2: the same manifest is the same object; another spec is refused."""
        made = arena.manifest("contract-adopt", ["true"])
        first = arena.backend.create(made)
        try:
            assert arena.backend.create(made).uid == first.uid
            with pytest.raises(Refused):
                arena.backend.create(arena.manifest("contract-adopt", ["false"]))
            labels = {RUN_KEY_LABEL: "contract-adopt"}
            assert [view.uid for view in arena.backend.list(labels)] == [first.uid]
            assert arena.backend.list({RUN_KEY_LABEL: "another"}) == []
        finally:
            arena.backend.delete(first.name, first.uid)

    def test_what_is_not_there(self, arena: Arena):
        """Nothing is an answer too, and no error."""
        assert arena.backend.observe("no-such-job").rayjob is None
        assert arena.backend.read_log("no-such-job", "driver", 0, 10).data == b""
        arena.backend.stop("no-such-job")
        arena.backend.delete("no-such-job")

    def test_a_namesake_is_not_deleted(self, arena: Arena):
        """A delete with another uid does nothing."""
        with arena.job("true") as name:
            arena.backend.delete(name, "another-uid")
            seen = arena.backend.observe(name)
            assert seen.rayjob is not None
            assert not seen.rayjob.deleting

    def test_stop_ends_the_driver(self, arena: Arena):
        """Cases C3, E3: stopped, not succeeded."""
        with arena.job() as name:
            arena.running(name)
            arena.backend.stop(name)
            seen = arena.ended(name)
        assert words(seen) == ("STOPPED", "Complete", "")

    def test_delete_of_a_running_job_leaves_nothing(self, arena: Arena):
        """Case E3: within `gone_s` neither object nor process is left."""
        with arena.job() as name:
            arena.running(name)
            arena.backend.delete(name)
            deadline = arena.clock.monotonic() + arena.gone_s
            arena.until(name, lambda seen: seen.rayjob is None, seconds=arena.gone_s)
            while left := arena.left_of(name):
                assert arena.clock.monotonic() < deadline, left
                arena.clock.sleep(0.2)
