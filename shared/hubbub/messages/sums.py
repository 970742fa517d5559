"""Messages that carry an aggregator's verdict on a phase to the clients."""

from typing import Annotated, ClassVar

from pydantic import StringConstraints

from hubbub.messages.base import AGGREGATOR, CLIENT, Message
from hubbub.messages.rounds import Members
from hubbub.messages.shares import Index, Vectors

WrappedKey = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2}){48,2048}$")]


class SumChunk(Message):
    """One chunk of an aggregator's sum over the members; the payload is packed like a share, and encrypted.

    All clients are sent the same ciphertext. Its key is sealed to each of them, and the same in all chunks.
    """

    kind: ClassVar[str] = "sum-chunk"
    senders = AGGREGATOR
    recipients = CLIENT

    members: Members
    vectors: Vectors
    wrapped_key: WrappedKey
    index: Index


class VoidNotice(Message):
    """An aggregator ended the phase without a sum."""

    kind: ClassVar[str] = "void-notice"
    senders = AGGREGATOR
    recipients = CLIENT

    reason: str
