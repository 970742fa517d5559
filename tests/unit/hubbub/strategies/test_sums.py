"""Sums of numbers as they are, from update to sum, against sums of Python's integers and fractions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.errors import BadUpdate, PeerError, RejectReason
from hubbub.messages.manifest import TAKES_NUMBERS
from hubbub.parameters import Parameters
from hubbub.protocol.costs import Headcount
from hubbub.protocol.layout import Vector
from hubbub.strategies import sums
from hubbub.strategies.base import ClientInput, ClientRound, Conclusion, Release
from hubbub.strategies.registry import STRATEGIES, find_strategy
from support import strategy_rounds
from support.refusals import refusing
from support.strategy_rounds import N, add_up, draw, make_input, play, setting

SUMS = tuple(strategy.name for strategy in sums.STRATEGIES)
every_sum = pytest.mark.parametrize("name", SUMS)
THETA = draw(99)
COUNTS = setting(rho=0.1, alpha_max=1_000.0)
UNVERIFIED = replace(COUNTS, verified=False)
"""Five clients with at most 30 numbers of at most 1,000 each, added in units of 2^-18."""
UNIT = 2.0**-18


def say(numbers: Mapping[int, float]) -> ClientInput:
    """A client with these numbers at these indices, and something in an accumulator that counts for nothing."""
    update = np.zeros(N, np.float32)
    update[list(numbers)] = list(numbers.values())
    return replace(make_input(1, theta=THETA, update=update), accumulator=draw(5))


def total(name: str, *said: Mapping[int, float], parameters: Parameters = COUNTS) -> dict[int, float]:
    """The sum, where it is not zero; it is the same at all clients."""
    inputs = [say(numbers) for numbers in said]
    given = [(mine.theta.copy(), mine.update.copy()) for mine in inputs]
    ends = play(find_strategy(name), parameters, inputs)
    for mine, before in zip(inputs, given, strict=True):
        np.testing.assert_array_equal((mine.theta, mine.update), before)
    for end in ends[1:]:
        np.testing.assert_array_equal(end.theta, ends[0].theta)
    return shown(ends[0])


def shown(end: Conclusion) -> dict[int, float]:
    return {int(index): float(end.theta[index]) for index in np.flatnonzero(end.theta)}


# What comes out -------------------------------------------------------------------------------------------


@every_sum
def test_the_model_becomes_the_sum_whatever_it_was(name: str) -> None:
    said: tuple[dict[int, float], ...] = ({3: 2.0, 7: 1.0}, {3: 5.0}, {}, {299: -4.0, 3: 1.0}, {0: 0.25})

    assert total(name, *said) == {0: 0.25, 3: 8.0, 7: 1.0, 299: -4.0}


@every_sum
@pytest.mark.parametrize(("clients", "servers"), [(2, 2), (5, 3), (8, 2)])
def test_whole_numbers_of_either_sign_are_added_exactly(name: str, clients: int, servers: int) -> None:
    parameters = setting(clients=clients, servers=servers, rho=1.0, alpha_max=1e6)
    numbers = np.random.default_rng(1).integers(-(10**6), 10**6, (clients, N), endpoint=True)
    inputs = [make_input(0, theta=THETA, update=row.astype(np.float32)) for row in numbers]

    for end in play(find_strategy(name), parameters, inputs):
        assert end.theta.dtype == np.float32
        assert end.theta.tolist() == numbers.sum(axis=0).tolist()
        assert end.changed == 0


@every_sum
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("alpha_max", [1.0, 1_000.0, 2.0**24, 0.75])
def test_the_largest_numbers_of_all_clients_do_not_overflow(name: str, sign: int, alpha_max: float) -> None:
    parameters = setting(alpha_max=alpha_max)

    found = total(name, *[{5: sign * alpha_max}] * 5, parameters=parameters)

    assert found == {5: sign * 5 * alpha_max}


@every_sum
def test_fractions_are_rounded_once_by_each_client_and_long_sums_to_the_nearest_float(name: str) -> None:
    third, parameters = float(np.float32(1 / 3)), setting(alpha_max=2.0**24)

    found = total(name, {0: 2.0**24, 1: 2.0**24 - 1}, {0: 1.0, 1: 1.0}, {}, {}, {}, parameters=parameters)

    assert found == {0: 2.0**24, 1: 2.0**24}, "2^24 + 1 is no float"
    assert total(name, *[{5: third}] * 5) == {5: 5 * round(third / UNIT) * UNIT}


@every_sum
@pytest.mark.parametrize("wire", ["paper", "compact"])
def test_long_words_keep_small_numbers_beside_large_ones(name: str, wire: Any) -> None:
    """In 32 bits a unit of this range is 64, and whole numbers are lost."""
    numbers, wide = {0: 2.0**34, 1: 1.0, 2: -0.125, 3: -(2.0**34)}, setting(alpha_max=2.0**34)

    found = total(name, *[numbers] * 5, parameters=replace(wide, number_bits=64, wire=wire))

    assert found == {0: 5 * 2.0**34, 1: 5.0, 2: -0.625, 3: -5 * 2.0**34}
    assert total(name, *[numbers] * 5, parameters=wide) == {0: 5 * 2.0**34, 3: -5 * 2.0**34}


RANGES = replace(COUNTS, ranges=((1, 2.0**-10), (1, 1_000.0), (N - 2, 1.0)))


@every_sum
def test_numbers_in_ranges_of_their_own_have_units_and_bounds_of_their_own(name: str) -> None:
    """In one range a unit is 2^-18; in the first one here 2^-38."""
    said = {0: 2.0**-37, 1: 999.0, 7: 2.0**-28}

    ends = play(find_strategy(name), RANGES, [say(said), say({1: 1.0, 7: 0.0, 8: -5.0}), *[say({})] * 3])

    assert shown(ends[0]) == {0: 2.0**-37, 1: 1_000.0, 7: 2.0**-28, 8: -1.0}
    assert [end.changed for end in ends] == [0, 1, 0, 0, 0]
    assert total(name, *[said] * 5) == {1: 4_995.0}


@every_sum
def test_a_sum_beyond_the_range_of_its_entry_is_refused(name: str) -> None:
    """Also if it is one that other entries can have."""
    client = find_strategy(name).begin(RANGES, say({0: 2.0**-10, 1: 1.0}))
    if name == "sparse-sum":
        counts = np.zeros(N, np.uint32)
        counts[:2] = 5
        strategy_rounds.absorb(client, "union", [counts], 5)
    numbers = RANGES.signed_fixed_point.at(np.arange(2))
    units = np.zeros(client.vectors("values")[0].length, np.int64)
    units[:2] = np.array([5 * 2.0**-10, 5.0]) / numbers.unit
    above = units.copy()
    above[0] += 1

    reason = strategy_rounds.refusal(client, "values", [numbers.to_ring(above)], 5)

    assert reason is RejectReason.FALSE_SUM
    strategy_rounds.absorb(client, "values", [numbers.to_ring(units)], 5)


@every_sum
def test_what_cancels_is_zero_and_not_lost(name: str) -> None:
    ends = play(find_strategy(name), COUNTS, [say({4: 9.0}), say({4: -9.0}), *[say({})] * 3])

    assert shown(ends[0]) == {}
    assert ends[0].union_size == (1 if name == "sparse-sum" else N)
    assert total(name, *[{}] * 5) == {}


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 8])
def test_an_index_is_never_lost_however_many_have_it(clients: int) -> None:
    """SecUnion with q = 1 loses every even number of marks."""
    parameters = setting(clients=clients, alpha_max=10.0)
    said = [{t: 1.0 for t in range(clients + 1) if client < t} for client in range(clients)]

    assert total("sparse-sum", *said, parameters=parameters) == {t: float(t) for t in range(1, clients + 1)}


def test_a_sparse_sum_is_over_those_indices_that_anybody_has_and_counts_who_is_alone() -> None:
    """A number that is rounded to nothing does not show."""
    said = [say({1: 1.0, 2: 1.0, 3: UNIT / 4}), say({2: 1.0, 9: 3.0}), *[say({})] * 3]
    ends = play(find_strategy("sparse-sum"), COUNTS, said)

    assert {end.union_size for end in ends} == {3}
    assert {end.alone_share for end in ends} == {2 / 3}
    assert shown(ends[0]) == {1: 1.0, 2: 2.0, 9: 3.0}


@every_sum
def test_who_is_left_out_is_not_in_the_sum_and_keeps_nothing_of_it(name: str) -> None:
    """A statistic that is said again is counted anew; what was kept of the last time would count it twice."""
    inputs = [say({3: float(10**place)}) for place in range(4)]

    ends = play(find_strategy(name), setting(clients=4, alpha_max=1_000.0), inputs, left_out=[1])

    for end in ends:
        assert shown(end) == {3: 1_101.0}
        assert not end.accumulator.any()


# Numbers that cannot be sent as they are -------------------------------------------------------------------


@every_sum
def test_what_is_out_of_range_is_clipped_and_counted_for_the_client_itself(name: str) -> None:
    """An error would tell the others that a number is out of range."""
    said = {0: 1_000.5, 1: -np.inf, 2: np.nan, 3: 7.0}

    ends = play(find_strategy(name), COUNTS, [say(said), say({0: 1.0, 2: 1.0}), *[say({})] * 3])

    assert shown(ends[0]) == {0: 1_001.0, 1: -1_000.0, 2: 1.0, 3: 7.0}
    assert [end.changed for end in ends] == [3, 0, 0, 0, 0]


def test_of_too_many_numbers_the_largest_are_kept_and_the_others_counted_once() -> None:
    """39 are not zero, from -20 to 19, where k is 30. A dense sum knows no k."""
    said = {index: float(index - 20) for index in range(40)}
    clipped_too = {**dict.fromkeys(range(30), 5000.0), 30: 2_000.0}
    everywhere = dict.fromkeys(range(N), 1.0)

    ends = play(find_strategy("sparse-sum"), COUNTS, [say(said), *[say({})] * 4])

    # Of -5 and 5, the lower index is kept.
    assert shown(ends[0]) == {index: n for index, n in said.items() if abs(n) > 5 or n == -5}
    assert [end.changed for end in ends] == [9, 0, 0, 0, 0]
    assert play(find_strategy("sparse-sum"), COUNTS, [say(clipped_too), *[say({})] * 4])[0].changed == 31
    assert total("sum", everywhere, *[{}] * 4) == everywhere


@every_sum
def test_an_update_of_another_length_and_a_round_without_its_sums_are_refused(name: str) -> None:
    for length in (N - 1, N + 1):
        with pytest.raises(BadUpdate, match=f"shape \\({length},\\) where the run has {N} parameters"):
            find_strategy(name).begin(COUNTS, replace(say({}), update=np.zeros(length, np.float32)))
    with pytest.raises(BadUpdate, match="after its sums were absorbed"):
        find_strategy(name).begin(COUNTS, say({})).conclude(took_part=True)


# Sums that cannot be ---------------------------------------------------------------------------------------

LARGEST = 1_000 * 2**18


def begin(name: str, numbers: Mapping[int, float] | None = None) -> ClientRound:
    return find_strategy(name).begin(COUNTS, say(numbers or {}))


def absorb(client: ClientRound, phase: str, values: Sequence[int] | NDArray[np.int64], members: int) -> None:
    vector = client.vectors(phase)[0]
    residues = np.mod(np.asarray(values, np.int64), vector.modulus).astype(np.uint32)
    strategy_rounds.absorb(client, phase, [residues], members)


def at(index: int, value: int) -> NDArray[np.int64]:
    values = np.zeros(N, np.int64)
    values[index] = value
    return values


def begin_with(choosers: int) -> ClientRound:
    """A client that knows how many have the one index of the union."""
    client = begin("sparse-sum")
    absorb(client, "union", at(7, choosers), 5)
    return client


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_sum_beyond_what_the_members_or_those_who_have_the_index_can_say_is_refused(sign: int) -> None:
    for members in (2, 5):
        absorb(begin("sum"), "values", at(7, sign * members * LARGEST), members)
        with refusing(RejectReason.FALSE_SUM):
            absorb(begin("sum"), "values", at(7, sign * (members * LARGEST + 1)), members)
    absorb(begin_with(2), "values", [2 * sign * LARGEST], 5)
    with refusing(RejectReason.FALSE_SUM):
        absorb(begin_with(2), "values", [sign * (2 * LARGEST + 1)], 5)


def test_a_union_that_the_members_cannot_have_and_a_zero_of_one_alone_are_refused() -> None:
    marks = np.zeros(N, np.int64)
    marks[: 2 * COUNTS.kept] = 1
    more_marks = marks + at(2 * COUNTS.kept, 1)

    absorb(begin_with(2), "values", [0], 5)
    absorb(begin("sparse-sum"), "union", at(7, 3), 3)
    absorb(begin("sparse-sum"), "union", marks, 2)
    for client, phase, values, members in (
        (begin_with(1), "values", np.zeros(1, np.int64), 5),
        (begin("sparse-sum"), "union", at(7, 4), 3),
        (begin("sparse-sum"), "union", more_marks, 2),
    ):
        with refusing(RejectReason.FALSE_SUM):
            absorb(client, phase, values, members)


@pytest.mark.parametrize("numbers", [{}, {7: 1_000.0}, {8: -3.0}])
def test_a_refusal_does_not_depend_on_the_clients_own_numbers(numbers: dict[int, float]) -> None:
    clients = [begin("sparse-sum", numbers), begin("sum", numbers)]
    absorb(clients[0], "union", at(7, 1), 5)

    absorb(clients[0], "values", [LARGEST], 5)
    absorb(clients[1], "values", at(7, 5 * LARGEST), 5)

    assert [shown(client.conclude(took_part=True)) for client in clients] == [{7: 1_000.0}, {7: 5_000.0}]


# Vectors, rings, bits --------------------------------------------------------------------------------------

DECLARED = {
    "sum": {"values": Vector("values", N, 2**32)},
    "sparse-sum": {"union": Vector("union", N, 6), "values": Vector("values", 5 * 30, 2**32)},
}
CASES = [(name, phase) for name, phases in DECLARED.items() for phase in phases]


@pytest.mark.parametrize(("name", "phase"), CASES)
def test_wrong_vectors_are_refused_and_say_in_what_they_are_wrong(name: str, phase: str) -> None:
    strategy, right = find_strategy(name), DECLARED[name][phase]
    for check in (strategy.admit, strategy.admit_release):
        check(UNVERIFIED, phase, [right])
        for wrong, reason in [
            ([replace(right, length=right.length + 1)], RejectReason.WRONG_LENGTH),
            ([replace(right, modulus=right.modulus - 1)], RejectReason.WRONG_RING),
            ([replace(right, name="signs")], RejectReason.WRONG_LENGTH),
            ([right, right], RejectReason.WRONG_LENGTH),
            ([], RejectReason.WRONG_LENGTH),
        ]:
            with refusing(reason):
                check(UNVERIFIED, phase, wrong)
        fewer = [replace(right, length=29)]
        if (name, phase) == ("sparse-sum", "values"):
            check(UNVERIFIED, phase, fewer)
            continue
        with refusing(RejectReason.WRONG_LENGTH):
            check(UNVERIFIED, phase, fewer)


@every_sum
def test_a_release_of_other_vectors_is_refused_by_the_client(name: str) -> None:
    phase = find_strategy(name).phases[0].name
    client = begin(name)
    vector, tags = client.vectors(phase)
    zeros = (np.zeros(N - 1, np.uint32), np.zeros(tags.length, np.uint64))

    with pytest.raises(PeerError):
        client.absorb(phase, Release((replace(vector, length=N - 1), tags), zeros), 5)


def test_numbers_are_restricted_to_the_released_union_and_to_nothing_else() -> None:
    """Clients that were told different unions have different transcripts, which are made of this."""
    strategy, clients = find_strategy("sparse-sum"), [begin("sparse-sum", {2: 1.0}), begin("sparse-sum", {9: 4.0})]
    assert clients[0].restricted_to("values") == ()

    union = add_up(strategy.phases[0], COUNTS, clients)
    for client in clients:
        client.absorb("union", union, 2)

    for client in clients:
        assert [listed.indices.tolist() for listed in client.restricted_to("values")] == [[2, 9]]
        assert client.restricted_to("union") == ()
    assert [client.contribute("values")[0].tolist() for client in clients] == [[2**18, 0], [0, 4 * 2**18]]
    assert begin("sum").restricted_to("values") == ()


@every_sum
def test_every_aggregator_takes_part_and_no_server_learns_anything_of_one_client(name: str) -> None:
    strategy, servers = find_strategy(name), ("a", "b", "c")

    assert [phase.aggregators(servers) for phase in strategy.phases] == [servers] * len(strategy.phases)
    assert not any(phase.gathers for phase in strategy.phases)
    assert (strategy.reveals, strategy.repeats) == ("", True)


def test_bits_are_those_of_a_secure_sum_with_and_without_dropout() -> None:
    """2·S·C·n·32, and 2·S·C·N·⌈log2(C + 1)⌉ for the union (Beguier et al., Eq. 3)."""
    dense, sparse = find_strategy("sum"), find_strategy("sparse-sum")
    some = Headcount(cohort=5, senders=4, recipients=5, servers=3)

    for heads, sent in ((Headcount.complete(5, 3), 2 * 3 * 5), (some, 3 * 9)):
        assert dense.predict_bits(COUNTS, heads, 77) == {"values": sent * N * 32, "tags": sent * 192}
        bits = {"union": sent * N * 3, "values": sent * 77 * 32, "tags": sent * 2 * 192}
        assert sparse.predict_bits(COUNTS, heads, 77) == bits
        long = replace(COUNTS, number_bits=64)
        assert dense.predict_bits(long, heads, 77) == {"values": sent * N * 64, "tags": sent * 84 * 64}
        bits = {"union": sent * N * 3, "values": sent * 77 * 64, "tags": sent * (192 + 84 * 64)}
        assert sparse.predict_bits(long, heads, 77) == bits
    assert sparse.union_size([Vector("values", 77, 2**32)]) == 77


def test_a_manifest_knows_the_strategies_that_learn_nothing() -> None:
    assert {name for name, strategy in STRATEGIES.items() if strategy.repeats} == set(TAKES_NUMBERS)
