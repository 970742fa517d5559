"""What a trainer takes from whom: a phase belongs to the aggregators that take part in it."""

import pytest

from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId
from hubbub.messages.shares import declare
from hubbub.messages.sums import SumChunk, VoidNotice
from hubbub.protocol.layout import Vector
from hubbub_trainer.events import SumArrived
from hubbub_trainer.intake import read_sum, read_void
from support.builders import make_envelope, make_manifest

MANIFEST = make_manifest(strategy="plaintext-union", parameters=100)
FIRST, SECOND = MANIFEST.aggregators
MARKS, SIGNS = (Vector("union", 100, 2),), (Vector("signs", 4, 7), Vector("factors", 1, 2**32))


def read(sender: PartyId, phase: str, vectors: tuple[Vector, ...], payload: bytes) -> SumArrived:
    body = SumChunk(members=MANIFEST.clients, vectors=declare(vectors), index=0)
    envelope = make_envelope(
        body, sender=sender, recipient=MANIFEST.clients[0], manifest=MANIFEST, phase=phase, payload=payload
    )
    return read_sum(MANIFEST, envelope, body, 500)


def test_a_sum_is_taken_from_who_takes_part_in_the_phase() -> None:
    assert read(FIRST, "union", MARKS, bytes(13)).wire_bytes == {"union": 500}
    for aggregator in (FIRST, SECOND):
        arrived = read(aggregator, "signs", SIGNS, bytes(2 + 4))
        assert (arrived.aggregator, arrived.vectors) == (aggregator, SIGNS)
        assert arrived.wire_bytes == {"signs": 496, "factors": 4}


def test_a_sum_of_who_takes_no_part_in_the_phase_is_refused() -> None:
    with pytest.raises(PeerError, match="aggregator-2 takes no part in union") as caught:
        read(SECOND, "union", MARKS, bytes(13))
    assert caught.value.reason is RejectReason.WRONG_SENDER


def test_a_release_larger_than_the_cohort_can_choose_is_refused() -> None:
    most = 3 * MANIFEST.protocol_parameters.kept
    read(FIRST, "signs", (Vector("signs", most, 7), SIGNS[1]), bytes((3 * most + 7) // 8 + 4))
    with pytest.raises(PeerError) as caught:
        read(FIRST, "signs", (Vector("signs", most + 1, 7), SIGNS[1]), bytes(99))
    assert caught.value.reason is RejectReason.WRONG_LENGTH


@pytest.mark.parametrize("aggregator", [FIRST, SECOND])
def test_a_void_is_taken_from_everybody_for_it_ends_the_round(aggregator: PartyId) -> None:
    envelope = make_envelope(
        VoidNotice(reason="somebody is missing"),
        sender=aggregator,
        recipient=MANIFEST.clients[0],
        manifest=MANIFEST,
        phase="union",
    )
    assert read_void(MANIFEST, envelope).aggregator == aggregator
