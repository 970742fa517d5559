"""An inbox that has lost messages, as a broker's does that keeps the last rounds of a party that is away."""

from __future__ import annotations

from collections.abc import Callable

from hubbub.ids import PartyId
from hubbub.messages.codec import decode
from hubbub.messages.envelope import Envelope
from hubbub.transport.memory import MemoryBroker
from hubbub.transport.topology import inbox


def list_waiting(broker: MemoryBroker, party: PartyId) -> list[Envelope]:
    """What waits for a party, oldest first."""
    return [decode(message.body) for message in broker._queues[inbox(party)].ready]


def lose(broker: MemoryBroker, party: PartyId, lost: Callable[[Envelope], bool] = lambda _: True) -> int:
    """Lose what waits for a party, all of it or the messages that are chosen; and say how many those are."""
    queue = broker._queues[inbox(party)]
    kept = [message for message in queue.ready if not lost(decode(message.body))]
    count = len(queue.ready) - len(kept)
    queue.ready.clear()
    queue.ready.extend(kept)
    queue.ready_bytes = sum(len(message.body) for message in kept)
    return count


def overflow(broker: MemoryBroker, party: PartyId, keep: int) -> int:
    """Lose the oldest messages, as a queue with `drop-head` does."""
    oldest = list_waiting(broker, party)[: -keep or None]
    ids = {envelope.message_id for envelope in oldest}
    return lose(broker, party, lambda envelope: envelope.message_id in ids)
