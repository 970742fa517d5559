"""The chart tells a service what the service understands, and all that it names is there."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from hubbub.runtime.health import Vitals, create_app
from hubbub.runtime.settings import PinningSettings, ProbedSettings, ServiceSettings, load_settings
from hubbub_coordinator.__main__ import CoordinatorSettings
from hubbub_coordinator.api import system
from hubbub_coordinator.api.access import HEALTH_PATH, READY_PATH, is_open
from support.chart import CHARTS, PARTIES, Manifest, Release, environment, of_kind, parties, render
from support.service_settings import SETTINGS
from support.tables import read_table, split

SECRET_FILES = {
    row["party"]: ({*split(row["always"])}, {*split(row["if asked for"])})
    for row in read_table(CHARTS / "hubbub" / "README.md", "party", "always", "if asked for")
}
DIGEST = "0" * 64
FURTHER = (
    *("--set", "aggregators[0].clientCertificate=true", "--set", "trainers[0].clientCertificate=true"),
    *("--set", "coordinator.clientCertificate=true", "--set", "trainers[0].settingsFile=true"),
    *("--set", "broker.proxy=http://proxy.example:3128"),
)
"""Options that no values file turns on."""
CASES = [*((release, ()) for release in PARTIES), (PARTIES[0], FURTHER)]


@pytest.fixture(scope="module")
def found() -> list[tuple[str, Manifest]]:
    """Role and StatefulSet of every party of every release; rendered here, and not when tests are collected."""
    return [party for release, more in CASES for party in parties(render(release, *more))]


def container_of(manifest: Manifest) -> Manifest:
    [container] = manifest["spec"]["template"]["spec"]["containers"]
    found: Manifest = container
    return found


def load(role: str, variables: dict[str, str], folder: Path) -> ServiceSettings:
    """Read settings as the service does; its settings.toml has what the document says that it may have."""
    model = SETTINGS[role]
    prefix = model.model_config["env_prefix"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        if f"{prefix}CONFIG_FILE" in variables:
            file = folder / "settings.toml"
            file.write_text(f'roster_sha256 = "{DIGEST}"\n' if issubclass(model, PinningSettings) else "")
            patch.setenv(f"{prefix}CONFIG_FILE", str(file))
        return load_settings(model)


def provided(manifest: Manifest) -> dict[str, set[str] | None]:
    """The files in each folder that is mounted; None where the service writes what it likes."""
    spec = manifest["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    held: dict[str, set[str] | None] = {}
    for mount in container_of(manifest)["volumeMounts"]:
        volume: dict[str, Any] = volumes.get(mount["name"], {})
        if "secret" in volume:
            held[mount["mountPath"]] = set.union(*SECRET_FILES[role_of(manifest)])
        elif "projected" in volume:
            sources = volume["projected"]["sources"]
            held[mount["mountPath"]] = {item["path"] for each in sources for item in each["configMap"]["items"]}
        elif not mount.get("readOnly"):
            held[mount["mountPath"]] = None
    return held


def role_of(manifest: Manifest) -> str:
    return str(manifest["metadata"]["labels"]["app.kubernetes.io/component"])


def test_a_party_is_given_its_settings_and_what_they_name_is_mounted(
    found: list[tuple[str, Manifest]], tmp_path: Path
) -> None:
    for role, manifest in found:
        variables, mounted = environment(container_of(manifest)), provided(manifest)

        # Fails if one is missing.
        settings = load(role, variables, tmp_path)

        prefix = settings.model_config["env_prefix"]
        fields = {f"{prefix}{name.upper()}" for name in SETTINGS[role].model_fields}
        assert variables.keys() <= fields | {f"{prefix}CONFIG_FILE"}
        file = Path(variables.get(f"{prefix}CONFIG_FILE", "/run/hubbub/settings.toml"))
        assert file.parent == Path("/run/hubbub")
        assert file.name in SECRET_FILES[role][1]
        for name, path in ((name, value) for name, value in settings if isinstance(value, Path)):
            if name in {"folder", "cache_folder"}:
                assert mounted[str(path)] is None, f"{name} cannot be written"
            else:
                assert path.name in (mounted[str(path.parent)] or set()), f"{name}: nobody puts {path} there"


def test_probes_ask_where_the_service_answers(found: list[tuple[str, Manifest]], tmp_path: Path) -> None:
    for role, manifest in found:
        container = container_of(manifest)
        settings = load(role, environment(container), tmp_path)
        [port] = container["ports"]
        if isinstance(settings, ProbedSettings):
            at, host, routes = settings.metrics_port, settings.metrics_host, create_app(Vitals()).routes
        else:
            assert isinstance(settings, CoordinatorSettings)
            at, host, routes = settings.port, settings.host, system.router.routes
        paths = {getattr(route, "path", "") for route in routes}

        probes = {kind: container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}

        assert {kind: probe["path"] for kind, probe in probes.items()} == {
            "startupProbe": HEALTH_PATH,
            "livenessProbe": HEALTH_PATH,
            "readinessProbe": READY_PATH,
        }
        assert {probe["path"] for probe in probes.values()} | {"/metrics"} <= paths
        assert {probe["port"] for probe in probes.values()} == {port["name"]}
        assert (port["containerPort"], host) == (at, "0.0.0.0")  # noqa: S104  (In a pod; policies say who gets there.)


@pytest.mark.parametrize("release", PARTIES, ids=str)
def test_monitors_ask_for_metrics_and_show_the_read_token_where_one_is_asked_for(release: Release) -> None:
    manifests = render(release, "--set", "monitoring.enabled=true")

    scraped = [
        (monitor["kind"], endpoint)
        for monitor in of_kind(manifests, "PodMonitor", "ServiceMonitor")
        for endpoint in monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
    ]

    assert scraped
    assert {endpoint["path"] for _, endpoint in scraped} == {"/metrics"}
    assert not is_open("/metrics")
    for kind, endpoint in scraped:
        assert ("authorization" in endpoint) == (kind == "ServiceMonitor")


def test_no_secret_is_in_an_environment_variable(found: list[tuple[str, Manifest]]) -> None:
    for role, manifest in found:
        container = container_of(manifest)
        prefix = f"HUBBUB_{role.upper()}_"
        secret = {
            f"{prefix}{name.upper()}"
            for name, field in SETTINGS[role].model_fields.items()
            if SecretStr in (field.annotation, *getattr(field.annotation, "__args__", ()))
        }

        variables = environment(container)

        urls = secret & variables.keys()
        assert {f"{prefix}AMQP_URL"} <= urls <= {f"{prefix}AMQP_URL", f"{prefix}PROXY"}
        assert not [name for name in urls if "@" in variables[name]]
        assert "envFrom" not in container
        assert all("valueFrom" not in variable for variable in container["env"])


def test_a_pod_has_the_image_s_user_and_nothing_that_others_may_read(found: list[tuple[str, Manifest]]) -> None:
    for role, manifest in found:
        spec, labels = manifest["spec"]["template"]["spec"], manifest["metadata"]["labels"]
        version, context = labels["app.kubernetes.io/version"], spec["securityContext"]

        assert container_of(manifest)["image"].rpartition("/")[2] == f"hubbub-{role}:{version}"
        assert [context[key] for key in ("runAsUser", "runAsGroup", "fsGroup")] == [10001] * 3
        # For root and the party's group to read.
        assert [each["secret"]["defaultMode"] for each in spec["volumes"] if "secret" in each] == [0o440]
        # A Service called hubbub-coordinator would set HUBBUB_COORDINATOR_PORT, and no coordinator would start.
        assert spec["enableServiceLinks"] is False


@pytest.mark.parametrize("release", PARTIES[1:], ids=str)
def test_an_empty_volume_is_right_only_where_an_operator_says_so(release: Release, tmp_path: Path) -> None:
    for more, expected in (((), False), (("--set", "newState=true"), True)):
        for role, manifest in parties(render(release, *more)):
            assert load(role, environment(container_of(manifest)), tmp_path).new_state is expected
