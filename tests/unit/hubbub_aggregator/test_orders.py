"""What proves an order to close: every aggregator's receipts, of which we need not check our own again."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId
from hubbub.messages.rounds import ClosePhase
from hubbub.messages.shares import SignedReceipt
from hubbub.trust import signed as signatures
from hubbub_aggregator import intake
from hubbub_aggregator.events import CloseOrdered
from hubbub_aggregator.intake import read_order
from support.aggregator_scene import CLIENTS, MANIFEST, ME, OTHER, make_receipts
from support.builders import make_envelope
from support.parties import roster_of

RECEIPTS = make_receipts(1)
OURS = frozenset(each for each in RECEIPTS if each.receipt.aggregator == ME)


@pytest.fixture
def checked() -> Iterator[list[PartyId]]:
    """Whose signatures are checked."""
    names: list[PartyId] = []

    def check(roster: object, run: object, number: object, phase: object, receipt: SignedReceipt) -> None:
        names.append(receipt.receipt.aggregator)
        signatures.check_receipt(roster, run, number, phase, receipt)  # type: ignore[arg-type]

    with patch.object(intake, "check_receipt", check):
        yield names


def read(receipts: tuple[SignedReceipt, ...], ours: frozenset[SignedReceipt]) -> CloseOrdered:
    body = ClosePhase(members=CLIENTS, receipts=receipts)
    envelope = make_envelope(body, sender=MANIFEST.coordinator, recipient=ME, manifest=MANIFEST, phase="signs")
    return read_order(roster_of(MANIFEST), envelope, body, ours)


def test_what_we_signed_ourselves_is_not_checked_again(checked: list[PartyId]) -> None:
    order = read(RECEIPTS, OURS)

    assert order.receipts == tuple(each.receipt for each in RECEIPTS)
    assert checked == [OTHER] * len(CLIENTS)


def test_a_process_that_remembers_nothing_checks_all(checked: list[PartyId]) -> None:
    read(RECEIPTS, frozenset())

    assert len(checked) == len(RECEIPTS)


@pytest.mark.parametrize("part", ["signature", "receipt"])
def test_what_only_looks_like_ours_is_checked(part: str) -> None:
    first, second = sorted(OURS, key=lambda each: each.receipt.client)[:2]
    forged = first.model_copy(update={part: getattr(second, part)})

    with pytest.raises(PeerError) as refused:
        read((forged,), OURS)
    assert refused.value.reason is RejectReason.BAD_SIGNATURE
