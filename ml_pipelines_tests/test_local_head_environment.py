"""What a local head, and so every driver and worker on it, finds in its environment."""

from __future__ import annotations

from ml_pipelines.backends.local.head import NODE_ADDRESS, environment
from ml_pipelines.backends.local.record import HeadRecord, Size

HEAD = HeadRecord(
    id="c1", boot="b", folder="/tmp/mlp-x", token="secret", size=Size(2, 0), ports={"port": 20001}
)


def test_every_process_knows_its_own_cluster() -> None:
    """With several Rays on one machine, no process asks the wrong one (or fails to choose)."""
    found = environment(HEAD, {"RAY_ADDRESS": "127.0.0.2:9"})
    assert found.get("RAY_ADDRESS", "") == (f"{NODE_ADDRESS}:20001" if NODE_ADDRESS else "")


def test_nothing_that_changes_a_job_is_inherited() -> None:
    """Credentials for the lake pass; the user's Python and Ray settings don't."""
    found = environment(HEAD, {"AWS_REGION": "eu", "PYTHONSTARTUP": "x", "RAY_DEDUP_LOGS": "1"})
    assert found["AWS_REGION"] == "eu"
    assert not {"PYTHONSTARTUP", "RAY_DEDUP_LOGS"} & found.keys()
