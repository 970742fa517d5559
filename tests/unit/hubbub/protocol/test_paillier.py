"""Paillier's scheme against its textbook formulas, which need neither phe nor the packing."""

from math import lcm

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import ConfigurationError, LocalError, PeerError, RejectReason
from hubbub.protocol import paillier
from support.program import run_python

SMALL = 256
KEY = paillier.make_key(AesCtrStream(bytes(32)), SMALL)


def encrypt(n: int, m: int, r: int) -> int:
    """E(m) = g^m · r^n mod n², with g = n + 1."""
    return pow(n + 1, m, n * n) * pow(r, n, n * n) % (n * n)


def decrypt(p: int, q: int, c: int) -> int:
    """m = L(c^λ mod n²) · L(g^λ mod n²)^-1 mod n, with L(x) = (x - 1)/n."""
    n, power = p * q, lcm(p - 1, q - 1)
    above, below = ((pow(x, power, n * n) - 1) // n for x in (c, n + 1))
    return above * pow(below, -1, n) % n


def key_of(p: int, q: int) -> paillier.Key:
    phe = paillier.load("phe")
    return paillier.Key(p * q, phe.PaillierPrivateKey(phe.PaillierPublicKey(p * q), p, q))


def test_a_number_encrypted_by_hand() -> None:
    """n = 5·7 = 35, n² = 1225: E(2) with r = 3 is 71 · 3^35 mod 1225 = 71 · 607 mod 1225 = 222."""
    assert pow(3, 35, 1225) == 607
    assert encrypt(35, 2, 3) == 71 * 607 % 1225 == 222

    assert paillier.encrypt(key_of(5, 7), [2], [3]) == [222]
    assert paillier.decrypt(key_of(5, 7), [222]) == [2] == [decrypt(5, 7, 222)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2**SMALL), min_size=1, max_size=5), st.integers(1, 2**SMALL))
def test_ciphertexts_are_the_textbooks_and_their_product_is_the_sum(numbers: list[int], blind: int) -> None:
    n = KEY.n
    plaintexts = [m % n for m in numbers]
    blinds = [(blind + place) % (n - 1) + 1 for place in range(len(numbers))]

    ciphertexts = paillier.encrypt(KEY, plaintexts, blinds)

    assert ciphertexts == [encrypt(n, m, r) for m, r in zip(plaintexts, blinds, strict=True)]
    p, q = KEY.private.p, KEY.private.q
    assert [decrypt(p, q, c) for c in ciphertexts] == plaintexts == paillier.decrypt(KEY, ciphertexts)
    total = ciphertexts[:1]
    for each in ciphertexts[1:]:
        total = paillier.add(total, [each], n)
    assert paillier.decrypt(KEY, total) == [sum(plaintexts) % n]


def test_the_same_stream_gives_the_same_key_and_another_another() -> None:
    again, other = (paillier.make_key(AesCtrStream(bytes([seed] * 32)), SMALL) for seed in (0, 1))

    assert again.n == KEY.n != other.n
    assert {KEY.n.bit_length(), other.n.bit_length()} == {SMALL}
    p, q = int(KEY.private.p), int(KEY.private.q)
    assert p * q == KEY.n
    assert p.bit_length() == q.bit_length() == SMALL // 2
    # Fermat's test, to bases of our own.
    assert all(pow(base, prime - 1, prime) == 1 for prime in (p, q) for base in (2, 3, 5, 7, 11))


def test_a_key_does_not_print() -> None:
    text = f"{KEY} {KEY!r}"

    assert not any(str(number) in text for number in (KEY.n, KEY.private.p, KEY.private.q))


def test_blinds_are_below_n_not_zero_and_all_different() -> None:
    class Words:
        """Zero, n, and then 1, 2, 3, …"""

        def __init__(self) -> None:
            self.numbers = [0, KEY.n, *range(1, 100)]

        def fill(self, out: np.typing.NDArray[np.uint8]) -> None:
            out[:] = np.frombuffer(self.numbers.pop(0).to_bytes(out.size, "little"), np.uint8)

    assert paillier.draw_blinds(Words(), KEY.n, 5) == [1, 2, 3, 4, 5]
    assert len(set(paillier.draw_blinds(AesCtrStream(bytes(32)), KEY.n, 1_000))) == 1_000


@given(st.lists(st.integers(0, paillier.SLOT_LIMIT - 1), max_size=200))
def test_what_is_packed_can_be_unpacked(numbers: list[int]) -> None:
    values = np.array(numbers, dtype=np.uint32)

    plaintexts = paillier.pack(values)

    assert len(plaintexts) == -(-len(numbers) // 64)
    expected = sum(number << 32 * place for place, number in enumerate(numbers[:64]))
    assert plaintexts[:1] == [expected][: len(plaintexts)]
    np.testing.assert_array_equal(paillier.unpack(plaintexts, len(numbers)), values)


def test_64_slots_of_the_largest_sums_stay_below_any_n_and_do_not_run_into_each_other() -> None:
    """4,096 clients, the most that a run has, each with the largest sign."""
    sums = np.full(64, 2 * 4_096, dtype=np.uint32)
    full = np.full(64, paillier.SLOT_LIMIT - 1, dtype=np.uint32)

    (each,) = paillier.pack(np.full(64, 2, dtype=np.uint32))

    np.testing.assert_array_equal(paillier.unpack([4_096 * each], 64), sums)
    assert paillier.pack(full)[0] < 2 ** (paillier.KEY_BITS - 1), "the smallest n is larger"
    with pytest.raises(LocalError):
        paillier.pack(full + np.uint32(1))


def test_numbers_travel_as_their_words_the_lowest_first() -> None:
    words = paillier.to_words([1 + (2 << 32), 3], 2)

    assert words.dtype == np.uint32
    assert words.tolist() == [1, 2, 3, 0]
    assert paillier.from_words(words, 2) == [1 + (2 << 32), 3]
    with pytest.raises(LocalError, match="does not fit 2 words"):
        paillier.to_words([2**64], 2)


@pytest.mark.parametrize("n", [2 ** (SMALL - 1) - 1, 2**SMALL + 1, 2**SMALL - 2, 0])
def test_a_modulus_of_another_size_or_an_even_one_is_refused(n: int) -> None:
    paillier.check_modulus(KEY.n, SMALL)

    with pytest.raises(PeerError) as caught:
        paillier.check_modulus(n, SMALL)

    assert caught.value.reason is RejectReason.RESIDUE_OUT_OF_RANGE


@pytest.mark.parametrize("wrong", [0, KEY.n**2, KEY.n**2 + 1])
def test_what_is_no_ciphertext_is_refused(wrong: int) -> None:
    paillier.check_ciphertexts([1, KEY.n**2 - 1], KEY.n)

    with pytest.raises(PeerError) as caught:
        paillier.check_ciphertexts([1, wrong], KEY.n)

    assert caught.value.reason is RejectReason.RESIDUE_OUT_OF_RANGE


def test_nobody_loads_the_library_by_having_the_strategy() -> None:
    done = run_python(
        "-c",
        "import sys, hubbub_aggregator.service, hubbub_trainer.service, hubbub.strategies.registry\n"
        "print([name for name in sys.modules if name.split('.')[0] in {'phe', 'gmpy2'}])",
    )

    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def lack(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(paillier, "import_module", lack)

    with pytest.raises(ConfigurationError, match=r"pip install 'hubbub\[eastly\]'"):
        paillier.make_key(AesCtrStream(bytes(32)))
