"""`eastly-he`: the same steps as `eastly-tss`, by sums that the server cannot read; the costs of `eastly-tss`."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import FalseSum, LocalError, PeerError, RejectReason
from hubbub.protocol import costs, paillier
from hubbub.protocol.costs import Headcount
from hubbub.protocol.ring import Residues
from hubbub.strategies.base import ClientInput, ClientRound, Release
from hubbub.strategies.eastly import Multiplying
from hubbub.strategies.registry import STRATEGIES
from support.strategy_rounds import N, draw, key_of, make_input, play, setting

STRATEGY = STRATEGIES["eastly-he"]
PARAMETERS = setting(clients=3)
THETA = draw(99)
UPDATE = "update"
CIPHERTEXTS = 5
"""Of 64 of the 300 parameters each; the last is not full."""


def input_of(seed: int) -> ClientInput:
    return make_input(seed, theta=THETA)


def begin(seed: int) -> ClientRound:
    return STRATEGY.begin(PARAMETERS, input_of(seed))


def send(seed: int) -> tuple[Residues, Residues]:
    ciphertexts, modulus = begin(seed).contribute(UPDATE)
    return ciphertexts.astype(np.uint32), modulus.astype(np.uint32)


def multiply(*sets: tuple[Residues, Residues]) -> Release:
    server = Multiplying(PARAMETERS)
    for each in sets:
        server.add(each, 1)
    assert server.finish(0) is server.finish(1)
    return server.finish(0)


@pytest.mark.parametrize("left_out", [(), (1,)])
def test_every_client_steps_as_by_threshold_sharing(left_out: tuple[int, ...]) -> None:
    """Both draw the same signs from the same stream."""
    encrypted, shared = (
        play(STRATEGIES[name], PARAMETERS, [input_of(seed) for seed in range(3)], left_out=left_out)
        for name in ("eastly-he", "eastly-tss")
    )

    for mine, expected in zip(encrypted, shared, strict=True):
        np.testing.assert_array_equal(mine.theta, expected.theta)
        np.testing.assert_array_equal(mine.accumulator, expected.accumulator)
        assert mine.union_size == N
        assert (mine.theta != THETA).any()


def test_a_client_sends_the_same_ciphertexts_again_also_after_a_restart() -> None:
    mine = begin(0)
    first, again, restarted = mine.contribute(UPDATE), mine.contribute(UPDATE), begin(0).contribute(UPDATE)

    for one, other, third in zip(first, again, restarted, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, third)


def test_equal_plaintexts_have_different_ciphertexts_so_no_r_serves_twice() -> None:
    """Clients whose training failed send zeros, five times each."""
    silent = [replace(input_of(seed), silent=True) for seed in (0, 1)]
    sent = [STRATEGY.begin(PARAMETERS, each).contribute(UPDATE)[0] for each in silent]

    numbers = [paillier.from_words(each, paillier.CIPHERTEXT_WORDS) for each in sent]

    assert len({number for each in numbers for number in each}) == 2 * CIPHERTEXTS


def test_all_clients_have_one_key_in_a_round_and_another_in_the_next() -> None:
    following = replace(input_of(0), shared=AesCtrStream(key_of(100)))
    (_, mine), (_, other), (_, later) = send(0), send(1), STRATEGY.begin(PARAMETERS, following).contribute(UPDATE)

    np.testing.assert_array_equal(mine, other)
    assert (mine != later).any()


def test_a_round_without_the_shared_stream_does_not_begin() -> None:
    with pytest.raises(LocalError, match="randomness that the clients share"):
        STRATEGY.begin(PARAMETERS, replace(input_of(0), shared=None))


def test_the_server_refuses_members_with_different_keys() -> None:
    other = replace(input_of(1), shared=AesCtrStream(key_of(100)))
    ciphertexts, modulus = STRATEGY.begin(PARAMETERS, other).contribute(UPDATE)

    with pytest.raises(PeerError, match="different keys") as caught:
        multiply(send(0), (ciphertexts, modulus))

    assert caught.value.reason is RejectReason.DIFFERENT_GROUP


def zero(ciphertexts: Residues, modulus: Residues) -> None:
    del modulus
    ciphertexts[: paillier.CIPHERTEXT_WORDS] = 0


def square(ciphertexts: Residues, modulus: Residues) -> None:
    (n,) = paillier.from_words(modulus, paillier.KEY_WORDS)
    ciphertexts[-paillier.CIPHERTEXT_WORDS :] = paillier.to_words([n * n], paillier.CIPHERTEXT_WORDS)


def make_even(ciphertexts: Residues, modulus: Residues) -> None:
    del ciphertexts
    modulus[0] += 1


@pytest.mark.parametrize("spoil", [zero, square, make_even])
def test_the_server_refuses_what_is_no_ciphertext_and_no_modulus(
    spoil: Callable[[Residues, Residues], None],
) -> None:
    sent = send(0)
    spoil(*sent)

    with pytest.raises(PeerError) as caught:
        multiply(sent)

    assert caught.value.reason is RejectReason.RESIDUE_OUT_OF_RANGE


def test_a_product_that_the_members_signs_cannot_add_up_to_is_refused() -> None:
    """The server, which knows n, multiplies (1 + n)^7 in: the first slot has 7 more than it should."""
    sent = [send(seed) for seed in range(3)]
    (n,) = paillier.from_words(sent[0][1], paillier.KEY_WORDS)
    release = multiply(*sent)
    first, *others = paillier.from_words(release.values[0], paillier.CIPHERTEXT_WORDS)
    shifted = paillier.to_words([first * (1 + 7 * n) % (n * n), *others], paillier.CIPHERTEXT_WORDS)

    begin(0).absorb(UPDATE, release, 3)

    for values in (shifted, np.zeros_like(shifted), np.full_like(shifted, 2**32 - 1)):
        with pytest.raises(FalseSum):
            begin(0).absorb(UPDATE, Release(release.vectors, (values,)), 3)


def test_the_server_expects_whole_ciphertexts_and_a_modulus_and_releases_ciphertexts() -> None:
    vectors = begin(0).vectors(UPDATE)
    assert [(each.name, each.length, each.modulus) for each in vectors] == [
        ("update", CIPHERTEXTS * 128, 2**32),
        ("modulus", 64, 2**32),
    ]

    STRATEGY.admit(PARAMETERS, UPDATE, vectors)
    STRATEGY.admit_release(PARAMETERS, UPDATE, vectors[:1])
    for admit, wrong in ((STRATEGY.admit, vectors[:1]), (STRATEGY.admit_release, vectors)):
        with pytest.raises(PeerError):
            admit(PARAMETERS, UPDATE, wrong)


@pytest.mark.parametrize(("length", "extra"), [(64_000, 0), (61_706, 4 * 5 * 54 * 32)])
def test_it_takes_the_papers_bits_and_the_rest_of_the_last_ciphertext_and_a_modulus(
    length: int, extra: int
) -> None:
    heads = Headcount.complete(5, 2)
    bits = STRATEGY.predict_bits(replace(PARAMETERS, model_size=length, clients=5), heads, length)

    assert bits == {"update": costs.eastly_he_bits(length, 5) + extra, "modulus": 5 * 2048}


def test_only_members_send_and_everybody_receives() -> None:
    heads = Headcount(cohort=5, senders=3, recipients=4, servers=2)

    assert STRATEGY.predict_bits(PARAMETERS, heads, N) == {"update": 7 * CIPHERTEXTS * 4096, "modulus": 3 * 2048}


# Threshold sharing --------------------------------------------------------------------------------------


def test_threshold_sharing_costs_what_the_paper_says_but_where_no_prime_has_as_few_bits() -> None:
    more = []
    for clients in range(2, 201):
        (bits,) = (
            STRATEGIES["eastly-tss"]
            .predict_bits(setting(clients=clients), Headcount.complete(clients, 2), 0)
            .values()
        )
        formula = costs.eastly_tss_bits(N, clients, 2)
        assert bits in {formula, formula + 2 * 2 * clients * N}, "at most one bit more"
        if bits != formula:
            more.append(clients)

    assert more == [7, 31, 126, 127]


def test_a_majority_of_the_servers_can_read_what_a_client_sent_and_fewer_cannot() -> None:
    """With one of two servers gone nothing is released; with one of three, everything."""
    exposed = {
        servers: STRATEGIES["eastly-tss"].exposure(replace(PARAMETERS, servers=servers)).updates
        for servers in (2, 3, 4, 5)
    }

    assert [STRATEGIES["eastly-tss"].phases[0].quorum(servers) for servers in exposed] == [2, 2, 3, 3]
    assert exposed == {2: False, 3: True, 4: True, 5: True}
