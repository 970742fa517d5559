"""The secure strategies from update to model, against a plain computation that shares no code with them.

`BLOCKS` stands for sec-union over blocks of seven indices.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import BadUpdate, ConfigurationError, PeerError, RejectReason
from hubbub.ids import WireMode
from hubbub.parameters import Parameters
from hubbub.protocol import costs
from hubbub.protocol.aggregate import NO_HISTORY, History
from hubbub.protocol.costs import Headcount
from hubbub.protocol.layout import Vector
from hubbub.strategies import secure
from hubbub.strategies.base import ClientInput, ClientRound, Conclusion, Release, Theta
from hubbub.strategies.registry import STRATEGIES, find_strategy
from hubbub.strategies.unions import SIGNS
from hubbub.strategies.verified import Verified
from support.plain_federation import Method, choose_blocks, draw_marks
from support.refusals import refusing
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

BLOCKS = "blocks"
BLOCK = 7
"""Of 300 indices: 42 blocks and one of 6. With ρ = 0.1 a client keeps 30 indices, 4 blocks."""
LAST = 42
FLAT = tuple(strategy.name for strategy in secure.STRATEGIES)
every_flat = pytest.mark.parametrize("name", FLAT)
every_method = pytest.mark.parametrize("name", [*FLAT, BLOCKS])
every_union = pytest.mark.parametrize("name", [*(name for name in FLAT if name != "no-union"), BLOCKS])
THETA = draw(99)
NOTHING = np.zeros(N, np.float32)


def strategy_of(name: str) -> Verified:
    return find_strategy("sec-union" if name == BLOCKS else name)


def setting_of(name: str, *, block: int = BLOCK, **changes: object) -> Parameters:
    plain = setting(**changes)  # type: ignore[arg-type]  # Numbers and names, as the test has them.
    return replace(plain, block=block) if name == BLOCKS else plain


# Algorithm 2 in the open --------------------------------------------------------------------------------


class Plain:
    """The expected end of one round: the model, V, and every client's accumulator."""

    def __init__(
        self, name: str, parameters: Parameters, inputs: Sequence[ClientInput], members: Sequence[int]
    ) -> None:
        self.name, self.parameters, self.members = name, parameters, members
        self.x = [mine.update + mine.accumulator for mine in inputs]
        self.blocks: list[list[int]] = []
        self.active: list[int] = []
        self.union: list[int] = []
        if name == BLOCKS:
            self._unite_blocks()
            self.signs = [self._speak_on_union(x) for x in self.x]
            self.sent = [self._scale(x[self.union], range(len(self.union))) for x in self.x]
        else:
            self.signs = [self._choose(x) for x in self.x]
            self.sent = [self._scale(x, np.flatnonzero(s)) for x, s in zip(self.x, self.signs, strict=True)]
            self.union = self._unite()
        mean = sum(self.sent[place] for place in members) / len(members)
        self.factor = bound(mean, parameters, inputs[0].history)
        self.scale = self.factor / mean if mean else 1.0
        self.history = (*inputs[0].history, self.factor) if mean else inputs[0].history

    def _choose(self, x: Theta) -> NDArray[np.float32]:
        order = sorted(range(N), key=lambda i: (-abs(float(x[i])), i))
        signs = np.zeros(N, np.float32)
        for index in order[: math.floor(self.parameters.rho * N + 1e-9)]:
            signs[index] = np.sign(x[index])
        return signs

    def _speak_on_union(self, x: Theta) -> NDArray[np.float32]:
        signs = np.zeros(N, np.float32)
        for index in self.union:
            signs[index] = -1 if x[index] < 0 else 1
        return signs

    def _scale(self, x: Theta, chosen: Sequence[int] | NDArray[np.int64]) -> float:
        if not len(chosen):
            return 0.0
        if self.parameters.alpha_rule == "mean":
            alpha = math.fsum(abs(float(x[index])) for index in chosen) / len(chosen)
        else:
            alpha = math.sqrt(math.fsum(float(value) ** 2 for value in x) / len(chosen))
        clients, alpha_max = self.parameters.clients, self.parameters.alpha_max
        scale = 2.0 ** math.floor(math.log2((2**32 - 1) / clients / alpha_max))
        return math.floor(min(alpha, alpha_max) * scale) / scale

    def _unite(self) -> list[int]:
        if self.name == "no-union":
            return list(range(N))
        total = np.zeros(N, np.int64)
        for place in self.members:
            chosen = np.flatnonzero(self.signs[place])
            if self.name == "sec-union":
                method = Method(strategy=self.name, q=self.parameters.q)
                total += draw_marks(chosen, N, method, key_of(place))
            else:
                total[chosen] += 1
        lossy = self.name == "sec-union"
        return [index for index in range(N) if (total[index] % 2**self.parameters.q if lossy else total[index])]

    def _unite_blocks(self) -> None:
        block, q = self.parameters.block, self.parameters.q
        count = math.floor(self.parameters.rho * N + 1e-9) // block
        self.blocks = [choose_blocks(x, block, count) for x in self.x]
        total = np.zeros(math.ceil(N / block), np.int64)
        for place in self.members:
            chosen = np.array(self.blocks[place], np.int64)
            total += draw_marks(chosen, total.size, Method(q=q), key_of(place))
        self.active = [place for place, marks in enumerate(total % 2**q) if marks]
        self.union = [index for index in range(N) if index // block in self.active]

    @property
    def choosers(self) -> NDArray[np.int64]:
        """The number of clients that chose each index, or each block."""
        chosen = [np.flatnonzero(signs).tolist() for signs in self.signs] if self.name != BLOCKS else self.blocks
        counts = Counter(place for each in chosen for place in each)
        return np.array([counts[place] for place in range(LAST + 1 if self.name == BLOCKS else N)], np.int64)

    @property
    def theta(self) -> Theta:
        count, theta, alpha = len(self.members), THETA.copy(), np.float32(self.factor)
        for index in self.union:
            direction = np.float32(sum(self.signs[place][index] for place in self.members)) / np.float32(count)
            theta[index] = direction * alpha + theta[index]
        return theta

    def accumulator(self, place: int) -> Theta:
        if place not in self.members:
            return self.x[place]
        arrived = np.zeros(N, np.float32)
        arrived[self.union] = 1
        leaves = self.signs[place] * (arrived if self.parameters.feedback == "lost" else np.float32(1))
        return self.x[place] - np.float32(self.sent[place] * self.scale) * leaves


def check(
    name: str, parameters: Parameters, inputs: Sequence[ClientInput], *, left_out: Sequence[int] = ()
) -> tuple[Plain, list[Conclusion]]:
    """Play a round, compare its end with the plain computation, and check that its inputs are as they were."""
    given = [(mine.theta.copy(), mine.update.copy(), mine.accumulator.copy()) for mine in inputs]
    members = [place for place in range(len(inputs)) if place not in left_out]
    plain = Plain(name, parameters, inputs, members)
    ends = play(strategy_of(name), parameters, inputs, left_out=left_out)
    for place, end in enumerate(ends):
        np.testing.assert_array_equal(end.theta, plain.theta)
        np.testing.assert_array_equal(end.accumulator, plain.accumulator(place))
        assert end.theta.dtype == end.accumulator.dtype == np.float32
        assert end.union_size == len(plain.union)
        assert (end.history, end.scale) == (plain.history, plain.scale)
    for mine, before in zip(inputs, given, strict=True):
        np.testing.assert_array_equal((mine.theta, mine.update, mine.accumulator), before)
    return plain, ends


def inputs_for(parameters: Parameters, scale: float = 1.0, history: History = NO_HISTORY) -> list[ClientInput]:
    return [make_input(seed, theta=THETA, scale=scale, history=history) for seed in range(parameters.clients)]


@every_method
@pytest.mark.parametrize(("clients", "servers", "scale"), [(2, 2, 0.01), (5, 3, 1.0), (8, 2, 100.0)])
def test_a_round_is_the_plain_computation(name: str, clients: int, servers: int, scale: float) -> None:
    parameters = setting_of(name, clients=clients, servers=servers, q=2)
    plain, _ = check(name, parameters, inputs_for(parameters, scale))
    assert plain.union
    assert (plain.sent[0] == 16.0) == (scale == 100.0), "it is clipped"


@every_method
@pytest.mark.parametrize("history", [(), (0.01, 0.03, 0.02, 0.4)], ids=["first round", "later"])
def test_what_a_clamped_round_does_not_apply_stays_in_the_accumulators(name: str, history: History) -> None:
    parameters = setting_of(name, q=2, first_factor_bound=0.25)
    plain, ends = check(name, parameters, inputs_for(parameters, history=history), left_out=[1])
    assert plain.factor == (4 * 0.02 if history else 0.25)
    assert 0 < ends[0].scale < 1
    assert np.abs(ends[0].theta - THETA).max() <= np.float32(plain.factor) * (1 + 1e-5)


@pytest.mark.parametrize("q", [1, 2, 8, 9, 17, 32])
def test_sec_union_with_marks_of_every_width_and_blocks_of_any_size(q: int) -> None:
    parameters = setting(rho=0.3, q=q)
    plain, _ = check("sec-union", parameters, inputs_for(parameters))
    lost = np.count_nonzero(plain.choosers) - len(plain.union)
    assert lost > 10 if q <= 2 else lost < 5, "few marks cancel often, many hardly ever"
    for block in (2, 16, 29, 30):
        parameters = setting_of(BLOCKS, block=block, q=q)
        plain, _ = check(BLOCKS, parameters, inputs_for(parameters))
        assert {len(each) for each in plain.blocks} == {30 // block}


def test_with_one_bit_whatever_an_even_number_chose_is_lost_and_nothing_of_it_is_gone() -> None:
    parameters = setting(rho=0.3)
    plain, _ = check("sec-union", parameters, inputs_for(parameters))
    assert plain.union == np.flatnonzero(plain.choosers % 2).tolist()
    parameters = setting_of(BLOCKS, rho=0.5)
    plain, ends = check(BLOCKS, parameters, inputs_for(parameters))
    assert plain.active == np.flatnonzero(plain.choosers % 2).tolist()
    lost = [index for index in range(N) if plain.choosers[index // BLOCK] in (2, 4)]
    assert lost
    for place, end in enumerate(ends):
        np.testing.assert_array_equal(end.accumulator[lost], plain.x[place][lost])


@every_flat
@pytest.mark.parametrize(("rho", "kept"), [(1.0, N), (1 / N, 1), (0.004, 1)])
def test_all_indices_and_only_one(name: str, rho: float, kept: int) -> None:
    parameters = setting(rho=rho, q=8)
    assert parameters.kept == kept
    plain, _ = check(name, parameters, inputs_for(parameters))
    if kept == N and name in {"partial-sec-union", "plaintext-union"}:
        assert len(plain.union) == N


def test_all_blocks_and_a_last_one_that_is_short() -> None:
    parameters = setting_of(BLOCKS, rho=1.0, q=32)
    plain, _ = check(BLOCKS, parameters, inputs_for(parameters))
    assert len(plain.active) == LAST + 1, "⌊300/7⌋ of 43: five clients hardly ever leave out the same"
    parameters = setting_of(BLOCKS, q=8)
    update = draw(1)
    update[LAST * BLOCK :] = 50
    plain, _ = check(BLOCKS, parameters, [make_input(0, theta=THETA, update=update), *inputs_for(parameters)[1:]])
    assert LAST in plain.active
    assert len(plain.union) == len(plain.active) * BLOCK - 1


def test_everybody_speaks_about_blocks_that_it_did_not_choose() -> None:
    parameters = setting_of(BLOCKS, clients=2, q=8)
    plain, ends = check(BLOCKS, parameters, inputs_for(parameters))
    foreign = [index for index in plain.union if index // BLOCK not in plain.blocks[0]]
    assert foreign
    assert (ends[0].accumulator[foreign] != plain.x[0][foreign]).all()


@every_method
def test_when_nobody_has_anything_to_say_the_model_stays(name: str) -> None:
    parameters = setting_of(name, q=3)
    plain, ends = check(name, parameters, [make_input(seed, theta=THETA, update=NOTHING) for seed in range(5)])
    assert len(plain.union) == (N if name == "no-union" else 0)
    for end in ends:
        np.testing.assert_array_equal(end.theta, THETA)
        assert end.alone_share is None


@every_method
def test_fewer_nonzeros_than_k_are_sent_as_they_are(name: str) -> None:
    parameters = setting_of(name, q=5)
    sparse = NOTHING.copy()
    sparse[[3, 200]] = (0.5, -2.0)
    plain, _ = check(name, parameters, [make_input(0, theta=THETA, update=sparse), *inputs_for(parameters)[1:]])
    assert len(plain.blocks[0]) == 2 if name == BLOCKS else np.count_nonzero(plain.signs[0]) == 2


@every_method
@pytest.mark.parametrize("feedback", ["lost", "paper"])
def test_a_client_that_is_left_out_moves_along_and_keeps_its_whole_update(name: str, feedback: str) -> None:
    parameters = setting_of(name, q=2, feedback="lost" if name == BLOCKS else feedback)
    inputs = inputs_for(parameters)
    _, ends = check(name, parameters, inputs, left_out=(1, 4))
    np.testing.assert_array_equal(ends[4].accumulator, inputs[4].update + inputs[4].accumulator)
    assert np.any(ends[0].accumulator != inputs[0].update + inputs[0].accumulator)
    # A client whose marks are not in the sum does not guess from them.
    knows = [end.alone_share is not None for end in ends]
    tells = name not in {"no-union", "plaintext-union"}
    assert knows == [tells, False, tells, tells, False]


@every_flat
def test_feedback_makes_a_difference_exactly_where_indices_were_lost(name: str) -> None:
    letter = setting(rho=0.3, feedback="paper")
    with_letter, ends_by_letter = check(name, letter, inputs_for(letter))
    feedback = replace(letter, feedback="lost")
    _, ends = check(name, feedback, inputs_for(feedback))
    lost = np.any(with_letter.signs, axis=0)
    lost[with_letter.union] = False
    assert lost.any() == (name == "sec-union")
    for place, (end, by_letter) in enumerate(zip(ends, ends_by_letter, strict=True)):
        np.testing.assert_array_equal(end.theta, by_letter.theta)
        np.testing.assert_array_equal(
            end.accumulator != by_letter.accumulator, lost & (with_letter.signs[place] != 0)
        )
        np.testing.assert_array_equal(end.accumulator[lost], with_letter.x[place][lost])


@every_method
def test_the_mean_rule_gives_the_mean_magnitude_of_what_was_chosen(name: str) -> None:
    parameters = setting_of(name, alpha_rule="mean", q=4)
    by_mean, _ = check(name, parameters, inputs_for(parameters))
    by_norm, _ = check(name, replace(parameters, alpha_rule="norm"), inputs_for(parameters))
    assert by_mean.union == by_norm.union
    assert all(mean < norm for mean, norm in zip(by_mean.sent, by_norm.sent, strict=True))


@pytest.mark.parametrize(("name", "tolerance"), [("partial-sec-union", 0.0), ("sec-union", 0.05), (BLOCKS, 0.1)])
def test_the_share_that_one_client_alone_chose_is_known_or_estimated(name: str, tolerance: float) -> None:
    parameters = setting_of(name, q=16)
    plain, ends = check(name, parameters, inputs_for(parameters))
    exact = np.count_nonzero(plain.choosers == 1) / np.count_nonzero(plain.choosers)
    assert 0 < exact < 1
    shares = [end.alone_share for end in ends if end.alone_share is not None]
    assert len(shares) == 5
    assert np.mean(shares) == pytest.approx(exact, abs=tolerance)


# What is secret -----------------------------------------------------------------------------------------


def begin(name: str, parameters: Parameters | None = None, seed: int = 0) -> ClientRound:
    return strategy_of(name).begin(parameters or setting_of(name), make_input(seed, theta=THETA))


def marks_at(name: str, places: Sequence[int], value: int = 1) -> NDArray[np.uint32]:
    marks = np.zeros(LAST + 1 if name == BLOCKS else N, np.uint32)
    marks[list(places)] = value
    return marks


@pytest.mark.parametrize("name", ["sec-union", BLOCKS])
def test_marks_come_from_the_clients_own_stream(name: str) -> None:
    mine = make_input(1, theta=THETA)
    one, again, other = (
        strategy_of(name).begin(setting_of(name, q=8), replace(mine, stream=AesCtrStream(key_of(key))))
        for key in (1, 1, 2)
    )
    (first, _), (second, _), (third, _) = (each.contribute("union") for each in (one, again, other))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, one.contribute("union")[0], "the same again when asked again")
    assert np.any(first != third)
    np.testing.assert_array_equal(first != 0, third != 0)


@every_union
def test_the_signs_are_restricted_to_the_released_union_and_to_nothing_else(name: str) -> None:
    """Clients that were told different unions have different transcripts, which are made of this."""
    strategy, parameters = strategy_of(name), setting_of(name)
    inputs = inputs_for(parameters)
    rounds = [strategy.begin(parameters, mine) for mine in inputs]
    assert rounds[0].restricted_to("union") == rounds[0].restricted_to("signs") == ()

    union = add_up(strategy.phases[0], parameters, rounds)
    for each in rounds:
        each.absorb("union", union, len(rounds))

    expected = Plain(name, parameters, inputs, range(5)).union
    for each in rounds:
        assert [listed.indices.tolist() for listed in each.restricted_to("signs")] == [expected]
        assert each.restricted_to("union") == ()
    assert begin("no-union").restricted_to("signs") == ()


def test_what_a_client_sends_does_not_tell_the_blocks_that_it_chose_and_does_not_print() -> None:
    """In the signs phase it speaks about V whether it chose there or not, in the same way."""
    client = begin(BLOCKS, setting_of(BLOCKS, q=4))
    absorb(client, "union", [marks_at(BLOCKS, range(10))], 5)
    pluses, *_ = client.contribute("signs")
    assert pluses.size == 70
    assert set(pluses.tolist()) == {0, 1}
    assert repr(client) == f"<verified BlockRound of {N} parameters>"
    assert repr(vars(vars(client)["_inner"])["_spoken"]) == "_Spoken(<secret>, n=70)"


# Sums that cannot be ------------------------------------------------------------------------------------


@every_union
@pytest.mark.parametrize("members", [2, 5])
def test_a_union_larger_than_the_members_choices_is_refused(name: str, members: int) -> None:
    largest = members * (4 if name == BLOCKS else 30)
    absorb(begin(name), "union", [marks_at(name, range(largest))], members)
    too_large = [marks_at(name, range(largest + 1))]
    assert refusal(begin(name), "union", too_large, members) is RejectReason.FALSE_SUM


def test_choosers_and_signs_that_do_not_fit_each_other_are_refused(subtests: pytest.Subtests) -> None:
    name = "partial-sec-union"
    absorb(begin(name), "union", [marks_at(name, [7], 3)], 3)
    assert refusal(begin(name), "union", [marks_at(name, [7], 4)], 3) is RejectReason.FALSE_SUM
    for choosers, direction in product(range(1, 6), range(-5, 6)):
        with subtests.test(choosers=choosers, direction=direction):
            client = begin(name)
            absorb(client, "union", [marks_at(name, [7], choosers)], 5)
            values = [np.array([direction % 11], np.uint32), factor()]
            if direction in range(-choosers, choosers + 1, 2):  # Each sign that is flipped changes the sum by two.
                absorb(client, "signs", values, 5)
            else:
                assert refusal(client, "signs", values, 5) is RejectReason.FALSE_SUM


@every_method
def test_signs_and_factors_that_the_members_cannot_have_are_refused(name: str) -> None:
    parameters = setting_of(name)
    largest = 2 * parameters.fixed_point.to_ring(parameters.alpha_max)
    client = begin(name)
    if name != "no-union":
        absorb(client, "union", [marks_at(name, [7])], 2)
    length = client.vectors("signs")[0].length
    ring, possible, impossible = (6, (0, 2), (3, 5)) if name == BLOCKS else (11, (-1, 1), (-3, 3))
    for direction in impossible:
        wrong = np.full(length, direction % ring, np.uint32)
        assert refusal(client, "signs", [wrong, factor()], 2) is RejectReason.FALSE_SUM
    for direction in possible:
        right = np.full(length, direction % ring, np.uint32)
        absorb(client, "signs", [right, factor(largest)], 2)
        assert refusal(client, "signs", [right, factor(largest + 1)], 2) is RejectReason.FALSE_SUM


@every_method
def test_whether_a_sum_is_refused_does_not_depend_on_the_clients_own_input(name: str) -> None:
    """These sums leave no room for what the loud client sent, and neither client says so."""
    for client in (
        begin(name),
        strategy_of(name).begin(setting_of(name), make_input(0, theta=THETA, update=NOTHING)),
    ):
        if name != "no-union":
            absorb(client, "union", [marks_at(name, [5] if name == BLOCKS else [])], 5)
        length = client.vectors("signs")[0].length
        for summed in range(6) if name == BLOCKS else (5,):
            absorb(client, "signs", [np.full(length, summed, np.uint32), factor()], 5)


@every_union
def test_a_release_of_another_shape_is_refused(name: str) -> None:
    client = begin(name, setting_of(name, verified=False))
    (vector,) = client.vectors("union")
    for wrong in (replace(vector, length=vector.length - 1), replace(vector, modulus=vector.modulus + 1)):
        with pytest.raises(PeerError):
            client.absorb("union", Release((wrong,), (np.zeros(wrong.length, np.uint32),)), 5)
    absorb(client, "union", [marks_at(name, [4, 5])], 5)
    shorter = (Vector("signs", 1, client.vectors("signs")[0].modulus), Vector("factors", 1, 2**32))
    with refusing(RejectReason.WRONG_LENGTH):
        client.absorb("signs", Release(shorter, (np.zeros(1, np.uint32), factor())), 5)


# Updates that cannot be sent, and rounds that are not over ----------------------------------------------


@every_method
def test_an_update_that_cannot_be_sent_is_refused(name: str) -> None:
    mine = make_input(0, theta=THETA)
    for length in (0, N - 1, N + 1):
        with pytest.raises(BadUpdate, match=f"shape \\({length},\\) where the run has {N} parameters"):
            strategy_of(name).begin(setting_of(name), replace(mine, update=np.ones(length, np.float32)))
    broken = [draw(1) for _ in range(3)]
    for update, value in zip(broken, (np.nan, np.inf, -np.inf), strict=True):
        update[17] = value
    huge = np.full(N, 3e38, np.float32)
    for wrong in (
        *(replace(mine, update=update) for update in broken),
        replace(mine, update=huge, accumulator=huge),
    ):
        with pytest.raises(BadUpdate, match="NaN or infinity"):
            strategy_of(name).begin(setting_of(name), wrong)


@every_union
def test_a_round_without_all_its_sums_cannot_be_concluded(name: str) -> None:
    client = begin(name)
    with pytest.raises(BadUpdate, match="after its sums were absorbed"):
        _ = client.contribute("signs") if name == BLOCKS else client.conclude(took_part=True)
    absorb(client, "union", [marks_at(name, [1])], 5)
    with pytest.raises(BadUpdate, match="after its sums were absorbed"):
        client.conclude(took_part=True)


# What servers admit -------------------------------------------------------------------------------------

SIGNS_11 = Vector("signs", N, 11)
FACTOR = Vector("factors", 1, 2**32)
MARKS = {"sec-union": 2**3, "partial-sec-union": 6, "plaintext-union": 2}
ADMITTED: dict[str, tuple[Vector, int, tuple[int, ...]]] = {
    **{name: (Vector("union", N, m), 11, (0, 2, 150)) for name, m in MARKS.items()},  # Five times k at most.
    BLOCKS: (Vector("union", 43, 8), 6, (0, 6, 7, 13, 139, 140)),  # Five times four blocks at most.
}


@every_union
def test_the_vectors_of_honest_clients_are_admitted(name: str) -> None:
    parameters, strategy = setting_of(name, q=3, verified=False), strategy_of(name)
    union, ring, lengths = ADMITTED[name]
    client = begin(name, parameters)
    assert client.vectors("union") == (union,)
    strategy.admit(parameters, "union", client.vectors("union"))
    absorb(client, "union", [marks_at(name, [1, LAST])], 5)
    assert client.vectors("signs") == (Vector("signs", 13 if name == BLOCKS else 2, ring), FACTOR)
    for length in lengths:
        strategy.admit(parameters, "signs", (Vector("signs", length, ring), FACTOR))


LENGTH, RING = RejectReason.WRONG_LENGTH, RejectReason.WRONG_RING
REFUSED: list[tuple[Sequence[str], str, tuple[Vector, ...], RejectReason]] = [
    *((list(MARKS), "union", (Vector("union", length, 0),), LENGTH) for length in (N - 1, N + 1)),
    (list(MARKS), "union", (Vector("union", N, 5),), RING),
    (list(MARKS), "union", (SIGNS_11, FACTOR), LENGTH),
    (list(MARKS), "signs", (Vector("signs", 151, 11), FACTOR), LENGTH),
    (list(MARKS), "signs", (Vector("signs", 2, 13), FACTOR), RING),
    (list(MARKS), "signs", (Vector("signs", 2, 11),), LENGTH),
    (list(MARKS), "signs", (Vector("signs", 2, 11), Vector("factors", 2, 2**32)), LENGTH),
    (list(MARKS), "signs", (Vector("signs", 2, 11), Vector("factors", 1, 2**31)), RING),
    ([BLOCKS], "union", (Vector("union", N, 8),), LENGTH),
    ([BLOCKS], "union", (Vector("union", 43, 4),), RING),
    *(([BLOCKS], "signs", (Vector("signs", length, 6), FACTOR), LENGTH) for length in (141, 147, 8)),
    ([BLOCKS], "signs", (Vector("signs", 7, 11), FACTOR), RING),
    ([BLOCKS], "signs", (Vector("signs", 7, 6),), LENGTH),
    *(
        (["no-union"], "signs", vectors, LENGTH)
        for vectors in ((), (SIGNS_11,), (SIGNS_11, FACTOR, SIGNS_11), (FACTOR, SIGNS_11))
    ),
    (["no-union"], "signs", (Vector("signs", N - 1, 11), FACTOR), LENGTH),
    (["no-union"], "signs", (Vector("signs", N, 13), FACTOR), RING),
]


def test_other_vectors_are_refused(subtests: pytest.Subtests) -> None:
    strategy_of("no-union").admit(setting(verified=False), "signs", (SIGNS_11, FACTOR))
    # Everything, where the cohort can choose everything.
    all_blocks = setting_of(BLOCKS, rho=0.5, verified=False)
    strategy_of(BLOCKS).admit(all_blocks, "signs", (Vector("signs", N, 6), FACTOR))
    with pytest.raises(PeerError, match="at most 300"):
        strategy_of(BLOCKS).admit(all_blocks, "signs", (Vector("signs", 301, 6), FACTOR))
    for names, phase, declared, reason in REFUSED:
        for name in names:
            vectors = tuple(replace(vector, modulus=vector.modulus or MARKS[name]) for vector in declared)
            for admit in (strategy_of(name).admit, strategy_of(name).admit_release):
                with subtests.test(name=name, vectors=vectors), refusing(reason):
                    admit(setting_of(name, q=3, verified=False), phase, vectors)


def test_who_takes_part_in_which_phase_and_who_learns_something() -> None:
    servers = ("a", "b", "c")
    assert SIGNS.aggregators(servers) == servers
    parts = {name: [phase.aggregators(servers) for phase in find_strategy(name).phases] for name in FLAT}
    assert parts == {
        "no-union": [servers],
        "sec-union": [servers, servers],
        "partial-sec-union": [servers, servers],
        "plaintext-union": [("a",), servers],
    }
    assert {name: STRATEGIES[name].reveals for name in FLAT if STRATEGIES[name].reveals} == {
        "plaintext-union": "the first aggregator sees every client's indices"
    }


# Cost and names -----------------------------------------------------------------------------------------

LENET = Parameters(model_size=61_706, clients=5, servers=2, rho=0.1, q=3)
SECURE_BITS = {
    # Table 2: 2·S·C times N·⌈log2 m⌉ for the union, |V|·⌈log2(2C + 1)⌉ for the signs, 32 for the factor.
    "no-union": {},
    "sec-union": {"union": 20 * 61_706 * 3},
    "partial-sec-union": {"union": 20 * 61_706 * 3},
    "plaintext-union": {"union": 2 * 5 * 61_706},
}
TAGS_BITS = {
    # Three numbers of 64 bits in a phase that adds integers, 128 of q bits in one that adds marks.
    "no-union": 3 * 64,
    "sec-union": 128 * 3 + 3 * 64,
    "partial-sec-union": 2 * 3 * 64,
    "plaintext-union": 3 * 64,
}


@every_flat
def test_predicted_bits_are_the_papers_formula(name: str) -> None:
    heads = Headcount.complete(5, 2)
    size = 61_706 if name == "no-union" else 20_000
    predicted = find_strategy(name).predict_bits(LENET, heads, union_size=size)
    papers = {**SECURE_BITS[name], "signs": 20 * size * 4, "factors": 20 * 32}
    assert predicted == {**papers, "tags": 20 * TAGS_BITS[name]}
    assert find_strategy(name).predict_bits(replace(LENET, verified=False), heads, union_size=size) == papers


@every_flat
def test_predicted_bits_count_who_sent_and_who_received(name: str) -> None:
    heads = Headcount(cohort=5, senders=4, recipients=5, servers=2)
    size = N if name == "no-union" else 77
    predicted = find_strategy(name).predict_bits(setting(q=3), heads, union_size=size)
    assert predicted["signs"] == 2 * (4 + 5) * size * 4
    assert predicted["factors"] == 2 * (4 + 5) * 32
    assert predicted["tags"] == 2 * (4 + 5) * TAGS_BITS[name]
    unions = {"sec-union": 2 * 9 * N * 3, "partial-sec-union": 2 * 9 * N * 3, "plaintext-union": 9 * N}
    assert predicted.get("union") == unions.get(name)
    assert costs.pluses_bits(10, heads) == 2 * (4 + 5) * 10 * 3, "in blocks: the ring is the cohort's"


@pytest.mark.parametrize(
    ("wire", "union", "signs", "factors", "tags"),
    [
        # 2·S·C·(⌈N/b⌉·q, |V|·⌈log2(C + 1)⌉, 32), and the tags of 128 bits and of 3 words
        ("paper", 20 * 3_857, 20 * 8_000 * 3, 20 * 32, 20 * (128 + 192)),
        # (2C + S - 1)·(3,857, ⌈8,000/17⌉·44, 32), and a seed of each client in each phase
        ("compact", 11 * 3_857 + 1_280, 11 * 471 * 44 + 1_280, 11 * 32, 11 * (128 + 192)),
    ],
)
def test_the_costs_of_lenet_in_blocks(wire: WireMode, union: int, signs: int, factors: int, tags: int) -> None:
    heads, lenet = Headcount.complete(5, 2), replace(LENET, q=1, block=16, wire=wire)
    expected = {"union": union, "signs": signs, "factors": factors, "tags": tags}

    assert strategy_of(BLOCKS).predict_bits(lenet, heads, 8_000) == expected
    for name, strategy in STRATEGIES.items():
        flat = strategy.predict_bits(replace(lenet, block=1), heads, 8_000)
        assert (flat == strategy.predict_bits(lenet, heads, 8_000)) == (name != "sec-union")


def test_a_strategy_is_found_by_its_name() -> None:
    for name, strategy in STRATEGIES.items():
        assert find_strategy(name) is strategy
        assert strategy.name == name
        phases = [phase.name for phase in strategy.phases]
        assert len(set(phases)) == len(phases) > 0
    with pytest.raises(ConfigurationError, match="no strategy 'union-jack'; choose one of: ") as caught:
        find_strategy("union-jack")
    assert all(name in str(caught.value) for name in STRATEGIES)
