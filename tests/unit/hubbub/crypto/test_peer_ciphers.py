"""What two clients agree on nobody else has, and what one seals to the other opens in its place alone."""

import numpy as np
import pytest

from hubbub.crypto.peer_ciphers import PEER_CIPHERS
from hubbub.errors import PeerError, RejectReason

MINE, OTHER = bytes(range(32)), bytes(range(100, 132))


def test_a_public_key_is_that_of_x25519() -> None:
    """RFC 7748, section 6.1: Bob's."""
    private = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")

    public = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert PEER_CIPHERS.public_key(private).hex() == public


def test_both_sides_agree_and_with_another_key_or_salt_on_something_else() -> None:
    mine, other = PEER_CIPHERS.public_key(MINE), PEER_CIPHERS.public_key(OTHER)

    agreed = PEER_CIPHERS.agree(MINE, other, b"salt")

    assert agreed == PEER_CIPHERS.agree(OTHER, mine, b"salt")
    others = {
        PEER_CIPHERS.agree(MINE, mine, b"salt"),
        PEER_CIPHERS.agree(MINE, other),
        PEER_CIPHERS.agree(OTHER, other),
    }
    assert len({agreed, *others}) == 4


@pytest.mark.parametrize("public", [bytes(32), b"\x01".ljust(32, b"\0"), bytes(31)])
def test_a_public_key_of_low_order_or_another_length_is_refused(public: bytes) -> None:
    with pytest.raises(PeerError) as caught:
        PEER_CIPHERS.agree(MINE, public)

    assert caught.value.reason is RejectReason.MALFORMED


def test_a_key_has_one_stream() -> None:
    first, again, other = (np.empty(100, np.uint8) for _ in range(3))
    for key, out in ((MINE, first), (MINE, again), (OTHER, other)):
        PEER_CIPHERS.expand(key).fill(out)

    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_a_seal_is_the_same_again_and_opens_with_its_key_and_context_alone() -> None:
    sealed = PEER_CIPHERS.seal(MINE, b"secret", b"table", 1, 2)

    assert sealed == PEER_CIPHERS.seal(MINE, b"secret", b"table", 1, 2)
    assert len(sealed) == len(b"secret") + 16
    assert PEER_CIPHERS.open(MINE, sealed, b"table", 1, 2) == b"secret"
    spoilt = bytes([sealed[0] ^ 1]) + sealed[1:]
    for key, what, context in (
        (OTHER, sealed, (b"table", 1, 2)),
        (MINE, sealed, (b"table", 2, 1)),
        (MINE, sealed, (b"other", 1, 2)),
        (MINE, spoilt, (b"table", 1, 2)),
        (MINE, b"", (b"table", 1, 2)),
    ):
        with pytest.raises(PeerError) as caught:
            PEER_CIPHERS.open(key, what, *context)
        assert caught.value.reason is RejectReason.BROKEN_SEAL
