"""The envelope of a message: sender, recipient, run, round and phase around a typed body.

A message is a claim: it says what its sender asserts, in types that are checked when it is decoded. The service
that receives it decides at its edge whether the claim is true and allowed now.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from hubbub.ids import PartyId, Role, RunId


class Claim(BaseModel):
    """Frozen record that rejects unknown fields and does not coerce types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants")


class WireMark(Enum):
    """Mark in a field's annotation: the field is shorter in a frame (`hubbub.messages.wire_form`)."""

    HEX = auto()
    """Hexadecimal digits, sent as bytes."""
    PARTY = auto()
    """A party's name, sent as its number in the roster."""
    WORD = auto()
    """A number from 1 to 2^64, sent mod 2^64."""
    TABLE = auto()
    """A tuple of claims, sent column by column; a column of equal values is sent as one value."""


class Message(Claim):
    """The body of an envelope; a subclass says its kind, who may send it and who may receive it."""

    kind: ClassVar[str]
    senders: ClassVar[frozenset[Role]]
    recipients: ClassVar[frozenset[Role]]

    def __init_subclass__(
        cls,
        kind: str | None = None,
        senders: frozenset[Role] | None = None,
        recipients: frozenset[Role] | None = None,
    ) -> None:
        super().__init_subclass__()
        for name, value in (("kind", kind), ("senders", senders), ("recipients", recipients)):
            if value is not None:
                setattr(cls, name, value)


COORDINATOR = frozenset({Role.COORDINATOR})
AGGREGATOR = frozenset({Role.AGGREGATOR})
CLIENT = frozenset({Role.CLIENT})
PARTICIPANT = frozenset({Role.AGGREGATOR, Role.CLIENT})


FORMAT_VERSION = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A message with its addresses, payload and signature.

    `payload` is the binary part, for example packed residues; it is never printed. `signature` covers all the rest
    as it was encoded.
    """

    run: RunId
    round: int
    phase: str
    sender: PartyId
    recipient: PartyId
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
