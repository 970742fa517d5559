"""Progress of parties: where each is said to be, and for whom a run waits."""

from dataclasses import replace

import pytest

from hubbub.errors import Code
from hubbub.ids import PartyId
from hubbub.messages.manifest import Manifest
from hubbub.messages.shares import SignedReceipt
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.phases.round import CoordinatorRound, HeldSet, PhaseRecord, State
from hubbub_coordinator.progress import (
    NOBODY,
    PartyState,
    Waiting,
    classify_arrivals,
    find_awaited,
    find_combiner,
    find_place,
)
from hubbub_coordinator.reasons import tell_failure
from support.builders import SET_ID, make_manifest, make_receipt, make_run_key
from support.coordinator_play import CLASSIFIED, make_round
from support.coordinator_scene import REPORT

MANIFEST, SCORED = (
    make_manifest(min_clients=2, strategy="sec-union", phase_timeout_s=100.0, metrics=metrics)
    for metrics in ((), CLASSIFIED)
)
ONE, TWO, THREE = MANIFEST.clients
NORTH, SOUTH = MANIFEST.aggregators
EVERYBODY = (NORTH, SOUTH, ONE, TWO, THREE)
RUN = runs.CoordinatorRun(
    manifest=MANIFEST, keys={name: make_run_key(MANIFEST, name) for name in EVERYBODY}, round=1
)
ENDED = PhaseRecord(opened_at_s=10.0, released_at_s=20.0)


def held(client: PartyId, *servers: PartyId) -> dict[PartyId, HeldSet]:
    receipts = [make_receipt(MANIFEST, aggregator=server, client=client) for server in servers]
    return {
        each.aggregator: HeldSet(SET_ID, SignedReceipt(receipt=each, signature="5a" * 64)) for each in receipts
    }


DELIVERED = PhaseRecord(opened_at_s=10.0, held={ONE: held(ONE, NORTH, SOUTH), TWO: held(TWO, SOUTH)})


def round_with(record: PhaseRecord, *members: PartyId, phase: int = 0) -> CoordinatorRound:
    return make_round(MANIFEST, phase=phase, records=(*[ENDED] * phase, record), members=frozenset(members))


SCORING = replace(
    round_with(DELIVERED, ONE, TWO, phase=2), manifest=SCORED, is_scored=True, applied={ONE: REPORT, TWO: REPORT}
)
"""Client-3 has not applied the round, so that nobody waits for its scores."""
CLOSED = replace(DELIVERED, closed_at_s=30.0)


OPEN, LATER = round_with(DELIVERED), round_with(DELIVERED, ONE, THREE, phase=1)
AWAITED = round_with(replace(CLOSED, ended=frozenset({SOUTH})), ONE, TWO, phase=1)
VOIDED = round_with(replace(CLOSED, ended=frozenset({NORTH})), ONE, THREE, phase=1)
RELEASED = round_with(replace(CLOSED, released_at_s=31.0, ended=frozenset({NORTH, SOUTH})), ONE, phase=1)
APPLIED = replace(RELEASED, applied={ONE: REPORT})
REPORTED = replace(SCORING, score_members=frozenset({ONE}), reported={ONE: ()})
PLACES: list[tuple[str, State, CoordinatorRound, float, str]] = [
    ("who has delivered has done it", State.COLLECTING, OPEN, 60.0, "idle idle delivered sending training"),
    ("who is late by half the time is missing", State.COLLECTING, OPEN, 60.1, "- - delivered missing missing"),
    ("later nobody trains", State.COLLECTING, LATER, 50.0, "idle idle delivered left-out sending"),
    ("aggregators add and release", State.RELEASING, AWAITED, 40.0, "adding released - - left-out"),
    ("an aggregator is late", State.RELEASING, AWAITED, 90.0, "missing released - - -"),
    ("waited for in vain", State.VOIDING, VOIDED, 50.0, "idle adding delivered left-out missing"),
    ("who has applied the sum has", State.APPLYING, APPLIED, 40.0, "released released applied left-out -"),
    ("who has applied delivers scores", State.COLLECTING, SCORING, 50.0, "idle idle delivered sending left-out"),
    ("who reports has done it", State.REPORTING, REPORTED, 50.0, "- - applied applied -"),
]
"""A round after some seconds, and the state of each party where it matters."""


def test_the_place_of_parties_in_a_round(subtests: pytest.Subtests) -> None:
    for what, state, data, now_s, states in PLACES:
        with subtests.test(what):
            expected = {name: word for name, word in zip(EVERYBODY, states.split(), strict=True) if word != "-"}
            places = {name: find_place(runs.State.RUNNING, RUN, (state, data), name, now_s) for name in expected}

            assert {name: place.state for name, place in places.items()} == expected


def test_before_any_round_parties_are_asked_and_join_and_later_say_what_they_have_delivered() -> None:
    enrolling = replace(RUN, keys={ONE: RUN.keys[ONE]})
    places = [find_place(runs.State.ENROLLING, enrolling, None, name, 0.0) for name in (ONE, TWO)]
    assert [(place.state, place.status) for place in places] == [("joined", "joined"), ("asked", "asked to join")]

    last = (State.COLLECTING, SCORING)
    statuses = [find_place(runs.State.RUNNING, RUN, last, name, 50.0).status for name in (ONE, TWO)]
    assert statuses == [f"delivered scores to {count} of 2 aggregators" for count in (2, 1)]


@pytest.mark.parametrize("state", [runs.State.PAUSED, runs.State.COMPLETED, runs.State.CANCELLED])
def test_nobody_does_anything_in_a_run_that_stands_still(state: runs.State) -> None:
    last = (State.RELEASED, round_with(DELIVERED))

    assert {find_place(state, RUN, last, name, 0.0).state for name in EVERYBODY} == {PartyState.IDLE}


def test_who_had_not_delivered_when_its_run_was_cancelled_is_not_said_to_train() -> None:
    place = find_place(runs.State.CANCELLED, RUN, (State.COLLECTING, OPEN), THREE, 50.0)

    assert (place.state, place.status) == (PartyState.IDLE, "had not delivered union")


def test_whose_word_ended_the_run_has_failed_and_says_why() -> None:
    run = replace(RUN, failed_party=TWO, reason=tell_failure(TWO, Code.DISK_FAILED))

    place = find_place(runs.State.FAILED, run, None, TWO, 0.0)

    expected = "left the run (disk-failed): its disk failed. Its owner's log says more"
    assert (place.state, place.status) == ("failed", expected)
    assert find_place(runs.State.FAILED, run, None, ONE, 0.0).state == "idle"


# Arrival ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taken_s", "classes"),
    [
        ((1.0, 2.0, 4.9), "on-time on-time on-time"),
        ((1.0, 2.0, 5.1), "on-time on-time late"),
        ((30.0, 40.0, 79.0), "on-time on-time on-time"),
        ((30.0, 40.0, 81.0), "on-time on-time late"),
        ((1.0, 2.0, None), "on-time on-time missing"),
        ((None, None, None), "missing missing missing"),
    ],
)
def test_a_client_is_late_after_five_seconds_and_twice_the_time_of_the_first_half(
    taken_s: tuple[float | None, ...], classes: str
) -> None:
    arrived = {
        client: 10.0 + after for client, after in zip(MANIFEST.clients, taken_s, strict=True) if after is not None
    }
    record = PhaseRecord(
        opened_at_s=10.0,
        closed_at_s=100.0,
        held={client: held(client, NORTH, SOUTH) for client in arrived},
        arrived=arrived,
    )

    assert " ".join(classify_arrivals(round_with(record)).values()) == classes


def test_the_worst_of_all_phases_counts_and_who_may_still_come_is_in_no_class() -> None:
    union = replace(CLOSED, held={each: held(each, NORTH, SOUTH) for each in (ONE, TWO)}, arrived={TWO: 29.0})
    signs = PhaseRecord(opened_at_s=31.0, held={TWO: held(TWO, NORTH, SOUTH)})
    data = make_round(MANIFEST, phase=1, records=(union, signs), members=frozenset({ONE, TWO}))

    assert classify_arrivals(data) == {ONE: "on-time", TWO: "late", THREE: "missing"}


def test_the_arrival_of_scores_is_in_no_class() -> None:
    late = replace(SCORING, records=(*SCORING.records[:-1], replace(DELIVERED, closed_at_s=99.0)))

    assert classify_arrivals(late) == classify_arrivals(replace(late, records=late.records[:-1]))


# Waiting ---------------------------------------------------------------------------------------------------


def awaited_to_release(manifest: Manifest, *ended: PartyId) -> tuple[PartyId, ...]:
    record = PhaseRecord(opened_at_s=10.0, closed_at_s=12.0, ended=frozenset(ended))
    data = make_round(manifest, records=(record,))
    run = runs.CoordinatorRun(manifest=manifest, round=1)
    waiting = find_awaited(runs.State.RUNNING, run, (State.RELEASING, data))
    assert (waiting.what, waiting.since_s) == ("to release signs", 12.0)
    return waiting.parties


def test_who_has_not_released_is_waited_for_and_a_combiner_only_when_all_others_have() -> None:
    paper, compact = (make_manifest(servers=3, wire=wire) for wire in ("paper", "compact"))
    first, *rest = paper.aggregators
    assert awaited_to_release(paper, first) == tuple(rest)

    combiner = find_combiner(make_round(compact), "signs")
    assert combiner is not None
    others = tuple(name for name in compact.aggregators if name != combiner)
    assert awaited_to_release(compact) == others
    assert awaited_to_release(compact, others[0]) == others[1:]
    assert awaited_to_release(compact, *others) == (combiner,)


def test_nobody_is_waited_for_before_the_first_phase_of_a_round_is_open() -> None:
    begun = replace(round_with(DELIVERED), records=())

    assert find_awaited(runs.State.RUNNING, RUN, (State.COLLECTING, begun)) == NOBODY


def test_who_has_applied_a_round_is_waited_for_until_it_says_what_the_scores_come_to() -> None:
    released = PhaseRecord(opened_at_s=20.0, released_at_s=21.0)
    data = replace(SCORING, records=(ENDED, ENDED, released), reported={ONE: ()})

    waiting = find_awaited(runs.State.RUNNING, RUN, (State.REPORTING, data))

    assert waiting == Waiting((TWO,), "to report the scores", 21.0)
