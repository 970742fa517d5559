"""Messages of a round: the coordinator's orders, the parties' reports, and the sums that aggregators release."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from hubbub.errors import RejectReason
from hubbub.messages.envelope import AGGREGATOR, CLIENT, COORDINATOR, Claim, Message, WireMark
from hubbub.messages.manifest import MAX_METRICS, Digest, Finite, Index, Name, Signature
from hubbub.messages.shares import SignedReceipt, Traffic, Vectors
from hubbub.protocol.layout import DENSE, WHOLE_BITS, Encoding
from hubbub.protocol.metrics import NAME_PATTERN as METRIC_NAME_PATTERN

Members = Annotated[tuple[Name, ...], Field(min_length=1)]


class RoundOpened(Message, kind="round-opened", senders=COORDINATOR, recipients=CLIENT):
    """The coordinator orders a client to train and take part in this round."""

    attended: Index = 0
    """The last round that this client took part in, by receipts of every aggregator or its own report; 0 if none.

    A client whose own state is behind this holds an old copy of it.
    """


class ClosePhase(Message, kind="close-phase", senders=COORDINATOR, recipients=AGGREGATOR):
    """The coordinator orders an aggregator to release the sum over these members."""

    members: Members
    receipts: Annotated[tuple[SignedReceipt, ...], WireMark.TABLE]


class VoidPhase(Message, kind="void-phase", senders=COORDINATOR, recipients=AGGREGATOR):
    """The coordinator orders an aggregator to end this phase without a sum."""


class PhaseReleased(Message, kind="phase-released", senders=AGGREGATOR, recipients=COORDINATOR):
    """An aggregator has released its sum over these members, once and for all."""

    members: Members
    vectors: Vectors
    traffic: tuple[Traffic, ...]


class PhaseVoided(Message, kind="phase-voided", senders=AGGREGATOR, recipients=COORDINATOR):
    """An aggregator has ended this phase without a sum, once and for all."""


class OrderRefused(Message, kind="order-refused", senders=AGGREGATOR, recipients=COORDINATOR):
    """An aggregator refuses an order to close or void, for this reason; the phase stays as it was."""

    reason: RejectReason


class RoundApplied(Message, kind="round-applied", senders=CLIENT, recipients=COORDINATOR):
    """A client has applied the round's sum.

    The digest of the model is keyed by the group secret: to whoever lacks the secret it shows whether two clients
    hold the same model, and nothing else.
    """

    model_hmac: Digest
    traffic: tuple[Traffic, ...]


class ScoreClaim(Claim):
    """A metric over the members of a scores phase, computed from their sum: all clients compute the same."""

    name: Annotated[str, StringConstraints(pattern=METRIC_NAME_PATTERN)]
    value: Finite


class RoundScored(Message, kind="round-scored", senders=CLIENT, recipients=COORDINATOR):
    """A client is done with the round's scores, and reports what it computed from their sum, if there is one."""

    scores: Annotated[tuple[ScoreClaim, ...], Field(max_length=MAX_METRICS)]
    traffic: tuple[Traffic, ...]


class RoundDropped(Message, kind="round-dropped", senders=CLIENT, recipients=COORDINATOR):
    """A client knows from every aggregator that the round is void, and has dropped its update."""

    traffic: tuple[Traffic, ...]


class ReleaseClaim(Claim):
    """An aggregator's statement that it has added these members' shares, all of one transcript, and no others."""

    aggregator: Name
    members: Members
    vectors: Vectors
    transcript: Digest


class SummedChunk(Message, senders=AGGREGATOR):
    """One chunk of a sum over the members, with what its `ReleaseClaim` says."""

    members: Members
    vectors: Vectors
    transcript: Digest


class SumChunk(SummedChunk, kind="sum-chunk", recipients=CLIENT):
    """One chunk of an aggregator's sum; the payload is packed like a share, and encrypted.

    All clients are sent the same ciphertext. Its key is sealed to each of them, and the same in all chunks.
    """

    encoding: ClassVar[Encoding] = WHOLE_BITS

    signature: Signature
    """Signature of the `ReleaseClaim`."""
    wrapped_key: Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2}){48,2048}$"), WireMark.HEX]
    index: Index


class PartialChunk(SummedChunk, kind="partial-chunk", recipients=AGGREGATOR):
    """One chunk of an aggregator's sum for the combiner, its only release. The payload is sealed."""

    encoding: ClassVar[Encoding] = DENSE

    signature: Signature
    """Signature of the `ReleaseClaim`."""
    index: Index


class MaskedChunk(SummedChunk, kind="masked-chunk", recipients=CLIENT):
    """One chunk of the sum of all aggregators' sums; the payload is masked, and only clients can read it."""

    encoding: ClassVar[Encoding] = DENSE

    signatures: Annotated[tuple[Signature, ...], Field(min_length=2)]
    """Signatures of every aggregator's `ReleaseClaim`, in the manifest's order."""
    index: Index


class VoidNotice(Message, kind="void-notice", senders=AGGREGATOR, recipients=CLIENT):
    """An aggregator ended the phase without a sum."""
