"""sec-union over blocks from update to model, against a plain computation that shares no code with it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import BadUpdate, PeerError, RejectReason
from hubbub.ids import WireMode
from hubbub.parameters import Parameters
from hubbub.protocol import costs
from hubbub.protocol.aggregate import NO_HISTORY, History
from hubbub.protocol.costs import Headcount
from hubbub.protocol.layout import Vector
from hubbub.strategies.base import ClientInput, ClientRound, Conclusion, Release, Theta
from hubbub.strategies.registry import STRATEGIES, find_strategy
from support.plain_federation import Method, choose_blocks, draw_marks
from support.strategy_rounds import (
    N,
    absorb,
    add_up,
    bound,
    draw,
    factor,
    key_of,
    make_input,
    play,
    refusal,
    setting,
)

SEC_UNION = find_strategy("sec-union")
THETA = draw(99)
NOTHING = np.zeros(N, np.float32)
BLOCK = 7
"""Of 300 indices: 42 blocks and one of 6. With ρ = 0.1 a client keeps 30 indices, 4 blocks."""
LAST = 42


def in_blocks(*, block: int = BLOCK, alpha_rule: str = "norm", **changes: float) -> Parameters:
    plain = setting(alpha_rule=alpha_rule, **changes)  # type: ignore[arg-type]  # Whole numbers and others.
    return replace(plain, block=block)


class Plain:
    """What one round must come to: V, the model, and every client's accumulator."""

    def __init__(self, parameters: Parameters, inputs: Sequence[ClientInput], members: Sequence[int]) -> None:
        self.parameters, self.members = parameters, members
        self.x = [mine.update + mine.accumulator for mine in inputs]
        block, count = parameters.block, math.floor(parameters.rho * N + 1e-9) // parameters.block
        self.blocks = [choose_blocks(x, block, count) for x in self.x]
        total = np.zeros(math.ceil(N / block), np.int64)
        for place in members:
            chosen = np.array(self.blocks[place], np.int64)
            total += draw_marks(chosen, total.size, Method(q=parameters.q), key_of(place))
        self.active = [place for place, marks in enumerate(total % 2**parameters.q) if marks]
        self.union = [index for index in range(N) if index // block in self.active]
        self.sent = [self._scale(x) for x in self.x]
        mean = sum(self.sent[place] for place in members) / len(members)
        self.factor = bound(mean, parameters, inputs[0].history)
        self.scale = self.factor / mean if mean else 1.0
        self.history = (*inputs[0].history, self.factor) if mean else inputs[0].history

    def _scale(self, x: Theta) -> float:
        if not self.union:
            return 0.0
        magnitudes = [abs(float(x[index])) for index in self.union]
        if self.parameters.alpha_rule == "mean":
            alpha = math.fsum(magnitudes) / len(self.union)
        else:
            alpha = math.sqrt(math.fsum(each**2 for each in magnitudes) / len(self.union))
        scale = 2.0 ** math.floor(math.log2((2**32 - 1) / self.parameters.clients / self.parameters.alpha_max))
        return math.floor(min(alpha, self.parameters.alpha_max) * scale) / scale

    def sign(self, place: int, index: int) -> int:
        return -1 if self.x[place][index] < 0 else 1

    @property
    def theta(self) -> Theta:
        count, theta = len(self.members), THETA.copy()
        alpha = np.float32(self.factor)
        for index in self.union:
            mean = np.float32(sum(self.sign(place, index) for place in self.members)) / np.float32(count)
            theta[index] = mean * alpha + theta[index]
        return theta

    def accumulator(self, place: int) -> Theta:
        kept = self.x[place].copy()
        for index in self.union if place in self.members else ():
            kept[index] -= np.float32(self.sent[place] * self.scale) * np.float32(self.sign(place, index))
        return kept


def inputs_for(parameters: Parameters, scale: float = 1.0, history: History = NO_HISTORY) -> list[ClientInput]:
    return [make_input(seed, theta=THETA, scale=scale, history=history) for seed in range(parameters.clients)]


def check(
    parameters: Parameters, inputs: Sequence[ClientInput], *, left_out: Sequence[int] = ()
) -> tuple[Plain, list[Conclusion]]:
    members = [place for place in range(len(inputs)) if place not in left_out]
    plain = Plain(parameters, inputs, members)
    ends = play(SEC_UNION, parameters, inputs, left_out=left_out)
    for place, end in enumerate(ends):
        np.testing.assert_array_equal(end.theta, plain.theta)
        np.testing.assert_array_equal(end.accumulator, plain.accumulator(place))
        assert end.theta.dtype == end.accumulator.dtype == np.float32
        assert end.union_size == len(plain.union)
        assert (end.history, end.scale) == (plain.history, plain.scale)
    return plain, ends


# A round ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "servers"), [(2, 2), (5, 3), (8, 2)])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0], ids=["small", "ordinary", "clipped"])
def test_a_round_is_the_plain_computation(clients: int, servers: int, scale: float) -> None:
    parameters = in_blocks(clients=clients, servers=servers, q=2)
    plain, _ = check(parameters, inputs_for(parameters, scale))
    assert plain.union
    assert (plain.sent[0] == 16.0) == (scale == 100.0)


@pytest.mark.parametrize("history", [(), (0.01, 0.03, 0.02, 0.4)], ids=["first round", "later"])
def test_a_clamped_round_steps_less_far_and_the_rest_stays_in_the_accumulators(history: History) -> None:
    parameters = in_blocks(q=2, first_factor_bound=0.25)
    plain, ends = check(parameters, inputs_for(parameters, history=history), left_out=[1])
    assert plain.factor == (4 * 0.02 if history else 0.25)
    assert 0 < ends[0].scale < 1
    assert np.abs(ends[0].theta - THETA).max() <= np.float32(plain.factor) * (1 + 1e-5)


def test_blocks_of_any_size_and_marks_of_any_width(subtests: pytest.Subtests) -> None:
    for q, block in product([1, 2, 9, 32], [2, 16, 29, 30]):
        with subtests.test(block=block, q=q):
            parameters = in_blocks(block=block, q=q)
            plain, _ = check(parameters, inputs_for(parameters))
            assert {len(each) for each in plain.blocks} == {30 // block}


def test_with_one_bit_every_block_that_an_even_number_chose_is_lost_and_nothing_of_it_is_gone() -> None:
    parameters = in_blocks(rho=0.5)
    plain, ends = check(parameters, inputs_for(parameters))
    choosers = np.bincount(np.concatenate(plain.blocks), minlength=LAST + 1)
    assert plain.active == np.flatnonzero(choosers % 2).tolist()
    lost = [index for index in range(N) if choosers[index // BLOCK] in (2, 4)]
    assert lost
    for place, end in enumerate(ends):
        np.testing.assert_array_equal(end.accumulator[lost], plain.x[place][lost])


def test_the_last_block_may_be_short() -> None:
    parameters = in_blocks(q=8)
    update = draw(1)
    update[LAST * BLOCK :] = 50
    plain, _ = check(parameters, [make_input(0, theta=THETA, update=update), *inputs_for(parameters)[1:]])
    assert LAST in plain.active
    assert len(plain.union) == len(plain.active) * BLOCK - 1


def test_everybody_speaks_about_blocks_that_it_did_not_choose() -> None:
    parameters = in_blocks(clients=2, q=8)
    inputs = inputs_for(parameters)
    plain, ends = check(parameters, inputs)
    foreign = [index for index in plain.union if index // BLOCK not in plain.blocks[0]]
    assert foreign
    assert (ends[0].accumulator[foreign] != plain.x[0][foreign]).all()


def test_all_blocks() -> None:
    parameters = in_blocks(rho=1.0, q=32)
    plain, _ = check(parameters, inputs_for(parameters))
    # ⌊300/7⌋ of 43: five clients leave out hardly ever the same.
    assert len(plain.active) == 43


def test_a_client_that_is_left_out_moves_along_and_keeps_its_whole_update() -> None:
    parameters = in_blocks(q=2)
    inputs = inputs_for(parameters)
    _, ends = check(parameters, inputs, left_out=(1, 4))
    np.testing.assert_array_equal(ends[4].accumulator, inputs[4].update + inputs[4].accumulator)
    assert [end.alone_share is None for end in ends] == [False, True, False, False, True]


def test_when_nobody_has_anything_to_say_the_model_stays() -> None:
    parameters = in_blocks(q=3)
    plain, ends = check(parameters, [make_input(seed, theta=THETA, update=NOTHING) for seed in range(5)])
    assert plain.union == []
    for end in ends:
        np.testing.assert_array_equal(end.theta, THETA)
        assert end.alone_share is None


def test_a_client_with_nothing_to_say_chooses_nothing_and_adds_no_factor() -> None:
    parameters = in_blocks(q=5)
    silent = make_input(0, theta=THETA, update=NOTHING)
    plain, ends = check(parameters, [silent, *inputs_for(parameters)[1:]])
    assert plain.blocks[0] == []
    assert plain.sent[0] == 0.0
    assert not ends[0].accumulator.any()


def test_the_mean_rule_is_over_v_too() -> None:
    by_mean, _ = check(in_blocks(alpha_rule="mean", q=4), inputs_for(in_blocks()))
    by_norm, _ = check(in_blocks(q=4), inputs_for(in_blocks()))
    assert by_mean.union == by_norm.union
    assert all(mean < norm for mean, norm in zip(by_mean.sent, by_norm.sent, strict=True))


def test_the_share_of_blocks_that_one_client_chose_is_estimated() -> None:
    parameters = in_blocks(q=16)
    plain, ends = check(parameters, inputs_for(parameters))
    choosers = np.bincount(np.concatenate(plain.blocks))
    exact = np.count_nonzero(choosers == 1) / np.count_nonzero(choosers)
    assert np.mean([end.alone_share or 0.0 for end in ends]) == pytest.approx(exact, abs=0.1)


def test_a_round_leaves_model_and_update_as_they_were() -> None:
    parameters = in_blocks(clients=2)
    inputs = inputs_for(parameters)
    check(parameters, inputs)
    np.testing.assert_array_equal(THETA, draw(99))
    for seed, mine in enumerate(inputs):
        np.testing.assert_array_equal(mine.update, draw(seed))
        np.testing.assert_array_equal(mine.accumulator, draw(seed + 1_000, 0.1))


# What is secret -----------------------------------------------------------------------------------------


def begin(parameters: Parameters | None = None, seed: int = 0) -> ClientRound:
    return SEC_UNION.begin(parameters or in_blocks(), make_input(seed, theta=THETA))


def test_marks_come_from_the_clients_own_stream() -> None:
    mine = make_input(1, theta=THETA)
    one, again, other = (
        SEC_UNION.begin(in_blocks(q=8), replace(mine, stream=AesCtrStream(key_of(key)))) for key in (1, 1, 2)
    )
    (first, _), (second, _), (third, _) = (each.contribute("union") for each in (one, again, other))
    np.testing.assert_array_equal(first, second)
    assert np.any(first != third)
    np.testing.assert_array_equal(first != 0, third != 0)


def test_the_signs_are_restricted_to_all_indices_of_the_released_blocks() -> None:
    """Clients that were told different unions have different transcripts, which are made of this."""
    parameters = in_blocks()
    inputs = inputs_for(parameters)
    rounds = [SEC_UNION.begin(parameters, mine) for mine in inputs]
    assert rounds[0].restricted_to("union") == rounds[0].restricted_to("signs") == ()

    union = add_up(SEC_UNION.phases[0], parameters, rounds)
    for each in rounds:
        each.absorb("union", union, len(rounds))

    expected = Plain(parameters, inputs, range(5)).union
    for each in rounds:
        assert [listed.indices.tolist() for listed in each.restricted_to("signs")] == [expected]
        assert each.restricted_to("union") == ()


def test_what_a_client_sends_does_not_tell_the_blocks_that_it_chose() -> None:
    """In the signs phase: it speaks about V whether it chose there or not, in the same way."""
    client = begin(in_blocks(q=4))
    absorb(client, "union", [marks_at(range(10))], 5)
    pluses, *_ = client.contribute("signs")
    assert pluses.size == 70
    assert set(pluses.tolist()) == {0, 1}


def test_a_round_does_not_print_what_it_knows() -> None:
    client = begin()
    absorb(client, "union", [marks_at([1])], 5)
    assert repr(client) == f"<verified BlockRound of {N} parameters>"
    assert repr(vars(vars(client)["_inner"])["_spoken"]) == "_Spoken(<secret>, n=7)"


# Sums that cannot be ------------------------------------------------------------------------------------


def marks_at(places: Sequence[int], value: int = 1) -> NDArray[np.uint32]:
    marks = np.zeros(LAST + 1, np.uint32)
    marks[list(places)] = value
    return marks


@pytest.mark.parametrize("members", [2, 5])
def test_a_union_larger_than_the_members_choices_is_refused(members: int) -> None:
    absorb(begin(), "union", [marks_at(range(members * 4))], members)
    too_large = [marks_at(range(members * 4 + 1))]
    assert refusal(begin(), "union", too_large, members) is RejectReason.FALSE_SUM


@pytest.mark.parametrize(("members", "pluses"), [(2, 3), (4, 5)])
def test_more_pluses_than_members_are_refused(members: int, pluses: int) -> None:
    client = begin()
    absorb(client, "union", [marks_at([3])], members)
    absorb(client, "signs", [np.full(BLOCK, members, np.uint32), factor()], members)
    wrong = [np.full(BLOCK, pluses, np.uint32), factor()]
    assert refusal(client, "signs", wrong, members) is RejectReason.FALSE_SUM


def test_with_everybody_there_no_number_of_pluses_is_refused() -> None:
    """So that whoever shifts sums learns nothing from a refusal."""
    client = begin()
    absorb(client, "union", [marks_at([3])], 5)
    absorb(client, "signs", [np.array([0, 1, 2, 3, 4, 5, 0], np.uint32), factor()], 5)


def test_a_factor_that_the_members_cannot_have_is_refused() -> None:
    parameters = in_blocks()
    largest = 2 * parameters.fixed_point.to_ring(parameters.alpha_max)
    client = begin(parameters)
    absorb(client, "union", [marks_at([])], 2)
    nothing = np.zeros(0, np.uint32)
    absorb(client, "signs", [nothing, factor(largest)], 2)
    assert refusal(client, "signs", [nothing, factor(largest + 1)], 2) is RejectReason.FALSE_SUM


def test_whether_a_sum_is_refused_does_not_depend_on_the_clients_own_input() -> None:
    """These sums leave no room for what the loud client sent, and neither client says so."""
    for client in (begin(), SEC_UNION.begin(in_blocks(), make_input(0, theta=THETA, update=NOTHING))):
        absorb(client, "union", [marks_at([5])], 5)
        for pluses in (0, 5):
            absorb(client, "signs", [np.full(BLOCK, pluses, np.uint32), factor()], 5)


def test_a_release_of_another_shape_is_refused() -> None:
    client = begin()
    vector, tags = client.vectors("union")
    for wrong in (replace(vector, length=N), replace(vector, modulus=vector.modulus + 1)):
        zeros = (np.zeros(wrong.length, np.uint32), np.zeros(tags.length, np.uint32))
        with pytest.raises(PeerError):
            client.absorb("union", Release((wrong, tags), zeros), 5)
    absorb(client, "union", [marks_at([4, 5])], 5)
    shorter = (Vector("signs", 7, 6), Vector("factors", 1, 2**32), Vector("tags", 3, 2**64))
    with pytest.raises(PeerError) as caught:
        client.absorb("signs", Release(shorter, (np.zeros(7, np.uint32), factor(), np.zeros(3, np.uint64))), 5)
    assert caught.value.reason is RejectReason.WRONG_LENGTH


# Updates that cannot be sent ----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_no_number_is_refused(value: float) -> None:
    update = draw(1)
    update[17] = value
    with pytest.raises(BadUpdate, match="NaN or infinity"):
        SEC_UNION.begin(in_blocks(), make_input(0, theta=THETA, update=update))


def test_a_round_without_all_its_sums_cannot_be_concluded() -> None:
    client = begin()
    with pytest.raises(BadUpdate, match="after its sums were absorbed"):
        client.contribute("signs")
    absorb(client, "union", [marks_at([1])], 5)
    with pytest.raises(BadUpdate, match="after its sums were absorbed"):
        client.conclude(took_part=True)


# What servers admit, and what it costs ------------------------------------------------------------------

FACTOR = Vector("factors", 1, 2**32)


def test_the_vectors_of_honest_clients_are_admitted() -> None:
    parameters = in_blocks(q=3, verified=False)
    client = begin(parameters)
    assert client.vectors("union") == (Vector("union", 43, 8),)
    SEC_UNION.admit(parameters, "union", client.vectors("union"))
    absorb(client, "union", [marks_at([1, LAST])], 5)
    assert client.vectors("signs") == (Vector("signs", 13, 6), FACTOR)
    for length in (0, 6, 7, 13, 139, 140):  # Five times four blocks at most.
        SEC_UNION.admit(parameters, "signs", (Vector("signs", length, 6), FACTOR))


def test_everything_is_admitted_where_the_cohort_can_choose_everything() -> None:
    parameters = in_blocks(rho=0.5, verified=False)
    SEC_UNION.admit(parameters, "signs", (Vector("signs", N, 6), FACTOR))
    with pytest.raises(PeerError, match="at most 300"):
        SEC_UNION.admit(parameters, "signs", (Vector("signs", 301, 6), FACTOR))


@pytest.mark.parametrize(
    ("phase", "declared", "reason"),
    [
        ("union", (Vector("union", N, 2),), RejectReason.WRONG_LENGTH),
        ("union", (Vector("union", 43, 4),), RejectReason.WRONG_RING),
        ("signs", (Vector("signs", 141, 6), FACTOR), RejectReason.WRONG_LENGTH),
        ("signs", (Vector("signs", 147, 6), FACTOR), RejectReason.WRONG_LENGTH),
        ("signs", (Vector("signs", 8, 6), FACTOR), RejectReason.WRONG_LENGTH),
        ("signs", (Vector("signs", 7, 11), FACTOR), RejectReason.WRONG_RING),
        ("signs", (Vector("signs", 7, 6),), RejectReason.WRONG_LENGTH),
    ],
    ids=str,
)
def test_other_vectors_are_refused(phase: str, declared: tuple[Vector, ...], reason: RejectReason) -> None:
    for admit in (SEC_UNION.admit, SEC_UNION.admit_release):
        with pytest.raises(PeerError) as caught:
            admit(in_blocks(verified=False), phase, declared)
        assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        # 2·S·C·(⌈N/b⌉·q, |V|·⌈log2(C + 1)⌉, 32), and the tags of 128 bits and of 3 words
        ("paper", {"union": 20 * 3_857, "signs": 20 * 8_000 * 3, "factors": 20 * 32, "tags": 20 * (128 + 192)}),
        # (2C + S - 1)·(3,857, ⌈8,000/17⌉·44, 32), and a seed of each client in each phase
        (
            "compact",
            {
                "union": 11 * 3_857 + 1_280,
                "signs": 11 * 471 * 44 + 1_280,
                "factors": 11 * 32,
                "tags": 11 * (128 + 192),
            },
        ),
    ],
)
def test_what_lenet_costs_in_blocks_of_sixteen(wire: WireMode, expected: dict[str, int]) -> None:
    lenet = Parameters(parameters=61_706, clients=5, servers=2, rho=0.1, block=16, wire=wire)

    assert SEC_UNION.predict_bits(lenet, Headcount.complete(5, 2), 8_000) == expected


def test_other_strategies_cost_the_same_whatever_the_block() -> None:
    heads = Headcount.complete(5, 2)
    for name, strategy in STRATEGIES.items():
        if name != "sec-union":
            flat, blocks = (
                strategy.predict_bits(setting(), heads, 20),
                strategy.predict_bits(in_blocks(), heads, 20),
            )
            assert flat == blocks, name


def test_the_ring_is_the_cohorts_also_where_fewer_take_part() -> None:
    heads = Headcount(cohort=5, senders=3, recipients=5, servers=2)
    assert costs.pluses_bits(10, heads) == 2 * (3 + 5) * 10 * 3
