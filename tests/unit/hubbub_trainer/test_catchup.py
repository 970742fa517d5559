"""A client that has lost sums: whom it asks, whom it believes, and that it takes nothing too few vouch for."""

from dataclasses import replace
from itertools import permutations

import pytest

from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Effect, Failed, Key, Publish, SetTimer, Tell
from hubbub.machine.table import step
from hubbub.messages.manifest import CohortMember, Manifest
from hubbub.messages.snapshots import SnapshotRequested, Voucher, count_chunks
from hubbub_trainer.events import (
    AskDue,
    CaughtUp,
    HeldModel,
    Inherited,
    InitialModel,
    Lost,
    NeverMind,
    PeerVouched,
    SnapshotArrived,
    SnapshotTaken,
)
from hubbub_trainer.phases.catchup import (
    ASK_AGAIN_S,
    KIND,
    TRANSITIONS,
    CatchUp,
    DropSnapshot,
    KeepSnapshot,
    Snapshot,
    State,
    TakeSnapshot,
)
from support.builders import client_names, make_manifest

MANIFEST = make_manifest(clients=5, min_clients=3, chunk_bytes=256)
ME, *PEERS = MANIFEST.clients
SECOND, THIRD, FOURTH, FIFTH = PEERS
AFTER, LOST = 1, 4
CHUNKS = count_chunks(MANIFEST, LOST)
MODEL, OTHER_MODEL = "5d" * 32, "5e" * 32
HELD = HeldModel(sha256="5f" * 32, step=1.0)
AT_ONCE = SetTimer("ask", 0.0, AskDue)


def voucher(number: int = LOST, *, released: int | None = None, model: str = MODEL) -> Voucher:
    return Voucher(round=number, released=number if released is None else released, model_hmac=model)


class Play:
    """One client's attempt to catch up; it lacks round 4, and a model has two chunks."""

    def __init__(self, manifest: Manifest = MANIFEST, me: PartyId = ME) -> None:
        run = Key("run", manifest.run_id)
        self.state = State.ASKING
        self.data = CatchUp(
            me=me,
            key=Key("catchup", manifest.run_id, LOST),
            run=run,
            manifest=manifest,
            after=AFTER,
        )
        self.effects: tuple[Effect, ...] = ()
        self.feed(Lost(number=LOST))

    def feed(self, event: object) -> None:
        result = step(TRANSITIONS, self.state, self.data, event)
        self.state, self.data, self.effects = result.state, result.data, result.effects

    def expect(self, state: State) -> None:
        assert self.state is state

    def ask(self, at_s: float = 10.0) -> None:
        self.feed(AskDue(at_s=at_s))

    def vouch(self, *clients: PartyId, said: Voucher | None = None) -> None:
        for client in clients:
            self.feed(PeerVouched(client=client, vouchers=(said or voucher(),)))

    def send(self, client: PartyId, number: int = LOST, *indices: int) -> None:
        for index in indices or range(CHUNKS):
            self.feed(SnapshotArrived(client=client, number=number, index=index))

    def check(self, giver: PartyId, number: int = LOST) -> None:
        """Come to look at a peer's model."""
        said = voucher(number)
        self.vouch(*(peer for peer in self.data.peers if peer != giver), giver, said=said)
        self.send(giver, number)
        assert (self.state, self.effects[-1]) == (State.CHECKING, TakeSnapshot(giver, said))


@pytest.fixture
def play() -> Play:
    return Play()


# Asking -------------------------------------------------------------------------------------------------


def test_who_has_lost_something_asks_at_once(play: Play) -> None:
    assert (play.state, play.effects, play.data.need) == (State.ASKING, (AT_ONCE,), LOST)


def test_all_peers_are_asked_to_vouch_and_one_after_the_other_for_its_model(play: Play) -> None:
    for attempt, giver in enumerate([*PEERS, SECOND]):
        play.ask(at_s=100.0 * attempt)
        *requests, again = play.effects
        assert requests == [
            Publish(peer, Role.CLIENT, SnapshotRequested(after=AFTER, giver=giver)) for peer in PEERS
        ]
        assert again == SetTimer("ask", 100.0 * attempt + ASK_AGAIN_S, AskDue)
        play.expect(State.ASKING)


def test_not_everybody_asks_the_same_peer_first() -> None:
    play = Play(me=FOURTH)
    assert play.data.peers == (FIFTH, ME, SECOND, THIRD)


def test_a_later_need_is_asked_for_at_once_and_an_earlier_one_changes_nothing(play: Play) -> None:
    play.feed(Lost(number=6))
    assert (play.data.need, play.effects) == (6, (AT_ONCE,))
    play.feed(Lost(number=5))
    assert play.data.need == 6


def test_nothing_is_asked_any_more_when_nothing_was_lost(play: Play) -> None:
    play.feed(NeverMind())
    assert (play.state, play.effects) == (State.DONE, ())


# What is believed ---------------------------------------------------------------------------------------


def test_every_chunk_is_kept_before_anything_else_and_once(play: Play) -> None:
    play.send(SECOND, LOST, 1)
    assert [*play.effects] == [KeepSnapshot(SECOND, LOST, 1)]
    before = play.data
    play.send(SECOND, LOST, 1)
    assert (play.data, play.effects) == (before, ())


def test_a_whole_snapshot_that_enough_organisations_vouch_for_is_looked_at(play: Play) -> None:
    """min_clients - 1 others: the giver and one more."""
    play.vouch(SECOND, FOURTH)
    play.send(SECOND, LOST, 0)
    play.expect(State.ASKING)
    play.send(SECOND, LOST, 1)
    play.expect(State.CHECKING)
    assert [*play.effects] == [KeepSnapshot(SECOND, LOST, 1), TakeSnapshot(SECOND, voucher())]


def test_whatever_comes_last_it_is_looked_at_once() -> None:
    events: list[object] = [
        PeerVouched(client=SECOND, vouchers=(voucher(),)),
        PeerVouched(client=THIRD, vouchers=(voucher(3), voucher())),
        *(SnapshotArrived(client=SECOND, number=LOST, index=index) for index in range(CHUNKS)),
    ]
    for order in permutations(events):
        play = Play()
        for event in order:
            play.expect(State.ASKING)
            play.feed(event)
        assert (play.state, play.effects[-1]) == (State.CHECKING, TakeSnapshot(SECOND, voucher())), order


def test_the_givers_word_alone_is_not_enough(play: Play) -> None:
    play.send(SECOND)
    play.vouch(SECOND)
    assert (play.state, play.effects) == (State.ASKING, ())


def test_the_word_of_others_is_not_enough_for_a_model_that_its_giver_does_not_vouch_for(play: Play) -> None:
    play.send(SECOND)
    play.vouch(THIRD, FOURTH, FIFTH)
    play.expect(State.ASKING)


def test_different_digests_do_not_add_up(play: Play) -> None:
    play.send(SECOND)
    play.vouch(SECOND)
    play.vouch(THIRD, FOURTH, FIFTH, said=voucher(model=OTHER_MODEL))
    play.expect(State.ASKING)


def test_nor_do_different_counts_of_what_was_released(play: Play) -> None:
    play.send(SECOND)
    play.vouch(SECOND)
    play.vouch(THIRD, FOURTH, FIFTH, said=voucher(released=LOST - 1))
    play.expect(State.ASKING)


def test_nor_do_words_on_another_round(play: Play) -> None:
    play.send(SECOND)
    play.vouch(SECOND)
    play.vouch(THIRD, FOURTH, FIFTH, said=voucher(LOST + 1))
    play.expect(State.ASKING)


def test_a_peers_first_word_on_a_round_counts(play: Play) -> None:
    play.send(SECOND)
    play.vouch(SECOND)
    play.vouch(THIRD, said=voucher(model=OTHER_MODEL))
    play.vouch(THIRD)
    play.expect(State.ASKING)


def test_peers_of_one_organisation_are_one_and_our_own_does_not_count() -> None:
    names = client_names(5)
    # Ours has the first two clients, another has the third and fourth.
    owners = ("org-1", "org-1", "org-2", "org-2", "org-3")
    cohort = tuple(
        CohortMember(name=name, organisation=PartyId(owner)) for name, owner in zip(names, owners, strict=True)
    )
    play = Play(make_manifest(clients=5, cohort=cohort, min_clients=3))
    play.send(THIRD)
    play.vouch(THIRD, FOURTH, SECOND)
    play.expect(State.ASKING)  # That is one other organisation.
    play.vouch(FIFTH)
    play.expect(State.CHECKING)


def test_a_model_of_a_round_before_the_one_that_we_lack_is_of_no_use(play: Play) -> None:
    play.vouch(*PEERS, said=voucher(LOST - 1))
    play.send(SECOND, LOST - 1)
    play.expect(State.ASKING)


def test_a_model_that_is_too_early_for_a_later_need_is_of_no_use(play: Play) -> None:
    play.feed(Lost(number=LOST + 1))
    play.vouch(*PEERS)
    play.send(SECOND)
    play.expect(State.ASKING)
    play.vouch(*PEERS, said=voucher(LOST + 2))
    play.send(THIRD, LOST + 2)
    assert play.effects[-1] == TakeSnapshot(THIRD, voucher(LOST + 2))


def test_a_peers_newer_snapshot_takes_the_place_of_its_older_one(play: Play) -> None:
    play.send(SECOND, LOST, 0)
    play.send(SECOND, LOST + 1, 0)
    assert play.data.snapshots == {SECOND: Snapshot(number=LOST + 1, arrived=frozenset({0}))}
    play.send(SECOND, LOST, 1)
    assert play.effects == (), "the rest of the older one is not kept"


# Checking -----------------------------------------------------------------------------------------------


def test_a_model_that_was_taken_is_told_to_the_run(play: Play) -> None:
    play.check(SECOND)
    play.feed(SnapshotTaken(held=HELD))
    assert (play.state, play.effects) == (
        State.DONE,
        (Tell(play.data.run, CaughtUp(number=LOST, voucher=voucher(), held=HELD)),),
    )


def test_what_the_ledger_says_of_an_inherited_model_is_told_to_the_run(play: Play) -> None:
    initial = InitialModel(sha256="5f" * 32, objection="a run began from it")
    play.state, play.data = State.CHECKING, replace(play.data, after=-1, checking=TakeSnapshot(SECOND))
    play.feed(SnapshotTaken(initial=initial))
    assert (play.state, play.effects) == (State.DONE, (Tell(play.data.run, Inherited(initial=initial)),))


def test_without_word_of_the_model_it_is_asked_for_again(play: Play) -> None:
    play.check(SECOND)
    play.feed(SnapshotTaken())
    assert (play.state, play.effects) == (State.ASKING, (AT_ONCE,))


def test_it_is_told_even_if_more_was_lost_meanwhile_for_it_is_our_model_now(play: Play) -> None:
    play.check(SECOND)
    play.feed(Lost(number=9))
    assert (play.state, play.effects, play.data.need) == (State.CHECKING, (), 9)
    play.feed(SnapshotTaken(held=HELD))
    assert play.effects == (Tell(play.data.run, CaughtUp(number=LOST, voucher=voucher(), held=HELD)),)


def test_a_wrong_snapshot_is_forgotten_and_somebody_else_is_asked_at_once(play: Play) -> None:
    play.ask()
    play.check(SECOND)
    play.feed(Failed("the snapshot is not the model that was vouched for"))
    assert (play.state, play.effects) == (State.ASKING, (DropSnapshot(SECOND), AT_ONCE))
    assert play.data.snapshots == {}
    play.ask()
    assert {effect.body for effect in play.effects if isinstance(effect, Publish)} == {
        SnapshotRequested(after=AFTER, giver=THIRD)
    }
    play.send(THIRD)
    assert play.effects[-1] == TakeSnapshot(THIRD, voucher()), "what was vouched for still counts"


def test_what_another_peer_sent_meanwhile_is_looked_at_next(play: Play) -> None:
    play.check(SECOND)
    play.send(THIRD)
    assert play.effects == (KeepSnapshot(THIRD, LOST, 1),)
    play.feed(Failed("the seal does not open"))
    assert (play.state, [*play.effects]) == (
        State.CHECKING,
        [DropSnapshot(SECOND), TakeSnapshot(THIRD, voucher())],
    )


def test_what_is_being_read_stays_as_it_is(play: Play) -> None:
    play.check(SECOND)
    before = play.data
    play.send(SECOND, LOST + 1)
    assert (play.data, play.effects) == (before, ())


def test_vouchers_that_come_meanwhile_count_later(play: Play) -> None:
    play.check(SECOND)
    play.send(THIRD, LOST + 1)
    play.vouch(THIRD, FOURTH, said=voucher(LOST + 1))
    assert (play.state, play.effects) == (State.CHECKING, ())
    play.feed(Failed("the seal does not open"))
    assert play.effects[-1] == TakeSnapshot(THIRD, voucher(LOST + 1))


def test_a_question_that_falls_due_while_a_model_is_looked_at_is_not_asked(play: Play) -> None:
    play.check(SECOND)
    before = play.data
    play.ask()
    assert (play.state, play.data, play.effects) == (State.CHECKING, before, ())


def test_a_model_that_is_looked_at_is_taken_though_nothing_was_lost_after_all(play: Play) -> None:
    play.check(SECOND)
    play.feed(NeverMind())
    assert (play.state, play.effects) == (State.CHECKING, ())
    play.feed(SnapshotTaken(held=HELD))
    assert play.effects == (Tell(play.data.run, CaughtUp(number=LOST, voucher=voucher(), held=HELD)),)


def test_nobody_is_asked_for_another_when_nothing_was_lost_after_all(play: Play) -> None:
    play.check(SECOND)
    play.send(THIRD)
    play.feed(NeverMind())
    play.feed(Failed("the snapshot is not the model that was vouched for"))
    assert (play.state, play.effects) == (State.DONE, ()), "or it would ask for ever"


# After a restart ----------------------------------------------------------------------------------------


def test_who_was_asking_asks_again(play: Play) -> None:
    play.ask()
    assert KIND.resume(play.state, play.data) == (AT_ONCE,)


def test_who_was_looking_at_a_model_looks_at_it_again(play: Play) -> None:
    play.check(SECOND)
    assert KIND.resume(play.state, play.data) == (TakeSnapshot(SECOND, voucher()),)


def test_who_is_done_does_nothing(play: Play) -> None:
    assert KIND.resume(State.DONE, play.data) == ()
