"""A round that is over takes little room, and shows what it showed before."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from hubbub.ids import PartyId
from hubbub.machine.effects import Key
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.messages.rounds import RoundApplied, ScoreClaim
from hubbub.messages.shares import SignedReceipt
from hubbub.messages.traffic import Traffic
from hubbub.protocol.metrics import regression
from hubbub_coordinator import accounts
from hubbub_coordinator.accounts import Sums
from hubbub_coordinator.api.costs import view_costs
from hubbub_coordinator.api.views import view_round
from hubbub_coordinator.archive import fold
from hubbub_coordinator.phases.round import PhaseRecord, Round, State
from support.builders import MODEL_HMAC, make_claims, make_manifest, make_receipt
from support.parties import sign_receipts

MANIFEST = make_manifest(
    clients=3, servers=2, min_clients=2, metrics=tuple(map(MetricClaim.of, regression(0.0, 10.0)))
)
ONE, TWO, THREE = MANIFEST.clients
SCORES = (ScoreClaim(name="r2", value=0.5), ScoreClaim(name="mse", value=4.0))


def signed_for(client: PartyId) -> Mapping[PartyId, SignedReceipt]:
    receipts = [make_receipt(MANIFEST, aggregator=server, client=client) for server in MANIFEST.aggregators]
    return dict(zip(MANIFEST.aggregators, sign_receipts(MANIFEST, receipts), strict=True))


def make_round(number: int, manifest: Manifest = MANIFEST) -> Round:
    rows = (
        Traffic(counts_as="signs", direction="up", payload_bits=100 + number, wire_bytes=7),
        Traffic(counts_as="signs", direction="up", payload_bits=50),
        Traffic(counts_as="factors", direction="down", wire_bytes=9),
    )
    record = PhaseRecord(
        opened_at_s=1.0,
        closed_at_s=2.0,
        released_at_s=3.0,
        receipts={ONE: signed_for(ONE), TWO: signed_for(TWO)},
        spoilt={THREE: "refused"},
        ended=frozenset(MANIFEST.aggregators),
        released=make_claims(MANIFEST),
    )
    return Round(
        run=Key("run", MANIFEST.run_id),
        number=number,
        manifest=manifest,
        is_scored=True,
        score_members=frozenset({ONE, TWO}),
        phase=1,
        records=(record, replace(record, spoilt={})),
        members=frozenset({ONE, TWO}),
        early=(signed_for(ONE)[MANIFEST.aggregators[0]],),
        applied={client: RoundApplied(model_hmac=MODEL_HMAC, traffic=rows) for client in (ONE, TWO)},
        reported=dict.fromkeys((ONE, TWO), SCORES),
        traffic=tuple((client, row) for client in (ONE, TWO) for row in rows),
        began_at_s=1.0,
        ended_at_s=5.0,
    )


@pytest.mark.parametrize("state", [State.RELEASED, State.VOID, State.CONTRADICTED])
def test_all_that_is_shown_of_a_round_is_the_same_after_it_was_folded(state: State) -> None:
    whole = make_round(1)

    folded = fold(whole)

    assert view_round(state, folded) == view_round(state, whole)
    assert view_costs(Sums(), [(state, folded)]) == view_costs(Sums(), [(state, whole)])
    assert accounts.add_up(Sums(), state, folded) == accounts.add_up(Sums(), state, whole)
    assert accounts.account(folded) == accounts.account(whole)
    assert (folded.payload_bits, folded.wire_bytes, folded.metrics) == (
        whole.payload_bits,
        whole.wire_bytes,
        whole.metrics,
    )


def test_no_receipt_stays() -> None:
    folded = fold(make_round(1))

    assert (folded.early, [record.receipts for record in folded.records]) == ((), [{}, {}])
    assert all(report.traffic == () for report in folded.applied.values())
    assert len(folded.traffic) == 4, "one row for each party, direction and vector"
