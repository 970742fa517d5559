"""Where each party is said to be, by what the coordinator has heard of it."""

from dataclasses import replace

import pytest

from hubbub.errors import Code
from hubbub.ids import PartyId
from hubbub.machine.effects import Key
from hubbub.messages.manifest import MetricClaim
from hubbub.messages.shares import Receipt, SignedReceipt, VectorClaim
from hubbub.protocol.metrics import CLASSIFICATION
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.phases.round import CoordinatorRound, PhaseRecord
from hubbub_coordinator.progress import PartyState, find_place
from hubbub_coordinator.reasons import tell_failure
from support.builders import SET_ID, TRANSCRIPT, make_manifest, make_run_key
from support.coordinator_scene import REPORT

MANIFEST = make_manifest(clients=3, servers=2, min_clients=2, strategy="sec-union", phase_timeout_s=100.0)
ONE, TWO, THREE = MANIFEST.clients
NORTH, SOUTH = MANIFEST.aggregators
EVERYBODY = (*MANIFEST.aggregators, *MANIFEST.clients)
RUN = runs.CoordinatorRun(
    manifest=MANIFEST, keys={name: make_run_key(MANIFEST, name) for name in EVERYBODY}, round=1
)
Receipts = dict[PartyId, dict[PartyId, SignedReceipt]]


def signed(client: PartyId, *servers: PartyId) -> dict[PartyId, SignedReceipt]:
    vectors = (VectorClaim(name="signs", length=7, modulus=7),)
    return {
        server: SignedReceipt(
            receipt=Receipt(
                aggregator=server, client=client, set_id=SET_ID, vectors=vectors, transcript=TRANSCRIPT
            ),
            signature="5a" * 64,
        )
        for server in servers
    }


def round_with(
    record: PhaseRecord, *, phase: int = 0, members: frozenset[PartyId] = frozenset()
) -> CoordinatorRound:
    first = PhaseRecord(opened_at_s=10.0, released_at_s=20.0)
    records = (record,) if phase == 0 else (first, record)
    key = Key("run", MANIFEST.run_id)
    return CoordinatorRound(run=key, number=1, manifest=MANIFEST, phase=phase, records=records, members=members)


def places(state: rounds.State, data: CoordinatorRound, now_s: float = 50.0) -> dict[PartyId, str]:
    return {
        name: find_place(runs.State.RUNNING, RUN, (state, data), name, now_s).state.value for name in EVERYBODY
    }


DELIVERED = PhaseRecord(opened_at_s=10.0, receipts={ONE: signed(ONE, NORTH, SOUTH), TWO: signed(TWO, SOUTH)})
IDLE = {NORTH: "idle", SOUTH: "idle"}


def test_before_any_round_parties_are_asked_and_join() -> None:
    run = replace(RUN, keys={ONE: RUN.keys[ONE]})
    found = {name: find_place(runs.State.ENROLLING, run, None, name, 0.0) for name in (ONE, TWO)}

    assert {name: (place.state, place.status) for name, place in found.items()} == {
        ONE: ("joined", "joined"),
        TWO: ("asked", "asked to join"),
    }


def test_who_collects_waits_and_who_has_delivered_has_done_it() -> None:
    assert places(rounds.State.COLLECTING, round_with(DELIVERED)) == {
        **IDLE,
        ONE: "delivered",
        TWO: "sending",
        THREE: "training",
    }


def test_in_a_later_phase_nobody_trains() -> None:
    data = round_with(DELIVERED, phase=1, members=frozenset({ONE, THREE}))

    assert places(rounds.State.COLLECTING, data) == {**IDLE, ONE: "delivered", TWO: "left-out", THREE: "sending"}


@pytest.mark.parametrize(("now_s", "state"), [(60.0, "training"), (60.1, "missing")])
def test_who_is_waited_for_since_half_the_time_is_missing(now_s: float, state: str) -> None:
    assert places(rounds.State.COLLECTING, round_with(DELIVERED), now_s)[THREE] == state


def test_aggregators_add_and_release() -> None:
    record = replace(DELIVERED, closed_at_s=30.0, ended=frozenset({SOUTH}))
    members = frozenset({ONE, TWO})

    found = places(rounds.State.RELEASING, round_with(record, phase=1, members=members), now_s=40.0)

    assert (found[NORTH], found[SOUTH], found[THREE]) == ("adding", "released", "left-out")
    late = places(rounds.State.RELEASING, round_with(record, phase=1, members=members), now_s=90.0)
    assert (late[NORTH], late[SOUTH]) == ("missing", "released")


def test_who_was_waited_for_in_vain_is_missing_while_the_round_is_made_void() -> None:
    record = replace(DELIVERED, closed_at_s=30.0, ended=frozenset({NORTH}))
    data = round_with(record, phase=1, members=frozenset({ONE, THREE}))

    assert places(rounds.State.VOIDING, data) == {
        NORTH: "idle",
        SOUTH: "adding",
        ONE: "delivered",
        TWO: "left-out",
        THREE: "missing",
    }


def test_who_has_applied_the_sum_has() -> None:
    record = replace(DELIVERED, closed_at_s=30.0, released_at_s=31.0, ended=frozenset({NORTH, SOUTH}))
    data = replace(round_with(record, phase=1, members=frozenset({ONE})), applied={ONE: REPORT})

    found = places(rounds.State.APPLYING, data, now_s=40.0)

    assert (found[ONE], found[TWO], found[NORTH]) == ("applied", "left-out", "released")


def test_while_scores_are_summed_who_has_applied_delivers_again_and_has_done_it_when_it_reports() -> None:
    """Client-3 has not applied the round, so that nobody waits for its scores."""
    manifest = make_manifest(
        clients=3,
        servers=2,
        min_clients=2,
        strategy="sec-union",
        metrics=tuple(map(MetricClaim.of, CLASSIFICATION)),
        phase_timeout_s=100.0,
    )
    first = PhaseRecord(opened_at_s=10.0, released_at_s=20.0)
    data = replace(
        round_with(DELIVERED, members=frozenset({ONE, TWO})),
        manifest=manifest,
        is_scored=True,
        phase=2,
        records=(first, first, DELIVERED),
        applied={ONE: REPORT, TWO: REPORT},
    )

    collecting = places(rounds.State.COLLECTING, data)
    reporting = places(rounds.State.REPORTING, replace(data, score_members=frozenset({ONE}), reported={ONE: ()}))

    assert collecting == {**IDLE, ONE: "delivered", TWO: "sending", THREE: "left-out"}
    assert (reporting[ONE], reporting[TWO]) == ("applied", "applied")
    statuses = [
        find_place(runs.State.RUNNING, RUN, (rounds.State.COLLECTING, data), name, 50.0).status
        for name in MANIFEST.clients
    ]
    assert statuses[:2] == [f"delivered scores to {count} of 2 aggregators" for count in (2, 1)]


@pytest.mark.parametrize("state", [runs.State.PAUSED, runs.State.COMPLETED, runs.State.CANCELLED])
def test_nobody_does_anything_in_a_run_that_stands_still(state: runs.State) -> None:
    last = (rounds.State.RELEASED, round_with(DELIVERED))

    assert {find_place(state, RUN, last, name, 0.0).state for name in EVERYBODY} == {PartyState.IDLE}


def test_whose_word_ended_the_run_has_failed_and_says_why() -> None:
    run = replace(RUN, failed_party=TWO, reason=tell_failure(TWO, Code.DISK_FAILED))

    place = find_place(runs.State.FAILED, run, None, TWO, 0.0)

    assert (place.state, place.status) == (
        "failed",
        "left the run (disk-failed): its disk failed. Its owner's log says more",
    )
    assert find_place(runs.State.FAILED, run, None, ONE, 0.0).state == "idle"
