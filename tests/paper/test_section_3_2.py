"""Section 3.2, the compressed secure aggregation protocol."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.crypto.stream import AesCtrStream
from hubbub.protocol import leakage, signs, unions
from hubbub.protocol.aggregate import apply_sum
from hubbub.protocol.compression import top_binary
from hubbub.protocol.dense import Digits
from hubbub.protocol.ring import Residues
from hubbub.protocol.sharing import accumulate, recombine, split
from hubbub.strategies.planner import Question, plan
from hubbub.strategies.registry import find_strategy


@pytest.mark.parametrize("clients", [2, 5, 10])
def test_t_and_its_inverse_are_equations_11_and_12(clients: int) -> None:
    """3.2.3: T takes [-C, C] to [0, 2C], and T⁻¹ takes it back."""
    modulus = 2 * clients + 1
    values = np.arange(-clients, clients + 1, dtype=np.int32)

    converted = signs.to_ring(values, clients)

    assert converted.tolist() == [x if x >= 0 else x + modulus for x in values.tolist()]
    assert np.array_equal(signs.from_ring(converted, clients), values)


@pytest.mark.parametrize("clients", [2, 5, 10])
@pytest.mark.parametrize("servers", [2, 3])
def test_secure_sum_of_signs_is_the_sum_of_signs(clients: int, servers: int) -> None:
    """3.2.3: the components of the sum "belong to [-C, C]", and the ring Z_{2C+1} holds exactly these."""
    generator = np.random.default_rng(clients)
    directions = generator.integers(-1, 2, (clients, 2000)).astype(np.int8)
    directions[:, 0], directions[:, 1] = 1, -1  # Everybody agrees: the sums C and -C.
    m, stream = signs.modulus(clients), AesCtrStream(b"\x08" * 32)
    sums = [np.zeros(2000, dtype=np.uint32) for _ in range(servers)]

    for direction in directions:
        for total, share in zip(sums, split(signs.to_ring(direction, clients), m, servers, stream), strict=True):
            accumulate(total, share, m)

    assert np.array_equal(signs.from_ring(recombine(sums, m), clients), directions.sum(axis=0, dtype=np.int32))


# 3.2.1, security of intermediate outputs ------------------------------------------------------------------


def aggregate_updates(clients: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int32], float]:
    """A round's U, D and α; clients choose 300 of 2,000 with some agreement, so that signs also cancel."""
    generator = np.random.default_rng(seed)
    common = generator.normal(size=2000)
    coded = [top_binary((common + generator.normal(size=2000)).astype(np.float32), 300) for _ in range(clients)]
    direction = np.stack([each.signs for each in coded]).sum(axis=0, dtype=np.int32)
    alpha = sum(each.alpha for each in coded)
    return apply_sum(np.zeros(2000, dtype=np.float32), direction, alpha / clients, clients), direction, alpha


@pytest.mark.parametrize("clients", [2, 3, 5, 10])
def test_the_union_can_be_read_from_the_aggregate_but_for_what_cancels(clients: int) -> None:
    """3.2.1: Ṽ = {k | U[k] ≠ 0} ⊂ V, and "V \\ Ṽ = {k ∈ V | Σ D_i[k] = 0}"."""
    update, direction, _ = aggregate_updates(clients, seed=clients)

    assert np.array_equal(np.flatnonzero(update), np.flatnonzero(direction))


@pytest.mark.parametrize("clients", [2, 3, 5, 10])
def test_the_sum_of_the_factors_can_be_read_from_the_aggregate(clients: int) -> None:
    """3.2.1: α̃ = C²·min |U[k]|, "where α̃ = α if at least one index of the sum of the signs is equal to -1 or 1".

    A slip: the paper takes the minimum over V, where U may be 0; it has to be taken over Ṽ.
    """
    update, direction, alpha = aggregate_updates(clients, seed=10 + clients)

    assert (np.abs(direction) == 1).any()
    assert clients**2 * np.abs(update[update != 0]).min() == pytest.approx(alpha, rel=1e-6)


@pytest.mark.parametrize("clients", [2, 3, 5, 10])
def test_the_sum_of_the_signs_can_be_read_from_the_aggregate(clients: int) -> None:
    """3.2.1: "the client can obtain the sum of the signs via D = (C²/α)·U"."""
    update, direction, _ = aggregate_updates(clients, seed=20 + clients)
    alpha = clients**2 * float(np.abs(update[update != 0]).min())

    inferred = clients**2 / alpha * update.astype(np.float64)

    assert np.allclose(inferred, direction, atol=1e-5)


def test_without_an_index_of_one_client_the_factors_are_not_recovered() -> None:
    """3.2.1: the condition is needed; where all agree, α̃ is C times too large."""
    update = apply_sum(np.zeros(3, dtype=np.float32), np.array([5, -5, 0], dtype=np.int32), 2.0 / 5, 5)

    assert 25 * np.abs(update[update != 0]).min() == pytest.approx(5 * 2.0)


# 3.2.2, secure union protocols ----------------------------------------------------------------------------


def choose(clients: int, n: int, k: int, seed: int) -> list[NDArray[np.int8]]:
    generator = np.random.default_rng(seed)
    cohort = [np.zeros(n, dtype=np.int8) for _ in range(clients)]
    for signs_of_one in cohort:
        signs_of_one[generator.choice(n, k, replace=False)] = generator.choice([-1, 1], k)
    return cohort


def sum_securely(marks: list[Digits], m: int, key: int) -> Residues:
    stream = AesCtrStream(bytes([key]) * 32)
    sums = [np.zeros(marks[0].size, dtype=np.uint32) for _ in range(2)]
    for x in marks:
        for total, share in zip(sums, split(x, m, 2, stream), strict=True):
            accumulate(total, share, m)
    return recombine(sums, m)


def test_partial_sec_union_gives_the_union_and_how_many_chose_each_index() -> None:
    """3.2.2, Eq. 9: B = Σ B_i mod (C+1) "reveals […] how many clients have non-zero values at a given index"."""
    cohort = choose(5, 3000, 600, seed=1)

    total = sum_securely([unions.mark(each) for each in cohort], 6, key=1)

    assert np.array_equal(total, np.count_nonzero(cohort, axis=0))
    assert np.array_equal(unions.indices_of(total), np.flatnonzero(np.any(cohort, axis=0)))


def test_partial_sec_union_does_not_tell_which_clients() -> None:
    """3.2.2: "it does not reveal which clients": who chose what may be dealt out anew, index by index."""
    cohort = np.stack(choose(5, 3000, 600, seed=2))
    dealt_anew = np.random.default_rng(3).permuted(cohort, axis=0)

    first, second = (sum_securely([unions.mark(each) for each in rows], 6, key=2) for rows in (cohort, dealt_anew))

    assert not np.array_equal(cohort, dealt_anew)
    assert np.array_equal(first, second)


@pytest.mark.parametrize("q", [1, 2, 5, 32])
def test_sec_union_gives_the_union_but_for_marks_that_cancel(q: int) -> None:
    """3.2.2, Eq. 10: A = Σ A_i mod 2^q; "the resulting union of indices may have some false negatives".

    A slip: they occur when "more than two clients have the same index"; two are enough.
    """
    cohort, stream = choose(5, 3000, 600, seed=4), AesCtrStream(b"\x30" * 32)
    marks = [unions.mark_at_random(each, q, stream) for each in cohort]

    found = unions.indices_of(sum_securely(marks, 2**q, key=3))

    counts = np.count_nonzero(cohort, axis=0)
    missing = np.setdiff1d(np.flatnonzero(counts), found)
    assert np.setdiff1d(found, np.flatnonzero(counts)).size == 0
    assert (counts[missing] >= 2).all()
    assert (missing.size > 0) == (q <= 5)


@pytest.mark.parametrize("q", [2, 5, 32])
def test_sec_union_tells_a_client_where_it_was_alone(q: int) -> None:
    """3.2.2: if A[k] is its own R_{i,k}, "the client can infer that with very high probability he is alone"."""
    cohort, stream = choose(5, 60_000, 6_000, seed=5), AesCtrStream(b"\x31" * 32)
    marks = [unions.mark_at_random(each, q, stream) for each in cohort]
    total = sum_securely(marks, 2**q, key=4)

    mine = cohort[0] != 0
    alone = mine & (np.count_nonzero(cohort, axis=0) == 1)
    suspected = mine & (total == marks[0])

    assert suspected[alone].all()
    mistaken = np.count_nonzero(suspected & ~alone)
    expected = np.count_nonzero(suspected) * (1 - leakage.alone_probability(0.1, 5, q))
    assert abs(mistaken - expected) <= 4 * math.sqrt(expected)


def test_plaintext_union_is_an_or_by_the_first_server() -> None:
    """3.2.2: "The first server evaluates the union of indices by OR-ing the received Boolean vectors"."""
    phase = find_strategy("plaintext-union").phases[0]
    cohort = choose(5, 3000, 600, seed=6)
    total = np.zeros(3000, dtype=np.uint32)

    for each in cohort:
        phase.combine(total, unions.mark(each).astype(np.uint32), 2)

    assert phase.aggregators(["first", "second", "third"]) == ("first",)
    assert np.array_equal(unions.indices_of(total), np.flatnonzero(np.any(cohort, axis=0)))
    assert set(total.tolist()) == {0, 1}


def test_no_union_pays_where_the_union_is_nearly_everything() -> None:
    """3.2.2, NoUnion: "If the compression rate is very low, the split […] is not beneficial"."""

    def cheapest(rho: float) -> str:
        return plan(
            Question(parameters=61_706, clients=5, servers=2, rho=rho, wire="paper", verified=False)
        ).lossless.strategy

    def partial_is_beneficial(rho: float) -> bool:
        answer = plan(Question(parameters=61_706, clients=5, servers=2, rho=rho, wire="paper", verified=False))
        return answer.row("partial-sec-union").bits_per_round < answer.row("no-union").bits_per_round

    assert cheapest(1.0) == cheapest(0.5) == "no-union"
    assert partial_is_beneficial(0.01)


# Table 1 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "union_bits", "clients_learn", "servers_learn"),
    [
        ("plaintext-union", 2 * 5 * 61_706, "nothing", "indices"),
        ("partial-sec-union", 2 * 2 * 5 * 61_706 * 3, "chooser counts", "nothing"),
        ("sec-union", 2 * 2 * 5 * 61_706 * 7, "whether alone", "nothing"),
    ],
)
def test_table_1(strategy: str, union_bits: int, clients_learn: str, servers_learn: str) -> None:
    """Table 1: 2·C·N, 2·S·C·N·⌈log2(C+1)⌉ and 2·S·C·N·q, and who learns what."""
    row = plan(Question(parameters=61_706, clients=5, servers=2, rho=0.1, q=7, wire="paper", verified=False)).row(
        strategy
    )

    assert row.phases["union"] == union_bits
    assert row.exposure.clients_learn == clients_learn
    assert row.exposure.servers_learn == servers_learn
