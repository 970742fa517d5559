"""All that a broker must be told before a federation can use it, as RabbitMQ's own definitions.

An operator loads them once (`rabbitmqctl import_definitions`, or the management plugin), and from then on no
party has to declare anything, nor may it: each has one user with exactly the rights that its role needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hubbub.errors import ConfigurationError
from hubbub.ids import PartyId, Role
from hubbub.transport.topology import QueueSpec, merge, permissions_for, topology_for

HASHING_ALGORITHM = "rabbit_password_hashing_sha256"
DEFAULT_USER = "guest"
"""Made by RabbitMQ itself, with a password that everybody knows and the right to everything."""


@dataclass(frozen=True, slots=True)
class BrokerUser:
    """A party as the broker knows it: its name is its user name; the hash is salted, in RabbitMQ's format."""

    name: PartyId
    role: Role
    password_hash: str = field(repr=False)


def make_definitions(users: Sequence[BrokerUser], *, vhost: str = "/") -> dict[str, object]:
    """Write down users, permissions, exchanges, queues and bindings, ready for JSON.

    No topic permissions: they are for topic exchanges, of which there is none.
    """
    _check_names(users)
    topology = merge(topology_for(user.name, user.role) for user in users)
    return {
        "users": [_user(user) for user in users],
        "vhosts": [{"name": vhost}],
        "permissions": [_permission(user, vhost) for user in users],
        "exchanges": [
            {
                "name": exchange.name,
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


# Consumers count deliveries themselves. RabbitMQ 4 would drop a message after 20 unless told otherwise, and
# looking at dead letters delivers and returns them, which must not use them up.
_BROKER_DELIVERY_LIMIT = 1_000_000


def queue_arguments(spec: QueueSpec) -> dict[str, str | int | bool]:
    """Say in RabbitMQ's words what a queue is and what its limits are.

    It names no dead-letter exchange: through that RabbitMQ would also send what gives way in a full queue, and
    bury what was rejected under it. So consumers put messages aside themselves, also those that were delivered
    too often.

    A queue with a consumer has one at a time. RabbitMQ does not keep to a consumer's own wish to be the only one
    where queues are replicated, hence the argument.
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


def _user(user: BrokerUser) -> dict[str, object]:
    return {
        "name": user.name,
        "password_hash": user.password_hash,
        "hashing_algorithm": HASHING_ALGORITHM,
        # A tag would open the management interface.
        "tags": [],
    }


def _permission(user: BrokerUser, vhost: str) -> dict[str, object]:
    permissions = permissions_for(user.name, user.role)
    return {
        "user": user.name,
        "vhost": vhost,
        "configure": permissions.configure,
        "write": permissions.write,
        "read": permissions.read,
    }


def _check_names(users: Sequence[BrokerUser]) -> None:
    names = Counter(user.name for user in users)
    if twice := sorted(name for name, count in names.items() if count > 1):
        raise ConfigurationError(f"two parties cannot share a user at the broker: {', '.join(twice)}")
    if DEFAULT_USER in names:
        raise ConfigurationError(
            f"no party can be called {DEFAULT_USER!r}: RabbitMQ's default user is, and has to be deleted"
        )
