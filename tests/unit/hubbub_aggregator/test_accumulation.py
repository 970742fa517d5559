"""A phase at an aggregator: one set a client, receipts for what is whole, one release over checked members."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypedDict

import pytest

from hubbub.errors import Code, PeerError, RejectReason
from hubbub.ids import PartyId, Role, SetId
from hubbub.machine.effects import CancelTimer, CountRefusal, Effect, Failed, Publish, Record, SetTimer, Tell
from hubbub.messages.manifest import CohortMember
from hubbub.messages.rounds import PhaseReleased, PhaseVoided, VoidNotice, VoidPhase
from hubbub.messages.runs import PartyFailed
from hubbub.messages.shares import MAX_RESENDS, Receipt, ResendSet, SetRefused, ShareChunk, Traffic, declare
from hubbub.protocol.layout import Vector
from hubbub_aggregator.events import (
    AnswerOverdue,
    AskDue,
    ChunkBroken,
    ChunkChecked,
    PhaseEnded,
    SetDamaged,
    SumSent,
    VoidOrdered,
)
from hubbub_aggregator.phases.accumulation import (
    KIND,
    CheckChunk,
    DropSet,
    GiveReceipt,
    NoteDamage,
    RecordRelease,
    RecordSet,
    RecordVoid,
    SpoolChunk,
    State,
    SumAndRelease,
)
from support.accumulation_play import CHUNKS, LONG, OTHER_TRANSCRIPT, SHORT, Play, set_of
from support.builders import TRANSCRIPT, make_manifest

WHY = "7 is no residue mod 7"


@pytest.fixture
def play() -> Play:
    return Play()


@pytest.fixture
def full() -> Play:
    """Everybody's set is complete."""
    play = Play()
    for client in play.manifest.clients:
        play.deliver(client)
    return play


# Collecting ---------------------------------------------------------------------------------------------


def test_a_chunk_is_spooled_before_it_is_checked(play: Play) -> None:
    client = play.manifest.clients[0]
    play.chunk(client, 1)
    spooled, check = play.effects
    assert spooled == SpoolChunk(client, set_of(client), 1)
    assert isinstance(check, CheckChunk)
    assert (check.client, check.index, check.share_set.set_id) == (client, 1, set_of(client))


def test_a_receipt_is_given_only_for_a_set_whose_every_chunk_was_opened(play: Play) -> None:
    client = play.manifest.clients[0]
    for index in reversed(range(CHUNKS)):
        play.chunk(client, index)
        assert not play.given()
    play.feed(ChunkChecked(client=client, index=1))
    assert not play.effects
    play.feed(ChunkChecked(client=client, index=0))
    expected = Receipt(
        aggregator=play.data.me,
        client=client,
        set_id=set_of(client),
        vectors=declare(SHORT),
        transcript=TRANSCRIPT,
    )
    assert play.effects == (RecordSet(client, set_of(client)), GiveReceipt(expected)), "first the journal"


def test_a_duplicate_chunk_is_neither_spooled_nor_counted_again(play: Play) -> None:
    client = play.manifest.clients[0]
    play.chunk(client, 0)
    before = play.data
    play.chunk(client, 0)
    assert (play.data, play.effects) == (before, ())
    assert before.wire_bytes == {"signs": 10}


class Declared(TypedDict, total=False):
    """What the chunks of one set have in common."""

    set_id: SetId
    vectors: tuple[Vector, ...]
    weight: int
    transcript: str


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Declared(set_id=SetId("f" * 32)), id="another-id"),
        pytest.param(Declared(vectors=LONG), id="same-id-other-vectors"),
        pytest.param(Declared(weight=8), id="same-id-other-weight"),
        pytest.param(Declared(transcript=OTHER_TRANSCRIPT), id="same-id-other-transcript"),
    ],
)
def test_a_second_set_is_refused(play: Play, other: Declared) -> None:
    client = play.manifest.clients[0]
    play.chunk(client, 0)
    before = play.data
    with pytest.raises(PeerError) as caught:
        play.chunk(client, 1, **other)
    assert caught.value.reason is RejectReason.SECOND_SET
    assert play.data is before


def break_chunk(
    play: Play, client: PartyId, index: int, reason: RejectReason = RejectReason.RESIDUE_OUT_OF_RANGE
) -> None:
    play.feed(ChunkBroken(client=client, index=index, reason=reason, explanation=WHY))


@pytest.mark.parametrize("reason", [RejectReason.RESIDUE_OUT_OF_RANGE, RejectReason.BROKEN_SEAL])
def test_a_spoilt_set_earns_no_receipt_and_the_coordinator_is_told_once(play: Play, reason: RejectReason) -> None:
    client = play.manifest.clients[0]
    play.chunk(client, 0)
    play.chunk(client, 1)
    break_chunk(play, client, 0, reason)
    assert play.said() == [SetRefused(client=client, set_id=set_of(client), reason=reason)]
    assert play.effects[1:] == (CountRefusal(reason, ShareChunk.kind, client, WHY),)
    play.feed(ChunkChecked(client=client, index=1))
    assert not play.effects
    break_chunk(play, client, 1, reason)
    assert not play.effects
    play.expect(State.COLLECTING)


def test_more_chunks_of_a_spoilt_set_are_not_even_spooled(play: Play) -> None:
    client = play.manifest.clients[0]
    play.chunk(client, 0)
    break_chunk(play, client, 0)
    play.chunk(client, 1)
    assert not play.effects


def test_a_spoilt_set_cannot_be_replaced_by_a_second_one(play: Play) -> None:
    client = play.manifest.clients[0]
    play.chunk(client, 0)
    break_chunk(play, client, 0)
    with pytest.raises(PeerError) as caught:
        play.chunk(client, 0, set_id=SetId("f" * 32))
    assert caught.value.reason is RejectReason.SECOND_SET


def test_a_spoilt_set_does_not_harm_the_others(play: Play) -> None:
    spoilt, *others = play.manifest.clients
    play.chunk(spoilt, 0)
    break_chunk(play, spoilt, 0)
    for client in others:
        play.deliver(client)
    play.order(play.manifest.clients)
    play.expect_refusal(RejectReason.MISSING_RECEIPT)
    play.order(others)
    play.expect(State.SUMMING)


# Orders -------------------------------------------------------------------------------------------------


def test_the_journal_entry_comes_before_anything_else(full: Play) -> None:
    members = full.manifest.clients
    full.order(members)
    full.expect(State.SUMMING)
    ended = PhaseEnded(round=1, phase="signs", members=frozenset(members))
    recorded = Record("released", {"members": list(members), "transcript": TRANSCRIPT})
    assert full.effects == (RecordRelease(members), recorded, Tell(full.run, ended), SumAndRelease(members))


def test_a_member_set_is_journalled_in_one_order_however_it_was_named(full: Play) -> None:
    named = tuple(reversed(full.manifest.clients))
    full.order(named)
    assert full.effects[0] == RecordRelease(full.manifest.clients)
    full.order(named)
    assert (full.state, full.effects) == (State.SUMMING, ())


Wrong = Callable[[Play], tuple[Sequence[PartyId], Sequence[Receipt]]]


def a_stranger(play: Play) -> tuple[Sequence[PartyId], Sequence[Receipt]]:
    members = (*play.manifest.clients[:3], PartyId("client-9"))
    return members, play.receipts(members)


def a_member_twice(play: Play) -> tuple[Sequence[PartyId], Sequence[Receipt]]:
    members = (*play.manifest.clients, play.manifest.clients[0])
    return members, play.receipts(play.manifest.clients)


def too_few(play: Play) -> tuple[Sequence[PartyId], Sequence[Receipt]]:
    members = play.manifest.clients[:2]
    return members, play.receipts(members)


def a_receipt_missing(play: Play) -> tuple[Sequence[PartyId], Sequence[Receipt]]:
    return play.manifest.clients, play.receipts(play.manifest.clients)[:-1]


def a_receipt_for_another_set(play: Play) -> tuple[Sequence[PartyId], Sequence[Receipt]]:
    *rest, last = play.receipts(play.manifest.clients)
    return play.manifest.clients, [*rest, last.model_copy(update={"set_id": SetId("f" * 32)})]


def a_receipt_for_other_vectors(play: Play) -> tuple[Sequence[PartyId], Sequence[Receipt]]:
    *rest, last = play.receipts(play.manifest.clients)
    return play.manifest.clients, [*rest, last.model_copy(update={"vectors": declare(LONG)})]


def a_receipt_for_another_transcript(play: Play) -> tuple[Sequence[PartyId], Sequence[Receipt]]:
    *rest, last = play.receipts(play.manifest.clients)
    return play.manifest.clients, [*rest, last.model_copy(update={"transcript": OTHER_TRANSCRIPT})]


def a_foreign_receipt(play: Play) -> tuple[Sequence[PartyId], Sequence[Receipt]]:
    """Of somebody who is no aggregator of this run, in the place of one who is."""
    *rest, last = play.receipts(play.manifest.clients)
    return play.manifest.clients, [*rest, last.model_copy(update={"aggregator": PartyId("aggregator-9")})]


def one_receipt_too_many(play: Play) -> tuple[Sequence[PartyId], Sequence[Receipt]]:
    receipts = play.receipts(play.manifest.clients)
    other = receipts[0].model_copy(update={"set_id": SetId("f" * 32)})
    return play.manifest.clients, [*receipts, other]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (a_stranger, RejectReason.NOT_IN_COHORT),
        (a_member_twice, RejectReason.NOT_IN_COHORT),
        (too_few, RejectReason.TOO_FEW_MEMBERS),
        (a_receipt_missing, RejectReason.MISSING_RECEIPT),
        (a_receipt_for_another_set, RejectReason.MISSING_RECEIPT),
        (a_receipt_for_other_vectors, RejectReason.MISSING_RECEIPT),
        (a_receipt_for_another_transcript, RejectReason.MISSING_RECEIPT),
        (a_foreign_receipt, RejectReason.MISSING_RECEIPT),
        (one_receipt_too_many, RejectReason.MISSING_RECEIPT),
    ],
)
def test_a_wrong_order_is_refused_and_a_right_one_still_obeyed(
    full: Play, wrong: Wrong, reason: RejectReason
) -> None:
    before = full.data
    full.order(*wrong(full))
    full.expect(State.COLLECTING)
    assert full.data is before
    full.expect_refusal(reason)
    full.order(full.manifest.clients)
    full.expect(State.SUMMING)


def test_a_set_that_is_not_here_cannot_be_added_whatever_receipts_say(play: Play) -> None:
    for client in play.manifest.clients[:3]:
        play.deliver(client)
    play.chunk(play.manifest.clients[3], 0)
    play.order(play.manifest.clients)
    play.expect_refusal(RejectReason.MISSING_RECEIPT)
    play.expect(State.COLLECTING)


def test_sets_of_different_vectors_are_never_added_together(play: Play) -> None:
    for client in play.manifest.clients[:3]:
        play.deliver(client)
    play.deliver(play.manifest.clients[3], vectors=LONG)
    play.order(play.manifest.clients)
    play.expect_refusal(RejectReason.WRONG_LENGTH)
    play.order(play.manifest.clients[:3])
    play.expect(State.SUMMING)


def test_sets_after_different_sums_are_never_added_together(play: Play) -> None:
    *others, misled = play.manifest.clients
    for client in others:
        play.deliver(client)
    play.deliver(misled, transcript=OTHER_TRANSCRIPT)
    play.order(play.manifest.clients)
    play.expect(State.COLLECTING)
    play.expect_refusal(RejectReason.DIFFERENT_TRANSCRIPT)
    play.order(others)
    play.expect(State.SUMMING)


def test_which_sums_a_set_comes_after_is_not_for_this_aggregator_to_judge() -> None:
    """It cannot read a transcript: whichever the members have in common is theirs."""
    play = Play()
    for client in play.manifest.clients:
        play.deliver(client, transcript=OTHER_TRANSCRIPT)
    play.order(play.manifest.clients)
    play.expect(State.SUMMING)
    assert [effect.fields["transcript"] for effect in play.effects if isinstance(effect, Record)] == [
        OTHER_TRANSCRIPT
    ]


def test_min_clients_counts_organisations_not_clients() -> None:
    cohort = tuple(
        CohortMember(name=PartyId(f"client-{number}"), organisation=PartyId(organisation))
        for number, organisation in enumerate(("a", "a", "a", "b", "c"), 1)
    )
    play = Play(make_manifest(clients=5, servers=3, cohort=cohort, min_clients=3))
    for client in play.manifest.clients:
        play.deliver(client)
    play.order(play.manifest.clients[:4])
    play.expect_refusal(RejectReason.TOO_FEW_MEMBERS)
    play.order(play.manifest.clients[2:])
    play.expect(State.SUMMING)


@pytest.mark.parametrize("size", [3, 4])
def test_a_later_phase_keeps_the_first_phases_members(size: int) -> None:
    manifest = make_manifest(clients=5, servers=3, min_clients=3)
    required = frozenset(manifest.clients[1:])
    play = Play(manifest, required)
    for client in manifest.clients:
        play.deliver(client)
    play.order(manifest.clients[:size])
    play.expect_refusal(RejectReason.DIFFERENT_MEMBERS)
    play.order(manifest.clients[1:])
    play.expect(State.SUMMING)


# After the order ----------------------------------------------------------------------------------------


def test_the_same_order_again_changes_nothing_and_another_one_is_refused(full: Play) -> None:
    full.order(full.manifest.clients)
    before = full.data
    full.order(full.manifest.clients)
    assert (full.state, full.data, full.effects) == (State.SUMMING, before, ())
    full.order(full.manifest.clients[:3])
    full.expect_refusal(RejectReason.ALREADY_ENDED)
    assert (full.state, full.data) == (State.SUMMING, before)


def test_a_void_after_the_release_is_refused(full: Play) -> None:
    full.order(full.manifest.clients)
    full.feed(VoidOrdered())
    full.expect_refusal(RejectReason.ALREADY_ENDED, VoidPhase.kind)
    full.expect(State.SUMMING)


def test_late_chunks_change_nothing_once_the_members_are_frozen(full: Play) -> None:
    full.order(full.manifest.clients[:3])
    before = full.data
    full.chunk(full.manifest.clients[3], 0, set_id=SetId("f" * 32))
    full.feed(ChunkChecked(client=full.manifest.clients[3], index=0))
    break_chunk(full, full.manifest.clients[3], 1)
    assert (full.state, full.data, full.effects) == (State.SUMMING, before, ())


def test_the_release_is_reported_with_what_was_counted(full: Play) -> None:
    full.order(full.manifest.clients)
    sent = Traffic(counts_as="signs", direction="down", payload_bits=1200)
    full.feed(SumSent(vectors=LONG, traffic=(sent,)))
    full.expect(State.RELEASED)
    arrived = Traffic(counts_as="signs", direction="up", wire_bytes=10 * CHUNKS * 4)
    # What is released may look otherwise than what was sent.
    assert full.said() == [
        PhaseReleased(members=full.manifest.clients, vectors=declare(LONG), traffic=(arrived, sent))
    ]


def test_a_void_is_journalled_before_anybody_hears_of_it(full: Play) -> None:
    full.feed(VoidOrdered())
    full.expect(State.VOID)
    assert full.effects[0] == RecordVoid()
    told = [effect for effect in full.effects if isinstance(effect, Publish)]
    notices = [effect.to for effect in told if effect.body == VoidNotice()]
    assert notices == list(full.manifest.clients)
    assert full.said() == [PhaseVoided()]
    ended = PhaseEnded(round=1, phase="signs", members=frozenset())
    assert full.effects[-2:] == (Record("void"), Tell(full.run, ended))


@pytest.mark.parametrize("closed", [False, True])
def test_a_disk_that_fails_us_is_told_to_the_coordinator(full: Play, *, closed: bool) -> None:
    if closed:
        full.order(full.manifest.clients)
    full.feed(Failed("CheckChunk: the disk is full", Code.DISK_FAILED))
    full.expect(State.FAILED)
    assert full.said() == [PartyFailed(code=Code.DISK_FAILED)]


def test_handlers_leave_the_data_that_they_were_given(play: Play) -> None:
    data, copy = play.data, replace(play.data)
    play.deliver(play.manifest.clients[0])
    assert data == copy
    assert data.sets == {}


# After a restart ----------------------------------------------------------------------------------------


def test_chunks_that_nobody_has_looked_at_are_looked_at_again(play: Play) -> None:
    done, half, spoilt, _ = play.manifest.clients
    play.deliver(done)
    for client in (half, spoilt):
        for index in reversed(range(CHUNKS)):
            play.chunk(client, index)
    play.feed(ChunkChecked(client=half, index=0))
    play.feed(ChunkBroken(client=spoilt, index=0, reason=RejectReason.BROKEN_SEAL, explanation=WHY))
    assert KIND.resume(play.state, play.data) == (CheckChunk(half, play.data.sets[half], 1),)


def test_a_sum_that_was_not_out_is_added_and_sent_again(full: Play) -> None:
    full.order(full.manifest.clients)
    assert KIND.resume(full.state, full.data) == (SumAndRelease(full.manifest.clients),)


def test_an_empty_phase_has_nothing_to_take_up(play: Play) -> None:
    assert KIND.resume(play.state, play.data) == ()


# What the disk has damaged ------------------------------------------------------------------------------


def damage(play: Play, client: PartyId, *, asked: int = 0, at_s: float = 100.0) -> None:
    play.feed(SetDamaged(client=client, index=0, asked=asked, path="0.slot", what="is gone", at_s=at_s))


def request_to(client: PartyId) -> Publish:
    return Publish(client, Role.CLIENT, ResendSet(set_id=set_of(client)))


def done(play: Play) -> list[Effect]:
    return list(play.effects)


def test_damage_before_the_receipt_drops_the_set_and_asks_for_it_and_old_checks_do_not_count(play: Play) -> None:
    client = play.manifest.clients[0]
    for index in range(CHUNKS):
        play.chunk(client, index)
    damage(play, client)
    assert done(play) == [DropSet(client), NoteDamage(client, "0.slot is gone"), request_to(client)]
    before = play.data.wire_bytes
    play.feed(ChunkChecked(client=client, index=1))
    assert done(play) == []
    break_chunk(play, client, 1)
    assert done(play) == []
    damage(play, client)
    assert done(play) == [], "found in what is dropped already"
    for index in range(CHUNKS):
        play.chunk(client, index)
        assert play.effects[0] == SpoolChunk(client, set_of(client), index)
        play.feed(ChunkChecked(client=client, index=index, asked=1))
        assert len(play.given()) == (index == CHUNKS - 1), "only when all chunks are on disk again"
    assert play.data.wire_bytes == before, "what comes again is not counted"


def test_damage_after_the_order_waits_for_the_set_and_then_adds_over_the_same_members(full: Play) -> None:
    members = full.manifest.clients[:3]
    full.order(members)
    frozen = full.data
    damage(full, members[1])
    full.expect(State.AWAITING)
    due_s = 100.0 + full.manifest.phase_timeout_s
    assert full.effects[2:] == (request_to(members[1]), SetTimer("answer", due_s, AnswerOverdue))
    for client in (members[0], full.manifest.clients[3]):
        full.chunk(client, 0)
        assert done(full) == [], "nobody else was asked"
    for index in range(CHUNKS):
        full.chunk(members[1], index)
    full.feed(ChunkChecked(client=members[1], index=0))
    full.feed(ChunkChecked(client=members[1], index=0, asked=1))
    full.expect(State.AWAITING)
    full.feed(ChunkChecked(client=members[1], index=1, asked=1))
    full.expect(State.SUMMING)
    assert full.effects == (CancelTimer("answer"), SumAndRelease(members))
    again = replace(full.data, sets=frozen.sets, answer_by_s=0.0)
    assert again == frozen, "nothing but the set and the deadline has changed"
    full.feed(AnswerOverdue(at_s=due_s))
    full.expect(State.SUMMING)


def test_damage_to_the_set_of_somebody_who_was_left_out_changes_nothing(full: Play) -> None:
    full.order(full.manifest.clients[:3])
    damage(full, full.manifest.clients[3])
    full.expect(State.SUMMING)
    assert not full.effects


def test_after_a_restart_the_request_and_its_deadline_are_there_again(full: Play) -> None:
    client = full.manifest.clients[0]
    full.order(full.manifest.clients)
    damage(full, client)
    full.chunk(client, 0)
    check, ask, give_up = KIND.resume(full.state, full.data)
    assert isinstance(check, CheckChunk)
    assert (check.client, check.index, check.share_set.asked) == (client, 0, 1)
    assert ask == SetTimer("ask", 0.0, AskDue)
    assert give_up == SetTimer("answer", 100.0 + full.manifest.phase_timeout_s, AnswerOverdue)
    full.feed(AskDue(at_s=200.0))
    assert full.effects == (request_to(client),)


def test_an_order_to_void_or_to_close_otherwise_is_refused_while_a_set_is_awaited_again(full: Play) -> None:
    full.order(full.manifest.clients[:3])
    damage(full, full.manifest.clients[0])
    full.feed(VoidOrdered())
    full.expect_refusal(RejectReason.ALREADY_ENDED, VoidPhase.kind)
    full.order(full.manifest.clients)
    full.expect_refusal(RejectReason.ALREADY_ENDED)
    full.expect(State.AWAITING)


def test_a_set_that_is_damaged_each_time_is_given_up(full: Play) -> None:
    client = full.manifest.clients[0]
    full.order(full.manifest.clients)
    for asked in range(MAX_RESENDS):
        damage(full, client, asked=asked)
        full.expect(State.AWAITING)
    damage(full, client, asked=MAX_RESENDS)
    full.expect(State.FAILED)
    assert full.said() == [PartyFailed(code=Code.DISK_FAILED)]
