"""NetworkPolicies as a table: who may open a connection to whom, read from the YAML itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Policy = Mapping[str, Any]
NAMESPACE_LABEL = "kubernetes.io/metadata.name"


@dataclass(frozen=True, slots=True)
class Peer:
    """A pod as the network sees it."""

    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)


def may_connect(policies: Sequence[Policy], source: Peer, target: Peer, port: int) -> bool:
    """Whether the policies let a TCP connection in, as Kubernetes defines it.

    A pod that no policy selects is open to all; one that some select, to what any of them lists.
    """
    about = [
        one
        for one in policies
        if one["metadata"]["namespace"] == target.namespace
        and "Ingress" in one["spec"]["policyTypes"]
        and _selects(one["spec"]["podSelector"], target.labels)
    ]
    return not about or any(
        _lists_port(rule, port) and _lists_peer(rule, source, target.namespace)
        for one in about
        for rule in one["spec"].get("ingress", ())
    )


def _lists_port(rule: Mapping[str, Any], port: int) -> bool:
    ports = rule.get("ports")
    return not ports or any(
        one.get("protocol", "TCP") == "TCP" and one.get("port", port) == port for one in ports
    )


def _lists_peer(rule: Mapping[str, Any], source: Peer, namespace: str) -> bool:
    peers = rule.get("from")
    return not peers or any(_is_peer(one, source, namespace) for one in peers)


def _is_peer(peer: Mapping[str, Any], source: Peer, namespace: str) -> bool:
    assert not set(peer) - {"podSelector", "namespaceSelector"}, f"can't tell: {peer}"
    if "namespaceSelector" in peer:
        there = _selects(peer["namespaceSelector"], {NAMESPACE_LABEL: source.namespace})
    else:
        there = source.namespace == namespace
    return there and _selects(peer.get("podSelector", {}), source.labels)


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert not set(selector) - {"matchLabels"}, f"can't tell: {selector}"
    wanted = selector.get("matchLabels", {})
    return all(labels.get(name) == value for name, value in wanted.items())
