"""A server of `bonawitz` that lies about who is left: two lists read an update, and asking twice reads nothing.

The protocol is for servers that are curious and follow it. The first test is an attack that succeeds: it is why no
policy allows the strategy by default.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from hubbub.crypto.peer_ciphers import PEER_CIPHERS
from hubbub.errors import LocalError
from hubbub.protocol import shamir
from hubbub.protocol.ring import Residues, sample
from hubbub.strategies.base import ClientRound, Phase
from hubbub.strategies.bonawitz import ADVERTISE, MASKED, SHARE_KEYS, UNMASK
from hubbub.strategies.registry import STRATEGIES
from support.strategy_rounds import N, Server, draw, make_input, setting

STRATEGY = STRATEGIES["bonawitz"]
CLIENTS = 5
PARAMETERS = setting(clients=CLIENTS)
EVERYBODY = range(CLIENTS)
VICTIM = 0


def begin(place: int) -> ClientRound:
    return STRATEGY.begin(PARAMETERS, replace(make_input(place, theta=draw(99)), place=place))


def tell(
    server: Server, phase: Phase, rounds: Mapping[int, ClientRound], lists: Mapping[int, Sequence[int]]
) -> None:
    """Take what all clients send, and release it to each over a list of its own."""
    gathering = server.begin(phase, PARAMETERS, rounds)
    assert gathering is not None
    for place, members in lists.items():
        release = replace(gathering.finish(place), members=tuple(members))
        rounds[place].absorb(phase.name, release, len(members))


def read_shares(client: ClientRound) -> list[int]:
    (words,) = client.contribute(UNMASK.name)
    return [int.from_bytes(row.tobytes(), "little") for row in words.reshape(CLIENTS, -1)]


def expand(key: bytes) -> Residues:
    return sample(PEER_CIPHERS.expand(key), N, 2**32)


def honest_input(place: int) -> Residues:
    """A client's numbers without masks, by the strategy that has none."""
    client = STRATEGIES["secure-fedavg"].begin(PARAMETERS, make_input(place, theta=draw(99)))
    return client.contribute("update")[0].astype(np.uint32)


def test_a_server_that_tells_clients_different_lists_reads_one_update() -> None:
    """The victim masks with two peers alone; the others hand out these two's mask keys and the victim's seed."""
    rounds, server = {place: begin(place) for place in EVERYBODY}, Server()
    everybody = dict.fromkeys(EVERYBODY, EVERYBODY)
    tell(server, ADVERTISE, rounds, everybody)
    tell(server, SHARE_KEYS, rounds, {**everybody, VICTIM: (0, 1, 2)})
    # Everybody hears a list with at least t = 3 clients and with itself in it.
    tell(server, MASKED, rounds, {VICTIM: (0, 1, 2), 1: (0, 1, 3, 4), 2: (0, 2, 3, 4), 3: (0, 3, 4), 4: (0, 3, 4)})

    shares = {place: read_shares(rounds[place]) for place in EVERYBODY}

    def recover(secret_of: int, *, from_: Sequence[int]) -> bytes:
        (number,) = shamir.recover_numbers({place + 1: [shares[place][secret_of]] for place in from_})
        return number.to_bytes(32, "little")

    seed = recover(VICTIM, from_=(1, 3, 4))
    mask_keys = [recover(1, from_=(2, 3, 4)), recover(2, from_=(1, 3, 4))]
    public = server.sent[ADVERTISE.name][VICTIM][0][8:].astype("<u4").tobytes()
    masked = server.sent[MASKED.name][VICTIM][0].astype(np.uint32)
    read = masked - expand(seed) - sum(expand(PEER_CIPHERS.agree(key, public)) for key in mask_keys)

    np.testing.assert_array_equal(read, honest_input(VICTIM))


def test_a_server_that_asks_twice_gets_one_answer() -> None:
    """First everybody is left, then the victim is said to be gone: nobody gives the other share as well."""
    rounds, server = {place: begin(place) for place in EVERYBODY}, Server()
    everybody = dict.fromkeys(EVERYBODY, EVERYBODY)
    for phase in (ADVERTISE, SHARE_KEYS, MASKED):
        tell(server, phase, rounds, everybody)
    answers = {place: read_shares(each) for place, each in rounds.items()}

    others = [place for place in EVERYBODY if place != VICTIM]
    for place in others:
        with pytest.raises(LocalError, match="over other members before"):
            tell(server, MASKED, rounds, {place: others})

    assert {place: read_shares(each) for place, each in rounds.items()} == answers
    # What they gave is the victim's seed; of its mask key the server has no share.
    (seed,) = shamir.recover_numbers({place + 1: [answers[place][VICTIM]] for place in others})
    masked = server.sent[MASKED.name][VICTIM][0].astype(np.uint32)
    assert (masked - expand(seed.to_bytes(32, "little")) != honest_input(VICTIM)).any()
