"""Messages that carry share sets, and what an aggregator says of them."""

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, StringConstraints

from hubbub.errors import RejectReason
from hubbub.ids import SET_ID_PATTERN, SetId
from hubbub.messages.base import AGGREGATOR, CLIENT, COORDINATOR, Claim, Message
from hubbub.messages.keys import Signature
from hubbub.messages.manifest import Digest, Name
from hubbub.messages.traffic import VectorName
from hubbub.protocol.encoding import DENSE, WHOLE_BITS, Encoding
from hubbub.protocol.layout import Vector
from hubbub.protocol.residues import is_modulus

ShareSetId = Annotated[SetId, StringConstraints(pattern=SET_ID_PATTERN)]
Index = Annotated[int, Field(ge=0, lt=2**31)]
Weight = Annotated[int, Field(ge=1, lt=2**53)]

MAX_RESENDS = 3
"""How often a client sends an aggregator its set of a phase again.

One for a damaged disk, one for a request that a restart repeats, one to spare. A corrupt aggregator gets no more
than three further copies of what it has.
"""


def _check_modulus(m: int) -> int:
    if not is_modulus(m):
        raise ValueError("there is no such ring")
    return m


class VectorClaim(Claim):
    """A vector as its sender declares it: name, n and m."""

    name: VectorName
    length: Annotated[int, Field(ge=0, lt=2**40)]
    modulus: Annotated[int, AfterValidator(_check_modulus)]

    @property
    def vector(self) -> Vector:
        """The same, as the protocol speaks of it."""
        return Vector(self.name, self.length, self.modulus)


Vectors = Annotated[tuple[VectorClaim, ...], Field(min_length=1, max_length=8)]


def declare(vectors: tuple[Vector, ...]) -> tuple[VectorClaim, ...]:
    """Declare vectors in a message."""
    return tuple(VectorClaim(name=v.name, length=v.length, modulus=v.modulus) for v in vectors)


class ShareChunk(Message):
    """One chunk of the share set that a client deals to an aggregator; the payload is the packed share, sealed.

    The transcript is a keyed digest of all that the set's content depends on and others sent. Aggregators cannot
    read it, and add only sets in which it is equal.
    """

    kind: ClassVar[str] = "share-chunk"
    encoding: ClassVar[Encoding] = WHOLE_BITS
    senders = CLIENT
    recipients = AGGREGATOR

    set_id: ShareSetId
    vectors: Vectors
    weight: Weight = 1
    transcript: Digest
    index: Index


class DenseShareChunk(ShareChunk):
    """The same on the compact wire: residues are packed densely."""

    kind: ClassVar[str] = "dense-share-chunk"
    encoding: ClassVar[Encoding] = DENSE


class ShareSeed(Message):
    """A whole share set, as the seed that it follows from; the payload is the seed, sealed."""

    kind: ClassVar[str] = "share-seed"
    senders = CLIENT
    recipients = AGGREGATOR

    set_id: ShareSetId
    vectors: Vectors
    weight: Weight = 1
    transcript: Digest


class Receipt(Claim):
    """An aggregator's word that it holds a complete, well-formed share set of a client."""

    aggregator: Name
    client: Name
    set_id: ShareSetId
    vectors: Vectors
    transcript: Digest


class SignedReceipt(Claim):
    """A receipt that others can check: the signature is over run, round and phase too."""

    receipt: Receipt
    signature: Signature


class SetReceived(Message):
    """An aggregator gives the coordinator its receipt."""

    kind: ClassVar[str] = "set-received"
    senders = AGGREGATOR
    recipients = COORDINATOR

    receipt: SignedReceipt


class SetRefused(Message):
    """An aggregator will not add a client's share set: a chunk of it was broken."""

    kind: ClassVar[str] = "set-refused"
    senders = AGGREGATOR
    recipients = COORDINATOR

    client: Name
    set_id: ShareSetId
    reason: RejectReason


class ResendSet(Message):
    """An aggregator's disk has damaged or lost what a client sent it, and it asks for the same set again."""

    kind: ClassVar[str] = "resend-set"
    senders = AGGREGATOR
    recipients = CLIENT

    set_id: ShareSetId
