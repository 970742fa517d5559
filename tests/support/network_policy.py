"""An evaluator of network policies: the connections that they let pass, as their specification has it.

A pod that no policy selects for a direction is open in it. One that is selected is open to what any of those
policies lists: policies only ever add. Both ends have to agree. Who is outside of the cluster is bound by nothing.
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Policy = Mapping[str, Any]
NAME_LABEL = "kubernetes.io/metadata.name"
"""Kubernetes labels each namespace with its own name."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Somebody with an address: a pod, or a machine outside of the cluster, which has no namespace."""

    group: str
    address: str
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    """Ports that have names."""


@dataclass(frozen=True, slots=True, order=True)
class Gate:
    """A protocol and a port."""

    protocol: str
    port: int

    def __str__(self) -> str:
        return f"{self.protocol} {self.port}"


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether something with these labels is selected; an empty selector selects everything."""
    wanted: Mapping[str, str] = selector.get("matchLabels") or {}
    expressions: list[Mapping[str, Any]] = selector.get("matchExpressions") or []
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _meets(expression, labels) for expression in expressions
    )


def _meets(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values", [])
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case operator:
            raise ValueError(f"there is no operator {operator}")


def allows(policies: Sequence[Policy], source: Endpoint, target: Endpoint, gate: Gate) -> bool:
    """Whether a connection is let out at its source and in at its target."""
    return _passes(policies, "Egress", source, target, target, gate) and _passes(
        policies, "Ingress", target, source, target, gate
    )


def _passes(
    policies: Sequence[Policy], direction: str, subject: Endpoint, other: Endpoint, target: Endpoint, gate: Gate
) -> bool:
    bound = [policy for policy in policies if _binds(policy, direction, subject)]
    if not bound:
        return True
    key, peers = ("egress", "to") if direction == "Egress" else ("ingress", "from")
    return any(
        _lists_peer(rule.get(peers), other, policy["metadata"]["namespace"])
        and _lists_gate(rule.get("ports"), target, gate)
        for policy in bound
        for rule in policy["spec"].get(key) or []
    )


def _binds(policy: Policy, direction: str, subject: Endpoint) -> bool:
    spec = policy["spec"]
    kinds = spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]
    return (
        direction in kinds
        and subject.namespace == policy["metadata"]["namespace"]
        and matches(spec["podSelector"], subject.labels)
    )


def _lists_peer(peers: Iterable[Mapping[str, Any]] | None, other: Endpoint, home: str) -> bool:
    """No list, or an empty one, is everybody."""
    listed = list(peers or [])
    return not listed or any(_is_peer(peer, other, home) for peer in listed)


def _is_peer(peer: Mapping[str, Any], other: Endpoint, home: str) -> bool:
    if block := peer.get("ipBlock"):
        inside = [block["cidr"]], block.get("except") or []
        within, without = ([_holds(cidr, other.address) for cidr in cidrs] for cidrs in inside)
        return any(within) and not any(without)
    if not other.namespace:
        return False
    if "namespaceSelector" in peer:
        at_home = matches(peer["namespaceSelector"], {NAME_LABEL: other.namespace})
    else:
        at_home = other.namespace == home
    return at_home and matches(peer.get("podSelector") or {}, other.labels)


def _holds(cidr: str, address: str) -> bool:
    network, host = ipaddress.ip_network(cidr), ipaddress.ip_address(address)
    return network.version == host.version and host in network


def _lists_gate(ports: Iterable[Mapping[str, Any]] | None, target: Endpoint, gate: Gate) -> bool:
    listed = list(ports or [])
    return not listed or any(_is_gate(port, target, gate) for port in listed)


def _is_gate(port: Mapping[str, Any], target: Endpoint, gate: Gate) -> bool:
    if port.get("protocol", "TCP") != gate.protocol:
        return False
    first = port.get("port")
    if first is None:
        return True
    if isinstance(first, str):
        return target.ports.get(first) == gate.port
    return bool(first <= gate.port <= port.get("endPort", first))
