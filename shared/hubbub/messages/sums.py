"""Messages that carry an aggregator's verdict on a phase to the clients."""

from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from hubbub.messages.base import AGGREGATOR, CLIENT, Claim, Message
from hubbub.messages.keys import Signature
from hubbub.messages.manifest import Digest, Name
from hubbub.messages.rounds import Members
from hubbub.messages.shares import Index, Vectors
from hubbub.protocol.encoding import DENSE, WHOLE_BITS, Encoding

WrappedKey = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2}){48,2048}$")]


class Release(Claim):
    """An aggregator's word that it has added these members' shares, all of one transcript, and adds no others."""

    aggregator: Name
    members: Members
    vectors: Vectors
    transcript: Digest


class SumChunk(Message):
    """One chunk of an aggregator's sum over the members; the payload is packed like a share, and encrypted.

    All clients are sent the same ciphertext. Its key is sealed to each of them, and the same in all chunks.
    """

    kind: ClassVar[str] = "sum-chunk"
    encoding: ClassVar[Encoding] = WHOLE_BITS
    senders = AGGREGATOR
    recipients = CLIENT

    members: Members
    vectors: Vectors
    transcript: Digest
    signature: Signature
    """Of the release that this is of."""
    wrapped_key: WrappedKey
    index: Index


class PartialChunk(Message):
    """One chunk of an aggregator's sum on its way to the combiner: its one release. The payload is sealed."""

    kind: ClassVar[str] = "partial-chunk"
    encoding: ClassVar[Encoding] = DENSE
    senders = AGGREGATOR
    recipients = AGGREGATOR

    members: Members
    vectors: Vectors
    transcript: Digest
    signature: Signature
    """Of the release that this is of."""
    index: Index


class MaskedChunk(Message):
    """One chunk of the sum of all aggregators' sums; the payload is masked, and says nothing but to clients."""

    kind: ClassVar[str] = "masked-chunk"
    encoding: ClassVar[Encoding] = DENSE
    senders = AGGREGATOR
    recipients = CLIENT

    members: Members
    vectors: Vectors
    transcript: Digest
    signatures: Annotated[tuple[Signature, ...], Field(min_length=2)]
    """Of every aggregator's release, in the manifest's order."""
    index: Index


class VoidNotice(Message):
    """An aggregator ended the phase without a sum."""

    kind: ClassVar[str] = "void-notice"
    senders = AGGREGATOR
    recipients = CLIENT
