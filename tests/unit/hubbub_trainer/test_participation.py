"""A trainer in a run: rounds in order, what was lost of them, what it vouches for, and when it leaves."""

import math
from dataclasses import replace

import pytest

from hubbub.errors import Code, PeerError, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import CountRefusal, Effect, Failed, Key, Publish, Record, SetTimer, Tell, TellOwner
from hubbub.machine.table import step
from hubbub.messages.envelope import Message
from hubbub.messages.manifest import Manifest
from hubbub.messages.runs import PartyFailed
from hubbub.messages.snapshots import ModelVouched, Voucher
from hubbub_trainer.events import (
    CaughtUp,
    ContributionArrived,
    Ended,
    Go,
    HeldModel,
    KeysArrived,
    Lost,
    NeverMind,
    Overtaken,
    PeerConfirmed,
    Proposed,
    RoundBroken,
    RoundHeardOf,
    RoundOrdered,
    RoundOver,
    SnapshotAsked,
    SnapshotSent,
    Strayed,
    SumsLost,
    WaitIsOver,
)
from hubbub_trainer.phases.participation import (
    KIND,
    TRANSITIONS,
    VOUCHED_ROUNDS,
    AbandonRounds,
    EndorseModel,
    NoteVoid,
    Participation,
    ReportOldCopy,
    SaveModel,
    SendSnapshot,
    SetUpCatchUp,
    SetUpRound,
    State,
    VoidCaps,
    is_small,
)
from support.builders import make_manifest, make_run_key

MANIFEST = make_manifest(rounds=9)
ME, SECOND, THIRD = MANIFEST.clients
RUN_KEY = make_run_key(MANIFEST, ME)
KEYS = KeysArrived(
    publics={name: name.encode() for name in (*MANIFEST.clients, *MANIFEST.aggregators)}, keys_sha256="ab" * 32
)
TAG = "7a" * 32
MODEL, PEERS_MODEL = "5d" * 32, "5e" * 32
PEERS = HeldModel(sha256="5f" * 32, step=1.0)
ENDED_AT_S = 50.0
LEFT = Record("ended", {"outcome": "left"})
FAILED = Record("ended", {"outcome": "failed"})
IN_TIME = SetTimer("leave", ENDED_AT_S + MANIFEST.phase_timeout_s, WaitIsOver)
COMPLETED = Record("ended", {"outcome": "completed"})


def digest_of(number: int) -> str:
    """The model that a round leaves; 0 is the one that the run began with."""
    return f"{number:064x}"


def over(number: int, *, released: bool, exposed: bool = False, step: float = 1.0, voids: int = 0) -> RoundOver:
    """The end of a round that leaves a model of its own if it was released."""
    held = HeldModel(sha256=digest_of(number if released else 0), step=step if released else 0.0, voids=voids)
    return RoundOver(number=number, released=released, model_hmac=MODEL, held=held, exposed=exposed)


class Play:
    """One trainer in a run that it was admitted to."""

    def __init__(self, manifest: Manifest = MANIFEST, caps: VoidCaps | None = None) -> None:
        self.state = State.JOINED
        self.data = Participation(
            me=ME,
            key=Key("run", manifest.run_id),
            manifest=manifest,
            run_key=RUN_KEY,
            publics=KEYS.publics,
            keys_sha256=KEYS.keys_sha256,
            caps=caps or VoidCaps(),
            models=(digest_of(0),),
        )
        self.effects: tuple[Effect, ...] = ()

    def feed(self, event: object) -> None:
        result = step(TRANSITIONS, self.state, self.data, event)
        self.state, self.data, self.effects = result.state, result.data, result.effects

    def advance(self, state: State) -> None:
        """Come to a state the ordinary way."""
        if self.state is not state:
            self.feed(RoundOrdered(number=1))
            self.feed(Ended(outcome="completed", at_s=ENDED_AT_S))
        assert self.state is state

    def said(self) -> list[Message]:
        """What the coordinator is told."""
        return [
            effect.body
            for effect in self.effects
            if isinstance(effect, Publish)
            and effect.to == MANIFEST.coordinator
            and isinstance(effect.body, Message)
        ]

    def answer(self) -> Message:
        (body,) = self.said()
        return body

    def farewell(self, code: Code = Code.POLICY_VOID_ROUNDS) -> str:
        """What our own log says of leaving the run; the coordinator is told the code."""
        assert self.state is State.ENDED
        assert self.answer() == PartyFailed(code=code)
        return self.logged()

    def logged(self) -> str:
        told = [effect.explanation for effect in self.effects if isinstance(effect, CountRefusal)]
        told += [effect.sentence for effect in self.effects if isinstance(effect, TellOwner)]
        (sentence,) = told
        return sentence

    def round(self, number: int) -> Key:
        return Key("round", self.data.key.run, number)

    def catch_up(self, number: int) -> Key:
        return Key("catchup", self.data.key.run, number)

    def play_round(self, number: int, *, released: bool, exposed: bool = False, step: float = 1.0) -> None:
        """A round from the present model, which it leaves if it is released."""
        self.feed(RoundOrdered(number=number))
        end = over(number, released=released, exposed=exposed, step=step)
        self.feed(end if released else replace(end, held=replace(end.held, sha256=self.data.models[-1])))

    def noted(self) -> list[NoteVoid]:
        return [effect for effect in self.effects if isinstance(effect, NoteVoid)]


@pytest.fixture
def joined() -> Play:
    play = Play()
    play.advance(State.JOINED)
    return play


# What was for the admission, delivered again ------------------------------------------------------------


EVENTS: dict[str, object] = {
    "keys": KEYS,
    "part of the second": ContributionArrived(client=SECOND),
    "part of the third": ContributionArrived(client=THIRD),
    "word of the second": PeerConfirmed(client=SECOND, confirmation=TAG),
    "word of the third": PeerConfirmed(client=THIRD, confirmation=TAG),
}


def test_the_same_keys_again_are_old_news_and_others_are_refused(joined: Play) -> None:
    before = joined.data
    joined.feed(KEYS)
    assert (joined.state, joined.data, joined.effects) == (State.JOINED, before, ())
    with pytest.raises(PeerError) as caught:
        joined.feed(replace(KEYS, keys_sha256="cd" * 32))
    assert caught.value.reason is RejectReason.SECOND_KEY
    assert (joined.state, joined.data) == (State.JOINED, before)


@pytest.mark.parametrize("state", [State.JOINED, State.LEAVING])
@pytest.mark.parametrize("name", list(EVENTS))
def test_what_was_for_the_beginning_changes_nothing_later(state: State, name: str) -> None:
    play = Play()
    play.advance(state)
    before = play.data
    for event in (EVENTS[name], Proposed()):
        play.feed(event)
        assert (play.state, play.data, play.effects) == (state, before, ())


# Rounds -------------------------------------------------------------------------------------------------


def test_a_round_ordered_while_idle_begins_at_once(joined: Play) -> None:
    joined.feed(RoundOrdered(number=1))
    assert [*joined.effects] == [SetUpRound(1), Tell(joined.round(1), Go())]


def test_rounds_queue_and_begin_in_order(joined: Play) -> None:
    play = joined
    play.feed(RoundOrdered(number=1))
    play.feed(RoundOrdered(number=2))
    assert [*play.effects] == [SetUpRound(2)], "set up, so that it can take in what others send of it"
    play.feed(RoundOrdered(number=3))
    assert [*play.effects] == [SetUpRound(3), Tell(play.round(1), Overtaken())], (
        "round 1 is asked what it waits for"
    )
    play.feed(over(1, released=True))
    assert [*play.effects] == [Tell(play.round(2), Go())]
    play.feed(over(2, released=False))
    assert [*play.effects] == [Tell(play.round(3), Go())]
    play.feed(over(3, released=True))
    assert [*play.effects] == []
    play.feed(RoundOrdered(number=4))
    assert [*play.effects] == [SetUpRound(4), Tell(play.round(4), Go())]


# An order that is slower than others' messages ------------------------------------------------------------


def test_the_next_round_is_set_up_when_it_is_heard_of_and_begins_with_its_order(joined: Play) -> None:
    joined.play_round(1, released=True)
    joined.feed(RoundHeardOf(number=2))
    assert (joined.state, joined.effects, joined.data.ordered) == (State.JOINED, (SetUpRound(2),), 1)
    joined.feed(RoundOrdered(number=2))
    assert [*joined.effects] == [SetUpRound(2), Tell(joined.round(2), Go())]


def test_a_round_beyond_the_manifests_is_not_heard_of(joined: Play) -> None:
    for number in range(1, 10):
        joined.play_round(number, released=True)
    with pytest.raises(PeerError, match="the manifest has 9") as caught:
        joined.feed(RoundHeardOf(number=10))
    assert caught.value.reason is RejectReason.OVER


def test_who_ends_before_the_last_order_waits_for_it_and_takes_its_round_in(joined: Play) -> None:
    joined.play_round(1, released=True)
    joined.feed(Ended(outcome="completed", at_s=ENDED_AT_S, last_round=2))
    assert (joined.state, joined.effects) == (State.LEAVING, (IN_TIME,)), "the model of round 1 is not the last"
    joined.feed(RoundHeardOf(number=2))
    assert [*joined.effects] == [SetUpRound(2)]
    joined.feed(RoundOrdered(number=2))
    assert [*joined.effects] == [SetUpRound(2), Tell(joined.round(2), Go())]
    joined.feed(over(2, released=True))
    assert (joined.state, joined.effects) == (State.ENDED, (SaveModel(), COMPLETED))


def test_two_orders_that_are_slower_than_the_end_are_begun_in_order(joined: Play) -> None:
    joined.feed(Ended(outcome="completed", at_s=ENDED_AT_S, last_round=2))
    joined.feed(RoundOrdered(number=1))
    joined.feed(RoundOrdered(number=2))
    assert [*joined.effects] == [SetUpRound(2)]
    joined.feed(over(1, released=True))
    assert [*joined.effects] == [Tell(joined.round(2), Go())]


def test_between_two_rounds_who_is_leaving_waits_for_the_next_order(joined: Play) -> None:
    joined.feed(RoundOrdered(number=1))
    joined.feed(Ended(outcome="completed", at_s=ENDED_AT_S, last_round=2))
    joined.feed(over(1, released=True))
    assert (joined.state, joined.effects) == (State.LEAVING, ())


@pytest.mark.parametrize("number", [1, 3])
def test_an_old_order_or_one_after_a_lost_one_changes_nothing_at_the_end(joined: Play, number: int) -> None:
    joined.play_round(1, released=True)
    joined.feed(Ended(outcome="completed", at_s=ENDED_AT_S, last_round=3))
    before = joined.data
    joined.feed(RoundOrdered(number=number))
    assert (joined.state, joined.data, joined.effects) == (State.LEAVING, before, ())


def test_a_last_round_that_never_comes_leaves_no_model(joined: Play) -> None:
    joined.play_round(1, released=True)
    joined.feed(Ended(outcome="completed", at_s=ENDED_AT_S, last_round=2))
    joined.feed(WaitIsOver(at_s=99.0))
    assert (joined.state, joined.effects) == (State.ENDED, (FAILED,))


def test_no_round_is_begun_once_the_manifests_are_released(joined: Play) -> None:
    for number in range(1, 9):
        joined.play_round(number, released=True)
    for number in (9, 10):
        joined.feed(RoundOrdered(number=number))
    joined.feed(over(9, released=True))
    why = "round 10 is ordered, and the manifest has 9"
    refusal = CountRefusal(RejectReason.OVER, "round-opened", MANIFEST.coordinator, why)
    assert (joined.state, joined.effects) == (State.JOINED, (refusal,))
    with pytest.raises(PeerError, match="round 11 is ordered, and the manifest has 9") as caught:
        joined.feed(RoundOrdered(number=11))
    assert caught.value.reason is RejectReason.OVER
    joined.feed(Ended(outcome="completed", at_s=ENDED_AT_S))
    assert (joined.state, joined.effects) == (State.ENDED, (SaveModel(), EndorseModel(9), COMPLETED)), (
        "nothing is waited for"
    )


def test_no_round_beyond_the_manifests_is_begun_by_who_is_leaving(joined: Play) -> None:
    for number in range(1, 11):
        joined.feed(RoundOrdered(number=number))
    joined.feed(Ended(outcome="completed", at_s=ENDED_AT_S))
    for number in range(1, 10):
        assert joined.state is State.LEAVING
        joined.feed(over(number, released=True))
    assert (joined.state, joined.effects) == (State.ENDED, (SaveModel(), EndorseModel(9), COMPLETED))


@pytest.mark.parametrize("released", [True, False])
def test_rounds_that_wait_are_no_more_than_the_manifest_could_have(joined: Play, *, released: bool) -> None:
    """Whatever the verdicts will be, which a client that is slow does not have yet."""
    joined.play_round(1, released=released)
    for number in range(2, 9 + MANIFEST.max_void_rounds + 1):
        joined.feed(RoundOrdered(number=number))
    with pytest.raises(PeerError, match="round 13 is ordered") as caught:
        joined.feed(RoundOrdered(number=13))
    assert caught.value.reason is RejectReason.OVER


@pytest.mark.parametrize("number", [1, 2])
def test_an_order_that_came_before_is_old_news(joined: Play, number: int) -> None:
    """Round 1 is over and round 2 runs: neither is set up a second time."""
    joined.play_round(1, released=True)
    joined.feed(RoundOrdered(number=2))
    before = joined.data
    joined.feed(RoundOrdered(number=number))
    assert (joined.data, joined.effects) == (before, ())


# An old copy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.JOINED, State.LEAVING])
def test_who_took_part_in_a_round_that_it_never_began_holds_an_old_copy_and_leaves(state: State) -> None:
    play = Play()
    play.advance(state)
    play.feed(RoundOrdered(number=4, attended=3))
    assert (play.state, play.answer()) == (State.ENDED, PartyFailed(code=Code.DISK_OLD))
    report, _, record = play.effects
    assert isinstance(report, ReportOldCopy)
    assert "took part in round 3" in report.evidence
    assert record == FAILED, "no model is kept, and nothing is set up or asked for"


def test_who_was_away_is_behind_and_holds_no_old_copy(joined: Play) -> None:
    joined.play_round(1, released=True)
    joined.feed(RoundOrdered(number=5, attended=1))
    assert (joined.state, joined.data.catching) == (State.JOINED, 4)


def test_a_round_that_was_begun_may_have_been_taken_part_in_however_it_ended(joined: Play) -> None:
    """Rounds 1 and 3 are begun, and round 2 comes from a peer; nobody knows when a process stopped in one."""
    joined.play_round(1, released=True)
    joined.feed(RoundOrdered(number=3, attended=1))
    caught_up(joined, 2, released=2)
    joined.feed(RoundOrdered(number=4, attended=3))
    assert joined.state is State.JOINED


# What was lost ------------------------------------------------------------------------------------------


def caught_up(play: Play, number: int, *, released: int, machine: int = 0, held: HeldModel = PEERS) -> None:
    """The machine that asked the peers has made the model of one of them ours."""
    voucher = Voucher(round=number, released=released, model_hmac=PEERS_MODEL)
    play.feed(CaughtUp(number=machine or play.data.catching, voucher=voucher, held=held))


def record_of(number: int) -> Record:
    return Record("caught-up", {"up_to": number, "model_hmac": PEERS_MODEL})


@pytest.mark.parametrize("number", [2, 3, 12])
def test_an_order_that_skips_others_begins_nothing_and_asks_the_peers(joined: Play, number: int) -> None:
    joined.feed(RoundOrdered(number=number))
    lost = number - 1
    assert [*joined.effects] == [
        SetUpRound(number),
        SetUpCatchUp(lost),
        Tell(joined.catch_up(lost), Lost(number=lost)),
    ]
    assert not joined.data.may_begin


def test_an_order_that_skips_others_while_a_round_is_open_lets_it_go_on(joined: Play) -> None:
    joined.play_round(1, released=True)
    joined.feed(RoundOrdered(number=2))
    joined.feed(RoundOrdered(number=5))
    assert [*joined.effects] == [SetUpRound(5), SetUpCatchUp(4), Tell(joined.catch_up(4), Lost(number=4))]
    joined.feed(over(2, released=True))
    assert (joined.data.over, joined.effects) == (2, ()), "rounds 3 and 4 are still missing"
    caught_up(joined, 4, released=4)
    assert [*joined.effects] == [AbandonRounds(4), record_of(4), Tell(joined.round(5), Go())]
    assert joined.data.catching == 0


@pytest.mark.parametrize("number", [14, 100])
def test_an_order_beyond_what_the_manifest_has_is_refused_and_nothing_is_asked_for(
    joined: Play, number: int
) -> None:
    before = joined.data
    with pytest.raises(PeerError) as caught:
        joined.feed(RoundOrdered(number=number))
    assert caught.value.reason is RejectReason.OVER
    assert joined.data == before


def test_a_later_order_while_asking_is_set_up_and_nothing_more(joined: Play) -> None:
    joined.feed(RoundOrdered(number=3))
    joined.feed(RoundOrdered(number=4))
    assert [*joined.effects] == [SetUpRound(4)]


def test_an_order_that_seemed_lost_and_comes_late_is_old_news(joined: Play) -> None:
    joined.feed(RoundOrdered(number=3))
    before = joined.data
    joined.feed(RoundOrdered(number=2))
    assert (joined.data, joined.effects) == (before, ())


def test_who_asks_already_asks_for_a_later_model_when_more_is_lost(joined: Play) -> None:
    joined.feed(RoundOrdered(number=3))
    joined.feed(RoundOrdered(number=7))
    assert [*joined.effects] == [SetUpRound(7), Tell(joined.catch_up(2), Lost(number=6))], "the same machine"
    caught_up(joined, 6, released=6)
    assert joined.effects[-1] == Tell(joined.round(7), Go())


def test_a_model_that_came_too_early_is_a_step_on_the_way(joined: Play) -> None:
    """More was lost while it was being checked; it is ours all the same, and the rounds up to it are behind us."""
    joined.feed(RoundOrdered(number=3))
    joined.feed(RoundOrdered(number=7))
    caught_up(joined, 4, released=4)
    assert [*joined.effects] == [
        AbandonRounds(4),
        record_of(4),
        SetUpCatchUp(6),
        Tell(joined.catch_up(6), Lost(number=6)),
    ]
    caught_up(joined, 6, released=6)
    assert joined.effects[-1] == Tell(joined.round(7), Go())


def test_a_round_is_asked_whether_it_waits_when_two_more_are_ordered(joined: Play) -> None:
    for number in (1, 2):
        joined.feed(RoundOrdered(number=number))
        assert not any(isinstance(effect, Tell) and effect.event == Overtaken() for effect in joined.effects)
    for number in (3, 4):
        joined.feed(RoundOrdered(number=number))
        assert [*joined.effects] == [SetUpRound(number), Tell(joined.round(1), Overtaken())]


def test_so_is_a_round_that_begins_when_two_more_are_ordered(joined: Play) -> None:
    for number in (1, 2, 3, 4):
        joined.feed(RoundOrdered(number=number))
    joined.feed(over(1, released=True))
    assert [*joined.effects] == [Tell(joined.round(2), Go()), Tell(joined.round(2), Overtaken())]
    joined.feed(over(2, released=True))
    assert [*joined.effects] == [Tell(joined.round(3), Go())]


@pytest.mark.parametrize("loss", [SumsLost(number=1), Strayed(number=1)], ids=["lost", "strayed"])
def test_sums_that_are_lost_are_made_up_for_by_a_peer(joined: Play, loss: SumsLost | Strayed) -> None:
    for number in (1, 2, 3):
        joined.feed(RoundOrdered(number=number))
    joined.feed(loss)
    assert [*joined.effects] == [SetUpCatchUp(1), Tell(joined.catch_up(1), Lost(number=1))]
    joined.feed(RoundOrdered(number=4))
    assert [*joined.effects] == [SetUpRound(4)], "it is asked once"
    caught_up(joined, 2, released=1)
    assert [*joined.effects] == [AbandonRounds(2), record_of(2), Tell(joined.round(3), Go())]
    assert (joined.data.over, joined.data.released) == (2, 1)


def test_a_loss_that_is_told_late_is_none(joined: Play) -> None:
    joined.play_round(1, released=True)
    before = joined.data
    joined.feed(SumsLost(number=1))
    assert (joined.data, joined.effects) == (before, ())


def test_sums_that_come_after_all_are_gone_on_from_and_the_peers_are_left_alone(joined: Play) -> None:
    for number in (1, 2, 3):
        joined.feed(RoundOrdered(number=number))
    joined.feed(SumsLost(number=1))
    joined.feed(over(1, released=True))
    assert [*joined.effects] == [Tell(joined.catch_up(1), NeverMind()), Tell(joined.round(2), Go())]
    assert (joined.data.catching, joined.data.may_begin) == (0, True)


def test_a_model_of_a_round_that_we_came_past_ourselves_changes_nothing(joined: Play) -> None:
    """It was being checked when the sums came; the round after it has begun."""
    for number in (1, 2, 3):
        joined.feed(RoundOrdered(number=number))
    joined.feed(SumsLost(number=1))
    joined.feed(over(1, released=True))
    before = joined.data
    caught_up(joined, 1, released=1, machine=1)
    assert (joined.data, joined.effects) == (before, ()), "above all, no round is begun twice"


def test_a_later_model_that_comes_when_nothing_is_lost_any_more_is_gone_on_from(joined: Play) -> None:
    for number in (1, 2, 3):
        joined.feed(RoundOrdered(number=number))
    joined.feed(SumsLost(number=1))
    joined.feed(over(1, released=True))
    caught_up(joined, 2, released=2, machine=1)
    assert [*joined.effects] == [AbandonRounds(2), record_of(2), Tell(joined.round(3), Go())]


def test_a_model_of_an_earlier_loss_leaves_the_later_one_to_its_own_machine(joined: Play) -> None:
    for number in (1, 2, 3):
        joined.feed(RoundOrdered(number=number))
    joined.feed(SumsLost(number=1))
    joined.feed(over(1, released=True))
    joined.feed(RoundOrdered(number=8))
    assert joined.data.catching == 7
    caught_up(joined, 3, released=3, machine=1)
    assert [*joined.effects] == [AbandonRounds(3), record_of(3)]
    assert (joined.data.over, joined.data.catching) == (3, 7)


def test_a_peers_model_may_be_ahead_of_our_orders(joined: Play) -> None:
    joined.feed(RoundOrdered(number=3))
    caught_up(joined, 5, released=5)
    assert [*joined.effects] == [AbandonRounds(5), record_of(5)], "no round is ordered that comes after it"
    for number in (4, 5):
        joined.feed(RoundOrdered(number=number))
        assert joined.effects == (), "old news"
    joined.feed(RoundOrdered(number=6))
    assert [*joined.effects] == [SetUpRound(6), Tell(joined.round(6), Go())]


def test_no_round_is_begun_after_a_peers_last_model(joined: Play) -> None:
    joined.feed(RoundOrdered(number=9))
    caught_up(joined, 9, released=9)
    assert joined.data.complete
    joined.feed(Ended(outcome="completed", at_s=ENDED_AT_S))
    assert (joined.state, joined.effects) == (State.ENDED, (SaveModel(), EndorseModel(9), COMPLETED))


def test_a_run_that_ends_while_we_catch_up_ends_without_a_model(joined: Play) -> None:
    """The peers have left with what we asked them for."""
    joined.feed(RoundOrdered(number=3))
    joined.feed(Ended(outcome="completed", at_s=ENDED_AT_S))
    assert (joined.state, joined.effects) == (State.ENDED, (FAILED,))


def test_sums_that_are_said_to_be_lost_at_the_end_have_until_then(joined: Play) -> None:
    joined.advance(State.LEAVING)
    before = joined.data
    joined.feed(SumsLost(number=1))
    assert (joined.state, joined.data, joined.effects) == (State.LEAVING, before, ())


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, (AbandonRounds(1), record_of(1), Tell(Key("round", MANIFEST.run_id, 2), Go()))),
        (2, (AbandonRounds(2), record_of(2), SaveModel(), COMPLETED)),
    ],
)
def test_a_model_that_was_being_checked_when_the_run_ended_is_gone_on_from(
    joined: Play, number: int, expected: tuple[Effect, ...]
) -> None:
    for each in (1, 2):
        joined.feed(RoundOrdered(number=each))
    joined.feed(Ended(outcome="completed", at_s=ENDED_AT_S))
    caught_up(joined, number, released=number, machine=1)
    assert joined.effects == expected
    assert joined.state is (State.ENDED if number == 2 else State.LEAVING)


def test_an_old_model_that_was_being_checked_when_the_run_ended_changes_nothing(joined: Play) -> None:
    joined.play_round(1, released=True)
    joined.feed(RoundOrdered(number=2))
    joined.feed(Ended(outcome="completed", at_s=ENDED_AT_S))
    before = joined.data
    caught_up(joined, 1, released=1, machine=1)
    assert (joined.state, joined.data, joined.effects) == (State.LEAVING, before, ())


# What we vouch for --------------------------------------------------------------------------------------


def asked(play: Play, *, after: int, giver: PartyId = SECOND) -> list[Effect]:
    play.feed(SnapshotAsked(client=THIRD, after=after, giver=giver))
    return [*play.effects]


def word(*vouchers: Voucher) -> Publish:
    return Publish(THIRD, Role.CLIENT, ModelVouched(vouchers=vouchers))


def voucher_of(number: int, released: int, model: str = MODEL) -> Voucher:
    return Voucher(round=number, released=released, model_hmac=model)


def test_a_client_vouches_for_what_it_held_after_the_rounds_since_released_or_void(joined: Play) -> None:
    assert asked(joined, after=0) == [], "before the first round it has nothing to say"
    joined.play_round(1, released=True)
    joined.play_round(2, released=False)
    joined.play_round(3, released=True)
    first, second, third = voucher_of(1, 1), voucher_of(2, 1), voucher_of(3, 2)
    assert asked(joined, after=0) == [word(first, second, third)]
    assert asked(joined, after=2) == [word(third)]
    assert asked(joined, after=3) == []


def test_only_the_one_that_is_asked_for_it_sends_its_model(joined: Play) -> None:
    joined.play_round(1, released=True)
    assert asked(joined, after=0, giver=ME) == [word(voucher_of(1, 1)), SendSnapshot(THIRD, 1)]
    assert asked(joined, after=1, giver=ME) == [], "who holds it too has lost nothing that we could give"


def test_a_peer_that_asks_again_is_sent_one_model_of_a_round(joined: Play) -> None:
    joined.play_round(1, released=True)
    asked(joined, after=0, giver=ME)
    assert asked(joined, after=0, giver=ME) == [word(voucher_of(1, 1))], "it waits for what is being sent"
    joined.feed(SnapshotSent(client=THIRD, left=True))
    assert asked(joined, after=0, giver=ME) == [word(voucher_of(1, 1))]
    joined.play_round(2, released=True)
    assert SendSnapshot(THIRD, 2) in asked(joined, after=0, giver=ME)


def give_all(play: Play, *, left: bool) -> int:
    """Have a peer ask after each round, and send as many models as the limit allows; the next round's number."""
    for number in range(1, play.data.snapshots_per_peer + 1):
        play.play_round(number, released=True)
        assert SendSnapshot(THIRD, number) in asked(play, after=0, giver=ME)
        play.feed(SnapshotSent(client=THIRD, left=left))
    return number + 1


def test_a_peer_that_was_sent_as_many_models_as_the_policy_allows_is_refused(joined: Play) -> None:
    joined.play_round(give_all(joined, left=True), released=True)
    before = joined.data
    with pytest.raises(PeerError, match="was given 3 in this run") as caught:
        asked(joined, after=0, giver=ME)
    assert (caught.value.reason, joined.data) == (RejectReason.OVER_LIMIT, before)
    assert len(asked(joined, after=0)) == 1, "for another peer's model it still vouches"


def test_a_model_of_which_nothing_left_does_not_count(joined: Play) -> None:
    """It had moved on."""
    number = give_all(joined, left=False)
    joined.play_round(number, released=True)
    assert SendSnapshot(THIRD, number) in asked(joined, after=0, giver=ME)


@pytest.mark.parametrize("state", [State.JOINED, State.LEAVING])
def test_a_model_that_was_being_sent_is_sent_again_after_a_restart(joined: Play, state: State) -> None:
    """The peer will not be given another one of this round."""
    joined.play_round(1, released=True)
    asked(joined, after=0, giver=ME)
    if state is State.LEAVING:
        joined.feed(RoundOrdered(number=2))
        joined.feed(Ended(outcome="completed", at_s=ENDED_AT_S))
    assert SendSnapshot(THIRD, 1, again=True) in KIND.resume(joined.state, joined.data)
    joined.feed(SnapshotSent(client=THIRD, left=True))
    assert not any(isinstance(effect, SendSnapshot) for effect in KIND.resume(joined.state, joined.data))


def test_a_client_vouches_for_the_last_rounds_only() -> None:
    play = Play(make_manifest(rounds=VOUCHED_ROUNDS + 5))
    play.advance(State.JOINED)
    for number in range(1, VOUCHED_ROUNDS + 4):
        play.play_round(number, released=True)
    (effect,) = asked(play, after=0)
    assert isinstance(effect, Publish)
    assert isinstance(effect.body, ModelVouched)
    assert [voucher.round for voucher in effect.body.vouchers] == list(range(4, VOUCHED_ROUNDS + 4))


def test_who_has_caught_up_vouches_for_what_it_took_and_not_for_what_it_never_held(joined: Play) -> None:
    joined.play_round(1, released=True)
    joined.feed(RoundOrdered(number=4))
    caught_up(joined, 3, released=3)
    assert asked(joined, after=0) == [word(voucher_of(3, 3, PEERS_MODEL))]


def test_who_is_leaving_still_vouches(joined: Play) -> None:
    joined.play_round(1, released=True)
    joined.feed(RoundOrdered(number=2))
    joined.feed(Ended(outcome="completed", at_s=ENDED_AT_S))
    assert asked(joined, after=0, giver=ME) == [word(voucher_of(1, 1)), SendSnapshot(THIRD, 1)]
    assert joined.state is State.LEAVING


# Rounds that were void after their first phase ----------------------------------------------------------


def test_one_wasted_round_of_a_model_is_borne_and_the_second_ends_it(joined: Play) -> None:
    joined.play_round(1, released=False, exposed=True)
    assert joined.state is State.JOINED
    joined.play_round(2, released=False, exposed=True)
    why = joined.farewell()
    assert "2 rounds (2 of them from one model)" in why
    assert "allows 3 in a run and 1 from one model" in why
    assert joined.effects[-2:] == (SaveModel(), LEFT)


def test_only_a_released_round_gives_a_new_model(joined: Play) -> None:
    """A void round in between changes no model, so it resets nothing, and it does not count itself."""
    joined.play_round(1, released=False, exposed=True)
    joined.play_round(2, released=False)
    assert joined.state is State.JOINED
    joined.play_round(3, released=False, exposed=True)
    assert "2 of them from one model" in joined.farewell()


def test_the_run_has_a_limit_that_nothing_resets(joined: Play) -> None:
    for model in range(3):
        joined.play_round(2 * model + 1, released=False, exposed=True)
        joined.play_round(2 * model + 2, released=True)
    assert joined.state is State.JOINED
    joined.play_round(7, released=False, exposed=True)
    assert "4 rounds (1 of them from one model)" in joined.farewell()


@pytest.mark.parametrize(("caps", "borne"), [(VoidCaps(per_model=0, per_run=9), 0), (VoidCaps(per_model=2), 2)])
def test_the_policys_limits_are_the_ones_that_count(caps: VoidCaps, borne: int) -> None:
    play = Play(caps=caps)
    play.advance(State.JOINED)
    for number in range(1, borne + 1):
        play.play_round(number, released=False, exposed=True)
        assert play.state is State.JOINED
    play.play_round(borne + 1, released=False, exposed=True)
    assert play.state is State.ENDED


def test_void_rounds_that_showed_nothing_are_not_counted(joined: Play) -> None:
    for number in range(1, 10):
        joined.play_round(number, released=False)
    assert joined.state is State.JOINED


def test_the_limits_hold_for_rounds_that_were_ordered_before_the_run_was_called_completed(joined: Play) -> None:
    """Otherwise a coordinator that calls it completed first could waste as many as it ordered."""
    for number in (1, 2, 3):
        joined.feed(RoundOrdered(number=number))
    joined.feed(Ended(outcome="completed", at_s=ENDED_AT_S))
    joined.feed(over(1, released=False, exposed=True))
    assert (joined.state, joined.effects[1:]) == (State.LEAVING, (Tell(joined.round(2), Go()),))
    joined.feed(over(2, released=False, exposed=True))
    assert "2 of them from one model" in joined.farewell()


def test_who_leaves_does_not_begin_the_round_that_waits(joined: Play) -> None:
    joined.play_round(1, released=False, exposed=True)
    joined.feed(RoundOrdered(number=2))
    joined.feed(RoundOrdered(number=3))
    joined.feed(over(2, released=False, exposed=True))
    assert joined.state is State.ENDED
    assert not any(isinstance(effect, Tell) for effect in joined.effects)


UNION = make_manifest(rounds=9, strategy="sec-union")


@pytest.mark.parametrize(
    ("manifest", "released", "expected"),
    [
        pytest.param(UNION, 1, (1, 1), id="void meanwhile, from the same model"),
        pytest.param(UNION, 2, (1, 0), id="void meanwhile, and the model is another"),
        pytest.param(UNION, 3, (0, 0), id="none was void"),
        pytest.param(MANIFEST, 1, (0, 0), id="a strategy of one phase shows nothing"),
    ],
)
def test_of_a_round_whose_verdict_was_lost_the_worst_is_thought(
    manifest: Manifest, released: int, expected: tuple[int, int]
) -> None:
    play = Play(manifest)
    play.advance(State.JOINED)
    play.play_round(1, released=True)
    play.feed(RoundOrdered(number=2))
    play.feed(RoundOrdered(number=4))
    caught_up(play, 3, released=released)
    assert (play.data.wasted, play.data.wasted_on_model) == expected


def test_who_was_away_and_had_begun_nothing_has_wasted_nothing() -> None:
    play = Play(UNION)
    play.advance(State.JOINED)
    play.feed(RoundOrdered(number=4))
    caught_up(play, 3, released=0)
    assert play.data.wasted == 0


def test_catching_up_resets_no_limit() -> None:
    """Nor does it if the model is the same: else a coordinator that skips rounds could waste any number."""
    play = Play(UNION)
    play.advance(State.JOINED)
    play.play_round(1, released=False, exposed=True)
    play.feed(RoundOrdered(number=2))
    play.feed(RoundOrdered(number=4))
    caught_up(play, 3, released=0)
    assert "2 of them from one model" in play.farewell()


def test_a_void_round_is_noted_on_the_model_that_it_was_of(joined: Play) -> None:
    model = joined.data.models[-1]
    joined.play_round(1, released=False, exposed=True)
    assert joined.noted() == [NoteVoid((model,), 1)]
    joined.play_round(2, released=True)
    assert joined.noted() == []
    joined.play_round(3, released=False)
    assert joined.noted() == [], "nothing was shown, and nothing is noted"
    joined.play_round(4, released=False, exposed=True)
    assert joined.noted() == [NoteVoid((digest_of(2),), 4)]


def test_void_rounds_of_the_same_model_in_other_runs_count_too(joined: Play) -> None:
    """The ledger knows them, of any model that the run comes to; of the first it is asked before we join."""
    joined.feed(RoundOrdered(number=1))
    joined.feed(over(1, released=True, voids=1))
    assert (joined.data.wasted_on_model, joined.data.wasted) == (1, 0)
    joined.play_round(2, released=False, exposed=True)
    assert "1 rounds (2 of them from one model)" in joined.farewell()


def test_void_rounds_that_another_run_had_meanwhile_are_found(joined: Play) -> None:
    joined.feed(RoundOrdered(number=1))
    joined.feed(over(1, released=False, exposed=True, voids=1))
    assert "1 rounds (2 of them from one model)" in joined.farewell()


# Released rounds that move nothing ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "earlier", "expected"),
    [
        pytest.param(0.0, (), True, id="no step at all"),
        pytest.param(1e-9, (), False, id="the first has nothing to be compared with"),
        pytest.param(1.0, (8.0, 8.0), False, id="an eighth"),
        pytest.param(0.99, (8.0, 8.0), True, id="less than an eighth"),
        pytest.param(0.99, (1.0, 9.0), False, id="the lower of two in the middle"),
        pytest.param(0.99, (9.0, 0.1, 9.0), True, id="the median, not the last or the mean"),
        pytest.param(math.inf, (1.0,), False, id="no number"),
    ],
)
def test_a_step_is_small_beside_the_median_of_those_before(
    step: float, earlier: tuple[float, ...], *, expected: bool
) -> None:
    assert is_small(step, earlier, kappa=8) is expected


def test_kappa_is_a_parameter() -> None:
    assert is_small(0.4, (1.0,), kappa=2)
    assert not is_small(0.4, (1.0,), kappa=3)


def test_a_released_round_that_moves_nothing_counts_as_void_and_the_second_ends_it(joined: Play) -> None:
    first = joined.data.models[-1]
    joined.play_round(1, released=True, exposed=True, step=0.0)
    assert (joined.state, joined.data.released) == (State.JOINED, 1)
    assert joined.noted() == [NoteVoid((first, digest_of(1)), 1)]
    joined.play_round(2, released=False, exposed=True)
    assert "2 rounds (2 of them from one model)" in joined.farewell()


def test_only_a_larger_step_leaves_what_was_counted_behind(joined: Play) -> None:
    """A small one leads to a model that counts as the same: what is noted of one is noted of all."""
    joined.play_round(1, released=True, step=8.0)
    joined.play_round(2, released=False, exposed=True)
    joined.play_round(3, released=True, step=0.5)
    assert (joined.data.wasted_on_model, joined.noted()) == (1, [NoteVoid((digest_of(1), digest_of(3)), None)])
    joined.play_round(4, released=True, exposed=True, step=8.0)
    assert (joined.data.wasted_on_model, joined.data.wasted) == (0, 1)
    assert joined.data.models == (digest_of(4),)
    assert joined.data.steps == (8.0, 8.0), "what counts as void is not what steps are compared with"


def test_a_round_without_us_that_moves_nothing_is_not_counted(joined: Play) -> None:
    for number in range(1, 5):
        joined.play_round(number, released=True, step=0.0)
    assert (joined.state, joined.data.wasted, joined.noted()) == (State.JOINED, 0, [])


def test_a_step_that_is_no_number_is_compared_with_nothing(joined: Play) -> None:
    joined.play_round(1, released=True, exposed=True, step=math.inf)
    assert (joined.data.wasted, joined.data.steps) == (0, ())


def test_sums_without_learning_move_nothing_that_counts() -> None:
    """A client's numbers do not depend on the model; how often it says them is limited otherwise."""
    play = Play(make_manifest(rounds=9, strategy="sum"), caps=VoidCaps(per_model=0, per_run=0))
    play.advance(State.JOINED)
    play.play_round(1, released=True, exposed=True, step=0.0)
    assert (play.state, play.data.wasted) == (State.JOINED, 0)


def test_nobody_leaves_a_run_whose_rounds_are_all_done() -> None:
    play = Play(make_manifest(rounds=1), caps=VoidCaps(per_model=0, per_run=0))
    play.advance(State.JOINED)
    play.play_round(1, released=True, exposed=True, step=0.0)
    assert (play.state, play.data.wasted) == (State.JOINED, 1)


def test_a_peers_model_that_is_hardly_another_leaves_nothing_behind() -> None:
    """We began the round before and never heard of it: it may be the one that moved nothing."""
    play = Play(UNION)
    play.advance(State.JOINED)
    play.play_round(1, released=True, step=8.0)
    play.feed(RoundOrdered(number=2))
    play.feed(RoundOrdered(number=4))
    caught_up(play, 3, released=3, held=replace(PEERS, step=0.5))
    assert (play.data.wasted, play.data.wasted_on_model) == (1, 1)
    assert play.noted() == [NoteVoid((digest_of(1), PEERS.sha256), 2)]


def test_a_void_round_that_was_lost_is_noted_on_the_model_that_it_was_of() -> None:
    play = Play(UNION)
    play.advance(State.JOINED)
    play.play_round(1, released=True)
    play.feed(RoundOrdered(number=2))
    play.feed(RoundOrdered(number=4))
    caught_up(play, 3, released=2)
    assert play.noted() == [NoteVoid((digest_of(1),), 2)]
    assert play.data.models == (PEERS.sha256,)


# The end ------------------------------------------------------------------------------------------------


def test_the_model_is_kept_at_the_end(joined: Play) -> None:
    joined.feed(Ended(outcome="completed", at_s=ENDED_AT_S))
    assert (joined.state, joined.effects) == (State.ENDED, (SaveModel(), COMPLETED))


def test_a_slow_client_takes_in_the_last_sums_before_it_keeps_the_model(joined: Play) -> None:
    play = joined
    play.feed(RoundOrdered(number=1))
    play.feed(RoundOrdered(number=2))
    play.feed(Ended(outcome="completed", at_s=ENDED_AT_S))
    assert (play.state, play.effects) == (State.LEAVING, (IN_TIME,))
    play.feed(over(1, released=True))
    assert (play.state, play.effects) == (State.LEAVING, (Tell(play.round(2), Go()),))
    play.feed(over(2, released=True))
    assert (play.state, play.effects) == (State.ENDED, (SaveModel(), COMPLETED))


@pytest.mark.parametrize(
    "event",
    [RoundBroken(number=1), Strayed(number=1), Failed("RoundOver: the disk is full")],
    ids=["broken", "strayed", "failed"],
)
def test_a_slow_client_that_fails_at_the_end_keeps_no_model(event: object) -> None:
    play = Play()
    play.advance(State.LEAVING)
    play.feed(event)
    assert (play.state, play.effects) == (State.ENDED, (FAILED,))


def test_who_has_waited_long_enough_asks_its_round_what_it_waits_for_and_keeps_no_model(joined: Play) -> None:
    joined.advance(State.LEAVING)
    joined.feed(WaitIsOver(at_s=IN_TIME.at_s))
    assert [joined.state, *joined.effects] == [State.LEAVING, Tell(joined.round(1), Overtaken())]
    joined.feed(SumsLost(number=1))
    assert [joined.state, *joined.effects] == [State.ENDED, FAILED]


def test_who_is_busy_with_rounds_that_are_all_here_is_given_the_time(joined: Play) -> None:
    for number in (1, 2):
        joined.feed(RoundOrdered(number=number))
    joined.feed(Ended(outcome="completed", at_s=ENDED_AT_S, last_round=2))
    joined.feed(WaitIsOver(at_s=IN_TIME.at_s))
    joined.feed(over(1, released=True))
    assert [*joined.effects] == [Tell(joined.round(2), Go()), Tell(joined.round(2), Overtaken())]
    joined.feed(over(2, released=True))
    assert [joined.state, *joined.effects] == [State.ENDED, SaveModel(), COMPLETED]


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
def test_a_run_that_was_not_completed_ends_at_once(joined: Play, outcome: str) -> None:
    joined.feed(RoundOrdered(number=1))
    joined.feed(Ended(outcome=outcome, at_s=ENDED_AT_S))
    assert joined.state is State.ENDED
    assert joined.effects[-1] == Record("ended", {"outcome": outcome})


def test_a_failure_of_this_machine_is_told(joined: Play) -> None:
    joined.feed(Failed("SendSnapshot: a seal does not close", Code.PROTOCOL_PEER))
    assert joined.said() == [PartyFailed(code=Code.PROTOCOL_PEER)], "the sentence is for our log"
    assert joined.effects[-1] == Record("ended", {"outcome": "failed"})


def test_a_broken_round_is_for_the_coordinator_to_decide_upon(joined: Play) -> None:
    joined.feed(RoundOrdered(number=1))
    joined.feed(RoundBroken(number=1))
    assert (joined.state, joined.effects) == (State.JOINED, ())


# After a restart ----------------------------------------------------------------------------------------


def test_the_last_wait_has_its_limit_again_after_a_restart() -> None:
    play = Play()
    assert KIND.resume(play.state, play.data) == ()
    play.advance(State.LEAVING)
    assert KIND.resume(play.state, play.data) == (IN_TIME,)
