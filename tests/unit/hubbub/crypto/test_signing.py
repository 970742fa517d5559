import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from hubbub.crypto.signing import KEY_BYTES, SIGNATURE_BYTES, SigningKey, bind, check_public_key, verify
from hubbub.errors import ConfigurationError

KEY = SigningKey.from_bytes(bytes(range(32)))
MESSAGE = b"the members are client-1 and client-2"
SIGNATURE = KEY.sign("order", MESSAGE)

P = 2**255 - 19
NO_POINT = (2).to_bytes(32, "little")
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


def test_a_signature_is_one_of_its_party_for_its_domain_and_has_one_form() -> None:
    order_of_the_group = 2**252 + 27742317777372353535851937790883648493
    larger = (int.from_bytes(SIGNATURE[32:], "little") + order_of_the_group).to_bytes(32, "little")

    assert not verify(KEY.public, SIGNATURE, "receipt", MESSAGE)
    assert not verify(KEY.public, KEY.sign("ab", b"c"), "a", b"bc"), "the boundary cannot be moved"
    assert not verify(SigningKey.generate().public, SIGNATURE, "order", MESSAGE)
    assert not verify(KEY.public, SIGNATURE[:32] + larger, "order", MESSAGE)
    for size in (0, 1, 32, 63, 65, 128):
        assert not verify(KEY.public, (SIGNATURE + SIGNATURE)[:size], "order", MESSAGE), size


@pytest.mark.parametrize(
    ("public", "complaint"),
    [
        *((bytes(size), f"has {size} bytes instead of 32") for size in (0, 1, 31, 33, 64)),
        *(((P + above).to_bytes(32, "little"), "canonical") for above in range(19)),
        *((public, r"small order|canonical") for public in SMALL_ORDER),
        (NO_POINT, "no point of the curve"),
    ],
)
def test_a_key_that_can_be_nobodys_is_refused_and_verifies_nothing(public: bytes, complaint: str) -> None:
    """Of another length, a second name of a point, of small order, or no point of the curve."""
    # R is the neutral point and s = 0: fits every message whose hash is a multiple of a small order.
    forged = (1).to_bytes(32, "little") + bytes(32)

    with pytest.raises(ConfigurationError, match=complaint):
        check_public_key(public)
    assert not verify(public, SIGNATURE, "order", MESSAGE)
    assert not any(verify(public, forged, "order", str(number).encode()) for number in range(100))


def test_keys_that_are_made_are_accepted_and_differ_and_come_back_from_their_bytes() -> None:
    keys = [SigningKey.generate() for _ in range(20)]
    for key in keys:
        check_public_key(key.public)
        again = SigningKey.from_bytes(key.to_bytes())
        assert again.public == key.public
        assert again.sign("order", MESSAGE) == key.sign("order", MESSAGE)
    assert len({key.public for key in keys}) == len(keys)
    for size in (0, 31, 33, 64):
        with pytest.raises(ConfigurationError, match=f"{KEY_BYTES} bytes, not {size}; restore"):
            SigningKey.from_bytes(bytes(size))


# Parts bound together ---------------------------------------------------------------------------------------

PARTS = st.lists(st.binary(max_size=20), max_size=4)


@given(PARTS, PARTS)
def test_different_lists_of_parts_give_different_bytes(first: list[bytes], second: list[bytes]) -> None:
    assert (bind(*first) == bind(*second)) == (first == second)


def test_moving_a_boundary_changes_the_bytes() -> None:
    assert len({bind(b"ab", b"c"), bind(b"a", b"bc"), bind(b"ab"), bind(b"ab", b""), bind(b""), bind()}) == 6
    assert len({bind(bind(b"a"), b"b"), bind(bind(b"a", b"b")), bind(b"a", b"b")}) == 3
    assert len({bind(1, 23), bind(12, 3), bind("1"), bind(1)}) == 4


def test_the_bytes_are_length_then_part_and_nothing_is_cut() -> None:
    expected = (
        "0000000000000002" + "c3a9" + "0000000000000003" + "00ff01" + "0000000000000008" + "0000000000000102"
    )

    assert bind("é", b"\x00\xff\x01", 258).hex() == expected
    assert bind(bytes(70_000))[:8] == (70_000).to_bytes(8, "big")
    for number in (-1, 2**64):
        with pytest.raises(OverflowError):
            bind(number)
