"""Section 3.2, the compressed secure aggregation protocol."""

import numpy as np
import pytest

from hubbub.crypto.stream import AesCtrStream
from hubbub.protocol import signs
from hubbub.protocol.sharing import accumulate, recombine, split


@pytest.mark.parametrize("clients", [2, 5, 10])
def test_t_and_its_inverse_are_equations_11_and_12(clients: int) -> None:
    """3.2.3: T takes [-C, C] to [0, 2C], and T⁻¹ takes it back."""
    modulus = 2 * clients + 1
    values = np.arange(-clients, clients + 1, dtype=np.int32)

    converted = signs.to_ring(values, clients)

    assert converted.tolist() == [x if x >= 0 else x + modulus for x in values.tolist()]
    assert np.array_equal(signs.from_ring(converted, clients), values)


@pytest.mark.parametrize("clients", [2, 5, 10])
@pytest.mark.parametrize("servers", [2, 3])
def test_secure_sum_of_signs_is_the_sum_of_signs(clients: int, servers: int) -> None:
    """3.2.3: the components of the sum "belong to [-C, C]", and the ring Z_{2C+1} holds exactly these."""
    generator = np.random.default_rng(clients)
    directions = generator.integers(-1, 2, (clients, 2000)).astype(np.int8)
    directions[:, 0], directions[:, 1] = 1, -1  # Everybody agrees: the sums C and -C.
    m, stream = signs.modulus(clients), AesCtrStream(b"\x08" * 32)
    sums = [np.zeros(2000, dtype=np.uint32) for _ in range(servers)]

    for direction in directions:
        for total, share in zip(sums, split(signs.to_ring(direction, clients), m, servers, stream), strict=True):
            accumulate(total, share, m)

    assert np.array_equal(signs.from_ring(recombine(sums, m), clients), directions.sum(axis=0, dtype=np.int32))
