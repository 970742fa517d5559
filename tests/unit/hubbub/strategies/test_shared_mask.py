"""Levels on a shared mask, from update to model."""

from dataclasses import replace

import numpy as np
import pytest

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import BadUpdate, LocalError, PeerError, RejectReason
from hubbub.parameters import Parameters
from hubbub.protocol import masks
from hubbub.protocol.costs import Headcount
from hubbub.protocol.layout import Vector
from hubbub.strategies.base import ClientRound
from hubbub.strategies.registry import find_strategy
from support.strategy_rounds import MASK, N, absorb, draw, factor, make_input, play, refusal, setting

MASKED = find_strategy("shared-mask")
THETA = draw(99)
PARAMETERS = setting(rho=0.1)
ALL_BITS = pytest.mark.parametrize("bits", masks.SPREAD)


def begin(parameters: Parameters = PARAMETERS, **changes: object) -> ClientRound:
    mine = make_input(1, theta=THETA)
    return MASKED.begin(parameters, replace(mine, **changes))  # type: ignore[arg-type]  # Fields of several types.


@ALL_BITS
def test_only_the_mask_moves_and_the_same_at_all_clients(bits: int) -> None:
    parameters = replace(PARAMETERS, bits=bits)
    ends = play(MASKED, parameters, [make_input(seed, theta=THETA) for seed in range(5)])

    for end in ends:
        np.testing.assert_array_equal(end.theta, ends[0].theta)
        assert end.union_size == PARAMETERS.kept
    assert np.count_nonzero(ends[0].theta != THETA) <= PARAMETERS.kept


def test_the_step_is_the_mean_factor_times_the_mean_level() -> None:
    """Factors of 1, 3 and 2; two pluses and a minus everywhere."""
    parameters = replace(PARAMETERS, bits=1)
    updates = [np.full(N, size, np.float32) for size in (1, 3, -2)]
    inputs = [make_input(0, theta=THETA, update=update) for update in updates]

    end = play(MASKED, parameters, inputs)[0]

    moved = end.theta - THETA
    np.testing.assert_allclose(moved[moved != 0], 2 * (1 / 3), atol=1e-6)


def test_nothing_is_kept_by_members_or_those_left_out() -> None:
    inputs = [replace(make_input(seed, theta=THETA), accumulator=np.zeros(N, np.float32)) for seed in range(5)]

    for end in play(MASKED, PARAMETERS, inputs, left_out=[2]):
        assert not end.accumulator.any()


def test_the_transcript_covers_the_mask() -> None:
    (restriction,) = begin().restricted_to("levels")

    assert restriction.indices is MASK


@ALL_BITS
def test_a_silent_client_sends_middle_levels_and_no_factor(bits: int) -> None:
    levels, factors, *_ = begin(replace(PARAMETERS, bits=bits), silent=True).contribute("levels")

    assert set(levels.tolist()) == {2 ** (bits - 1) - 1, 2 ** (bits - 1)}
    assert factors.tolist() == [0]


def test_a_factor_is_cut_at_alpha_max_and_levels_are_of_what_is_sent() -> None:
    """Changes of a thousand times alpha_max are all extreme levels."""
    update = np.where(np.arange(N) % 20 < 10, 1_000, -1_000).astype(np.float32)
    levels, factors, *_ = begin(setting(rho=0.1, alpha_max=1.0), update=update).contribute("levels")

    assert levels.tolist() == [3 if value > 0 else 0 for value in update[MASK]]
    assert factors.tolist() == [setting(alpha_max=1.0).fixed_point.to_ring(1.0)]


@pytest.mark.parametrize(
    ("levels", "alpha"),
    [([10] + [0] * 29, 0), ([0] * 30, PARAMETERS.fixed_point.to_ring(16.0) * 3 + 1)],
    ids=["levels", "factor"],
)
def test_sums_that_three_members_cannot_have_are_refused(levels: list[int], alpha: int) -> None:
    """Three members of two bits have nine at most."""
    values = np.array(levels, np.uint32), factor(alpha)

    assert refusal(begin(), "levels", values, 3) is RejectReason.FALSE_SUM
    absorb(begin(), "levels", (np.array([9] + [0] * 29, np.uint32), factor()), 3)


def test_a_round_without_a_mask_is_refused() -> None:
    with pytest.raises(LocalError, match="begins with the mask"):
        begin(mask=None)


def test_a_change_that_is_not_finite_is_refused_on_the_mask_alone() -> None:
    update = draw(1)
    update[0] = np.nan  # Not in the mask.
    begin(update=update)
    update[5] = np.nan

    with pytest.raises(BadUpdate):
        begin(update=update)


def test_exactly_k_levels_and_a_factor_are_admitted() -> None:
    own = begin().vectors("levels")
    MASKED.admit(PARAMETERS, "levels", own)
    assert own[0] == Vector("levels", 30, 16)

    with pytest.raises(PeerError) as caught:
        MASKED.admit(PARAMETERS, "levels", (Vector("levels", 29, 16), *own[1:]))
    assert caught.value.reason is RejectReason.WRONG_LENGTH


@ALL_BITS
def test_payload_follows_the_formula(bits: int) -> None:
    """2·S·C·k·⌈log2(C·t + 1)⌉ and the factors, on the paper's wire."""
    heads, per_level = Headcount.complete(5, 2), {1: 3, 2: 4, 3: 6, 4: 7}[bits]
    predicted = MASKED.predict_bits(replace(PARAMETERS, bits=bits, verified=False), heads, 30)

    assert dict(predicted) == {"levels": 2 * 2 * 5 * 30 * per_level, "factors": 2 * 2 * 5 * 32}


@ALL_BITS
def test_servers_learn_nothing_and_clients_learn_what_agrees(bits: int) -> None:
    exposure = MASKED.exposure(replace(PARAMETERS, bits=bits))

    assert exposure.servers_learn == "nothing"
    assert exposure.clients_learn == ("all signs on V that agree" if bits == 1 else "extreme levels that agree")


def test_clients_with_one_stream_draw_one_mask() -> None:
    drawn = [MASKED.draw_mask(PARAMETERS, (200, 100), AesCtrStream(bytes(32))) for _ in range(2)]

    assert drawn[0] is not None
    assert drawn[1] is not None
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert drawn[0].size == PARAMETERS.kept


def test_other_strategies_train_all_coordinates() -> None:
    no_union = find_strategy("no-union")

    assert no_union.draw_mask(PARAMETERS, (N,), AesCtrStream(bytes(32))) is None
