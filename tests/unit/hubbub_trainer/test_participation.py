"""A trainer in a run: rounds in order, what was lost of them, what it vouches for, and when it leaves."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

import pytest

from hubbub.errors import Code, PeerError, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import CountRefusal, Effect, Failed, Key, Publish, Record, SetTimer, Tell
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.messages.runs import PartyFailed
from hubbub.messages.snapshots import ModelVouched, Voucher
from hubbub_trainer import events
from hubbub_trainer.events import HeldModel, RoundBroken, RoundHeardOf, SnapshotSent, Strayed, SumsLost
from hubbub_trainer.phases.participation import (
    KIND,
    VOUCHED_ROUNDS,
    AbandonRounds,
    EndorseModel,
    NoteVoid,
    Participation,
    SaveModel,
    SendSnapshot,
    SetUpCatchUp,
    SetUpRound,
    State,
    VoidCaps,
    is_small,
)
from support import run_play
from support.builders import make_manifest, make_run_key
from support.machine_play import IGNORED, MachinePlay, Row
from support.run_play import COMPLETED, FAILED, KEYS, LEFT, MANIFEST, ME, OTHER_KEYS, SECOND, THIRD, check_old_copy

UNION = make_manifest(rounds=9, strategy="sec-union")
MODEL, PEERS_MODEL = "5d" * 32, "5e" * 32
PEERS = HeldModel(sha256="5f" * 32, step=1.0)
ENDED_AT_S = 50.0
LEAVING, ENDED = State.LEAVING, State.ENDED
IN_TIME = SetTimer("leave", ENDED_AT_S + MANIFEST.phase_timeout_s, events.WaitIsOver)
TOO_LATE = events.WaitIsOver(at_s=IN_TIME.at_s)
KEPT = (ENDED, SaveModel(), COMPLETED)
ENDORSED = (ENDED, SaveModel(), EndorseModel(9), COMPLETED)


def digest_of(number: int) -> str:
    """The model that a round leaves; 0 is the one that the run began with."""
    return f"{number:064x}"


def order(number: int, attended: int = 0) -> events.RoundOrdered:
    return events.RoundOrdered(number=number, attended=attended)


def over(
    number: int,
    *,
    released: bool = True,
    exposed: bool = False,
    step: float = 1.0,
    voids: int = 0,
    metrics: Mapping[str, float] = MappingProxyType({}),
) -> events.RoundOver:
    """The end of a round that leaves a model of its own if it was released."""
    held = HeldModel(sha256=digest_of(number if released else 0), step=step if released else 0.0, voids=voids)
    return events.RoundOver(
        number=number, released=released, model_hmac=MODEL, held=held, exposed=exposed, metrics=metrics
    )


def completed(last: int = 0) -> events.Ended:
    return events.Ended(outcome="completed", at_s=ENDED_AT_S, last_round=last)


def round_key(number: int) -> Key:
    return Key("round", MANIFEST.run_id, number)


def go(number: int, place: int | None = None) -> Tell:
    """Begin a round; its place among those that are released is its number, if none before it was void."""
    return Tell(round_key(number), events.Go(place=place or number))


def overtaken(number: int) -> Tell:
    return Tell(round_key(number), events.Overtaken())


def tell_catch_up(machine: int, event: object) -> Tell:
    return Tell(Key("catchup", MANIFEST.run_id, machine), event)


def ask_peers(lost: int) -> tuple[Effect, Effect]:
    return SetUpCatchUp(lost), tell_catch_up(lost, events.Lost(number=lost))


def caught_up(
    number: int, machine: int, *, released: int | None = None, held: HeldModel = PEERS
) -> events.CaughtUp:
    """The machine that asked the peers has made the model of one of them ours."""
    count = number if released is None else released
    voucher = Voucher(round=number, released=count, model_hmac=PEERS_MODEL)
    return events.CaughtUp(number=machine, voucher=voucher, held=held)


def adopted(number: int) -> tuple[Effect, Effect]:
    return AbandonRounds(number), Record("caught-up", {"up_to": number, "model_hmac": PEERS_MODEL})


class Play(MachinePlay[State, Participation]):
    """One trainer in a run that it was admitted to."""

    def __init__(self, manifest: Manifest = MANIFEST, caps: VoidCaps | None = None) -> None:
        data = Participation(
            me=ME,
            key=Key("run", manifest.run_id),
            manifest=manifest,
            run_key=make_run_key(manifest, ME),
            publics=KEYS.publics,
            keys_sha256=KEYS.keys_sha256,
            caps=caps or VoidCaps(),
            models=(digest_of(0),),
        )
        super().__init__(KIND, data, manifest.coordinator)

    def farewell(self) -> str:
        """The sentence for our own log when we leave the run; the coordinator is told the code."""
        self.at(ENDED)
        assert self.said() == [PartyFailed(code=Code.POLICY_VOID_ROUNDS)]
        assert self.effects[-2:] == (SaveModel(), LEFT)
        return self.logged()

    def release(self, *numbers: int, exposed: bool = False, step: float = 1.0) -> None:
        for number in numbers:
            self.feed(order(number), over(number, exposed=exposed, step=step))

    def void(self, *numbers: int, exposed: bool = False) -> None:
        """Rounds from the present model, which stays."""
        for number in numbers:
            end = over(number, released=False, exposed=exposed)
            self.feed(order(number), replace(end, held=replace(end.held, sha256=self.data.models[-1])))


@pytest.fixture
def joined() -> Play:
    return Play()


@pytest.fixture
def leaving(joined: Play) -> Play:
    joined.feed(order(1), completed())
    joined.at(LEAVING)
    return joined


# Rounds, and what was lost of them ------------------------------------------------------------------------


def done(*numbers: int) -> list[Row]:
    return [row for number in numbers for row in ((order(number), ...), (over(number), ...))]


def ordered(*numbers: int) -> list[Row]:
    return [(order(number), ...) for number in numbers]


REFUSED_TENTH = CountRefusal(
    RejectReason.OVER, "round-opened", MANIFEST.coordinator, "round 10 is ordered, and the manifest has 9"
)
LOST_FIRST: list[Row] = [*ordered(1, 2, 3), (SumsLost(number=1), *ask_peers(1))]

SCRIPTS: dict[str, Iterable[Row]] = {
    "rounds queue and begin in order; one that is two orders behind is asked what it waits for": [
        (order(1), SetUpRound(1), go(1)),
        (order(2), SetUpRound(2)),
        (order(3), SetUpRound(3), overtaken(1)),
        (order(4), SetUpRound(4), overtaken(1)),
        (over(1), go(2), overtaken(2)),
        (over(2, released=False), go(3, place=2)),
        (over(3), go(4, place=3)),
        (over(4),),
        (order(5), SetUpRound(5), go(5, place=4)),
    ],
    "an order that came before is old news": [*done(1), (order(2), ...), (order(1), IGNORED), (order(2), IGNORED)],
    "the next round is set up when it is heard of, and begins with its order": [
        *done(1),
        (RoundHeardOf(number=2), SetUpRound(2)),
        (order(2), SetUpRound(2), go(2)),
    ],
    "no round is begun or heard of once the manifest's are released": [
        *done(*range(1, 9)),
        *ordered(9, 10),
        (over(9), REFUSED_TENTH),
        (order(11), RejectReason.OVER),
        (RoundHeardOf(number=10), RejectReason.OVER),
        (completed(), *ENDORSED),
    ],
    "rounds that wait are no more than the manifest could have, if the first is released": [
        *done(1),
        *ordered(*range(2, 9 + MANIFEST.max_void_rounds + 1)),
        (order(13), RejectReason.OVER),
    ],
    "rounds that wait are no more than the manifest could have, if the first is void": [
        (order(1), ...),
        (over(1, released=False), ...),
        *ordered(*range(2, 9 + MANIFEST.max_void_rounds + 1)),
        (order(13), RejectReason.OVER),
    ],
    "a broken round is for the coordinator to decide upon": [(order(1), ...), (RoundBroken(number=1), IGNORED)],
    # Lost.
    "an order that skips others begins nothing and asks the peers": [
        (order(3), SetUpRound(3), *ask_peers(2)),
        (order(2), IGNORED),
        (order(4), SetUpRound(4)),
        (order(7), SetUpRound(7), tell_catch_up(2, events.Lost(number=6))),
        (caught_up(6, 2), *adopted(6), go(7)),
    ],
    "the first order may be the last": [(order(12), SetUpRound(12), *ask_peers(11))],
    "an order beyond what the manifest has is refused, and nothing is asked for": [
        (order(13), RejectReason.OVER),
        (order(100), RejectReason.OVER),
    ],
    "a model that came too early is a step on the way": [
        *ordered(3, 7),
        (caught_up(4, 2), *adopted(4), *ask_peers(6)),
        (caught_up(6, 6), *adopted(6), go(7)),
    ],
    "an order that skips others while a round is open lets it go on": [
        *done(1),
        (order(2), ...),
        (order(5), SetUpRound(5), *ask_peers(4)),
        (over(2),),
        (caught_up(4, 4), *adopted(4), go(5)),
    ],
    "sums that are lost are made up for by a peer, who is asked once": [
        *LOST_FIRST,
        (order(4), SetUpRound(4)),
        (caught_up(2, 1, released=1), *adopted(2), go(3, place=2)),
    ],
    "a round that has strayed is made up for alike": [
        *ordered(1, 2, 3),
        (Strayed(number=1), *ask_peers(1)),
        (caught_up(2, 1, released=1), *adopted(2), go(3, place=2)),
    ],
    "a loss that is told late is none": [*done(1), (SumsLost(number=1), IGNORED)],
    "sums that come after all are gone on from; a peer's model of the same round changes nothing": [
        *LOST_FIRST,
        (over(1), tell_catch_up(1, events.NeverMind()), go(2)),
        (caught_up(1, 1), IGNORED),
        (caught_up(2, 1), *adopted(2), go(3)),
    ],
    "a model of an earlier loss leaves the later one to its own machine": [
        *LOST_FIRST,
        (over(1), ...),
        (order(8), SetUpRound(8), *ask_peers(7)),
        (caught_up(3, 1), *adopted(3)),
        (caught_up(7, 7), *adopted(7), go(8)),
    ],
    "a peer's model may be ahead of our orders": [
        (order(3), ...),
        (caught_up(5, 2), *adopted(5)),
        (order(4), IGNORED),
        (order(5), IGNORED),
        (order(6), SetUpRound(6), go(6)),
    ],
    "no round is begun after a peer's last model": [
        (order(9), ...),
        (caught_up(9, 8), *adopted(9)),
        (completed(), *ENDORSED),
    ],
    "a run that ends while we catch up ends without a model: the peers have left": [
        (order(3), ...),
        (completed(), ENDED, FAILED),
    ],
    # The end.
    "the model is kept at the end, and endorsed only if the manifest's rounds are done": [(completed(), *KEPT)],
    "a run that failed ends at once": [
        (order(1), ...),
        (replace(completed(), outcome="failed"), ENDED, SaveModel(), FAILED),
    ],
    "a slow client takes in the last sums before it keeps the model": [
        *ordered(1, 2),
        (completed(), LEAVING, IN_TIME),
        (over(1), go(2)),
        (over(2), *KEPT),
    ],
    "a client that hears of the end before the last order waits for it, and takes its round in": [
        *done(1),
        (completed(2), LEAVING, IN_TIME),
        (RoundHeardOf(number=2), SetUpRound(2)),
        (order(2), SetUpRound(2), go(2)),
        (over(2), *KEPT),
    ],
    "two orders that are slower than the end are begun in order": [
        (completed(2), ...),
        (order(1), SetUpRound(1), go(1)),
        (order(2), SetUpRound(2)),
        (over(1), go(2)),
    ],
    "between two rounds a leaving client waits for the next order, for the time of a phase": [
        (order(1), ...),
        (completed(3), LEAVING, IN_TIME),
        (over(1),),
        (order(1), IGNORED),
        (order(3), IGNORED),
        (TOO_LATE, ENDED, FAILED),
    ],
    "no round beyond the manifest's is begun at the end": [
        *ordered(*range(1, 11)),
        (completed(), LEAVING, IN_TIME),
        *((over(number), ...) for number in range(1, 9)),
        (over(9), *ENDORSED),
    ],
    "sums that are said to be lost at the end have until then": [
        (order(1), ...),
        (completed(), ...),
        (SumsLost(number=1), IGNORED),
        (TOO_LATE, overtaken(1)),
        (SumsLost(number=1), ENDED, FAILED),
    ],
    "a client that is busy with rounds that are all here is given the time": [
        *ordered(1, 2),
        (completed(2), ...),
        (TOO_LATE, overtaken(1)),
        (over(1), go(2), overtaken(2)),
        (over(2), *KEPT),
    ],
    "a client that was busy until time is out waits for no order that was lost": [
        (order(1), ...),
        (completed(2), ...),
        (RoundHeardOf(number=2), SetUpRound(2)),
        (TOO_LATE, overtaken(1)),
        (over(1), ENDED, FAILED),
    ],
    "a model that was being checked when the run ended is gone on from": [
        *ordered(1, 2),
        (completed(), ...),
        (caught_up(1, 1), *adopted(1), go(2)),
        (caught_up(1, 1), IGNORED),
        (caught_up(2, 1), ENDED, *adopted(2), SaveModel(), COMPLETED),
    ],
}


@pytest.mark.parametrize("title", SCRIPTS)
def test_script(title: str, joined: Play) -> None:
    joined.follow(SCRIPTS[title])


@pytest.mark.parametrize(
    "event",
    [RoundBroken(number=1), Strayed(number=1), Failed("RoundOver: the disk is full")],
    ids=["broken", "strayed", "failed"],
)
def test_a_slow_client_that_fails_at_the_end_keeps_no_model(leaving: Play, event: object) -> None:
    assert leaving.resumed() == [IN_TIME]
    leaving.feed(event)
    leaving.expect(ENDED, FAILED)


def test_a_failure_of_this_machine_is_told(joined: Play) -> None:
    assert joined.resumed() == []
    joined.feed(Failed("SendSnapshot: a seal does not close", Code.PROTOCOL_PEER))
    assert joined.said() == [PartyFailed(code=Code.PROTOCOL_PEER)], "the sentence is for our log"
    assert joined.effects[-1] == FAILED


@pytest.mark.parametrize("rows", [[], [order(1), completed()]], ids=["joined", "leaving"])
def test_later_the_beginning_is_old_news_and_a_round_that_was_never_begun_shows_an_old_copy(
    joined: Play, rows: list[object]
) -> None:
    joined.feed(*rows)
    confirmed = events.PeerConfirmed(client=THIRD, confirmation="7a" * 32)
    joined.ignores(events.Proposed(), KEYS, events.ContributionArrived(client=SECOND), confirmed)
    joined.feed(order(4, attended=3))
    joined.at(ENDED)
    check_old_copy(joined, attended=3)


def test_other_keys_are_refused(joined: Play) -> None:
    joined.refuses(OTHER_KEYS, RejectReason.SECOND_KEY)


def test_a_client_that_was_away_or_began_the_round_holds_no_old_copy(joined: Play) -> None:
    """Rounds 1 and 5 are begun, and 4 comes from a peer; nobody knows when a process stopped in one."""
    joined.release(1)
    joined.feed(order(5, attended=1))
    assert joined.data.catching == 4
    joined.feed(caught_up(4, 4), order(6, attended=5))
    joined.at(State.JOINED)


# An early end -------------------------------------------------------------------------------------------

Past = float | Literal["no scores", "void", "from a peer"]
"""A round of the past: the accuracy that we decoded, or the reason why there is none."""


@pytest.mark.parametrize(
    ("past", "endorsed"),
    [
        pytest.param([0.5, 0.5, 0.4], True, id="no better for as long as the patience"),
        pytest.param([0.5, 0.5], False, id="not for so long"),
        pytest.param([0.5, 0.4, 0.6], False, id="better"),
        pytest.param([0.5, 0.5, "no scores", 0.5], False, id="a total that we do not know may be better"),
        pytest.param([0.5, "no scores", 0.4, 0.5], True, id="the best is known after it"),
        pytest.param([0.5, 0.5, "void", 0.5], True, id="a void round has no model to score"),
        pytest.param([0.5, 0.5, 0.5, "void"], False, id="the last round is not scored"),
        pytest.param([0.5, 0.5, "from a peer", 0.5], False, id="totals that we have missed may be better"),
        pytest.param([0.5, "from a peer", 0.4, 0.5], True, id="the best is known after a peer's model"),
        pytest.param([0.5, 0.5, 0.5, "from a peer"], False, id="a peer's model was not scored here"),
        pytest.param([0.5, 0.9], True, id="the target is reached"),
        pytest.param([0.9, "void"], False, id="the last round is not the one on target"),
        pytest.param([0.9, "from a peer"], False, id="a peer's model was not on target here"),
    ],
)
def test_an_early_end_is_endorsed_only_if_our_own_totals_meet_the_target_or_patience(
    past: Sequence[Past], *, endorsed: bool
) -> None:
    play = Play(make_manifest(rounds=9, metrics=(MetricClaim(name="accuracy"),), target=0.9, patience=2))
    for number, each in enumerate(past, start=1):
        if each == "from a peer":
            play.feed(order(number), SumsLost(number=number), caught_up(number, number))
        else:
            known = {"accuracy": each} if isinstance(each, float) else {}
            play.feed(order(number), over(number, released=each != "void", metrics=known))
    play.feed(completed(len(past)))

    assert play.state is ENDED
    assert bool(play.of(EndorseModel)) is endorsed


# What we vouch for --------------------------------------------------------------------------------------


def asked(after: int, giver: PartyId = SECOND) -> events.SnapshotAsked:
    return run_play.asked(THIRD, giver, after)


def word(*vouchers: tuple[int, int], model: str = MODEL) -> Publish:
    """A message that vouches for rounds, each with the number of released ones."""
    said = tuple(Voucher(round=number, released=released, model_hmac=model) for number, released in vouchers)
    return Publish(THIRD, Role.CLIENT, ModelVouched(vouchers=said))


@pytest.mark.parametrize(
    "loss", [SumsLost(number=1), Strayed(number=1), order(5)], ids=["lost", "strayed", "skipped"]
)
def test_where_models_are_clients_own_none_is_asked_for_or_sent(loss: object) -> None:
    play = Play(make_manifest(rounds=9, strategy="eastly-tss"))
    play.feed(order(1))

    play.feed(loss)

    play.at(ENDED)
    assert play.said() == [PartyFailed(code=Code.DISK_LOST)]
    assert play.of(SetUpCatchUp) == []
    assert "with eastly-tss no peer has our model" in play.logged()


def test_a_model_of_ones_own_is_neither_vouched_for_nor_sent_nor_endorsed() -> None:
    play = Play(make_manifest(rounds=2, strategy="eastly-tss"))
    play.release(1, 2)

    with pytest.raises(PeerError, match="clients have their own"):
        play.feed(asked(0, ME))
    play.feed(completed())

    play.at(ENDED)
    assert (play.of(SaveModel), play.of(EndorseModel)) == ([SaveModel()], [])


SENT = SnapshotSent(client=THIRD, left=True)
NOT_SENT = SnapshotSent(client=THIRD, left=False)

VOUCHING: dict[str, Iterable[Row]] = {
    "a client vouches for what it held after the rounds since, released or void": [
        (asked(0), IGNORED),
        *done(1),
        *((order(2), ...), (over(2, released=False), ...)),
        *done(3),
        (asked(0), word((1, 1), (2, 1), (3, 2))),
        (asked(2), word((3, 2))),
        (asked(3), IGNORED),
        (asked(3, ME), IGNORED),
    ],
    "only the one that is asked for it sends its model, once for a round and one at a time": [
        *done(1),
        (asked(0, ME), word((1, 1)), SendSnapshot(THIRD, 1)),
        (asked(0, ME), word((1, 1))),
        *done(2),
        (asked(0, ME), word((1, 1), (2, 2))),
        (SENT,),
        (asked(1, ME), word((2, 2)), SendSnapshot(THIRD, 2)),
        (SENT,),
        (asked(1, ME), word((2, 2))),
    ],
    "a peer that was sent as many models as the policy allows is refused, and still vouched to": [
        *(row for number in (1, 2, 3) for row in (*done(number), (asked(0, ME), ...), (SENT, ...))),
        *done(4),
        (asked(0, ME), RejectReason.OVER_LIMIT),
        (asked(3), word((4, 4))),
    ],
    "a model of which nothing left does not count": [
        *(row for number in (1, 2, 3) for row in (*done(number), (asked(0, ME), ...), (NOT_SENT, ...))),
        *done(4),
        (asked(3, ME), word((4, 4)), SendSnapshot(THIRD, 4)),
    ],
    "a client that has caught up vouches for what it took, and not for what it never held": [
        *done(1),
        (order(4), ...),
        (caught_up(3, 3), ...),
        (asked(0), word((3, 3), model=PEERS_MODEL)),
    ],
    "a leaving client still vouches": [
        *done(1),
        (order(2), ...),
        (completed(), ...),
        (asked(0, ME), word((1, 1)), SendSnapshot(THIRD, 1)),
    ],
}


@pytest.mark.parametrize("title", VOUCHING)
def test_vouching(title: str, joined: Play) -> None:
    joined.follow(VOUCHING[title])


@pytest.mark.parametrize("state", [State.JOINED, LEAVING])
def test_a_model_that_was_being_sent_is_sent_again_after_a_restart(joined: Play, state: State) -> None:
    """The peer will not be given another one of this round."""
    joined.release(1)
    joined.feed(asked(0, ME))
    if state is LEAVING:
        joined.feed(order(2), completed())
    assert SendSnapshot(THIRD, 1, again=True) in joined.resumed()
    joined.feed(SENT)
    assert not any(isinstance(effect, SendSnapshot) for effect in joined.resumed())


def test_a_client_vouches_for_the_last_rounds_only() -> None:
    play = Play(make_manifest(rounds=VOUCHED_ROUNDS + 5))
    play.release(*range(1, VOUCHED_ROUNDS + 4))
    play.feed(asked(0))
    (body,) = [effect.body for effect in play.effects if isinstance(effect, Publish)]
    assert isinstance(body, ModelVouched)
    assert [voucher.round for voucher in body.vouchers] == list(range(4, VOUCHED_ROUNDS + 4))


# Rounds that were void after their first phase ----------------------------------------------------------


def test_one_wasted_round_of_a_model_is_borne_and_the_second_ends_it(joined: Play) -> None:
    """A void round in between changes no model, so it resets nothing, and it does not count itself."""
    model = joined.data.models[-1]
    joined.void(1, exposed=True)
    assert joined.of(NoteVoid) == [NoteVoid((model,), 1)]
    joined.void(2)
    joined.at(State.JOINED)
    joined.feed(order(3), order(4), over(3, released=False, exposed=True))
    why = joined.farewell()
    assert "2 rounds (2 of them from one model)" in why
    assert "allows 3 in a run and 1 from one model" in why
    assert not joined.of(Tell), "the round that waits is not begun"


def test_the_run_has_a_limit_that_nothing_resets_and_each_is_noted_on_its_model(joined: Play) -> None:
    for model in range(3):
        joined.void(2 * model + 1, exposed=True)
        assert joined.of(NoteVoid) == [NoteVoid((digest_of(2 * model),), 2 * model + 1)]
        joined.release(2 * model + 2)
        assert joined.of(NoteVoid) == []
    joined.at(State.JOINED)
    joined.void(7, exposed=True)
    assert "4 rounds (1 of them from one model)" in joined.farewell()


@pytest.mark.parametrize(("caps", "borne"), [(VoidCaps(per_model=0, per_run=9), 0), (VoidCaps(per_model=2), 2)])
def test_the_policys_limits_are_the_ones_that_count(caps: VoidCaps, borne: int) -> None:
    play = Play(caps=caps)
    play.void(*range(1, borne + 1), exposed=True)
    play.at(State.JOINED)
    play.void(borne + 1, exposed=True)
    play.at(ENDED)


def test_rounds_that_showed_nothing_of_us_are_not_counted(joined: Play) -> None:
    joined.void(*range(1, 5))
    joined.release(*range(5, 9), step=0.0)
    assert (joined.state, joined.data.wasted, joined.of(NoteVoid)) == (State.JOINED, 0, [])


def test_the_limits_hold_for_rounds_that_were_ordered_before_the_run_was_called_completed(joined: Play) -> None:
    """Otherwise a coordinator that calls it completed first could waste as many as it ordered."""
    joined.feed(order(1), order(2), order(3), completed(), over(1, released=False, exposed=True))
    assert (joined.state, joined.effects[1:]) == (LEAVING, (go(2, place=1),))
    joined.feed(over(2, released=False, exposed=True))
    assert "2 of them from one model" in joined.farewell()


@pytest.mark.parametrize("released", [True, False])
def test_void_rounds_of_the_same_model_in_other_runs_count_too(joined: Play, *, released: bool) -> None:
    """The ledger knows them, also those that another run had meanwhile."""
    joined.feed(order(1), over(1, released=released, exposed=not released, voids=1))
    if released:
        assert (joined.data.wasted_on_model, joined.data.wasted) == (1, 0)
        joined.void(2, exposed=True)
    assert "1 rounds (2 of them from one model)" in joined.farewell()


@pytest.mark.parametrize(
    ("manifest", "released", "step", "expected", "noted"),
    [
        pytest.param(UNION, 1, 1.0, (1, 1), [(1, PEERS.sha256)], id="void meanwhile, from the same model"),
        pytest.param(UNION, 2, 1.0, (1, 0), [(1,)], id="void meanwhile, and the model is another"),
        pytest.param(UNION, 3, 1.0, (0, 0), [], id="none was void"),
        pytest.param(UNION, 3, 0.1, (1, 1), [(1, PEERS.sha256)], id="one hardly moved the model"),
        pytest.param(MANIFEST, 1, 1.0, (0, 0), [], id="a strategy of one phase shows nothing"),
    ],
)
def test_of_a_round_whose_verdict_was_lost_the_worst_is_thought(
    manifest: Manifest, released: int, step: float, expected: tuple[int, int], noted: list[tuple[int | str, ...]]
) -> None:
    play = Play(manifest)
    play.release(1)
    play.feed(order(2), order(4), caught_up(3, 3, released=released, held=replace(PEERS, step=step)))
    assert (play.data.wasted, play.data.wasted_on_model) == expected
    models = [tuple(digest_of(each) if isinstance(each, int) else each for each in row) for row in noted]
    assert play.of(NoteVoid) == [NoteVoid(each, 2) for each in models]


def test_catching_up_resets_no_limit_and_counts_nothing_that_was_not_begun() -> None:
    """Otherwise a coordinator that skips rounds could waste any number."""
    away = Play(UNION)
    away.feed(order(4), caught_up(3, 3, released=0))
    assert away.data.wasted == 0
    play = Play(UNION)
    play.void(1, exposed=True)
    play.feed(order(2), order(4), caught_up(3, 3, released=0))
    assert "2 of them from one model" in play.farewell()


# Released rounds that move nothing ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "earlier", "kappa", "expected"),
    [
        pytest.param(0.0, (), 8, True, id="no step at all"),
        pytest.param(1e-9, (), 8, False, id="the first has nothing to be compared with"),
        pytest.param(1.0, (8.0, 8.0), 8, False, id="an eighth"),
        pytest.param(0.99, (8.0, 8.0), 8, True, id="less than an eighth"),
        pytest.param(0.99, (1.0, 9.0), 8, False, id="the lower of two in the middle"),
        pytest.param(0.99, (9.0, 0.1, 9.0), 8, True, id="the median, not the last or the mean"),
        pytest.param(math.inf, (1.0,), 8, False, id="no number"),
        pytest.param(0.4, (1.0,), 2, True, id="less than half"),
        pytest.param(0.4, (1.0,), 3, False, id="more than a third"),
    ],
)
def test_a_step_is_small_beside_the_median_of_those_before(
    step: float, earlier: tuple[float, ...], kappa: float, *, expected: bool
) -> None:
    assert is_small(step, earlier, kappa) is expected


def test_a_round_after_a_void_one_has_its_place_among_the_released(joined: Play) -> None:
    places = list[int]()
    for number, released in enumerate((True, False, True), start=1):
        joined.feed(order(number))
        places.extend(told.event.place for told in joined.of(Tell) if isinstance(told.event, events.Go))
        joined.feed(over(number, released=released))

    assert places == [1, 2, 2]


def test_a_released_round_that_moves_nothing_counts_as_void_and_the_second_ends_it(joined: Play) -> None:
    joined.release(1, exposed=True, step=0.0)
    assert (joined.state, joined.data.released) == (State.JOINED, 1)
    assert joined.of(NoteVoid) == [NoteVoid((digest_of(0), digest_of(1)), 1)]
    joined.void(2, exposed=True)
    assert "2 rounds (2 of them from one model)" in joined.farewell()


def test_only_a_larger_step_leaves_what_was_counted_behind(joined: Play) -> None:
    """A small one leads to a model that counts as the same: what is noted of one is noted of all."""
    joined.release(1, step=8.0)
    joined.void(2, exposed=True)
    joined.release(3, step=0.5)
    assert joined.data.wasted_on_model == 1
    assert joined.of(NoteVoid) == [NoteVoid((digest_of(1), digest_of(3)), None)]
    joined.release(4, exposed=True, step=8.0)
    assert (joined.data.wasted_on_model, joined.data.wasted) == (0, 1)
    assert joined.data.models == (digest_of(4),)
    joined.release(5, exposed=True, step=math.inf)
    assert (joined.data.wasted, joined.data.steps) == (1, (8.0, 0.5, 8.0)), "infinity is not compared with"


def test_a_model_that_converges_after_a_large_first_step_goes_on(joined: Play) -> None:
    """Only the second step is small beside the median of those before it."""
    for number, step in enumerate((8.0, 1.0, 0.9, 0.8, 0.7), start=1):
        joined.release(number, exposed=True, step=step)

    assert (joined.state, joined.data.wasted) == (State.JOINED, 1)


@pytest.mark.parametrize(("strategy", "rounds", "wasted"), [("sum", 9, 0), ("no-union", 1, 1)])
def test_nobody_leaves_where_nothing_is_learnt_or_all_is_done(strategy: str, rounds: int, wasted: int) -> None:
    """Of a sum a client's numbers do not depend on the model; how often it says them is limited otherwise."""
    play = Play(make_manifest(strategy=strategy, rounds=rounds), caps=VoidCaps(per_model=0, per_run=0))
    play.release(1, exposed=True, step=0.0)
    assert (play.state, play.data.wasted) == (State.JOINED, wasted)
