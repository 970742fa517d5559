"""The network policies let exactly those connections pass that the documents list."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import permutations

import pytest

from support.chart import CHARTS, NAMESPACE, RELEASES, Manifest, Release, of_kind, render
from support.network_policy import Endpoint, Gate, allows
from support.tables import read_table, split

OTHERS = (
    Endpoint("DNS", "10.96.0.10", "kube-system", {"k8s-app": "kube-dns"}),
    Endpoint("Prometheus", "10.1.0.1", "monitoring", {"app.kubernetes.io/name": "prometheus"}),
    Endpoint("ingress controller", "10.1.0.2", "ingress-nginx", {"app.kubernetes.io/name": "ingress-nginx"}),
    Endpoint("PostgreSQL", "192.0.2.20"),
    Endpoint("Kubernetes API", "192.0.2.1"),
    Endpoint("organisations", "198.51.100.7"),
)
STRANGERS = (
    Endpoint("a neighbour", "10.1.1.1", NAMESPACE, {"app.kubernetes.io/name": "something"}),
    Endpoint("somebody in the cluster", "10.1.1.2", "default", {"app.kubernetes.io/name": "hubbub"}),
    Endpoint("another broker in the cluster", "10.1.1.3", "default", {"app.kubernetes.io/name": "hubbub-broker"}),
    Endpoint("a false Prometheus", "10.1.1.4", "default", {"app.kubernetes.io/name": "prometheus"}),
    Endpoint("somebody in monitoring", "10.1.1.5", "monitoring", {"app.kubernetes.io/name": "grafana"}),
    Endpoint("somebody in kube-system", "10.1.1.6", "kube-system", {"k8s-app": "metrics-server"}),
    Endpoint("the internet", "9.9.9.9"),
    Endpoint("the internet", "2606:4700::1111"),
    Endpoint("the next machine", "203.0.113.13"),
    Endpoint("the cloud's metadata", "169.254.169.254"),
)
"""Endpoints that have no business here, each a mistake that a policy could make."""
OUTSIDE_BROKER = tuple(Endpoint("broker", f"203.0.113.{number}") for number in (10, 11, 12))
PORTS = (22, 53, 80, 443, 4369, 5432, 5671, 5672, 6443, 8750, 8751, 15671, 15672, 15691, 15692, 25672)
GATES = tuple(Gate(protocol, port) for port in PORTS for protocol in ("TCP", "UDP"))


def pods(manifests: tuple[Manifest, ...]) -> Iterator[Endpoint]:
    """Every pod that the release brings about, with the labels and the ports that it will have."""
    number = 0
    for manifest in of_kind(manifests, "StatefulSet", "RabbitmqCluster"):
        for _ in range(manifest["spec"]["replicas"]):
            number += 1
            yield pod(manifest, f"10.2.0.{number}")


def pod(manifest: Manifest, address: str) -> Endpoint:
    if manifest["kind"] == "RabbitmqCluster":
        labels = {
            "app.kubernetes.io/name": manifest["metadata"]["name"],
            "app.kubernetes.io/component": "rabbitmq",
            "app.kubernetes.io/part-of": "rabbitmq",
        }
        return Endpoint("broker", address, NAMESPACE, labels)
    template = manifest["spec"]["template"]
    labels = template["metadata"]["labels"]
    group = labels["app.kubernetes.io/component"].replace("rabbitmq", "broker")
    ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
    return Endpoint(group, address, NAMESPACE, labels, ports)


def find_flows(release: Release) -> dict[tuple[str, str, str], tuple[int, int]]:
    """From group to group at a gate: how many pairs of them can connect, and how many pairs there are."""
    manifests = render(release)
    policies, ours = of_kind(manifests, "NetworkPolicy"), tuple(pods(manifests))
    brokers = () if any(each.group == "broker" for each in ours) else OUTSIDE_BROKER
    counted: dict[tuple[str, str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for source, target in permutations((*ours, *brokers, *OTHERS, *STRANGERS), 2):
        if source not in ours and target not in ours:
            continue
        for gate in GATES:
            flow = source.group, target.group, str(gate)
            passed, pairs = counted[flow]
            counted[flow] = passed + allows(policies, source, target, gate), pairs + 1
    return counted


def documented(release: Release) -> set[tuple[str, str, str]]:
    rows = read_table(CHARTS / release.chart / "README.md", "values file", "from", "to", "at")
    return {
        (source, target, gate)
        for row in rows
        if row["values file"] == release.values
        for source in split(row["from"])
        for target in split(row["to"])
        for gate in split(row["at"])
    }


@pytest.mark.parametrize("release", RELEASES, ids=str)
def test_exactly_the_documented_connections_pass(release: Release) -> None:
    flows = find_flows(release)

    passing = {flow for flow, (passed, _) in flows.items() if passed}

    assert passing == documented(release)
    # And for all of a group alike.
    assert {flow for flow, (passed, pairs) in flows.items() if passed == pairs} == passing


def test_the_documents_speak_of_no_other_values_files() -> None:
    named = {
        (chart, row["values file"])
        for chart in ("hubbub", "broker")
        for row in read_table(CHARTS / chart / "README.md", "values file", "from", "to", "at")
    }

    assert named == {(release.chart, release.values) for release in RELEASES}


def test_with_a_proxy_its_port_is_open_and_that_of_the_broker_is_not() -> None:
    release = next(each for each in RELEASES if each.values == "client-org")
    manifests = render(release, "--set", "broker.proxy=http://proxy.example:3128")
    policies, [trainer] = of_kind(manifests, "NetworkPolicy"), pods(manifests)

    passed = [port for port in (3128, 5671) if allows(policies, trainer, OUTSIDE_BROKER[0], Gate("TCP", port))]

    assert passed == [3128]
