"""Appendix E, the privacy proof of SecureSum: the three cases of its theorem, on the code that deals shares.

The adversary has the servers J, fewer than all, and the clients I. It sees R_{i,j} of honest clients at its
servers and R_j of honest servers. Exact tests run through all randomness for a small ring; statistical ones read
the payloads of the signs phase, as a trainer deals them.

A slip: the simulator of Case II draws all of that independently, but it adds up to the output. What holds, and
what is tested, is that any two honest inputs with the same sum give the same distribution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.crypto.stream import AesCtrStream
from hubbub.protocol import signs
from hubbub.protocol.layout import Vector, plan_chunks, unpack_chunk
from hubbub.protocol.ring import Residues
from hubbub.protocol.sharing import accumulate, recombine, split
from hubbub.strategies.registry import find_strategy
from hubbub_trainer.round_jobs import deal_chunk
from support.plain_ring import ByteStream
from support.statistics import against_each_other, against_uniform, bound, joint_counts

SAMPLE = 2**18
CHUNK_BYTES = 2**16
Distribution = Counter[tuple[int, ...]]


def proper_subsets(count: int) -> list[tuple[int, ...]]:
    """J: at least one server, not all."""
    return [chosen for size in range(1, count) for chosen in combinations(range(count), size)]


# All randomness, exactly ----------------------------------------------------------------------------------


def deal_all(honest: Sequence[int], m: int, servers: int) -> list[list[Residues]]:
    """`split` of every honest client's input, over all randomness: element t of each vector is trial t.

    A byte below m is its own residue, so that all combinations of such bytes are all draws, each as likely.
    """
    draws = len(honest) * (servers - 1)
    grid = np.array(list(product(range(m), repeat=draws)), dtype=np.uint8)
    per_client = np.split(grid, len(honest), axis=1)
    return [
        split(np.full(len(grid), x, dtype=np.uint32), m, servers, ByteStream(columns.T.tobytes()))
        for x, columns in zip(honest, per_client, strict=True)
    ]


def view(shares: list[list[Residues]], m: int, corrupt: tuple[int, ...]) -> Distribution:
    """What the adversary sees of the honest clients, over all trials: their shares at J, and the sums elsewhere.

    What its own clients sent is left out of the sums: it knows that.
    """
    seen = [client[j] for client in shares for j in corrupt]
    for j in set(range(len(shares[0]))) - set(corrupt):
        total = np.zeros(shares[0][0].size, dtype=np.uint32)
        for client in shares:
            accumulate(total, client[j], m)
        seen.append(total)
    return Counter(zip(*(each.tolist() for each in seen), strict=True))


@pytest.mark.parametrize(("m", "servers"), [(2, 2), (3, 2), (5, 2), (11, 2), (2, 3), (3, 3), (2, 4)])
def test_case_1_servers_see_uniform_shares_whatever_the_inputs(m: int, servers: int) -> None:
    """E, Case I: "all messages received by A are independently and uniformly random". Exact, two clients."""
    for inputs in product(range(m), repeat=2):
        shares = deal_all(inputs, m, servers)
        for corrupt in proper_subsets(servers):
            seen = joint_counts([client[j] for client in shares for j in corrupt], m)

            assert set(seen.tolist()) == {shares[0][0].size // m ** (2 * len(corrupt))}


def same_and_other(m: int, honest: int) -> list[tuple[tuple[int, ...], tuple[int, ...], bool]]:
    """A few pairs of honest inputs, and whether their sums are the same."""
    base = (0,) * honest
    same = [(1, m - 1) + (0,) * (honest - 2), (m - 1, 1) + (0,) * (honest - 2)]
    other = [(1,) + (0,) * (honest - 1), (m - 1, *(0,) * (honest - 1))]
    return [(base, each, True) for each in same] + [(base, each, False) for each in other]


@pytest.mark.parametrize(
    ("m", "servers", "honest"), [(2, 2, 2), (3, 2, 2), (11, 2, 2), (3, 2, 3), (2, 3, 2), (3, 3, 2)]
)
def test_case_2_views_are_the_same_for_the_same_sum_and_differ_for_another(
    m: int, servers: int, honest: int
) -> None:
    """E, Case II: with up to C - 2 clients the adversary learns the sum of the honest inputs, no more. Exact."""
    for corrupt in proper_subsets(servers):
        for first, second, same_sum in same_and_other(m, honest):
            views = [view(deal_all(inputs, m, servers), m, corrupt) for inputs in (first, second)]

            assert (views[0] == views[1]) is same_sum


@pytest.mark.parametrize(("m", "servers"), [(3, 2), (3, 3)])
def test_case_2_the_view_adds_up_to_the_output_and_is_not_uniform(m: int, servers: int) -> None:
    """E, Case II, the slip: the simulator's messages would be uniform and independent; real ones are not."""
    honest = (1, 1)
    for corrupt in proper_subsets(servers):
        seen = view(deal_all(honest, m, servers), m, corrupt)
        elements = len(next(iter(seen)))

        assert all(sum(each) % m == sum(honest) % m for each in seen)
        assert len(seen) == m ** (elements - 1)
        assert len(set(seen.values())) == 1


@pytest.mark.parametrize(("m", "servers"), [(2, 2), (3, 2), (11, 2), (3, 3), (2, 4)])
def test_case_3_with_one_honest_client_the_view_follows_from_inputs_and_output(m: int, servers: int) -> None:
    """E, Case III: the adversary infers X_{i*} = X - Σ X_i; its view is uniform among those that add up to it."""
    for secret in range(m):
        shares = deal_all((secret,), m, servers)
        simulated = Counter(each for each in product(range(m), repeat=servers) if sum(each) % m == secret)
        for corrupt in proper_subsets(servers):
            assert view(shares, m, corrupt) == simulated


# Real payloads, statistically -----------------------------------------------------------------------------


def send(direction: NDArray[np.int8], clients: int, servers: int, stream: AesCtrStream) -> list[list[bytes]]:
    """A client's payloads of the signs phase: by server, by chunk."""
    m = signs.modulus(clients)
    vectors = (Vector("signs", direction.size, m), Vector("factors", 1, 2**32))
    values = (signs.to_ring(direction, clients), np.array([7], dtype=np.uint32))
    phase = find_strategy("no-union").phases[0]
    chunks = [
        deal_chunk(phase, chunk, vectors, values, servers, stream) for chunk in plan_chunks(vectors, CHUNK_BYTES)
    ]
    return [[chunk[server] for chunk in chunks] for server in range(servers)]


def read_signs(payloads: list[bytes], n: int, clients: int) -> Residues:
    """The share of the signs, as a server unpacks it."""
    vectors = (Vector("signs", n, signs.modulus(clients)), Vector("factors", 1, 2**32))
    whole = np.zeros(n, dtype=np.uint32)
    for chunk, payload in zip(plan_chunks(vectors, CHUNK_BYTES), payloads, strict=True):
        for piece, residues in unpack_chunk(chunk, vectors, payload):
            if piece.vector == 0:
                whole[piece.elements] = residues
    return whole


def receive(directions: Sequence[NDArray[np.int8]], clients: int, servers: int, key: int) -> list[list[Residues]]:
    """R_{i,j} of these clients, by client and by server, through real payloads."""
    stream = AesCtrStream(bytes([key]) * 32)
    return [
        [read_signs(payload, each.size, clients) for payload in send(each, clients, servers, stream)]
        for each in directions
    ]


def constant(value: int) -> NDArray[np.int8]:
    return np.full(SAMPLE, value, dtype=np.int8)


@pytest.mark.parametrize(("clients", "servers"), [(5, 2), (2, 3), (3, 3)])
def test_case_1_payloads_to_all_servers_but_one_are_uniform_and_independent(clients: int, servers: int) -> None:
    """E, Case I, p = S - 1: every two residues of the view, jointly; all clients send the same, which is worst."""
    m = signs.modulus(clients)
    shares = receive([constant(1)] * clients, clients, servers, key=1)

    for honest_server in range(servers):
        seen = [each for client in shares for j, each in enumerate(client) if j != honest_server]
        for pair in combinations(seen, 2):
            assert against_uniform(joint_counts(list(pair), m)) < bound(m**2)


def test_case_1_the_whole_view_of_all_servers_but_one_is_uniform() -> None:
    """E, Case I: two clients, three servers, ring Z_5: the four residues that two servers see, jointly."""
    shares = receive([constant(1), constant(-1)], 2, 3, key=2)

    for corrupt in combinations(range(3), 2):
        seen = [client[j] for client in shares for j in corrupt]
        assert against_uniform(joint_counts(seen, 5)) < bound(5**4)


def honest_view(directions: Sequence[NDArray[np.int8]], corrupt: int, key: int) -> NDArray[np.int64]:
    """C = 5, S = 2, two honest clients: their shares at the corrupt server, and the other one's sum, jointly."""
    m = signs.modulus(5)
    shares = receive(directions, 5, 2, key)
    total = np.zeros(SAMPLE, dtype=np.uint32)
    for client in shares:
        accumulate(total, client[1 - corrupt], m)
    return joint_counts([*(client[corrupt] for client in shares), total], m)


@pytest.mark.parametrize("corrupt", [0, 1])
@pytest.mark.parametrize("other", [(1, -1), (-1, 1)])
def test_case_2_payloads_look_alike_for_the_same_sum(corrupt: int, other: tuple[int, int]) -> None:
    """E, Case II, C - 2 corrupt clients and S - 1 corrupt servers: signs (0, 0) against (1, -1) and (-1, 1)."""
    first = honest_view([constant(0), constant(0)], corrupt, key=3)
    second = honest_view([constant(value) for value in other], corrupt, key=4)

    assert against_each_other(first, second) < bound(11**3)


@pytest.mark.parametrize("corrupt", [0, 1])
def test_case_2_payloads_tell_another_sum_apart(corrupt: int) -> None:
    """The test above could not fail if this one did not hold."""
    first = honest_view([constant(0), constant(0)], corrupt, key=5)
    second = honest_view([constant(0), constant(1)], corrupt, key=6)

    assert against_each_other(first, second) > bound(11**3)


def test_case_3_all_clients_but_one_compute_what_the_last_one_sent() -> None:
    """E, Case III: "The adversary can easily infer the input of the client i*" from inputs and output alone."""
    clients, m = 5, signs.modulus(5)
    directions = np.random.default_rng(9).integers(-1, 2, (clients, 5000)).astype(np.int8)
    sums = [np.zeros(5000, dtype=np.uint32) for _ in range(3)]
    for client in receive(list(directions), clients, 3, key=7):
        for total, share in zip(sums, client, strict=True):
            accumulate(total, share, m)

    output = signs.from_ring(recombine(sums, m), clients)

    assert np.array_equal(output - directions[1:].sum(axis=0), directions[0])


def test_lemma_a_uniform_summand_makes_the_sum_uniform() -> None:
    """E, Lemma 1: "then b + r is also a uniform random element", even if b is not."""
    for m in (2, 3, 11):
        for b in range(m):
            r = np.arange(m, dtype=np.uint32)
            accumulate(r, np.full(m, b, dtype=np.uint32), m)
            assert sorted(r.tolist()) == list(range(m))
