"""Section 2.3, additive secret sharing: Alg. 1 is correct, and what it costs."""

import numpy as np
import pytest

from hubbub.crypto.stream import AesCtrStream
from hubbub.protocol.costs import Headcount, secure_sum_bits
from hubbub.protocol.ring import Residues, pack, sample
from hubbub.protocol.sharing import accumulate, recombine, split


def run_secure_sum(inputs: list[Residues], m: int, servers: int) -> tuple[Residues, int]:
    """Alg. 1 with every transmission packed; the output, and the bits that travelled."""
    n, bits = inputs[0].size, 0
    stream = AesCtrStream(b"\x05" * 32)
    sums = [np.zeros(n, dtype=np.uint32) for _ in range(servers)]
    for x in inputs:
        for total, share in zip(sums, split(x, m, servers, stream), strict=True):
            bits += 8 * len(pack(share, m))
            accumulate(total, share, m)
    bits += sum(8 * len(pack(total, m)) for total in sums for _ in inputs)
    return recombine(sums, m), bits


@pytest.mark.parametrize("m", [2, 6, 11, 2**5, 2**32])
@pytest.mark.parametrize("servers", [2, 3, 5])
@pytest.mark.parametrize("clients", [2, 5, 10])
def test_algorithm_1_gives_all_clients_the_sum(m: int, servers: int, clients: int) -> None:
    """2.3.1, Alg. 1: "Output: Clients: Z = Σ X_i mod m"."""
    stream = AesCtrStream(b"\x06" * 32)
    inputs = [sample(stream, 1000, m) for _ in range(clients)]

    z, _ = run_secure_sum(inputs, m, servers)

    assert np.array_equal(z, sum(x.astype(np.uint64) for x in inputs) % m)


@pytest.mark.parametrize("m", [2, 6, 11, 2**5, 2**32])
@pytest.mark.parametrize("servers", [2, 3])
def test_equation_3_is_what_travels(m: int, servers: int) -> None:
    """2.3.2, Eq. 3: "the total communication cost […] is 2·S·C·n·⌈log2 m⌉ bits"."""
    clients, n = 5, 640  # A multiple of 8, so that no byte is padded.
    inputs = [np.zeros(n, dtype=np.uint32) for _ in range(clients)]

    _, bits = run_secure_sum(inputs, m, servers)

    assert bits == secure_sum_bits(n, m, Headcount.complete(clients, servers))
    assert bits == 2 * servers * clients * n * {2: 1, 6: 3, 11: 4, 2**5: 5, 2**32: 32}[m]
