"""`make run`: the real job for one day in this process, told to a person."""

import signal
from collections.abc import Iterator

import dagster as dg
import pytest

from ml_pipelines.defs.ads_ranking.run_day import fill, main
from ml_pipelines.job.events import Event, LogLine
from ml_pipelines.job.verdict import Verdict, VerdictClass
from ml_pipelines.settings import load
from ml_pipelines_tests.fake_ads import Ads
from ml_pipelines_tests.fake_ray import fails, fake_ray
from ml_pipelines_tests.lake_days import own_lake, write_day

DAY = "2019-11-30"


@pytest.fixture
def ads(monkeypatch) -> Iterator[Ads]:
    monkeypatch.setenv("DAGSTER_HOME", str(load().home / "dagster"))
    for number in range(24, 31):
        write_day(own_lake(), f"2019-11-{number}")
    with dg.DagsterInstance.ephemeral() as unused:
        yield Ads(unused)


def run(ads: Ads, *arguments: str) -> int:
    ray = fake_ray(ads.control, leave_when_cut_off=False)
    return main(["--data", "open-bandit", *arguments], ray=ray)


def test_a_green_day_is_told_whole(ads: Ads, capsys) -> None:
    """Metrics beside the baseline's, the gate and why, places, times, and what to do next."""
    ads.clicks = 43
    assert run(ads) == 0
    told = capsys.readouterr().out
    for part in (
        f"{DAY} (open-bandit): green",
        "challenger   0.7000 (0.6900 to 0.7100) 0.9500",
        "baseline     0.7000",
        "gate         too few clicks: 43 clicks",
        "champion     none: the baseline serves",
        "model        memory://models/model-1",
        "predictions  10 rows by the smoothed-CTR baseline: memory://p",
        "training log file:///log",
        "times        features 4 s (start 2)",
        "mlp job logs ads-model-2019-11-30-",
        "next         make dev DATA=open-bandit    # the runs",
        "             make run DATA=synthetic      # data in which",
    ):
        assert part in told, told


def test_the_run_is_kept_on_the_instance(ads: Ads) -> None:
    """The Dagster UI shows it afterwards, with its partition and the version of its data."""
    assert run(ads, "--day", "2019-11-29") == 0
    with dg.DagsterInstance.get() as instance:
        [made] = instance.get_runs()
    assert made.status is dg.DagsterRunStatus.SUCCESS
    assert made.job_name == "ads_ranking_daily"
    assert made.tags["dagster/partition"] == "2019-11-29"
    assert made.tags["ml_pipelines/data_version"]


def test_a_failed_job_is_told_with_its_reason(ads: Ads, capsys) -> None:
    """The exit code is 1, and the report says which step failed, why, and what to do."""
    verdict = Verdict(VerdictClass.OOM, "a worker ran out of memory", remedy="Ask for 8Gi.")
    ads.control.scripts["train"] = fails(verdict, "the last line")
    assert run(ads) == 1
    told = capsys.readouterr().out
    assert "FAILED after" in told
    assert "ads_model failed: FAILED, OOM: a worker ran out of memory. Ask for 8Gi." in told


def test_a_red_check_is_told(ads: Ads, capsys) -> None:
    """A half-written day names the check, and what is wrong."""
    own_lake().store.delete(f"impressions/dt={DAY}/_SUCCESS.json")
    assert run(ads, "--day", DAY) == 2
    assert "half-written" in capsys.readouterr().err


@pytest.mark.parametrize("day", ["2018-01-01", "yesterday"])
def test_a_day_that_is_none_is_refused(ads: Ads, day: str, capsys) -> None:
    """Bad input has exit code 2, one sentence, and starts nothing."""
    assert run(ads, "--day", day) == 2
    assert f"'{day}' is no day from 2019-11-24 on" in capsys.readouterr().err
    assert ads.control.submitted == []


def test_ctrl_c_cancels(ads: Ads, capsys) -> None:
    """Ctrl-C in mid-training cancels the job, and the exit code says that it was stopped."""

    def train(_spec, _me) -> Iterator[Event]:
        yield LogLine("driver", "training", 0, 1)
        signal.raise_signal(signal.SIGINT)
        yield LogLine("driver", "never", 9, 1)

    ads.control.scripts["train"] = train
    assert run(ads) == 130
    assert [run_key for run_key, _, _ in ads.control.cancelled] == [
        ads.control.submitted[1][1].run_key
    ]
    told = capsys.readouterr().out
    assert "stopped after" in told
    assert "ads_model was stopped; its job is cancelled, nothing runs on." in told


def test_an_empty_lake_is_filled_once() -> None:
    """Synthetic days are generated where there are none, and left alone where there are."""
    lake = own_lake()
    fill(lake, "synthetic", rows=50)
    days = lake.days("impressions")
    assert len(days) == 8
    fill(lake, "synthetic", rows=60)
    assert lake.days("impressions") == days
