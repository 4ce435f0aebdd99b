"""What `deploy/` ships: it renders, the server takes it, and it gives exactly the rights we use."""

from __future__ import annotations

import pytest

from ml_pipelines_tests.cluster import CLAIM, RUNS_ACCOUNT, Namespace, wait_for


@pytest.mark.kube
def test_the_overlay_stands_in_a_namespace_of_its_own(namespace: Namespace) -> None:
    """Everything in it was created, strictly validated, and its claim is bound."""
    assert namespace.get("serviceaccount", RUNS_ACCOUNT)
    claim = lambda: namespace.get("pvc", CLAIM)["status"]["phase"] == "Bound"  # noqa: E731
    assert namespace.shared is None or wait_for("the claim is bound", claim)
    assert set(namespace.pools.pools) == {"cpu", "gpu", "spot"}
