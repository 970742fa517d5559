"""hubbub.strategies.secure_fedavg: the mean of whole updates, as a secure sum in fixed point."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.errors import BadUpdate, PeerError, RejectReason
from hubbub.parameters import Parameters
from hubbub.protocol.costs import Headcount
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import Residues
from hubbub.strategies.base import ClientInput
from hubbub.strategies.registry import find_strategy
from support.strategy_rounds import N, absorb, draw, make_input, play, refusal, setting

MEAN, FEDAVG = find_strategy("secure-fedavg"), find_strategy("fedavg")
UNBOUNDED = replace(setting(), kappa=4.0, first_factor_bound=1e6, factor_floor=1e-3)
THETA = draw(99)
UNIT = 2.0**-25
"""With alpha_max = 16: 2·16·2^26 would not fit into 31 bits."""


def weigh(samples: list[int], scale: float = 1.0) -> list[ClientInput]:
    """Clients with so many samples each, whose weights are a part of all samples."""
    return [
        replace(make_input(seed, theta=THETA, scale=scale), samples=count, weight=count / sum(samples))
        for seed, count in enumerate(samples)
    ]


@given(samples=st.lists(st.integers(1, 1_000), min_size=2, max_size=8), scale=st.sampled_from([1e-3, 1.0, 3.0]))
def test_the_model_is_that_of_weighted_fedavg_up_to_half_a_unit_for_each_member(
    samples: list[int], scale: float
) -> None:
    parameters, inputs = replace(UNBOUNDED, clients=len(samples)), weigh(samples, scale)

    secure, plain = (play(each, parameters, inputs) for each in (MEAN, FEDAVG))

    allowed = len(samples) / 2 * UNIT + 2 * np.spacing(np.abs(plain[0].theta).max())
    assert np.abs(secure[0].theta - plain[0].theta).max() <= allowed
    assert all(np.array_equal(each.theta, secure[0].theta) for each in secure)
    assert not any(each.accumulator.any() for each in secure)
    assert parameters.mean_fixed_point.unit == UNIT


def test_without_weights_every_client_of_the_cohort_counts_the_same_and_a_missing_one_is_missing() -> None:
    """The sum over three of five is not divided by three: that would tell the weights of the other two."""
    inputs = [make_input(seed, theta=THETA) for seed in range(5)]

    ends = play(MEAN, UNBOUNDED, inputs, left_out=[1, 3])

    sent = [inputs[place].update + inputs[place].accumulator for place in (0, 2, 4)]
    expected = THETA + np.sum(sent, axis=0, dtype=np.float64) / 5
    np.testing.assert_allclose(ends[0].theta, expected, rtol=0, atol=1e-6)
    for place, end in enumerate(ends):
        kept = inputs[place].update + inputs[place].accumulator if place in (1, 3) else np.zeros(N)
        np.testing.assert_array_equal(end.accumulator, kept)


def test_a_step_above_the_bound_is_scaled_down_to_it_and_its_rest_is_dropped() -> None:
    inputs = [replace(make_input(seed, theta=THETA), history=(0.02, 0.03, 0.01)) for seed in range(5)]

    (end, *_) = play(MEAN, UNBOUNDED, inputs)

    step = end.theta.astype(np.float64) - THETA
    assert math.sqrt((step**2).mean()) == pytest.approx(0.08, rel=1e-5), "four times the median, 0.02"
    assert end.history == (0.02, 0.03, 0.01, 0.08)
    assert 0 < end.scale < 1
    assert not end.accumulator.any()


def test_updates_at_the_edge_of_the_range_add_up_and_what_is_beyond_is_clipped() -> None:
    """Every weight is rounded, and so may be every number: there is a bit to spare."""
    extreme = np.where(np.arange(N) % 2, 16.0, -1e9).astype(np.float32)
    inputs = [make_input(seed, theta=np.zeros(N, np.float32), update=extreme) for seed in range(5)]

    ends = play(MEAN, UNBOUNDED, inputs)

    np.testing.assert_allclose(ends[0].theta, np.where(np.arange(N) % 2, 16.0, -16.0), rtol=1e-6)
    assert [end.changed for end in ends] == [N // 2] * 5


def test_a_sum_that_no_weights_explain_is_refused() -> None:
    numbers = UNBOUNDED.mean_fixed_point
    most = int(numbers.largest_units) + 3
    mine = MEAN.begin(UNBOUNDED, make_input(0, theta=THETA))

    def sums(largest: int) -> tuple[Residues, ...]:
        units = np.zeros(N, dtype=np.int64)
        units[7] = -largest
        return (numbers.to_ring(units),)

    assert refusal(mine, "update", sums(most + 1), 3) is RejectReason.FALSE_SUM
    absorb(mine, "update", sums(most), 3)


def test_a_silent_client_sends_zeros_and_keeps_its_accumulator() -> None:
    silent = replace(make_input(0, theta=THETA), update=np.zeros(N, np.float32), silent=True)
    inputs = [silent, *(make_input(seed, theta=THETA) for seed in range(1, 5))]

    ends = play(MEAN, UNBOUNDED, inputs)

    assert not MEAN.begin(UNBOUNDED, silent).contribute("update")[0].any()
    np.testing.assert_array_equal(ends[0].accumulator, silent.accumulator)


def test_an_update_that_is_not_finite_is_refused() -> None:
    update = draw(1)
    update[3] = np.inf

    with pytest.raises(BadUpdate):
        MEAN.begin(UNBOUNDED, make_input(1, theta=THETA, update=update))


def test_exactly_n_numbers_are_admitted_and_cost_what_the_formula_says() -> None:
    parameters: Parameters = replace(UNBOUNDED, verified=False)
    own = Vector("update", N, 2**32, signed=True)

    MEAN.admit(parameters, "update", (own,))
    with pytest.raises(PeerError) as caught:
        MEAN.admit(parameters, "update", (replace(own, length=N - 1),))

    assert caught.value.reason is RejectReason.WRONG_LENGTH
    assert dict(MEAN.predict_bits(parameters, Headcount.complete(5, 2), N)) == {"update": 2 * 2 * 5 * N * 32}


def test_servers_learn_nothing_and_clients_the_mean_update() -> None:
    exposure = MEAN.exposure(UNBOUNDED)

    assert (exposure.servers_learn, exposure.clients_learn) == ("nothing", "the mean update")
