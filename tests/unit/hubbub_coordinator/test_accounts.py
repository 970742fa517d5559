"""A round in numbers, from what the parties reported."""

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest

from hubbub.frame_costs import count_orders, count_sent
from hubbub.ids import PartyId, WireMode
from hubbub.messages.rounds import ScoreClaim
from hubbub.messages.shares import Direction, Traffic, declare
from hubbub.protocol.costs import Headcount
from hubbub.protocol.layout import Vector
from hubbub.rest import CostView
from hubbub.strategies.registry import STRATEGIES
from hubbub_coordinator.accounts import (
    account,
    costs,
    count_all_bytes,
    count_fedavg_bytes,
    predict,
    predict_others,
    split_by_party,
)
from hubbub_coordinator.phases.round import CoordinatorRound, PhaseRecord
from support.builders import make_claims, make_manifest
from support.coordinator_play import CLASSIFIED, make_round
from support.coordinator_scene import REPORT

# N = 100 over Z_7 takes 3 bits an element; a factor takes 32, and three tags take 192.
MANIFEST = make_manifest(parameters=100)

EMPTY = make_round(MANIFEST, 4)
ONE, TWO, THREE = MANIFEST.clients
NORTH, SOUTH = MANIFEST.aggregators
Rows = tuple[tuple[PartyId, Traffic], ...]


def sent(parties: Sequence[PartyId], direction: Direction, **bits: int) -> Rows:
    """Payload that each of these parties reports."""
    return tuple(
        (party, Traffic(counts_as=name, direction=direction, payload_bits=count))
        for party in parties
        for name, count in bits.items()
    )


def arrived(parties: Sequence[PartyId], direction: Direction, wire_bytes: int) -> Rows:
    """Bytes of signs that each of these parties reports to have received."""
    row = Traffic(counts_as="signs", direction=direction, wire_bytes=wire_bytes)
    return tuple((party, row) for party in parties)


def released(*senders: PartyId) -> CoordinatorRound:
    """A round over some clients that the aggregators released to all three."""
    return replace(
        EMPTY,
        records=(PhaseRecord(opened_at_s=10.0, released=make_claims(MANIFEST)),),
        members=frozenset(senders),
        applied=dict.fromkeys(MANIFEST.clients, REPORT),
        traffic=(
            *arrived((NORTH, SOUTH), "up", 700),
            *sent((NORTH, SOUTH), "down", signs=3 * 300, factors=3 * 32, tags=3 * 192),
            *sent(senders, "up", signs=2 * 300, factors=2 * 32, tags=2 * 192),
            *arrived(MANIFEST.clients, "down", 500),
        ),
        began_at_s=10.0,
        ended_at_s=20.0,
    )


FULL = released(ONE, TWO, THREE)
# On the compact wire eleven residues mod 7 take 31 bits: ten words for N = 100. In round 4 aggregator-1 combines.
COMPACT = replace(
    FULL,
    manifest=make_manifest(parameters=100, wire="compact"),
    traffic=(
        *sent((ONE, TWO, THREE), "up", signs=288 + 256, factors=32, tags=192),
        *arrived((ONE, TWO, THREE), "down", 500),
        *sent([SOUTH], "across", signs=288, factors=32, tags=192),
        *arrived([NORTH], "across", 400),
        *sent([NORTH], "down", signs=3 * 288, factors=3 * 32, tags=3 * 192),
    ),
)


def cost(bits: int, wire_bytes: int = 0) -> CostView:
    """A cost that was measured as it was predicted."""
    return CostView(payload_bits=bits, predicted_bits=bits, wire_bytes=wire_bytes)


def test_payload_of_a_full_round_is_the_formula_of_its_wire_to_the_bit() -> None:
    """On the compact wire C + C + S - 1 = 7 vectors, and a seed of 256 bits from each client, counted as signs."""
    assert costs(FULL) == {
        "signs": cost(2 * 2 * 3 * 300, 2 * 700 + 3 * 500),
        "factors": cost(2 * 2 * 3 * 32),
        "tags": cost(2 * 2 * 3 * 192),
    }
    assert costs(COMPACT) == {
        "signs": cost(7 * 288 + 3 * 256, 3 * 500 + 400),
        "factors": cost(7 * 32),
        "tags": cost(7 * 192),
    }


def test_what_was_measured_and_not_predicted_shows() -> None:
    extra = Traffic(counts_as="signs", direction="up", payload_bits=1)
    signs = costs(replace(FULL, traffic=(*FULL.traffic, (ONE, extra))))["signs"]
    assert signs.payload_bits == signs.predicted_bits + 1


def test_what_each_party_sent_and_received_is_told_apart() -> None:
    found, compact = (
        {
            (row.counts_as, row.party, row.direction): (row.payload_bits, row.wire_bytes)
            for row in split_by_party(data)
        }
        for data in (FULL, COMPACT)
    )

    assert found["signs", ONE, "up"] == (2 * 300, 0)
    assert found["signs", ONE, "down"] == (0, 500)
    assert found["signs", NORTH, "up"] == (0, 700)
    assert found["factors", SOUTH, "down"] == (3 * 32, 0)
    assert sum(payload for payload, _ in found.values()) == FULL.payload_bits
    assert sum(wire for _, wire in found.values()) == FULL.wire_bytes
    assert (compact["signs", SOUTH, "across"], compact["signs", NORTH, "across"]) == ((288, 0), (0, 400))
    assert ("signs", SOUTH, "down") not in compact


def test_a_client_that_sent_nothing_is_no_sender_and_a_recipient() -> None:
    data = released(ONE, TWO)

    assert costs(data)["signs"].payload_bits == costs(data)["signs"].predicted_bits == 2 * (2 + 3) * 300
    assert account(data).members == (ONE, TWO)
    assert predict_others(data)["fedavg"] == (2 + 3) * 32 * 100


def of_two_phases(*senders: PartyId) -> CoordinatorRound:
    """A round of sec-union with |V| = 17: all three sent their marks, and only these their signs."""
    claims = declare((Vector("signs", 17, 7), Vector("factors", 1, 2**32), Vector("tags", 3, 2**64)))
    return replace(
        FULL,
        manifest=make_manifest(parameters=100, strategy="sec-union"),
        phase=1,
        records=(PhaseRecord(opened_at_s=1.0), PhaseRecord(opened_at_s=2.0, released=claims)),
        traffic=(
            *sent((ONE, TWO, THREE), "up", union=1, tags=1),
            *sent(senders, "up", signs=1, factors=1, tags=1),
        ),
    )


def test_tags_are_predicted_for_as_many_as_sent_in_each_phase() -> None:
    assert predict(of_two_phases(ONE, TWO))["tags"] == 2 * (3 + 3) * 128 + 2 * (2 + 3) * 3 * 64


# k = 10 of N = 100: whatever the union was, three clients chose at most 30 indices.
def test_other_strategies_are_counted_on_the_wire_of_the_run_with_the_most_that_v_can_have_been() -> None:
    found = predict_others(FULL)
    assert found.keys() == STRATEGIES.keys()
    assert found["no-union"] == sum(each.predicted_bits for each in costs(FULL).values())
    assert found["sec-union"] == 2 * 2 * 3 * (100 + (30 * 3 + 32) + (128 + 192))
    assert found["fedavg"] == account(FULL).fedavg_bits == 2 * 3 * 32 * 100
    compact = predict_others(COMPACT)
    assert compact["sec-union"] == 7 * (100 + (2 * 48 + 32) + (128 + 192)) + 2 * 3 * 256
    assert compact["fedavg"] == found["fedavg"]


def test_where_v_is_known_it_is_taken() -> None:
    data = of_two_phases(ONE, TWO, THREE)

    assert data.union_size == 17
    heads, parameters = Headcount.complete(3, 2), data.manifest.protocol_parameters
    expected = STRATEGIES["partial-sec-union"].predict_bits(parameters, heads, 17)
    assert predict_others(data)["partial-sec-union"] == sum(expected.values())


# Of scores: two metrics, whose sum is one vector of two elements of 32 bits.
SCORED = {wire: make_manifest(parameters=100, wire=wire, metrics=CLASSIFIED) for wire in get_args(WireMode)}
CLAIMS = (ScoreClaim(name="accuracy", value=0.75), ScoreClaim(name="loss", value=0.5))
TO_SERVERS: dict[WireMode, int] = {"paper": 2 * 64, "compact": 64 + 256}
"""Bits of scores from a client: to both aggregators, or to one of them and a seed to the other."""
FROM_SERVERS: dict[WireMode, int] = {"paper": 2 * 3 * 64, "compact": 64 + 3 * 64}
"""Bits from aggregators: both to all clients, or one to the other and that one to all clients."""
TAGS_TO: dict[WireMode, int] = {"paper": 2 * 192, "compact": 192}
TAGS_FROM: dict[WireMode, int] = {"paper": 2 * 3 * 192, "compact": 192 + 3 * 192}
"""The same of their three tags of 64 bits."""


def scored(wire: WireMode, *senders: PartyId) -> CoordinatorRound:
    """A round whose scores were summed over the senders and sent to all clients."""
    before = FULL if wire == "paper" else COMPACT
    vectors = declare((SCORED[wire].score_sheet.vector,))
    return replace(
        before,
        manifest=SCORED[wire],
        is_scored=True,
        phase=1,
        records=(*FULL.records, PhaseRecord(opened_at_s=15.0, released_at_s=16.0, released=vectors)),
        score_members=frozenset(senders),
        reported=dict.fromkeys(SCORED[wire].clients, CLAIMS),
        traffic=(
            *before.traffic,
            *sent(senders, "up", scores=TO_SERVERS[wire], tags=TAGS_TO[wire]),
            *sent([NORTH], "down", scores=FROM_SERVERS[wire], tags=TAGS_FROM[wire]),
        ),
    )


@pytest.mark.parametrize("wire", get_args(WireMode))
@pytest.mark.parametrize("senders", [(ONE, TWO, THREE), (ONE, THREE)])
def test_payload_of_scores_is_the_formula_to_the_bit(wire: WireMode, senders: tuple[PartyId, ...]) -> None:
    """A client that sent none counts as no sender, and receives the sum all the same."""
    found = costs(scored(wire, *senders))

    assert found["scores"] == cost(len(senders) * TO_SERVERS[wire] + FROM_SERVERS[wire])
    for each in found.values():
        assert each.payload_bits == each.predicted_bits


def test_scores_are_predicted_once_their_sum_is_out_and_no_part_of_other_strategies() -> None:
    data = scored("paper", ONE, TWO, THREE)
    unreleased = replace(data, records=(*FULL.records, PhaseRecord(opened_at_s=15.0)))

    assert predict_others(data) == predict_others(FULL)
    assert unreleased.union_size == 100
    assert costs(unreleased)["scores"].predicted_bits == 0


def test_all_bytes_of_a_round_are_those_reported_and_the_orders_of_its_phases() -> None:
    data, scored_too = FULL, scored("paper", ONE, TWO, THREE)
    begun, learning = count_all_bytes(EMPTY), count_all_bytes(data) - data.wire_bytes

    assert learning == count_orders(
        "no-union", frozenset({"signs", "factors", "tags"}), MANIFEST.protocol_parameters
    )
    assert 0 < begun < learning < count_all_bytes(scored_too) - scored_too.wire_bytes


def test_fedavg_is_scored_in_as_many_rounds_as_the_run() -> None:
    """And in whole messages, so that it is never compared with its payload alone."""
    run = SCORED["compact"].protocol_parameters
    plain, with_scores = (count_fedavg_bytes(data) for data in (FULL, scored("compact", ONE, TWO, THREE)))

    update = 2 * 3 * 32 * 100
    sums = {"scores": 3 * TO_SERVERS["compact"] + FROM_SERVERS["compact"], "tags": (3 + 1 + 3) * 192}
    assert plain == count_sent("fedavg", {"update": update}, run) > update / 8
    assert with_scores == count_sent("fedavg", {"update": update, **sums}, run)
    assert with_scores - plain > sum(sums.values()) / 8


def test_fedavg_by_a_secure_sum_has_the_tags_of_its_sum_and_of_the_scores() -> None:
    manifest = SCORED["compact"]
    data = scored("compact", ONE, TWO, THREE)

    # Each of three clients sends a full share and a seed of 256 bits.
    update, tags = (2 * 3 + 1) * 32 * 100 + 3 * 256, 2 * (2 * 3 + 1) * 192
    payload = {"update": update, "tags": tags, "scores": 3 * TO_SERVERS["compact"] + FROM_SERVERS["compact"]}
    predicted = count_sent("secure-fedavg", payload, manifest.protocol_parameters)
    assert count_fedavg_bytes(data, "secure-fedavg") == predicted


def test_the_account_of_a_round() -> None:
    result, with_scores = account(FULL), account(scored("compact", ONE, TWO, THREE))
    assert (result.round, result.members, result.union_size) == (4, MANIFEST.clients, 100)
    assert (result.round_s, result.metrics) == (10.0, {})
    assert (with_scores.metrics, with_scores.union_size) == ({"accuracy": 0.75, "loss": 0.5}, 100)


def test_before_anything_is_reported_nothing_is_claimed() -> None:
    for data in (EMPTY, replace(EMPTY, records=(PhaseRecord(opened_at_s=10.0),))):
        assert (data.metrics, data.union_size, costs(data), predict_others(data)) == ({}, None, {}, {})
