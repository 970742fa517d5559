"""The profiles of docker-compose.yml: three brokers that find each other, Prometheus that finds everybody."""

import json
import re
from pathlib import PurePosixPath
from typing import Any

import yaml  # type: ignore[import-untyped]  # It ships no types.

from hubbub.transport.base import MAX_BODY_BYTES
from support.compose_file import ROOT, read_env_file, read_services

CLUSTER_ENV = read_env_file(ROOT / "compose" / "cluster.env")
BROKERS = ["broker", "broker-2", "broker-3"]


def read_conf(name: str) -> dict[str, str]:
    lines = (ROOT / "compose" / name).read_text(encoding="utf-8").splitlines()
    return dict(re.split(r"\s*=\s*", line, maxsplit=1) for line in lines if line and not line.startswith("#"))


def read_yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / "compose" / name).read_text(encoding="utf-8"))


# Three brokers -------------------------------------------------------------------------------------------------


def test_one_broker_is_what_starts_without_a_profile() -> None:
    services = read_services()

    assert [name for name in services if name.startswith("broker")] == ["broker"]
    assert services["trainer-1"].environment["HUBBUB_TRAINER_AMQP_URL"] == "amqp://broker/"
    assert not set(services) & {"prometheus", "grafana"}


def test_with_the_profile_there_are_three_brokers_that_know_each_other_and_every_party_knows() -> None:
    services = read_services(CLUSTER_ENV, profiles=("cluster",))
    nodes = [each for name, each in services.items() if name.startswith("broker")]
    variables = [pair for service in services.values() for pair in service.environment.items()]

    sources = {mount.source for node in nodes for mount in node.mounts if mount.target.startswith("/etc/rabbitmq")}
    conf = read_conf("rabbitmq-cluster.conf")
    named = {value for key, value in conf.items() if key.startswith("cluster_formation.classic_config.nodes")}

    assert [node.name for node in nodes] == BROKERS
    urls = {value for name, value in variables if name.endswith("AMQP_URL")}
    assert urls == {",".join(f"amqp://{name}/" for name in BROKERS)}
    assert sources == {"./compose/rabbitmq-cluster.conf"}
    assert named == {f"rabbit@{node.content['hostname']}" for node in nodes}
    assert conf["cluster_formation.target_cluster_size_hint"] == str(len(BROKERS))


def test_every_broker_loads_what_init_writes_and_takes_no_message_that_parties_would_have_to_drop() -> None:
    for variables in ({}, CLUSTER_ENV):
        for service in read_services(variables, profiles=("cluster",)).values():
            if service.name in BROKERS:
                mounts = {mount.target: mount.source for mount in service.mounts}
                [source] = [mounts[each] for each in mounts if each.startswith("/etc/rabbitmq/conf.d/")]
                conf = read_conf(PurePosixPath(source).name)
                definitions = PurePosixPath(conf["load_definitions"])
                assert (mounts[str(definitions.parent)], definitions.name) == ("public", "definitions.json")
                assert conf["max_message_size"] == str(MAX_BODY_BYTES)


# A folder of the user's own ------------------------------------------------------------------------------------


def test_data_of_ones_own_are_mounted_read_only() -> None:
    trainer = read_services({"HUBBUB_DATA": "/data", "HUBBUB_DATA_FOLDER": "./mnist"})["trainer-3"]

    mount = next(mount for mount in trainer.mounts if mount.target == "/data")
    assert (mount.source, mount.is_volume, mount.read_only) == ("./mnist", False, True)
    assert trainer.environment["HUBBUB_TRAINER_DATA"] == "/data"


# Prometheus and Grafana ----------------------------------------------------------------------------------------


def test_files_that_are_mounted_are_there() -> None:
    services = read_services(profiles=("metrics", "cluster"))

    sources = {mount.source for service in services.values() for mount in service.mounts if not mount.is_volume}
    assert {source for source in sources if not (ROOT / source).is_file()} == set()


def test_prometheus_asks_every_party_where_it_answers() -> None:
    services = read_services(profiles=("metrics",))
    asked = {
        target
        for job in read_yaml("prometheus.yml")["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }

    answering = {
        f"{name}:{value}"
        for name, service in services.items()
        for variable, value in service.environment.items()
        if re.fullmatch(r"HUBBUB_(COORDINATOR_PORT|\w+_METRICS_PORT)", variable)
    }
    assert asked == answering
    reached = {name for name, service in services.items() if set(service.networks) & {"metrics"}}
    assert {target.partition(":")[0] for target in asked} <= reached


def test_prometheus_shows_the_coordinator_a_token_and_loads_the_alerts() -> None:
    config, prometheus = read_yaml("prometheus.yml"), read_services(profiles=("metrics",))["prometheus"]
    mounts = {mount.target: mount.source for mount in prometheus.mounts}

    with_token = {job["job_name"]: job.get("authorization") for job in config["scrape_configs"]}
    assert with_token.pop("coordinator") == {"credentials_file": "/run/hubbub/read.token"}
    assert set(with_token.values()) == {None}
    assert mounts["/run/hubbub"] == "monitor"
    assert [mounts[file] for file in config["rule_files"]] == ["./k8s/grafana/alerts.yml"]


def test_grafana_shows_the_dashboard_from_prometheus() -> None:
    services = read_services(profiles=("metrics",))
    grafana = services["grafana"]
    mounts = {mount.target: mount.source for mount in grafana.mounts}

    [source] = read_yaml("grafana/datasource.yml")["datasources"]
    [provider] = read_yaml("grafana/dashboards.yml")["providers"]
    shown = [ROOT / mounts[target] for target in mounts if target.startswith(provider["options"]["path"])]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert source["url"] == "http://prometheus:9090"
    assert set(grafana.networks) & set(services["prometheus"].networks)
    assert [json.loads(path.read_text(encoding="utf-8"))["title"] for path in shown] == ["Hubbub"]
