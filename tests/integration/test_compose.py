"""docker-compose.yml, carried out: its services, as processes with exactly what it gives them, complete a run."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # It ships no types.

from hubbub.ids import PartyId, Role
from hubbub.messages.manifest import read_manifest
from hubbub.transport.topology import topology_for
from support.compose_engine import ComposeEngine
from support.compose_file import ROOT, read_env_file, read_services
from support.container_network import find_obstacle
from support.container_root import HOST
from support.program import Done
from support.thorough import only_thorough

TRAINERS = [f"trainer-{number}" for number in range(1, 6)]
ROLES = {"coordinator": Role.COORDINATOR, "aggregator": Role.AGGREGATOR, "trainer": Role.CLIENT}
PARTIES = ["coordinator", "aggregator-1", "aggregator-2", *TRAINERS]
QUICK = {"HUBBUB_TASK": "synthetic", "HUBBUB_ROUNDS": "2", "HUBBUB_LOCAL_STEPS": "5"}
SCRAPE = """
import pathlib, sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
for target, token_file in zip(sys.argv[1::2], sys.argv[2::2]):
    headers = {"Authorization": "Bearer " + pathlib.Path(token_file).read_text().strip()} if token_file else {}
    answer = opener.open(urllib.request.Request(f"http://{target}/metrics", headers=headers), timeout=600)
    print(target if b"hubbub_info" in answer.read() else "nothing of ours")
"""

pytestmark = pytest.mark.broker


@dataclass(frozen=True)
class Trial:
    """A federation that was brought up, and whose run is over."""

    engine: ComposeEngine
    run: str
    watched: Done

    def digest_of(self, trainer: str) -> str:
        file = self.engine.volume(f"{trainer}-state") / "runs" / self.run / "model.sha256"
        return file.read_text(encoding="ascii").strip()


@pytest.fixture(scope="module")
def containers(rabbitmq_server: None) -> None:
    """Skip where none can be made."""
    del rabbitmq_server
    if obstacle := find_obstacle():
        pytest.skip(obstacle)


@pytest.fixture(scope="module")
def trial(containers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    del containers
    services = read_services(QUICK, profiles=("metrics",))
    with ComposeEngine(services, tmp_path_factory.mktemp("compose")) as engine:
        engine.up()
        assert engine.wait_until_done("operator") == 0, engine.tail("operator")
        manifest = read_manifest((engine.volume("public") / "manifest.json").read_bytes())
        yield Trial(engine, manifest.run_id, engine.run("operator", "run", "watch", "latest"))
        codes = engine.stop(*PARTIES, "broker")
        assert set(codes.values()) == {0}, codes


def test_a_run_begins_by_itself_and_all_trainers_end_with_the_same_model(trial: Trial) -> None:
    assert trial.watched.returncode == 0, trial.watched
    assert "the run is complete: all 2 rounds are done" in trial.watched.stdout

    digests = {trial.digest_of(name) for name in TRAINERS}
    assert len(digests) == 1
    assert re.fullmatch(r"[0-9a-f]{64}", digests.pop())


@pytest.mark.parametrize("name", ["aggregator-2", "trainer-5"])
def test_a_service_that_nobody_waits_for_passes_its_health_check_too(trial: Trial, name: str) -> None:
    assert trial.engine.is_healthy(name)


def test_the_token_for_the_dashboard_is_read_with_one_command(trial: Trial) -> None:
    token = trial.engine.execute("coordinator", "cat", "/run/hubbub/change.token").stdout

    assert token == (trial.engine.volume("operator") / "change.token").read_text(encoding="ascii")


def test_the_broker_has_one_user_a_party_and_no_other(trial: Trial) -> None:
    listed = trial.engine.execute("broker", "rabbitmqctl", "--quiet", "--no-table-headers", "list_users")

    assert sorted(line.split()[0] for line in listed.stdout.splitlines()) == sorted(PARTIES), listed


def test_prometheus_would_reach_everybody_with_the_token_that_it_is_given(trial: Trial) -> None:
    config = yaml.safe_load((ROOT / "compose" / "prometheus.yml").read_text(encoding="utf-8"))
    targets = {
        target: job.get("authorization", {}).get("credentials_file", "")
        for job in config["scrape_configs"]
        for target in job["static_configs"][0]["targets"]
    }

    pairs = [word for pair in targets.items() for word in pair]
    scraped = trial.engine.run("prometheus", f"{HOST}{sys.executable}", "-c", SCRAPE, *pairs)

    assert scraped.stdout.split() == list(targets), scraped
    assert {target.partition(":")[0] for target in targets} == set(PARTIES)


def test_to_bring_it_up_again_changes_nothing(trial: Trial) -> None:
    made, begun = trial.engine.run("init"), trial.engine.run("operator")

    assert (made.returncode, begun.returncode) == (0, 0), (made, begun)
    assert "complete already: nothing was changed" in made.stdout
    assert "submitted before with this key" in begun.stdout
    runs = json.loads(trial.engine.run("operator", "run", "list", "--json").stdout)
    assert [run["run"] for run in runs["items"]] == [trial.run]


@only_thorough
def test_in_the_cluster_every_queue_is_at_three_nodes(containers: None, tmp_path: Path) -> None:
    del containers
    variables = QUICK | read_env_file(ROOT / "compose" / "cluster.env")
    services = read_services(variables, profiles=("cluster",))
    brokers = ("broker", "broker-2", "broker-3")

    with ComposeEngine({name: services[name] for name in ("init", *brokers)}, tmp_path, ("cluster",)) as engine:
        engine.up()
        for name in brokers:
            engine.wait_until_healthy(name)
        listing = ("rabbitmqctl", "--quiet", "--no-table-headers", "list_queues", "name", "members")
        queues = engine.execute("broker-3", *listing).stdout.splitlines()

    members = {
        name: set(re.findall(r"rabbit@[\w-]+", nodes))
        for name, _, nodes in (line.partition("\t") for line in queues)
    }
    topologies = [topology_for(PartyId(name), ROLES[name.split("-")[0]]) for name in PARTIES]
    expected = {spec.name for topology in topologies for spec in topology.queues}
    assert members == {queue: {f"rabbit@{name}" for name in brokers} for queue in expected}
