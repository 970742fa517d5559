import copy
import pickle

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from hubbub.crypto.signing import KEY_BYTES, SIGNATURE_BYTES, SigningKey, check_public_key, verify
from hubbub.errors import ConfigurationError, LocalError

KEY = SigningKey.from_bytes(bytes(range(32)))
MESSAGE = b"the members are client-1 and client-2"
SIGNATURE = KEY.sign("order", MESSAGE)

P = 2**255 - 19
# The y of a point of order 8; its negative is the other one.
EIGHTH = int.from_bytes(
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"
)
# Every encoding of the eight points of small order, those with y ≥ p and those with a sign for x = 0 as well.
SMALL_ORDER = [
    (y | sign << 255).to_bytes(32, "little")
    for y in (0, 1, P - 1, P, P + 1, EIGHTH, P - EIGHTH)
    for sign in (0, 1)
]


def flipped(data: bytes, bit: int) -> bytes:
    return (int.from_bytes(data, "big") ^ 1 << bit % (8 * len(data))).to_bytes(len(data), "big")


@given(message=st.binary(max_size=200), domain=st.text("aé/ ", max_size=20))
def test_what_was_signed_verifies(message: bytes, domain: str) -> None:
    signature = KEY.sign(domain, message)

    assert len(signature) == SIGNATURE_BYTES
    assert verify(KEY.public, signature, domain, message)


def test_what_is_signed_is_the_framed_protocol_domain_and_message() -> None:
    signed = b"".join(len(part).to_bytes(8, "big") + part for part in (b"hubbub/1", b"order", MESSAGE))

    Ed25519PublicKey.from_public_bytes(KEY.public).verify(SIGNATURE, signed)


@given(bit=st.integers(0, 8 * SIGNATURE_BYTES - 1))
def test_a_flipped_bit_anywhere_is_refused(bit: int) -> None:
    assert not verify(KEY.public, flipped(SIGNATURE, bit), "order", MESSAGE)
    assert not verify(KEY.public, SIGNATURE, "order", flipped(MESSAGE, bit))
    assert not verify(flipped(KEY.public, bit), SIGNATURE, "order", MESSAGE)


def test_a_signature_for_one_domain_is_none_for_another() -> None:
    assert not verify(KEY.public, SIGNATURE, "receipt", MESSAGE)
    # Nor can the boundary between domain and message be moved.
    assert not verify(KEY.public, KEY.sign("ab", b"c"), "a", b"bc")


def test_another_party_did_not_sign() -> None:
    assert not verify(SigningKey.generate().public, SIGNATURE, "order", MESSAGE)


@pytest.mark.parametrize("size", [0, 1, 31, 33, 64])
def test_a_key_of_another_length_verifies_nothing_and_is_refused(size: int) -> None:
    assert not verify(bytes(size), SIGNATURE, "order", MESSAGE)
    with pytest.raises(ConfigurationError, match=f"has {size} bytes instead of 32"):
        check_public_key(bytes(size))


@pytest.mark.parametrize("size", [0, 1, 32, 63, 65, 128])
def test_a_signature_of_another_length_is_refused(size: int) -> None:
    assert not verify(KEY.public, (SIGNATURE + SIGNATURE)[:size], "order", MESSAGE)


def test_s_plus_the_order_of_the_group_is_refused() -> None:
    order = 2**252 + 27742317777372353535851937790883648493
    larger = (int.from_bytes(SIGNATURE[32:], "little") + order).to_bytes(32, "little")

    assert not verify(KEY.public, SIGNATURE[:32] + larger, "order", MESSAGE)


def test_under_a_key_of_small_order_nothing_verifies(subtests: pytest.Subtests) -> None:
    for public in SMALL_ORDER:
        with subtests.test(public.hex()):
            # R is the neutral point and s = 0: fits every message whose hash is a multiple of the key's order.
            forged = (1).to_bytes(32, "little") + bytes(32)

            assert not any(verify(public, forged, "order", str(number).encode()) for number in range(100))
            with pytest.raises(ConfigurationError, match=r"small order|canonical"):
                check_public_key(public)


def test_a_second_name_of_a_point_is_refused() -> None:
    for above in range(19):
        with pytest.raises(ConfigurationError, match="canonical"):
            check_public_key((P + above).to_bytes(32, "little"))


def test_what_is_no_point_of_the_curve_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no point of the curve"):
        check_public_key((2).to_bytes(32, "little"))
    assert not verify((2).to_bytes(32, "little"), SIGNATURE, "order", MESSAGE)


def test_keys_that_are_made_are_accepted_and_differ_and_come_back_from_their_bytes() -> None:
    keys = [SigningKey.generate() for _ in range(20)]
    for key in keys:
        check_public_key(key.public)
        again = SigningKey.from_bytes(key.to_bytes())
        assert again.public == key.public
        assert again.sign("order", MESSAGE) == key.sign("order", MESSAGE)
    assert len({key.public for key in keys}) == len(keys)


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_private_bytes_of_another_length_are_refused(size: int) -> None:
    with pytest.raises(ConfigurationError, match=f"{KEY_BYTES} bytes, not {size}; restore"):
        SigningKey.from_bytes(bytes(size))


def test_a_copy_is_refused() -> None:
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(LocalError, match="cannot be copied"):
            duplicate(KEY)
    assert f"{KEY!r} {KEY} {[KEY]}" == "<SigningKey> <SigningKey> [<SigningKey>]"
