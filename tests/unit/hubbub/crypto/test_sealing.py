import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hubbub.crypto.sealing import (
    CHUNK_OVERHEAD,
    ChunkKey,
    Kem,
    SealingKey,
    check_public_key,
    seal,
    seal_overhead,
)
from hubbub.errors import LocalError, RejectReason
from support import plain_hpke
from support.refusals import refusing

KEYS = {kem: SealingKey.generate(kem) for kem in Kem}
PLAINTEXT = b"a packed share"
INFO = b"round 1, signs, client-1 to aggregator-2"
SEALED = {kem: seal(kem, KEYS[kem].public, PLAINTEXT, INFO) for kem in Kem}

P = 2**255 - 19
# The points of X25519 with which everybody agrees on zero, second names included.
LOW_ORDER = [
    (u | top << 255).to_bytes(32, "little")
    for u in (
        *(0, 1, P - 1, P, P + 1),
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    )
    for top in (0, 1)
]

both_kems = pytest.mark.parametrize("kem", Kem)


def flipped(data: bytes, bit: int) -> bytes:
    bit %= 8 * len(data)
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


@both_kems
@given(plaintext=st.binary(max_size=300), info=st.binary(max_size=300))
def test_the_owner_opens_what_was_sealed(kem: Kem, plaintext: bytes, info: bytes) -> None:
    sealed = seal(kem, KEYS[kem].public, plaintext, info)

    assert KEYS[kem].open(sealed, info) == plaintext
    assert len(sealed) == len(plaintext) + seal_overhead(kem)


@both_kems
def test_a_whole_chunk_fits_and_sealing_twice_gives_different_bytes(kem: Kem) -> None:
    chunk = bytes(range(256)) * 4096

    assert KEYS[kem].open(seal(kem, KEYS[kem].public, chunk, INFO), INFO) == chunk
    assert seal(kem, KEYS[kem].public, PLAINTEXT, INFO) != SEALED[kem]


@both_kems
@given(bit=st.integers(0, 8 * 2000))
@example(bit=255)  # X25519 ignores the top bit of a point; the seal does not.
@example(bit=8 * 1120 - 1)
def test_a_flipped_bit_anywhere_breaks_the_seal(kem: Kem, bit: int) -> None:
    with refusing(RejectReason.BROKEN_SEAL):
        KEYS[kem].open(flipped(SEALED[kem], bit), INFO)


@both_kems
def test_another_info_another_key_and_other_bytes_do_not_open(kem: Kem) -> None:
    own, sealed, other_kem = KEYS[kem], SEALED[kem], next(other for other in Kem if other != kem)
    cut = (b"", sealed[:1], sealed[:31], sealed[: seal_overhead(kem) - 1], sealed[:-1], sealed + b"\x00")
    for key, data, info in (
        *((own, sealed, info) for info in (b"", INFO + b"\x00", INFO[:-1], flipped(INFO, 0))),
        *((own, data, INFO) for data in cut),
        *((key, sealed, INFO) for key in (SealingKey.generate(kem), KEYS[other_kem])),
    ):
        with refusing(RejectReason.BROKEN_SEAL):
            key.open(data, info)


def test_the_hybrid_needs_both_halves_of_its_key() -> None:
    own, other = KEYS[Kem.HYBRID].to_bytes(), SealingKey.generate(Kem.HYBRID).to_bytes()

    for mixed in (own[:64] + other[64:], other[:64] + own[64:]):
        key = SealingKey.from_bytes(Kem.HYBRID, mixed)
        with refusing(RejectReason.BROKEN_SEAL):
            key.open(SEALED[Kem.HYBRID], INFO)


@both_kems
def test_a_point_of_low_order_is_refused_as_key_and_as_part_of_a_seal(subtests: pytest.Subtests, kem: Kem) -> None:
    at = seal_overhead(kem) - 16
    for point in LOW_ORDER:
        with subtests.test(point.hex()):
            public = KEYS[kem].public[:-32] + point
            sealed = SEALED[kem][: at - 32] + point + SEALED[kem][at:]

            with refusing(RejectReason.MALFORMED):
                check_public_key(kem, public)
            with refusing(RejectReason.MALFORMED):
                seal(kem, public, PLAINTEXT, INFO)
            with refusing(RejectReason.BROKEN_SEAL):
                KEYS[kem].open(sealed, INFO)


@both_kems
def test_a_public_key_that_cannot_be_one_is_refused(kem: Kem) -> None:
    """Of another length, of the other KEM, or for ML-KEM with a coefficient out of range."""
    public, other = KEYS[kem].public, KEYS[next(other for other in Kem if other != kem)].public
    out_of_range = [b"\xff" * 3 + public[3:]] if kem is Kem.HYBRID else []
    for bad in (b"", public[:-1], public[1:], public + b"\x00", other, *out_of_range):
        with refusing(RejectReason.MALFORMED):
            check_public_key(kem, bad)
        with refusing(RejectReason.MALFORMED):
            seal(kem, bad, PLAINTEXT, INFO)


@both_kems
def test_a_key_comes_back_from_its_bytes_and_from_no_others_and_another_one_differs(kem: Kem) -> None:
    again = SealingKey.from_bytes(kem, KEYS[kem].to_bytes())

    check_public_key(kem, again.public)
    assert again.kem is kem
    assert again.public == KEYS[kem].public != SealingKey.generate(kem).public
    assert again.open(SEALED[kem], INFO) == PLAINTEXT
    raw = KEYS[kem].to_bytes()
    for bad in (b"", raw[:-1], raw + b"\x00"):
        with pytest.raises(LocalError, match=f"{len(raw)} bytes, not {len(bad)}"):
            SealingKey.from_bytes(kem, bad)


def test_lengths_of_keys_and_seals_are_those_of_the_standards() -> None:
    assert {kem: len(key.public) for kem, key in KEYS.items()} == {Kem.X25519: 32, Kem.HYBRID: 1184 + 32}
    assert {kem: len(key.to_bytes()) for kem, key in KEYS.items()} == {Kem.X25519: 32, Kem.HYBRID: 64 + 32}
    assert {kem: seal_overhead(kem) for kem in Kem} == {Kem.X25519: 32 + 16, Kem.HYBRID: 1088 + 32 + 16}


def test_the_plain_schedule_agrees_with_rfc_9180_appendix_a1() -> None:
    info = b"Ode on a Grecian Urn"
    ephemeral = bytes.fromhex("52c4a758a802cd8b936eceea314432798d5baf2d7e9235dc084ab1b9cfa2f736")
    recipient = bytes.fromhex("4612c550263fc8ad58375df3f557aac531d26850903e55a9f23f21d8534e8ac8")
    enc = plain_hpke.public_of(ephemeral)
    shared = plain_hpke.shared_secret(enc, recipient)
    key, nonce = plain_hpke.schedule(shared, info, aead=1, key_bytes=16)

    assert enc.hex() == "37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431"
    assert shared.hex() == "fe0e18c9f024ce43799ae393c7e8fe8fce9d218875e8227b0187c04e7d2ea1fc"
    assert key.hex() == "4531685d41d65f03dc48f6b8302c05b0"
    assert nonce.hex() == "56d890e5accaaf011cff4b7d"


def test_a_second_implementation_opens_our_seal_and_a_chunk_whose_number_is_the_nonce() -> None:
    key, chunk_key = KEYS[Kem.X25519], ChunkKey.fresh()

    assert plain_hpke.public_of(key.to_bytes()) == key.public
    assert plain_hpke.open_sealed(SEALED[Kem.X25519], key.to_bytes(), INFO) == PLAINTEXT
    sealed = chunk_key.encrypt(258, PLAINTEXT, INFO)
    assert plain_hpke.gcm_open(chunk_key.to_bytes(), bytes(10) + b"\x01\x02", sealed, INFO) == PLAINTEXT


@given(chunk=st.integers(0, 2**64), plaintext=st.binary(max_size=300), info=st.binary(max_size=300))
def test_whoever_has_the_key_of_a_sum_opens_its_chunks(chunk: int, plaintext: bytes, info: bytes) -> None:
    key = ChunkKey.fresh()
    sealed = key.encrypt(chunk, plaintext, info)

    assert bytes(ChunkKey.from_bytes(key.to_bytes()).decrypt(chunk, sealed, info)) == plaintext
    assert len(sealed) == len(plaintext) + CHUNK_OVERHEAD


def test_a_chunk_is_decrypted_into_the_memory_that_the_caller_gives_and_nothing_after_it() -> None:
    key, memory = ChunkKey.fresh(), bytearray(b"." * 20)
    sealed = key.encrypt(1, b"twelve bytes", INFO, head=b"head")
    assert sealed.startswith(b"head")

    given = key.decrypt(1, sealed[4:], INFO, lambda size: memoryview(memory)[:size])

    assert bytes(given) == b"twelve bytes"
    assert memory == b"twelve bytes........"


@given(bit=st.integers(0, 8 * 100))
def test_a_chunk_opens_as_itself_alone(bit: int) -> None:
    key = ChunkKey.fresh()
    sealed = key.encrypt(1, PLAINTEXT, INFO)

    for opener, chunk, data, info in (
        (key, 1, flipped(sealed, bit), INFO),
        (key, 1, sealed, flipped(INFO, bit)),
        (key, 2, sealed, INFO),
        (ChunkKey.fresh(), 1, sealed, INFO),
        (key, 1, sealed[: bit % len(sealed)], INFO),
    ):
        with refusing(RejectReason.BROKEN_SEAL):
            opener.decrypt(chunk, data, info)


def test_a_chunk_is_never_encrypted_twice_and_its_key_has_32_bytes() -> None:
    key = ChunkKey.fresh()
    key.encrypt(3, PLAINTEXT, INFO)
    key.encrypt(4, PLAINTEXT, INFO)

    with pytest.raises(LocalError, match="chunk 3 was encrypted already"):
        key.encrypt(3, b"another sum", INFO)
    # Not even when the bytes are the same: who asks twice has lost count.
    with pytest.raises(LocalError, match="encrypted already"):
        key.encrypt(4, PLAINTEXT, INFO)
    for size in (0, 16, 24, 31, 33):
        with refusing(RejectReason.MALFORMED):
            ChunkKey.from_bytes(bytes(size))
