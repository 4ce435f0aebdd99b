"""The code location loads, without a deprecated call, and its shape changes only on purpose."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import dagster as dg
import pytest

from ml_pipelines.definitions import defs

GOLDEN = Path(__file__).parent / "golden" / "definitions.json"


@pytest.fixture(scope="module")
def loaded() -> dg.Definitions:
    return defs()


def test_it_loads(loaded: dg.Definitions) -> None:
    """Dagster itself finds nothing wrong with it."""
    dg.Definitions.validate_loadable(loaded)


def test_it_loads_without_a_warning() -> None:
    """No deprecated, superseded or beta part of Dagster is in use."""
    code = "import dagster as dg, ml_pipelines.definitions as m; dg.Definitions.validate_loadable(m.defs())"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=dict(os.environ))


def test_its_shape_is_as_recorded(loaded: dg.Definitions) -> None:
    """Assets with their dependencies, checks, jobs, schedules and sensors (MLP_UPDATE_GOLDEN=1)."""
    repository = loaded.get_repository_def()
    shape = {
        "assets": {
            spec.key.to_user_string(): {
                "deps": sorted(dep.asset_key.to_user_string() for dep in spec.deps),
                "group": spec.group_name,
                "kinds": sorted(spec.kinds),
                "partitions": str(spec.partitions_def),
            }
            for spec in loaded.resolve_all_asset_specs()
        },
        "checks": sorted(key.to_user_string() for key in repository.asset_graph.asset_check_keys),
        "jobs": sorted(job.name for job in repository.get_all_jobs() if job.name[0] != "_"),
        "schedules": {s.name: s.cron_schedule for s in repository.schedule_defs},
        "sensors": {s.name: str(s.default_status.value) for s in repository.sensor_defs},
    }
    text = json.dumps(shape, indent=2, sort_keys=True) + "\n"
    if os.environ.get("MLP_UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert GOLDEN.read_text() == text


def test_everything_has_a_description_for_its_reader(loaded: dg.Definitions) -> None:
    """What the UI lists explains itself."""
    for spec in loaded.resolve_all_asset_specs():
        assert spec.description, spec.key
    repository = loaded.get_repository_def()
    for sensor in repository.sensor_defs:
        assert sensor.description, sensor.name
    for schedule in repository.schedule_defs:
        assert schedule.description, schedule.name


def test_the_job_retries_nothing_by_itself(loaded: dg.Definitions) -> None:
    """A retry policy in one process would restart a step that a person has just terminated."""
    job = loaded.resolve_job_def("ads_ranking_daily")
    assert job.executor_def.name == "in_process"
    for node in job.nodes:
        assert isinstance(node.definition, dg.OpDefinition)
        assert node.definition.retry_policy is None, node.name


def test_loading_imports_no_engine() -> None:
    """The code server answers soon: ray, torch, pyarrow and storage wait until they are used."""
    code = (
        "import sys, ml_pipelines.definitions as m; m.defs();"
        "print([n for n in ('ray', 'torch', 'pyarrow', 'obstore', 'pandas') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_warnings_are_errors_in_this_suite() -> None:
    """The suite's own setting, on which the tests above stand."""
    with pytest.raises(DeprecationWarning):
        warnings.warn("old", DeprecationWarning, stacklevel=1)
