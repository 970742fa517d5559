"""Section 5, experiments: Table 3 from Table 2, with the paper's R and E|V|, MB = 2^20 and GB = 2^30 bytes.

How many rounds it takes to reach an accuracy is measured by training, not here.
"""

from dataclasses import dataclass

import pytest

from hubbub.protocol.costs import bonawitz_bits, eastly_he_bits
from hubbub.strategies.planner import Question, plan


@dataclass(frozen=True)
class Experiment:
    """A network, and the unit in which its half of the table is printed."""

    n: int
    unit: int


MNIST = Experiment(61_706, 2**20)
CIFAR = Experiment(1_756_426, 2**30)


def total(where: Experiment, strategy: str, rounds: int, union_size: int | None, q: int) -> float:
    """In the table's unit, for C = 5, S = 2 and ρ = 0.1."""
    question = Question(
        parameters=where.n,
        clients=5,
        servers=2,
        rho=0.1,
        union_size=union_size,
        q=q,
        rounds=rounds,
        wire="paper",
        verified=False,
    )
    return plan(question).row(strategy).bits_in_all / 8 / where.unit


@pytest.mark.parametrize(
    ("where", "strategy", "rounds", "union_size", "q", "printed"),
    [
        (MNIST, "fedavg", 15, None, 1, "35.31"),
        (MNIST, "topbinary-direct", 17, 18_253, 1, "7.23"),
        (MNIST, "topbinary-sep", 17, 18_253, 1, "2.05"),
        (MNIST, "eastly-tss", 17, None, 1, "10.00"),
        (MNIST, "no-union", 17, None, 1, "10.01"),
        (MNIST, "sec-union", 22, 14_344, 1, "6.25"),
        (MNIST, "sec-union", 17, 18_037, 5, "15.43"),
        (MNIST, "partial-sec-union", 17, 18_253, 1, "10.46"),
        (MNIST, "plaintext-union", 17, 18_253, 1, "4.21"),
        (CIFAR, "fedavg", 101, None, 1, "6.61"),
        (CIFAR, "topbinary-direct", 110, 663_630, 1, "1.60"),
        (CIFAR, "topbinary-sep", 110, 663_630, 1, "0.41"),
        (CIFAR, "bonawitz", 101, None, 1, "6.61"),
        (CIFAR, "eastly-tss", 110, None, 1, "1.80"),
        (CIFAR, "eastly-he", 110, None, 1, "14.40"),
        (CIFAR, "no-union", 110, None, 1, "1.80"),
        (CIFAR, "sec-union", 114, 574_599, 1, "1.08"),
        (CIFAR, "sec-union", 110, 657_164, 5, "2.92"),
        (CIFAR, "partial-sec-union", 110, 663_630, 1, "2.03"),
        (CIFAR, "plaintext-union", 110, 663_630, 1, "0.90"),
    ],
)
def test_table_3(
    where: Experiment, strategy: str, rounds: int, union_size: int | None, q: int, printed: str
) -> None:
    """Table 3, (a) and (b): 20 of its 22 cells, to the printed digit.

    TopBinary with DirectAgg has no |V| printed; with that of SepAgg, which chooses alike, the number comes out.
    """
    assert f"{total(where, strategy, rounds, union_size, q):.2f}" == printed


def test_table_3_eastly_he_on_mnist() -> None:
    """Table 3 (a) prints 80.03 MB, the formula of Table 2; whole ciphertexts and a modulus a client add 0.11 %.

    A ciphertext has 64 parameters, and LeNet's last one is not full.
    """
    value = total(MNIST, "eastly-he", 17, None, 1)

    assert f"{17 * eastly_he_bits(MNIST.n, 5) / 8 / MNIST.unit:.2f}" == "80.03"
    assert f"{value:.2f}" == "80.12"
    assert value * 8 * MNIST.unit == 17 * 5 * (2 * 965 * 4096 + 2048)


def test_table_3_bonawitz_on_mnist() -> None:
    """Table 3 (a) prints 35.37 MB, the 22nd cell; the formula of Table 2 gives 35.379…, which is 35.38.

    The printed number looks cut off instead of rounded; twelve of the other cells agree only if they are rounded.
    As it is sent, each of the 20 seals among five clients has a tag, which goes up and down: 0.03 % more.
    """
    value = total(MNIST, "bonawitz", 15, None, 1)

    assert f"{15 * bonawitz_bits(MNIST.n, 5) / 8 / MNIST.unit:.2f}" == "35.38"
    assert f"{value:.2f}" == "35.39"
    assert value * 8 * MNIST.unit == 15 * (5 * (10 * 256 + 21 * 256 + 2 * 61_706 * 32) + 2 * 20 * 128)


def test_sec_union_with_one_bit_is_the_cheapest_that_tells_servers_nothing() -> None:
    """5.4: it "has a lower communication cost than" Bonawitz et al. and EaSTLy, also with its extra rounds."""
    ours = total(MNIST, "sec-union", 22, 14_344, 1)

    assert ours < total(MNIST, "eastly-tss", 17, None, 1)
    assert ours < total(MNIST, "no-union", 17, None, 1)
    assert ours < total(MNIST, "partial-sec-union", 17, 18_253, 1)
    assert ours < total(MNIST, "bonawitz", 15, None, 1)


def test_plaintext_union_is_cheaper_than_all_unions_that_hide_indices() -> None:
    """Table 1 and Table 3: what a server may see of the indices is saved in bits."""
    for where, size in ((MNIST, 18_253), (CIFAR, 663_630)):
        plain = total(where, "plaintext-union", 1, size, 1)

        assert plain < total(where, "sec-union", 1, size, 1) < total(where, "partial-sec-union", 1, size, 1)
