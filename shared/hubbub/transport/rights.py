"""What a party must and must not be able to do at the broker, as attempts that leave nothing behind.

A broker tells nobody but its administrator which rights a user has. So they are tried: every exchange and queue
that a party uses, those of the others, and what no party may do at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from hubbub.ids import PartyId, Role
from hubbub.transport.topology import (
    EXCHANGES,
    FLOWS,
    dead_letter_exchange,
    dead_letter_queue,
    inbox,
    orders_queue,
    peers_queue,
    received_from,
)

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
