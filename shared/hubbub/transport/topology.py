"""Every exchange, queue, binding and limit, as data, in one place.

Each flow of messages has its own direct exchange, so that a broker can grant each party the right to write to
just those that its role uses. A party has one inbox, bound under the party's name to the exchanges from which
its role receives. What any client can fill is kept apart from what must arrive. An aggregator has a second queue,
`hubbub.orders.NAME`, for what the coordinator sends: orders must not wait behind shares. A client has a second
queue, `hubbub.peers.NAME`, for what other clients send: that must not push orders and sums out of its inbox. What
a party rejects goes through an exchange of its own to a queue of its own, so that nobody else can write there:

    hubbub.control         coordinator -> clients, aggregators
    hubbub.shares          client -> aggregator
    hubbub.results         aggregator -> client
    hubbub.reports         client, aggregator -> coordinator
    hubbub.peers           client -> client
    hubbub.partials        aggregator -> aggregator
    hubbub.rejected.NAME   what the party NAME rejected, on its way to the queue hubbub.dead.NAME

No queue has an exchange's name, because a broker grants rights by name alone: with one name for both, the right to
write to the one and to read the other would be the right to bind and unbind them. So a queue's name ends in its
party's, and `hubbub.peers.NAME` is never `hubbub.peers`.

What a party must and must not be able to do at the broker, as attempts that leave nothing behind.

A broker tells nobody but its administrator which rights a user has. So they are tried: every exchange and queue
that a party uses, those of the others, and what no party may do at all.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

from hubbub.errors import ConfigurationError
from hubbub.ids import PartyId, Role, is_party_id
from hubbub.transport.base import Address

CONTROL = "hubbub.control"
SHARES = "hubbub.shares"
RESULTS = "hubbub.results"
REPORTS = "hubbub.reports"
PEERS = "hubbub.peers"
PARTIALS = "hubbub.partials"

FLOWS: Mapping[tuple[Role, Role], str] = MappingProxyType(
    {
        (Role.COORDINATOR, Role.CLIENT): CONTROL,
        (Role.COORDINATOR, Role.AGGREGATOR): CONTROL,
        (Role.CLIENT, Role.AGGREGATOR): SHARES,
        (Role.AGGREGATOR, Role.CLIENT): RESULTS,
        (Role.CLIENT, Role.COORDINATOR): REPORTS,
        (Role.AGGREGATOR, Role.COORDINATOR): REPORTS,
        (Role.CLIENT, Role.CLIENT): PEERS,
        (Role.AGGREGATOR, Role.AGGREGATOR): PARTIALS,
    }
)
"""(sender, recipient) -> exchange. A pair that is not here does not talk."""


class Overflow(StrEnum):
    """What a full queue does with one message more."""

    REJECT_PUBLISH = "reject-publish"
    DROP_HEAD = "drop-head"


# A party that restarts often must not lose messages that way; a message that nobody ever manages to handle must
# still leave the inbox one day.
DELIVERY_LIMIT = 100


@dataclass(frozen=True, slots=True)
class ExchangeSpec:
    """A durable direct exchange."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """A durable, replicated queue and its limits.

    `max_length` and `max_bytes` count what waits in the broker. `dead_letters` is where the consumer puts what
    it rejects and what was delivered more often than `delivery_limit`; None if nobody consumes the queue.
    """

    name: str
    delivery_limit: int = DELIVERY_LIMIT
    dead_letters: Address | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: Overflow = Overflow.REJECT_PUBLISH


@dataclass(frozen=True, slots=True)
class BindingSpec:
    """What is published to `address` goes into `queue`."""

    address: Address
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """What a user may do at the broker, as RabbitMQ takes it: regular expressions over names."""

    configure: str
    write: str
    read: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What must exist at the broker before a party can work."""

    exchanges: tuple[ExchangeSpec, ...]
    queues: tuple[QueueSpec, ...]
    bindings: tuple[BindingSpec, ...]

    def __post_init__(self) -> None:
        exchanges = _unique("exchange", ((spec.name, spec) for spec in self.exchanges))
        queues = _unique("queue", ((spec.name, spec) for spec in self.queues))
        for binding in self.bindings:
            if binding.queue not in queues or binding.address.exchange not in exchanges:
                raise ConfigurationError(f"{binding} names an exchange or queue that the topology lacks")

    def queue(self, name: str) -> QueueSpec:
        """Find a queue by name."""
        for spec in self.queues:
            if spec.name == name:
                return spec
        known = ", ".join(spec.name for spec in self.queues)
        raise ConfigurationError(f"no queue {name!r} in this topology, which has: {known or 'none'}")


# Old dead letters give way: a flood of bad messages must not fill the broker's disk.
DEAD_MAX_LENGTH = 1_000
DEAD_MAX_BYTES = 2**30
# A client that publishes faster than an aggregator spools waits (4 GiB of 1 MiB chunks). A coordinator's
# messages are small. A client may be away for days, and nobody can wait for it: its oldest messages give way,
# and what it missed then comes from a peer.
INBOX_MAX_LENGTH: Mapping[Role, int] = MappingProxyType(
    {Role.AGGREGATOR: 4_096, Role.COORDINATOR: 100_000, Role.CLIENT: 20_000}
)
CLIENT_INBOX_MAX_BYTES = 8 * 2**30
# A giver sends one client three snapshots in a run unless its policy says otherwise, and nothing else is long. Of
# 10^8 parameters these are 1.2 GB: 1,200 messages in chunks of 1 MiB, 18,300 in chunks of 64 KiB. The oldest give
# way here too, since nobody can wait for a client that is away; its orders and sums are elsewhere.
PEERS_MAX_LENGTH = 20_000
PEERS_MAX_BYTES = 4 * 2**30

EXCHANGES = tuple(ExchangeSpec(name) for name in dict.fromkeys(FLOWS.values()))
"""Those that parties share."""


def inbox(party: PartyId) -> str:
    """Name the queue from which a party receives all that has no queue of its own."""
    return f"hubbub.inbox.{_checked(party)}"


def orders_queue(party: PartyId) -> str:
    """Name the queue from which an aggregator receives the coordinator's orders."""
    return f"hubbub.orders.{_checked(party)}"


def peers_queue(party: PartyId) -> str:
    """Name the queue from which a client receives what other clients send."""
    return f"hubbub.peers.{_checked(party)}"


def received_from(party: PartyId, role: Role) -> tuple[str, ...]:
    """Name all queues from which a party receives."""
    match role:
        case Role.AGGREGATOR:
            return orders_queue(party), inbox(party)
        case Role.CLIENT:
            return inbox(party), peers_queue(party)
        case Role.COORDINATOR:
            return (inbox(party),)


def dead_letter_queue(party: PartyId) -> str:
    """Name the queue that holds what a party rejected."""
    return f"hubbub.dead.{_checked(party)}"


def dead_letter_exchange(party: PartyId) -> str:
    """Name the exchange through which a party, and the broker for it, puts aside what was rejected."""
    return f"hubbub.rejected.{_checked(party)}"


def route(sender: Role, recipient: Role, name: PartyId) -> Address:
    """Say where a party of role `sender` publishes for the party `name` of role `recipient`."""
    exchange = FLOWS.get((sender, recipient))
    if exchange is None:
        raise ConfigurationError(f"no messages go from {sender} to {recipient}")
    return Address(exchange, _checked(name))


def topology_for(party: PartyId, role: Role) -> Topology:
    """Lay out the shared exchanges and one party's queues and bindings."""
    dead = Address(dead_letter_exchange(party), party)
    sources = dict.fromkeys(exchange for (_, recipient), exchange in FLOWS.items() if recipient is role)
    return Topology(
        exchanges=(*EXCHANGES, ExchangeSpec(dead.exchange)),
        queues=(
            QueueSpec(
                name=dead_letter_queue(party),
                max_length=DEAD_MAX_LENGTH,
                max_bytes=DEAD_MAX_BYTES,
                overflow=Overflow.DROP_HEAD,
            ),
            *(_receiving_queue(name, party, role, dead) for name in received_from(party, role)),
        ),
        bindings=(
            BindingSpec(dead, dead_letter_queue(party)),
            *(BindingSpec(Address(exchange, party), _queue_for(exchange, party, role)) for exchange in sources),
        ),
    )


def _receiving_queue(name: str, party: PartyId, role: Role, dead: Address) -> QueueSpec:
    is_peers, is_client = name == peers_queue(party), role is Role.CLIENT
    return QueueSpec(
        name=name,
        dead_letters=dead,
        max_length=PEERS_MAX_LENGTH if is_peers else INBOX_MAX_LENGTH[role],
        max_bytes=(PEERS_MAX_BYTES if is_peers else CLIENT_INBOX_MAX_BYTES) if is_client else None,
        overflow=Overflow.DROP_HEAD if is_client else Overflow.REJECT_PUBLISH,
    )


def _queue_for(exchange: str, party: PartyId, role: Role) -> str:
    if exchange == CONTROL and role is Role.AGGREGATOR:
        return orders_queue(party)
    return peers_queue(party) if exchange == PEERS else inbox(party)


def permissions_for(party: PartyId, role: Role) -> Permissions:
    """Grant a party what its role's flows need and no more; the broker's default exchange is nobody's."""
    targets = dict.fromkeys(exchange for (sender, _), exchange in FLOWS.items() if sender is role)
    return Permissions(
        configure="^$",
        write=_exactly(*targets, dead_letter_exchange(party)),
        read=_exactly(*received_from(party, role), dead_letter_queue(party)),
    )


def merge(topologies: Iterable[Topology]) -> Topology:
    """Unite topologies; equal parts are kept once, parts of one name that differ are an error."""
    parts = tuple(topologies)
    return Topology(
        exchanges=tuple(dict.fromkeys(spec for part in parts for spec in part.exchanges)),
        queues=tuple(dict.fromkeys(spec for part in parts for spec in part.queues)),
        bindings=tuple(dict.fromkeys(spec for part in parts for spec in part.bindings)),
    )


T = TypeVar("T", bound=Hashable)


def _unique(kind: str, named: Iterable[tuple[str, T]]) -> dict[str, T]:
    found: dict[str, T] = {}
    for name, spec in named:
        if name in found:
            raise ConfigurationError(f"{kind} {name!r} is described twice, differently: {found[name]}, {spec}")
        found[name] = spec
    return found


def _exactly(*names: str) -> str:
    return f"^({'|'.join(re.escape(name) for name in names)})$"


def _checked(party: PartyId) -> PartyId:
    if not is_party_id(party):
        raise ConfigurationError(
            f"{party!r} cannot name a party: use lower-case letters, digits and hyphens, 40 at most"
        )
    return party


DEFAULT_EXCHANGE = ""
"""Reaches every queue by its name, so that whoever may write to it may write to everybody."""
BUILT_IN_EXCHANGES = ("amq.direct", "amq.fanout", "amq.topic")


class Deed(StrEnum):
    """What can be tried."""

    DECLARE = "declare queue"
    PUBLISH = "publish to exchange"
    CONSUME = "read queue"


@dataclass(frozen=True, slots=True)
class Attempt:
    """Something to try, and with what."""

    deed: Deed
    name: str

    def __str__(self) -> str:
        if self.deed is Deed.PUBLISH and self.name == DEFAULT_EXCHANGE:
            return "publish to the default exchange"
        return f"{self.deed.value} {self.name}"


def find_duties(party: PartyId, role: Role) -> tuple[Attempt, ...]:
    """What a party must be able to do in order to work."""
    targets = dict.fromkeys(exchange for (sender, _), exchange in FLOWS.items() if sender is role)
    return (
        *(Attempt(Deed.PUBLISH, exchange) for exchange in (*targets, dead_letter_exchange(party))),
        *(Attempt(Deed.CONSUME, queue) for queue in (*received_from(party, role), dead_letter_queue(party))),
    )


def find_taboos(party: PartyId, role: Role, others: Iterable[PartyId]) -> tuple[Attempt, ...]:
    """What the broker must refuse a party."""
    allowed = {attempt.name for attempt in find_duties(party, role)}
    strangers = [name for name in others if name != party]
    exchanges = (
        DEFAULT_EXCHANGE,
        *BUILT_IN_EXCHANGES,
        *(spec.name for spec in EXCHANGES if spec.name not in allowed),
        *map(dead_letter_exchange, strangers),
    )
    queues = (
        name(stranger) for name in (inbox, orders_queue, peers_queue, dead_letter_queue) for stranger in strangers
    )
    return (
        Attempt(Deed.DECLARE, f"hubbub.probe.{party}"),
        *(Attempt(Deed.PUBLISH, name) for name in exchanges),
        *(Attempt(Deed.CONSUME, name) for name in queues),
    )
