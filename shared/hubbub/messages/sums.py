"""Messages that carry an aggregator's verdict on a phase to the clients."""

from typing import ClassVar

from hubbub.messages.base import AGGREGATOR, CLIENT, Message
from hubbub.messages.rounds import Members
from hubbub.messages.shares import Index, Vectors


class SumChunk(Message):
    """One chunk of an aggregator's sum over the members; the payload is packed like a share."""

    kind: ClassVar[str] = "sum-chunk"
    senders = AGGREGATOR
    recipients = CLIENT

    members: Members
    vectors: Vectors
    index: Index


class VoidNotice(Message):
    """An aggregator ended the phase without a sum."""

    kind: ClassVar[str] = "void-notice"
    senders = AGGREGATOR
    recipients = CLIENT

    reason: str
