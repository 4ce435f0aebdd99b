"""Whose job a run claims: its own logical run's, and only that."""

from collections.abc import Iterator

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run

from ml_pipelines.job.events import Event
from ml_pipelines.orchestration.resource import RayJobs
from ml_pipelines.spec.cluster import ClusterSpec
from ml_pipelines_tests.fake_ray import FakeControl, ended, fake_ray


@dg.asset
def model(context: dg.AssetExecutionContext, ray: RayJobs) -> dg.MaterializeResult[None]:
    outcome = ray.run(context, module="x.train", cluster=ClusterSpec(), params={})
    return dg.MaterializeResult(metadata=dict(outcome.result))


class Instance:
    """A Dagster instance whose runs are made by hand, parents and all."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self.started = 0
        self.control = FakeControl({"train": self._train})

    def _train(self, _spec, me) -> Iterator[Event]:
        self.started += 1
        yield ended(me, {"auc": 0.7})

    def run(self, *, parent: str | None = None, tags: dict[str, str] | None = None) -> str:
        """One run, made as Dagster makes retries and re-executions; returns its id."""
        ray = fake_ray(self.control)
        defs = dg.Definitions(
            assets=[model], resources={"ray": ray}, executor=dg.in_process_executor
        )
        job = defs.resolve_implicit_global_asset_job_def()
        run = self.instance.create_run_for_job(
            job, parent_run_id=parent, root_run_id=parent, tags=tags
        )
        if parent is not None and self.is_retry:
            self.instance.add_run_tags(parent, {"dagster/auto_retry_run_id": run.run_id})
        assert execute_run(InMemoryJob(job), run, self.instance, raise_on_error=True).success
        return run.run_id

    is_retry = True


@pytest.fixture
def dagster() -> Iterator[Instance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Instance(instance)


def keys(dagster: Instance) -> list[str]:
    return [me.run_key for _, me in dagster.control.submitted]


def test_an_automatic_retry_takes_the_result_of_a_job_that_finished(dagster: Instance) -> None:
    """Case G10: training had succeeded before its worker died; no second RayJob is made."""
    dagster.run(parent=dagster.run())
    assert len(set(keys(dagster))) == 1
    assert dagster.started == 1
    assert [me.retried for _, me in dagster.control.submitted] == [False, True]


def test_a_manual_re_execution_starts_anew(dagster: Instance) -> None:
    """Case B6: it shares Dagster's root run id, and is a new job all the same."""
    dagster.is_retry = False
    dagster.run(parent=dagster.run())
    assert len(set(keys(dagster))) == 2
    assert dagster.started == 2


def test_whose_job_it_is_stands_in_the_runs_tags(dagster: Instance) -> None:
    """In a cluster all runs have one account: owner, team and experiment come from their tags."""
    tags = {"owner": "ann@example.org", "team": "ads", "experiment": "wide"}
    dagster.run(tags=tags)
    [(spec, _)] = dagster.control.submitted
    assert (spec.owner, spec.team, spec.experiment) == ("ann@example.org", "ads", "wide")
