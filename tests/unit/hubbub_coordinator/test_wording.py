"""What people are told of a party that refuses, fails or does not obey."""

from __future__ import annotations

from hubbub.errors import Code, RejectReason
from hubbub.ids import PartyId
from hubbub_coordinator.reasons import tell_declined, tell_failure, tell_refusal

CLINIC = PartyId("clinic-a")


def test_a_refusal_names_party_and_code_and_says_where_to_look() -> None:
    assert tell_refusal(CLINIC, Code.POLICY_STRATEGY) == (
        "clinic-a refused the run (policy-strategy): its policy does not allow the strategy. "
        "Its owner's log says more"
    )


def test_so_does_a_party_that_leaves() -> None:
    assert tell_failure(CLINIC, Code.DISK_LOST) == (
        "clinic-a left the run (disk-lost): it has lost its journal and its keys for this run. "
        "Its owner's log says more"
    )


def test_a_reason_that_no_aggregator_has_for_an_order_is_told_all_the_same() -> None:
    told = tell_declined(CLINIC, "signs", RejectReason.NONZERO_PADDING)

    assert told.startswith("clinic-a refused the order on signs (nonzero-padding): ")
