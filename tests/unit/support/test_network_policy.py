"""The evaluator of network policies says what their specification says."""

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


DEAF = policy(policyTypes=["Ingress"])
OUT_ONLY = policy(policyTypes=["Egress"], egress=[{}])
TO_B = {"podSelector": {"matchLabels": {"app": "b"}}}
CASES: list[tuple[str, list[dict[str, Any]], Endpoint, Endpoint, bool]] = [
    ("a pod that no policy selects is open", [policy(policyTypes=["Ingress", "Egress"])], ELSEWHERE, BESIDE, True),
    ("a policy without rules denies its direction", [DEAF], BESIDE, HERE, False),
    ("and only that", [DEAF], HERE, BESIDE, True),
    (
        "a policy of another namespace binds nobody",
        [DEAF | {"metadata": {"namespace": "away"}}],
        BESIDE,
        HERE,
        True,
    ),
    ("without types a policy is about ingress", [policy()], BESIDE, HERE, False),
    ("and not about egress", [policy()], HERE, BESIDE, True),
    ("unless it has such rules", [policy(egress=[])], HERE, BESIDE, False),
    ("an empty list of peers is everybody", [policy(ingress=[{"from": []}])], OUTSIDE, HERE, True),
    ("policies add up", [DEAF, ingress(TO_B)], BESIDE, HERE, True),
    ("both ends agree", [OUT_ONLY], HERE, BESIDE, True),
    ("one end does not", [OUT_ONLY, {"metadata": {"namespace": "home"}, "spec": TO_B}], HERE, BESIDE, False),
]


@pytest.mark.parametrize(
    ("policies", "source", "target", "passes"), [pytest.param(*case, id=name) for name, *case in CASES]
)
def test_a_connection_passes_that_the_policies_of_both_ends_let_pass(
    policies: list[dict[str, Any]], source: Endpoint, target: Endpoint, *, passes: bool
) -> None:
    assert allows(policies, source, target, WEB) is passes


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
