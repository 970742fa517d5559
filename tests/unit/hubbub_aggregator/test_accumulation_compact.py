"""A phase on the compact wire: the combiner waits for every sum, all over the same members, and sends one."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hubbub.errors import Code, PeerError, RejectReason
from hubbub.ids import PartyId
from hubbub.machine.effects import CountRefusal, Failed, Publish, Record, Tell
from hubbub.messages.rounds import PartialChunk, PhaseReleased, VoidPhase
from hubbub.messages.runs import PartyFailed
from hubbub.messages.shares import DenseShareChunk, ShareSeed, Traffic, declare
from hubbub_aggregator.events import (
    ChunkBroken,
    ChunkChecked,
    PartialArrived,
    PhaseEnded,
    SumSent,
    VoidOrdered,
)
from hubbub_aggregator.phases.accumulation import (
    KIND,
    CheckChunk,
    GiveReceipt,
    RecordRelease,
    RecordSet,
    SpoolChunk,
    SpoolPartial,
    State,
    SumAndRelease,
)
from support.accumulation_play import CHUNKS, LONG, OTHER_TRANSCRIPT, SHORT, Play
from support.builders import TRANSCRIPT, aggregator_names, make_manifest

ME, SECOND, THIRD = aggregator_names(3)
VOID = VoidOrdered()


def begin(combiner: PartyId) -> Play:
    """Everybody's set is complete at the first of three aggregators."""
    play = Play(make_manifest(clients=4, servers=3, min_clients=3, wire="compact"), combiner=combiner)
    for client in play.manifest.clients:
        play.deliver(client)
    return play


@pytest.fixture
def play() -> Play:
    """At the combiner."""
    return begin(ME)


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


def journalled(play: Play) -> tuple[object, ...]:
    """What comes first once an order is obeyed."""
    members = play.manifest.clients
    ended = PhaseEnded(round=1, phase="signs", members=frozenset(members))
    recorded = Record("released", {"members": list(members), "transcript": TRANSCRIPT})
    return RecordRelease(members), recorded, Tell(play.run, ended)


# Who combines and who does not ----------------------------------------------------------------------------


def test_who_does_not_combine_waits_for_nobody() -> None:
    play = begin(SECOND)

    play.order(play.manifest.clients)

    play.expect(State.SUMMING)
    assert play.effects == (*journalled(play), SumAndRelease(play.manifest.clients))


def test_the_combiner_journals_at_its_order_and_sends_nothing_until_all_sums_are_here(play: Play) -> None:
    play.order(play.manifest.clients)

    play.expect(State.AWAITING)
    assert play.effects == journalled(play)
    assert play.data.missing == (SECOND, THIRD)


def test_the_last_chunk_of_the_last_sum_is_spooled_and_then_all_is_added(play: Play) -> None:
    play.order(play.manifest.clients)
    send_sum(play, THIRD)
    play.feed(partial_of(play, SECOND, 1))

    play.expect(State.AWAITING)
    assert list(play.effects) == [SpoolPartial(SECOND, 1)]

    play.feed(partial_of(play, SECOND, 0))

    play.expect(State.SUMMING)
    assert list(play.effects) == [SpoolPartial(SECOND, 0), SumAndRelease(play.manifest.clients)]


def test_sums_before_our_own_order_are_kept_and_release_nothing(play: Play) -> None:
    send_sum(play, SECOND)
    assert play.effects == (SpoolPartial(SECOND, 0),)
    send_sum(play, THIRD)

    play.expect(State.COLLECTING)
    assert play.data.missing == ()

    play.order(play.manifest.clients)

    play.expect(State.SUMMING)
    assert play.effects == (*journalled(play), SumAndRelease(play.manifest.clients)), "first the journal"


def test_half_of_a_sum_before_our_own_order_is_not_enough(play: Play) -> None:
    send_sum(play, THIRD)
    play.feed(partial_of(play, SECOND, 1))

    play.order(play.manifest.clients)

    play.expect(State.AWAITING)
    assert play.data.missing == (SECOND,)


def test_shares_are_still_taken_beside_a_sum_that_came_early() -> None:
    play = Play(make_manifest(clients=4, servers=3, min_clients=3, wire="compact"), combiner=ME)
    send_sum(play, SECOND)

    for client in play.manifest.clients:
        play.deliver(client)
    play.order(play.manifest.clients)

    play.expect(State.AWAITING)


# Again and late -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
def test_a_chunk_again_is_neither_spooled_nor_counted_again(play: Play, *, ordered: bool) -> None:
    if ordered:
        play.order(play.manifest.clients)
    play.feed(partial_of(play, SECOND))
    state, before = play.state, play.data

    play.feed(partial_of(play, SECOND))

    assert (play.state, play.data, play.effects) == (state, before, ())
    assert before.across == {"signs": 7}


def test_a_late_sum_changes_nothing_once_all_is_being_added(play: Play) -> None:
    send_sum(play, SECOND)
    send_sum(play, THIRD)
    play.order(play.manifest.clients)
    before = play.data

    play.feed(partial_of(play, SECOND))
    play.feed(replace(partial_of(play, THIRD), members=play.manifest.clients[:3]))

    assert (play.state, play.data, play.effects) == (State.SUMMING, before, ())


def test_late_shares_change_nothing_while_the_combiner_waits(play: Play) -> None:
    client = play.manifest.clients[3]
    play.order(play.manifest.clients[:3])
    before = play.data

    play.chunk(client, 0)
    assert play.effects == ()
    play.feed(ChunkChecked(client=client, index=0))
    assert play.effects == ()
    play.feed(ChunkBroken(client=client, index=1, reason=RejectReason.BROKEN_SEAL, explanation="late"))

    assert (play.state, play.data, play.effects) == (State.AWAITING, before, ())


# Contradictions -------------------------------------------------------------------------------------------

Other = Callable[[PartialArrived], PartialArrived]
OTHERS: dict[str, Other] = {
    "members": lambda event: replace(event, members=event.members[:3]),
    "order-of-members": lambda event: replace(event, members=event.members[::-1]),
    "vectors": lambda event: replace(event, vectors=LONG),
    "transcript": lambda event: replace(event, transcript=OTHER_TRANSCRIPT),
}


@pytest.fixture(params=OTHERS)
def other(request: pytest.FixtureRequest) -> Other:
    return OTHERS[request.param]


def expect_the_end(play: Play, culprit: PartyId) -> None:
    """The coordinator is told that we cannot go on, the culprit is counted, and nothing is added."""
    play.expect(State.FAILED)
    assert play.said() == [PartyFailed(code=Code.PROTOCOL_CONTRADICTION)]
    (counted,) = [each for each in play.effects if isinstance(each, CountRefusal)]
    assert (counted.reason, counted.kind) == (RejectReason.CONTRADICTION, PartialChunk.kind)
    assert counted.sender == culprit
    assert counted.explanation.startswith(f"{culprit} released a sum of other members")
    assert not [each for each in play.effects if isinstance(each, SumAndRelease)]


def test_a_sum_of_something_else_after_our_order_ends_the_run(play: Play, other: Other) -> None:
    play.order(play.manifest.clients)
    send_sum(play, SECOND)

    play.feed(other(partial_of(play, THIRD)))

    expect_the_end(play, THIRD)


def test_a_sum_of_something_else_before_our_order_ends_the_run_when_it_comes(play: Play, other: Other) -> None:
    play.feed(other(partial_of(play, THIRD)))
    play.expect(State.COLLECTING)

    play.order(play.manifest.clients)

    expect_the_end(play, THIRD)
    assert play.effects[:3] == journalled(play), "our own verdict is final all the same"


@pytest.mark.parametrize("ordered", [False, True])
def test_a_second_sum_of_one_aggregator_is_refused(play: Play, other: Other, *, ordered: bool) -> None:
    if ordered:
        play.order(play.manifest.clients)
    play.feed(partial_of(play, SECOND, 0))
    state, before = play.state, play.data

    with pytest.raises(PeerError, match="aggregator-2 has released another sum") as caught:
        play.feed(other(partial_of(play, SECOND, 1)))

    assert caught.value.reason is RejectReason.CONTRADICTION
    assert (play.state, play.data) == (state, before)


# Orders ---------------------------------------------------------------------------------------------------


def test_a_void_beside_anothers_sum_is_refused_and_changes_nothing(play: Play) -> None:
    play.feed(partial_of(play, SECOND))
    before = play.data

    play.feed(VOID)

    play.expect_refusal(RejectReason.CONTRADICTION, VoidPhase.kind)
    assert (play.state, play.data) == (State.COLLECTING, before)

    send_sum(play, SECOND)
    send_sum(play, THIRD)
    play.order(play.manifest.clients)
    play.expect(State.SUMMING)


def test_a_void_that_comes_before_any_sum_is_obeyed(play: Play) -> None:
    play.feed(VOID)

    play.expect(State.VOID)


def test_a_wrong_order_beside_anothers_sum_is_refused_and_the_sum_is_kept(play: Play) -> None:
    send_sum(play, SECOND)
    before = play.data

    play.order(play.manifest.clients[:2])

    play.expect_refusal(RejectReason.TOO_FEW_MEMBERS)
    assert (play.state, play.data) == (State.COLLECTING, before)


def test_while_the_combiner_waits_the_same_order_is_old_news_and_any_other_is_refused(play: Play) -> None:
    play.order(play.manifest.clients)
    before = play.data

    play.order(play.manifest.clients[::-1])
    assert (play.state, play.data, play.effects) == (State.AWAITING, before, ())

    play.order(play.manifest.clients[:3])
    play.expect_refusal(RejectReason.ALREADY_ENDED)
    assert (play.state, play.data) == (State.AWAITING, before)

    play.feed(VOID)
    play.expect_refusal(RejectReason.ALREADY_ENDED, VoidPhase.kind)
    assert (play.state, play.data) == (State.AWAITING, before)


def test_a_disk_that_fails_the_waiting_combiner_is_told_to_the_coordinator(play: Play) -> None:
    play.order(play.manifest.clients)

    play.feed(Failed("the disk is full", Code.DISK_FAILED))

    play.expect(State.FAILED)
    assert play.said() == [PartyFailed(code=Code.DISK_FAILED)]


def test_the_release_is_reported_with_what_came_up_and_across(play: Play) -> None:
    send_sum(play, SECOND)
    send_sum(play, THIRD)
    play.order(play.manifest.clients)
    sent = Traffic(counts_as="signs", direction="down", payload_bits=1200)

    play.feed(SumSent(vectors=SHORT, traffic=(sent,)))

    play.expect(State.RELEASED)
    up = Traffic(counts_as="signs", direction="up", wire_bytes=10 * CHUNKS * 4)
    across = Traffic(counts_as="signs", direction="across", wire_bytes=7 * CHUNKS * 2)
    body = PhaseReleased(members=play.manifest.clients, vectors=declare(SHORT), traffic=(up, across, sent))
    assert [each for each in play.effects if isinstance(each, Publish)] == list(play.effects)
    assert play.said() == [body]


# After a restart ------------------------------------------------------------------------------------------


def test_a_restart_before_the_order_looks_again_at_shares_and_keeps_the_sums_that_came() -> None:
    play = Play(make_manifest(clients=4, servers=3, min_clients=3, wire="compact"), combiner=ME)
    client = play.manifest.clients[0]
    play.chunk(client, 0)
    send_sum(play, SECOND)

    assert KIND.resume(play.state, play.data) == (CheckChunk(client, play.data.sets[client], 0),)
    assert play.data.missing == (THIRD,)


def test_a_restart_while_the_combiner_waits_sends_nothing_and_goes_on_waiting(play: Play) -> None:
    play.order(play.manifest.clients)
    send_sum(play, SECOND)

    assert KIND.resume(play.state, play.data) == ()

    send_sum(play, THIRD)
    play.expect(State.SUMMING)


@pytest.mark.parametrize("combiner", [ME, SECOND])
def test_a_restart_while_it_adds_adds_and_sends_the_same_again(combiner: PartyId) -> None:
    play = begin(combiner)
    if combiner == ME:
        send_sum(play, SECOND)
        send_sum(play, THIRD)
    play.order(play.manifest.clients)

    assert KIND.resume(play.state, play.data) == (SumAndRelease(play.manifest.clients),)


@pytest.mark.parametrize("state", [State.RELEASED, State.VOID, State.FAILED])
def test_what_is_over_is_not_taken_up_again(play: Play, state: State) -> None:
    play.order(play.manifest.clients)

    assert KIND.resume(state, play.data) == ()


# Seeds --------------------------------------------------------------------------------------------------------


@pytest.fixture
def empty() -> Play:
    return Play(make_manifest(clients=4, servers=3, min_clients=3, wire="compact"), combiner=ME)


def test_a_seed_that_was_opened_when_it_came_earns_its_receipt_at_once(empty: Play) -> None:
    client = empty.manifest.clients[0]

    empty.chunk(client, 0, seeded=True, checked=True)

    assert [type(effect) for effect in empty.effects] == [RecordSet, GiveReceipt]
    assert empty.data.sets[client].complete
    assert empty.data.sets[client].seed == b"sealed"
    assert KIND.resume(empty.state, empty.data) == ()


def test_a_chunk_that_was_opened_when_it_came_is_spooled_and_the_last_one_earns_the_receipt(empty: Play) -> None:
    client = empty.manifest.clients[0]

    empty.chunk(client, 0, checked=True)
    assert [type(effect) for effect in empty.effects] == [SpoolChunk]
    assert KIND.resume(empty.state, empty.data) == ()
    empty.chunk(client, 1, checked=True)

    assert [type(effect) for effect in empty.effects] == [SpoolChunk, RecordSet, GiveReceipt]
    assert empty.data.sets[client].complete


def test_a_seed_that_was_not_opened_is_looked_at_after_a_restart(empty: Play) -> None:
    client = empty.manifest.clients[0]

    empty.chunk(client, 0, seeded=True)

    check = CheckChunk(client, empty.data.sets[client], 0)
    assert empty.effects == (check,)
    assert KIND.resume(empty.state, empty.data) == (check,)


def test_what_is_broken_after_a_good_one_was_taken_spoils_nothing(empty: Play) -> None:
    client = empty.manifest.clients[0]
    empty.chunk(client, 0, seeded=True, checked=True)
    before = empty.data

    empty.chunk(client, 0, seeded=True)
    empty.feed(ChunkBroken(client=client, index=0, reason=RejectReason.BROKEN_SEAL, explanation="it is shut"))

    assert empty.data == before
    assert empty.effects == ()


# Sets that are broken -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seeded", "kind"), [(True, ShareSeed.kind), (False, DenseShareChunk.kind)])
def test_a_broken_set_is_counted_as_the_messages_that_it_came_in(seeded: bool, kind: str) -> None:  # noqa: FBT001
    play = Play(make_manifest(clients=4, servers=3, min_clients=3, wire="compact"), combiner=ME)
    client = play.manifest.clients[0]
    play.chunk(client, 0, seeded=seeded)

    play.feed(ChunkBroken(client=client, index=0, reason=RejectReason.BROKEN_SEAL, explanation="it is shut"))

    assert CountRefusal(RejectReason.BROKEN_SEAL, kind, client, "it is shut") in play.effects
