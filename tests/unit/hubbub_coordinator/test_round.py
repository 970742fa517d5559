"""The coordinator's round by scenario: what it closes over, what voids, what contradicts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

import pytest

from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId, Role, SetId
from hubbub.machine.effects import (
    CancelTimer,
    CountRefusal,
    Effect,
    Failed,
    Key,
    Publish,
    Record,
    SetTimer,
    Tell,
)
from hubbub.machine.table import Step, step
from hubbub.messages.manifest import CohortMember, Manifest, MetricClaim
from hubbub.messages.rounds import ClosePhase, RoundApplied, RoundOpened, RoundScored, ScoreClaim, VoidPhase
from hubbub.messages.shares import Receipt, SignedReceipt, Traffic, VectorClaim
from hubbub.strategies.registry import STRATEGIES
from hubbub.strategies.verified import Verified
from hubbub_coordinator.events import (
    Began,
    DeadlinePassed,
    OrderDeclined,
    ReceiptArrived,
    RoundEnded,
    RoundVerdict,
    ScoresReported,
    SetSpoilt,
    SumReleased,
    UpdateApplied,
    UpdateDropped,
    VoidConfirmed,
)
from hubbub_coordinator.phases.round import KIND, TRANSITIONS, CoordinatorRound, State
from support.builders import MODEL_HMAC, TRANSCRIPT, make_manifest
from support.two_phases import NAME, TwoPhases

SETS = {number: SetId(f"{number:032x}") for number in range(10)}
SHORT = (VectorClaim(name="signs", length=7, modulus=7),)
LONG = (VectorClaim(name="signs", length=8, modulus=7),)
OTHER_TRANSCRIPT = "7b" * 32
SECOND_TRANSCRIPT = "7c" * 32
SIGNATURE = "5a" * 64
"""Checked at the edge, before the machine sees a receipt."""


def make_signed(
    aggregator: PartyId,
    client: PartyId,
    set_id: SetId,
    vectors: tuple[VectorClaim, ...] = SHORT,
    transcript: str = TRANSCRIPT,
) -> SignedReceipt:
    receipt = Receipt(aggregator=aggregator, client=client, set_id=set_id, vectors=vectors, transcript=transcript)
    return SignedReceipt(receipt=receipt, signature=SIGNATURE)


class Play:
    """A round and everything it asked for, fed event by event."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.run = Key("run", manifest.run_id)
        self.state = State.COLLECTING
        self.data = CoordinatorRound(run=self.run, number=1, manifest=manifest, is_scored=manifest.is_scored)
        self.effects: tuple[Effect, ...] = ()
        self.feed(Began(at_s=1.0))

    def feed(self, event: object) -> Step[State, CoordinatorRound]:
        result = step(TRANSITIONS, self.state, self.data, event)
        self.state, self.data, self.effects = result.state, result.data, result.effects
        return result

    def expect(self, state: State) -> None:
        assert self.state is state

    def receive(
        self,
        client: PartyId,
        *,
        aggregators: Sequence[PartyId] | None = None,
        set_id: SetId | None = None,
        vectors: tuple[VectorClaim, ...] = SHORT,
        transcript: str = TRANSCRIPT,
        phase: str | None = None,
    ) -> None:
        """Receipts for a client's set, of all aggregators unless told otherwise."""
        number = (*self.manifest.clients, client).index(client)
        for aggregator in aggregators if aggregators is not None else self.manifest.aggregators:
            receipt = make_signed(aggregator, client, set_id or SETS[number], vectors, transcript)
            self.feed(ReceiptArrived(at_s=2.0, phase=phase or self.data.current.name, receipt=receipt))

    def receive_all(self) -> None:
        for client in self.data.awaited:
            self.receive(client)

    def release(
        self,
        aggregator: PartyId,
        *,
        phase: str | None = None,
        members: frozenset[PartyId] | None = None,
        vectors: tuple[VectorClaim, ...] = SHORT,
    ) -> None:
        self.feed(
            SumReleased(
                at_s=4.0,
                phase=phase or self.data.current.name,
                aggregator=aggregator,
                members=self.data.current_members if members is None else members,
                vectors=vectors,
                traffic=(Traffic(counts_as="signs", direction="down", payload_bits=10),),
            )
        )

    def release_all(self) -> None:
        for aggregator in self.manifest.aggregators:
            self.release(aggregator)

    def apply(self, client: PartyId, *, model_hmac: str = MODEL_HMAC) -> None:
        report = REPORT.model_copy(update={"model_hmac": model_hmac})
        self.feed(UpdateApplied(at_s=5.0, client=client, report=report))

    def report(self, client: PartyId, *scores: ScoreClaim) -> None:
        traffic = (Traffic(counts_as="scores", direction="up", payload_bits=64),)
        self.feed(ScoresReported(at_s=6.0, client=client, scores=scores, traffic=traffic))

    def orders(self) -> list[tuple[PartyId, ClosePhase | VoidPhase]]:
        return [
            (effect.to, effect.body)
            for effect in self.effects
            if isinstance(effect, Publish) and isinstance(effect.body, ClosePhase | VoidPhase)
        ]

    def recorded(self) -> list[tuple[str, Mapping[str, object]]]:
        return [(effect.kind, effect.fields) for effect in self.effects if isinstance(effect, Record)]

    def verdict(self) -> RoundEnded:
        told = [effect for effect in self.effects if isinstance(effect, Tell)]
        assert len(told) == 1
        assert told[0].to == self.run
        assert isinstance(told[0].event, RoundEnded)
        return told[0].event


REPORT = RoundApplied(
    model_hmac=MODEL_HMAC,
    traffic=(Traffic(counts_as="signs", direction="up", payload_bits=30),),
)


@pytest.fixture
def play() -> Play:
    return Play(make_manifest(clients=4, servers=2, min_clients=3))


@pytest.fixture
def two_phases(monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setitem(STRATEGIES, NAME, Verified(TwoPhases()))
    return Play(make_manifest(clients=4, servers=2, min_clients=3, strategy=NAME))


def test_a_round_begins_with_a_deadline_and_an_order_to_every_client() -> None:
    manifest = make_manifest(phase_timeout_s=60.0)
    play = Play(manifest)
    assert play.effects[0] == SetTimer("deadline", 61.0, DeadlinePassed)
    assert play.effects[1:] == tuple(Publish(client, Role.CLIENT, RoundOpened()) for client in manifest.clients)


def test_an_order_names_the_last_round_that_its_client_took_part_in() -> None:
    manifest = make_manifest()
    first, *others = manifest.clients
    data = CoordinatorRound(run=Key("run", manifest.run_id), number=8, manifest=manifest, attended={first: 7})
    effects = step(TRANSITIONS, State.COLLECTING, data, Began(at_s=1.0)).effects
    sent = {effect.to: effect.body for effect in effects if isinstance(effect, Publish)}
    assert sent == {first: RoundOpened(attended=7), **dict.fromkeys(others, RoundOpened())}


def test_who_took_part_is_who_delivered_to_every_aggregator_or_reported(play: Play) -> None:
    """A void round counts, and one aggregator's word alone does not."""
    delivered, at_one, away, late = play.manifest.clients
    play.receive(delivered)
    play.receive(at_one, aggregators=play.manifest.aggregators[:1])
    assert play.data.present == {delivered}
    play.feed(DeadlinePassed(at_s=61.0))
    for aggregator in play.manifest.aggregators:
        play.feed(VoidConfirmed(at_s=62.0, phase=play.data.current.name, aggregator=aggregator))
    assert (play.verdict().verdict, play.verdict().present) == (RoundVerdict.VOID, frozenset({delivered}))
    others = Play(play.manifest)
    for client in (delivered, at_one, away):
        others.receive(client)
    others.feed(DeadlinePassed(at_s=61.0))
    others.release_all()
    others.apply(late)
    assert others.data.present == set(play.manifest.clients), "who only applied has come as far"


def test_all_receipts_close_the_phase_over_everybody(play: Play) -> None:
    for client in play.manifest.clients[:-1]:
        play.receive(client)
        play.expect(State.COLLECTING)
        assert not play.effects
    play.receive(play.manifest.clients[-1])
    play.expect(State.RELEASING)
    assert CancelTimer("deadline") in play.effects
    assert [to for to, _ in play.orders()] == list(play.manifest.aggregators)
    for _, order in play.orders():
        assert isinstance(order, ClosePhase)
        assert order.members == play.manifest.clients
        shown = {(signed.receipt.client, signed.receipt.aggregator) for signed in order.receipts}
        assert shown == {(client, server) for client in order.members for server in play.manifest.aggregators}
        assert len(order.receipts) == len(shown)
        assert {signed.signature for signed in order.receipts} == {SIGNATURE}, "as they were signed"


def test_a_receipt_that_comes_twice_changes_nothing(play: Play) -> None:
    play.receive(play.manifest.clients[0])
    before = play.data
    play.receive(play.manifest.clients[0])
    assert play.data == before


def test_a_receipt_of_another_phase_does_not_count(play: Play) -> None:
    before = play.data
    play.receive(play.manifest.clients[0], phase="union")
    assert play.data == before


def test_at_the_deadline_those_who_are_there_are_the_members(play: Play) -> None:
    there = play.manifest.clients[:3]
    for client in there:
        play.receive(client)
    play.receive(play.manifest.clients[3], aggregators=play.manifest.aggregators[:1])
    assert play.data.missing() == play.manifest.clients[3:]
    play.feed(DeadlinePassed(at_s=9.0))
    play.expect(State.RELEASING)
    assert play.data.members == frozenset(there)
    for _, order in play.orders():
        assert isinstance(order, ClosePhase)
        assert order.members == there
        assert {signed.receipt.client for signed in order.receipts} == set(there)


def test_at_the_deadline_too_few_make_the_round_void(play: Play) -> None:
    for client in play.manifest.clients[:2]:
        play.receive(client)
    play.feed(DeadlinePassed(at_s=9.0))
    play.expect(State.VOIDING)
    assert CancelTimer("deadline") in play.effects
    assert [to for to, _ in play.orders()] == list(play.manifest.aggregators)
    assert all(isinstance(order, VoidPhase) for _, order in play.orders())
    assert "client-3, client-4 did not deliver" in play.data.reason


class Said(TypedDict, total=False):
    """What a receipt says of a set."""

    set_id: SetId
    vectors: tuple[VectorClaim, ...]
    transcript: str


DIFFERENT = [
    pytest.param(Said(set_id=SETS[9]), id="another-set-id"),
    pytest.param(Said(vectors=LONG), id="other-vectors"),
    pytest.param(Said(transcript=OTHER_TRANSCRIPT), id="another-transcript"),
]


@pytest.mark.parametrize("other", DIFFERENT)
def test_a_client_that_told_aggregators_different_things_is_no_member(play: Play, other: Said) -> None:
    *good, odd = play.manifest.clients
    first, second = play.manifest.aggregators
    play.receive(odd, aggregators=[first])
    play.receive(odd, aggregators=[second], **other)
    assert play.data.missing() == play.manifest.clients
    for client in good:
        play.expect(State.COLLECTING)
        play.receive(client)
    play.expect(State.RELEASING)  # A client has one set, so there is nothing to wait for.
    assert play.data.members == frozenset(good)


@pytest.mark.parametrize("other", DIFFERENT[1:])
def test_all_delivered_but_one_disagrees_so_the_phase_closes_at_once_over_the_others(
    play: Play, other: Said
) -> None:
    odd, *good = play.manifest.clients
    play.receive(odd, **other)
    for client in good:
        play.expect(State.COLLECTING)
        play.receive(client)
    play.expect(State.RELEASING)
    assert CancelTimer("deadline") in play.effects
    assert play.data.members == frozenset(good)
    for _, order in play.orders():
        assert isinstance(order, ClosePhase)
        assert order.members == tuple(good)
        assert odd not in {signed.receipt.client for signed in order.receipts}


def test_all_delivered_but_no_group_is_large_enough_so_the_round_is_void_at_once(play: Play) -> None:
    first, second, *others = play.manifest.clients
    for client in (first, second):
        play.receive(client, transcript=OTHER_TRANSCRIPT)
    for client in others:
        play.receive(client)
    play.expect(State.VOIDING)
    assert CancelTimer("deadline") in play.effects
    assert "client-1, client-2 delivered after other sums than the others" in play.data.reason
    assert "2 clients are too few" in play.data.reason
    assert {type(order) for _, order in play.orders()} == {VoidPhase}


def test_at_the_deadline_the_reason_tells_who_is_late_from_who_disagrees(play: Play) -> None:
    first, second, third, _ = play.manifest.clients
    play.receive(first, transcript=OTHER_TRANSCRIPT)
    for client in (second, third):
        play.receive(client)
    play.feed(DeadlinePassed(at_s=9.0))
    play.expect(State.VOIDING)
    assert play.data.reason == (
        "client-4 did not deliver, client-1 delivered after other sums than the others, and 2 clients are too few"
    )


def cohort(*organisations: str) -> tuple[CohortMember, ...]:
    return tuple(
        CohortMember(name=PartyId(f"client-{number}"), organisation=PartyId(organisation))
        for number, organisation in enumerate(organisations, 1)
    )


@pytest.mark.parametrize("other", DIFFERENT[1:])
def test_the_largest_group_is_counted_in_organisations(other: Said) -> None:
    """Four clients of two organisations lose against three clients of three."""
    manifest = make_manifest(
        clients=7, cohort=cohort("a", "a", "a", "b", "b", "c", "d"), min_clients=3, parameters=100
    )
    play = Play(manifest)
    many, diverse = manifest.clients[:4], manifest.clients[4:]
    for client in many:
        play.receive(client)
    for client in diverse:
        play.expect(State.COLLECTING)
        play.receive(client, **other)
    play.expect(State.RELEASING)
    assert play.data.members == frozenset(diverse)


def test_enough_clients_of_too_few_organisations_are_too_few() -> None:
    manifest = make_manifest(clients=5, cohort=cohort("a", "a", "a", "b", "c"), min_clients=3)
    play = Play(manifest)
    for client in manifest.clients[:4]:
        play.receive(client)
    play.feed(DeadlinePassed(at_s=9.0))
    play.expect(State.VOIDING)


def test_receipts_for_a_stranger_never_make_a_member(play: Play) -> None:
    play.receive(PartyId("stranger"), set_id=SETS[9])
    for client in play.manifest.clients[:3]:
        play.receive(client)
    play.feed(DeadlinePassed(at_s=9.0))
    assert play.data.members == frozenset(play.manifest.clients[:3])


def test_a_spoilt_set_is_remembered_with_its_reason(play: Play) -> None:
    client, server = play.manifest.clients[0], play.manifest.aggregators[0]
    play.feed(
        SetSpoilt(
            at_s=2.0, phase="signs", aggregator=server, client=client, reason=RejectReason.RESIDUE_OUT_OF_RANGE
        )
    )
    play.expect(State.COLLECTING)
    assert "residue-out-of-range" in play.data.record.spoilt[client]


# Releasing and applying ---------------------------------------------------------------------------------


def test_a_round_is_released_when_every_sum_is_out_and_every_client_has_applied_it(play: Play) -> None:
    play.receive_all()
    play.release(play.manifest.aggregators[0])
    play.expect(State.RELEASING)
    play.release(play.manifest.aggregators[1])
    play.expect(State.APPLYING)
    for client in play.manifest.clients:
        play.expect(State.APPLYING)
        play.apply(client)
    play.expect(State.RELEASED)
    assert play.verdict() == RoundEnded(
        at_s=5.0,
        number=1,
        verdict=RoundVerdict.RELEASED,
        began_at_s=play.data.began_at_s,
        present=frozenset(play.manifest.clients),
        payload_bits=sum(row.payload_bits for _, row in play.data.traffic),
        wire_bytes=sum(row.wire_bytes for _, row in play.data.traffic),
    )
    assert play.verdict().payload_bits > 4 * 30, "the aggregators' traffic is in it too"


def test_a_release_is_recorded_once_all_sums_are_out_with_members_and_transcript(play: Play) -> None:
    odd, *members = play.manifest.clients
    play.receive(odd, transcript=OTHER_TRANSCRIPT)
    for client in reversed(members):
        play.receive(client)
    first, last = play.manifest.aggregators
    play.release(first)
    assert not play.recorded()
    play.release(last)
    assert play.recorded() == [("released", {"phase": "signs", "members": members, "transcript": TRANSCRIPT})]
    assert isinstance(play.effects[-1], Record), "nothing that may fail comes after it"
    for client in play.manifest.clients:
        play.apply(client)
        assert not play.recorded()


def test_who_was_left_out_is_waited_for_too(play: Play) -> None:
    for client in play.manifest.clients[:3]:
        play.receive(client)
    play.feed(DeadlinePassed(at_s=9.0))
    play.release_all()
    for client in play.manifest.clients[:3]:
        play.apply(client)
    play.expect(State.APPLYING)
    play.apply(play.manifest.clients[3])
    play.expect(State.RELEASED)


def test_a_client_that_hears_the_sums_before_we_hear_of_them_is_counted(play: Play) -> None:
    play.receive_all()
    play.release(play.manifest.aggregators[0])
    for client in play.manifest.clients:
        play.apply(client)
        play.expect(State.RELEASING)
    play.release(play.manifest.aggregators[1])
    play.expect(State.RELEASED)
    assert play.verdict().verdict is RoundVerdict.RELEASED


def test_repeated_reports_are_counted_once(play: Play) -> None:
    play.receive_all()
    first, client = play.manifest.aggregators[0], play.manifest.clients[0]
    play.release(first)
    play.apply(client)
    before = play.data
    play.release(first)
    play.apply(client)
    assert play.data == before
    play.expect(State.RELEASING)
    play.release(play.manifest.aggregators[1])
    before = play.data
    play.apply(client)
    play.release(first)
    assert play.data == before


def test_late_receipts_and_deadlines_change_nothing_once_closed(play: Play) -> None:
    play.receive_all()
    before = play.data
    play.receive(play.manifest.clients[0], set_id=SETS[9])
    play.feed(DeadlinePassed(at_s=9.0))
    assert (play.state, play.data, play.effects) == (State.RELEASING, before, ())


def test_the_round_counts_when_a_client_never_acknowledges(play: Play) -> None:
    play.receive_all()
    play.release_all()
    assert any(isinstance(effect, SetTimer) for effect in play.effects)
    play.apply(play.manifest.clients[0])
    play.feed(DeadlinePassed(at_s=99.0))
    play.expect(State.RELEASED)
    assert play.verdict().verdict is RoundVerdict.RELEASED


def test_a_release_over_other_members_contradicts(play: Play) -> None:
    play.receive_all()
    play.release(play.manifest.aggregators[0], members=frozenset(play.manifest.clients[:3]))
    play.expect(State.CONTRADICTED)
    assert play.verdict().verdict is RoundVerdict.CONTRADICTED
    assert "other members" in play.verdict().reason


def test_a_void_where_a_release_was_ordered_contradicts(play: Play) -> None:
    play.receive_all()
    play.feed(VoidConfirmed(at_s=3.0, phase="signs", aggregator=play.manifest.aggregators[0]))
    play.expect(State.CONTRADICTED)


def test_a_refused_order_ends_the_run_and_says_whose_word_it_was(play: Play) -> None:
    play.receive_all()
    play.feed(
        OrderDeclined(
            at_s=3.0,
            phase="signs",
            aggregator=play.manifest.aggregators[1],
            reason=RejectReason.MISSING_RECEIPT,
        )
    )
    play.expect(State.CONTRADICTED)
    assert "aggregator-2" in play.verdict().reason
    assert "is not complete at every aggregator" in play.verdict().reason


# Void ---------------------------------------------------------------------------------------------------


def make_void(play: Play) -> None:
    play.feed(DeadlinePassed(at_s=9.0))
    play.expect(State.VOIDING)


def test_a_round_is_void_when_every_aggregator_has_confirmed(play: Play) -> None:
    make_void(play)
    first, second = play.manifest.aggregators
    for _ in range(2):  # The second time is a redelivery.
        play.feed(VoidConfirmed(at_s=10.0, phase="signs", aggregator=first))
        play.expect(State.VOIDING)
        assert not play.recorded()
    play.feed(VoidConfirmed(at_s=11.0, phase="signs", aggregator=second))
    play.expect(State.VOID)
    assert play.recorded() == [("void", {"phase": "signs"})]
    assert play.verdict().verdict is RoundVerdict.VOID
    assert "did not deliver" in play.verdict().reason


def test_what_is_late_changes_nothing_while_voiding(play: Play) -> None:
    make_void(play)
    before = play.data
    play.receive_all()
    play.feed(UpdateDropped(at_s=10.0, client=play.manifest.clients[0], traffic=()))
    play.feed(DeadlinePassed(at_s=11.0))
    assert (play.state, play.data, play.effects) == (State.VOIDING, before, ())


def test_a_release_where_a_void_was_ordered_contradicts(play: Play) -> None:
    make_void(play)
    play.release(play.manifest.aggregators[0], members=frozenset(play.manifest.clients))
    play.expect(State.CONTRADICTED)
    assert play.verdict().verdict is RoundVerdict.CONTRADICTED


def test_an_application_before_any_order_is_refused(play: Play) -> None:
    before = play.data
    with pytest.raises(PeerError) as caught:
        play.apply(play.manifest.clients[0])
    assert caught.value.reason is RejectReason.UNEXPECTED
    assert (play.state, play.data) == (State.COLLECTING, before)


@pytest.mark.parametrize("begun", [True, False])
def test_a_failure_of_our_own_ends_the_run(play: Play, *, begun: bool) -> None:
    """Also before the round could begin, when there is no record of any phase."""
    if not begun:
        play.data = CoordinatorRound(run=play.run, number=1, manifest=play.manifest)
    play.feed(Failed("Began: the broker is away"))
    play.expect(State.CONTRADICTED)
    assert "the broker is away" in play.verdict().reason


# Two phases ---------------------------------------------------------------------------------------------


def test_the_next_phase_opens_when_the_one_before_is_released(two_phases: Play) -> None:
    play = two_phases
    play.receive_all()
    play.release_all()
    play.expect(State.COLLECTING)
    assert play.data.current.name == "signs"
    assert any(isinstance(effect, SetTimer) for effect in play.effects)
    play.receive_all()
    play.expect(State.RELEASING)
    assert {effect.phase for effect in play.effects if isinstance(effect, Publish)} == {"signs"}
    play.release_all()
    play.expect(State.APPLYING)


def test_a_member_missing_in_a_later_phase_voids_the_round(two_phases: Play) -> None:
    play = two_phases
    play.receive_all()
    play.release_all()
    for client in play.manifest.clients[:3]:  # Enough for min_clients, and still not the same set.
        play.receive(client)
    play.expect(State.COLLECTING)
    play.feed(DeadlinePassed(at_s=20.0))
    play.expect(State.VOIDING)
    assert "members cannot change" in play.data.reason
    assert {effect.phase for effect in play.effects if isinstance(effect, Publish)} == {"signs"}
    for aggregator in play.manifest.aggregators:
        play.release(aggregator, phase="count")  # Delivered twice; not of this phase, so no contradiction.
        play.feed(VoidConfirmed(at_s=21.0, phase="signs", aggregator=aggregator))
    play.expect(State.VOID)


def test_a_member_that_was_told_other_sums_voids_the_round_as_soon_as_all_have_delivered(two_phases: Play) -> None:
    play = two_phases
    play.receive_all()
    play.release_all()
    misled, *others = play.manifest.clients
    play.receive(misled, transcript=OTHER_TRANSCRIPT)
    for client in others:  # Enough for min_clients, and still not the same set.
        play.expect(State.COLLECTING)
        play.receive(client)
    play.expect(State.VOIDING)
    assert play.data.reason == (
        "client-1 delivered after other sums than the others in signs, and members cannot change"
    )
    assert [to for to, _ in play.orders()] == list(play.manifest.aggregators)


def left_out(play: Play) -> PartyId:
    """Release the first phase without the last client."""
    for client in play.manifest.clients[:3]:
        play.receive(client)
    play.feed(DeadlinePassed(at_s=9.0))
    play.release_all()
    play.expect(State.COLLECTING)
    return play.manifest.clients[3]


def test_who_was_left_out_of_the_first_phase_cannot_come_back_in_the_second(two_phases: Play) -> None:
    play, outsider = two_phases, left_out(two_phases)
    play.receive(outsider)
    members = play.data.members
    play.receive_all()
    play.expect(State.RELEASING)
    assert play.data.members == members == frozenset(play.manifest.clients) - {outsider}
    for _, order in play.orders():
        assert isinstance(order, ClosePhase)
        assert outsider not in order.members
        assert outsider not in {signed.receipt.client for signed in order.receipts}


def test_receipts_and_releases_of_the_first_phase_delivered_again_change_nothing(two_phases: Play) -> None:
    play = two_phases
    play.receive_all()
    play.release_all()
    before = play.data
    play.receive(play.manifest.clients[0], phase="count")
    play.release(play.manifest.aggregators[0], phase="count")
    assert (play.state, play.data) == (State.COLLECTING, before)
    play.receive_all()
    before = play.data
    play.release(play.manifest.aggregators[0], phase="count", members=frozenset(play.manifest.clients[:3]))
    assert (play.state, play.data) == (State.RELEASING, before)


def test_receipts_that_overtake_the_last_report_on_the_phase_before_are_kept(two_phases: Play) -> None:
    play = two_phases
    play.receive_all()
    first, last = play.manifest.aggregators
    play.release(first)
    early, *others = play.manifest.clients
    play.receive(early, phase="signs")  # It has both sums, and we have not heard of the second.
    play.expect(State.RELEASING)
    play.release(last)
    play.expect(State.COLLECTING)
    assert play.data.missing() == tuple(others)
    for client in others:
        play.receive(client)
    play.expect(State.RELEASING)
    assert {order.members for _, order in play.orders() if isinstance(order, ClosePhase)} == {
        play.manifest.clients
    }


def overtake(play: Play, *odd: PartyId) -> None:
    """Receipts of the second phase come before the last report on the first; those of `odd` disagree."""
    play.receive_all()
    first, last = play.manifest.aggregators
    play.release(first)
    for client in play.manifest.clients:
        transcript = OTHER_TRANSCRIPT if client in odd else SECOND_TRANSCRIPT
        play.receive(client, phase="signs", transcript=transcript)
        play.expect(State.RELEASING)
    play.release(last)
    assert play.data.current.name == "signs"


def test_a_phase_whose_receipts_all_came_early_closes_as_it_opens(two_phases: Play) -> None:
    play = two_phases
    overtake(play)
    play.expect(State.RELEASING)
    assert {server for server, _ in play.orders()} == set(play.manifest.aggregators)
    # The record is on the phase that was released, not on the one that closes.
    members = list(play.manifest.clients)
    assert play.recorded() == [("released", {"phase": "count", "members": members, "transcript": TRANSCRIPT})]
    play.release_all()
    play.expect(State.APPLYING)
    assert play.recorded() == [
        ("released", {"phase": "signs", "members": members, "transcript": SECOND_TRANSCRIPT})
    ]


def test_a_phase_whose_early_receipts_disagree_is_void_as_it_opens(two_phases: Play) -> None:
    play = two_phases
    overtake(play, play.manifest.clients[1])
    play.expect(State.VOIDING)
    assert "client-2 delivered after other sums than the others in signs" in play.data.reason
    assert {effect.phase for effect in play.effects if isinstance(effect, Publish)} == {"signs"}
    assert [kind for kind, _ in play.recorded()] == ["released"], "the first phase is released all the same"
    for aggregator in play.manifest.aggregators:
        play.feed(VoidConfirmed(at_s=21.0, phase="signs", aggregator=aggregator))
    assert play.recorded() == [("void", {"phase": "signs"})]


def test_aggregators_that_released_different_vectors_contradict(play: Play) -> None:
    play.receive_all()
    first, last = play.manifest.aggregators
    play.release(first, vectors=SHORT)
    play.release(last, vectors=LONG)
    play.expect(State.CONTRADICTED)
    assert "other vectors" in play.verdict().reason


# A phase that only the first aggregator takes part in ---------------------------------------------------


@pytest.fixture
def first_alone() -> Play:
    return Play(make_manifest(clients=4, servers=3, min_clients=3, strategy="plaintext-union"))


def test_only_those_who_take_part_are_awaited_and_ordered(first_alone: Play) -> None:
    play = first_alone
    first, *others = play.manifest.aggregators
    play.receive(play.manifest.clients[0], aggregators=others)  # They have no say here.
    for client in play.manifest.clients:
        play.receive(client, aggregators=[first])
    play.expect(State.RELEASING)
    ((server, order),) = play.orders()
    assert isinstance(order, ClosePhase)
    assert server == first
    assert {signed.receipt.aggregator for signed in order.receipts} == {first}
    play.release(others[0])
    play.expect(State.RELEASING)
    play.release(first)
    play.expect(State.COLLECTING)
    play.receive_all()
    assert {server for server, _ in play.orders()} == set(play.manifest.aggregators)


@pytest.mark.parametrize("phase", ["union", "signs"])
def test_a_void_is_ordered_of_everybody_in_whatever_phase(first_alone: Play, phase: str) -> None:
    play = first_alone
    first = play.manifest.aggregators[0]
    if phase == "signs":
        for client in play.manifest.clients:
            play.receive(client, aggregators=[first])
        play.release(first)
    play.feed(DeadlinePassed(at_s=9.0))
    play.expect(State.VOIDING)
    assert [(server, type(order)) for server, order in play.orders()] == [
        (server, VoidPhase) for server in play.manifest.aggregators
    ]
    for server in play.manifest.aggregators:
        play.expect(State.VOIDING)
        play.feed(VoidConfirmed(at_s=9.5, phase=phase, aggregator=server))
    play.expect(State.VOID)


def test_the_data_that_a_handler_was_given_is_left_as_it_was(play: Play) -> None:
    data = play.data
    copy = replace(data)
    receipt = make_signed(play.manifest.aggregators[0], play.manifest.clients[0], SETS[0])
    step(TRANSITIONS, State.COLLECTING, data, ReceiptArrived(at_s=2.0, phase="signs", receipt=receipt))
    assert data == copy
    assert data.record.receipts == {}


# One model --------------------------------------------------------------------------------------------


def apply_all(play: Play, *models: str) -> None:
    """Every client acknowledges, and says which model it holds."""
    play.receive_all()
    play.release_all()
    for client, model in zip(play.manifest.clients, models, strict=True):
        play.expect(State.APPLYING)
        play.apply(client, model_hmac=model * 64)


@pytest.mark.parametrize(
    ("models", "reason"),
    [
        ("abbb", "client-1 holds another model than client-2, client-3, client-4"),
        ("bbba", "client-4 holds another model than client-1, client-2, client-3"),
        ("bbac", "client-3, client-4 hold another model than client-1, client-2"),
        ("abab", "the clients hold different models: client-1, client-3 against client-2, client-4"),
        ("abcd", "the clients hold different models: client-1 against client-2 against client-3 against client-4"),
    ],
)
def test_clients_that_hold_different_models_end_the_run_and_are_named(
    play: Play, models: str, reason: str
) -> None:
    apply_all(play, *models)
    play.expect(State.CONTRADICTED)
    assert play.verdict().verdict is RoundVerdict.CONTRADICTED
    assert play.verdict().reason == play.data.reason
    assert play.data.reason.replace("hold ", "holds ") == reason.replace("hold ", "holds ")
    assert play.data.ended_at_s == 5.0


def test_who_never_acknowledges_does_not_hide_that_the_others_differ(play: Play) -> None:
    play.receive_all()
    play.release_all()
    for client, model in zip(play.manifest.clients, "aab", strict=False):
        play.apply(client, model_hmac=model * 64)
    play.feed(DeadlinePassed(at_s=99.0))
    play.expect(State.CONTRADICTED)
    assert "client-3" in play.data.reason


def test_models_that_were_told_of_before_the_last_release_are_compared_too(play: Play) -> None:
    play.receive_all()
    first, second = play.manifest.aggregators
    play.release(first)
    for client, model in zip(play.manifest.clients, "aaab", strict=True):
        play.apply(client, model_hmac=model * 64)
        play.expect(State.RELEASING)
    play.release(second)
    play.expect(State.CONTRADICTED)
    assert play.verdict().verdict is RoundVerdict.CONTRADICTED


def test_a_second_report_of_a_client_does_not_change_what_it_said(play: Play) -> None:
    play.receive_all()
    play.release_all()
    play.apply(play.manifest.clients[0], model_hmac="a" * 64)
    play.apply(play.manifest.clients[0], model_hmac="b" * 64)
    for client in play.manifest.clients[1:]:
        play.apply(client, model_hmac="a" * 64)
    play.expect(State.RELEASED)


# After a restart ----------------------------------------------------------------------------------------


def test_the_deadline_that_a_phase_had_is_watched_again(two_phases: Play) -> None:
    timeout_s = two_phases.manifest.phase_timeout_s
    assert KIND.resume(two_phases.state, two_phases.data) == (
        SetTimer("deadline", 1.0 + timeout_s, DeadlinePassed),
    )
    two_phases.receive_all()
    assert KIND.resume(two_phases.state, two_phases.data) == (), "nothing but reports is waited for"
    two_phases.release_all()
    second = (SetTimer("deadline", 4.0 + timeout_s, DeadlinePassed),)
    assert KIND.resume(two_phases.state, two_phases.data) == second
    two_phases.receive_all()
    two_phases.release_all()
    two_phases.expect(State.APPLYING)
    assert KIND.resume(two_phases.state, two_phases.data) == second


def test_a_round_that_was_set_up_and_has_not_begun_has_no_deadline(play: Play) -> None:
    data = CoordinatorRound(run=play.run, number=1, manifest=play.manifest)
    assert KIND.resume(State.COLLECTING, data) == ()


# Scores -------------------------------------------------------------------------------------------------

GOOD = ScoreClaim(name="accuracy", value=0.9)
OTHER = ScoreClaim(name="accuracy", value=0.4)


@pytest.fixture
def scored() -> Play:
    """A scored round that the first three clients have applied, and the fourth has not."""
    metrics = (MetricClaim(name="accuracy"),)
    play = Play(make_manifest(clients=4, servers=2, min_clients=3, metrics=metrics))
    play.receive_all()
    play.release_all()
    for client in play.manifest.clients[:3]:
        play.apply(client)
    play.expect(State.APPLYING)
    return play


def test_scores_are_collected_from_those_who_have_applied_the_round(scored: Play) -> None:
    scored.feed(DeadlinePassed(at_s=9.0))
    scored.expect(State.COLLECTING)
    assert scored.data.current.name == "scores"
    scored.receive_all()
    scored.expect(State.RELEASING)
    assert {order.members for _, order in scored.orders() if isinstance(order, ClosePhase)} == {
        scored.manifest.clients[:3]
    }
    assert scored.data.members == frozenset(scored.manifest.clients), "the round itself was over all four"


def test_a_receipt_for_scores_may_come_before_everybody_has_applied(scored: Play) -> None:
    for client in scored.manifest.clients[:3]:
        scored.receive(client, phase="scores")
    scored.feed(DeadlinePassed(at_s=9.0))
    scored.expect(State.RELEASING)


def test_the_round_is_over_when_all_who_applied_it_have_reported_the_scores(scored: Play) -> None:
    scored.feed(DeadlinePassed(at_s=9.0))
    scored.receive_all()
    first, *others = scored.manifest.clients[:3]
    scored.report(first, GOOD)  # It had the sums before we heard of the last one.
    scored.release_all()
    for client in others:
        scored.expect(State.REPORTING)
        scored.report(client, GOOD)
    scored.expect(State.RELEASED)
    end = scored.verdict()
    assert (end.metrics, end.score_members) == ({"accuracy": 0.9}, frozenset(scored.manifest.clients[:3]))


def test_what_enough_report_alike_stands_and_who_differs_is_counted(scored: Play) -> None:
    scored.apply(scored.manifest.clients[3])
    scored.receive_all()
    scored.release_all()
    *honest, odd = scored.manifest.clients
    scored.report(odd, OTHER)
    for client in honest:
        scored.report(client, GOOD)
    scored.expect(State.RELEASED)
    assert scored.verdict().metrics == {"accuracy": 0.9}
    refused = [effect for effect in scored.effects if isinstance(effect, CountRefusal)]
    assert [(each.reason, each.kind, each.sender) for each in refused] == [
        (RejectReason.CONTRADICTION, RoundScored.kind, odd)
    ]


def test_without_enough_who_report_alike_there_is_no_score(scored: Play) -> None:
    scored.feed(DeadlinePassed(at_s=9.0))
    scored.receive_all()
    scored.release_all()
    first, second, _ = scored.manifest.clients[:3]
    scored.report(first, GOOD)
    scored.report(second, GOOD)
    scored.feed(DeadlinePassed(at_s=19.0))
    scored.expect(State.RELEASED)
    assert scored.verdict().metrics == {}


def test_scores_that_are_not_delivered_void_nothing_but_themselves(scored: Play) -> None:
    scored.feed(DeadlinePassed(at_s=9.0))
    scored.receive(scored.manifest.clients[0])
    scored.feed(DeadlinePassed(at_s=19.0))
    scored.expect(State.VOIDING)
    for aggregator in scored.manifest.aggregators:
        scored.feed(VoidConfirmed(at_s=20.0, phase="scores", aggregator=aggregator))
    scored.expect(State.RELEASED)
    end = scored.verdict()
    assert (end.verdict, end.metrics, end.reason) == (RoundVerdict.RELEASED, {}, "")


def test_later_scores_close_over_the_first_members_or_not_at_all(scored: Play) -> None:
    scored.data = replace(scored.data, score_members=frozenset(scored.manifest.clients[:3]))
    scored.apply(scored.manifest.clients[3])
    scored.expect(State.COLLECTING)
    assert scored.data.awaited == frozenset(scored.manifest.clients[:3]), "the fourth is not asked"
    scored.receive_all()
    scored.expect(State.RELEASING)


def test_scores_are_void_at_once_if_one_of_their_members_has_not_applied_the_round(scored: Play) -> None:
    scored.data = replace(scored.data, score_members=frozenset(scored.manifest.clients[1:]))
    scored.feed(DeadlinePassed(at_s=9.0))
    scored.expect(State.VOIDING)
