"""RabbitMQ definitions of a federation: users, permissions, exchanges, queues and bindings.

An operator loads them once (`rabbitmqctl import_definitions`, or the management plugin). From then on no party has
to declare anything, nor may it: each has one user with exactly the rights that its role needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from hubbub.errors import ConfigurationError
from hubbub.ids import PartyId, Role
from hubbub.transport.topology import QueueSpec, merge, permissions_for, topology_for

HASHING_ALGORITHM = "rabbit_password_hashing_sha256"
DEFAULT_USER = "guest"
"""RabbitMQ's own user, with a well-known password and the right to everything."""
# Consumers count deliveries themselves. RabbitMQ 4 would drop a message after 20 by default, and looking at dead
# letters delivers and returns them, which must not use them up.
_BROKER_DELIVERY_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class BrokerUser:
    """User of the broker for one party; the hash is salted, in RabbitMQ's format."""

    name: PartyId
    role: Role
    password_hash: str = field(repr=False)


def make_definitions(users: Sequence[BrokerUser], *, vhost: str = "/") -> dict[str, object]:
    """Return users, permissions, exchanges, queues and bindings, ready for JSON.

    No topic permissions: they are for topic exchanges, of which there is none.
    """
    _check_names(users)
    topology = merge(topology_for(user.name, user.role) for user in users)
    return {
        "users": [
            {
                "name": user.name,
                "password_hash": user.password_hash,
                "hashing_algorithm": HASHING_ALGORITHM,
                # A tag would open the management interface.
                "tags": [],
            }
            for user in users
        ],
        "vhosts": [{"name": vhost}],
        "permissions": [
            {"user": user.name, "vhost": vhost, **asdict(permissions_for(user.name, user.role))} for user in users
        ],
        "exchanges": [
            {
                "name": exchange,
                "vhost": vhost,
                "type": "direct",
                "durable": True,
                "auto_delete": False,
                "internal": False,
                "arguments": {},
            }
            for exchange in topology.exchanges
        ],
        "queues": [
            {
                "name": queue.name,
                "vhost": vhost,
                "durable": True,
                "auto_delete": False,
                "arguments": queue_arguments(queue),
            }
            for queue in topology.queues
        ],
        "bindings": [
            {
                "source": binding.address.exchange,
                "vhost": vhost,
                "destination": binding.queue,
                "destination_type": "queue",
                "routing_key": binding.address.routing_key,
                "arguments": {},
            }
            for binding in topology.bindings
        ],
    }


def queue_arguments(spec: QueueSpec) -> dict[str, str | int | bool]:
    """Return the RabbitMQ arguments of a queue: its type and its limits.

    There is no dead-letter exchange: RabbitMQ would also send it what a full queue drops, which would bury the
    rejected messages. So consumers dead-letter messages themselves, also those that were delivered too often.

    A queue has one consumer at a time. RabbitMQ does not honour an exclusive consumer on replicated queues, hence
    the argument.
    """
    arguments: dict[str, str | int | bool] = {"x-queue-type": "quorum", "x-delivery-limit": _BROKER_DELIVERY_LIMIT}
    if spec.dead_letters is not None:
        arguments["x-single-active-consumer"] = True
    if spec.max_length is not None:
        arguments["x-max-length"] = spec.max_length
    if spec.max_bytes is not None:
        arguments["x-max-length-bytes"] = spec.max_bytes
    if spec.max_length is not None or spec.max_bytes is not None:
        arguments["x-overflow"] = spec.overflow.value
    return arguments


def _check_names(users: Sequence[BrokerUser]) -> None:
    names = Counter(user.name for user in users)
    if twice := sorted(name for name, count in names.items() if count > 1):
        raise ConfigurationError(f"two parties cannot share a user at the broker: {', '.join(twice)}")
    if DEFAULT_USER in names:
        raise ConfigurationError(
            f"no party can be called {DEFAULT_USER!r}: RabbitMQ's default user is, and has to be deleted"
        )
