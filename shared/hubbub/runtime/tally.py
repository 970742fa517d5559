"""What is counted of messages that are sent, where a party sends from several processes and counts in one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from hubbub.messages.envelope import Envelope
from hubbub.messages.shares import ShareChunk, ShareSeed
from hubbub.messages.sums import MaskedChunk, PartialChunk, SumChunk
from hubbub.messages.traffic import count_seeds


def measure(envelope: Envelope) -> tuple[str, Mapping[str, float]]:
    """The phase that a message's bytes are counted under, and the payload in bytes that begins with it."""
    body = envelope.body
    if isinstance(body, ShareSeed):
        (seed,) = count_seeds([claim.vector for claim in body.vectors], copies=1)
        return envelope.phase, {seed.counts_as: seed.payload_bits / 8}
    if not isinstance(body, ShareChunk | SumChunk | PartialChunk | MaskedChunk):
        # Its phase may be any text; only that of a chunk is always checked before it is acted upon.
        return "", {}
    begun: dict[str, float] = defaultdict(float)
    for vector in (claim.vector for claim in body.vectors if body.index == 0):
        begun[vector.counts_as] += body.encoding.bits(vector.length, vector.modulus) / 8
    return envelope.phase, begun


@dataclass(frozen=True, slots=True)
class Sending:
    """Messages of one kind and phase that the broker has taken."""

    kind: str
    phase: str
    messages: int = 0
    wire_bytes: int = 0
    payload_bytes: Mapping[str, float] = field(default_factory=dict)

    def add(self, size: int, payload_bytes: Mapping[str, float]) -> Sending:
        """The same with one message more."""
        names = {**self.payload_bytes, **payload_bytes}
        sums = {name: self.payload_bytes.get(name, 0.0) + payload_bytes.get(name, 0.0) for name in names}
        return Sending(self.kind, self.phase, self.messages + 1, self.wire_bytes + size, sums)


class Tally:
    """Counts messages by kind and phase until somebody takes the counts."""

    def __init__(self) -> None:
        self._sendings: dict[tuple[str, str], Sending] = {}

    def note(self, envelope: Envelope, size: int) -> None:
        """Count a message that the broker has taken."""
        phase, begun = measure(envelope)
        place = (envelope.kind, phase)
        self._sendings[place] = self._sendings.get(place, Sending(*place)).add(size, begun)

    def take(self) -> tuple[Sending, ...]:
        """Give what was counted since it was last taken."""
        taken, self._sendings = tuple(self._sendings.values()), {}
        return taken
