"""An inbox that has lost messages, as a broker's does that keeps the last rounds of a party that is away."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from hubbub.ids import PartyId
from hubbub.messages.envelope import Envelope
from hubbub.transport.memory import MemoryBroker
from hubbub.transport.topology import inbox
from support.frames import decode


def list_waiting(broker: MemoryBroker, party: PartyId) -> list[Envelope]:
    """What waits for a party, oldest first."""
    return [decode(message.body) for message in broker._queues[inbox(party)].ready]


def lose(broker: MemoryBroker, party: PartyId, lost: Callable[[Envelope], bool] = lambda _: True) -> int:
    """Lose what waits for a party, all of it or the messages that are chosen; and say how many those are."""
    queue = broker._queues[inbox(party)]
    kept = [message for message in queue.ready if not lost(decode(message.body))]
    lost_count = len(queue.ready) - len(kept)
    queue.ready.clear()
    queue.ready.extend(kept)
    queue.ready_bytes = sum(len(message.body) for message in kept)
    return lost_count


def overflow(broker: MemoryBroker, party: PartyId, keep: int) -> int:
    """Lose the oldest messages, as a queue with `drop-head` does."""
    places = count()
    lost = len(list_waiting(broker, party)) - keep
    return lose(broker, party, lambda _: next(places) < lost)
