"""The envelope: who says what to whom, in which run, round and phase."""

from __future__ import annotations

from dataclasses import dataclass

from hubbub.ids import PartyId, RunId
from hubbub.messages.base import Message

FORMAT_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A message on its way.

    `payload` is the binary part, packed residues for instance; it is never printed. `signature` covers all
    the rest as it was encoded. `message_id` is drawn anew for every envelope.
    """

    run: RunId
    round: int
    phase: str
    sender: PartyId
    recipient: PartyId
    message_id: str
    body: Message
    payload: bytes = b""
    signature: bytes = b""

    @property
    def kind(self) -> str:
        """The body's kind."""
        return self.body.kind

    def __repr__(self) -> str:
        return (
            f"<Envelope {self.kind} {self.sender} -> {self.recipient}, run {self.run[:12]}, round {self.round}, "
            f"phase {self.phase or '-'}, {len(self.payload)} bytes of payload>"
        )
