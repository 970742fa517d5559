"""A round that is over takes little room, and shows what it showed before."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from hubbub.ids import PartyId, RunId
from hubbub.machine.effects import Key
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.messages.rounds import RoundApplied, ScoreClaim
from hubbub.messages.shares import SignedReceipt
from hubbub.messages.traffic import Traffic
from hubbub.protocol.metrics import regression
from hubbub_coordinator import accounts
from hubbub_coordinator.api.costs import Costs
from hubbub_coordinator.api.views import view_round
from hubbub_coordinator.ended import Folder
from hubbub_coordinator.phases.round import PhaseRecord, Round, State
from support.builders import MODEL_HMAC, make_claims, make_manifest, make_receipt
from support.live_coordinator import LiveCoordinator, live_coordinator, make_run
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

    folded = Folder(MANIFEST).fold(whole)

    assert view_round(state, folded) == view_round(state, whole)
    assert Costs().view([(state, folded)]) == Costs().view([(state, whole)])
    assert accounts.account(folded) == accounts.account(whole)
    assert (folded.payload_bits, folded.wire_bytes, folded.metrics) == (
        whole.payload_bits,
        whole.wire_bytes,
        whole.metrics,
    )


def test_no_receipt_stays_and_what_rounds_have_in_common_is_held_once() -> None:
    folder = Folder(MANIFEST)
    first, second = (folder.fold(make_round(number, MANIFEST.model_copy())) for number in (1, 2))

    for each in (first, second):
        assert (each.early, [record.receipts for record in each.records]) == ((), [{}, {}])
        assert all(report.traffic == () for report in each.applied.values())
        assert len(each.traffic) == 4, "one row for each party, direction and vector"
        assert each.manifest is MANIFEST
    assert first.members is second.members
    assert first.records[0].holders[ONE] is second.records[1].holders[TWO]


def test_a_coordinator_folds_all_rounds_but_the_last_and_after_a_restart_too(tmp_path: Path) -> None:
    with live_coordinator(tmp_path) as live:
        run = live.submit(make_run(rounds=3))
        live.wait_until(run, "completed")
        before = live.call(find_rounds(live, run))
        live.stop()
        live.start()
        after = live.call(find_rounds(live, run))

    for found in (before, after):
        assert [bool(data.record.receipts) for _, data in found] == [False, False, True]
        assert len({id(data.manifest) for _, data in found[:-1]}) == 1
    assert after == before
    assert [view_round(*each) for each in after] == [view_round(*each) for each in before]


async def find_rounds(live: LiveCoordinator, run: RunId) -> list[tuple[State, Round]]:
    assert live._federation is not None
    return live._federation.coordinator.find_rounds(run)


def test_what_a_round_cost_is_worked_out_once_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out: list[int] = []
    work_out = accounts.costs

    def note(data: Round) -> dict[str, accounts.Cost]:
        worked_out.append(data.number)
        return work_out(data)

    monkeypatch.setattr(accounts, "costs", note)
    known = Costs()
    over = [(State.RELEASED, make_round(number)) for number in (1, 2)]
    for open_round in (make_round(3), replace(make_round(3), traffic=())):
        view = known.view([*over, (State.APPLYING, open_round)])

    assert worked_out == [1, 2, 3, 3]
    assert view.rounds[3]["signs"].wire_bytes == 0
    assert set(view.other_strategies["no-union"].rounds) == {1, 2}
