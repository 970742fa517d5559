"""The proof of an order to close: every aggregator's receipts, of which we need not check our own again."""

import pytest

from hubbub.errors import PeerError, RejectReason
from hubbub.messages.rounds import ClosePhase
from hubbub.messages.shares import SignedReceipt
from hubbub_aggregator.events import CloseOrdered
from hubbub_aggregator.intake import read_order
from support.aggregator_scene import CLIENTS, MANIFEST, ME, make_receipts
from support.builders import make_envelope
from support.parties import roster_of

RECEIPTS = (*make_receipts(1, CLIENTS[:1]), *make_receipts(1, CLIENTS[1:]))
OURS = frozenset(each for each in RECEIPTS if each.receipt.aggregator == ME)


def read(receipts: tuple[SignedReceipt, ...], ours: frozenset[SignedReceipt] = frozenset()) -> CloseOrdered:
    body = ClosePhase(members=CLIENTS, receipts=receipts)
    envelope = make_envelope(body, sender=MANIFEST.coordinator, recipient=ME, manifest=MANIFEST, phase="signs")
    return read_order(roster_of(MANIFEST), envelope, body, ours)


def test_all_receipts_are_checked_by_a_process_that_remembers_none() -> None:
    assert read(RECEIPTS).receipts == read(RECEIPTS, OURS).receipts == tuple(each.receipt for each in RECEIPTS)


@pytest.mark.parametrize("part", ["signature", "receipt"])
def test_what_we_signed_ourselves_is_not_checked_again_and_what_only_looks_like_it_is(part: str) -> None:
    """A false receipt that we remember to have signed is taken, so no signature was looked at."""
    first, second = (each for each in RECEIPTS if each in OURS)
    forged = first.model_copy(update={part: getattr(second, part)})
    with pytest.raises(PeerError) as refused:
        read((forged,), OURS)
    assert refused.value.reason is RejectReason.BAD_SIGNATURE
    assert read((forged,), OURS | {forged}).receipts == (forged.receipt,)
