"""The Launchpad's classes stand apart from the specs, and say the same."""

import dataclasses
import inspect
import re
from typing import Any

import annotated_types
import dagster as dg
import pytest
from pydantic.fields import FieldInfo

from ml_pipelines.defs.ads_ranking.config import (
    LANES,
    EvaluateConfig,
    FeaturesConfig,
    GateConfig,
    PredictConfig,
    TrainConfig,
)
from ml_pipelines.defs.ads_ranking.partitions import WINDOW_DAYS
from ml_pipelines.spec.cluster import WorkerGroup

CONFIGS: list[type[dg.Config]] = [
    FeaturesConfig,
    TrainConfig,
    EvaluateConfig,
    GateConfig,
    PredictConfig,
]
FIELDS = [(cls, name) for cls in CONFIGS for name in cls.model_fields]
IDS = [f"{cls.__name__}.{name}" for cls, name in FIELDS]


def limits(field: FieldInfo) -> tuple[float | None, float | None]:
    """Least and greatest value of a field."""
    low = [m.ge for m in field.metadata if isinstance(m, annotated_types.Ge)]
    high = [m.le for m in field.metadata if isinstance(m, annotated_types.Le)]
    return (low[0] if low else None), (high[0] if high else None)  # type: ignore[return-value]


@pytest.mark.parametrize(("cls", "name"), FIELDS, ids=IDS)
def test_every_field_has_a_default_and_a_description(cls: type[dg.Config], name: str) -> None:
    """The Materialize button launches with nothing; the form explains itself."""
    field = cls.model_fields[name]
    assert not field.is_required()
    assert field.default is not None
    assert field.description
    assert field.description[0].isupper()


@pytest.mark.parametrize(("cls", "name"), FIELDS, ids=IDS)
def test_limits_are_told(cls: type[dg.Config], name: str) -> None:
    """The Launchpad shows no limits by itself, so the description names both."""
    field = cls.model_fields[name]
    described = [float(n) for n in re.findall(r"\d+(?:\.\d+)?", field.description or "")]
    for limit in limits(field):
        assert limit is None or float(limit) in described, (limit, field.description)


def workload(params: type) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(params)}


def pairs() -> list[tuple[str, type[dg.Config], dict[str, dataclasses.Field[Any]]]]:
    from ml_pipelines.workloads.ads_ranking.config import TrainConfig as TrainParams
    from ml_pipelines.workloads.ads_ranking.evaluate import EvaluateParams
    from ml_pipelines.workloads.ads_ranking.predict import PredictParams

    classes: list[tuple[type[dg.Config], dict[str, dataclasses.Field[Any]]]] = [
        (TrainConfig, workload(TrainParams)),
        (EvaluateConfig, workload(EvaluateParams)),
        (PredictConfig, workload(PredictParams)),
    ]
    return [
        (name, cls, fields)
        for cls, fields in classes
        for name in cls.model_fields
        if name in fields
    ]


def test_defaults_and_limits_are_the_workloads_own() -> None:
    """What both the form and the workload know has one default and one range."""
    known = pairs()
    assert len(known) >= 14
    for name, cls, fields in known:
        field, theirs = cls.model_fields[name], fields[name]
        assert field.default == theirs.default, (cls, name)
        if "low" in theirs.metadata:
            assert limits(field) == (theirs.metadata["low"], theirs.metadata["high"]), (cls, name)


def test_every_choice_of_the_workload_is_in_the_form() -> None:
    """Nothing that a maker of models chooses is out of the Launchpad's reach."""
    from ml_pipelines.workloads.ads_ranking.config import TrainConfig as TrainParams

    set_by_the_chain = {"day", "image", "features"}
    assert set(workload(TrainParams)) - set_by_the_chain <= set(TrainConfig.model_fields)


def test_what_the_form_gives_is_what_the_workload_takes() -> None:
    """The params of the defaults pass the workload's own check."""
    from ml_pipelines.workloads.ads_ranking.config import TrainConfig as TrainParams
    from ml_pipelines.workloads.params import parse

    made = parse(TrainParams, TrainConfig().params(day="2019-11-30", image="i"))
    assert made.day == "2019-11-30"


def test_workers_have_the_cluster_specs_range() -> None:
    """The number of workers of the form is the group's, but for training's lanes."""
    group = WorkerGroup.model_fields["min_workers"]
    assert limits(FeaturesConfig.model_fields["workers"]) == limits(group)
    assert limits(TrainConfig.model_fields["workers"]) == (1, LANES)


def test_a_batch_is_dealt_as_the_trainer_deals_it() -> None:
    """LANES is written down twice, for the form must not import torch."""
    from ml_pipelines.workloads.ads_ranking import data

    assert LANES == data.LANES


def test_the_gate_takes_the_forms_fields() -> None:
    """GateConfig's fields are `decide`'s own arguments."""
    from ml_pipelines.workloads.ads_ranking.gate import decide

    keyword_only = [
        p.name for p in inspect.signature(decide).parameters.values() if p.kind is p.KEYWORD_ONLY
    ]
    assert set(keyword_only) == set(GateConfig.model_fields)


def test_one_window_for_all() -> None:
    """Features, training, baseline and staleness look at the same days unless told otherwise."""
    for cls in (FeaturesConfig, TrainConfig, PredictConfig):
        assert cls.model_fields["window_days"].default == WINDOW_DAYS
