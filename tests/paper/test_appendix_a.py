"""Appendix A, the communication cost of Practical Secure Aggregation."""

import pytest

from hubbub.protocol.costs import bonawitz_bits


@pytest.mark.parametrize("clients", [2, 5, 10, 100])
@pytest.mark.parametrize("n", [1, 61_706])
def test_what_clients_send_and_what_the_server_sends_add_up(clients: int, n: int) -> None:
    """A: each client sends 2n·a_K + (5n-4)·a_S + m·⌈log2 R⌉ bits, the server m·⌈log2 R⌉ to each."""
    up = 2 * clients * 256 + (5 * clients - 4) * 256 + n * 32
    down = n * 32

    assert bonawitz_bits(n, clients) == clients * (up + down)


def test_keys_and_shares_grow_with_the_square_of_the_cohort_and_the_rest_with_it() -> None:
    """A: the terms in a_K and a_S have the factor n·n."""
    fixed = [bonawitz_bits(0, clients) for clients in (10, 20)]

    assert fixed == [10 * (20 + 46) * 256, 20 * (40 + 96) * 256]
