"""Pods of the charts run where a namespace enforces restricted pod security, and with as little as they need."""

import pytest

from hubbub.transport.base import MAX_BODY_BYTES
from support.chart import (
    BROKERS,
    PARTIES,
    RELEASES,
    Release,
    containers_of,
    environment,
    of_kind,
    pod_specs,
    render,
)
from support.pod_security import find_violations


def test_pods_are_restricted_and_have_as_little_as_they_need(subtests: pytest.Subtests) -> None:
    for release in RELEASES:
        with subtests.test(str(release)):
            manifests = render(release)
            specs, accounts = dict(pod_specs(manifests)), of_kind(manifests, "ServiceAccount")

            assert specs
            assert {name: found for name, spec in specs.items() if (found := find_violations(spec))} == {}
            # Secrets are made by operators and only named here.
            assert not of_kind(manifests, "Secret")
            assert all(account["automountServiceAccountToken"] is False for account in accounts)
            for container in (each for spec in specs.values() for each in containers_of(spec)):
                assert "envFrom" not in container
                assert all("secretKeyRef" not in each.get("valueFrom", {}) for each in container.get("env", []))
                assert not any("COOKIE" in name or "PASS" in name for name in environment(container))
            # The operator fills in its pods itself.
            for spec in specs.values() if release.values != "operator" else ():
                assert spec["automountServiceAccountToken"] is False
                assert spec["serviceAccountName"] in {account["metadata"]["name"] for account in accounts}
                for container in containers_of(spec):
                    assert container["securityContext"]["readOnlyRootFilesystem"] is True
                    assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
                    assert "memory" in container["resources"]["limits"]
            for manifest in of_kind(manifests, "StatefulSet"):
                spec = manifest["spec"]["template"]["spec"]
                claims = [claim["metadata"]["name"] for claim in manifest["spec"]["volumeClaimTemplates"]]
                mounted = {m["name"] for container in containers_of(spec) for m in container["volumeMounts"]}
                assert mounted == {*claims, *(volume["name"] for volume in spec["volumes"])}


def test_no_two_parties_mount_the_same_secret_or_the_broker_s() -> None:
    mounted = [
        volume["secret"]["secretName"]
        for _, spec in pod_specs(render(PARTIES[0]))
        for volume in spec["volumes"]
        if "secret" in volume
    ]

    assert len(set(mounted)) == len(mounted) == 9


@pytest.mark.parametrize("release", BROKERS, ids=str)
def test_nodes_of_the_broker_are_on_machines_of_their_own_and_stop_one_at_a_time(release: Release) -> None:
    manifests = render(release)
    [owner] = of_kind(manifests, "StatefulSet", "RabbitmqCluster")
    spec = owner["spec"] if owner["kind"] == "RabbitmqCluster" else owner["spec"]["template"]["spec"]
    [budget] = of_kind(manifests, "PodDisruptionBudget")

    [rule] = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]

    assert owner["spec"]["replicas"] == 3
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"] == budget["spec"]["selector"]
    assert budget["spec"]["maxUnavailable"] == 1


def test_both_kinds_of_broker_are_told_the_same() -> None:
    operated, plain = (render(release) for release in BROKERS)
    [cluster] = of_kind(operated, "RabbitmqCluster")
    [configuration] = of_kind(plain, "ConfigMap")

    shared = cluster["spec"]["rabbitmq"]["additionalConfig"].splitlines()

    assert configuration["data"]["rabbitmq.conf"].splitlines()[: len(shared)] == shared
    assert "load_definitions = /etc/hubbub-broker/definitions.json" in shared
    assert f"max_message_size = {MAX_BODY_BYTES}" in shared
    assert cluster["spec"]["tls"]["disableNonTLSListeners"] is True
    assert "listeners.tcp = none" in configuration["data"]["rabbitmq.conf"]
