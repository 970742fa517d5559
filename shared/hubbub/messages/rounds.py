"""Messages of a round: the coordinator's orders, the parties' reports, and the sums that aggregators release."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from hubbub.errors import RejectReason
from hubbub.messages.envelope import AGGREGATOR, CLIENT, COORDINATOR, Claim, Message
from hubbub.messages.manifest import MAX_METRICS, Digest, Name
from hubbub.messages.runs import Signature
from hubbub.messages.shares import Index, SignedReceipt, Traffic, Vectors
from hubbub.protocol.layout import DENSE, WHOLE_BITS, Encoding
from hubbub.protocol.metrics import NAME_PATTERN as METRIC_NAME_PATTERN

Members = Annotated[tuple[Name, ...], Field(min_length=1)]


class RoundOpened(Message):
    """The coordinator orders a client to train and take part in this round."""

    kind: ClassVar[str] = "round-opened"
    senders = COORDINATOR
    recipients = CLIENT

    attended: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """The last round that this client took part in, by receipts of every aggregator or its own report; 0 if none.

    A client whose own state is behind this holds an old copy of it.
    """


class ClosePhase(Message):
    """The coordinator orders an aggregator to release the sum over these members."""

    kind: ClassVar[str] = "close-phase"
    senders = COORDINATOR
    recipients = AGGREGATOR

    members: Members
    receipts: tuple[SignedReceipt, ...]


class VoidPhase(Message):
    """The coordinator orders an aggregator to end this phase without a sum."""

    kind: ClassVar[str] = "void-phase"
    senders = COORDINATOR
    recipients = AGGREGATOR


class PhaseReleased(Message):
    """An aggregator has released its sum over these members, once and for all."""

    kind: ClassVar[str] = "phase-released"
    senders = AGGREGATOR
    recipients = COORDINATOR

    members: Members
    vectors: Vectors
    traffic: tuple[Traffic, ...]


class PhaseVoided(Message):
    """An aggregator has ended this phase without a sum, once and for all."""

    kind: ClassVar[str] = "phase-voided"
    senders = AGGREGATOR
    recipients = COORDINATOR


class OrderRefused(Message):
    """An aggregator refuses an order to close or void, for this reason; the phase stays as it was."""

    kind: ClassVar[str] = "order-refused"
    senders = AGGREGATOR
    recipients = COORDINATOR

    reason: RejectReason


class RoundApplied(Message):
    """A client has applied the round's sum.

    The digest of the model is keyed by the group secret: to whoever lacks the secret it shows whether two clients
    hold the same model, and nothing else.
    """

    kind: ClassVar[str] = "round-applied"
    senders = CLIENT
    recipients = COORDINATOR

    model_hmac: Digest
    traffic: tuple[Traffic, ...]


class ScoreClaim(Claim):
    """A metric over the members of a scores phase, computed from their sum: all clients compute the same."""

    name: Annotated[str, StringConstraints(pattern=METRIC_NAME_PATTERN)]
    value: Annotated[float, Field(allow_inf_nan=False)]


class RoundScored(Message):
    """A client is done with the round's scores, and reports what it computed from their sum, if there is one."""

    kind: ClassVar[str] = "round-scored"
    senders = CLIENT
    recipients = COORDINATOR

    scores: Annotated[tuple[ScoreClaim, ...], Field(max_length=MAX_METRICS)]
    traffic: tuple[Traffic, ...]


class RoundDropped(Message):
    """A client knows from every aggregator that the round is void, and has dropped its update."""

    kind: ClassVar[str] = "round-dropped"
    senders = CLIENT
    recipients = COORDINATOR

    traffic: tuple[Traffic, ...]


WrappedKey = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2}){48,2048}$")]


class ReleaseClaim(Claim):
    """An aggregator's statement that it has added these members' shares, all of one transcript, and no others."""

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
    """Signature of the `ReleaseClaim`."""
    wrapped_key: WrappedKey
    index: Index


class PartialChunk(Message):
    """One chunk of an aggregator's sum for the combiner, its only release. The payload is sealed."""

    kind: ClassVar[str] = "partial-chunk"
    encoding: ClassVar[Encoding] = DENSE
    senders = AGGREGATOR
    recipients = AGGREGATOR

    members: Members
    vectors: Vectors
    transcript: Digest
    signature: Signature
    """Signature of the `ReleaseClaim`."""
    index: Index


class MaskedChunk(Message):
    """One chunk of the sum of all aggregators' sums; the payload is masked, and only clients can read it."""

    kind: ClassVar[str] = "masked-chunk"
    encoding: ClassVar[Encoding] = DENSE
    senders = AGGREGATOR
    recipients = CLIENT

    members: Members
    vectors: Vectors
    transcript: Digest
    signatures: Annotated[tuple[Signature, ...], Field(min_length=2)]
    """Signatures of every aggregator's `ReleaseClaim`, in the manifest's order."""
    index: Index


class VoidNotice(Message):
    """An aggregator ended the phase without a sum."""

    kind: ClassVar[str] = "void-notice"
    senders = AGGREGATOR
    recipients = CLIENT
