"""Three organisations, each in a network of its own, that can reach a broker and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hubbub.ids import PartyId
from hubbub.trust.audit import read_log
from hubbub.trust.comparison import compare
from support.mortal import Blow, Fate, Point
from support.namespaces import FORBIDDEN_IN, FORBIDDEN_OUT, UnavailableError, require_namespaces
from support.one_process import run_in_one_process
from support.private_node import server_scripts
from support.processes import wait_until
from support.scattered import HOSPITAL_A, HOSPITAL_B, UNIVERSITY, ScatteredFederation, scattered

pytestmark = pytest.mark.broker

DEMO_SEED = 7
ROUNDS = 3
NOTICED_S = 60.0
"""Until a broker gives up a connection that is dead: at the latest after three heartbeats of ten seconds."""
HALT = Fate(
    kind="phase",
    state="collecting",
    event="CloseOrdered",
    point=Point.KEPT,
    round=2,
    phase="union",
    blow=Blow.HALT,
)
"""Where the university's aggregator stands still: it may release, and nobody has heard of it."""


@pytest.fixture(scope="module")
def federation(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ScatteredFederation]:
    try:
        require_namespaces()
    except UnavailableError as reason:
        pytest.skip(str(reason))
    if server_scripts() is None:
        # Fails with what to do if there is no broker at all; may install one.
        request.getfixturevalue("amqp_url")
    if server_scripts() is None:
        pytest.skip("a broker in a namespace is one of our own, and no rabbitmq-server is installed")
    with scattered(tmp_path_factory.mktemp("scattered"), demo_seed=DEMO_SEED) as parties:
        parties.doom(parties.aggregator_names[1], [HALT])
        with parties:
            yield parties


def try_to_reach(federation: ScatteredFederation, source: str, name: PartyId) -> int:
    """Connect from an organisation to where a party listens."""
    target = federation.addresses[name], federation.port_of(name)
    return federation.organisations[source].namespace.try_to_reach(*target)


# Who reaches whom -------------------------------------------------------------------------------------------


def test_organisation_reaches_the_broker_and_nobody_else(federation: ScatteredFederation) -> None:
    broker = federation.office.address, federation.broker.node.tls_port
    for source, organisation in federation.organisations.items():
        elsewhere = [name for name, home in federation.homes.items() if home != source]

        answers = {name: try_to_reach(federation, source, name) for name in elsewhere}

        assert answers == dict.fromkeys(elsewhere, FORBIDDEN_OUT)
        assert organisation.namespace.try_to_reach(*broker) == 0


def test_nobody_gets_into_an_organisation_from_outside(federation: ScatteredFederation) -> None:
    inside = [name for name in federation.roles if name != federation.coordinator_name]

    answers = {
        name: federation.office.try_to_reach(federation.addresses[name], federation.port_of(name))
        for name in inside
    }

    assert answers == dict.fromkeys(inside, FORBIDDEN_IN)


def test_it_is_the_firewalls_that_keep_organisations_apart(federation: ScatteredFederation) -> None:
    broker = federation.office.address, federation.broker.node.tls_port
    trainer, aggregator = federation.trainer_names[0], federation.aggregator_names[0]
    source, target = (federation.organisations[name] for name in (HOSPITAL_A, HOSPITAL_B))

    source.allow_all()
    behind_the_other = try_to_reach(federation, HOSPITAL_A, aggregator)
    target.allow_all()
    without_any = try_to_reach(federation, HOSPITAL_A, aggregator), try_to_reach(federation, HOSPITAL_B, trainer)
    for organisation in (source, target):
        organisation.allow_only(*broker)

    assert behind_the_other == FORBIDDEN_IN
    assert without_any == (0, 0)
    assert try_to_reach(federation, HOSPITAL_A, aggregator) == FORBIDDEN_OUT


# A run between them -----------------------------------------------------------------------------------------


def test_run_waits_for_an_aggregator_whose_wire_is_cut_and_goes_on_when_it_is_mended(
    federation: ScatteredFederation, tmp_path: Path
) -> None:
    cut_off = federation.aggregator_names[1]
    manifest = federation.draw_up(rounds=ROUNDS)
    run = federation.submit(manifest)
    federation.wait_until_met(cut_off, HALT)
    connections = federation.list_connections("user", "peer_host", "ssl")

    federation.office.cut(UNIVERSITY)
    federation.services[cut_off].go_on()
    waiting = federation.wait_for(run, lambda view: view.waiting_for == [cut_off])
    wait_until(
        lambda: (cut_off,) not in federation.list_connections("user"), f"the broker misses {cut_off}", NOTICED_S
    )
    still = federation.read_run(run)
    federation.office.mend(UNIVERSITY)
    digests = federation.finish(run)

    assert connections == {(name, address, "true") for name, address in federation.addresses.items()}
    for view in (waiting, still):
        assert (view.state, view.round, view.rounds_released) == ("running", 2, 1)
        assert (view.waiting_for, view.waiting_to) == ([cut_off], "to release union")
    assert federation.read_run(run).rounds_void == 0
    assert len(set(digests.values())) == 1
    assert digests == run_in_one_process(manifest, federation.parties, tmp_path, demo_seed=DEMO_SEED)
    assert compare([read_log(service.folder / "audit.jsonl") for service in federation.services.values()]) == ()
