"""Messages by which a client that lost sums gets the model from a peer; servers see that it does, and no more."""

from typing import Annotated

from pydantic import Field

from hubbub.messages.envelope import CLIENT, Claim, Message
from hubbub.messages.manifest import Digest, Index, Manifest, Name

RoundNumber = Annotated[int, Field(ge=1, lt=2**31)]

MAX_VOUCHERS = 64
PARAMETER_BYTES = 4
MEAN_BYTES = 8


def snapshot_bytes(manifest: Manifest, number: int) -> int:
    """Return the size of the snapshot after a round: the model, then the mean factors, one place a round.

    With momentum, the velocity is between them. There is none yet before the first round.
    """
    vectors = 2 if has_velocity(manifest, number) else 1
    return vectors * manifest.parameters * PARAMETER_BYTES + number * MEAN_BYTES


def has_velocity(manifest: Manifest, number: int) -> bool:
    """Return whether the snapshot after a round has the velocity of the model."""
    return manifest.server_momentum > 0 and number > 0


def count_chunks(manifest: Manifest, number: int) -> int:
    """Count the chunks of the snapshot after a round."""
    return -(-snapshot_bytes(manifest, number) // manifest.chunk_bytes)


class Voucher(Claim):
    """A client's state after a round: the count of released rounds, and a keyed digest of model and history."""

    round: RoundNumber
    released: Index
    model_hmac: Digest


class SnapshotRequested(Message, kind="snapshot-requested", senders=CLIENT, recipients=CLIENT):
    """A client that lost sums asks all peers to vouch for their models since, and one to send its own."""

    after: Annotated[int, Field(ge=-1, lt=2**31)]
    """The last round that the client has applied; -1 if it lacks the run's initial model."""
    giver: Name


class ModelVouched(Message, kind="model-vouched", senders=CLIENT, recipients=CLIENT):
    """A client vouches for the models that it held after the last rounds."""

    vouchers: Annotated[tuple[Voucher, ...], Field(min_length=1, max_length=MAX_VOUCHERS)]


class SnapshotChunk(Message, kind="snapshot-chunk", senders=CLIENT, recipients=CLIENT):
    """A chunk of the snapshot after the envelope's round; the payload is sealed to its recipient."""

    index: Index
