"""Shares add up to the sum, and any S - 1 of them carry nothing (Alg. 1 and appendix E of Beguier et al.)."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import ConfigurationError, LocalError
from hubbub.protocol.ring import Residues, residue_type
from hubbub.protocol.sharing import accumulate, recombine, split
from support import plain_ring
from support.plain_ring import ByteStream
from support.statistics import against_each_other, against_uniform, bound, joint_counts

SAMPLE = 2**20

moduli = st.sampled_from([2, 3, 6, 11, 32, 2**31 + 1, 2**32 - 1, 2**32, 2**64]) | st.integers(2, 2**32)


def secure_sum(inputs: list[Residues], m: int, servers: int, stream: AesCtrStream) -> Residues:
    sums = [np.zeros(inputs[0].size, dtype=residue_type(m)) for _ in range(servers)]
    for x in inputs:
        for total, share in zip(sums, split(x, m, servers, stream), strict=True):
            accumulate(total, share, m)
    return recombine(sums, m)


@given(m=moduli, clients=st.integers(1, 8), servers=st.integers(2, 5), n=st.integers(0, 50), data=st.data())
def test_secure_sum_is_the_plain_sum(m: int, clients: int, servers: int, n: int, data: st.DataObject) -> None:
    value = st.sampled_from([0, m - 1]) | st.integers(0, m - 1)
    inputs = [data.draw(st.lists(value, min_size=n, max_size=n)) for _ in range(clients)]
    key = data.draw(st.binary(min_size=32, max_size=32))

    total = secure_sum([np.array(x, dtype=residue_type(m)) for x in inputs], m, servers, AesCtrStream(key))

    assert total.tolist() == plain_ring.add(inputs, m)


@given(m=moduli, servers=st.integers(2, 4), n=st.integers(0, 30), seed=st.integers(0, 2**32))
def test_split_agrees_with_plain_integers(m: int, servers: int, n: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    data = generator.bytes(200 * (n + 10) * servers)
    x = generator.integers(0, m - 1, n, dtype=residue_type(m), endpoint=True)
    given_x = x.tolist()

    shares = split(x, m, servers, ByteStream(data))

    expected = plain_ring.split(given_x, m, servers, data)
    assert [share.tolist() for share in shares] == expected
    recombine(shares, m)
    assert (x.tolist(), [share.tolist() for share in shares]) == (given_x, expected), "inputs are left as they are"


def test_chunks_may_be_split_added_and_recombined_one_by_one() -> None:
    x = np.arange(1000, dtype=np.uint32) % 11
    stream = AesCtrStream(bytes(32))
    sums = [np.zeros(1000, dtype=np.uint32) for _ in range(3)]

    for start in (640, 0, 256):
        chunk = slice(start, {640: 1000, 0: 256, 256: 640}[start])
        for total, share in zip(sums, split(x[chunk], 11, 3, stream), strict=True):
            accumulate(total[chunk], share, 11)

    assert np.array_equal(recombine(sums, 11), x)


def test_too_few_servers_inputs_outside_the_ring_and_sums_of_different_lengths_are_refused() -> None:
    zeros, stream = np.zeros(3, dtype=np.uint32), AesCtrStream(bytes(32))
    for servers in (-1, 0, 1):
        with pytest.raises(ConfigurationError, match="at least 2 servers"):
            split(zeros, 11, servers, stream)
    with pytest.raises(ConfigurationError, match="at least 2 servers"):
        recombine([zeros], 11)
    with pytest.raises(LocalError, match="11 or more"):
        split(np.array([11], dtype=np.uint32), 11, 2, stream)
    with pytest.raises(LocalError, match="shapes"):
        recombine([zeros, zeros[:1]], 11)


def skewed_secret(m: int, n: int) -> Residues:
    """Nearly always 0, sometimes m - 1: like signs, far from uniform."""
    x = np.zeros(n, dtype=np.uint32)
    x[::10] = m - 1
    return x


@pytest.mark.parametrize("m", [2, 6, 11, 2**5, 2**32])
@pytest.mark.parametrize("servers", [2, 3])
def test_every_share_is_uniform(m: int, servers: int) -> None:
    key = bytes([servers]) * 32

    shares = split(skewed_secret(m, SAMPLE), m, servers, AesCtrStream(key))

    for share in shares:
        for part in parts(joint_counts([share], m), m):
            assert against_uniform(part) < bound(part.size)


def every_randomness(m: int, drawn: int) -> tuple[bytes, int]:
    """A stream in which element by element each combination of accepted words occurs exactly once."""
    words = range(256 // m * m)
    grid = np.array(list(product(words, repeat=drawn)), dtype=np.uint8)
    return grid.T.tobytes(), len(grid)


@pytest.mark.parametrize("m", [2, 3, 5, 6, 11])
@pytest.mark.parametrize("servers", [2, 3])
def test_over_all_randomness_any_shares_but_one_are_alike_for_every_secret(m: int, servers: int) -> None:
    """Exact: no sampling, every combination of random words is tried with every secret."""
    data, trials = every_randomness(m, servers - 1)
    for secret in range(m):
        shares = split(np.full(trials, secret, dtype=np.uint32), m, servers, ByteStream(data))

        for seen in combinations(shares, servers - 1):
            counts = joint_counts(list(seen), m)
            assert set(counts.tolist()) == {trials // m ** (servers - 1)}


def two_samples(m: int, servers: int) -> tuple[list[Residues], list[Residues]]:
    zeros = np.zeros(SAMPLE, dtype=np.uint32)
    first = split(zeros, m, servers, AesCtrStream(b"\x01" * 32))
    second = split(skewed_secret(m, SAMPLE), m, servers, AesCtrStream(b"\x02" * 32))
    return first, second


def parts(counts: NDArray[np.int64], m: int) -> NDArray[np.int64]:
    """One row per table that is compared: for 2^32 there is one for each byte."""
    return counts.reshape(-1, 256) if m == 2**32 else counts.reshape(1, -1)


@pytest.mark.parametrize("m", [2, 6, 11, 2**5, 2**32])
@pytest.mark.parametrize("servers", [2, 3])
def test_any_shares_but_one_look_alike_for_two_secrets(m: int, servers: int) -> None:
    first, second = two_samples(m, servers)

    for seen in combinations(range(servers), servers - 1):
        counts = [parts(joint_counts([shares[j] for j in seen], m), m) for shares in (first, second)]
        for a, b in zip(*counts, strict=True):
            assert against_each_other(a, b) < bound(a.size)


@pytest.mark.parametrize("m", [2, 6, 11, 2**5])
def test_all_shares_together_tell_two_secrets_apart(m: int) -> None:
    """The test above could not fail if this one did not hold."""
    first, second = two_samples(m, 2)

    assert against_each_other(joint_counts(first, m), joint_counts(second, m)) > bound(m**2)
