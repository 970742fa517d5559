"""`bonawitz`: the sum of those who sent numbers, whoever leaves; and never both secrets of one client."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hubbub.crypto.peer_ciphers import PEER_CIPHERS
from hubbub.errors import FalseSum, LocalError, PeerError
from hubbub.protocol import costs
from hubbub.protocol.costs import Headcount
from hubbub.strategies.base import ClientInput, ClientRound, Conclusion, Phase, Release, Theta
from hubbub.strategies.bonawitz import ADVERTISE, MASKED, SHARE_KEYS, UNMASK, find_threshold
from hubbub.strategies.registry import STRATEGIES
from support.strategy_rounds import N, Server, draw, key_of, make_input, play, setting

STRATEGY = STRATEGIES["bonawitz"]
CLIENTS, THRESHOLD = 5, 3
PARAMETERS = setting(clients=CLIENTS)
THETA = draw(99)
EVERYBODY = range(CLIENTS)
NAMES = [phase.name for phase in STRATEGY.phases]


def input_of(place: int) -> ClientInput:
    return replace(make_input(place, theta=THETA), place=place)


INPUTS = [input_of(place) for place in EVERYBODY]


def begin(place: int) -> ClientRound:
    """A client, or the same one after a restart."""
    return STRATEGY.begin(PARAMETERS, input_of(place))


def run(gone: Mapping[str, Sequence[int]] | None = None) -> list[Conclusion]:
    return play(STRATEGY, PARAMETERS, list(map(input_of, EVERYBODY)), gone=gone)


def step_of(members: Sequence[int]) -> Theta:
    """The step of a round over these, by the strategy that shares secrets instead."""
    inputs = list(map(input_of, EVERYBODY))
    left_out = [place for place in EVERYBODY if place not in members]
    return play(STRATEGIES["secure-fedavg"], PARAMETERS, inputs, left_out=left_out)[0].theta


def list_losses() -> Iterator[tuple[tuple[int, ...], ...]]:
    """All ways to lose up to two of five, each in any of the four phases."""
    for count in range(CLIENTS - THRESHOLD + 1):
        for lost in combinations(EVERYBODY, count):
            for phases in product(range(len(NAMES)), repeat=count):
                yield tuple(
                    tuple(place for place, when in zip(lost, phases, strict=True) if when == phase)
                    for phase in range(len(NAMES))
                )


def test_whoever_leaves_in_whichever_phase_the_sum_is_that_of_those_who_sent_numbers() -> None:
    patterns, steps = list(list_losses()), dict[tuple[int, ...], Theta]()
    assert len(patterns) == 1 + 5 * 4 + 10 * 16

    for pattern in patterns:
        ends = run(dict(zip(NAMES, pattern, strict=True)))
        inside = tuple(place for place in EVERYBODY if place not in chain(*pattern[:3]))
        if inside not in steps:
            steps[inside] = step_of(inside)
        for place, end in enumerate(ends):
            np.testing.assert_array_equal(end.theta, steps[inside], err_msg=f"{pattern}")
            kept = np.zeros(N, np.float32) if place in inside else INPUTS[place].update + INPUTS[place].accumulator
            np.testing.assert_array_equal(end.accumulator, kept)

    assert len({step.tobytes() for step in steps.values()}) == len(steps) == 16


def test_a_phase_may_lose_members_down_to_the_threshold_and_wins_none_back() -> None:
    for phase in STRATEGY.phases:
        assert phase.may_close({0, 1, 2}, EVERYBODY, CLIENTS)
        assert not phase.may_close({0, 1}, EVERYBODY, CLIENTS)
        assert not phase.may_close({0, 1}, (), CLIENTS)
        assert not phase.may_close({0, 1, 2}, {0, 1, 3, 4}, CLIENTS)
    assert [find_threshold(clients) for clients in (2, 3, 4, 5, 100)] == [2, 2, 3, 3, 51]


# A round, step by step ----------------------------------------------------------------------------------


def play_until_unmasked(
    rounds: Mapping[int, ClientRound], gone: Mapping[str, Sequence[int]] | None = None
) -> tuple[Server, dict[str, list[Release]]]:
    """The phases before the last one; return the server, and what it released to each client."""
    server, released, here = Server(), dict[str, list[Release]](), [*rounds]
    for phase in STRATEGY.phases[:-1]:
        here = [place for place in here if place not in (gone or {}).get(phase.name, ())]
        released[phase.name] = send_all(server, phase, {place: rounds[place] for place in here})
        for place, each in rounds.items():
            each.absorb(phase.name, released[phase.name][place], len(here))
    return server, released


def send_all(server: Server, phase: Phase, members: Mapping[int, ClientRound]) -> list[Release]:
    gathering = server.begin(phase, PARAMETERS, members)
    assert gathering is not None
    return [replace(gathering.finish(place), members=tuple(members)) for place in EVERYBODY]


def begin_all() -> dict[int, ClientRound]:
    return {place: begin(place) for place in EVERYBODY}


def read_shares(client: ClientRound) -> list[bytes]:
    """The share that a client sends of each one's secret; zeros if it has none."""
    (words,) = client.contribute(UNMASK.name)
    return [row.tobytes() for row in words.reshape(CLIENTS, -1)]


NOTHING = bytes(32)


def test_fewer_shares_than_the_threshold_give_a_sum_that_everybody_refuses() -> None:
    rounds = begin_all()
    server, _ = play_until_unmasked(rounds)

    too_few = send_all(server, UNMASK, {place: rounds[place] for place in (0, 1)})
    with pytest.raises(FalseSum):
        rounds[0].absorb(UNMASK.name, too_few[0], 2)

    enough = send_all(server, UNMASK, {place: rounds[place] for place in (0, 1, 4)})
    rounds[0].absorb(UNMASK.name, enough[0], 3)


@given(
    gone=st.dictionaries(
        st.sampled_from(NAMES[1:3]), st.lists(st.sampled_from(EVERYBODY), max_size=2, unique=True)
    ),
    repeats=st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_of_one_peer_a_client_reveals_one_secret_however_often_it_repeats_itself_and_restarts(
    gone: dict[str, list[int]], repeats: int
) -> None:
    assume(len(set(chain(*gone.values()))) <= CLIENTS - THRESHOLD)
    rounds = begin_all()
    _, released = play_until_unmasked(rounds, gone)
    inside, masking = released[MASKED.name][0].members, released[SHARE_KEYS.name][0].members

    for place in inside:
        answers = [read_shares(rounds[place]) for _ in range(repeats)]
        restarted = begin(place)
        for name in NAMES[:-1]:
            restarted.contribute(name)
            restarted.absorb(name, released[name][place], 0)
        assert [*answers, read_shares(restarted)] == [answers[0]] * (repeats + 1)
        dealt = [rounds[peer]._inner._dealt[place] for peer in EVERYBODY]  # type: ignore[attr-defined]
        expected = [
            NOTHING if peer not in masking else dealt[peer][1 if peer in inside else 0] for peer in EVERYBODY
        ]
        assert answers[0] == expected


def test_a_second_list_of_who_has_sent_numbers_is_refused_and_changes_no_answer() -> None:
    rounds = begin_all()
    _, released = play_until_unmasked(rounds)
    answer = read_shares(rounds[0])

    with pytest.raises(LocalError, match="over other members"):
        rounds[0].absorb(MASKED.name, replace(released[MASKED.name][0], members=(0, 1, 2, 3)), 4)

    assert read_shares(rounds[0]) == answer


# A server that puts something else in place -------------------------------------------------------------


def test_a_server_cannot_put_its_own_keys_in_place_of_a_clients() -> None:
    """It tells all others that client 4 has its key, and reads nothing: it does not have the group secret."""
    rounds, server = begin_all(), Server()
    honest = send_all(server, ADVERTISE, rounds)
    false = np.frombuffer(PEER_CIPHERS.public_key(key_of(7)) * 2, np.uint32)
    for place, each in rounds.items():
        table = honest[place].values[0].copy()
        if place != 4:
            table[-16:] = false
        each.absorb(ADVERTISE.name, replace(honest[place], values=(table,)), CLIENTS)

    sealed = send_all(server, SHARE_KEYS, rounds)

    with pytest.raises(FalseSum):
        rounds[0].absorb(SHARE_KEYS.name, sealed[0], CLIENTS)
    row = server.sent[SHARE_KEYS.name][0][0].reshape(CLIENTS - 1, -1)[-1]
    table = np.array([sent[0] for sent in server.sent[ADVERTISE.name]])
    table[4] = false
    agreed = PEER_CIPHERS.agree(key_of(7), table[0, :8].tobytes())
    with pytest.raises(PeerError):
        PEER_CIPHERS.open(agreed, row.tobytes(), table.tobytes(), 0, 4)


def test_a_seal_opens_in_its_own_place_alone() -> None:
    rounds, server = begin_all(), Server()
    for place, release in enumerate(send_all(server, ADVERTISE, rounds)):
        rounds[place].absorb(ADVERTISE.name, release, CLIENTS)
    (release, *_) = send_all(server, SHARE_KEYS, rounds)
    (words,) = release.values

    swapped = np.roll(words, words.size // (CLIENTS - 1))
    with pytest.raises(FalseSum):
        rounds[0].absorb(SHARE_KEYS.name, replace(release, values=(swapped,)), CLIENTS)


def test_a_public_key_with_which_all_agree_on_the_same_is_refused() -> None:
    rounds, server = begin_all(), Server()
    release = send_all(server, ADVERTISE, rounds)[0]
    rounds[0].absorb(ADVERTISE.name, replace(release, values=(np.zeros_like(release.values[0]),)), CLIENTS)

    with pytest.raises(PeerError, match="cannot be used"):
        rounds[0].contribute(SHARE_KEYS.name)


def test_a_sum_that_the_members_cannot_have_is_refused() -> None:
    rounds = begin_all()
    server, _ = play_until_unmasked(rounds)
    release = send_all(server, UNMASK, rounds)[0]
    (total,) = release.values
    shifted = total.copy()
    shifted[7] += 2**31

    with pytest.raises(FalseSum):
        rounds[0].absorb(UNMASK.name, replace(release, values=(shifted,)), CLIENTS)
    rounds[0].absorb(UNMASK.name, release, CLIENTS)


def test_a_round_without_ciphers_or_the_clients_secret_does_not_begin() -> None:
    for missing in ({"ciphers": None}, {"shared": None}):
        with pytest.raises(LocalError, match="bonawitz begins with"):
            STRATEGY.begin(PARAMETERS, replace(input_of(0), **missing))  # type: ignore[arg-type]


# Costs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [2, 3, 5, 10, 20])
@pytest.mark.parametrize("length", [61_706, 1_756_426])
def test_it_takes_the_papers_bits_and_a_tag_for_each_seal(length: int, clients: int) -> None:
    """Every client seals to every other, and every seal goes up and down."""
    run = replace(PARAMETERS, model_size=length, clients=clients)

    bits = STRATEGY.predict_bits(run, Headcount.complete(clients, 2), length)

    assert sum(bits.values()) == costs.bonawitz_bits(length, clients) + 2 * clients * (clients - 1) * 128


def test_what_is_sent_is_what_is_counted() -> None:
    rounds = begin_all()
    server, released = play_until_unmasked(rounds)
    released[UNMASK.name] = send_all(server, UNMASK, rounds)

    up = {name: 32 * sum(each.size for sent in server.sent[name] for each in sent) for name in NAMES}
    down = {name: 32 * sum(each.size for one in released[name] for each in one.values) for name in NAMES}

    bits = STRATEGY.predict_bits(PARAMETERS, Headcount.complete(CLIENTS, 2), N)
    assert bits == {
        "advertise": up["advertise"] + down["advertise"],
        "share-keys": up["share-keys"] + down["share-keys"],
        "masked": up["masked"],
        "unmask": up["unmask"],
        "update": down["unmask"],
    }
    assert down["masked"] == 0
