"""The four secure strategies from update to model, against a plain computation that shares no code with them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import BadUpdate, ConfigurationError, PeerError, RejectReason
from hubbub.parameters import Parameters
from hubbub.protocol.aggregate import NO_HISTORY, History
from hubbub.protocol.costs import Headcount, no_union_bits
from hubbub.protocol.layout import Vector
from hubbub.strategies import secure
from hubbub.strategies.base import ClientInput, ClientRound, Conclusion, Release, Strategy, Theta
from hubbub.strategies.registry import STRATEGIES, find_strategy
from hubbub.strategies.unions import SIGNS
from support.plain_federation import Method, draw_marks
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

SECURE = tuple(strategy.name for strategy in secure.STRATEGIES)
UNIONS = tuple(name for name in SECURE if name != "no-union")
every_strategy = pytest.mark.parametrize("name", SECURE)
every_union = pytest.mark.parametrize("name", UNIONS)
THETA = draw(99)
NOTHING = np.zeros(N, np.float32)


# Algorithm 2 in the open --------------------------------------------------------------------------------


class Plain:
    """What one round must come to: the model, V, and every client's accumulator."""

    def __init__(
        self, name: str, parameters: Parameters, inputs: Sequence[ClientInput], members: Sequence[int]
    ) -> None:
        self.name, self.parameters = name, parameters
        self.x = [mine.update + mine.accumulator for mine in inputs]
        self.signs = [self._choose(x) for x in self.x]
        self.sent = [self._scale(x, signs) for x, signs in zip(self.x, self.signs, strict=True)]
        self.union = self._unite(members)
        self.members = members
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

    def _scale(self, x: Theta, signs: NDArray[np.float32]) -> float:
        chosen = np.flatnonzero(signs)
        if not chosen.size:
            return 0.0
        if self.parameters.alpha_rule == "mean":
            alpha = math.fsum(abs(float(x[index])) for index in chosen) / chosen.size
        else:
            alpha = math.sqrt(math.fsum(float(value) ** 2 for value in x) / chosen.size)
        clients, alpha_max = self.parameters.clients, self.parameters.alpha_max
        scale = 2.0 ** math.floor(math.log2((2**32 - 1) / clients / alpha_max))
        return math.floor(min(alpha, alpha_max) * scale) / scale

    def _unite(self, members: Sequence[int]) -> list[int]:
        if self.name == "no-union":
            return list(range(N))
        total = np.zeros(N, np.int64)
        for place in members:
            chosen = np.flatnonzero(self.signs[place])
            if self.name == "sec-union":
                method = Method(strategy=self.name, q=self.parameters.q)
                total += draw_marks(chosen, N, method, key_of(place))
            else:
                total[chosen] += 1
        lossy = self.name == "sec-union"
        return [index for index in range(N) if (total[index] % 2**self.parameters.q if lossy else total[index])]

    @property
    def theta(self) -> Theta:
        count = len(self.members)
        theta = THETA.copy()
        alpha = np.float32(self.factor)
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
    members = [place for place in range(len(inputs)) if place not in left_out]
    plain = Plain(name, parameters, inputs, members)
    ends = play(find_strategy(name), parameters, inputs, left_out=left_out)
    for place, end in enumerate(ends):
        np.testing.assert_array_equal(end.theta, plain.theta)
        np.testing.assert_array_equal(end.accumulator, plain.accumulator(place))
        assert end.theta.dtype == end.accumulator.dtype == np.float32
        assert end.union_size == len(plain.union)
        assert (end.history, end.scale) == (plain.history, plain.scale)
    return plain, ends


def inputs_for(parameters: Parameters, scale: float = 1.0, history: History = NO_HISTORY) -> list[ClientInput]:
    return [make_input(seed, theta=THETA, scale=scale, history=history) for seed in range(parameters.clients)]


@every_strategy
@pytest.mark.parametrize(("clients", "servers"), [(2, 2), (5, 3), (8, 2)])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0], ids=["small", "ordinary", "clipped"])
def test_a_round_is_the_plain_computation(name: str, clients: int, servers: int, scale: float) -> None:
    parameters = setting(clients=clients, servers=servers)
    plain, _ = check(name, parameters, inputs_for(parameters, scale))
    assert (plain.sent[0] == 16.0) == (scale == 100.0)


@every_strategy
@pytest.mark.parametrize("history", [(), (0.01, 0.03, 0.02, 0.4)], ids=["first round", "later"])
def test_a_clamped_round_steps_less_far_and_the_rest_stays_in_the_accumulators(
    name: str, history: History
) -> None:
    parameters = setting(first_factor_bound=0.25)
    plain, ends = check(name, parameters, inputs_for(parameters, history=history), left_out=[1])
    assert plain.factor == (4 * 0.02 if history else 0.25)
    assert 0 < ends[0].scale < 1
    assert np.abs(ends[0].theta - THETA).max() <= np.float32(plain.factor) * (1 + 1e-5)


@pytest.mark.parametrize("q", [1, 2, 7, 8, 9, 16, 17, 32])
def test_sec_union_with_marks_of_every_width(q: int) -> None:
    parameters = setting(rho=0.3, q=q)
    plain, _ = check("sec-union", parameters, inputs_for(parameters))
    chosen = np.any(plain.signs, axis=0)
    lost = np.count_nonzero(chosen) - len(plain.union)
    assert lost > 10 if q <= 2 else lost < 5, "few marks cancel often, many hardly ever"


def test_sec_union_with_one_bit_loses_every_index_that_an_even_number_chose() -> None:
    parameters = setting(rho=0.3)
    plain, _ = check("sec-union", parameters, inputs_for(parameters))
    choosers = np.count_nonzero(plain.signs, axis=0)
    assert plain.union == np.flatnonzero(choosers % 2).tolist()


@every_strategy
@pytest.mark.parametrize(("rho", "kept"), [(1.0, N), (1 / N, 1), (0.004, 1)])
def test_all_indices_and_only_one(name: str, rho: float, kept: int) -> None:
    parameters = setting(rho=rho, q=8)
    assert parameters.kept == kept
    plain, _ = check(name, parameters, inputs_for(parameters))
    if kept == N and name in {"partial-sec-union", "plaintext-union"}:
        assert len(plain.union) == N


@every_strategy
def test_when_nobody_has_anything_to_say_the_model_stays(name: str) -> None:
    parameters = setting(q=3)
    inputs = [make_input(seed, theta=THETA, update=NOTHING) for seed in range(5)]
    plain, ends = check(name, parameters, inputs)
    assert len(plain.union) == (N if name == "no-union" else 0)
    for end in ends:
        np.testing.assert_array_equal(end.theta, THETA)
        assert end.alone_share is None


@every_strategy
def test_fewer_nonzeros_than_k_are_sent_as_they_are(name: str) -> None:
    parameters = setting(q=5)
    sparse = NOTHING.copy()
    sparse[[3, 200]] = (0.5, -2.0)
    inputs = [make_input(0, theta=THETA, update=sparse), *inputs_for(parameters)[1:]]
    plain, _ = check(name, parameters, inputs)
    assert np.count_nonzero(plain.signs[0]) == 2


@every_strategy
@pytest.mark.parametrize("feedback", ["lost", "paper"])
def test_a_client_that_is_left_out_moves_along_and_keeps_its_whole_update(name: str, feedback: str) -> None:
    parameters = setting(q=2, feedback=feedback)
    inputs = inputs_for(parameters)
    _, ends = check(name, parameters, inputs, left_out=(1, 4))
    np.testing.assert_array_equal(ends[4].accumulator, inputs[4].update + inputs[4].accumulator)
    assert np.any(ends[0].accumulator != inputs[0].update + inputs[0].accumulator)


@every_strategy
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


@every_strategy
def test_the_mean_rule_gives_the_mean_magnitude_of_what_was_chosen(name: str) -> None:
    parameters = setting(alpha_rule="mean", q=4)
    by_mean, _ = check(name, parameters, inputs_for(parameters))
    by_norm, _ = check(name, replace(parameters, alpha_rule="norm"), inputs_for(parameters))
    for mean, norm in zip(by_mean.sent, by_norm.sent, strict=True):
        assert mean < norm, "what was not chosen adds to the norm alone"


def test_partial_sec_union_knows_how_many_indices_only_one_chose() -> None:
    parameters = setting()
    plain, ends = check("partial-sec-union", parameters, inputs_for(parameters))
    choosers = np.count_nonzero(plain.signs, axis=0)
    expected = np.count_nonzero(choosers == 1) / np.count_nonzero(choosers)
    assert 0 < expected < 1
    assert [end.alone_share for end in ends] == [expected] * 5


def test_sec_union_estimates_it_and_plaintext_union_cannot() -> None:
    parameters = setting(q=16)
    plain, ends = check("sec-union", parameters, inputs_for(parameters))
    choosers = np.count_nonzero(plain.signs, axis=0)
    exact = np.count_nonzero(choosers == 1) / np.count_nonzero(choosers)
    estimates = [end.alone_share for end in ends if end.alone_share is not None]
    assert len(estimates) == 5
    assert np.mean(estimates) == pytest.approx(exact, abs=0.05)
    _, ends = check("plaintext-union", setting(), inputs_for(setting()))
    assert {end.alone_share for end in ends} == {None}


def test_a_client_whose_marks_are_not_in_the_sum_does_not_guess_from_them() -> None:
    parameters = setting(q=16)
    ends = play(find_strategy("sec-union"), parameters, inputs_for(parameters), left_out=[2])
    assert [end.alone_share is None for end in ends] == [False, False, True, False, False]


@every_strategy
def test_a_round_leaves_model_and_update_as_they_were(name: str) -> None:
    parameters = setting(clients=2)
    inputs = inputs_for(parameters)
    check(name, parameters, inputs)
    np.testing.assert_array_equal(THETA, draw(99))
    for seed, mine in enumerate(inputs):
        np.testing.assert_array_equal(mine.update, draw(seed))
        np.testing.assert_array_equal(mine.accumulator, draw(seed + 1_000, 0.1))


# What is secret -----------------------------------------------------------------------------------------


def test_marks_come_from_the_clients_own_stream() -> None:
    parameters = setting(q=8)
    mine = make_input(1, theta=THETA)
    one, again, other = (
        find_strategy("sec-union").begin(parameters, replace(mine, stream=AesCtrStream(key_of(key))))
        for key in (1, 1, 2)
    )
    (first, _), (second, _), (third, _) = (each.contribute("union") for each in (one, again, other))
    np.testing.assert_array_equal(first, second)
    assert np.any(first != third)
    np.testing.assert_array_equal(first != 0, third != 0)


@every_strategy
def test_a_client_sends_the_same_again_when_asked_again(name: str) -> None:
    client = find_strategy(name).begin(setting(q=8), make_input(1, theta=THETA))
    phase = find_strategy(name).phases[0].name
    for one, two in zip(client.contribute(phase), client.contribute(phase), strict=True):
        np.testing.assert_array_equal(one, two)


@every_union
def test_the_signs_are_restricted_to_the_released_union_and_to_nothing_else(name: str) -> None:
    """Clients that were told different unions have different transcripts, which are made of this."""
    strategy, parameters = find_strategy(name), setting()
    inputs = inputs_for(parameters)
    plain = Plain(name, parameters, inputs, range(len(inputs)))
    rounds = [strategy.begin(parameters, mine) for mine in inputs]
    assert rounds[0].restricted_to("union") == rounds[0].restricted_to("signs") == ()

    union = add_up(strategy.phases[0], parameters, rounds)
    for each in rounds:
        each.absorb("union", union, len(rounds))

    for each in rounds:
        assert [listed.indices.tolist() for listed in each.restricted_to("signs")] == [plain.union]
        assert each.restricted_to("union") == ()


def test_without_a_union_nothing_is_restricted() -> None:
    (mine,) = inputs_for(setting(clients=2))[:1]

    assert find_strategy("no-union").begin(setting(clients=2), mine).restricted_to("signs") == ()


def test_only_plaintext_union_reveals_something_and_says_so() -> None:
    assert {name: STRATEGIES[name].reveals for name in SECURE if STRATEGIES[name].reveals} == {
        "plaintext-union": "the first aggregator sees every client's indices"
    }


# Sums that cannot be ------------------------------------------------------------------------------------


def begin(name: str, parameters: Parameters | None = None, seed: int = 0) -> ClientRound:
    return find_strategy(name).begin(parameters or setting(), make_input(seed, theta=THETA))


def marks_at(indices: Sequence[int], value: int = 1) -> NDArray[np.uint32]:
    marks = np.zeros(N, np.uint32)
    marks[list(indices)] = value
    return marks


@every_union
@pytest.mark.parametrize("members", [2, 5])
def test_a_union_larger_than_the_members_choices_is_refused(name: str, members: int) -> None:
    largest = members * setting().kept
    absorb(begin(name), "union", [marks_at(range(largest))], members)
    too_large = [marks_at(range(largest + 1))]
    assert refusal(begin(name), "union", too_large, members) is RejectReason.FALSE_SUM


def test_more_choosers_than_members_are_refused() -> None:
    absorb(begin("partial-sec-union"), "union", [marks_at([7], 3)], 3)
    client = begin("partial-sec-union")
    assert refusal(client, "union", [marks_at([7], 4)], 3) is RejectReason.FALSE_SUM


def test_signs_that_their_choosers_cannot_add_up_to_are_refused(subtests: pytest.Subtests) -> None:
    for choosers, direction in product(range(1, 6), range(-5, 6)):
        with subtests.test(choosers=choosers, direction=direction):
            client = begin("partial-sec-union")
            absorb(client, "union", [marks_at([7], choosers)], 5)
            values = [np.array([direction % 11], np.uint32), factor()]
            if direction in range(-choosers, choosers + 1, 2):  # Each sign that is flipped changes the sum by two.
                absorb(client, "signs", values, 5)
            else:
                assert refusal(client, "signs", values, 5) is RejectReason.FALSE_SUM


@every_strategy
@pytest.mark.parametrize("direction", [3, -3])
def test_signs_that_the_members_cannot_have_are_refused(name: str, direction: int) -> None:
    client = begin(name)
    if name != "no-union":
        absorb(client, "union", [marks_at([7])], 2)
    length = client.vectors("signs")[0].length
    signs = np.full(length, direction % 11, np.uint32)
    assert refusal(client, "signs", [signs, factor()], 2) is RejectReason.FALSE_SUM


@every_strategy
def test_a_factor_that_the_members_cannot_have_is_refused(name: str) -> None:
    parameters = setting()
    largest = 2 * parameters.fixed_point.to_ring(parameters.alpha_max)
    client = begin(name)
    if name != "no-union":
        absorb(client, "union", [marks_at([])], 2)
    signs = np.zeros(client.vectors("signs")[0].length, np.uint32)
    absorb(client, "signs", [signs, factor(largest)], 2)
    assert refusal(client, "signs", [signs, factor(largest + 1)], 2) is RejectReason.FALSE_SUM


@every_strategy
def test_whether_a_sum_is_refused_does_not_depend_on_the_clients_own_input(name: str) -> None:
    """These sums leave no room for what the loud client sent, and neither client says so."""
    loud = begin(name)
    quiet = find_strategy(name).begin(setting(), make_input(0, theta=THETA, update=NOTHING))
    for client in (loud, quiet):
        if name != "no-union":
            absorb(client, "union", [marks_at([])], 5)
        length = client.vectors("signs")[0].length
        absorb(client, "signs", [np.full(length, 5, np.uint32), factor()], 5)


@every_union
def test_a_release_of_another_shape_is_refused(name: str) -> None:
    client = begin(name, setting(verified=False))
    (vector,) = client.vectors("union")
    for wrong in (replace(vector, length=N - 1), replace(vector, modulus=vector.modulus + 1)):
        with pytest.raises(PeerError):
            client.absorb("union", Release((wrong,), (np.zeros(wrong.length, np.uint32),)), 5)
    absorb(client, "union", [marks_at([4, 5])], 5)
    shorter = (Vector("signs", 1, 11), Vector("factors", 1, 2**32))
    with pytest.raises(PeerError) as caught:
        client.absorb("signs", Release(shorter, (np.zeros(1, np.uint32), factor())), 5)
    assert caught.value.reason is RejectReason.WRONG_LENGTH


# Updates that cannot be sent ----------------------------------------------------------------------------


@every_strategy
@pytest.mark.parametrize("length", [0, N - 1, N + 1])
def test_an_update_of_another_length_is_refused(name: str, length: int) -> None:
    mine = replace(make_input(0, theta=THETA), update=np.ones(length, np.float32))
    with pytest.raises(BadUpdate, match=f"shape \\({length},\\) where the run has {N} parameters"):
        find_strategy(name).begin(setting(), mine)


@every_strategy
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_no_number_is_refused(name: str, value: float) -> None:
    update = draw(1)
    update[17] = value
    with pytest.raises(BadUpdate, match="NaN or infinity"):
        find_strategy(name).begin(setting(), make_input(0, theta=THETA, update=update))


@every_strategy
def test_an_update_that_overflows_with_the_accumulator_is_refused(name: str) -> None:
    huge = np.full(N, 3e38, np.float32)
    with pytest.raises(BadUpdate, match="NaN or infinity"):
        find_strategy(name).begin(setting(), replace(make_input(0, theta=THETA), update=huge, accumulator=huge))


@every_union
def test_a_round_without_all_its_sums_cannot_be_concluded(name: str) -> None:
    client = begin(name)
    with pytest.raises(BadUpdate, match="after its sums were absorbed"):
        client.conclude(took_part=True)
    absorb(client, "union", [marks_at([1])], 5)
    with pytest.raises(BadUpdate, match="after its sums were absorbed"):
        client.conclude(took_part=True)


# What servers admit -------------------------------------------------------------------------------------

SIGNS_11 = Vector("signs", N, 11)
FACTOR = Vector("factors", 1, 2**32)
MARKS = {"sec-union": 2**3, "partial-sec-union": 6, "plaintext-union": 2}


@every_union
def test_the_vectors_of_honest_clients_are_admitted(name: str) -> None:
    parameters, strategy = setting(q=3, verified=False), find_strategy(name)
    client = begin(name, parameters)
    assert client.vectors("union") == (Vector("union", N, MARKS[name]),)
    strategy.admit(parameters, "union", client.vectors("union"))
    absorb(client, "union", [marks_at([1, 2])], 5)
    assert client.vectors("signs") == (Vector("signs", 2, 11), FACTOR)
    for length in (0, 2, 150):  # Five times k at most.
        strategy.admit(parameters, "signs", (Vector("signs", length, 11), FACTOR))


@every_union
@pytest.mark.parametrize(
    ("phase", "declared", "reason"),
    [
        ("union", (Vector("union", N - 1, 0),), RejectReason.WRONG_LENGTH),
        ("union", (Vector("union", N + 1, 0),), RejectReason.WRONG_LENGTH),
        ("union", (Vector("union", N, 5),), RejectReason.WRONG_RING),
        ("union", (SIGNS_11, FACTOR), RejectReason.WRONG_LENGTH),
        ("signs", (Vector("signs", 151, 11), FACTOR), RejectReason.WRONG_LENGTH),
        ("signs", (Vector("signs", 2, 13), FACTOR), RejectReason.WRONG_RING),
        ("signs", (Vector("signs", 2, 11),), RejectReason.WRONG_LENGTH),
        ("signs", (Vector("signs", 2, 11), Vector("factors", 2, 2**32)), RejectReason.WRONG_LENGTH),
        ("signs", (Vector("signs", 2, 11), Vector("factors", 1, 2**31)), RejectReason.WRONG_RING),
    ],
    ids=str,
)
def test_other_vectors_are_refused(
    name: str, phase: str, declared: tuple[Vector, ...], reason: RejectReason
) -> None:
    declared = tuple(replace(vector, modulus=vector.modulus or MARKS[name]) for vector in declared)
    for admit in (find_strategy(name).admit, find_strategy(name).admit_release):
        with pytest.raises(PeerError) as caught:
            admit(setting(q=3, verified=False), phase, declared)
        assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ((), RejectReason.WRONG_LENGTH),
        ((SIGNS_11,), RejectReason.WRONG_LENGTH),
        ((SIGNS_11, FACTOR, SIGNS_11), RejectReason.WRONG_LENGTH),
        ((FACTOR, SIGNS_11), RejectReason.WRONG_LENGTH),
        ((Vector("signs", N - 1, 11), FACTOR), RejectReason.WRONG_LENGTH),
        ((Vector("signs", N, 13), FACTOR), RejectReason.WRONG_RING),
    ],
    ids=str,
)
def test_no_union_takes_all_signs_and_a_factor_only(declared: tuple[Vector, ...], reason: RejectReason) -> None:
    strategy = find_strategy("no-union")
    strategy.admit(setting(verified=False), "signs", (SIGNS_11, FACTOR))
    with pytest.raises(PeerError) as caught:
        strategy.admit(setting(verified=False), "signs", declared)
    assert caught.value.reason is reason


def test_who_takes_part_in_which_phase() -> None:
    servers = ("a", "b", "c")
    assert SIGNS.aggregators(servers) == servers
    parts = {name: [phase.aggregators(servers) for phase in find_strategy(name).phases] for name in SECURE}
    assert parts == {
        "no-union": [servers],
        "sec-union": [servers, servers],
        "partial-sec-union": [servers, servers],
        "plaintext-union": [("a",), servers],
    }


# Cost and names -----------------------------------------------------------------------------------------

LENET = Parameters(parameters=61_706, clients=5, servers=2, rho=0.1, q=3)
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


@every_strategy
def test_predicted_bits_are_the_papers_formula(name: str) -> None:
    heads = Headcount.complete(5, 2)
    size = 61_706 if name == "no-union" else 20_000
    predicted = find_strategy(name).predict_bits(LENET, heads, union_size=size)
    papers = {**SECURE_BITS[name], "signs": 20 * size * 4, "factors": 20 * 32}
    assert predicted == {**papers, "tags": 20 * TAGS_BITS[name]}
    assert find_strategy(name).predict_bits(replace(LENET, verified=False), heads, union_size=size) == papers
    if name == "no-union":
        assert sum(papers.values()) == no_union_bits(61_706, heads)


@every_strategy
def test_predicted_bits_count_who_sent_and_who_received(name: str) -> None:
    strategy: Strategy = find_strategy(name)
    heads = Headcount(cohort=5, senders=4, recipients=5, servers=2)
    size = N if name == "no-union" else 77
    predicted = strategy.predict_bits(setting(q=3), heads, union_size=size)
    assert predicted["signs"] == 2 * (4 + 5) * size * 4
    assert predicted["factors"] == 2 * (4 + 5) * 32
    assert predicted["tags"] == 2 * (4 + 5) * TAGS_BITS[name]
    unions = {"sec-union": 2 * 9 * N * 3, "partial-sec-union": 2 * 9 * N * 3, "plaintext-union": 9 * N}
    assert predicted.get("union") == unions.get(name)


def test_a_strategy_is_found_by_its_name() -> None:
    for name, strategy in STRATEGIES.items():
        assert find_strategy(name) is strategy
        assert strategy.name == name
        phases = [phase.name for phase in strategy.phases]
        assert len(set(phases)) == len(phases) > 0


def test_an_unknown_strategy_is_told_all_those_that_exist() -> None:
    with pytest.raises(ConfigurationError, match="no strategy 'union-jack'; choose one of: ") as caught:
        find_strategy("union-jack")
    assert all(name in str(caught.value) for name in STRATEGIES)
