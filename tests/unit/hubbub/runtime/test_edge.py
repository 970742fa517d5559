"""How much of what one client sends another is looked at."""

import pytest

from hubbub.runtime import message_checks
from hubbub.runtime.message_checks import PeerLimits
from hubbub.transport.base import Delivery
from hubbub_trainer.policy import Policy

LARGEST_BYTES = 4 * 10**8
"""A model of 10^8 parameters."""


@pytest.mark.parametrize("chunk_bytes", [8 * 2**20, 2**20, 2**16])
def test_all_snapshots_of_the_largest_model_that_a_peer_sends_in_a_run_pass_at_once(chunk_bytes: int) -> None:
    limits, sealed = PeerLimits(), Delivery(bytes(chunk_bytes + 2_000), redelivered=False, user="anna")
    few = Delivery(bytes(2_000), redelivered=False, user="anna")
    chunks = Policy(roster_sha256="0" * 64).max_snapshots_per_peer * -(-LARGEST_BYTES // chunk_bytes)

    assert all(limits.admit(sealed, now_s=1.0) for _ in range(chunks))
    # Contributions, confirmations, requests and vouchers beside them.
    assert all(limits.admit(few, now_s=1.0) for _ in range(1_000))


@pytest.mark.parametrize("size", [1, 2**20])
def test_one_sender_is_limited_in_messages_and_bytes_and_another_is_not(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_checks, "PEERS_MAX_LENGTH", 100)
    monkeypatch.setattr(message_checks, "PEERS_MAX_BYTES", 50 * 2**20)
    limits = PeerLimits()
    anna, bert = (Delivery(bytes(size), redelivered=False, user=user) for user in ("anna", "bert"))

    admitted = [limits.admit(anna, now_s=1.0) for _ in range(200)]

    assert sum(admitted) == (100 if size == 1 else 50)
    assert limits.admit(bert, now_s=1.0)
    assert limits.admit(anna, now_s=2.0), "it comes back with time"
