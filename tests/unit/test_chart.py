"""The Helm charts: what they render is what a cluster takes, and its parts fit together."""

import json
import tarfile
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # It ships no types.

from hubbub import __version__
from hubbub.ids import PARTY_ID_PATTERN
from hubbub.messages.manifest import Manifest as RunManifest
from support.chart import (
    BROKERS,
    CHARTS,
    NAMESPACE,
    PARTIES,
    RELEASES,
    Manifest,
    environment,
    of_kind,
    parties,
    pod_specs,
    render,
    run_helm,
    values_file,
)
from support.network_policy import matches

OLDEST, LATEST = "1.27", "latest"
CUSTOM = {"PodMonitor", "ServiceMonitor", "PrometheusRule", "RabbitmqCluster"}
"""Kinds of operators: kubernetes-validate has no schema of theirs."""

Validate = Callable[[Manifest, str], None]


@pytest.fixture(scope="module")
def validate() -> Iterator[Validate]:
    """Check an object by the schema that a version of Kubernetes has for it."""
    # Its grammars take more than a second to import.
    from kubernetes_validate import utils  # type: ignore[import-untyped]  # noqa: PLC0415  # It ships no types.

    def check(manifest: Manifest, version: str) -> None:
        utils.validate(manifest, utils.latest_version() if version == LATEST else version, strict=True)

    with pytest.MonkeyPatch.context() as patch:
        # The library reads megabytes of definitions anew for every object.
        patch.setattr(utils, "schema_contents", cache(utils.schema_contents))
        yield check


def pods(manifests: tuple[Manifest, ...]) -> list[Manifest]:
    return [manifest["spec"]["template"] for manifest in of_kind(manifests, "StatefulSet")]


def selected(selector: dict[str, Any], manifests: tuple[Manifest, ...]) -> list[Manifest]:
    return [pod for pod in pods(manifests) if matches(selector, pod["metadata"]["labels"])]


def ports(pod: Manifest) -> set[str]:
    return {port["name"] for container in pod["spec"]["containers"] for port in container["ports"]}


# Charts ------------------------------------------------------------------------------------------------------


def test_helm_finds_nothing_to_say_about_a_chart_with_its_values(subtests: pytest.Subtests) -> None:
    for release in RELEASES:
        with subtests.test(str(release)):
            values = ("--values", str(values_file(release)), *release.given)
            done = run_helm("lint", "--strict", str(CHARTS / release.chart), *values)

            assert done.returncode == 0, done.stdout
            assert "1 chart(s) linted, 0 chart(s) failed" in done.stdout
    files = {path for chart in ("hubbub", "broker") for path in (CHARTS / chart / "values").iterdir()}
    assert {values_file(release) for release in RELEASES} == files


@pytest.mark.parametrize("chart", ["hubbub", "broker"])
def test_a_chart_has_the_version_of_the_library(chart: str) -> None:
    described = yaml.safe_load((CHARTS / chart / "Chart.yaml").read_text(encoding="utf-8"))

    assert (described["version"], described["appVersion"]) == (__version__, __version__)
    assert {each["version"] for each in described.get("dependencies", [])} <= {__version__}


def test_a_packaged_chart_holds_alerts_dashboard_and_broker_and_renders_the_same(tmp_path: Path) -> None:
    release = PARTIES[1]

    packed = run_helm("package", str(CHARTS / "hubbub"), "--destination", str(tmp_path))
    package = tmp_path / f"hubbub-{__version__}.tgz"
    rendered = run_helm(
        *("template", release.name, str(package), "--namespace", NAMESPACE),
        *("--values", str(values_file(release)), *release.given),
    )

    assert packed.returncode == 0, packed.stderr
    with tarfile.open(package) as archive:
        for name, source in (("files/alerts.yml", "alerts.yml"), ("files/dashboard.json", "hubbub.json")):
            held = archive.extractfile(f"hubbub/{name}")
            assert held is not None
            assert held.read() == (CHARTS / "grafana" / source).read_bytes()
        assert any(name.endswith("charts/hubbub-broker/Chart.yaml") for name in archive.getnames())
    assert [found for found in yaml.safe_load_all(rendered.stdout) if found] == list(render(release))


# Objects -----------------------------------------------------------------------------------------------------


def test_every_object_is_as_kubernetes_schemas_have_it(subtests: pytest.Subtests, validate: Validate) -> None:
    for version, release in product([OLDEST, LATEST], RELEASES):
        with subtests.test(str(release), version=version):
            known = [manifest for manifest in render(release) if manifest["kind"] not in CUSTOM]

            for manifest in known:
                validate(manifest, version)

            assert {"NetworkPolicy", "PodDisruptionBudget"} <= {manifest["kind"] for manifest in known}


def test_what_the_operator_is_told_about_its_pods_is_as_kubernetes_schemas_have_it(validate: Validate) -> None:
    [(name, spec)] = pod_specs(render(BROKERS[0]))

    validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, LATEST)


def test_objects_have_names_of_their_own_and_select_pods_that_exist(subtests: pytest.Subtests) -> None:
    for release in RELEASES:
        with subtests.test(str(release)):
            manifests = render(release)
            services = of_kind(manifests, "Service")
            # The operator's pods are not among what is rendered; these are the labels that it gives them.
            operated = [
                {"app.kubernetes.io/name": cluster["metadata"]["name"], "app.kubernetes.io/component": "rabbitmq"}
                for cluster in of_kind(manifests, "RabbitmqCluster")
            ]
            labels = [pod["metadata"]["labels"] for pod in pods(manifests)] + operated

            named = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests]
            assert len(set(named)) == len(named)
            assert {manifest["metadata"]["namespace"] for manifest in manifests} == {NAMESPACE}
            headless = {each["metadata"]["name"] for each in services if each["spec"].get("clusterIP") == "None"}
            for manifest in of_kind(manifests, "StatefulSet"):
                assert selected(manifest["spec"]["selector"], manifests) == [manifest["spec"]["template"]]
                assert manifest["spec"]["serviceName"] in headless
            for service in services:
                found = selected({"matchLabels": service["spec"]["selector"]}, manifests)
                assert found, service["metadata"]["name"]
                for port in service["spec"].get("ports", []):
                    assert all(port["targetPort"] in ports(pod) for pod in found)
            for manifest in of_kind(manifests, "PodDisruptionBudget", "NetworkPolicy"):
                selector = manifest["spec"].get("selector") or manifest["spec"]["podSelector"]
                assert any(matches(selector, each) for each in labels), manifest["metadata"]["name"]


def test_monitors_find_every_party_once(subtests: pytest.Subtests) -> None:
    for release in PARTIES:
        with subtests.test(str(release)):
            manifests = render(release, "--set", "monitoring.enabled=true")
            watched = [
                pod
                for monitor in of_kind(manifests, "PodMonitor")
                for pod in selected(monitor["spec"]["selector"], manifests)
                if {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= ports(pod)
            ]
            services = [
                service
                for monitor in of_kind(manifests, "ServiceMonitor")
                for service in of_kind(manifests, "Service")
                if matches(monitor["spec"]["selector"], service["metadata"]["labels"])
                and {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]}
                <= {port["name"] for port in service["spec"].get("ports", [])}
            ]
            for service in services:
                watched += selected({"matchLabels": service["spec"]["selector"]}, manifests)

            names = sorted(pod["metadata"]["labels"]["hubbub-party"] for pod in watched)
            assert names == sorted(each["metadata"]["labels"]["hubbub-party"] for _, each in parties(manifests))


def test_the_ingress_has_tls_for_its_host_and_leads_to_the_coordinator_s_service() -> None:
    manifests = render(PARTIES[1])

    [ingress] = of_kind(manifests, "Ingress")

    [rule] = ingress["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert [each["hosts"] for each in ingress["spec"]["tls"]] == [[rule["host"]]]
    assert (backend["name"], backend["port"]["name"]) in {
        (service["metadata"]["name"], port["name"])
        for service in of_kind(manifests, "Service")
        for port in service["spec"].get("ports", [])
    }


def test_rules_and_dashboard_are_those_of_the_grafana_folder() -> None:
    manifests = render(PARTIES[1])

    [rules] = of_kind(manifests, "PrometheusRule")
    [dashboard] = [each for each in of_kind(manifests, "ConfigMap") if "hubbub.json" in each["data"]]

    assert rules["spec"] == yaml.safe_load((CHARTS / "grafana" / "alerts.yml").read_text(encoding="utf-8"))
    assert dashboard["data"]["hubbub.json"] == (CHARTS / "grafana" / "hubbub.json").read_text(encoding="utf-8")


# What a party is ---------------------------------------------------------------------------------------------


def test_a_party_is_one_pod_with_a_volume_that_outlives_it_and_time_to_end_a_phase(
    subtests: pytest.Subtests,
) -> None:
    longest = RunManifest.model_fields["phase_timeout_s"].default
    for release in PARTIES:
        with subtests.test(str(release)):
            manifests = render(release)
            [budget] = [
                each["spec"]
                for each in of_kind(manifests, "PodDisruptionBudget")
                if each["metadata"]["name"] != "hubbub-broker"
            ]

            for _, manifest in parties(manifests):
                spec = manifest["spec"]
                assert spec["replicas"] == 1
                assert [claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]] == ["state"]
                assert set(spec["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
                assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > longest
            # Evicted one at a time, and also when none is ready.
            assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
            assert len(selected(budget["selector"], manifests)) == len(list(parties(manifests)))


def test_the_trial_s_parties_are_those_that_federation_new_makes_and_call_the_broker_beside_them() -> None:
    manifests = render(PARTIES[0])
    names, urls = [], set()
    for role, each in parties(manifests):
        spec = each["spec"]["template"]["spec"]
        secret = spec["volumes"][0]["secret"]["secretName"]
        names.append((role, each["metadata"]["labels"]["hubbub-party"], secret))
        variables = environment(spec["containers"][0]).items()
        urls |= {value for name, value in variables if name.endswith("_AMQP_URL")}

    made = [("aggregator", f"aggregator-{number}") for number in (1, 2)]
    made += [("coordinator", "coordinator"), *(("trainer", f"trainer-{number}") for number in range(1, 6))]
    assert sorted(names) == [(role, name, name) for role, name in made]
    [service] = [each for each in of_kind(manifests, "Service") if each["metadata"]["name"] == "hubbub-broker"]
    assert urls == {f"amqp://hubbub-broker:{service['spec']['ports'][0]['port']}/"}


# Schemas -----------------------------------------------------------------------------------------------------


FROM_OUTSIDE = {"hubbub": {"global"}, "broker": {"global", "enabled"}}
"""Keys that Helm adds by itself, or that only a chart sets that brings this one along."""


@pytest.mark.parametrize("chart", ["hubbub", "broker"])
def test_values_and_schema_know_the_same_keys(chart: str) -> None:
    schema = json.loads((CHARTS / chart / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHARTS / chart / "values.yaml").read_text(encoding="utf-8"))

    def compare(value: dict[str, Any], part: dict[str, Any], where: str) -> None:
        part = schema["definitions"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        if "properties" not in part or not value:
            return
        assert part["additionalProperties"] is False, where
        assert value.keys() == part["properties"].keys() - FROM_OUTSIDE.get(where, set()), where
        for key, inner in value.items():
            if isinstance(inner, dict):
                compare(inner, part["properties"][key], f"{where}.{key}")

    compare(values, schema, chart)
    assert chart != "hubbub" or schema["definitions"]["party"]["pattern"] == PARTY_ID_PATTERN
