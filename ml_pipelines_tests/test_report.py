"""How a workload reports to its job: claims, commits, metric lines."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from ml_pipelines.errors import InvalidData, InvalidInput, StorageUnavailable, Superseded
from ml_pipelines.job import wire
from ml_pipelines.workloads.report import (
    COMMIT_BUDGET_S,
    Committer,
    MetricLines,
    driver,
    patiently,
)
from ml_pipelines_tests.ads_job import bear, environment, job

if TYPE_CHECKING:
    from collections.abc import Iterator


def told(capsys) -> list[Any]:
    """The messages in what was printed."""
    return [wire.parse(line) for line in capsys.readouterr().out.splitlines()]


def test_a_driver_reads_its_params_and_commits_its_result(tmp_path):
    """What the job was born with is what the driver reads; its result is what the loop reads."""
    loop = bear(tmp_path, {"epochs": 2})
    with driver(environment(tmp_path)) as run:
        assert run.params == {"epochs": 2}
        assert run.prefix == f"jobs/job/a1/i{run.claim}/"
        run.store.put(f"{run.prefix}model/x", b"x")
        run.commit("checkpoint", path=f"{run.prefix}c", sha256="s", data={"step": 3})
        run.result({"auc": 0.8})
    state = loop.read()
    assert state.result is not None
    assert state.result.data == {"auc": 0.8}
    checkpoint = state.latest("checkpoint")
    assert checkpoint is not None
    assert (checkpoint.path, checkpoint.data) == (f"{run.prefix}c", {"step": 3})


def test_a_newer_driver_ends_the_older_one(tmp_path):
    """Once a newer driver has claimed, the older one's commits raise and don't count."""
    loop = bear(tmp_path, {})
    with driver(environment(tmp_path)) as older, driver(environment(tmp_path)) as newer:
        assert newer.prefix != older.prefix
        with pytest.raises(Superseded):
            older.result({"who": "older"})
        newer.result({"who": "newer"})
    result = loop.read().result
    assert result is not None
    assert result.data == {"who": "newer"}


def test_commits_of_earlier_drivers_are_found(tmp_path):
    """A new incarnation finds the checkpoints of the one before, newest first."""
    bear(tmp_path, {})
    for step in (1, 2):
        with driver(environment(tmp_path)) as run:
            run.commit("checkpoint", path=f"c{step}", data={"step": step})
    with driver(environment(tmp_path)) as run:
        assert [each.data["step"] for each in run.commits("checkpoint")] == [2, 1]
        latest = run.latest("checkpoint")
        assert latest is not None
        assert latest.path == "c2"
        assert run.latest("result") is None


@pytest.mark.parametrize("missing", ["MLP_RUNS", "MLP_RUN_KEY", "MLP_LAKE"])
def test_outside_a_job_it_says_so(tmp_path, missing):
    """Without the job's environment there is one sentence that names the variable."""
    bear(tmp_path, {})
    env = {name: value for name, value in environment(tmp_path).items() if name != missing}
    with pytest.raises(InvalidInput, match=f"{missing}.*mlp job submit"), driver(env):
        pass


def test_a_job_that_was_never_born(tmp_path):
    """A run key without a journal is refused, naming the storage that was looked at."""
    refused = pytest.raises(InvalidInput, match=r"other.*has no journal in file://")
    with refused, driver(environment(tmp_path, "other")):
        pass


def test_an_attempt_that_is_not_open(tmp_path):
    """A driver of an attempt that was never opened may not claim."""
    bear(tmp_path, {})
    with pytest.raises(Superseded), driver(environment(tmp_path, attempt=2)):
        pass


def test_metrics_are_bounded_and_the_last_one_is_kept(capsys, clock):
    """At most two a second are printed, each under the claim, and `close` prints what is left."""
    lines = MetricLines(7, clock=clock)
    for step in range(100):
        lines(step, loss=step / 100)
        clock.advance(0.01)
    lines.close()
    messages = told(capsys)
    assert [m.step for m in messages] == [0, 50, 99]
    assert {m.claim for m in messages} == {7}


def test_a_loss_that_is_no_number_travels(capsys, clock):
    """Case J1: NaN and infinity are told as text, and the line is strict JSON."""
    MetricLines(1, clock=clock)(1, loss=float("nan"), auc=float("inf"))
    (message,) = told(capsys)
    assert message.values == {"loss": "NaN", "auc": "Infinity"}


def test_progress_is_a_line_for_people(tmp_path, capsys):
    """Progress carries its text, how far it is, and the claim."""
    with job(tmp_path) as run:
        run.progress("half way", done=5, total=10)
    (message,) = told(capsys)
    assert (message.text, message.done, message.total) == ("half way", 5, 10)
    assert message.claim == run.claim


def test_commits_wait_for_storage(clock):
    """While storage is away a commit is tried again and again, and then stands."""
    answers: Iterator[Any] = iter([StorageUnavailable("away"), StorageUnavailable("away"), "done"])
    said: list[str] = []

    def act() -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patiently(act, say=said.append, clock=clock) == "done"
    assert len(said) == 2
    assert clock.elapsed == 10


def test_patience_ends(clock):
    """Storage that never comes back is an error of storage in the end, not a hang."""

    def act() -> None:
        raise StorageUnavailable("away")

    with pytest.raises(StorageUnavailable):
        patiently(act, say=lambda _: None, clock=clock)
    assert COMMIT_BUDGET_S <= clock.elapsed < COMMIT_BUDGET_S + 60


class Wrapped(Exception):
    """An error of ours as Ray hands it on: inside, and pickled on the way."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("wrapped")
        self.worker_failures = {1: ValueError("other"), 0: pickle.loads(pickle.dumps(cause))}


def test_our_errors_come_out_of_rays_wrapping(tmp_path):
    """A worker's InvalidData ends the driver as InvalidData, with its path and remedy."""
    error = InvalidData("lake/x", 3, "is bad", remedy="Mend it.")
    with pytest.raises(InvalidData, match=r"lake/x: 3 is bad\. Mend it\."), job(tmp_path):
        raise Wrapped(error)


def test_other_errors_stay_what_they_are(tmp_path):
    """An exception of the user's code is raised as it was."""
    with pytest.raises(ZeroDivisionError), job(tmp_path):
        raise ZeroDivisionError


def test_a_committer_works_in_another_process(tmp_path):
    """Ray's controller commits under the driver's claim, in a thread, and hears of a newer one."""
    loop = bear(tmp_path, {})
    with driver(environment(tmp_path)) as run:
        committer = pickle.loads(pickle.dumps(Committer(run.seat)))
        committer.post(lambda journal: journal.commit(run.claim, "checkpoint", path="c"))
        committer.drain()
        assert [each.path for each in loop.read().commits] == ["c"]
        with driver(environment(tmp_path)):
            committer.post(lambda journal: journal.commit(run.claim, "checkpoint", path="late"))
            committer.drain()
            with pytest.raises(Superseded):
                committer.post(lambda _: None)
    assert [each.path for each in loop.read().commits] == ["c"]
