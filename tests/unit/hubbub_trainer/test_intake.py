"""Messages that a trainer takes: of a phase only from its aggregators, and of the right length."""

from typing import Any

import pytest

from hubbub.crypto.sealing import CHUNK_OVERHEAD, Kem, seal_overhead
from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId
from hubbub.messages.rounds import VoidNotice
from hubbub.messages.shares import declare
from hubbub.messages.snapshots import ModelVouched, SnapshotChunk, Voucher
from hubbub.protocol.layout import Vector
from hubbub_trainer.events import PeerVouched, SnapshotArrived, SumArrived
from hubbub_trainer.intake import read_snapshot, read_sum, read_void, read_vouchers
from support.builders import TRANSCRIPT, WRAPPED_KEY, make_envelope, make_manifest, make_sum_chunk
from support.parties import identity_of, roster_of, sign_sum

MANIFEST = make_manifest(strategy="plaintext-union", parameters=100)
FIRST, SECOND = MANIFEST.aggregators
MARKS, SIGNS = (
    (Vector("union", 100, 2),),
    (Vector("signs", 4, 7), Vector("factors", 1, 2**32), Vector("tags", 3, 2**64)),
)


def read(
    sender: PartyId,
    phase: str,
    vectors: tuple[Vector, ...],
    packed: int,
    overhead: int = CHUNK_OVERHEAD,
    signer: PartyId | None = None,
) -> SumArrived:
    """Read a sum that is so many bytes long, and so many more for its encryption."""
    unsigned = make_sum_chunk(MANIFEST, vectors=declare(vectors))
    body = sign_sum(identity_of(MANIFEST, signer or sender), MANIFEST.run_id, unsigned, phase=phase)
    payload, client = bytes(packed + overhead), MANIFEST.clients[0]
    envelope = make_envelope(
        body, sender=sender, recipient=client, manifest=MANIFEST, phase=phase, payload=payload
    )
    return read_sum(roster_of(MANIFEST), MANIFEST, envelope, body, 500, 0.0)


def test_a_sum_is_taken_from_who_takes_part_in_the_phase() -> None:
    assert read(FIRST, "union", MARKS, 13).wire_bytes == {"union": 500}
    for aggregator in (FIRST, SECOND):
        arrived = read(aggregator, "signs", SIGNS, 2 + 4 + 24)
        assert (arrived.aggregator, arrived.vectors) == (aggregator, SIGNS)
        assert (arrived.wrapped_key, arrived.transcript) == (bytes.fromhex(WRAPPED_KEY), TRANSCRIPT)
        assert arrived.wire_bytes == {"signs": 472, "factors": 4, "tags": 24}


@pytest.mark.parametrize(("members", "is_taken"), [(3, True), (2, False)])
def test_a_release_over_fewer_members_than_the_strategys_threshold_is_refused(
    members: int, *, is_taken: bool
) -> None:
    """The manifest would be content with two of five, and so would a lying server of bonawitz."""
    manifest = make_manifest(clients=5, min_clients=2, strategy="bonawitz", parameters=100)
    aggregator, vectors = manifest.aggregators[0], (Vector("masked", 0, 2**32),)
    chunk = make_sum_chunk(manifest, vectors=declare(vectors))
    unsigned = chunk.model_copy(update={"members": manifest.clients[:members]})
    body = sign_sum(identity_of(manifest, aggregator), manifest.run_id, unsigned, phase="masked")
    envelope = make_envelope(
        body,
        sender=aggregator,
        recipient=manifest.clients[0],
        manifest=manifest,
        phase="masked",
        payload=bytes(CHUNK_OVERHEAD),
    )

    if is_taken:
        assert len(read_sum(roster_of(manifest), manifest, envelope, body, 500, 0.0).members) == members
        return
    with pytest.raises(PeerError) as caught:
        read_sum(roster_of(manifest), manifest, envelope, body, 500, 0.0)
    assert caught.value.reason is RejectReason.TOO_FEW_MEMBERS


MOST = 3 * MANIFEST.protocol_parameters.kept
"""Indices that the cohort can choose."""


def signs_of(length: int) -> tuple[Vector, ...]:
    return (Vector("signs", length, 7), *SIGNS[1:])


def test_a_release_may_be_as_large_as_the_cohort_can_choose() -> None:
    read(FIRST, "signs", signs_of(MOST), (3 * MOST + 7) // 8 + 4 + 24)


@pytest.mark.parametrize(
    ("given", "reason", "why"),
    [
        ((SECOND, "union", MARKS, 13), RejectReason.WRONG_SENDER, "aggregator-2 sends no sum-chunk of union"),
        (
            (FIRST, "signs", SIGNS, 2 + 4 + 24, CHUNK_OVERHEAD, SECOND),
            RejectReason.BAD_SIGNATURE,
            "not signed by aggregator-1's key",
        ),
        (
            (FIRST, "signs", signs_of(MOST + 1), 99),
            RejectReason.WRONG_LENGTH,
            "31 elements where at most 30 are possible",
        ),
        ((FIRST, "union", MARKS, 12), RejectReason.WRONG_LENGTH, "holds 28 bytes where its vectors need 29"),
        ((FIRST, "union", MARKS, 14), RejectReason.WRONG_LENGTH, "holds 30 bytes where its vectors need 29"),
        ((FIRST, "union", MARKS, 13, 0), RejectReason.WRONG_LENGTH, "holds 13 bytes where its vectors need 29"),
        ((FIRST, "union", MARKS, 0, 0), RejectReason.WRONG_LENGTH, "holds 0 bytes where its vectors need 29"),
    ],
    ids=["takes no part", "another signer", "too large", "too short", "too long", "no overhead", "empty"],
)
def test_any_other_sum_is_refused(given: tuple[Any, ...], reason: RejectReason, why: str) -> None:
    with pytest.raises(PeerError, match=why) as caught:
        read(*given)
    assert caught.value.reason is reason


@pytest.mark.parametrize("aggregator", [FIRST, SECOND])
def test_a_void_is_taken_from_everybody_for_it_ends_the_round(aggregator: PartyId) -> None:
    notice, client = VoidNotice(), MANIFEST.clients[0]
    envelope = make_envelope(notice, sender=aggregator, recipient=client, manifest=MANIFEST, phase="union")
    assert read_void(MANIFEST, envelope).aggregator == aggregator


# From peers -------------------------------------------------------------------------------------------------

ME, PEER, _ = MANIFEST.clients
SEAL = seal_overhead(Kem.X25519)
LAST_ROUND = MANIFEST.rounds + MANIFEST.max_void_rounds


def test_a_peer_vouches_once_for_each_round() -> None:
    first, second = (Voucher(round=number, released=1, model_hmac="4d" * 32) for number in (1, 2))
    other = first.model_copy(update={"model_hmac": "4e" * 32})
    body = ModelVouched(vouchers=(first, second))
    envelope = make_envelope(body, sender=PEER, recipient=ME, manifest=MANIFEST)
    assert read_vouchers(envelope, body) == PeerVouched(client=PEER, vouchers=(first, second))
    with pytest.raises(PeerError, match="client-2 vouches twice") as caught:
        read_vouchers(envelope, ModelVouched(vouchers=(first, second, other)))
    assert caught.value.reason is RejectReason.CONTRADICTION


def read_chunk(index: int, size: int, number: int = 1) -> SnapshotArrived:
    body = SnapshotChunk(index=index)
    envelope = make_envelope(
        body, sender=PEER, recipient=ME, manifest=MANIFEST, round_number=number, payload=bytes(size)
    )
    return read_snapshot(MANIFEST, Kem.X25519, envelope, body)


@pytest.mark.parametrize("number", [1, LAST_ROUND])
def test_a_chunk_of_a_snapshot_is_as_long_as_it_should_be(number: int) -> None:
    """A hundred parameters of 4 bytes, and 8 bytes a round."""
    assert read_chunk(0, 400 + 8 * number + SEAL, number) == SnapshotArrived(client=PEER, number=number, index=0)


@pytest.mark.parametrize(
    ("index", "size", "number", "reason"),
    [
        *((0, size, 1, RejectReason.WRONG_LENGTH) for size in (408, 400 + SEAL, 407 + SEAL, 416 + SEAL, 0)),
        (1, 408 + SEAL, 1, RejectReason.WRONG_LENGTH),
        # Else a corrupt peer could fill the disk with models of ever later rounds.
        *((0, 400 + SEAL, number, RejectReason.OVER) for number in (0, LAST_ROUND + 1, 2**30)),
    ],
)
def test_another_length_or_place_or_a_round_that_the_run_cannot_have_is_refused(
    index: int, size: int, number: int, reason: RejectReason
) -> None:
    with pytest.raises(PeerError) as caught:
        read_chunk(index, size, number)
    assert caught.value.reason is reason
