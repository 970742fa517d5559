"""Section 3.3, communication costs: the rows of Table 2 that are the paper's own, term by term.

Totals until a target accuracy (Table 3) are in section 5, the related work's rows in section 4.
"""

import pytest

from hubbub.protocol import costs
from hubbub.protocol.costs import Headcount
from hubbub.strategies.planner import Question, plan

N_LENET = 61_706
N_ALEXNET = 1_756_426
networks = pytest.mark.parametrize(("n", "size"), [(N_LENET, 18_253), (N_ALEXNET, 663_630)])
federations = pytest.mark.parametrize(
    ("c", "s", "bits_c", "bits_2c"), [(5, 2, 3, 4), (2, 2, 2, 3), (7, 3, 3, 4), (8, 5, 4, 5), (15, 2, 4, 5)]
)
"""C, S, ⌈log2(C + 1)⌉ and ⌈log2(2C + 1)⌉, worked out by hand."""


def per_round(strategy: str, n: int, c: int, s: int, size: int, q: int = 1) -> int:
    question = Question(
        parameters=n, clients=c, servers=s, rho=0.4, union_size=size, q=q, wire="paper", verified=False
    )
    return plan(question).row(strategy).bits_per_round


@networks
@federations
def test_uncompressed_fedavg(n: int, size: int, c: int, s: int, bits_c: int, bits_2c: int) -> None:
    """3.3.1 and Table 2: 2·C·32·N."""
    del bits_c, bits_2c

    assert costs.fedavg_bits(n, c) == 2 * c * 32 * n
    assert per_round("fedavg", n, c, s, size) == 2 * c * 32 * n


@networks
@federations
def test_top_binary_with_direct_aggregation(n: int, size: int, c: int, s: int, bits_c: int, bits_2c: int) -> None:
    """3.3.1 and Table 2: C·(32·(1 + |V|) + 2·N + ⌊ρ·N⌋)."""
    del bits_c, bits_2c
    kept = n * 4 // 10

    assert per_round("topbinary-direct", n, c, s, size) == c * (32 * (1 + size) + 2 * n + kept)


@networks
@federations
def test_top_binary_with_separate_aggregation(
    n: int, size: int, c: int, s: int, bits_c: int, bits_2c: int
) -> None:
    """3.3.1 and Table 2: C·(2·32 + 2·N + ⌊ρ·N⌋ + |V|·⌈log2(2C+1)⌉)."""
    del bits_c
    kept = n * 4 // 10

    assert per_round("topbinary-sep", n, c, s, size) == c * (2 * 32 + 2 * n + kept + size * bits_2c)


@networks
@federations
def test_parts_of_our_method(n: int, size: int, c: int, s: int, bits_c: int, bits_2c: int) -> None:
    """3.3.2: the five sub-protocols, each from Eq. 3."""
    heads = Headcount.complete(c, s)

    assert costs.partial_sec_union_bits(n, heads) == 2 * s * c * n * bits_c
    assert costs.sec_union_bits(n, 5, heads) == 2 * s * c * n * 5
    assert costs.plaintext_union_bits(n, heads) == 2 * c * n
    assert costs.signs_bits(size, heads) == 2 * s * c * size * bits_2c
    assert costs.factors_bits(heads) == 2 * s * c * 32


@networks
@federations
def test_no_union(n: int, size: int, c: int, s: int, bits_c: int, bits_2c: int) -> None:
    """Table 2: (2·S·C·N·⌈log2(2C+1)⌉) + (2·S·C·32); |V| does not matter."""
    del bits_c

    assert per_round("no-union", n, c, s, size) == (2 * s * c * n * bits_2c) + (2 * s * c * 32)


@pytest.mark.parametrize("q", [1, 5, 32])
@networks
@federations
def test_sec_union(n: int, size: int, c: int, s: int, bits_c: int, bits_2c: int, q: int) -> None:
    """Table 2: (2·S·C·N·q) + (2·S·C·|V|·⌈log2(2C+1)⌉) + (2·S·C·32)."""
    del bits_c
    expected = (2 * s * c * n * q) + (2 * s * c * size * bits_2c) + (2 * s * c * 32)

    assert per_round("sec-union", n, c, s, size, q) == expected


@networks
@federations
def test_partial_sec_union(n: int, size: int, c: int, s: int, bits_c: int, bits_2c: int) -> None:
    """Table 2: (2·S·C·N·⌈log2(C+1)⌉) + (2·S·C·|V|·⌈log2(2C+1)⌉) + (2·S·C·32)."""
    expected = (2 * s * c * n * bits_c) + (2 * s * c * size * bits_2c) + (2 * s * c * 32)

    assert per_round("partial-sec-union", n, c, s, size) == expected


@networks
@federations
def test_plaintext_union(n: int, size: int, c: int, s: int, bits_c: int, bits_2c: int) -> None:
    """Table 2: (2·C·N) + (2·S·C·|V|·⌈log2(2C+1)⌉) + (2·S·C·32)."""
    del bits_c
    expected = (2 * c * n) + (2 * s * c * size * bits_2c) + (2 * s * c * 32)

    assert per_round("plaintext-union", n, c, s, size) == expected
