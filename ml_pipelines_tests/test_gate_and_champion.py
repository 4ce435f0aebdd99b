"""Who serves after a day: the gate's outcome, the pointer's move, and who scores the day."""

from collections.abc import Iterator

import dagster as dg
import pytest

from ml_pipelines.journal.pointer import Champion
from ml_pipelines.orchestration.stores import Stores
from ml_pipelines_tests.fake_ads import Ads, commit
from ml_pipelines_tests.lake_days import own_lake, write_day
from ml_pipelines_tests.test_ads_chain import metadata

DAY = "2019-11-29"


@pytest.fixture
def ads() -> Iterator[Ads]:
    lake = own_lake()
    for number in range(24, 31):
        write_day(lake, f"2019-11-{number}")
    with dg.DagsterInstance.ephemeral() as instance:
        yield Ads(instance)


def champion() -> Champion | None:
    return Stores().pointer("ads_ranking").current()


def gate(result: dg.ExecuteInProcessResult) -> dg.AssetCheckEvaluation:
    [check] = [c for c in result.get_asset_check_evaluations() if c.check_name == "gate"]
    return check


def test_the_first_champion_is_the_first_that_beats_the_baseline(ads: Ads) -> None:
    """Better than the baseline with the whole interval: promoted, and it scores the day."""
    result = ads.run(DAY)
    assert gate(result).passed
    assert gate(result).metadata["outcome"].value == "better"
    now = champion()
    assert now is not None
    assert (now.number, now.partition, now.version) == (1, DAY, "model-1")
    assert ads.params("predict")[0]["model_url"] == now.model_url
    assert metadata(ads, "ads_champion", DAY)["promoted"] is True


def test_without_a_champion_the_baseline_scores_the_day(ads: Ads) -> None:
    """Too few clicks to tell is a green day: nothing is promoted, the baseline scores."""
    ads.clicks = 40
    result = ads.run(DAY)
    assert result.success
    assert gate(result).metadata["outcome"].value == "too few clicks"
    assert champion() is None
    assert ads.params("predict")[0]["model_url"] == ""
    assert metadata(ads, "ads_champion", DAY)["champion"] == "none: the baseline serves"


@pytest.mark.parametrize("gain", [-0.05, 0.0], ids=["worse", "no difference"])
def test_not_better_is_a_green_day_that_the_champion_scores(ads: Ads, gain: float) -> None:
    """A challenger that isn't surely better is let go; who served goes on serving."""
    ads.run("2019-11-28")
    before = champion()
    assert before is not None
    ads.gain = gain
    result = ads.run(DAY)
    assert result.success
    assert gate(result).passed
    assert champion() == before
    assert ads.params("predict")[-1]["model_url"] == before.model_url


def test_a_better_challenger_replaces_the_champion(ads: Ads) -> None:
    """Judged against the champion, it takes exactly the number after it."""
    ads.run("2019-11-28")
    ads.run(DAY)
    assert ads.params("evaluate")[-1]["champion"] == "memory://models/model-1"
    now = champion()
    assert now is not None
    assert (now.number, now.version, now.partition) == (2, "model-2", DAY)


def test_surely_worse_than_the_baseline_is_red(ads: Ads) -> None:
    """Then something is broken: the check blocks, nothing is promoted, nothing is scored."""
    ads.over_baseline = -0.05
    result = ads.run(DAY)
    assert not result.success
    assert not gate(result).passed
    assert champion() is None
    assert ads.params("predict") == []


def test_an_earlier_day_never_replaces_a_later_champion(ads: Ads) -> None:
    """A retrain of the 27th, however good, leaves the champion of the 29th."""
    ads.run(DAY)
    result = ads.run("2019-11-27")
    assert result.success
    now = champion()
    assert now is not None
    assert now.partition == DAY
    assert "never replaces it" in str(metadata(ads, "ads_champion", "2019-11-27")["why"])


def test_the_same_day_trained_again_may_replace_itself(ads: Ads) -> None:
    """Changed data of the champion's own day goes through the gate like any other."""
    ads.run(DAY)
    ads.run(DAY)
    now = champion()
    assert now is not None
    assert (now.number, now.partition) == (2, DAY)


def promote_other(partition: str = "2019-11-28") -> None:
    """Another run promotes meanwhile."""
    run_key = f"other-{partition}"
    entry = commit(run_key, {"auc": 0.9})
    other = Champion(run_key, entry, partition, f"memory://models/{run_key}", run_key)
    pointer = Stores().pointer("ads_ranking")
    now = pointer.current()
    pointer.promote(other, expecting=now.number if now else 0)


def test_a_promotion_meanwhile_runs_the_gate_again(ads: Ads) -> None:
    """Judged against no champion, and now there is one: evaluated anew against that one."""
    ads.before_evaluation_ends = promote_other
    result = ads.run(DAY)
    assert result.success
    assert [p["champion"] for p in ads.params("evaluate")] == [
        "", "memory://models/other-2019-11-28",
    ]  # fmt: skip
    keys = [me.run_key for spec, me in ads.control.submitted if "evaluate" in spec.entrypoint[-1]]
    assert len(set(keys)) == 2
    now = champion()
    assert now is not None
    assert (now.number, now.version) == (2, "model-1")


def test_the_gate_that_runs_again_may_say_no(ads: Ads) -> None:
    """Not better than the new champion: that one stays, and the day is green."""
    ads.gain = -0.05
    ads.before_evaluation_ends = promote_other
    result = ads.run(DAY)
    assert result.success
    now = champion()
    assert now is not None
    assert now.run_key == "other-2019-11-28"
    assert "Not better than the champion for sure" in str(metadata(ads, "ads_champion", DAY)["why"])


def test_each_model_has_a_champion_of_its_own(ads: Ads) -> None:
    """Another model name in the Launchpad is an experiment that touches nobody's champion."""
    ads.run("2019-11-28")
    ads.run(DAY, ops={"ads_model": {"config": {"model_name": "wide"}}})
    now, wide = champion(), Stores().pointer("wide").current()
    assert now is not None
    assert wide is not None
    assert (now.version, wide.version) == ("model-1", "model-2")
    assert ads.params("evaluate")[-1]["champion"] == ""
