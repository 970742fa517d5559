"""A phase at an aggregator: one set a client, receipts for what is whole, one release over checked members."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypedDict

import pytest

from hubbub.errors import Code, PeerError, RejectReason
from hubbub.ids import PartyId, Role, SetId
from hubbub.machine.effects import CancelTimer, CountRefusal, Failed, Publish, Record, SetTimer, Tell
from hubbub.messages.manifest import CohortMember
from hubbub.messages.rounds import PartialChunk, PhaseReleased, PhaseVoided, VoidNotice, VoidPhase
from hubbub.messages.runs import PartyFailed
from hubbub.messages.shares import (
    MAX_RESENDS,
    DenseShareChunk,
    Receipt,
    ReceivedSet,
    ResendSet,
    SetRefused,
    ShareChunk,
    ShareSeed,
    Traffic,
    declare,
)
from hubbub.protocol.layout import Vector
from hubbub_aggregator.events import (
    AnswerOverdue,
    AskDue,
    ChunkBroken,
    ChunkChecked,
    PartialArrived,
    PhaseEnded,
    ReceiptsDue,
    SetDamaged,
    SumSent,
    VoidOrdered,
)
from hubbub_aggregator.phases.accumulation import (
    KIND,
    PARTIAL,
    CheckChunk,
    DropSet,
    NoteDamage,
    RecordSet,
    RecordVerdict,
    SpoolChunk,
    State,
    SumAndRelease,
)
from support.accumulation_play import AT_S, CHUNKS, LONG, OTHER_TRANSCRIPT, SHORT, Play, set_of
from support.builders import TRANSCRIPT, aggregator_names, make_manifest, name_sets

WHY = "7 is no residue mod 7"
OTHER_SET = SetId("f" * 32)
OTHERWISE = name_sets({PartyId("client-1"): OTHER_SET})
ME, SECOND, THIRD = aggregator_names(3)


@pytest.fixture
def play() -> Play:
    return Play()


@pytest.fixture
def full(play: Play) -> Play:
    """Everybody's set is complete."""
    return play.deliver(*play.manifest.clients)


def begin_compact(combiner: PartyId = ME) -> Play:
    return Play(make_manifest(clients=4, servers=3, min_clients=3, wire="compact"), combiner=combiner)


@pytest.fixture
def combining() -> Play:
    """Everybody's set is complete at the combiner."""
    play = begin_compact()
    return play.deliver(*play.manifest.clients)


def break_chunk(
    play: Play, client: PartyId, index: int, *, asked: int = 0, reason: RejectReason = RejectReason.BROKEN_SEAL
) -> None:
    play.feed(ChunkBroken(client=client, index=index, reason=reason, explanation=WHY, asked=asked))


def journalled(play: Play) -> tuple[object, ...]:
    """The first effects of an order that is obeyed."""
    members = play.manifest.clients
    ended = PhaseEnded(round=1, phase="signs", members=frozenset(members))
    recorded = Record("released", {"members": list(members), "transcript": TRANSCRIPT})
    return RecordVerdict(members), recorded, Tell(play.run, ended)


# Collecting ---------------------------------------------------------------------------------------------


def test_a_set_is_spooled_checked_and_earns_a_receipt_once_every_chunk_was_opened(play: Play) -> None:
    client, begun = play.manifest.clients[0], play.data
    play.chunk(client, 1)
    spooled, check = play.effects
    assert spooled == SpoolChunk(client, set_of(client), 1)
    assert check == CheckChunk(client, play.data.sets[client], 1)
    before = play.data
    play.chunk(client, 1)
    play.expect(State.COLLECTING)
    assert (play.data, before.wire_bytes) == (before, {"signs": 10}), "a duplicate is not counted"
    play.chunk(client, 0)
    assert not play.given()
    play.check(client, 1)
    assert not play.effects
    play.check(client, 0)
    waits = SetTimer("receipts", AT_S + 1.0, ReceiptsDue)
    assert play.effects == (RecordSet(client, set_of(client)), waits), "the journal does not wait"
    play.feed(ReceiptsDue(at_s=AT_S + 1.0))
    receipt = Receipt(
        aggregator=ME,
        sets=(ReceivedSet(client=client, set_id=set_of(client)),),
        vectors=declare(SHORT),
        transcript=TRANSCRIPT,
    )
    assert play.given() == [receipt]
    assert not begun.sets, "data is never changed in place"


def test_receipts_leave_at_once_when_no_other_set_is_awaited(play: Play) -> None:
    *others, last = play.manifest.clients
    play.deliver(*others[::-1])
    assert not play.given()
    play.deliver(last)
    assert play.effects[0] == RecordSet(last, set_of(last)), "first the journal"
    assert CancelTimer("receipts") in play.effects
    assert play.given() == [play.receipt(ME, *play.manifest.clients)], "one for all, in the manifest's order"
    play.ignores(ReceiptsDue(at_s=AT_S + 1.0))
    assert play.resumed() == []


def test_a_set_gets_one_receipt_and_sets_that_differ_share_none(play: Play) -> None:
    first, odd, long, last = play.manifest.clients
    play.deliver(first)
    play.feed(ReceiptsDue(at_s=AT_S + 1.0))
    assert play.given() == [play.receipt(ME, first)]
    play.deliver(odd, transcript=OTHER_TRANSCRIPT)
    assert not play.given()
    play.deliver(long, vectors=LONG)
    play.deliver(last)
    assert play.given() == [play.receipt(ME, odd), play.receipt(ME, long), play.receipt(ME, last)]


def test_a_set_that_is_refused_or_belongs_to_no_member_is_not_waited_for() -> None:
    manifest = make_manifest(clients=4, servers=3, min_clients=2, phase_timeout_s=4.0)
    left_out, spoilt, *good = manifest.clients
    play = Play(manifest, frozenset([spoilt, *good])).deliver(*good)
    assert play.resumed() == [SetTimer("receipts", AT_S + 0.4, ReceiptsDue)], "a tenth of the phase, at most"
    play.chunk(spoilt, 0)
    break_chunk(play, spoilt, 0)
    assert play.given() == [play.receipt(ME, *good)]
    play.deliver(left_out)
    assert play.given() == [play.receipt(ME, left_out)], "late, and nobody else is awaited"


@pytest.mark.parametrize("seeded", [True, False])
def test_what_was_opened_when_it_came_is_not_checked_again(*, seeded: bool) -> None:
    play = begin_compact()
    client = play.manifest.clients[0]
    if not seeded:
        play.chunk(client, 1, checked=True)
        assert play.effects == (SpoolChunk(client, set_of(client), 1),)
    play.chunk(client, 0, seeded=seeded, checked=True)
    kinds = [RecordSet, SetTimer] if seeded else [SpoolChunk, RecordSet, SetTimer]
    assert [type(effect) for effect in play.effects] == kinds, "a seed is kept in the event alone"
    assert play.data.sets[client].complete
    assert play.data.sets[client].seed == (b"sealed" if seeded else b"")
    assert [type(effect) for effect in play.resumed()] == [SetTimer]
    before = play.data
    play.chunk(client, 0, seeded=seeded)
    break_chunk(play, client, 0)
    play.expect(State.COLLECTING)
    assert play.data == before, "a broken one after a good one spoils nothing"


class Declared(TypedDict, total=False):
    """What the chunks of one set have in common."""

    set_id: SetId
    vectors: tuple[Vector, ...]
    weight: int
    transcript: str
    seeded: bool


@pytest.mark.parametrize(
    "other",
    [
        Declared(set_id=OTHER_SET),
        Declared(vectors=LONG),
        Declared(weight=8),
        Declared(transcript=OTHER_TRANSCRIPT),
        Declared(seeded=True),
    ],
    ids=lambda other: next(iter(other)),
)
@pytest.mark.parametrize("spoilt", [False, True])
def test_a_second_set_is_refused(play: Play, other: Declared, *, spoilt: bool) -> None:
    client = play.manifest.clients[0]
    play.chunk(client, 0)
    if spoilt:
        break_chunk(play, client, 0)
    before = play.data
    with pytest.raises(PeerError) as caught:
        play.chunk(client, 1, **other)
    assert caught.value.reason is RejectReason.SECOND_SET
    assert play.data is before


@pytest.mark.parametrize("reason", [RejectReason.RESIDUE_OUT_OF_RANGE, RejectReason.BROKEN_SEAL])
def test_a_spoilt_set_earns_no_receipt_and_does_not_harm_the_others(play: Play, reason: RejectReason) -> None:
    spoilt, *others = play.manifest.clients
    play.chunk(spoilt, 0)
    break_chunk(play, spoilt, 0, reason=reason)
    assert play.said() == [SetRefused(client=spoilt, set_id=set_of(spoilt), reason=reason)]
    assert play.effects[1:] == (CountRefusal(reason, ShareChunk.kind, spoilt, WHY),)
    play.chunk(spoilt, 1)
    play.expect(State.COLLECTING)
    play.check(spoilt, 1)
    play.expect(State.COLLECTING)
    break_chunk(play, spoilt, 1)
    play.expect(State.COLLECTING)
    play.deliver(*others)
    play.order(play.manifest.clients)
    play.expect_refusal(RejectReason.MISSING_RECEIPT)
    play.order(others)
    play.at(State.SUMMING)


@pytest.mark.parametrize(("seeded", "kind"), [(True, ShareSeed.kind), (False, DenseShareChunk.kind)])
def test_a_broken_set_is_counted_as_the_messages_that_it_came_in(seeded: bool, kind: str) -> None:  # noqa: FBT001
    play = begin_compact()
    client = play.manifest.clients[0]
    play.chunk(client, 0, seeded=seeded)
    assert play.resumed() == [CheckChunk(client, play.data.sets[client], 0)]
    break_chunk(play, client, 0)
    assert CountRefusal(RejectReason.BROKEN_SEAL, kind, client, WHY) in play.effects


# Orders -------------------------------------------------------------------------------------------------


def test_the_journal_entry_comes_first_and_names_the_members_in_one_order(full: Play) -> None:
    members = full.manifest.clients
    full.order(members[::-1])
    full.expect(State.SUMMING, *journalled(full), SumAndRelease(members))


Order = tuple[Sequence[PartyId], Sequence[Receipt]]


def last_receipt(**changed: object) -> Callable[[Play], Order]:
    def make(play: Play) -> Order:
        *rest, last = play.receipts(play.manifest.clients)
        return play.manifest.clients, [*rest, last.model_copy(update=changed)]

    return make


def name(members: Callable[[Sequence[PartyId]], Sequence[PartyId]]) -> Callable[[Play], Order]:
    return lambda play: (members(play.manifest.clients), play.receipts(members(play.manifest.clients)))


def one_receipt_too_many(play: Play) -> Order:
    receipts = play.receipts(play.manifest.clients)
    return play.manifest.clients, [*receipts, receipts[0].model_copy(update={"sets": OTHERWISE})]


def for_all(change: Callable[[Play, list[Receipt]], Sequence[Receipt]]) -> Callable[[Play], Order]:
    """Every aggregator's one receipt for all sets, changed."""

    def make(play: Play) -> Order:
        clients = play.manifest.clients
        return clients, change(play, [play.receipt(server, *clients) for server in play.manifest.aggregators])

    return make


def name_another_set(receipt: Receipt) -> Receipt:
    """The same receipt, with another set of its first client."""
    return receipt.model_copy(update={"sets": (*OTHERWISE, *receipt.sets[1:])})


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        pytest.param(wrong, reason, id=title)
        for title, wrong, reason in (
            ("stranger", name(lambda all_: [*all_[:3], PartyId("client-9")]), RejectReason.NOT_IN_COHORT),
            ("twice", name(lambda all_: [*all_, all_[0]]), RejectReason.NOT_IN_COHORT),
            ("too-few", name(lambda all_: all_[:2]), RejectReason.TOO_FEW_MEMBERS),
            (
                "receipt-missing",
                lambda play: (play.manifest.clients, play.receipts(play.manifest.clients)[:-1]),
                RejectReason.MISSING_RECEIPT,
            ),
            (
                "other-set",
                last_receipt(sets=name_sets({PartyId("client-4"): OTHER_SET})),
                RejectReason.MISSING_RECEIPT,
            ),
            ("other-vectors", last_receipt(vectors=declare(LONG)), RejectReason.MISSING_RECEIPT),
            ("other-transcript", last_receipt(transcript=OTHER_TRANSCRIPT), RejectReason.MISSING_RECEIPT),
            ("foreign", last_receipt(aggregator=PartyId("aggregator-9")), RejectReason.MISSING_RECEIPT),
            ("one-too-many", one_receipt_too_many, RejectReason.MISSING_RECEIPT),
            (
                "one-of-all-missing",
                for_all(lambda _, receipts: [*receipts[:-1], receipts[0]]),
                RejectReason.MISSING_RECEIPT,
            ),
            (
                "other-set-of-one",
                for_all(lambda _, receipts: [*receipts[:-1], name_another_set(receipts[-1])]),
                RejectReason.MISSING_RECEIPT,
            ),
            (
                "other-set-of-one-at-all",
                for_all(lambda _, receipts: [name_another_set(each) for each in receipts]),
                RejectReason.MISSING_RECEIPT,
            ),
            (
                "two-sets-of-one",
                for_all(lambda _, receipts: [*receipts, name_another_set(receipts[-1])]),
                RejectReason.MISSING_RECEIPT,
            ),
            (
                "a-member-in-none",
                for_all(
                    lambda play, _: [
                        play.receipt(each, *play.manifest.clients[1:]) for each in (ME, SECOND, THIRD)
                    ]
                ),
                RejectReason.MISSING_RECEIPT,
            ),
        )
    ],
)
def test_a_wrong_order_is_refused_and_a_right_one_still_obeyed(
    full: Play, wrong: Callable[[Play], Order], reason: RejectReason
) -> None:
    before = full.data
    full.order(*wrong(full))
    full.expect_refusal(reason)
    assert (full.state, full.data) == (State.COLLECTING, before)
    full.order(full.manifest.clients)
    full.at(State.SUMMING)


def test_an_order_is_obeyed_however_its_receipts_name_the_sets(full: Play) -> None:
    """Also if they name clients that are no members, in whatever sets, or if one is shown twice."""
    first, *members = full.manifest.clients
    several = [full.receipt(server, first, *members[:-1]) for server in (ME, SECOND)]
    others = [full.receipt(server, members[-1]) for server in (ME, SECOND)]
    full.order(
        members, [name_another_set(several[0]), several[1], *others, *others, full.receipt(THIRD, *members)]
    )
    full.at(State.SUMMING)


@pytest.mark.parametrize(
    ("vectors", "transcript", "reason"),
    [
        ((), TRANSCRIPT, RejectReason.MISSING_RECEIPT),
        (LONG, TRANSCRIPT, RejectReason.WRONG_LENGTH),
        (SHORT, OTHER_TRANSCRIPT, RejectReason.DIFFERENT_TRANSCRIPT),
    ],
)
def test_a_set_that_is_not_whole_or_not_like_the_others_is_never_added_to_them(
    play: Play, vectors: tuple[Vector, ...], transcript: str, reason: RejectReason
) -> None:
    *others, odd = play.manifest.clients
    play.deliver(*others)
    if vectors:
        play.deliver(odd, vectors=vectors, transcript=transcript)
    else:
        play.chunk(odd, 0)
    play.order(play.manifest.clients)
    play.expect_refusal(reason)
    play.at(State.COLLECTING)
    play.order(others)
    play.at(State.SUMMING)


def test_the_members_common_transcript_is_not_for_this_aggregator_to_judge(play: Play) -> None:
    play.deliver(*play.manifest.clients, transcript=OTHER_TRANSCRIPT)
    play.order(play.manifest.clients)
    play.at(State.SUMMING)
    (record,) = [effect for effect in play.effects if isinstance(effect, Record)]
    assert record.fields["transcript"] == OTHER_TRANSCRIPT


def test_min_clients_counts_organisations_not_clients() -> None:
    cohort = tuple(
        CohortMember(name=PartyId(f"client-{number}"), organisation=PartyId(organisation))
        for number, organisation in enumerate(("a", "a", "a", "b", "c"), 1)
    )
    play = Play(make_manifest(clients=5, servers=3, cohort=cohort, min_clients=3))
    play.deliver(*play.manifest.clients)
    play.order(play.manifest.clients[:4])
    play.expect_refusal(RejectReason.TOO_FEW_MEMBERS)
    play.order(play.manifest.clients[2:])
    play.at(State.SUMMING)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        (range(1, 5), None),
        (range(2, 5), None),
        (range(3, 5), RejectReason.TOO_FEW_MEMBERS),
        (range(3), RejectReason.DIFFERENT_MEMBERS),
    ],
)
def test_a_phase_with_a_threshold_closes_over_those_that_are_left_if_they_are_enough(
    members: range, reason: RejectReason | None
) -> None:
    """Three of five; the first client was no member of the phase before."""
    manifest = make_manifest(clients=5, servers=3, min_clients=2, strategy="bonawitz")
    play = Play(manifest, frozenset(manifest.clients[1:])).deliver(*manifest.clients)

    play.order([manifest.clients[place] for place in members])

    if reason is None:
        play.at(State.SUMMING)
    else:
        play.expect_refusal(reason)


@pytest.mark.parametrize("size", [3, 4, 5])
def test_a_later_phase_keeps_the_first_phases_members(size: int) -> None:
    manifest = make_manifest(clients=5, servers=3, min_clients=3)
    play = Play(manifest, frozenset(manifest.clients[1:])).deliver(*manifest.clients)
    play.order(manifest.clients[:size])
    play.expect_refusal(RejectReason.DIFFERENT_MEMBERS)
    play.order(manifest.clients[1:])
    play.at(State.SUMMING)


@pytest.mark.parametrize("state", [State.SUMMING, State.AWAITING])
def test_once_the_members_are_frozen_only_the_same_order_is_taken_and_late_chunks_change_nothing(
    state: State,
) -> None:
    play = begin_compact(ME if state is State.AWAITING else SECOND)
    members, late = play.manifest.clients[:3], play.manifest.clients[3]
    play.deliver(*members)
    play.chunk(late, 0)
    play.order(members)
    play.ignores(ReceiptsDue(at_s=AT_S + 1.0))
    assert play.resumed() == ([SumAndRelease(members)] if state is State.SUMMING else []), "no receipt is due"
    before = play.data
    play.order(members[::-1])
    play.expect(state)
    play.chunk(late, 0, set_id=OTHER_SET)
    play.expect(state)
    play.ignores(ChunkChecked(client=late, index=0, at_s=AT_S))
    break_chunk(play, late, 1)
    play.expect(state)
    play.order(play.manifest.clients)
    play.expect_refusal(RejectReason.ALREADY_ENDED)
    play.feed(VoidOrdered())
    play.expect_refusal(RejectReason.ALREADY_ENDED, VoidPhase.kind)
    assert (play.state, play.data) == (state, before)
    play.feed(Failed("the disk is full", Code.DISK_FAILED))
    assert (play.state, play.said()) == (State.FAILED, [PartyFailed(code=Code.DISK_FAILED)])


def test_the_release_is_reported_with_what_was_counted(full: Play) -> None:
    full.order(full.manifest.clients)
    assert full.resumed() == [SumAndRelease(full.manifest.clients)]
    sent = Traffic(counts_as="signs", direction="down", payload_bits=1200)
    full.feed(SumSent(vectors=LONG, traffic=(sent,)))  # It may look otherwise than the shares.
    full.at(State.RELEASED)
    arrived = Traffic(counts_as="signs", direction="up", wire_bytes=10 * CHUNKS * 4)
    body = PhaseReleased(members=full.manifest.clients, vectors=declare(LONG), traffic=(arrived, sent))
    assert full.said() == [body]


def test_a_void_is_journalled_before_anybody_hears_of_it(full: Play) -> None:
    full.feed(VoidOrdered())
    ended = PhaseEnded(round=1, phase="signs", members=frozenset())
    full.expect(
        State.VOID,
        RecordVerdict(),
        *(Publish(client, Role.CLIENT, VoidNotice()) for client in full.manifest.clients),
        Publish(full.manifest.coordinator, Role.COORDINATOR, PhaseVoided()),
        Record("void"),
        Tell(full.run, ended),
    )


def test_a_disk_that_fails_us_is_told_to_the_coordinator(play: Play) -> None:
    play.feed(Failed("CheckChunk: the disk is full", Code.DISK_FAILED))
    assert (play.state, play.said()) == (State.FAILED, [PartyFailed(code=Code.DISK_FAILED)])


def test_a_restart_checks_the_chunks_that_nobody_has_looked_at_and_gives_receipts_in_time(play: Play) -> None:
    assert play.resumed() == []
    done, half, spoilt, _ = play.manifest.clients
    play.deliver(done)
    for client in (half, spoilt):
        for index in reversed(range(CHUNKS)):
            play.chunk(client, index)
    play.check(half, 0)
    break_chunk(play, spoilt, 0)
    due = SetTimer("receipts", AT_S + 1.0, ReceiptsDue)
    assert play.resumed() == [CheckChunk(half, play.data.sets[half], 1), due]


# Combining ----------------------------------------------------------------------------------------------


def partial_of(play: Play, aggregator: PartyId, index: int = 0) -> PartialArrived:
    return PartialArrived(
        aggregator=aggregator,
        members=play.manifest.clients,
        vectors=SHORT,
        transcript=TRANSCRIPT,
        signature="5a" * 64,
        index=index,
        chunks=CHUNKS,
        wire_bytes={"signs": 7},
    )


def send_sum(play: Play, aggregator: PartyId) -> None:
    for index in reversed(range(CHUNKS)):
        play.feed(partial_of(play, aggregator, index))


def test_an_aggregator_that_does_not_combine_waits_for_nobody() -> None:
    play = begin_compact(SECOND)
    play.deliver(*play.manifest.clients)
    play.order(play.manifest.clients)
    play.expect(State.SUMMING, *journalled(play), SumAndRelease(play.manifest.clients))


def test_the_combiner_journals_at_its_order_and_adds_when_the_last_sum_is_here(combining: Play) -> None:
    play = combining
    play.order(play.manifest.clients)
    play.expect(State.AWAITING, *journalled(play))
    assert play.data.missing == (SECOND, THIRD)
    send_sum(play, THIRD)
    play.feed(partial_of(play, SECOND, 1))
    play.expect(State.AWAITING, SpoolChunk(SECOND, PARTIAL, 1))
    before = play.data
    play.feed(partial_of(play, SECOND, 1))
    play.expect(State.AWAITING)
    assert (play.data, before.across) == (before, {"signs": 21}), "a duplicate is not counted"
    assert play.resumed() == [], "a restart goes on waiting"
    play.feed(partial_of(play, SECOND, 0))
    play.expect(State.SUMMING, SpoolChunk(SECOND, PARTIAL, 0), SumAndRelease(play.manifest.clients))
    before = play.data
    play.feed(partial_of(play, SECOND))
    play.feed(replace(partial_of(play, THIRD), members=play.manifest.clients[:3]))
    play.expect(State.SUMMING)
    assert play.data is before, "a late sum changes nothing"
    assert play.resumed() == [SumAndRelease(play.manifest.clients)]
    sent = Traffic(counts_as="signs", direction="down", payload_bits=1200)
    play.feed(SumSent(vectors=SHORT, traffic=(sent,)))
    up = Traffic(counts_as="signs", direction="up", wire_bytes=10 * CHUNKS * 4)
    across = Traffic(counts_as="signs", direction="across", wire_bytes=7 * CHUNKS * 2)
    body = PhaseReleased(members=play.manifest.clients, vectors=declare(SHORT), traffic=(up, across, sent))
    play.expect(State.RELEASED, Publish(play.manifest.coordinator, Role.COORDINATOR, body))
    for state in (State.RELEASED, State.VOID, State.FAILED):
        assert KIND.resume(state, play.data) == ()


@pytest.mark.parametrize("whole", [True, False])
def test_sums_before_our_own_order_are_kept_and_release_nothing(*, whole: bool) -> None:
    play = begin_compact()
    client = play.manifest.clients[0]
    play.chunk(client, 0)
    send_sum(play, THIRD)
    assert play.effects == (SpoolChunk(THIRD, PARTIAL, 0),)
    play.feed(partial_of(play, SECOND, 1))
    assert play.resumed() == [CheckChunk(client, play.data.sets[client], 0)]
    if whole:
        play.feed(partial_of(play, SECOND, 0))
    play.deliver(*play.manifest.clients)
    before = play.data
    play.order(play.manifest.clients[:2])
    play.expect_refusal(RejectReason.TOO_FEW_MEMBERS)
    assert (play.state, play.data) == (State.COLLECTING, before)
    play.feed(VoidOrdered())
    play.expect_refusal(RejectReason.CONTRADICTION, VoidPhase.kind)
    assert (play.state, play.data) == (State.COLLECTING, before), "another has released the phase"
    play.order(play.manifest.clients)
    sums = (SumAndRelease(play.manifest.clients),) if whole else ()
    play.expect(State.SUMMING if whole else State.AWAITING, *journalled(play), *sums)


OTHERS: dict[str, Callable[[PartialArrived], PartialArrived]] = {
    "members": lambda event: replace(event, members=event.members[:3]),
    "order-of-members": lambda event: replace(event, members=event.members[::-1]),
    "vectors": lambda event: replace(event, vectors=LONG),
    "transcript": lambda event: replace(event, transcript=OTHER_TRANSCRIPT),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("ordered", [False, True])
def test_a_sum_of_something_else_ends_the_run_and_a_second_sum_is_refused(
    combining: Play, other: str, *, ordered: bool
) -> None:
    play = combining
    if ordered:
        play.order(play.manifest.clients)
    play.feed(partial_of(play, SECOND, 0))
    before = play.state, play.data
    with pytest.raises(PeerError, match="aggregator-2 has released another sum") as caught:
        play.feed(OTHERS[other](partial_of(play, SECOND, 1)))
    assert caught.value.reason is RejectReason.CONTRADICTION
    assert (play.state, play.data) == before

    play.feed(OTHERS[other](partial_of(play, THIRD)))
    if not ordered:
        play.at(State.COLLECTING)
        play.order(play.manifest.clients)
        assert play.effects[:3] == journalled(play), "our own verdict is final all the same"
    play.at(State.FAILED)
    assert play.said() == [PartyFailed(code=Code.PROTOCOL_CONTRADICTION)]
    (counted,) = [each for each in play.effects if isinstance(each, CountRefusal)]
    assert (counted.reason, counted.kind) == (RejectReason.CONTRADICTION, PartialChunk.kind)
    assert counted.sender == THIRD
    assert counted.explanation.startswith(f"{THIRD} released a sum of other members")
    assert not [each for each in play.effects if isinstance(each, SumAndRelease)]


def test_a_void_that_comes_before_any_sum_is_obeyed(combining: Play) -> None:
    combining.feed(VoidOrdered())
    combining.at(State.VOID)


# What the disk has damaged ------------------------------------------------------------------------------


def damage(play: Play, client: PartyId, *, asked: int = 0) -> None:
    play.feed(SetDamaged(client=client, index=0, asked=asked, path="0.slot", what="is gone", at_s=100.0))


def request_to(client: PartyId) -> Publish:
    return Publish(client, Role.CLIENT, ResendSet(set_id=set_of(client)))


def expect_given_up(play: Play) -> None:
    play.at(State.FAILED)
    assert play.said() == [PartyFailed(code=Code.DISK_FAILED)]


def test_damage_before_the_receipt_drops_the_set_and_asks_for_it_and_old_checks_do_not_count(play: Play) -> None:
    client, *others = play.manifest.clients
    play.deliver(*others)
    play.feed(ReceiptsDue(at_s=AT_S + 1.0))
    for index in range(CHUNKS):
        play.chunk(client, index)
    damage(play, client)
    play.expect(State.COLLECTING, DropSet(client), NoteDamage(client, "0.slot is gone"), request_to(client))
    assert play.resumed() == [SetTimer("ask", 0.0, AskDue)]
    play.feed(AskDue(at_s=200.0))
    play.expect(State.COLLECTING, request_to(client))
    before = play.data.wire_bytes
    play.ignores(ChunkChecked(client=client, index=1, at_s=AT_S))
    break_chunk(play, client, 1)
    play.expect(State.COLLECTING)
    damage(play, client)
    play.expect(State.COLLECTING)
    for index in range(CHUNKS):
        play.chunk(client, index)
        assert play.effects[0] == SpoolChunk(client, set_of(client), index)
        play.check(client, index, asked=1)
        assert len(play.given()) == (index == CHUNKS - 1), "only when all chunks are on disk again"
    assert play.data.wire_bytes == before, "what comes again is not counted"


def test_damage_after_the_order_waits_for_the_set_and_then_adds_over_the_same_members(full: Play) -> None:
    members, left_out = full.manifest.clients[:3], full.manifest.clients[3]
    client = members[1]
    full.order(members)
    frozen = full.data
    damage(full, left_out)
    full.expect(State.SUMMING)
    damage(full, client)
    full.at(State.AWAITING)
    overdue = SetTimer("answer", 100.0 + full.manifest.phase_timeout_s, AnswerOverdue)
    assert full.effects[2:] == (request_to(client), overdue)
    for nobody in (members[0], left_out):
        full.chunk(nobody, 0)
        full.expect(State.AWAITING)
        break_chunk(full, nobody, 0)
        full.expect(State.AWAITING)
    full.feed(VoidOrdered())
    full.expect_refusal(RejectReason.ALREADY_ENDED, VoidPhase.kind)
    full.order(full.manifest.clients)
    full.expect_refusal(RejectReason.ALREADY_ENDED)

    full.chunk(client, 0)
    check = CheckChunk(client, full.data.sets[client], 0)
    assert full.data.sets[client].asked == 1
    assert full.resumed() == [check, SetTimer("ask", 0.0, AskDue), overdue]
    full.feed(AskDue(at_s=200.0))
    full.expect(State.AWAITING, request_to(client))
    full.chunk(client, 1)
    full.check(client, 0)
    full.check(client, 0, asked=1)
    full.expect(State.AWAITING)
    full.check(client, 1, asked=1)
    full.expect(State.SUMMING, CancelTimer("answer"), SumAndRelease(members))
    assert replace(full.data, sets=frozen.sets, answer_by_s=0.0) == frozen, "only set and deadline have changed"
    full.feed(AnswerOverdue(at_s=700.0))
    full.expect(State.SUMMING)


def test_a_set_that_is_damaged_each_time_is_given_up(full: Play) -> None:
    client = full.manifest.clients[0]
    full.order(full.manifest.clients)
    for asked in range(MAX_RESENDS):
        damage(full, client, asked=asked)
        full.at(State.AWAITING)
    damage(full, client, asked=MAX_RESENDS)
    expect_given_up(full)


@pytest.mark.parametrize("silent", [True, False])
def test_a_set_that_does_not_come_again_or_comes_broken_ends_the_run(full: Play, *, silent: bool) -> None:
    client = full.manifest.clients[0]
    full.order(full.manifest.clients)
    damage(full, client)
    if silent:
        full.feed(AnswerOverdue(at_s=700.0))
    else:
        full.chunk(client, 0)
        break_chunk(full, client, 0, asked=1)
        assert full.effects[-1] == CountRefusal(RejectReason.BROKEN_SEAL, ShareChunk.kind, client, WHY)
    expect_given_up(full)


def test_the_combiner_waits_for_the_damaged_set_beside_the_sums(combining: Play) -> None:
    client = combining.manifest.clients[0]
    combining.order(combining.manifest.clients)
    damage(combining, client)
    for server in (SECOND, THIRD):
        send_sum(combining, server)
        combining.expect(State.AWAITING, SpoolChunk(server, PARTIAL, 0))
    for index in range(CHUNKS):
        combining.at(State.AWAITING)
        combining.chunk(client, index, checked=True)
    spooled = SpoolChunk(client, set_of(client), CHUNKS - 1)
    combining.expect(State.SUMMING, spooled, CancelTimer("answer"), SumAndRelease(combining.manifest.clients))


# A phase that needs two of three aggregators ------------------------------------------------------------


@pytest.mark.parametrize("givers", ["12", "23", "13", "123", "1", "19", ""])
def test_an_order_shows_as_many_receipts_as_the_phase_needs(givers: str) -> None:
    """Of two aggregators, which need not be ourselves; and of nobody else."""
    play = Play(make_manifest(clients=4, servers=3, min_clients=3, strategy="eastly-tss"))
    members = play.deliver(*play.manifest.clients).manifest.clients
    receipts = [play.receipt(PartyId(f"aggregator-{each}"), *members) for each in givers]

    play.order(members, receipts)

    if len(givers) > 1 and "9" not in givers:
        play.at(State.SUMMING)
    else:
        play.expect_refusal(RejectReason.MISSING_RECEIPT)
