import pytest

from hubbub.errors import TransportError
from hubbub.transport.base import MAX_BODY_BYTES, DeadLetter, Delivery, TokenBucket, check_size


def test_bodies_are_never_printed() -> None:
    secret = b"share-of-anna"

    shown = f"{Delivery(secret, redelivered=True)!r} {Delivery(secret, redelivered=True)}"
    shown += repr(DeadLetter(secret, "hubbub.inbox.anna", "malformed"))

    assert "anna" not in shown.replace("hubbub.inbox.anna", "")
    assert "<13 bytes>" in shown


def test_size_limit_is_inclusive() -> None:
    check_size(bytes(MAX_BODY_BYTES))
    with pytest.raises(TransportError, match=str(MAX_BODY_BYTES + 1)):
        check_size(bytes(MAX_BODY_BYTES + 1))


def test_a_bucket_lets_a_burst_pass_and_then_what_comes_back_with_time() -> None:
    bucket = TokenBucket(10, per_s=2)

    attempts = [(10, 100), (1, 100.4), (1, 100.5), (11, 1_000), (10, 1_000)]
    # No more than a burst comes back, and what is refused costs nothing.
    assert [bucket.take(amount, now_s) for amount, now_s in attempts] == [True, False, True, False, True]
