"""Three organisations, each in a network of its own, that can reach a broker and nothing else.

The office has the broker and the coordinator; one hospital two trainers, another a trainer and an aggregator; the
university the other aggregator.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import httpx
import pytest

from hubbub.ids import PartyId, Role
from hubbub.trust.audit import read_log
from hubbub.trust.comparison import compare
from support.certificates import Authority
from support.debian import UnavailableError
from support.failpoints import Action, Failpoint, Point
from support.guarded_broker import GuardedBroker
from support.namespaces import FORBIDDEN_IN, FORBIDDEN_OUT, Exchange, Namespace, Organisation, require_namespaces
from support.one_process import run_in_one_process
from support.party_files import write_party_files
from support.private_node import NodeTls, PrivateNode
from support.processes import ProcessFederation, wait_until

pytestmark = pytest.mark.broker

OFFICE, HOSPITAL_A, HOSPITAL_B, UNIVERSITY = "office", "hospital-a", "hospital-b", "university"
BROKER = "192.0.2.10"
PROBES = "health and metrics at "
DEMO_SEED = 7
ROUNDS = 3
HALT = Failpoint(
    kind="phase",
    state="collecting",
    event="CloseOrdered",
    point=Point.KEPT,
    round=2,
    phase="union",
    action=Action.HALT,
)
"""The point at which the university's aggregator stands still: it may release, and nobody has heard of it."""


class NetworkedFederation(ProcessFederation):
    """Starts each party in the network of its organisation, and asks the coordinator from the office's."""

    def __init__(
        self,
        broker: GuardedBroker,
        folder: Path,
        exchange: Exchange,
        organisations: dict[str, Organisation],
        *,
        demo_seed: int,
    ) -> None:
        super().__init__(broker, folder, trainers=3, demo_seed=demo_seed)
        self.broker = broker
        self.office = exchange
        self.organisations = organisations
        homes = (OFFICE, HOSPITAL_B, UNIVERSITY, HOSPITAL_A, HOSPITAL_A, HOSPITAL_B)
        self.homes: dict[PartyId, str] = dict(zip(self.roles, homes, strict=True))
        self._files = write_party_files(folder / "homes", self.roles, self.homes)

    @property
    def addresses(self) -> dict[PartyId, str]:
        """The address that each party speaks from."""
        outside = {name: organisation.address for name, organisation in self.organisations.items()}
        return {name: outside.get(home, self.office.address) for name, home in self.homes.items()}

    def namespace_of(self, name: PartyId) -> Namespace:
        home = self.homes[name]
        return self.office if home == OFFICE else self.organisations[home].namespace

    def port_of(self, name: PartyId) -> int:
        """The port at which a party listens, for whoever is let through to it."""
        if name == self.coordinator_name:
            return urlsplit(self.url).port or 0
        said = self.services[name].wait_for_message(PROBES)
        return urlsplit(said.removeprefix(PROBES)).port or 0

    def list_connections(self, *fields: str) -> set[tuple[str, ...]]:
        """Facts that the broker knows of those who are connected."""
        with self.office.entered():
            return self.broker.list_connections(*fields)

    def __enter__(self) -> Self:
        with self.office.entered():
            return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self.office.entered():
            super().__exit__(kind, error, traceback)

    def _start(self, name: PartyId) -> None:
        with self.namespace_of(name).entered():
            super()._start(name)

    def _settings(self, name: PartyId) -> dict[str, str]:
        settings = super()._settings(name)
        if self.roles[name] is Role.COORDINATOR:
            return settings | {"host": self.office.address}
        # To everybody, so that it is the firewall alone that keeps others out.
        return settings | {"metrics_host": "0.0.0.0", "metrics_port": "0"}  # noqa: S104

    def _ask(self, method: str, path: str, token: str, body: object = None) -> httpx.Response:
        with self.office.entered():
            return super()._ask(method, path, token, body)


@contextmanager
def networked(folder: Path, *, demo_seed: int) -> Iterator[NetworkedFederation]:
    """Have the networks and a broker, with firewalls that let everybody reach it; the parties are not started."""
    authority = Authority(folder / "authority")
    tls = NodeTls(authority.ca_file, authority.certify_server("localhost", BROKER))
    with ExitStack() as stack:
        exchange = Exchange(BROKER)
        stack.callback(exchange.close)
        node = PrivateNode(tls)
        stack.callback(node.close)
        node.configure(f"listeners.ssl.2 = {BROKER}:{node.tls_port}")
        organisations = {}
        for name in (HOSPITAL_A, HOSPITAL_B, UNIVERSITY):
            organisations[name] = exchange.join(name)
            stack.callback(organisations[name].namespace.close)
            organisations[name].allow_only(BROKER, node.tls_port)
        with exchange.entered():
            node.start()
        broker = GuardedBroker(node, authority, folder, host=BROKER)
        yield NetworkedFederation(broker, folder, exchange, organisations, demo_seed=demo_seed)


@pytest.fixture(scope="module")
def federation(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NetworkedFederation]:
    try:
        require_namespaces()
    except UnavailableError as reason:
        pytest.skip(str(reason))
    request.getfixturevalue("rabbitmq_server")
    with networked(tmp_path_factory.mktemp("networked"), demo_seed=DEMO_SEED) as parties:
        parties.inject(parties.aggregator_names[1], [HALT])
        with parties:
            yield parties


def try_to_reach(federation: NetworkedFederation, source: str, name: PartyId) -> int:
    """Connect from an organisation to where a party listens."""
    target = federation.addresses[name], federation.port_of(name)
    return federation.organisations[source].namespace.try_to_reach(*target)


# Who reaches whom -------------------------------------------------------------------------------------------


def test_organisation_reaches_the_broker_and_nobody_else(federation: NetworkedFederation) -> None:
    broker = federation.office.address, federation.broker.node.tls_port
    for source, organisation in federation.organisations.items():
        elsewhere = [name for name, home in federation.homes.items() if home != source]

        answers = {name: try_to_reach(federation, source, name) for name in elsewhere}

        assert answers == dict.fromkeys(elsewhere, FORBIDDEN_OUT)
        assert organisation.namespace.try_to_reach(*broker) == 0


def test_nobody_gets_into_an_organisation_from_outside(federation: NetworkedFederation) -> None:
    inside = [name for name in federation.roles if name != federation.coordinator_name]

    answers = {
        name: federation.office.try_to_reach(federation.addresses[name], federation.port_of(name))
        for name in inside
    }

    assert answers == dict.fromkeys(inside, FORBIDDEN_IN)


def test_it_is_the_firewalls_that_keep_organisations_apart(federation: NetworkedFederation) -> None:
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
    federation: NetworkedFederation, tmp_path: Path
) -> None:
    cut_off = federation.aggregator_names[1]
    manifest = federation.draw_up(rounds=ROUNDS)
    expected = {(name, address, "true") for name, address in federation.addresses.items()}
    # Before anybody halts: a process that does sends no heartbeats, and the broker may miss it soon.
    wait_until(lambda: federation.list_connections("user", "peer_host", "ssl") == expected, "all come over TLS")
    run = federation.submit(manifest)
    federation.wait_until_hit(cut_off, HALT)

    federation.office.cut(UNIVERSITY)
    federation.services[cut_off].go_on()
    waiting = federation.wait_for(run, lambda view: view.waiting_for == [cut_off])
    wait_until(lambda: (cut_off,) not in federation.list_connections("user"), f"the broker misses {cut_off}")
    still = federation.read_run(run)
    federation.office.mend(UNIVERSITY)
    digests = federation.finish(run)

    for view in (waiting, still):
        assert (view.state, view.round, view.rounds_released) == ("running", 2, 1)
        assert (view.waiting_for, view.waiting_to) == ([cut_off], "to release union")
    assert federation.read_run(run).rounds_void == 0
    assert len(set(digests.values())) == 1
    assert digests == run_in_one_process(manifest, federation.parties, tmp_path, demo_seed=DEMO_SEED)
    assert compare([read_log(service.folder / "audit.jsonl") for service in federation.services.values()]) == ()
