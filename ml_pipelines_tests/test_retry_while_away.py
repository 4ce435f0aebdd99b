"""A run that goes on with an earlier run's job outwaits storage or a cluster that is away."""

from __future__ import annotations

import pytest

from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import BackendUnavailable, MlPipelinesError, Refused, StorageUnavailable
from ml_pipelines.orchestration.resource import AWAY_PATIENCE_S, patiently


class Away:
    """Answers `it is back` after so many failures."""

    def __init__(self, error: MlPipelinesError, failures: float) -> None:
        self.error, self.left, self.asked = error, failures, 0

    def __call__(self) -> str:
        self.asked += 1
        if self.asked <= self.left:
            raise self.error
        return "it is back"


@pytest.mark.parametrize("error", [StorageUnavailable("no S3"), BackendUnavailable("no server")])
def test_a_begun_job_is_asked_for_again(error: MlPipelinesError, clock: FakeClock):
    """Cases B6, C14: the job goes on meanwhile; its retry must not give it up to the keeper."""
    away = Away(error, failures=7)
    assert patiently(away, begun=True, clock=clock) == "it is back"
    assert 60 <= clock.monotonic() < AWAY_PATIENCE_S


def test_it_ends_some_time(clock: FakeClock):
    """What stays away is told in the end."""
    away = Away(StorageUnavailable("no S3"), failures=float("inf"))
    before = clock.monotonic()
    with pytest.raises(StorageUnavailable, match="no S3"):
        patiently(away, begun=True, clock=clock)
    assert AWAY_PATIENCE_S <= clock.monotonic() - before < AWAY_PATIENCE_S + 30


@pytest.mark.parametrize(
    ("error", "begun"), [(StorageUnavailable("no S3"), False), (Refused("taken"), True)]
)
def test_nothing_else_is_asked_again(error: MlPipelinesError, begun: bool, clock: FakeClock):
    """A new job is refused at once, and so is what waiting doesn't change."""
    away = Away(error, failures=1)
    with pytest.raises(type(error)):
        patiently(away, begun=begun, clock=clock)
    assert away.asked == 1
