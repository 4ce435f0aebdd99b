"""The Launchpad, asked as the UI asks it: what it scaffolds launches unchanged."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster._core.test_utils import instance_for_test
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import ModuleTarget
from dagster_graphql.test.utils import execute_dagster_graphql

GOLDEN = Path(__file__).parent / "golden" / "launchpad_ads_ranking_daily.yaml"
JOB = "ads_ranking_daily"
SELECTOR = {
    "repositoryLocationName": "ml_pipelines",
    "repositoryName": "__repository__",
    "pipelineName": JOB,
}
Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """A query to the GraphQL schema that the UI talks to, in this process."""
    target = ModuleTarget("ml_pipelines.definitions", None, None, "ml_pipelines")
    with instance_for_test() as instance, WorkspaceProcessContext(instance, target) as context:

        def query(text: str, **variables: Any) -> dict[str, Any]:
            request = context.create_request_context()
            answer = execute_dagster_graphql(request, text, variables=variables)
            assert not answer.errors, answer.errors
            return dict(answer.data)

        yield query


SCAFFOLD = """
query ($selector: PipelineSelector!) {
  runConfigSchemaOrError(selector: $selector) {
    ... on RunConfigSchema { rootDefaultYaml }
    ... on PythonError { message }
  }
}
"""
VALID = """
query ($selector: PipelineSelector!, $config: RunConfigData) {
  isPipelineConfigValid(pipeline: $selector, mode: "default", runConfigData: $config) {
    __typename
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""
LAUNCH = """
mutation ($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""


@pytest.fixture(scope="module")
def scaffold(ask: Ask) -> str:
    """What the Launchpad writes when it is asked to fill in the defaults."""
    text: str = ask(SCAFFOLD, selector=SELECTOR)["runConfigSchemaOrError"]["rootDefaultYaml"]
    return text


def validity(ask: Ask, config: dict[str, Any]) -> tuple[str, str]:
    answer = ask(VALID, selector=SELECTOR, config=yaml.safe_dump(config))["isPipelineConfigValid"]
    return answer["__typename"], " ".join(e["message"] for e in answer.get("errors", []))


def test_the_scaffold_is_as_recorded(scaffold: str) -> None:
    """Every field with its default, in the engineer's words (MLP_UPDATE_GOLDEN=1)."""
    if os.environ.get("MLP_UPDATE_GOLDEN"):
        GOLDEN.write_text(scaffold)
    assert GOLDEN.read_text() == scaffold


def test_the_scaffold_is_valid_and_launches_unchanged(ask: Ask, scaffold: str) -> None:
    """Filled in and launched for one day without a change, the run is taken."""
    config = yaml.safe_load(scaffold)
    assert validity(ask, config) == ("PipelineConfigValidationValid", "")
    params = {
        "selector": SELECTOR,
        "runConfigData": scaffold,
        "mode": "default",
        "executionMetadata": {"tags": [{"key": "dagster/partition", "value": "2019-11-25"}]},
    }
    launched = ask(LAUNCH, params=params)["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched


def test_no_config_at_all_is_valid(ask: Ask) -> None:
    """The Materialize button, backfills, sensors and schedules launch with nothing."""
    assert validity(ask, {})[0] == "PipelineConfigValidationValid"


@pytest.mark.parametrize(
    ("op", "config", "said"),
    [
        ("ads_model", {"epocs": 3}, 'unexpected config entry "epocs"'),
        ("ads_modle", {}, 'unexpected config entry "ads_modle"'),
        (
            "ads_model",
            {"epochs": "three"},
            "Invalid scalar at path root:ops:ads_model:config:epochs",
        ),
        ("ads_evaluation", {"gate": {"min_click": 1}}, 'unexpected config entry "min_click"'),
    ],
    ids=["field", "asset", "type", "nested"],
)
def test_the_launchpad_itself_refuses(ask: Ask, op: str, config: dict[str, Any], said: str) -> None:
    """Unknown and mistyped fields never become a run; the message names the field."""
    kind, message = validity(ask, {"ops": {op: {"config": config}}})
    assert kind == "RunConfigValidationInvalid"
    assert said in message
