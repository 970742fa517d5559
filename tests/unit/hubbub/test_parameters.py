import math

import pytest

from hubbub.errors import ConfigurationError
from hubbub.parameters import Parameters


def lenet(**changes: float | str) -> Parameters:
    values = {"model_size": 61_706, "clients": 5, "servers": 2, "rho": 0.1, **changes}
    return Parameters(**values)  # type: ignore[arg-type] # one dictionary for whole numbers and others


def test_what_follows_from_the_papers_setting() -> None:
    parameters = lenet()

    assert parameters.kept == 6170
    assert parameters.signs_modulus == 11
    assert parameters.factors_modulus == 2**32
    assert parameters.fixed_point.fraction_bits == 25
    assert parameters.fixed_point.alpha_max == 16.0


def test_what_follows_from_a_block() -> None:
    flat, blocks = lenet(), lenet(block=16)

    assert (flat.blocks, flat.kept_blocks, flat.most_active) == (61_706, 6_170, 30_850)
    assert (blocks.blocks, blocks.kept_blocks, blocks.most_active) == (3_857, 385, 5 * 385 * 16)
    assert lenet(block=16, rho=0.5).most_active == 61_706
    assert blocks.pluses_modulus == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_size": 0}, "at least one parameter"),
        *(({"clients": clients}, "at least 2 are needed") for clients in (1, 0)),
        ({"clients": 2**31, "alpha_max": 1.0}, "modulus is 4294967297"),
        ({"servers": 1}, "at least 2 servers"),
        *(({"rho": rho}, "above 0 and at most 1") for rho in (0.0, 1.5, math.nan)),
        ({"rho": 1e-5}, "keeps none"),
        *(({"alpha_max": alpha_max}, "alpha_max") for alpha_max in (0.0, -1.0, math.nan, math.inf)),
        ({"alpha_max": 1e38}, "overflow a 32-bit float"),
        *(({"factor_bits": bits}, "from 1 to 32") for bits in (0, 33)),
        ({"factor_bits": 2}, "use more bits"),
        *(({"number_bits": bits}, "choose 32 or 64") for bits in (16, 33, 65)),
        ({"q": 0}, "q is 0; marks of SecUnion have from 1 to 32 bits"),
        *(({"q": q}, f"q is {q}") for q in (33, -1)),
        *(({"block": block}, f"block is {block}") for block in (0, 1025)),
        ({"block": 62, "rho": 0.001}, "keeps 61 indices, less than one block of 62"),
        ({"block": 2, "feedback": "paper"}, "choose lost"),
    ],
)
def test_parameters_that_cannot_work_are_refused(changes: dict[str, float | str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        lenet(**changes)


@pytest.mark.parametrize(
    "changes", [{"rho": 1.0}, {"rho": 1}, {"clients": 2}, {"servers": 7}, {"factor_bits": 3}, {"q": 32}]
)
def test_parameters_at_the_edge_are_taken(changes: dict[str, float]) -> None:
    assert lenet(**changes).kept >= 1


def test_sum_of_the_largest_factors_never_overflows_its_ring() -> None:
    for clients in (2, 3, 5, 7, 100, 65_537):
        parameters = lenet(clients=clients, alpha_max=15.9)
        largest = parameters.fixed_point.to_ring(15.9)
        assert clients * largest < parameters.factors_modulus
