"""NoUnion from update to model, against a plain computation that shares no code with it."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import BadUpdate, ConfigurationError, PeerError, RejectReason
from hubbub.parameters import Parameters
from hubbub.protocol.costs import Headcount, no_union_bits
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import Residues
from hubbub.strategies.base import Conclusion, Theta
from hubbub.strategies.registry import STRATEGIES, find_strategy
from hubbub.strategies.secure import SIGNS, NoUnion, NoUnionRound

N = 1_000
STRATEGY = NoUnion()


def setting(clients: int = 5, servers: int = 2, rho: float = 0.1, alpha_max: float = 16.0) -> Parameters:
    return Parameters(parameters=N, clients=clients, servers=servers, rho=rho, alpha_max=alpha_max)


def draw(seed: int, scale: float = 1.0) -> Theta:
    return (np.random.default_rng(seed).standard_normal(N) * scale).astype(np.float32)


def begin(parameters: Parameters, seed: int, *, theta: Theta, scale: float = 1.0) -> NoUnionRound:
    return STRATEGY.begin(
        parameters, theta=theta, update=draw(seed, scale), accumulator=draw(seed + 1_000, scale / 10)
    )


def sum_securely(parameters: Parameters, rounds: list[NoUnionRound]) -> list[Residues]:
    """What the clients send, split, added and recombined, without any service."""
    vectors = rounds[0].vectors("signs")
    totals = [[np.zeros(v.length, np.uint32) for v in vectors] for _ in range(parameters.servers)]
    for client in rounds:
        for position, values in enumerate(client.contribute("signs")):
            modulus = vectors[position].modulus
            shares = SIGNS.deal(values, modulus, parameters.servers, AesCtrStream.from_os())
            for server, share in enumerate(shares):
                SIGNS.combine(totals[server][position], share, modulus)
    return [
        SIGNS.recombine([total[position] for total in totals], vector.modulus)
        for position, vector in enumerate(vectors)
    ]


@dataclass
class PlainClient:
    """One client of Alg. 2, in float64 where Hubbub is free to choose and float32 where it is not."""

    update: NDArray[np.float32]
    accumulator: NDArray[np.float32]
    clients: int
    kept: int
    alpha_max: float

    def __post_init__(self) -> None:
        self.wanted = self.update + self.accumulator
        order = sorted(range(N), key=lambda i: (-abs(float(self.wanted[i])), i))
        self.signs = np.zeros(N)
        for index in order[: self.kept]:
            self.signs[index] = np.sign(self.wanted[index])
        norm = math.sqrt(math.fsum(float(x) ** 2 for x in self.wanted))
        scale = 2 ** math.floor(math.log2((2**32 - 1) / self.clients / self.alpha_max))
        clipped = min(norm / math.sqrt(np.count_nonzero(self.signs)), self.alpha_max)
        self.sent = math.floor(clipped * scale) / scale

    @property
    def next_accumulator(self) -> NDArray[np.float32]:
        return self.wanted - np.float32(self.sent) * self.signs.astype(np.float32)


def plain_model(theta: Theta, members: list[PlainClient]) -> Theta:
    count = len(members)
    directions = np.sum([member.signs for member in members], axis=0)
    alpha = sum(member.sent for member in members)
    step: Theta = (directions.astype(np.float32) / np.float32(count)) * np.float32(alpha / count)
    return step + theta


@pytest.mark.parametrize(("clients", "servers"), [(2, 2), (5, 2), (5, 3), (9, 2)])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0], ids=["small", "ordinary", "clipped"])
def test_a_round_is_the_plain_computation(clients: int, servers: int, scale: float) -> None:
    parameters, theta = setting(clients, servers), draw(99)
    rounds = [begin(parameters, seed, theta=theta, scale=scale) for seed in range(clients)]
    plain = [
        PlainClient(draw(seed, scale), draw(seed + 1_000, scale / 10), clients, parameters.kept, 16.0)
        for seed in range(clients)
    ]

    sums = sum_securely(parameters, rounds)
    ends: list[Conclusion] = []
    for client in rounds:
        client.absorb("signs", sums, clients)
        ends.append(client.conclude(took_part=True))

    expected = plain_model(theta, plain)
    for end, one in zip(ends, plain, strict=True):
        np.testing.assert_array_equal(end.theta, expected)
        np.testing.assert_array_equal(end.accumulator, one.next_accumulator)
        assert end.theta.dtype == end.accumulator.dtype == np.float32
        assert end.union_size == N
    assert (plain[0].sent == 16.0) == (scale == 100.0)


def test_a_client_that_is_left_out_moves_with_the_others_and_keeps_its_update() -> None:
    parameters, theta = setting(), draw(99)
    rounds = [begin(parameters, seed, theta=theta) for seed in range(5)]
    *members, left_out = rounds

    sums = sum_securely(parameters, members)
    for client in rounds:
        client.absorb("signs", sums, len(members))

    ends = [client.conclude(took_part=client is not left_out) for client in rounds]
    plain = [PlainClient(draw(seed), draw(seed + 1_000, 0.1), 5, parameters.kept, 16.0) for seed in range(4)]
    for end in ends:
        np.testing.assert_array_equal(end.theta, plain_model(theta, plain))
    np.testing.assert_array_equal(ends[-1].accumulator, draw(4) + draw(1_004, 0.1))
    assert np.count_nonzero(ends[0].accumulator - (draw(0) + draw(1_000, 0.1))) == parameters.kept


def test_a_round_leaves_model_and_update_as_they_were() -> None:
    parameters, theta, update, accumulator = setting(2), draw(0), draw(1), draw(2)
    client = STRATEGY.begin(parameters, theta=theta, update=update, accumulator=accumulator)
    other = begin(parameters, 3, theta=theta)

    client.absorb("signs", sum_securely(parameters, [client, other]), 2)
    client.conclude(took_part=True)

    for value, seed in ((theta, 0), (update, 1), (accumulator, 2)):
        np.testing.assert_array_equal(value, draw(seed))


def test_an_update_of_zeros_contributes_zeros() -> None:
    nothing = np.zeros(N, np.float32)
    client = STRATEGY.begin(setting(), theta=draw(0), update=nothing, accumulator=nothing)

    assert [int(values.sum()) for values in client.contribute("signs")] == [0, 0]


# What is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [2, 3])
def test_signs_that_the_members_cannot_have_are_refused(members: int) -> None:
    parameters = setting()
    client = begin(parameters, 0, theta=draw(9))
    too_many = np.zeros(N, np.uint32)
    too_many[7] = members + 1

    with pytest.raises(PeerError) as caught:
        client.absorb("signs", [too_many, np.zeros(1, np.uint32)], members)

    assert caught.value.reason is RejectReason.IMPOSSIBLE_SUM


def test_negative_signs_that_the_members_cannot_have_are_refused() -> None:
    parameters = setting()
    too_many = np.zeros(N, np.uint32)
    too_many[7] = parameters.signs_modulus - 3

    with pytest.raises(PeerError) as caught:
        begin(parameters, 0, theta=draw(9)).absorb("signs", [too_many, np.zeros(1, np.uint32)], 2)

    assert caught.value.reason is RejectReason.IMPOSSIBLE_SUM


def test_a_factor_that_the_members_cannot_have_is_refused() -> None:
    parameters = setting()
    largest = 2 * parameters.fixed_point.to_ring(parameters.alpha_max)
    client = begin(parameters, 0, theta=draw(9))

    client.absorb("signs", [np.zeros(N, np.uint32), np.array([largest], np.uint32)], 2)
    with pytest.raises(PeerError) as caught:
        client.absorb("signs", [np.zeros(N, np.uint32), np.array([largest + 1], np.uint32)], 2)

    assert caught.value.reason is RejectReason.IMPOSSIBLE_SUM


def test_whether_a_sum_is_refused_does_not_depend_on_the_clients_own_input() -> None:
    parameters = setting()
    quiet = STRATEGY.begin(
        parameters, theta=draw(9), update=np.zeros(N, np.float32), accumulator=np.zeros(N, np.float32)
    )
    # All the others' signs agree; with this client's own among them the sum would have to be smaller.
    sums = [np.full(N, 5, np.uint32), np.zeros(1, np.uint32)]

    for client in (quiet, begin(parameters, 0, theta=draw(9))):
        client.absorb("signs", sums, 5)


@pytest.mark.parametrize("length", [0, N - 1, N + 1])
def test_an_update_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(BadUpdate, match=f"shape \\({length},\\) where the run has {N} parameters"):
        STRATEGY.begin(setting(), theta=draw(0), update=np.ones(length, np.float32), accumulator=draw(1))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_no_number_is_refused(value: float) -> None:
    update = draw(1)
    update[17] = value

    with pytest.raises(BadUpdate, match="NaN or infinity"):
        STRATEGY.begin(setting(), theta=draw(0), update=update, accumulator=np.zeros(N, np.float32))


def test_an_update_that_overflows_with_the_accumulator_is_refused() -> None:
    huge = np.full(N, 3e38, np.float32)

    with pytest.raises(BadUpdate, match="NaN or infinity"):
        STRATEGY.begin(setting(), theta=draw(0), update=huge, accumulator=huge)


def test_a_round_without_sums_cannot_be_concluded() -> None:
    with pytest.raises(BadUpdate, match="after its sums were absorbed"):
        begin(setting(), 0, theta=draw(9)).conclude(took_part=True)


EXPECTED = (Vector("signs", N, 11), Vector("factors", 1, 2**32))


def test_the_vectors_of_an_honest_client_are_admitted() -> None:
    client = begin(setting(), 0, theta=draw(9))

    assert client.vectors("signs") == EXPECTED
    STRATEGY.admit(setting(), "signs", client.vectors("signs"))


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ((), RejectReason.WRONG_LENGTH),
        (EXPECTED[:1], RejectReason.WRONG_LENGTH),
        ((*EXPECTED, EXPECTED[0]), RejectReason.WRONG_LENGTH),
        (EXPECTED[::-1], RejectReason.WRONG_LENGTH),
        ((Vector("signs", N - 1, 11), EXPECTED[1]), RejectReason.WRONG_LENGTH),
        ((EXPECTED[0], Vector("factors", 2, 2**32)), RejectReason.WRONG_LENGTH),
        ((Vector("signs", N, 13), EXPECTED[1]), RejectReason.WRONG_RING),
        ((EXPECTED[0], Vector("factors", 1, 2**31)), RejectReason.WRONG_RING),
    ],
    ids=str,
)
def test_other_vectors_are_refused(declared: tuple[Vector, ...], reason: RejectReason) -> None:
    with pytest.raises(PeerError) as caught:
        STRATEGY.admit(setting(), "signs", declared)

    assert caught.value.reason is reason


# Cost and names -----------------------------------------------------------------------------------------------


def test_predicted_bits_are_the_papers_formula_split_in_two() -> None:
    parameters = Parameters(parameters=61_706, clients=5, servers=2, rho=0.1)
    heads = Headcount.complete(5, 2)

    predicted = STRATEGY.predict_bits(parameters, heads, union_size=61_706)

    # Table 2: 2·S·C·N·⌈log2(2C + 1)⌉ and 2·S·C·32.
    assert predicted == {"signs": 2 * 2 * 5 * 61_706 * 4, "factors": 2 * 2 * 5 * 32}
    assert sum(predicted.values()) == no_union_bits(61_706, heads)


def test_predicted_bits_count_who_sent_and_who_received() -> None:
    heads = Headcount(cohort=5, senders=4, recipients=5, servers=2)

    assert STRATEGY.predict_bits(setting(), heads, union_size=N) == {
        "signs": 2 * (4 + 5) * N * 4,
        "factors": 2 * (4 + 5) * 32,
    }


def test_a_strategy_is_found_by_its_name() -> None:
    for name, strategy in STRATEGIES.items():
        assert find_strategy(name) is strategy
        assert strategy.name == name
        phases = [phase.name for phase in strategy.phases]
        assert len(set(phases)) == len(phases) > 0


def test_an_unknown_strategy_is_told_those_that_exist() -> None:
    with pytest.raises(ConfigurationError, match="no strategy 'union-jack'; choose one of: no-union"):
        find_strategy("union-jack")


def test_every_aggregator_takes_part_in_the_phase() -> None:
    assert SIGNS.aggregators(["a", "b", "c"]) == ("a", "b", "c")
