"""Broker topology: every exchange, queue, binding, limit and permission, as data.

Each flow of messages has its own direct exchange, so that a broker can grant each party the right to write to just
those that its role uses. A party has one inbox, bound under the party's name to the exchanges from which its role
receives. Queues that any client can fill are kept apart from what must arrive. An aggregator has a second queue,
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

A broker tells nobody but its administrator which rights a user has. So `find_duties` and `find_taboos` list
attempts that test them and leave nothing behind: on every exchange and queue that a party uses, on those of the
others, and what no party may do at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

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
"""(sender, recipient) -> exchange. A pair that is not here exchanges no messages."""
EXCHANGES = tuple(dict.fromkeys(FLOWS.values()))
"""Exchanges that parties share."""
DEFAULT_EXCHANGE = ""
"""Reaches every queue by its name, so that the right to write to it is the right to write to everybody."""
BUILT_IN_EXCHANGES = ("amq.direct", "amq.fanout", "amq.topic")

# High enough that a party that restarts often loses no messages; a message that cannot be handled must still leave
# the inbox one day.
DELIVERY_LIMIT = 100
# Old dead letters are dropped: a flood of bad messages must not fill the broker's disk.
DEAD_MAX_LENGTH = 1_000
DEAD_MAX_BYTES = 2**30
# A client that publishes faster than an aggregator spools waits (4 GiB of 1 MiB chunks). A coordinator's
# messages are small. A client may be away for days, and nobody can wait for it: its oldest messages are dropped,
# and what it missed then comes from a peer.
INBOX_MAX_LENGTH: Mapping[Role, int] = MappingProxyType(
    {Role.AGGREGATOR: 4_096, Role.COORDINATOR: 100_000, Role.CLIENT: 20_000}
)
CLIENT_INBOX_MAX_BYTES = 8 * 2**30
# A giver sends one client three snapshots in a run unless its policy says otherwise, and nothing else is long. For
# 10^8 parameters these are 1.2 GB: 1,200 messages in chunks of 1 MiB, 18,300 in chunks of 64 KiB. The oldest are
# dropped here too, since nobody can wait for a client that is away; its orders and sums are in its inbox.
PEERS_MAX_LENGTH = 20_000
PEERS_MAX_BYTES = 4 * 2**30


class Overflow(StrEnum):
    """Overflow policy of a queue."""

    REJECT_PUBLISH = "reject-publish"
    DROP_HEAD = "drop-head"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """Durable, replicated queue and its limits.

    `max_length` and `max_bytes` count what waits in the broker. The consumer sends what it rejects, and what was
    delivered more often than `delivery_limit`, to `dead_letters`, which is None if nobody consumes the queue.
    """

    name: str
    delivery_limit: int = DELIVERY_LIMIT
    dead_letters: Address | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: Overflow = Overflow.REJECT_PUBLISH


@dataclass(frozen=True, slots=True)
class BindingSpec:
    """Binding: messages to `address` go into `queue`."""

    address: Address
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """Permissions of a user at the broker, in RabbitMQ's form: regular expressions over names."""

    configure: str
    write: str
    read: str


class Deed(StrEnum):
    """Kind of an attempt."""

    DECLARE = "declare queue"
    PUBLISH = "publish to exchange"
    CONSUME = "read queue"


@dataclass(frozen=True, slots=True)
class Attempt:
    """Operation at the broker that tests a permission, on the exchange or queue `name`."""

    deed: Deed
    name: str

    def __str__(self) -> str:
        if self.deed is Deed.PUBLISH and self.name == DEFAULT_EXCHANGE:
            return "publish to the default exchange"
        return f"{self.deed.value} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Exchanges, queues and bindings that must exist at the broker before a party can work."""

    exchanges: tuple[str, ...]
    """Names of durable direct exchanges."""
    queues: tuple[QueueSpec, ...]
    bindings: tuple[BindingSpec, ...]

    def __post_init__(self) -> None:
        queues: dict[str, QueueSpec] = {}
        for spec in self.queues:
            if queues.setdefault(spec.name, spec) is not spec:
                both = f"{queues[spec.name]}, {spec}"
                raise ConfigurationError(f"queue {spec.name!r} is described twice, differently: {both}")
        for binding in self.bindings:
            if binding.queue not in queues or binding.address.exchange not in self.exchanges:
                raise ConfigurationError(f"{binding} names an exchange or queue that the topology lacks")

    def queue(self, name: str) -> QueueSpec:
        """Find a queue by name."""
        for spec in self.queues:
            if spec.name == name:
                return spec
        known = ", ".join(spec.name for spec in self.queues)
        raise ConfigurationError(f"no queue {name!r} in this topology, which has: {known or 'none'}")


def inbox(party: PartyId) -> str:
    """Return the name of the queue for all messages of a party that have no other queue."""
    return f"hubbub.inbox.{_checked(party)}"


def orders_queue(party: PartyId) -> str:
    """Return the name of the queue for the coordinator's orders to an aggregator."""
    return f"hubbub.orders.{_checked(party)}"


def peers_queue(party: PartyId) -> str:
    """Return the name of the queue for what other clients send to a client."""
    return f"hubbub.peers.{_checked(party)}"


def received_from(party: PartyId, role: Role) -> tuple[str, ...]:
    """Return the names of all queues from which a party receives."""
    match role:
        case Role.AGGREGATOR:
            return orders_queue(party), inbox(party)
        case Role.CLIENT:
            return inbox(party), peers_queue(party)
        case Role.COORDINATOR:
            return (inbox(party),)


def dead_letter_queue(party: PartyId) -> str:
    """Return the name of the queue that holds what a party rejected."""
    return f"hubbub.dead.{_checked(party)}"


def dead_letter_exchange(party: PartyId) -> str:
    """Return the name of the exchange to which a party sends what it rejected."""
    return f"hubbub.rejected.{_checked(party)}"


def route(sender: Role, recipient: Role, name: PartyId) -> Address:
    """Return the address at which a party of role `sender` reaches the party `name` of role `recipient`."""
    exchange = FLOWS.get((sender, recipient))
    if exchange is None:
        raise ConfigurationError(f"no messages go from {sender} to {recipient}")
    return Address(exchange, _checked(name))


def topology_for(party: PartyId, role: Role) -> Topology:
    """Return the shared exchanges and one party's queues and bindings."""
    dead = Address(dead_letter_exchange(party), party)
    sources = dict.fromkeys(exchange for (_, recipient), exchange in FLOWS.items() if recipient is role)
    return Topology(
        exchanges=(*EXCHANGES, dead.exchange),
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
    """Return the permissions that a party's role needs and no more; nobody may use the default exchange."""
    duties = find_duties(party, role)
    write, read = (
        "|".join(re.escape(duty.name) for duty in duties if duty.deed is deed)
        for deed in (Deed.PUBLISH, Deed.CONSUME)
    )
    return Permissions(configure="^$", write=f"^({write})$", read=f"^({read})$")


def merge(topologies: Iterable[Topology]) -> Topology:
    """Unite topologies; equal parts are kept once, parts of one name that differ are an error."""
    parts = tuple(topologies)
    return Topology(
        exchanges=tuple(dict.fromkeys(name for part in parts for name in part.exchanges)),
        queues=tuple(dict.fromkeys(spec for part in parts for spec in part.queues)),
        bindings=tuple(dict.fromkeys(spec for part in parts for spec in part.bindings)),
    )


def _checked(party: PartyId) -> PartyId:
    if not is_party_id(party):
        raise ConfigurationError(
            f"{party!r} cannot name a party: use lower-case letters, digits and hyphens, 40 at most"
        )
    return party


def find_duties(party: PartyId, role: Role) -> tuple[Attempt, ...]:
    """Return the attempts that must succeed for a party to work."""
    targets = dict.fromkeys(exchange for (sender, _), exchange in FLOWS.items() if sender is role)
    return (
        *(Attempt(Deed.PUBLISH, exchange) for exchange in (*targets, dead_letter_exchange(party))),
        *(Attempt(Deed.CONSUME, queue) for queue in (*received_from(party, role), dead_letter_queue(party))),
    )


def find_taboos(party: PartyId, role: Role, others: Iterable[PartyId]) -> tuple[Attempt, ...]:
    """Return the attempts that the broker must refuse."""
    allowed = {attempt.name for attempt in find_duties(party, role)}
    strangers = [name for name in others if name != party]
    exchanges = (
        DEFAULT_EXCHANGE,
        *BUILT_IN_EXCHANGES,
        *(name for name in EXCHANGES if name not in allowed),
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
