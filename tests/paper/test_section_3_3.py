"""Section 3.3, communication costs: rows of Table 2, and of Table 3 with MB = 2^20 and GB = 2^30 bytes."""

import pytest

from hubbub.protocol.costs import Headcount, factors_bits, fedavg_bits, no_union_bits, signs_bits

N_LENET = 61_706
N_ALEXNET = 1_756_426
CLIENTS, SERVERS = 5, 2
HEADS = Headcount.complete(CLIENTS, SERVERS)
MB, GB = 2**20, 2**30


@pytest.mark.parametrize("n", [N_LENET, N_ALEXNET])
def test_no_union_per_round(n: int) -> None:
    """Table 2: (2·S·C·N·⌈log2(2C+1)⌉) + (2·S·C·32)."""
    assert signs_bits(n, HEADS) == 2 * SERVERS * CLIENTS * n * 4
    assert factors_bits(HEADS) == 2 * SERVERS * CLIENTS * 32
    assert no_union_bits(n, HEADS) == 2 * SERVERS * CLIENTS * (n * 4 + 32)


@pytest.mark.parametrize("n", [N_LENET, N_ALEXNET])
def test_uncompressed_fedavg_per_round(n: int) -> None:
    """Table 2: 2·C·32·N."""
    assert fedavg_bits(n, CLIENTS) == 2 * CLIENTS * 32 * n


@pytest.mark.parametrize(
    ("n", "rounds", "unit", "printed"), [(N_LENET, 17, MB, "10.01"), (N_ALEXNET, 110, GB, "1.80")]
)
def test_no_union_until_the_target(n: int, rounds: int, unit: int, printed: str) -> None:
    """Table 3: 10.01 MB for MNIST, 1.80 GB for CIFAR-10."""
    assert f"{rounds * no_union_bits(n, HEADS) / 8 / unit:.2f}" == printed


@pytest.mark.parametrize(
    ("n", "rounds", "unit", "printed"), [(N_LENET, 15, MB, "35.31"), (N_ALEXNET, 101, GB, "6.61")]
)
def test_uncompressed_fedavg_until_the_target(n: int, rounds: int, unit: int, printed: str) -> None:
    """Table 3: 35.31 MB for MNIST, 6.61 GB for CIFAR-10."""
    assert f"{rounds * fedavg_bits(n, CLIENTS) / 8 / unit:.2f}" == printed
