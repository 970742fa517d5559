"""The coordinator's round by scenario: what it closes over, what voids, what contradicts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

import pytest

from hubbub.errors import RejectReason
from hubbub.ids import PartyId, Role, SetId
from hubbub.machine.effects import CancelTimer, CountRefusal, Failed, Key, Publish, Record, SetTimer, Tell
from hubbub.machine.table import step
from hubbub.messages.manifest import CohortMember, Manifest, MetricClaim
from hubbub.messages.rounds import ClosePhase, RoundApplied, RoundOpened, RoundScored, ScoreClaim, VoidPhase
from hubbub.messages.shares import Traffic, VectorClaim
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
from support.builders import MODEL_HMAC, SIGNATURE, TRANSCRIPT, make_manifest
from support.coordinator_play import make_round, make_signed, sign_sets
from support.machine_play import MachinePlay
from support.two_phases import NAME, TwoPhases

SETS = {number: SetId(f"{number:032x}") for number in range(10)}
SHORT = (VectorClaim(name="signs", length=7, modulus=7),)
LONG = (VectorClaim(name="signs", length=8, modulus=7),)
OTHER_TRANSCRIPT = "7b" * 32
SECOND_TRANSCRIPT = "7c" * 32


class Play(MachinePlay[State, CoordinatorRound]):
    """A round and everything it asked for, fed event by event."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.run = Key("run", manifest.run_id)
        super().__init__(KIND, make_round(manifest, is_scored=manifest.is_scored), manifest.coordinator)
        self.feed(Began(at_s=1.0))

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

    def receive_all(self, clients: Sequence[PartyId] | None = None) -> None:
        for client in self.data.awaited if clients is None else clients:
            self.receive(client)

    def pass_deadline(self, at_s: float = 9.0) -> None:
        self.feed(DeadlinePassed(at_s=at_s))

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

    def confirm_void(self, *aggregators: PartyId) -> None:
        for aggregator in aggregators or self.manifest.aggregators:
            self.feed(VoidConfirmed(at_s=10.0, phase=self.data.current.name, aggregator=aggregator))

    def apply(self, client: PartyId, *, model_hmac: str = MODEL_HMAC) -> None:
        report = REPORT.model_copy(update={"model_hmac": model_hmac})
        self.feed(UpdateApplied(at_s=5.0, client=client, report=report))

    def report(self, client: PartyId, *scores: ScoreClaim) -> None:
        traffic = (Traffic(counts_as="scores", direction="up", payload_bits=64),)
        self.feed(ScoresReported(at_s=6.0, client=client, scores=scores, traffic=traffic))

    def closed_over(self) -> Sequence[PartyId]:
        """The members of the order to close, which every aggregator of the phase got with all their receipts."""
        servers, bodies = zip(*self.orders(), strict=True)
        assert servers == self.data.aggregators
        (order,) = set(bodies)
        assert isinstance(order, ClosePhase)
        assert len(set(order.receipts)) == len(order.receipts), "each of them once"
        shown = {(client, each.receipt.aggregator) for each in order.receipts for client in each.receipt.set_of}
        assert shown >= {(client, server) for client in order.members for server in servers}
        assert all(each.receipt.set_of.keys() & set(order.members) for each in order.receipts), "none in vain"
        assert {signed.signature for signed in order.receipts} == {SIGNATURE}, "as they were signed"
        assert CancelTimer("deadline") in self.effects or self.data.phase
        return order.members

    def expect_voiding(self, reason: str) -> None:
        """Every aggregator is told, in whatever phase it takes part."""
        self.at(State.VOIDING)
        assert reason in self.data.reason
        assert [(to, type(body)) for to, body in self.orders()] == [
            (server, VoidPhase) for server in self.manifest.aggregators
        ]
        assert {effect.phase for effect in self.of(Publish)} == {self.data.current.name}

    def orders(self) -> list[tuple[PartyId, ClosePhase | VoidPhase]]:
        return [(each.to, each.body) for each in self.of(Publish) if isinstance(each.body, ClosePhase | VoidPhase)]

    def recorded(self) -> list[tuple[str, Mapping[str, object]]]:
        return [(effect.kind, effect.fields) for effect in self.of(Record)]

    def verdict(self) -> RoundEnded:
        (told,) = self.of(Tell)
        assert told.to == self.run
        assert isinstance(told.event, RoundEnded)
        return told.event

    def expect_contradiction(self, reason: str) -> None:
        self.at(State.CONTRADICTED)
        assert self.verdict().verdict is RoundVerdict.CONTRADICTED
        assert reason in self.verdict().reason


REPORT = RoundApplied(
    model_hmac=MODEL_HMAC, traffic=(Traffic(counts_as="signs", direction="up", payload_bits=30),)
)


@pytest.fixture
def play() -> Play:
    return Play(make_manifest(clients=4, servers=2, min_clients=3))


@pytest.fixture
def two_phases(monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setitem(STRATEGIES, NAME, Verified(TwoPhases()))
    return Play(make_manifest(clients=4, servers=2, min_clients=3, strategy=NAME))


def test_a_round_begins_with_a_deadline_and_an_order_that_names_the_last_round_of_each_client() -> None:
    manifest = make_manifest(phase_timeout_s=60.0)
    first, *others = manifest.clients
    data = make_round(manifest, 8, attended={first: 7})
    assert KIND.resume(State.COLLECTING, data) == (), "it has not begun"
    timer, *orders = step(TRANSITIONS, State.COLLECTING, data, Began(at_s=1.0)).effects
    assert timer == SetTimer("deadline", 61.0, DeadlinePassed)
    assert orders == [
        Publish(first, Role.CLIENT, RoundOpened(attended=7)),
        *(Publish(client, Role.CLIENT, RoundOpened()) for client in others),
    ]


def test_a_client_took_part_if_it_delivered_to_every_aggregator_or_reported(play: Play) -> None:
    """A void round counts, and one aggregator's word alone does not."""
    delivered, at_one, away, late = play.manifest.clients
    play.receive(delivered)
    play.receive(at_one, aggregators=play.manifest.aggregators[:1])
    assert play.data.present == {delivered}
    play.pass_deadline()
    play.confirm_void()
    assert (play.verdict().verdict, play.verdict().present) == (RoundVerdict.VOID, frozenset({delivered}))
    others = Play(play.manifest)
    others.receive_all([delivered, at_one, away])
    others.pass_deadline()
    others.release_all()
    others.apply(late)
    assert others.data.present == set(play.manifest.clients), "who only applied has come as far"


# Closing ------------------------------------------------------------------------------------------------


def test_all_receipts_close_the_phase_over_everybody_and_nothing_late_changes_that(play: Play) -> None:
    begun, first = play.data, play.manifest.clients[0]
    receipt = make_signed(play.manifest.aggregators[0], first, SETS[9], SHORT)
    play.ignores(ReceiptArrived(at_s=2.0, phase="union", receipt=receipt))
    for client in play.manifest.clients:
        play.at(State.COLLECTING)
        play.receive(client)
        play.receive(first)
    assert play.data.members == set(play.manifest.clients)
    play.at(State.RELEASING)
    assert not begun.record.held, "data is never changed in place"
    play.ignores(ReceiptArrived(at_s=2.0, phase="signs", receipt=receipt))
    play.ignores(DeadlinePassed(at_s=9.0))


SAID = "delivered after other sums than the others"


@pytest.mark.parametrize(
    ("organisations", "delivered", "in_time", "expected"),
    [
        ("abcd", "aaa/", False, "123"),
        ("abcd", "aa--", False, "client-3, client-4 did not deliver, and 2 clients are too few"),
        ("abcd", "bbaa", True, f"client-1, client-2 {SAID}, and 2 clients are too few"),
        ("abcd", "baa-", False, f"client-4 did not deliver, client-1 {SAID}, and 2 clients are too few"),
        # Four clients of two organisations lose against three clients of three.
        ("aaabbcd", "aaaabbb", True, "567"),
        ("aaabbcd", "aaaallc", True, f"client-5, client-6, client-7 {SAID}, and 4 clients are too few"),
        ("aaabbcd", "aaaalll", True, "567"),
        ("aaabc", "aaaa-", False, "client-5 did not deliver, and 4 clients are too few"),
    ],
)
def test_a_phase_closes_over_the_largest_group_by_organisations_or_is_void(
    organisations: str, delivered: str, expected: str, *, in_time: bool
) -> None:
    """A letter for each client: sets of one letter agree, "/" is at one aggregator alone, "-" is nothing."""
    names = [PartyId(f"client-{number}") for number in range(1, len(delivered) + 1)]
    cohort = tuple(
        CohortMember(name=name, organisation=PartyId(owner))
        for name, owner in zip(names, organisations, strict=True)
    )
    play = Play(make_manifest(clients=len(names), servers=2, cohort=cohort, min_clients=3, parameters=100))
    play.receive(PartyId("stranger"), set_id=SETS[9])
    for name, letter in zip(names, delivered, strict=True):
        play.at(State.COLLECTING)
        servers = play.manifest.aggregators[: {"-": 0, "/": 1}.get(letter, 2)]
        transcript = TRANSCRIPT if letter in "al/" else f"7{letter}" * 32
        play.receive(name, aggregators=servers, transcript=transcript, vectors=LONG if letter == "l" else SHORT)
    if not in_time:
        play.pass_deadline()
    if expected.isdigit():
        play.at(State.RELEASING)
        assert [*play.closed_over()] == [PartyId(f"client-{number}") for number in expected]
        assert play.data.members == set(play.closed_over())
    else:
        play.expect_voiding(expected)
        assert play.data.reason == expected
        assert CancelTimer("deadline") in play.effects


class Said(TypedDict, total=False):
    """Fields of a receipt."""

    set_id: SetId
    vectors: tuple[VectorClaim, ...]
    transcript: str


@pytest.mark.parametrize(
    "other",
    [Said(set_id=SETS[9]), Said(vectors=LONG), Said(transcript=OTHER_TRANSCRIPT)],
    ids=lambda other: next(iter(other)),
)
@pytest.mark.parametrize("at", ["one", "all"])
def test_once_all_have_delivered_the_phase_closes_without_those_at_odds(play: Play, other: Said, at: str) -> None:
    """A client has one set, so there is nothing to wait for."""
    odd, *good = play.manifest.clients
    if at == "all" and "set_id" in other:
        return  # One set everywhere is no other set.
    first, second = play.manifest.aggregators
    play.receive(odd, aggregators=[first], **(other if at == "all" else Said()))
    play.receive(odd, aggregators=[second], **other)
    for client in good:
        play.at(State.COLLECTING)
        play.receive(client)
    play.at(State.RELEASING)
    assert play.data.members == frozenset(good)
    assert play.closed_over() == tuple(good)
    (refusal,) = play.of(CountRefusal)
    reason = RejectReason.SECOND_SET if "set_id" in other else RejectReason.DIFFERENT_TRANSCRIPT
    assert (refusal.reason, refusal.sender) == (reason, odd)


def test_an_order_shows_a_receipt_for_several_sets_once(play: Play) -> None:
    """Also one that names a client whose set another aggregator lacks."""
    absent, *good = play.manifest.clients
    first, second = play.manifest.aggregators
    sets = {client: SETS[number] for number, client in enumerate(play.manifest.clients)}
    for server, named in ((first, [absent, *good]), (second, good[:1]), (second, good[1:])):
        signed = sign_sets(server, {client: sets[client] for client in named}, SHORT)
        play.feed(ReceiptArrived(at_s=2.0, phase="signs", receipt=signed))
        play.feed(ReceiptArrived(at_s=2.0, phase="signs", receipt=signed))
    assert play.data.missing() == (absent,)
    play.pass_deadline()
    assert play.closed_over() == tuple(good)
    (order,) = {body for _, body in play.orders()}
    assert isinstance(order, ClosePhase)
    assert [[*each.receipt.set_of] for each in order.receipts] == [[absent, *good], good[:1], good[1:]]


@pytest.mark.parametrize("early", [False, True])
def test_a_second_receipt_of_an_aggregator_for_a_clients_set_is_refused(two_phases: Play, *, early: bool) -> None:
    """An order that shows both would be refused, whoever its members are."""
    play, (one, two, *_) = two_phases, two_phases.manifest.clients
    server = play.manifest.aggregators[0]
    if early:
        play.receive_all()
    phase = play.data.phases[early].name
    play.feed(ReceiptArrived(at_s=2.0, phase=phase, receipt=make_signed(server, one, SETS[0], SHORT)))
    second = sign_sets(server, {one: SETS[9], two: SETS[1]}, SHORT)
    play.refuses(ReceiptArrived(at_s=2.0, phase=phase, receipt=second), RejectReason.CONTRADICTION, match=one)


def test_a_spoilt_set_is_remembered_with_its_reason(play: Play) -> None:
    client, server = play.manifest.clients[0], play.manifest.aggregators[0]
    reason = RejectReason.RESIDUE_OUT_OF_RANGE
    play.feed(SetSpoilt(at_s=2.0, phase="signs", aggregator=server, client=client, reason=reason))
    play.at(State.COLLECTING)
    assert "residue-out-of-range" in play.data.record.spoilt[client]


# Releasing and applying ---------------------------------------------------------------------------------


def test_a_round_is_released_when_every_sum_is_out_and_every_client_has_applied_it(play: Play) -> None:
    """Those who were left out are waited for too."""
    *members, odd = play.manifest.clients
    play.receive(odd, transcript=OTHER_TRANSCRIPT)
    play.receive_all(members[::-1])
    first, last = play.manifest.aggregators
    play.release(first)
    play.at(State.RELEASING)
    assert not play.recorded()
    play.release(last)
    assert play.recorded() == [("released", {"phase": "signs", "members": members, "transcript": TRANSCRIPT})]
    assert isinstance(play.effects[-1], Record), "nothing that may fail comes after it"
    for client in play.manifest.clients:
        play.at(State.APPLYING)
        play.apply(client)
        assert not play.recorded()
    play.at(State.RELEASED)
    assert play.verdict() == RoundEnded(
        at_s=5.0,
        number=1,
        verdict=RoundVerdict.RELEASED,
        began_at_s=play.data.began_at_s,
        present=frozenset(play.manifest.clients),
        union_size=play.data.manifest.parameters,  # no-union's V is all, whatever is released.
        payload_bits=4 * 30 + 2 * 10,
        wire_bytes=sum(row.wire_bytes for _, row in play.data.traffic),
    )


@pytest.mark.parametrize("models", ["aaaa", "aaab"])
def test_a_client_that_hears_the_sums_before_we_hear_of_them_is_counted_and_compared(
    play: Play, models: str
) -> None:
    play.receive_all()
    first, last = play.manifest.aggregators
    play.release(first)
    for client, model in zip(play.manifest.clients, models, strict=True):
        play.apply(client, model_hmac=model * 64)
        play.at(State.RELEASING)
    play.release(last)
    play.at(State.RELEASED if models == "aaaa" else State.CONTRADICTED)
    assert play.verdict().verdict.value == play.state.value


def test_repeated_reports_are_counted_once_and_change_nothing_that_was_said(play: Play) -> None:
    play.receive_all()
    first, client = play.manifest.aggregators[0], play.manifest.clients[0]
    play.release(first)
    play.apply(client)
    for last in (None, play.manifest.aggregators[1]):
        if last:
            play.release(last)
        before = play.data
        play.release(first)
        play.apply(client, model_hmac="b" * 64)
        assert play.data == before
    for other in play.manifest.clients[1:]:
        play.apply(other)
    play.at(State.RELEASED)


def test_the_round_counts_when_a_client_never_acknowledges(play: Play) -> None:
    play.receive_all()
    play.release_all()
    assert play.of(SetTimer)
    play.apply(play.manifest.clients[0])
    play.pass_deadline()
    play.at(State.RELEASED)
    assert play.verdict().verdict is RoundVerdict.RELEASED


@pytest.mark.parametrize(
    ("models", "reason"),
    [
        ("abbb", "client-1 holds another model than client-2, client-3, client-4"),
        ("bbba", "client-4 holds another model than client-1, client-2, client-3"),
        ("bbac", "client-3, client-4 hold another model than client-1, client-2"),
        ("abab", "the clients hold different models: client-1, client-3 against client-2, client-4"),
        ("abcd", "the clients hold different models: client-1 against client-2 against client-3 against client-4"),
        ("aab", "client-3 holds another model than client-1, client-2"),
    ],
)
def test_clients_that_hold_different_models_end_the_run_and_are_named(
    play: Play, models: str, reason: str
) -> None:
    """A client that never acknowledges does not hide that the others differ."""
    play.receive_all()
    play.release_all()
    for client, model in zip(play.manifest.clients, models, strict=False):
        play.at(State.APPLYING)
        play.apply(client, model_hmac=model * 64)
    if len(models) < len(play.manifest.clients):
        play.pass_deadline(5.0)
    play.expect_contradiction(reason)
    assert play.data.reason == reason
    assert play.data.ended_at_s == 5.0


def test_an_aggregator_that_contradicts_its_order_or_another_ends_the_run(play: Play) -> None:
    first, second = play.manifest.aggregators
    begun = play.state, play.data
    play.receive_all()
    closed = play.state, play.data
    declined = OrderDeclined(at_s=3.0, phase="signs", aggregator=second, reason=RejectReason.MISSING_RECEIPT)

    play.release(first, members=frozenset(play.manifest.clients[:3]))
    play.expect_contradiction("aggregator-1 released a sum over other members")
    play.state, play.data = closed
    play.confirm_void(first)
    play.expect_contradiction("aggregator-1 ended signs as void, against its order")
    play.state, play.data = closed
    play.feed(declined)
    play.expect_contradiction("aggregator-2")
    assert "is not complete at every aggregator" in play.data.reason
    play.state, play.data = closed
    play.release(first, vectors=SHORT)
    play.release(second, vectors=LONG)
    play.expect_contradiction("aggregator-2 released other vectors")
    refusals = play.of(CountRefusal)
    assert [(each.reason, each.sender) for each in refusals] == [(RejectReason.CONTRADICTION, second)]

    play.state, play.data = begun
    play.pass_deadline()
    play.release(first, members=frozenset(play.manifest.clients))
    play.expect_contradiction("aggregator-1 released signs, which was ordered void")


# Void ---------------------------------------------------------------------------------------------------


def test_a_round_is_void_when_every_aggregator_has_confirmed(play: Play) -> None:
    first, second = play.manifest.aggregators
    play.pass_deadline()
    receipt = make_signed(first, play.manifest.clients[0], SETS[0], SHORT)
    play.ignores(ReceiptArrived(at_s=10.0, phase="signs", receipt=receipt))
    play.ignores(UpdateDropped(at_s=10.0, client=play.manifest.clients[0], traffic=()))
    play.ignores(DeadlinePassed(at_s=11.0))
    for _ in range(2):  # The second time is a redelivery.
        play.confirm_void(first)
        play.at(State.VOIDING)
        assert not play.recorded()
    play.confirm_void(second)
    play.at(State.VOID)
    assert play.recorded() == [("void", {"phase": "signs"})]
    assert play.verdict().verdict is RoundVerdict.VOID
    assert "did not deliver" in play.verdict().reason


def test_an_application_before_any_order_is_refused(play: Play) -> None:
    play.refuses(UpdateApplied(at_s=5.0, client=play.manifest.clients[0], report=REPORT), RejectReason.UNEXPECTED)


@pytest.mark.parametrize("begun", [True, False])
def test_a_failure_of_our_own_ends_the_run(play: Play, *, begun: bool) -> None:
    """Also before the round could begin, when there is no record of any phase."""
    if not begun:
        play.data = make_round(play.manifest)
    play.feed(Failed("Began: the broker is away"))
    play.expect_contradiction("the broker is away")


# Two phases ---------------------------------------------------------------------------------------------


@pytest.fixture
def second(two_phases: Play) -> Play:
    """The first of two phases is released over everybody."""
    two_phases.receive_all()
    two_phases.release_all()
    two_phases.at(State.COLLECTING)
    assert two_phases.data.current.name == "signs"
    return two_phases


def test_the_next_phase_has_a_deadline_of_its_own_which_a_restart_sets_again(two_phases: Play) -> None:
    play, timeout_s = two_phases, two_phases.manifest.phase_timeout_s
    assert play.resumed() == [SetTimer("deadline", 1.0 + timeout_s, DeadlinePassed)]
    play.receive_all()
    assert play.resumed() == [], "nothing but reports is waited for"
    play.release_all()
    deadline = SetTimer("deadline", 4.0 + timeout_s, DeadlinePassed)
    assert deadline in play.effects
    assert play.resumed() == [deadline]
    play.receive_all()
    assert {effect.phase for effect in play.of(Publish)} == {"signs"}
    play.release_all()
    play.at(State.APPLYING)
    assert play.resumed() == [deadline]


def test_a_member_missing_in_a_later_phase_voids_the_round(second: Play) -> None:
    second.receive_all(second.manifest.clients[:3])  # Enough for min_clients, and still not the same set.
    second.at(State.COLLECTING)
    second.pass_deadline()
    second.expect_voiding("members cannot change")
    second.release(second.manifest.aggregators[0], phase="count")  # Delivered twice, and not of this phase.
    second.confirm_void()
    second.at(State.VOID)


def test_a_member_that_was_told_other_sums_voids_the_round_as_soon_as_all_have_delivered(second: Play) -> None:
    misled, *others = second.manifest.clients
    second.receive(misled, transcript=OTHER_TRANSCRIPT)
    second.receive_all(others)
    second.expect_voiding(
        "client-1 delivered after other sums than the others in signs, and members cannot change"
    )


def test_a_client_that_was_left_out_of_the_first_phase_cannot_come_back_in_the_second(two_phases: Play) -> None:
    play, (*members, outsider) = two_phases, two_phases.manifest.clients
    play.receive_all(members)
    play.pass_deadline()
    play.release_all()
    play.receive(outsider)
    play.receive_all()
    play.at(State.RELEASING)
    assert play.data.members == frozenset(members)
    assert play.closed_over() == tuple(members)


def test_receipts_and_releases_of_the_first_phase_delivered_again_change_nothing(second: Play) -> None:
    before = second.data
    second.receive(second.manifest.clients[0], phase="count")
    second.release(second.manifest.aggregators[0], phase="count")
    assert (second.state, second.data) == (State.COLLECTING, before)
    second.receive_all()
    before = second.data
    second.release(second.manifest.aggregators[0], phase="count", members=frozenset(second.manifest.clients[:3]))
    assert (second.state, second.data) == (State.RELEASING, before)


def overtake(play: Play, clients: Sequence[PartyId], *odd: PartyId) -> None:
    """Receipts of the second phase come before the last report on the first; those of `odd` disagree."""
    play.receive_all()
    first, last = play.manifest.aggregators
    play.release(first)
    for client in clients:
        transcript = OTHER_TRANSCRIPT if client in odd else SECOND_TRANSCRIPT
        play.receive(client, phase="signs", transcript=transcript)
        play.at(State.RELEASING)
    play.release(last)
    assert play.data.current.name == "signs"


def test_receipts_that_overtake_the_last_report_on_the_phase_before_are_kept(two_phases: Play) -> None:
    play, (early, *others) = two_phases, two_phases.manifest.clients
    overtake(play, [early])
    play.at(State.COLLECTING)
    assert play.data.missing() == tuple(others)
    for client in others:
        play.receive(client, transcript=SECOND_TRANSCRIPT)
    play.at(State.RELEASING)
    assert play.closed_over() == play.manifest.clients


def test_a_phase_whose_receipts_all_came_early_closes_as_it_opens(two_phases: Play) -> None:
    play, members = two_phases, list(two_phases.manifest.clients)
    overtake(play, members)
    play.at(State.RELEASING)
    assert play.closed_over() == play.manifest.clients
    # The record is on the phase that was released, not on the one that closes.
    assert play.recorded() == [("released", {"phase": "count", "members": members, "transcript": TRANSCRIPT})]
    play.release_all()
    play.at(State.APPLYING)
    assert play.recorded() == [
        ("released", {"phase": "signs", "members": members, "transcript": SECOND_TRANSCRIPT})
    ]


def test_a_phase_whose_early_receipts_disagree_is_void_as_it_opens(two_phases: Play) -> None:
    play, members = two_phases, two_phases.manifest.clients
    overtake(play, members, members[1])
    play.expect_voiding("client-2 delivered after other sums than the others in signs")
    assert [kind for kind, _ in play.recorded()] == ["released"], "the first phase is released all the same"
    play.confirm_void()
    assert play.recorded() == [("void", {"phase": "signs"})]


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
    play.at(State.RELEASING)
    assert play.closed_over() == play.manifest.clients
    play.release(others[0])
    play.at(State.RELEASING)
    play.release(first)
    play.at(State.COLLECTING)
    play.receive_all()
    assert {server for server, _ in play.orders()} == set(play.manifest.aggregators)


@pytest.mark.parametrize("phase", ["union", "signs"])
def test_a_void_is_ordered_of_everybody_in_whatever_phase(first_alone: Play, phase: str) -> None:
    play, first = first_alone, first_alone.manifest.aggregators[0]
    if phase == "signs":
        for client in play.manifest.clients:
            play.receive(client, aggregators=[first])
        play.release(first)
    play.pass_deadline()
    play.expect_voiding("did not deliver")
    play.confirm_void(*play.manifest.aggregators[:-1])
    play.at(State.VOIDING)
    play.confirm_void(play.manifest.aggregators[-1])
    play.at(State.VOID)


# Scores -------------------------------------------------------------------------------------------------

GOOD = ScoreClaim(name="accuracy", value=0.9)
OTHER = ScoreClaim(name="accuracy", value=0.4)


@pytest.fixture
def scored() -> Play:
    """A scored round that the first three clients have applied, and the fourth has not."""
    play = Play(make_manifest(clients=4, servers=2, min_clients=3, metrics=(MetricClaim(name="accuracy"),)))
    play.receive_all()
    play.release_all()
    for client in play.manifest.clients[:3]:
        play.apply(client)
    play.at(State.APPLYING)
    return play


@pytest.mark.parametrize("early", [True, False])
def test_scores_are_summed_over_those_who_applied_and_end_the_round_when_all_have_reported(
    scored: Play, *, early: bool
) -> None:
    """Receipts and reports may come before we have heard of everything that led to them."""
    members = scored.manifest.clients[:3]
    for client in members if early else ():
        scored.receive(client, phase="scores")
    scored.pass_deadline()
    if not early:
        scored.at(State.COLLECTING)
        assert scored.data.current.name == "scores"
        scored.receive_all()
    scored.at(State.RELEASING)
    assert scored.closed_over() == members
    assert [each.arrived.keys() for each in scored.data.records] == [{*scored.manifest.clients}, set()]
    assert scored.data.members == frozenset(scored.manifest.clients), "the round itself was over all four"
    first, *others = members
    scored.report(first, GOOD)
    scored.release_all()
    for client in others:
        scored.at(State.REPORTING)
        scored.report(client, GOOD)
    scored.at(State.RELEASED)
    end = scored.verdict()
    assert (end.metrics, end.score_members) == ({"accuracy": 0.9}, frozenset(members))


def test_what_enough_report_alike_stands_and_dissent_is_counted(scored: Play) -> None:
    scored.apply(scored.manifest.clients[3])
    scored.receive_all()
    scored.release_all()
    *honest, odd = scored.manifest.clients
    scored.report(odd, OTHER)
    for client in honest:
        scored.report(client, GOOD)
    scored.at(State.RELEASED)
    assert scored.verdict().metrics == {"accuracy": 0.9}
    refused = scored.of(CountRefusal)
    assert [(each.reason, each.kind, each.sender) for each in refused] == [
        (RejectReason.CONTRADICTION, RoundScored.kind, odd)
    ]


def test_a_client_whose_scores_could_not_be_added_is_not_waited_for(scored: Play) -> None:
    *members, odd = scored.manifest.clients
    scored.apply(odd)
    scored.receive(odd, transcript=OTHER_TRANSCRIPT)
    scored.receive_all(members)
    scored.release_all()
    for client in members:
        scored.at(State.REPORTING)
        scored.report(client, GOOD)
    scored.at(State.RELEASED)
    assert scored.verdict().score_members == set(members)


def test_without_enough_who_report_alike_there_is_no_score(scored: Play) -> None:
    scored.pass_deadline()
    scored.receive_all()
    scored.release_all()
    for client in scored.manifest.clients[:2]:
        scored.report(client, GOOD)
    scored.pass_deadline(19.0)
    scored.at(State.RELEASED)
    assert scored.verdict().metrics == {}


def test_scores_that_are_not_delivered_void_nothing_but_themselves(scored: Play) -> None:
    scored.pass_deadline()
    scored.receive(scored.manifest.clients[0])
    scored.pass_deadline(19.0)
    scored.at(State.VOIDING)
    scored.confirm_void()
    scored.at(State.RELEASED)
    end = scored.verdict()
    assert (end.verdict, end.metrics, end.reason) == (RoundVerdict.RELEASED, {}, "")


def test_later_scores_close_over_the_first_members_or_not_at_all(scored: Play) -> None:
    begun = scored.data
    scored.data = replace(begun, score_members=frozenset(scored.manifest.clients[:3]))
    scored.apply(scored.manifest.clients[3])
    scored.at(State.COLLECTING)
    assert scored.data.awaited == frozenset(scored.manifest.clients[:3]), "the fourth is not asked"
    scored.receive_all()
    scored.at(State.RELEASING)
    scored.state = State.APPLYING
    scored.data = replace(begun, score_members=frozenset(scored.manifest.clients[1:]))
    scored.pass_deadline()
    scored.at(State.VOIDING)  # The fourth has not applied the round.


# A phase that needs two of three aggregators ------------------------------------------------------------


@pytest.fixture
def threshold() -> Play:
    return Play(make_manifest(clients=3, servers=3, strategy="eastly-tss"))


def test_an_aggregator_without_receipts_is_not_relied_on_after_the_deadline(threshold: Play) -> None:
    first, second, away = threshold.manifest.aggregators
    for client in threshold.manifest.clients:
        threshold.receive(client, aggregators=[first, second])
    threshold.at(State.COLLECTING)

    threshold.pass_deadline()

    threshold.at(State.RELEASING)
    (order,) = {body for _, body in threshold.orders()}
    assert isinstance(order, ClosePhase)
    assert {each.receipt.aggregator for each in order.receipts} == {first, second}
    assert [to for to, _ in threshold.orders()] == [first, second, away]
    threshold.feed(OrderDeclined(at_s=4.0, phase="update", aggregator=away, reason=RejectReason.MISSING_RECEIPT))
    threshold.at(State.RELEASING)
    threshold.release(first)
    threshold.release(second)
    threshold.at(State.APPLYING)


def test_a_release_that_is_not_needed_is_waited_for_until_the_deadline(threshold: Play) -> None:
    first, _, third = threshold.manifest.aggregators
    threshold.receive_all()
    threshold.at(State.RELEASING)
    deadline = SetTimer("deadline", 2.0 + threshold.manifest.phase_timeout_s, DeadlinePassed)
    assert deadline in threshold.effects
    assert threshold.resumed() == [deadline]

    threshold.release(first)
    threshold.pass_deadline()
    threshold.at(State.RELEASING)
    threshold.release(third)

    threshold.at(State.APPLYING)
    assert threshold.data.record.ended == {first, third}


def test_two_of_three_voids_end_a_phase_that_two_release(threshold: Play) -> None:
    first, second, _ = threshold.manifest.aggregators
    threshold.pass_deadline()
    threshold.confirm_void(first)
    threshold.at(State.VOIDING)

    threshold.confirm_void(second)

    threshold.at(State.VOID)


# A phase that may lose members --------------------------------------------------------------------------


@pytest.mark.parametrize(("there", "state"), [(4, State.RELEASING), (3, State.RELEASING), (2, State.VOIDING)])
def test_a_phase_with_a_threshold_closes_over_those_that_are_left_or_is_void(there: int, state: State) -> None:
    """Three of five: the first client leaves in the first phase, others in the next."""
    play = Play(make_manifest(clients=5, servers=2, min_clients=2, strategy="bonawitz"))
    others = play.manifest.clients[1:]
    for client in others:
        play.receive(client, aggregators=play.manifest.aggregators[:1])
    play.pass_deadline()
    play.at(State.RELEASING)
    play.release(play.manifest.aggregators[0])
    play.at(State.COLLECTING)

    for client in others[:there]:
        play.receive(client, aggregators=play.manifest.aggregators[:1])
    play.pass_deadline()

    play.at(state)
    if state is State.VOIDING:
        assert play.data.reason.endswith("in share-keys, and 2 clients are too few")
    else:
        assert play.data.members == frozenset(others[:there])
