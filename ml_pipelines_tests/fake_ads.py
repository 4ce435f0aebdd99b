"""The ads workloads as scripts: results of the right shape, recorded in real journals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from ml_pipelines.definitions import defs
from ml_pipelines.job.events import Event, LogLine, MetricPoint
from ml_pipelines.journal.entries import Draft
from ml_pipelines.journal.record import Journal
from ml_pipelines.orchestration.identity import StepIdentity
from ml_pipelines.orchestration.stores import Stores
from ml_pipelines.spec.job import JobSpec
from ml_pipelines_tests.fake_ray import FakeControl, ended, fake_ray


def interval(value: float, width: float = 0.01) -> dict[str, float]:
    return {"value": value, "low": value - width, "high": value + width}


def evaluation(
    *, clicks: int = 500, gain: float = 0.05, over_baseline: float = 0.05, champion: str = ""
) -> dict[str, Any]:
    """A result of `evaluate`; gains in normalised entropy, their intervals ± 0.01."""
    names = ["challenger", "baseline", *(["champion"] if champion else [])]
    model = {
        "auc": interval(0.7), "normalised_entropy": interval(0.95), "calibration": 1.02,
        "version": "v",
    }  # fmt: skip
    gains = {"baseline": interval(over_baseline)} | (
        {"champion": interval(gain)} if champion else {}
    )
    return {
        "day": "2019-11-30", "rows": 9000, "clicks": clicks, "champion": champion, "seconds": 1.0,
        "models": {name: dict(model) for name in names}, "gain": gains, "auc_gain": gains,
        "reliability": [{"predicted": 0.1, "seen": 0.11, "rows": 900.0}],
    }  # fmt: skip


@dataclass
class Ads:
    """The whole chain on an ephemeral instance, over scripted jobs and real stores."""

    instance: dg.DagsterInstance
    clicks: int = 500
    gain: float = 0.05
    over_baseline: float = 0.05
    trained: int = 0
    control: FakeControl = field(default_factory=FakeControl)
    before_evaluation_ends: Any = None

    def __post_init__(self) -> None:
        self.control.scripts = {
            "features": self.features,
            "train": self.train,
            "evaluate": self.evaluate,
            "predict": self.predict,
        }
        self.control.entry_of = entry_of

    def run(self, day: str, *, ops: dict[str, Any] | None = None) -> dg.ExecuteInProcessResult:
        """The job for one day."""
        resources = {"ray": fake_ray(self.control), "stores": Stores()}
        everything = dg.Definitions.merge(
            dg.Definitions(resources=resources), without_resources(defs())
        )
        return everything.resolve_job_def("ads_ranking_daily").execute_in_process(
            partition_key=day,
            instance=self.instance,
            raise_on_error=False,
            run_config={"ops": ops} if ops else None,
        )

    def features(self, spec: JobSpec, me: StepIdentity) -> Iterator[Event]:
        """Makes every day it is told to."""
        days = {
            day: {"made": True, "rows": 10, "data_version": f"f-{day}", "made_from": f"i-{day}"}
            for day in spec.params["days"]  # type: ignore[union-attr]
        }
        yield self.end(me, {"dataset": "features", "days": days})

    def train(self, spec: JobSpec, me: StepIdentity) -> Iterator[Event]:
        """Tells metrics while it trains, and a model of a new version each time."""
        self.trained += 1
        curve = []
        for step in range(300):
            yield MetricPoint(step, {"loss": 1 / (step + 1), "auc": "NaN"}, 1)
            curve.append({"step": step, "loss": 1 / (step + 1), "auc": 0.6, "samples_per_s": 9.0})
        yield LogLine("driver", "(RayTrainWorker pid=7) hello", 0, 1)
        version = f"model-{self.trained}"
        params = spec.params
        result = {
            "model_url": f"memory://models/{version}", "version": version,
            "model_name": params["model_name"], "day": params["day"], "window": ["2019-11-24"],
            "data_versions": {"2019-11-24": "f"}, "rows": 100, "clicks": 9, "loss": 0.1,
            "auc": 0.7, "samples_per_s": 1e4, "steps": 300, "seconds": 3.0, "workers": 2,
            "device": "cpu", "table_bytes": 1, "resumed_from": None, "curve": curve,
            "provenance": {"seed": params["seed"], "image": params["image"], "code": "c"},
        }  # fmt: skip
        yield self.end(me, result)

    def evaluate(self, spec: JobSpec, me: StepIdentity) -> Iterator[Event]:
        """Judges by the numbers that the test has set."""
        result = evaluation(
            clicks=self.clicks, gain=self.gain, over_baseline=self.over_baseline,
            champion=str(spec.params["champion"]),
        )  # fmt: skip
        if self.before_evaluation_ends:
            act, self.before_evaluation_ends = self.before_evaluation_ends, None
            act()
        yield self.end(me, result)

    def predict(self, spec: JobSpec, me: StepIdentity) -> Iterator[Event]:
        """Scores with what it was given."""
        yield self.end(
            me,
            {
                "day": spec.params["day"], "dataset": "predictions", "rows": 10, "url": "memory://p",
                "data_version": "p", "model": {"url": spec.params["model_url"]},
            },
        )  # fmt: skip

    def end(self, me: StepIdentity, result: dict[str, Any]) -> Event:
        commit(me.run_key, result)
        return ended(me, result)

    def params(self, module: str) -> list[dict[str, Any]]:
        """What each job of a workload was given."""
        return [
            dict(spec.params)
            for spec, _ in self.control.submitted
            if spec.entrypoint[-1].endswith(f".{module}")
        ]


def without_resources(given: dg.Definitions) -> dg.Definitions:
    return dg.Definitions(
        assets=given.assets, asset_checks=given.asset_checks, jobs=given.jobs,
        schedules=given.schedules, sensors=given.sensors,
    )  # fmt: skip


def commit(run_key: str, result: dict[str, Any]) -> int:
    """A journal with a result that counts, as a driver leaves it; the result's entry."""
    journal = Journal(Stores().runs(), run_key, writer="test")
    birth = {
        "name": run_key, "owner": "t", "spec": {}, "spec_hash": "h", "backend": "fake",
        "location": "here", "owes_result": True, "labels": {}, "created_at": "2026-01-01",
    }  # fmt: skip
    journal.append(lambda _: Draft("birth", birth), role="loop", claim=0)
    loop = journal.claim_loop()
    attempt = {"number": 1, "name": f"{run_key}-a1"}
    journal.append(lambda _: Draft("attempt", attempt), role="loop", claim=loop.number)
    driver = journal.claim_driver(1, "cluster")
    return journal.commit(driver.number, "result", data=result).entry


def entry_of(run_key: str) -> int | None:
    """The entry of a job's result, read back."""
    result = Journal(Stores().runs(), run_key, writer="test").read().result
    return result.entry if result else None
