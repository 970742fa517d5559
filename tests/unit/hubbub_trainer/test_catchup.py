"""A client that has lost sums: whom it asks, whom it believes, and that it takes nothing too few vouch for."""

from dataclasses import replace
from itertools import permutations

import pytest

from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Failed, Key, Publish, SetTimer, Tell
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
    CatchUp,
    DropSnapshot,
    KeepSnapshot,
    Snapshot,
    State,
    TakeSnapshot,
)
from support.builders import client_names, make_manifest
from support.machine_play import MachinePlay

MANIFEST = make_manifest(clients=5, min_clients=3, chunk_bytes=256)
ME, *PEERS = MANIFEST.clients
SECOND, THIRD, FOURTH, FIFTH = PEERS
AFTER, LOST = 1, 4
CHUNKS = count_chunks(MANIFEST, LOST)
MODEL, OTHER_MODEL = "5d" * 32, "5e" * 32
HELD = HeldModel(sha256="5f" * 32, step=1.0)
AT_ONCE = SetTimer("ask", 0.0, AskDue)
WRONG = Failed("the snapshot is not the model that was vouched for")


def voucher(number: int = LOST, *, released: int | None = None, model: str = MODEL) -> Voucher:
    return Voucher(round=number, released=number if released is None else released, model_hmac=model)


class Play(MachinePlay[State, CatchUp]):
    """One client's attempt to catch up; it lacks round 4, and a model has two chunks."""

    def __init__(self, manifest: Manifest = MANIFEST, me: PartyId = ME) -> None:
        run, key = Key("run", manifest.run_id), Key("catchup", manifest.run_id, LOST)
        data = CatchUp(me=me, key=key, run=run, manifest=manifest, after=AFTER)
        super().__init__(KIND, data, manifest.coordinator)
        self.feed(Lost(number=LOST))

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


def test_all_peers_are_asked_to_vouch_and_one_after_the_other_for_its_model(play: Play) -> None:
    play.expect(State.ASKING, AT_ONCE)
    for attempt, giver in enumerate([*PEERS, SECOND]):
        play.ask(at_s=100.0 * attempt)
        body = SnapshotRequested(after=AFTER, giver=giver)
        again = SetTimer("ask", 100.0 * attempt + ASK_AGAIN_S, AskDue)
        play.expect(State.ASKING, *(Publish(peer, Role.CLIENT, body) for peer in PEERS), again)
    assert play.resumed() == [AT_ONCE]
    assert Play(me=FOURTH).data.peers == (FIFTH, ME, SECOND, THIRD), "not everybody asks the same one first"


def test_a_later_need_is_asked_for_at_once_and_an_earlier_one_changes_nothing(play: Play) -> None:
    assert play.data.need == LOST
    for number in (6, 5):
        play.feed(Lost(number=number))
        play.expect(State.ASKING, AT_ONCE)
        assert play.data.need == 6


def test_nothing_is_asked_any_more_when_nothing_was_lost(play: Play) -> None:
    play.feed(NeverMind())
    play.expect(State.DONE)
    assert play.resumed() == []


# What is believed ---------------------------------------------------------------------------------------


def test_whatever_comes_last_a_snapshot_that_enough_organisations_vouch_for_is_looked_at_once() -> None:
    """min_clients - 1 others: the giver and one more. Every chunk is kept before anything else, and once."""
    events: list[object] = [
        PeerVouched(client=SECOND, vouchers=(voucher(),)),
        PeerVouched(client=THIRD, vouchers=(voucher(3), voucher())),
        *(SnapshotArrived(client=SECOND, number=LOST, index=index) for index in range(CHUNKS)),
    ]
    for order in permutations(events):
        play = Play()
        for event in order:
            play.at(State.ASKING)
            play.feed(event)
            kept = [KeepSnapshot(SECOND, LOST, event.index)] if isinstance(event, SnapshotArrived) else []
            assert play.effects[: len(kept)] == tuple(kept)
            if kept and play.state is State.ASKING:
                play.ignores(event)
        play.expect(State.CHECKING, *kept, TakeSnapshot(SECOND, voucher()))
        assert play.resumed() == [TakeSnapshot(SECOND, voucher())]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param([SECOND], voucher(), id="the giver's word alone"),
        pytest.param([THIRD, FOURTH, FIFTH], voucher(), id="not the giver's"),
        pytest.param(PEERS, voucher(model=OTHER_MODEL), id="another digest"),
        pytest.param(PEERS, voucher(released=LOST - 1), id="another count of released rounds"),
        pytest.param(PEERS, voucher(LOST + 1), id="another round"),
        pytest.param(PEERS, voucher(LOST - 1), id="an earlier round"),
    ],
)
def test_too_few_words_that_agree_are_not_enough(play: Play, words: list[PartyId], said: Voucher) -> None:
    play.send(SECOND, min(LOST, said.round))
    if words == PEERS and said.round >= LOST:
        play.vouch(SECOND)
    play.vouch(*words, said=said)
    play.at(State.ASKING)


def test_a_peers_first_word_on_a_round_counts(play: Play) -> None:
    play.send(SECOND)
    play.vouch(SECOND)
    play.vouch(THIRD, said=voucher(model=OTHER_MODEL))
    play.vouch(THIRD)
    play.at(State.ASKING)


def test_peers_of_one_organisation_are_one_and_our_own_does_not_count() -> None:
    # Ours has the first two clients, another has the third and fourth.
    owners = ("org-1", "org-1", "org-2", "org-2", "org-3")
    cohort = tuple(
        CohortMember(name=name, organisation=PartyId(owner))
        for name, owner in zip(client_names(5), owners, strict=True)
    )
    play = Play(make_manifest(clients=5, cohort=cohort, min_clients=3))
    play.send(THIRD)
    play.vouch(THIRD, FOURTH, SECOND)
    play.at(State.ASKING)  # That is one other organisation.
    play.vouch(FIFTH)
    play.at(State.CHECKING)


def test_a_model_that_is_too_early_for_a_later_need_is_of_no_use(play: Play) -> None:
    play.feed(Lost(number=LOST + 1))
    play.vouch(*PEERS)
    play.send(SECOND)
    play.at(State.ASKING)
    play.check(THIRD, LOST + 2)


def test_a_peers_newer_snapshot_takes_the_place_of_its_older_one(play: Play) -> None:
    play.send(SECOND, LOST, 0)
    play.send(SECOND, LOST + 1, 0)
    assert play.data.snapshots == {SECOND: Snapshot(number=LOST + 1, arrived=frozenset({0}))}
    play.ignores(SnapshotArrived(client=SECOND, number=LOST, index=1))


# Checking -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("meanwhile", [None, Lost(number=9), NeverMind()])
def test_a_model_that_was_taken_is_told_to_the_run_in_any_case(play: Play, meanwhile: object) -> None:
    """More was lost, or nothing was: it is our model now."""
    play.check(SECOND)
    play.ignores(AskDue(at_s=10.0), SnapshotArrived(client=SECOND, number=LOST + 1, index=0))
    if meanwhile is not None:
        play.feed(meanwhile)
        play.expect(State.CHECKING)
    assert play.data.need == (9 if isinstance(meanwhile, Lost) else LOST)
    play.feed(SnapshotTaken(held=HELD))
    caught_up = CaughtUp(number=LOST, voucher=voucher(), held=HELD)
    play.expect(State.DONE, Tell(play.data.run, caught_up))


def test_what_the_ledger_says_of_an_inherited_model_is_told_to_the_run(play: Play) -> None:
    initial = InitialModel(sha256="5f" * 32, objection="a run began from it")
    play.state, play.data = State.CHECKING, replace(play.data, after=-1, checking=TakeSnapshot(SECOND))
    play.feed(SnapshotTaken(initial=initial))
    play.expect(State.DONE, Tell(play.data.run, Inherited(initial=initial)))


def test_without_word_of_the_model_it_is_asked_for_again(play: Play) -> None:
    play.check(SECOND)
    play.feed(SnapshotTaken())
    play.expect(State.ASKING, AT_ONCE)


def test_a_wrong_snapshot_is_forgotten_and_somebody_else_is_asked_at_once(play: Play) -> None:
    play.ask()
    play.check(SECOND)
    play.feed(WRONG)
    play.expect(State.ASKING, DropSnapshot(SECOND), AT_ONCE)
    assert play.data.snapshots == {}
    play.ask()
    assert {each.body for each in play.of(Publish)} == {SnapshotRequested(after=AFTER, giver=THIRD)}
    play.send(THIRD)
    assert play.effects[-1] == TakeSnapshot(THIRD, voucher()), "what was vouched for still counts"


@pytest.mark.parametrize("number", [LOST, LOST + 1])
def test_what_another_peer_sent_or_vouched_for_meanwhile_is_looked_at_next(play: Play, number: int) -> None:
    play.check(SECOND)
    play.send(THIRD, number)
    play.expect(State.CHECKING, KeepSnapshot(THIRD, number, 1))
    play.vouch(THIRD, FOURTH, said=voucher(number))
    play.expect(State.CHECKING)
    play.feed(WRONG)
    play.expect(State.CHECKING, DropSnapshot(SECOND), TakeSnapshot(THIRD, voucher(number)))


def test_nobody_is_asked_for_another_when_nothing_was_lost_after_all(play: Play) -> None:
    play.check(SECOND)
    play.send(THIRD)
    play.feed(NeverMind(), WRONG)
    play.expect(State.DONE)  # Or it would ask for ever.
