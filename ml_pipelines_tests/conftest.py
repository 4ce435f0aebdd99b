"""Fixtures that many tests share."""

from __future__ import annotations

import signal

import hypothesis
import pytest

from ml_pipelines.clock import FakeClock
from ml_pipelines_tests.cluster import cluster, leaving, namespace, pools
from ml_pipelines_tests.stores import s3_endpoint, s3_url, store

__all__ = ["cluster", "leaving", "namespace", "pools", "s3_endpoint", "s3_url", "store"]

# In the background shells ignore Ctrl-C, and Dagster then SIGTERM too: not while tests send both.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples at every run, and no verdict on a busy machine's speed.
hypothesis.settings.register_profile("suite", derandomize=True, deadline=None)
hypothesis.settings.load_profile("suite")

_OURS = ("MLP_RUNS", "MLP_LAKE", "MLP_POOLS", "MLP_RUN_KEY", "MLP_ATTEMPT", "MLP_BACKEND",
         "MLP_KUBE_CONTEXT", "MLP_NAMESPACE")  # fmt: skip


@pytest.fixture
def clock() -> FakeClock:
    """A clock that moves only when slept on."""
    return FakeClock()


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing a test does may reach the user's own folders."""
    for name in _OURS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLP_HOME", str(tmp_path_factory.mktemp("home")))
