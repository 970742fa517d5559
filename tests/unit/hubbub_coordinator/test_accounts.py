"""A round in numbers, from what the parties reported."""

from dataclasses import replace
from typing import get_args

import pytest

from hubbub.ids import PartyId, WireMode
from hubbub.machine.effects import Key
from hubbub.messages.manifest import MetricClaim
from hubbub.messages.rounds import RoundApplied, ScoreClaim
from hubbub.messages.shares import SignedReceipt, Traffic, VectorClaim, declare
from hubbub.protocol.costs import Headcount
from hubbub.protocol.layout import Vector
from hubbub.protocol.metrics import CLASSIFICATION
from hubbub.strategies.registry import STRATEGIES
from hubbub_coordinator.accounts import Cost, account, costs, predict, predict_others, split_by_party, union_size
from hubbub_coordinator.phases.round import CoordinatorRound, PhaseRecord
from support.builders import MODEL_HMAC, make_claims, make_manifest, make_receipt
from support.parties import sign_receipts

# N = 100 over Z_7 takes 3 bits an element; a factor takes 32, and three tags take 192.
MANIFEST = make_manifest(clients=3, servers=2, parameters=100)

EMPTY = CoordinatorRound(run=Key("run", MANIFEST.run_id), number=4, manifest=MANIFEST)


def report(*, up: bool = True) -> RoundApplied:
    sent = (
        Traffic(counts_as="signs", direction="up", payload_bits=2 * 300),
        Traffic(counts_as="factors", direction="up", payload_bits=2 * 32),
        Traffic(counts_as="tags", direction="up", payload_bits=2 * 192),
    )
    arrived = (Traffic(counts_as="signs", direction="down", wire_bytes=500),)
    return RoundApplied(model_hmac=MODEL_HMAC, traffic=(*(sent if up else ()), *arrived))


def signed_for(client: PartyId) -> dict[PartyId, SignedReceipt]:
    receipts = [make_receipt(MANIFEST, aggregator=server, client=client) for server in MANIFEST.aggregators]
    return dict(zip(MANIFEST.aggregators, sign_receipts(MANIFEST, receipts), strict=True))


def released(reports: dict[PartyId, RoundApplied]) -> CoordinatorRound:
    """A round that the aggregators released to all three clients."""
    down = (
        Traffic(counts_as="signs", direction="up", wire_bytes=700),
        Traffic(counts_as="signs", direction="down", payload_bits=3 * 300),
        Traffic(counts_as="factors", direction="down", payload_bits=3 * 32),
        Traffic(counts_as="tags", direction="down", payload_bits=3 * 192),
    )
    receipts = {client: signed_for(client) for client in reports}
    rows = [(server, row) for server in MANIFEST.aggregators for row in down]
    rows += [(client, row) for client, each in reports.items() for row in each.traffic]
    return replace(
        EMPTY,
        records=(PhaseRecord(opened_at_s=10.0, receipts=receipts, released=make_claims(MANIFEST)),),
        members=frozenset(reports),
        applied=reports,
        traffic=tuple(rows),
        began_at_s=10.0,
        ended_at_s=20.0,
    )


ONE, TWO, THREE = MANIFEST.clients
FULL = released({ONE: report(), TWO: report(), THREE: report()})


def test_payload_of_a_full_round_is_the_papers_formula_to_the_bit() -> None:
    assert costs(FULL) == {
        "signs": Cost(payload_bits=2 * 2 * 3 * 300, predicted_bits=2 * 2 * 3 * 300, wire_bytes=2 * 700 + 3 * 500),
        "factors": Cost(payload_bits=2 * 2 * 3 * 32, predicted_bits=2 * 2 * 3 * 32, wire_bytes=0),
        "tags": Cost(payload_bits=2 * 2 * 3 * 192, predicted_bits=2 * 2 * 3 * 192, wire_bytes=0),
    }


# On the compact wire eleven residues mod 7 take 31 bits: ten words for N = 100. In round 4 aggregator-1 combines.
COMPACT = replace(
    FULL,
    manifest=make_manifest(clients=3, servers=2, parameters=100, wire="compact"),
    traffic=(
        *(
            (client, row)
            for client in (ONE, TWO, THREE)
            for row in (
                Traffic(counts_as="signs", direction="up", payload_bits=288 + 256),
                Traffic(counts_as="factors", direction="up", payload_bits=32),
                Traffic(counts_as="tags", direction="up", payload_bits=192),
                Traffic(counts_as="signs", direction="down", wire_bytes=500),
            )
        ),
        (MANIFEST.aggregators[1], Traffic(counts_as="signs", direction="across", payload_bits=288)),
        (MANIFEST.aggregators[1], Traffic(counts_as="factors", direction="across", payload_bits=32)),
        (MANIFEST.aggregators[1], Traffic(counts_as="tags", direction="across", payload_bits=192)),
        (MANIFEST.aggregators[0], Traffic(counts_as="signs", direction="across", wire_bytes=400)),
        (MANIFEST.aggregators[0], Traffic(counts_as="signs", direction="down", payload_bits=3 * 288)),
        (MANIFEST.aggregators[0], Traffic(counts_as="factors", direction="down", payload_bits=3 * 32)),
        (MANIFEST.aggregators[0], Traffic(counts_as="tags", direction="down", payload_bits=3 * 192)),
    ),
)


def test_payload_of_a_full_round_on_the_compact_wire_is_its_formula_to_the_bit() -> None:
    """C + C + S - 1 = 7 vectors, and a seed of 256 bits from each client, which counts as the signs."""
    signs_bits, factors_bits, tags_bits = 7 * 288 + 3 * 256, 7 * 32, 7 * 192

    assert costs(COMPACT) == {
        "signs": Cost(payload_bits=signs_bits, predicted_bits=signs_bits, wire_bytes=3 * 500 + 400),
        "factors": Cost(payload_bits=factors_bits, predicted_bits=factors_bits, wire_bytes=0),
        "tags": Cost(payload_bits=tags_bits, predicted_bits=tags_bits, wire_bytes=0),
    }


def test_what_aggregators_send_each_other_is_told_apart() -> None:
    found = split_by_party(COMPACT)

    assert found["signs", MANIFEST.aggregators[1], "across"] == (288, 0)
    assert found["signs", MANIFEST.aggregators[0], "across"] == (0, 400)
    assert ("signs", MANIFEST.aggregators[1], "down") not in found


@pytest.mark.parametrize("wire", ["paper", "compact"])
def test_other_strategies_are_counted_on_the_wire_of_the_run(wire: WireMode) -> None:
    data = replace(FULL, manifest=make_manifest(clients=3, servers=2, parameters=100, wire=wire))

    union_bits = {"paper": 2 * 2 * 3 * 100, "compact": 7 * 100 + 3 * 256}[wire]
    signs_bits = {"paper": 2 * 2 * 3 * (30 * 3 + 32), "compact": 7 * (2 * 48 + 32) + 3 * 256}[wire]
    tags_bits = {"paper": 2 * 2 * 3, "compact": 7}[wire] * (128 + 192)
    assert predict_others(data)["sec-union"] == union_bits + signs_bits + tags_bits
    assert predict_others(data)["fedavg"] == 2 * 3 * 32 * 100


def test_with_a_client_that_sent_nothing_uploads_count_senders_and_downloads_recipients() -> None:
    silent = report(up=False)
    data = replace(released({**FULL.applied, THREE: silent}), members=frozenset({ONE, TWO}))
    signs = costs(data)["signs"]
    assert signs.payload_bits == signs.predicted_bits == 2 * (2 + 3) * 300
    assert account(data).members == (ONE, TWO)


def test_tags_are_predicted_for_as_many_as_sent_in_each_phase() -> None:
    """The third client sent its marks and their tags, and then nothing more."""
    manifest = make_manifest(clients=3, servers=2, parameters=100, strategy="sec-union")
    marks = [Traffic(counts_as=name, direction="up", payload_bits=1) for name in ("union", "tags")]
    signs = [Traffic(counts_as=name, direction="up", payload_bits=1) for name in ("signs", "factors", "tags")]
    claims = declare((Vector("signs", 17, 7), Vector("factors", 1, 2**32), Vector("tags", 3, 2**64)))
    data = replace(
        FULL,
        manifest=manifest,
        phase=1,
        records=(PhaseRecord(opened_at_s=1.0), PhaseRecord(opened_at_s=2.0, released=claims)),
        traffic=(
            *((client, row) for client in (ONE, TWO, THREE) for row in marks),
            *((client, row) for client in (ONE, TWO) for row in signs),
        ),
    )

    assert predict(data)["tags"] == 2 * (3 + 3) * 128 + 2 * (2 + 3) * 3 * 64


def test_what_was_measured_and_not_predicted_shows() -> None:
    extra = Traffic(counts_as="signs", direction="up", payload_bits=1)
    data = replace(FULL, traffic=(*FULL.traffic, (ONE, extra)))
    signs = costs(data)["signs"]
    assert signs.payload_bits == signs.predicted_bits + 1


def test_what_each_party_sent_and_received_is_told_apart() -> None:
    found = split_by_party(FULL)

    assert found["signs", ONE, "up"] == (2 * 300, 0)
    assert found["signs", ONE, "down"] == (0, 500)
    assert found["signs", MANIFEST.aggregators[0], "up"] == (0, 700)
    assert found["factors", MANIFEST.aggregators[1], "down"] == (3 * 32, 0)
    assert sum(payload for payload, _ in found.values()) == FULL.payload_bits
    assert sum(wire for _, wire in found.values()) == FULL.wire_bytes


# k = 10 of N = 100: whatever the union was, three clients chose at most 30 indices.
HEADS = Headcount.complete(3, 2)


def test_every_strategy_is_counted_with_the_same_members_and_the_most_that_v_can_have_been() -> None:
    found = predict_others(FULL)

    assert found.keys() == STRATEGIES.keys()
    assert found["no-union"] == sum(cost.predicted_bits for cost in costs(FULL).values())
    assert found["fedavg"] == account(FULL).fedavg_bits
    expected = STRATEGIES["sec-union"].predict_bits(MANIFEST.protocol_parameters, HEADS, 30)
    assert found["sec-union"] == sum(expected.values())


def test_where_v_is_known_it_is_taken() -> None:
    manifest = make_manifest(clients=3, servers=2, parameters=100, strategy="sec-union")
    claims = (
        VectorClaim(name="signs", length=17, modulus=7),
        VectorClaim(name="factors", length=1, modulus=2**32),
    )
    records = (PhaseRecord(opened_at_s=1.0), PhaseRecord(opened_at_s=2.0, released=claims))
    data = replace(FULL, manifest=manifest, phase=1, records=records)

    assert union_size(data) == 17
    expected = STRATEGIES["partial-sec-union"].predict_bits(manifest.protocol_parameters, HEADS, 17)
    assert predict_others(data)["partial-sec-union"] == sum(expected.values())


def test_who_was_left_out_has_not_sent_but_receives() -> None:
    silent = report(up=False)
    data = replace(released({**FULL.applied, THREE: silent}), members=frozenset({ONE, TWO}))

    assert predict_others(data)["fedavg"] == (2 + 3) * 32 * 100


# Of scores: two metrics, whose sum is one vector of two elements of 32 bits.
SCORED = {
    wire: make_manifest(
        clients=3, servers=2, parameters=100, wire=wire, metrics=tuple(map(MetricClaim.of, CLASSIFICATION))
    )
    for wire in get_args(WireMode)
}
CLAIMS = (ScoreClaim(name="accuracy", value=0.75), ScoreClaim(name="loss", value=0.5))
TO_SERVERS: dict[WireMode, int] = {"paper": 2 * 64, "compact": 64 + 256}
"""What a client sends of its scores: to both aggregators, or to one of them and a seed to the other."""
FROM_SERVERS: dict[WireMode, int] = {"paper": 2 * 3 * 64, "compact": 64 + 3 * 64}
"""What aggregators send: both to all clients, or one to the other and that one to all clients."""
TAGS_TO: dict[WireMode, int] = {"paper": 2 * 192, "compact": 192}
TAGS_FROM: dict[WireMode, int] = {"paper": 2 * 3 * 192, "compact": 192 + 3 * 192}
"""The same of their three tags of 64 bits."""


def scored(wire: WireMode, *senders: PartyId) -> CoordinatorRound:
    """A round whose scores were summed over the senders and sent to all clients."""
    rows = [
        (client, Traffic(counts_as=name, direction="up", payload_bits=bits))
        for client in senders
        for name, bits in (("scores", TO_SERVERS[wire]), ("tags", TAGS_TO[wire]))
    ]
    down = Traffic(counts_as="scores", direction="down", payload_bits=FROM_SERVERS[wire], wire_bytes=90)
    tags = Traffic(counts_as="tags", direction="down", payload_bits=TAGS_FROM[wire])
    vectors = declare((SCORED[wire].score_sheet.vector,))
    return replace(
        FULL if wire == "paper" else COMPACT,
        manifest=SCORED[wire],
        is_scored=True,
        phase=1,
        records=(*FULL.records, PhaseRecord(opened_at_s=15.0, released_at_s=16.0, released=vectors)),
        score_members=frozenset(senders),
        reported=dict.fromkeys(SCORED[wire].clients, CLAIMS),
        traffic=(
            *(FULL if wire == "paper" else COMPACT).traffic,
            *rows,
            *((MANIFEST.aggregators[0], row) for row in (down, tags)),
        ),
    )


@pytest.mark.parametrize("wire", get_args(WireMode))
@pytest.mark.parametrize("senders", [(ONE, TWO, THREE), (ONE, THREE)])
def test_payload_of_scores_is_the_formula_to_the_bit(wire: WireMode, senders: tuple[PartyId, ...]) -> None:
    """Who sent none counts as no sender, and receives the sum all the same."""
    data = scored(wire, *senders)

    bits = len(senders) * TO_SERVERS[wire] + FROM_SERVERS[wire]
    assert costs(data)["scores"] == Cost(payload_bits=bits, predicted_bits=bits, wire_bytes=90)
    for cost in costs(data).values():
        assert cost.payload_bits == cost.predicted_bits


def test_the_account_of_a_scored_round_has_its_metrics_and_the_union_of_its_strategy() -> None:
    result = account(scored("compact", ONE, TWO, THREE))

    assert result.metrics == {"accuracy": 0.75, "loss": 0.5}
    assert result.union_size == 100


def test_strategies_are_compared_without_scores() -> None:
    """They cost the same whatever the strategy is."""
    data = scored("paper", ONE, TWO, THREE)

    assert predict_others(data) == predict_others(FULL)


def test_before_the_sum_of_the_scores_is_out_nothing_is_predicted_of_them() -> None:
    data = scored("paper", ONE, TWO, THREE)
    unreleased = replace(data, records=(*FULL.records, PhaseRecord(opened_at_s=15.0)))

    assert union_size(unreleased) == 100
    assert costs(unreleased)["scores"].predicted_bits == 0


def test_the_account_of_a_round() -> None:
    result = account(FULL)
    assert (result.round, result.members, result.union_size) == (4, MANIFEST.clients, 100)
    assert result.fedavg_bits == 2 * 3 * 32 * 100
    assert result.round_s == 10.0
    assert result.metrics == {}


def test_before_anything_is_reported_nothing_is_claimed() -> None:
    assert EMPTY.metrics == {}
    assert union_size(EMPTY) is None
    assert costs(EMPTY) == {}
    assert predict_others(EMPTY) == {}
    begun = replace(EMPTY, records=(PhaseRecord(opened_at_s=10.0),))
    assert union_size(begun) is None
    assert costs(begun) == {}
