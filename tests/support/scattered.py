"""A federation over three organisations that meet at a broker and nowhere else, each in a network of its own.

Who lives where: the office has the broker and the coordinator; one hospital two trainers, another a trainer and
an aggregator; the university the other aggregator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import httpx

from hubbub.ids import PartyId, Role
from support.certificates import Authority
from support.guarded_broker import GuardedBroker
from support.namespaces import Exchange, Namespace, Organisation
from support.party_files import write_party_files
from support.private_node import NodeTls, PrivateNode
from support.processes import ProcessFederation

OFFICE, HOSPITAL_A, HOSPITAL_B, UNIVERSITY = "office", "hospital-a", "hospital-b", "university"
_BROKER = "192.0.2.10"
_PROBES = "health and metrics at "


class ScatteredFederation(ProcessFederation):
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
        """Where each party speaks from."""
        outside = {name: organisation.address for name, organisation in self.organisations.items()}
        return {name: outside.get(home, self.office.address) for name, home in self.homes.items()}

    def namespace_of(self, name: PartyId) -> Namespace:
        home = self.homes[name]
        return self.office if home == OFFICE else self.organisations[home].namespace

    def port_of(self, name: PartyId) -> int:
        """Where a party listens, for whoever is let through to it."""
        if name == self.coordinator_name:
            return urlsplit(self.url).port or 0
        said = self.services[name].wait_for_message(_PROBES)
        return urlsplit(said.removeprefix(_PROBES)).port or 0

    def list_connections(self, *fields: str) -> set[tuple[str, ...]]:
        """What the broker knows of those who are connected."""
        with self.office.entered():
            return self.broker.list_connections(*fields)

    def __enter__(self) -> Self:
        with self.office.entered():
            return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
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
def scattered(folder: Path, *, demo_seed: int) -> Iterator[ScatteredFederation]:
    """Have the networks and a broker, with firewalls that let everybody reach it; the parties are not started."""
    authority = Authority(folder / "authority")
    tls = NodeTls(authority.ca_file, authority.certify_server("localhost", _BROKER))
    with ExitStack() as stack:
        exchange = Exchange(_BROKER)
        stack.callback(exchange.close)
        node = PrivateNode(tls)
        stack.callback(node.close)
        node.configure(f"listeners.ssl.2 = {_BROKER}:{node.tls_port}")
        organisations = {}
        for name in (HOSPITAL_A, HOSPITAL_B, UNIVERSITY):
            organisations[name] = exchange.join(name)
            stack.callback(organisations[name].namespace.close)
            organisations[name].allow_only(_BROKER, node.tls_port)
        with exchange.entered():
            node.start()
        broker = GuardedBroker(node, authority, folder, host=_BROKER)
        yield ScatteredFederation(broker, folder, exchange, organisations, demo_seed=demo_seed)
