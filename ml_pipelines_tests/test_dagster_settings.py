"""The `dagster.yaml` that `make run` and `make dev` install."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

SHIPPED = Path(__file__).parents[1] / "dagster.yaml"


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance as a newcomer has it."""
    shutil.copy(SHIPPED, tmp_path)
    with dg.DagsterInstance.from_config(str(tmp_path)) as made:
        yield made


def test_a_terminated_run_is_never_resumed(instance: dg.DagsterInstance) -> None:
    """Case E4: with resuming on, Terminate would not reach the steps."""
    assert instance.run_monitoring_max_resume_run_attempts == 0


def test_dead_workers_are_noticed_and_free_their_pool(instance: dg.DagsterInstance) -> None:
    """Case E13: the pool's only slot is free again half a minute after its holder was lost."""
    assert instance.run_monitoring_enabled
    assert instance.run_monitoring_poll_interval_seconds <= 30
    assert instance.get_settings("run_monitoring")["free_slots_after_run_end_seconds"] <= 30
    assert instance.get_concurrency_config().pool_config.default_pool_limit == 1


def test_only_lost_workers_are_retried(instance: dg.DagsterInstance) -> None:
    """A job that failed is not tried again by Dagster: its verdict has decided that already."""
    assert instance.run_retries_enabled
    assert instance.run_retries_max_retries > 0
    assert instance.run_retries_retry_on_asset_or_op_failure is False


def test_nothing_is_told_to_others(instance: dg.DagsterInstance) -> None:
    """No telemetry, and no dialog that asks for an address."""
    assert instance.telemetry_enabled is False
    assert instance.nux_enabled is False
