"""The evaluator of network policies says what their specification says."""

from __future__ import annotations

from typing import Any

import pytest

from support.network_policy import Endpoint, Gate, allows

HERE = Endpoint("here", "10.0.0.1", "home", {"app": "a"}, {"web": 8080})
BESIDE = Endpoint("beside", "10.0.0.2", "home", {"app": "b"})
ELSEWHERE = Endpoint("elsewhere", "10.0.0.3", "away", {"app": "b"})
OUTSIDE = Endpoint("outside", "203.0.113.9")
WEB = Gate("TCP", 8080)


def policy(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "home"}, "spec": {"podSelector": {"matchLabels": {"app": "a"}}, **spec}}


def ingress(peer: dict[str, Any] | None = None, **port: Any) -> dict[str, Any]:
    rule = ({"from": [peer]} if peer is not None else {}) | ({"ports": [port]} if port else {})
    return policy(policyTypes=["Ingress"], ingress=[rule])


def test_a_pod_that_no_policy_selects_is_open() -> None:
    assert allows([policy(policyTypes=["Ingress", "Egress"])], ELSEWHERE, BESIDE, WEB)


def test_a_policy_without_rules_denies_its_directions_and_only_those() -> None:
    inward = [policy(policyTypes=["Ingress"])]

    assert not allows(inward, BESIDE, HERE, WEB)
    assert allows(inward, HERE, BESIDE, WEB)


def test_a_policy_of_another_namespace_does_not_bind() -> None:
    other = policy(policyTypes=["Ingress"]) | {"metadata": {"namespace": "away"}}

    assert allows([other], BESIDE, HERE, WEB)


def test_without_types_a_policy_is_about_ingress_and_about_egress_if_it_has_such_rules() -> None:
    assert not allows([policy()], BESIDE, HERE, WEB)
    assert allows([policy()], HERE, BESIDE, WEB)
    assert not allows([policy(egress=[])], HERE, BESIDE, WEB)


def test_an_empty_list_of_peers_is_everybody() -> None:
    assert allows([policy(ingress=[{"from": []}])], OUTSIDE, HERE, WEB)


def test_policies_add_up() -> None:
    deny, allow = policy(policyTypes=["Ingress"]), ingress({"podSelector": {"matchLabels": {"app": "b"}}})

    assert allows([deny, allow], BESIDE, HERE, WEB)


@pytest.mark.parametrize(
    ("peer", "let_in"),
    [
        ({"podSelector": {"matchLabels": {"app": "b"}}}, {"beside"}),
        ({"podSelector": {}}, {"beside"}),
        ({"namespaceSelector": {}}, {"beside", "elsewhere"}),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "away"}}}, {"elsewhere"}),
        ({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "c"}}}, set()),
        ({"podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}, {"beside"}),
        ({"podSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["b"]}]}}, set()),
        ({"ipBlock": {"cidr": "203.0.113.0/24"}}, {"outside"}),
        ({"ipBlock": {"cidr": "0.0.0.0/0", "except": ["203.0.113.9/32"]}}, {"beside", "elsewhere"}),
        ({"ipBlock": {"cidr": "::/0"}}, set()),
    ],
)
def test_a_peer_is_told_by_labels_namespace_and_address(peer: dict[str, Any], let_in: set[str]) -> None:
    passing = {each.group for each in (BESIDE, ELSEWHERE, OUTSIDE) if allows([ingress(peer)], each, HERE, WEB)}

    assert passing == let_in


@pytest.mark.parametrize(
    ("port", "gate", "passes"),
    [
        ({"port": "web"}, WEB, True),
        ({"port": "other"}, WEB, False),
        ({"port": 8080}, WEB, True),
        ({"port": 8080, "protocol": "UDP"}, WEB, False),
        ({"protocol": "UDP"}, Gate("UDP", 9), True),
        ({"port": 8000, "endPort": 9000}, WEB, True),
        ({"port": 8000}, WEB, False),
    ],
)
def test_a_port_is_told_by_protocol_and_by_number_name_or_range(
    port: dict[str, Any], gate: Gate, *, passes: bool
) -> None:
    assert allows([ingress(None, **port)], BESIDE, HERE, gate) is passes


def test_both_ends_must_agree() -> None:
    out_only = policy(policyTypes=["Egress"], egress=[{}])
    deaf = {"metadata": {"namespace": "home"}, "spec": {"podSelector": {"matchLabels": {"app": "b"}}}}

    assert allows([out_only], HERE, BESIDE, WEB)
    assert not allows([out_only, deaf], HERE, BESIDE, WEB)
