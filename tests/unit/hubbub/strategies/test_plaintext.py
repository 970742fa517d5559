"""The plaintext baselines from update to model, against a plain computation that shares no code with them."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.errors import BadUpdate, FalseSum, PeerError, RejectReason
from hubbub.parameters import Parameters
from hubbub.protocol.costs import Headcount, fedavg_bits
from hubbub.protocol.layout import Vector
from hubbub.strategies.base import ClientInput, Release, Theta
from hubbub.strategies.registry import find_strategy
from support.refusals import refusing
from support.strategy_rounds import NOTHING_YET, N, draw, make_input, play, setting

TOPBINARY = ("topbinary-direct", "topbinary-sep")
BASELINES = ("fedavg", *TOPBINARY)
every_baseline = pytest.mark.parametrize("name", BASELINES)
every_topbinary = pytest.mark.parametrize("name", TOPBINARY)
THETA = draw(99)
NOTHING = np.zeros(N, np.float32)


def inputs_for(clients: int = 5, scale: float = 1.0) -> list[ClientInput]:
    return [make_input(seed, theta=THETA, scale=scale) for seed in range(clients)]


# FedAvg -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left_out", [(), (1,), (0, 4)])
def test_fedavg_weighs_every_member_by_its_samples(left_out: tuple[int, ...]) -> None:
    inputs = inputs_for()
    ends = play(find_strategy("fedavg"), setting(), inputs, left_out=left_out)
    members = [mine for place, mine in enumerate(inputs) if place not in left_out]
    assert len({mine.samples for mine in members}) == len(members)
    samples = sum(mine.samples for mine in members)
    total = np.zeros(N, np.float64)
    for mine in members:
        total += (mine.update + mine.accumulator).astype(np.float64) * mine.samples
    expected = THETA + (total / samples).astype(np.float32)
    for place, (end, mine) in enumerate(zip(ends, inputs, strict=True)):
        np.testing.assert_array_equal(end.theta, expected)
        kept = mine.update + mine.accumulator if place in left_out else NOTHING
        np.testing.assert_array_equal(end.accumulator, kept)
        assert end.union_size == N
    plain_mean = THETA + np.mean([mine.update + mine.accumulator for mine in members], axis=0, dtype=np.float32)
    assert np.any(np.abs(plain_mean - expected) > 1e-3), "the weights make a difference here"
    update = draw(3)
    ends = play(find_strategy("fedavg"), setting(), [make_input(s, theta=THETA, update=update) for s in range(5)])
    np.testing.assert_array_equal(ends[0].theta, THETA + update, "but not where all updates are equal")


# TopBinary ----------------------------------------------------------------------------------------------


class Plain:
    """Exactly k signs a client, and α as a 32-bit float."""

    def __init__(self, parameters: Parameters, inputs: Sequence[ClientInput], members: Sequence[int]) -> None:
        self.x = [mine.update + mine.accumulator for mine in inputs]
        self.members = members
        kept = math.floor(parameters.rho * N + 1e-9)
        self.signs = [np.zeros(N, np.float32) for _ in inputs]
        self.alphas: list[np.float32] = []
        for x, signs in zip(self.x, self.signs, strict=True):
            chosen = sorted(range(N), key=lambda i, x=x: (-abs(float(x[i])), i))[:kept]  # type: ignore[misc]
            signs[chosen] = [1 if x[index] >= 0 else -1 for index in chosen]
            mean = math.fsum(abs(float(x[index])) for index in chosen) / kept
            norm = math.sqrt(math.fsum(float(value) ** 2 for value in x) / kept)
            self.alphas.append(np.float32(mean if parameters.alpha_rule == "mean" else norm))

    @property
    def union_size(self) -> int:
        return int(np.count_nonzero(np.any([self.signs[place] for place in self.members], axis=0)))

    def direct(self) -> Theta:
        total = np.zeros(N, np.float64)
        for place in self.members:
            total += float(self.alphas[place]) * self.signs[place].astype(np.float64)
        return THETA + (total / len(self.members)).astype(np.float32)

    def separate(self) -> Theta:
        count = len(self.members)
        alpha = float(np.float32(sum(float(self.alphas[place]) for place in self.members)))
        directions = np.sum([self.signs[place] for place in self.members], axis=0).astype(np.float32)
        step: Theta = directions / np.float32(count) * np.float32(alpha / count)
        return THETA + step

    def accumulator(self, place: int) -> Theta:
        sent = place in self.members
        return self.x[place] - self.alphas[place] * self.signs[place] if sent else self.x[place]


def check(
    name: str, parameters: Parameters, inputs: Sequence[ClientInput], *, left_out: Sequence[int] = ()
) -> Plain:
    given = [(mine.theta.copy(), mine.update.copy(), mine.accumulator.copy()) for mine in inputs]
    plain = Plain(parameters, inputs, [place for place in range(len(inputs)) if place not in left_out])
    expected = plain.direct() if name == "topbinary-direct" else plain.separate()
    for place, end in enumerate(play(find_strategy(name), parameters, inputs, left_out=left_out)):
        np.testing.assert_array_equal(end.theta, expected)
        np.testing.assert_array_equal(end.accumulator, plain.accumulator(place))
        assert end.theta.dtype == end.accumulator.dtype == np.float32
        assert end.union_size == plain.union_size
    for mine, before in zip(inputs, given, strict=True):
        np.testing.assert_array_equal((mine.theta, mine.update, mine.accumulator), before)
    return plain


@every_topbinary
@pytest.mark.parametrize("clients", [2, 5, 8])
@pytest.mark.parametrize("alpha_rule", ["norm", "mean"])
@pytest.mark.parametrize("rho", [1 / N, 0.1, 1.0])
def test_a_round_is_the_plain_computation(name: str, clients: int, alpha_rule: str, rho: float) -> None:
    parameters = setting(clients=clients, alpha_rule=alpha_rule, rho=rho)
    plain = check(name, parameters, inputs_for(clients))
    assert rho < 1 or plain.union_size == N


@every_topbinary
def test_a_client_left_out_keeps_its_whole_update(name: str) -> None:
    plain = check(name, setting(), inputs_for(), left_out=(0, 3))
    assert np.any(plain.direct() != plain.separate())


@every_topbinary
def test_exactly_k_signs_are_sent_also_of_zeros(name: str) -> None:
    sparse = NOTHING.copy()
    sparse[[3, 200]] = (0.5, -2.0)
    parameters = setting()
    client = find_strategy(name).begin(parameters, make_input(0, theta=THETA, update=sparse))
    alpha, chosen, positive = client.contribute("update")
    assert [alpha.size, chosen.size, positive.size] == [1, N, parameters.kept]
    assert int(chosen.sum()) == parameters.kept
    assert chosen[[3, 200]].tolist() == [1, 1]
    assert int(positive.sum()) == parameters.kept - 1, "a zero's sign is +1"
    check(name, parameters, [make_input(0, theta=THETA, update=sparse), *inputs_for()[1:]])


@every_topbinary
def test_when_nobody_has_anything_to_say_the_model_stays(name: str) -> None:
    inputs = [make_input(seed, theta=THETA, update=NOTHING) for seed in range(5)]
    plain = check(name, setting(), inputs)
    assert plain.union_size == setting().kept, "signs are sent all the same, times 0"
    np.testing.assert_array_equal(plain.separate(), THETA)


# What is told, and to whom ------------------------------------------------------------------------------


@every_baseline
def test_only_the_first_aggregator_takes_part_and_gives_everybody_the_same(name: str) -> None:
    strategy = find_strategy(name)
    assert strategy.reveals == "the first aggregator sees every client's update"
    (phase,) = strategy.phases
    assert phase.aggregators(("a", "b")) == ("a",)
    gathering = phase.gather(setting(), NOTHING_YET)
    assert gathering is not None
    for mine in inputs_for():
        client = strategy.begin(setting(), mine)
        assert client.restricted_to(phase.name) == ()
        gathering.add(client.contribute("update"), client.weight)
    assert gathering.finish(0) is gathering.finish(4)


# What is refused ----------------------------------------------------------------------------------------


@every_baseline
def test_an_update_that_cannot_be_sent_and_a_round_without_its_average_are_refused(name: str) -> None:
    strategy, mine = find_strategy(name), make_input(0, theta=THETA)
    for length in (0, N - 1, N + 1):
        with pytest.raises(BadUpdate, match=f"shape \\({length},\\) where the run has {N} parameters"):
            strategy.begin(setting(), replace(mine, update=np.ones(length, np.float32)))
    for value in (np.nan, np.inf):
        update = draw(1)
        update[17] = value
        with pytest.raises(BadUpdate, match="NaN or infinity"):
            strategy.begin(setting(), replace(mine, update=update))
    with pytest.raises(BadUpdate, match="after its sums were absorbed"):
        strategy.begin(setting(), mine).conclude(took_part=True)


def floats(*values: float) -> NDArray[np.uint32]:
    return np.array(values, np.float32).view(np.uint32)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_float_that_is_no_number_is_refused_by_server_and_client(value: float) -> None:
    spoilt = draw(1)
    spoilt[4] = value
    bits = spoilt.view(np.uint32)
    strategy = find_strategy("fedavg")
    gathering = strategy.phases[0].gather(setting(), NOTHING_YET)
    client = strategy.begin(setting(), make_input(0, theta=THETA))
    assert gathering is not None
    with pytest.raises(PeerError, match="NaN or infinite"):
        gathering.add([bits], 1)
    with pytest.raises(FalseSum):
        client.absorb("update", Release(client.vectors("update"), (bits,)), 5)


@every_topbinary
@pytest.mark.parametrize("marked", [0, 29, 31])
def test_a_server_refuses_another_number_of_indices_than_of_signs(name: str, marked: int) -> None:
    gathering = find_strategy(name).phases[0].gather(setting(), NOTHING_YET)
    chosen = np.zeros(N, np.uint32)
    chosen[:marked] = 1
    assert gathering is not None
    with refusing(RejectReason.WRONG_LENGTH):
        gathering.add([floats(1.0), chosen, np.ones(30, np.uint32)], 1)


@every_topbinary
def test_a_client_refuses_a_release_that_cannot_be(name: str) -> None:
    """Another number of coefficients than of indices, or sums of signs that the members cannot have."""
    client = find_strategy(name).begin(setting(), make_input(0, theta=THETA))
    chosen = np.zeros(N, np.uint32)
    chosen[:4] = 1
    vectors = (FACTOR, INDICES, replace(RELEASED[name][-1], length=3))
    with pytest.raises(FalseSum):
        client.absorb("update", Release(vectors, (floats(1.0), chosen, np.zeros(3, np.uint32))), 5)
    if name == "topbinary-sep":
        vectors = (*vectors[:2], Vector("update.signs", 4, 11))
        with pytest.raises(FalseSum):
            client.absorb("update", Release(vectors, (floats(1.0), chosen, np.array([1, 5, 0, 0], np.uint32))), 4)


FACTOR, INDICES = Vector("update.factor", 1, 2**32), Vector("update.indices", N, 2)
SENT = (FACTOR, INDICES, Vector("update.signs", 30, 2))
RELEASED = {
    "topbinary-direct": (INDICES, Vector("update.coefficients", 150, 2**32)),
    "topbinary-sep": (FACTOR, INDICES, Vector("update.signs", 150, 11)),
}


@every_topbinary
def test_only_k_signs_and_a_bit_for_every_parameter_are_admitted(name: str) -> None:
    strategy = find_strategy(name)
    strategy.admit(setting(), "update", SENT)
    for position, length in [(0, 2), (1, N - 1), (2, 29), (2, 31)]:
        wrong = [*SENT]
        wrong[position] = replace(wrong[position], length=length)
        with refusing(RejectReason.WRONG_LENGTH):
            strategy.admit(setting(), "update", wrong)
    with refusing(RejectReason.WRONG_RING):
        strategy.admit(setting(), "update", (*SENT[:2], replace(SENT[2], modulus=3)))


@every_topbinary
def test_a_release_holds_as_much_as_the_cohort_can_choose_and_no_more(name: str) -> None:
    strategy, largest = find_strategy(name), RELEASED[name]
    for length in (0, 77, 150):
        strategy.admit_release(setting(), "update", (*largest[:-1], replace(largest[-1], length=length)))
    assert strategy.union_size(largest) == 150
    with refusing(RejectReason.WRONG_LENGTH):
        strategy.admit_release(setting(), "update", (*largest[:-1], replace(largest[-1], length=151)))
    with pytest.raises(PeerError):
        strategy.admit_release(setting(), "update", SENT[:1])


def test_fedavg_takes_and_gives_n_floats() -> None:
    strategy, honest = find_strategy("fedavg"), Vector("update", N, 2**32)
    for admit in (strategy.admit, strategy.admit_release):
        admit(setting(), "update", (honest,))
        for wrong in (replace(honest, length=N - 1), replace(honest, modulus=2**31), replace(honest, name="x")):
            with pytest.raises(PeerError):
                admit(setting(), "update", (wrong,))


# Cost ---------------------------------------------------------------------------------------------------


def test_predicted_bits_are_table_2() -> None:
    lenet = Parameters(model_size=61_706, clients=5, servers=2, rho=0.1)
    heads, n, k, v = Headcount.complete(5, 2), 61_706, 6_170, 20_000
    predicted = {
        name: find_strategy(name).predict_bits(lenet, heads, union_size=v)["update"] for name in BASELINES
    }
    assert predicted == {
        "fedavg": fedavg_bits(n, 5),
        "topbinary-direct": 5 * (32 * (1 + v) + 2 * n + k),
        "topbinary-sep": 5 * (2 * 32 + 2 * n + k + v * 4),
    }


@every_baseline
def test_predicted_bits_are_what_is_declared_by_senders_and_to_recipients(name: str) -> None:
    strategy, heads = find_strategy(name), Headcount(cohort=5, senders=3, recipients=5, servers=2)
    inputs = inputs_for()
    gathering = strategy.phases[0].gather(setting(), NOTHING_YET)
    assert gathering is not None
    clients = [strategy.begin(setting(), mine) for mine in inputs[:3]]
    for client in clients:
        gathering.add(client.contribute("update"), client.weight)
    release = gathering.finish(0)
    up = sum(vector.payload_bits for client in clients for vector in client.vectors("update"))
    down = 5 * sum(vector.payload_bits for vector in release.vectors)
    size = strategy.union_size(release.vectors)
    assert strategy.predict_bits(setting(), heads, size) == {"update": up + down}
