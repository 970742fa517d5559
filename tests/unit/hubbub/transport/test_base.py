import pytest

from hubbub.errors import TransportError
from hubbub.transport.base import MAX_BODY_BYTES, DeadLetter, Delivery, Outcome, check_size, reject


def test_bodies_are_never_printed() -> None:
    secret = b"share-of-anna"

    shown = f"{Delivery(secret, redelivered=True)!r} {Delivery(secret, redelivered=True)}"
    shown += repr(DeadLetter(secret, "hubbub.inbox.anna", "malformed"))

    assert "anna" not in shown.replace("hubbub.inbox.anna", "")
    assert "<13 bytes>" in shown


def test_rejection_carries_its_reason() -> None:
    verdict = reject("malformed")

    assert (verdict.outcome, verdict.reason) == (Outcome.REJECT, "malformed")


def test_size_limit_is_inclusive() -> None:
    check_size(bytes(MAX_BODY_BYTES))
    with pytest.raises(TransportError, match=str(MAX_BODY_BYTES + 1)):
        check_size(bytes(MAX_BODY_BYTES + 1))
