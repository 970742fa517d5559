"""Two attacks that rules of the protocol exist for, with the rule switched off: the test plays the servers itself.

Each is followed by what stops it when the rule is on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.crypto.key_derivation import Transcript
from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import RejectReason
from hubbub.ids import PartyId, SetId
from hubbub.machine.effects import Effect, Key, Publish
from hubbub.machine.table import step
from hubbub.messages.rounds import OrderRefused
from hubbub.messages.shares import Receipt, declare
from hubbub.parameters import Parameters
from hubbub.protocol import compression, signs, unions
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import Residues
from hubbub.strategies.base import ClientRound, Release, Strategy, Theta
from hubbub.strategies.registry import find_strategy
from hubbub_aggregator.events import CloseOrdered
from hubbub_aggregator.phases.accumulation import (
    TRANSITIONS,
    Accumulation,
    RecordVerdict,
    ShareSet,
    State,
    SumAndRelease,
)
from support.builders import make_manifest, name_sets
from support.strategy_rounds import N, add_up, draw, key_of, make_input, setting

CLIENTS, SERVERS = 5, 3
VICTIM, CORRUPT = 1, 4
DEAD = np.arange(N // 2)
"""Parameters that never change, as the weights of pixels that are black in every image."""
LIVE = np.arange(N // 2, N)
GROUP_KEY = bytes(range(32))

SEEDS = pytest.mark.parametrize("seed", [0, 100, 200, 300])


@dataclass(slots=True, eq=False)
class Cohort:
    """The clients of one round after training, of which one has nothing to say."""

    strategy: Strategy
    parameters: Parameters
    theta: Theta
    updates: list[Theta]
    rounds: Sequence[ClientRound]

    def signs_of(self, client: int) -> NDArray[np.int8]:
        """What only this client may know."""
        return compression.top_binary(self.updates[client], self.parameters.kept).signs


def train(strategy: str, q: int, seed: int) -> Cohort:
    """Everybody has an update, except that dead parameters have none and the corrupt client sends zeros.

    Sums are not verified: with a client's help, which gives the coefficients away, servers get round the tags.
    """
    parameters = setting(clients=CLIENTS, servers=SERVERS, q=q, verified=False)
    theta = draw(seed + 99)
    updates = [draw(seed + client) for client in range(CLIENTS)]
    updates[CORRUPT][:] = 0
    for update in updates:
        update[DEAD] = 0
    found = find_strategy(strategy)
    rounds = [
        found.begin(parameters, make_input(seed + client, theta=theta, update=update))
        for client, update in enumerate(updates)
    ]
    return Cohort(found, parameters, theta, updates, rounds)


def decode(release: Release) -> NDArray[np.int32]:
    """The sum of the signs, as every client reads it."""
    return signs.from_ring(release.values[0], CLIENTS)


# Differing V --------------------------------------------------------------------------------------------


def add_up_at_servers(cohort: Cohort) -> tuple[Vector, list[Residues]]:
    """Every server's total of the marks."""
    phase = cohort.strategy.phases[0]
    (vector,) = cohort.rounds[0].vectors(phase.name)
    totals = [np.zeros(vector.length, np.uint32) for _ in range(SERVERS)]
    for each in cohort.rounds:
        (marks,) = each.contribute(phase.name)
        for total, share in zip(
            totals, phase.deal(marks, vector.modulus, SERVERS, AesCtrStream.from_os()), strict=True
        ):
            phase.combine(total, share, vector.modulus)
    return vector, totals


def tell(cohort: Cohort, vector: Vector, totals: Sequence[Residues], wanted: NDArray[np.int64]) -> Residues:
    """Shift the last server's total so that whoever adds it to the others' finds exactly these indices marked.

    The server hears the true sum from its client: honest servers release to all clients, and nothing makes this
    one send its own total before it has seen theirs.
    """
    phase = cohort.strategy.phases[0]
    true_sum = phase.recombine(dict(enumerate(totals)), vector.modulus).astype(np.int64)
    marks = np.zeros(N, np.int64)
    marks[wanted] = 1
    shifted = ((totals[-1] + marks - true_sum) % vector.modulus).astype(np.uint32)
    return phase.recombine(dict(enumerate([*totals[:-1], shifted])), vector.modulus)


def tell_victim_another_union(cohort: Cohort) -> list[Residues]:
    """The sums that the clients decode: V is all that lives to the victim, and all that is dead to the others."""
    vector, totals = add_up_at_servers(cohort)
    told = [tell(cohort, vector, totals, LIVE if client == VICTIM else DEAD) for client in range(CLIENTS)]
    for each, total in zip(cohort.rounds, told, strict=True):
        each.absorb("union", Release((vector,), (total,)), CLIENTS)
    return told


TWO_PHASES = pytest.mark.parametrize(
    ("strategy", "q"), [("sec-union", 1), ("sec-union", 2), ("sec-union", 5), ("partial-sec-union", 1)]
)


@TWO_PHASES
@SEEDS
def test_a_client_that_is_told_another_union_gives_its_signs_away(strategy: str, q: int, seed: int) -> None:
    """The sum of the signs has a place for each index of V, and does not say which V.

    If V holds to everybody else indices at which they have nothing, they add zeros, and the sum is the victim's
    signs. Lengths agree and no check of a sum can fail, so neither servers nor clients notice.
    """
    cohort = train(strategy, q, seed)
    tell_victim_another_union(cohort)

    shapes = {each.vectors("signs") for each in cohort.rounds}
    read = decode(add_up(cohort.strategy.phases[1], cohort.parameters, cohort.rounds))

    assert np.count_nonzero(read) == cohort.parameters.kept
    assert np.array_equal(read, cohort.signs_of(VICTIM)[LIVE])
    (shape,) = shapes
    cohort.strategy.admit(cohort.parameters, "signs", shape)


@TWO_PHASES
def test_clients_that_are_told_one_union_give_away_their_sum_alone(strategy: str, q: int) -> None:
    """The counterpart: the same shift for everybody gains nothing over the sum."""
    cohort = train(strategy, q, seed=0)
    vector, totals = add_up_at_servers(cohort)
    for each in cohort.rounds:
        each.absorb("union", Release((vector,), (tell(cohort, vector, totals, LIVE),)), CLIENTS)

    read = decode(add_up(cohort.strategy.phases[1], cohort.parameters, cohort.rounds))

    everybody = np.sum([cohort.signs_of(client) for client in range(CLIENTS)], axis=0)
    assert np.array_equal(read, everybody[LIVE])
    assert not np.array_equal(read, cohort.signs_of(VICTIM)[LIVE])


def transcript_of(cohort: Cohort, told: Residues) -> str:
    """What a share of signs depends on that others sent: the model, and the sum that gave V."""
    transcript = Transcript(GROUP_KEY)
    transcript.note(cohort.theta, told)
    return transcript.digest("signs")


@TWO_PHASES
@SEEDS
def test_with_the_rule_the_victims_transcript_differs_and_no_sum_is_released(
    strategy: str, q: int, seed: int
) -> None:
    """An honest server adds only what was said after the same words, and only over the union's members."""
    cohort = train(strategy, q, seed)
    told = tell_victim_another_union(cohort)
    shape, transcripts = cohort.rounds[0].vectors("signs"), [transcript_of(cohort, total) for total in told]
    phase = signs_phase(shape, transcripts, required=range(CLIENTS))
    blind = signs_phase(shape, [transcripts[VICTIM]] * CLIENTS, required=range(CLIENTS))

    assert [client for client in range(CLIENTS) if transcripts[client] != transcripts[CORRUPT]] == [VICTIM]
    assert refusal_of(phase, range(CLIENTS)) is RejectReason.DIFFERENT_TRANSCRIPT
    assert refusal_of(phase, without(VICTIM)) is RejectReason.DIFFERENT_MEMBERS
    assert refusal_of(blind, range(CLIENTS)) is None


# A smaller signs set ------------------------------------------------------------------------------------

COUNTED = pytest.mark.parametrize("strategy", ["sec-union", "partial-sec-union"])
"""With q = 1 V holds what an odd number chose; with counts it says how many. Wider random marks have no parity."""


def read_parities(cohort: Cohort, members: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """V over all clients, and where the parities of its marks and of the members' signs differ."""
    union, signs_of_all = cohort.strategy.phases
    release = add_up(union, cohort.parameters, cohort.rounds)
    for each in cohort.rounds:
        each.absorb("union", release, CLIENTS)
    support = unions.indices_of(release.values[0])
    directions = decode(add_up(signs_of_all, cohort.parameters, [cohort.rounds[m] for m in members]))
    return support, (directions - release.values[0][support].astype(np.int64)) % 2 != 0


@COUNTED
@SEEDS
def test_signs_over_fewer_members_give_away_what_the_absent_client_chose(strategy: str, seed: int) -> None:
    """A sign is odd where a client chose an index and even, zero, where it did not.

    So the sum of the signs has the parity of the number of choosers among its members. The union has that of all:
    they differ exactly where the one that is missing had chosen.
    """
    cohort = train(strategy, 1, seed)

    support, differ = read_parities(cohort, without(VICTIM))

    truth = cohort.signs_of(VICTIM)[support] != 0
    assert 0 < np.count_nonzero(truth) < support.size
    assert np.array_equal(differ, truth)


@COUNTED
@SEEDS
def test_signs_over_the_same_members_have_the_parities_that_the_union_told_already(
    strategy: str, seed: int
) -> None:
    _, differ = read_parities(train(strategy, 1, seed), range(CLIENTS))

    assert not differ.any()


@COUNTED
@SEEDS
def test_with_the_rule_signs_are_not_released_over_fewer_members(strategy: str, seed: int) -> None:
    """The same order is obeyed by a server that does not know who the union was over."""
    cohort = train(strategy, 1, seed)
    support, _ = read_parities(cohort, range(CLIENTS))
    shape, transcripts = cohort.rounds[0].vectors("signs"), ["5e" * 32] * CLIENTS

    assert shape[0].length == support.size
    assert refusal_of(signs_phase(shape, transcripts, required=range(CLIENTS)), without(VICTIM)) is (
        RejectReason.DIFFERENT_MEMBERS
    )
    assert refusal_of(signs_phase(shape, transcripts, required=()), without(VICTIM)) is None


# An honest aggregator ------------------------------------------------------------------------------------


def without(client: int) -> list[int]:
    return [each for each in range(CLIENTS) if each != client]


def signs_phase(shape: tuple[Vector, ...], transcripts: Sequence[str], *, required: Sequence[int]) -> Accumulation:
    """It holds a complete set of every client; the union was over `required`, as far as it knows."""
    manifest = make_manifest(clients=CLIENTS, servers=SERVERS, min_clients=3, roster_sha256="0" * 64)
    sets: Mapping[PartyId, ShareSet] = {
        client: ShareSet(
            set_id=SetId(key_of(place)[:16].hex()),
            vectors=shape,
            weight=1,
            transcript=transcripts[place],
            chunks=1,
            arrived=frozenset({0}),
            checked=frozenset({0}),
        )
        for place, client in enumerate(manifest.clients)
    }
    return Accumulation(
        me=manifest.aggregators[0],
        key=Key("phase", manifest.run_id, 1, "signs"),
        run=Key("run", manifest.run_id),
        manifest=manifest,
        servers=manifest.aggregators,
        required_members=frozenset(manifest.clients[place] for place in required),
        sets=sets,
    )


def refusal_of(phase: Accumulation, members: Sequence[int]) -> RejectReason | None:
    """Order a release over these members, with all receipts: why it is refused, or None if it is obeyed."""
    names = tuple(phase.manifest.clients[place] for place in members)
    receipts = tuple(
        Receipt(
            aggregator=server,
            sets=name_sets({name: phase.sets[name].set_id}),
            vectors=declare(phase.sets[name].vectors),
            transcript=phase.sets[name].transcript,
        )
        for server in phase.servers
        for name in names
    )
    result = step(TRANSITIONS, State.COLLECTING, phase, CloseOrdered(members=names, receipts=receipts))
    if result.state is State.SUMMING:
        return None
    assert result.state is State.COLLECTING
    assert not [each for each in result.effects if isinstance(each, RecordVerdict | SumAndRelease)]
    return reason_in(result.effects)


def reason_in(effects: Sequence[Effect]) -> RejectReason:
    (refusal,) = (
        each.body for each in effects if isinstance(each, Publish) and isinstance(each.body, OrderRefused)
    )
    return refusal.reason
