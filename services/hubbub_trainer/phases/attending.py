"""Taking part in a run: rounds in order, what was lost of them, and the end."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from hubbub.errors import Code, PeerError, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import CountRefusal, Effect, Failed, Key, Publish, Record, SetTimer, Tell, TellOwner
from hubbub.machine.table import Step, To
from hubbub.messages.rounds import RoundOpened
from hubbub.messages.runs import PartyFailed
from hubbub.messages.snapshots import ModelVouched, Voucher
from hubbub.protocol.metrics import reaches
from hubbub.strategies.registry import STRATEGIES
from hubbub_trainer.events import (
    CaughtUp,
    Ended,
    Go,
    HeldModel,
    Lost,
    NeverMind,
    Overtaken,
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
from hubbub_trainer.phases.catchup import heirs
from hubbub_trainer.phases.standing import (
    AbandonRounds,
    EndorseModel,
    Enrolment,
    Given,
    NoteVoid,
    ReportOldCopy,
    SaveModel,
    SendSnapshot,
    SetUpCatchUp,
    SetUpRound,
    State,
    answer,
    record_end,
)

VOUCHED_ROUNDS = 16
"""For how many of the last rounds a client can vouch."""
FAR_BEHIND = 3
"""Rounds that an order is ahead of what we have taken in when it tells that something is lost: one more than it
could be if nothing was, since a message that the broker delivers again comes after others."""


# Rounds -------------------------------------------------------------------------------------------------


def set_up_round(data: Enrolment, event: RoundOrdered) -> Step[State, Enrolment]:
    """Set the round up; begin it if nothing is before it. An order that came before is old news.

    A run has the rounds that its manifest says, which is what the data owner agreed to. Orders come in order, so
    what is between two of them is lost.
    """
    if event.attended > data.begun:
        return _leave_as_old(data, event)
    if event.number <= data.ordered:
        return Step(State.JOINED, data)
    _check_number(data, event.number)
    skipped = event.number > data.ordered + 1
    idle = data.over == data.ordered and not skipped
    data = replace(data, ordered=event.number)
    effects: tuple[Effect, ...] = (SetUpRound(event.number),)
    if skipped:
        data, asking = _lose(data, event.number - 1)
        return Step(State.JOINED, data, (*effects, *asking))
    if idle and data.may_begin:
        return _begin(State.JOINED, data, effects)
    return Step(State.JOINED, data, (*effects, *(_overtake(data) if data.may_begin else ())))


def find_old_copy_in(state: State) -> To[State, Enrolment]:
    """A row for an order that comes before the clients agreed: it is refused, or shows that our state is old."""

    def find_old_copy(data: Enrolment, event: RoundOrdered) -> Step[State, Enrolment]:
        if not event.attended:
            raise PeerError(RejectReason.UNEXPECTED, f"round {event.number} is ordered in state {state.value}")
        return _leave_as_old(data, event)

    return To(find_old_copy, State.ENDED)


def _leave_as_old(data: Enrolment, event: RoundOrdered) -> Step[State, Enrolment]:
    """Leave the run: what we have sent in it, and which models and void rounds we counted, is not known here.

    A round is begun before anything of it leaves, and that is kept first. So with the state that we had, no
    round that we took part in is later than the last that we began, whenever we stopped.
    """
    last = f"the last round that we began is {data.begun}" if data.begun else "we began no round"
    why = f"{data.manifest.coordinator} says that we took part in round {event.attended}, and {last}"
    effects = (ReportOldCopy(why), answer(data, PartyFailed(code=Code.DISK_OLD)), record_end("failed"))
    return Step(State.ENDED, data, effects)


def _check_number(data: Enrolment, number: int) -> None:
    if data.complete or number > data.manifest.rounds + data.manifest.max_void_rounds:
        raise PeerError(RejectReason.OVER, _say_complete(data, number))


def hear_of_round_in(state: State) -> To[State, Enrolment]:
    """A row for a verdict that comes before the order to train: the round takes it in, and begins with the order.

    So it comes if the order could not be kept at once and is delivered again. Only the next round is heard of:
    what one aggregator makes us keep has a limit.
    """

    def hear_of_round(data: Enrolment, event: RoundHeardOf) -> Step[State, Enrolment]:
        _check_number(data, event.number)
        return Step(state, data, (SetUpRound(event.number),))

    return To(hear_of_round, state)


def begin_next(data: Enrolment, event: RoundOver) -> Step[State, Enrolment]:
    """Begin the round that was waiting, if one was; leave if too many were void after their first phase."""
    data, noted = _count_round(data, event)
    too_many = _find_excess(data)
    onward = _leave_run(data, too_many) if too_many else _begin_waiting(data)
    return replace(onward, effects=(*noted, *onward.effects))


def _begin_waiting(data: Enrolment) -> Step[State, Enrolment]:
    """Begin what comes next, unless something that was lost stands before it."""
    if not data.may_begin:
        return Step(State.JOINED, data)
    data, settled = _settle(data)
    if data.over == data.ordered:
        return Step(State.JOINED, data, settled)
    if data.complete:
        return Step(State.JOINED, data, (*settled, _refuse_round(data, data.ordered)))
    return _begin(State.JOINED, data, settled)


def _begin(state: State, data: Enrolment, before: tuple[Effect, ...] = ()) -> Step[State, Enrolment]:
    data = replace(data, begun=data.over + 1)
    scored = data.manifest.is_scored_after(data.released + 1)
    go = Go(is_scored=scored, score_members=data.score_members)
    return Step(state, data, (*before, Tell(_round(data, data.begun), go), *_overtake(data)))


def _overtake(data: Enrolment) -> tuple[Effect, ...]:
    """Tell the open round if we are so far behind that all of it should be here."""
    if data.ordered < data.over + FAR_BEHIND and not data.out_of_time:
        return ()
    return (Tell(_round(data, data.over + 1), Overtaken()),)


# What was lost, and catching up -------------------------------------------------------------------------


def note_loss(data: Enrolment, event: SumsLost | Strayed) -> Step[State, Enrolment]:
    """The open round will never end here."""
    if event.number <= data.over:
        return Step(State.JOINED, data)
    data, asking = _lose(data, event.number)
    return Step(State.JOINED, data, asking)


def _lose(data: Enrolment, number: int) -> tuple[Enrolment, tuple[Effect, ...]]:
    """Ask the peers for a model of this round or a later one; who asks already asks for that one."""
    data = replace(data, lost=max(data.lost, number))
    if data.catching:
        return data, (Tell(data.catch_up_key, Lost(number=data.lost)),)
    data = replace(data, catching=data.lost)
    return data, (SetUpCatchUp(data.catching), Tell(data.catch_up_key, Lost(number=data.lost)))


def _settle(data: Enrolment) -> tuple[Enrolment, tuple[Effect, ...]]:
    """Nothing is lost any more."""
    if not data.catching:
        return data, ()
    return replace(data, catching=0), (Tell(data.catch_up_key, NeverMind()),)


def catch_up(data: Enrolment, event: CaughtUp) -> Step[State, Enrolment]:
    """Go on from a peer's model; if more was lost meanwhile, ask for a later one."""
    data = replace(data, catching=0 if data.catching == event.number else data.catching)
    moved = event.voucher.round > data.over
    data, effects = _adopt(data, event) if moved else (data, ())
    too_many = _find_excess(data)
    if too_many:
        onward = _leave_run(data, too_many)
        return replace(onward, effects=(*effects, *onward.effects))
    if not data.may_begin and not data.catching:
        data, asking = _lose(data, data.lost)
        return Step(State.JOINED, data, (*effects, *asking))
    # The round after one that we came past by ourselves was begun then.
    onward = _begin_waiting(data) if moved else Step(State.JOINED, data)
    return replace(onward, effects=(*effects, *onward.effects))


def catch_up_at_the_end(data: Enrolment, event: CaughtUp) -> Step[State, Enrolment]:
    """A peer's model that was being checked when the run ended."""
    if event.voucher.round <= data.over:
        return Step(State.LEAVING, data)
    data, effects = _adopt(data, event)
    onward = _take_in_the_rest(data)
    return replace(onward, effects=(*effects, *onward.effects))


def _adopt(data: Enrolment, event: CaughtUp) -> tuple[Enrolment, tuple[Effect, ...]]:
    """Our model is a peer's; the rounds before it are nobody's business any more.

    If we began a round and never heard its verdict, the worst is thought of it: that it was the one that was
    void, or that hardly moved the model.
    """
    voucher, exposed = event.voucher, data.begun > data.over
    some_void = voucher.round - data.over > voucher.released - data.released
    data, noted = _count(
        data,
        event.held,
        number=data.begun,
        released=voucher.released > data.released,
        exposed=exposed,
        wasted=exposed and some_void and len(STRATEGIES[data.manifest.strategy].phases) > 1,
    )
    data = replace(
        data,
        over=voucher.round,
        ordered=max(data.ordered, voucher.round),
        released=voucher.released,
        vouchers=(voucher,),
    )
    record = Record("caught-up", {"up_to": voucher.round, "model_hmac": voucher.model_hmac})
    return data, (*noted, AbandonRounds(voucher.round), record)


def vouch_in(state: State) -> To[State, Enrolment]:
    """A row for a peer that has lost sums: say which models we held, and send ours if it is to be ours."""

    def vouch(data: Enrolment, event: SnapshotAsked) -> Step[State, Enrolment]:
        if event.after < 0:
            return Step(state, *_give(data, event.client, 0)) if _inherits_from(data, event) else Step(state, data)
        newer = tuple(voucher for voucher in data.vouchers if voucher.round > event.after)
        if not newer:
            return Step(state, data)
        word = Publish(event.client, Role.CLIENT, ModelVouched(vouchers=newer))
        data, sending = _give(data, event.client, data.over) if event.giver == data.me else (data, ())
        return Step(state, data, (word, *sending))

    return To(vouch, state)


def _give(data: Enrolment, client: PartyId, number: int) -> tuple[Enrolment, tuple[Effect, ...]]:
    """Send a peer the model of a round: one at a time, once for each round, as often as the policy allows.

    It is counted before its first chunk leaves. A client that waits for a long snapshot asks again: that is no
    new one. Beyond the limit nothing is answered, and the client asks somebody else.
    """
    given = data.given.get(client, Given())
    if given.sending or number <= given.number:
        return data, ()
    if given.count >= data.snapshots_per_peer:
        raise PeerError(
            RejectReason.OVER_LIMIT,
            f"{client} asks for another snapshot and was given {given.count} in this run; the policy allows "
            f"{data.snapshots_per_peer} (max_snapshots_per_peer)",
        )
    given = Given(count=given.count + 1, number=number, sending=True)
    return replace(data, given={**data.given, client: given}), (SendSnapshot(client, number),)


def note_sent_in(state: State) -> To[State, Enrolment]:
    """A row for a snapshot that was sent, or that the model had moved on from before anything of it left."""

    def note_sent(data: Enrolment, event: SnapshotSent) -> Step[State, Enrolment]:
        given = data.given[event.client]
        given = replace(given, sending=False, count=given.count if event.left else given.count - 1)
        return Step(state, replace(data, given={**data.given, event.client: given}))

    return To(note_sent, state)


def send_again(data: Enrolment) -> tuple[Effect, ...]:
    """Send snapshots again that were being sent when this party died: its peers are given no second one."""
    return tuple(
        SendSnapshot(client, given.number, again=True) for client, given in data.given.items() if given.sending
    )


def _inherits_from(data: Enrolment, event: SnapshotAsked) -> bool:
    """Whether it is for us to send the model that the run begins with."""
    return event.giver == data.me and data.me in heirs(data.manifest) and not data.lacks_model


# What is counted, and how much is too much --------------------------------------------------------------


def _refuse_round(data: Enrolment, number: int) -> Effect:
    """It was ordered while the last one was open, and is never begun."""
    why = _say_complete(data, number)
    return CountRefusal(RejectReason.OVER, RoundOpened.kind, data.manifest.coordinator, why)


def _say_complete(data: Enrolment, number: int) -> str:
    return f"round {number} is ordered, and the manifest has {data.manifest.rounds}"


def _count_round(data: Enrolment, event: RoundOver) -> tuple[Enrolment, tuple[Effect, ...]]:
    released = data.released + event.released
    voucher = Voucher(round=event.number, released=released, model_hmac=event.model_hmac)
    data, noted = _count(
        data,
        event.held,
        number=event.number,
        released=event.released,
        exposed=event.exposed,
        wasted=event.exposed and not event.released,
    )
    data = replace(
        data,
        over=event.number,
        released=released,
        vouchers=(*data.vouchers, voucher)[-VOUCHED_ROUNDS:],
        score_members=data.score_members or event.score_members,
        on_target=_is_on_target(data, event),
    )
    return data, noted


def _is_on_target(data: Enrolment, event: RoundOver) -> bool:
    """Whether the scores that we decoded ourselves meet the manifest's target."""
    headline, target = data.manifest.headline, data.manifest.target
    if headline is None or target is None or headline.name not in event.metrics:
        return False
    return reaches(headline, event.metrics[headline.name], target)


def _count(
    data: Enrolment, held: HeldModel, *, number: int, released: bool, exposed: bool, wasted: bool
) -> tuple[Enrolment, tuple[Effect, ...]]:
    """Count what the end of rounds tells against the present model, and against the run.

    Two sums from one model tell something of a client that is in the first alone: two unions around a void round,
    or the sums of a round that moved nothing and of the next. So only a larger step gives a model on which nothing
    was counted yet.
    """
    if released and _moves_on(data, held.step):
        steps = (*data.steps, held.step) if math.isfinite(held.step) else data.steps
        noted = (NoteVoid(data.models, number),) if wasted else ()
        data = replace(data, models=(held.sha256,), steps=steps, wasted_on_model=held.voids)
        return replace(data, wasted=data.wasted + wasted), noted
    counted = exposed if released else wasted
    models = tuple(dict.fromkeys((*data.models, held.sha256)))
    on_model = max(data.wasted_on_model, held.voids) + counted
    data = replace(data, models=models, wasted_on_model=on_model, wasted=data.wasted + counted)
    return data, (NoteVoid(models, number if counted else None),) if on_model else ()


def _moves_on(data: Enrolment, step: float) -> bool:
    """Where nothing is learnt, a client's numbers are the same whatever the model is."""
    return STRATEGIES[data.manifest.strategy].repeats or not is_small(step, data.steps, data.manifest.kappa)


def is_small(step: float, earlier: Sequence[float], kappa: float) -> bool:
    """Whether a step is below 1/kappa of the median of the earlier ones; the first is small only if it is none."""
    return step == 0 or (bool(earlier) and kappa * step < statistics.median_low(earlier))


def _leave_run(data: Enrolment, why: str) -> Step[State, Enrolment]:
    effects = (
        answer(data, PartyFailed(code=Code.POLICY_VOID_ROUNDS)),
        TellOwner(f"this trainer leaves the run: {why}"),
        SaveModel(),
        record_end("left"),
    )
    return Step(State.ENDED, data, effects)


def _find_excess(data: Enrolment) -> str:
    """Why to leave the run; no reason is good enough once all of its rounds are done."""
    caps = data.caps
    if data.complete:
        return ""
    if data.wasted_on_model > caps.per_model or data.wasted > caps.per_run:
        return (
            f"{data.wasted} rounds ({data.wasted_on_model} of them from one model) were void after their first "
            f"phase was released; the policy of {data.me} allows {caps.per_run} in a run and {caps.per_model} "
            "from one model"
        )
    return ""


def _round(data: Enrolment, number: int) -> Key:
    return Key("round", data.key.run, number)


# The end ------------------------------------------------------------------------------------------------


def end(data: Enrolment, event: Ended) -> Step[State, Enrolment]:
    """The run is over: keep the model, once we hold the one that the others hold."""
    data = replace(data, last=event.last_round)
    if event.outcome != "completed" or data.caught_up:
        endorse = _endorse(data) if event.outcome == "completed" else ()
        return Step(State.ENDED, data, (SaveModel(), *endorse, record_end(event.outcome)))
    if not data.may_begin:
        # The peers have left with the model that we asked them for.
        return Step(State.ENDED, data, (record_end("failed"),))
    data = replace(data, leave_by_s=event.at_s + data.manifest.phase_timeout_s)
    return Step(State.LEAVING, data, (leave_in_time(data),))


def _endorse(data: Enrolment) -> tuple[Effect, ...]:
    """Sign what the manifest's rounds have made, and nothing that a coordinator calls completed before.

    That a target is reached we believe our own sum of the scores.
    """
    return (EndorseModel(data.over),) if data.complete or data.on_target else ()


def set_up_last(data: Enrolment, event: RoundOrdered) -> Step[State, Enrolment]:
    """An order that was slower than the end of the run."""
    if event.attended > data.begun:
        return _leave_as_old(data, event)
    if event.number != data.ordered + 1:
        return Step(State.LEAVING, data)  # Delivered twice, or one before it is lost and nobody is there to ask.
    _check_number(data, event.number)
    data = replace(data, ordered=event.number)
    onward = _take_in_the_rest(data) if data.over == event.number - 1 else Step(State.LEAVING, data)
    return replace(onward, effects=(SetUpRound(event.number), *onward.effects))


def leave_in_time(data: Enrolment) -> Effect:
    """Wait for the last sums, and no longer than for any phase."""
    return SetTimer("leave", data.leave_by_s, WaitIsOver)


def finish(data: Enrolment, event: RoundOver) -> Step[State, Enrolment]:
    """Take in what is left of the completed run, then keep the model; the policy's limits still hold."""
    data, noted = _count_round(data, event)
    onward = _take_in_the_rest(data)
    return replace(onward, effects=(*noted, *onward.effects))


def _take_in_the_rest(data: Enrolment) -> Step[State, Enrolment]:
    too_many = _find_excess(data)
    if too_many:
        return _leave_run(data, too_many)
    if data.caught_up:
        return Step(State.ENDED, data, (SaveModel(), *_endorse(data), record_end("completed")))
    if data.over == data.ordered:
        return Step(State.LEAVING, data)
    return _begin(State.LEAVING, data)


def give_up_waiting(data: Enrolment, event: WaitIsOver) -> Step[State, Enrolment]:
    """Wait for nobody any more. A round that we are busy with ourselves may still come to its end."""
    if data.begun <= data.over:
        return abandon(data, event)
    data = replace(data, out_of_time=True)
    return Step(State.LEAVING, data, _overtake(data))


def lose_the_last(data: Enrolment, event: SumsLost) -> Step[State, Enrolment]:
    """What was told before the run ended has as long as anything else."""
    return abandon(data, event) if data.out_of_time else Step(State.LEAVING, data)


def abandon(
    data: Enrolment, event: RoundBroken | WaitIsOver | SumsLost | Strayed | Failed
) -> Step[State, Enrolment]:
    """The last sums could not be taken in: there is no final model here, and none is written."""
    del event
    return Step(State.ENDED, data, (record_end("failed"),))


def fail(data: Enrolment, event: Failed) -> Step[State, Enrolment]:
    """Something on this machine failed."""
    return Step(State.ENDED, data, (answer(data, PartyFailed(code=event.code)), record_end("failed")))
