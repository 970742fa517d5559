"""Participation: a trainer in a run whose clients have agreed on one group secret.

    JOINED    all clients confirmed the same secret; rounds are begun in order
    LEAVING   the run is completed, but we were slow: its last sums are still to be taken in
    ENDED     final

The admission (`phases/admission.py`) sets it up, and from then on it takes every message about the run. What was
for the admission and is delivered again changes nothing; other run keys than before are still refused.

A round is set up when it is ordered, or when an aggregator speaks of it as the next one, so that it can take in
what others send of it. It begins when the one before is over. Rounds that were void after their first phase was
released are counted, per model and per run. Beyond what the policy allows we leave. A released round that hardly
moved the model counts as void too.

A client that was away for long finds its inbox without its oldest messages: orders skip a round, or a round is
never finished while others are ordered. It then begins no round until it has a peer's model of a later one
(`phases/catchup.py`), or until what seemed lost has come. So does one that was told other sums than its peers. To
peers in that place it vouches for the models that it held after the last rounds. It sends its own to each of them
once for a round, and no more often than the policy allows.

A client whose folder is an old copy looks like one that was away. The order to train names the last round that it
took part in. If it has not begun that round, it leaves the run: its counts of models and void rounds are old too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from hubbub.errors import Code, PeerError, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import (
    CountRefusal,
    Effect,
    Failed,
    Job,
    Key,
    Persist,
    Publish,
    Record,
    Sendable,
    SetTimer,
    Tell,
    TellOwner,
)
from hubbub.machine.table import STAY, Kind, Step, Table, To, stay
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import RoundOpened
from hubbub.messages.runs import PartyFailed, RunKey
from hubbub.messages.snapshots import ModelVouched, Voucher
from hubbub.protocol.metrics import Trend
from hubbub.strategies.registry import STRATEGIES
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
from hubbub_trainer.phases.catchup import heirs

VOUCHED_ROUNDS = 16
"""For how many of the last rounds a client can vouch."""
FAR_BEHIND = 3
"""Rounds that an order is ahead of what we have taken in when it tells that something is lost: one more than it
could be if nothing was, since a message that the broker delivers again comes after others."""


class State(Enum):
    """State of this trainer in a run that it takes part in."""

    JOINED = "joined"
    LEAVING = "leaving"
    ENDED = "ended"


# Data ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class VoidCaps:
    """Limits on rounds that are void after their first phase was released: of one model, and of the run."""

    per_model: int = 1
    per_run: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SentSnapshots:
    """The snapshots that a peer was sent in this run: how many, and the round of the last."""

    count: int = 0
    number: int = -1
    sending: bool = False
    """The last one is still being sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Participation:
    """The manifest, the last round that was ordered and the last that is over, and what was counted so far."""

    me: PartyId
    key: Key
    manifest: Manifest
    run_key: RunKey | None = None
    publics: Mapping[PartyId, bytes] = field(default_factory=dict)
    """Everybody's run keys, and below their digest: a party has one in a run."""
    keys_sha256: str = ""
    caps: VoidCaps = VoidCaps()
    snapshots_per_peer: int = 3
    """Limit on snapshots sent to each peer in this run."""
    score_members: frozenset[PartyId] = field(default_factory=frozenset)
    """Over whom the run's scores are summed; nobody before the first time."""
    trend: Trend = field(default_factory=Trend)
    """Totals of the headline metric that we decoded ourselves."""
    may_end_early: bool = False
    """True if those up to the last round that is over meet the manifest's target or patience rule."""
    ordered: int = 0
    over: int = 0
    released: int = 0
    """Number of those that were released: the manifest says how many may be."""
    begun: int = 0
    """The last round that we began; beyond `over` it is open."""
    models: tuple[str, ...] = field(default=(), repr=False)
    """Digests of the models since the last larger step. They count as one; the last is the present one."""
    steps: tuple[float, ...] = ()
    """Distance by which each released round of this run moved the model, without those that counted as void."""
    wasted_on_model: int = 0
    """Void rounds of the present model, in any run."""
    wasted: int = 0
    """The same in this run, of any model."""
    lost: int = 0
    """Rounds up to this one are not all in our inbox; beyond `over`, only a peer's model leads past it."""
    catching: int = 0
    """Round that names the catch-up machine: up to it, something was lost when that machine began."""
    vouchers: tuple[Voucher, ...] = ()
    """Of the last rounds, oldest first."""
    sent: Mapping[PartyId, SentSnapshots] = field(default_factory=dict)
    last: int = 0
    """The last round of the run that has ended; one that was not ordered here is on its way, or lost."""
    leave_by_s: float = 0.0
    out_of_time: bool = False
    """It is later than that: what is not here when we come to wait for it will not come."""

    @property
    def catch_up_key(self) -> Key:
        """The machine that is after a peer's model, if one is."""
        return Key("catchup", self.key.run, self.catching)

    @property
    def complete(self) -> bool:
        """As many rounds were released as the manifest has."""
        return self.released == self.manifest.rounds

    @property
    def caught_up(self) -> bool:
        """No round that there was is still to be taken in; what was ordered beyond the last is never begun."""
        return self.complete or self.over >= max(self.ordered, self.last)

    @property
    def may_begin(self) -> bool:
        """Nothing that was lost stands before the next round."""
        return self.over >= self.lost


# Effects ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetUpRound(Effect):
    """Set up the machine of a round."""

    number: int


@dataclass(frozen=True, slots=True)
class AbandonRounds(Effect):
    """Forget the rounds up to this one: our model is of a later one, and nobody waits for us there."""

    number: int


@dataclass(frozen=True, slots=True)
class NoteVoid(Persist):
    """Note in the ledger that a round of these models, which count as one, was void."""

    models: tuple[str, ...] = field(repr=False)
    number: int | None
    """None if the models became one by a round that we sent nothing in."""


@dataclass(frozen=True, slots=True)
class SetUpCatchUp(Effect):
    """Set up the machine that asks the peers for a model."""

    number: int


@dataclass(frozen=True, slots=True)
class SendSnapshot(Job):
    """Seal the model that we hold after this round to a client that has lost sums."""

    client: PartyId
    number: int
    again: bool = False
    """We were sending it when this party died: some of it may have left."""


@dataclass(frozen=True, slots=True)
class SaveModel(Effect):
    """Write the model and its digest to our own disk."""


@dataclass(frozen=True, slots=True)
class EndorseModel(Effect):
    """Sign the model of this round, and keep what a run that goes on from it needs."""

    number: int


@dataclass(frozen=True, slots=True)
class ReportOldCopy(Effect):
    """Tell the owner that our folder is an old copy; shares of the run have left that it knows nothing of."""

    evidence: str


# What every handler may say -----------------------------------------------------------------------------


def tell_coordinator(manifest: Manifest, body: Sendable) -> Effect:
    """Send the coordinator an answer or a report."""
    return Publish(manifest.coordinator, Role.COORDINATOR, body)


def record_end(outcome: str) -> Effect:
    """Write down how the run ended for us."""
    return Record("ended", {"outcome": outcome})


def report_failure(manifest: Manifest, event: Failed) -> tuple[Effect, ...]:
    """Leave because something on this machine failed."""
    return tell_coordinator(manifest, PartyFailed(code=event.code)), record_end("failed")


def report_old_copy(manifest: Manifest, event: RoundOrdered, *, begun: int) -> tuple[Effect, ...]:
    """Leave: what we have sent in the run, and which models and void rounds we counted, is not known here.

    A round is begun before anything of it leaves, and that is kept first. So with the state that we had, no
    round that we took part in is later than the last that we began, whenever we stopped.
    """
    last = f"the last round that we began is {begun}" if begun else "we began no round"
    why = f"{manifest.coordinator} says that we took part in round {event.attended}, and {last}"
    return ReportOldCopy(why), tell_coordinator(manifest, PartyFailed(code=Code.DISK_OLD)), record_end("failed")


def refuse_other_keys(known_sha256: str, event: KeysArrived) -> None:
    """Refuse run keys that are not those from before; the same again are old news."""
    if event.keys_sha256 != known_sha256:
        raise PeerError(RejectReason.SECOND_KEY, "other run keys than before: a party has one key in a run")


def check_allowance(client: PartyId, sent: int, allowed: int) -> None:
    """Refuse a request for a snapshot from a peer that was sent as many as the policy allows."""
    if sent >= allowed:
        raise PeerError(
            RejectReason.OVER_LIMIT,
            f"{client} asks for another snapshot and was given {sent} in this run; the policy allows "
            f"{allowed} (max_snapshots_per_peer)",
        )


def same_keys_again(data: Participation, event: KeysArrived) -> Step[State, Participation]:
    """Run keys that come again after the admission."""
    refuse_other_keys(data.keys_sha256, event)
    return stay(data)


# Rounds -------------------------------------------------------------------------------------------------


def set_up_round(data: Participation, event: RoundOrdered) -> Step[State, Participation]:
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
    if skipped:
        onward = _lose(data, event.number - 1)
    elif idle and data.may_begin:
        onward = _begin(data)
    else:
        onward = stay(data, *(_overtake(data) if data.may_begin else ()))
    return onward.first(SetUpRound(event.number))


def _leave_as_old(data: Participation, event: RoundOrdered) -> Step[State, Participation]:
    return Step(State.ENDED, data, report_old_copy(data.manifest, event, begun=data.begun))


def _check_number(data: Participation, number: int) -> None:
    if data.complete or number > data.manifest.rounds + data.manifest.max_void_rounds:
        raise PeerError(RejectReason.OVER, _say_complete(data, number))


def hear_of_round(data: Participation, event: RoundHeardOf) -> Step[State, Participation]:
    """Set up a round whose verdict comes before the order to train: it takes that in, and begins with the order.

    So it comes if the order could not be kept at once and is delivered again. Only the next round is heard of:
    what one aggregator makes us keep has a limit.
    """
    _check_number(data, event.number)
    return stay(data, SetUpRound(event.number))


def begin_next(data: Participation, event: RoundOver) -> Step[State, Participation]:
    """Begin the round that was waiting, if one was; leave if too many were void after their first phase."""
    data, noted = _count_round(data, event)
    too_many = _find_excess(data)
    onward = _leave_run(data, too_many) if too_many else _begin_waiting(data)
    return onward.first(*noted)


def _begin_waiting(data: Participation) -> Step[State, Participation]:
    """Begin what comes next, unless something that was lost stands before it."""
    if not data.may_begin:
        return stay(data)
    settled = (Tell(data.catch_up_key, NeverMind()),) if data.catching else ()
    data = replace(data, catching=0)
    if data.over == data.ordered:
        return stay(data, *settled)
    if data.complete:
        # It was ordered while the last one was open, and is never begun.
        why = _say_complete(data, data.ordered)
        refusal = CountRefusal(RejectReason.OVER, RoundOpened.kind, data.manifest.coordinator, why)
        return stay(data, *settled, refusal)
    return _begin(data).first(*settled)


def _begin(data: Participation) -> Step[State, Participation]:
    data = replace(data, begun=data.over + 1)
    place = data.released + 1
    go = Go(place=place, is_scored=data.manifest.is_scored_after(place), score_members=data.score_members)
    return stay(data, Tell(_round(data, data.begun), go), *_overtake(data))


def _overtake(data: Participation) -> tuple[Effect, ...]:
    """Tell the open round if we are so far behind that all of it should be here."""
    if data.ordered < data.over + FAR_BEHIND and not data.out_of_time:
        return ()
    return (Tell(_round(data, data.over + 1), Overtaken()),)


# What was lost, and catching up -------------------------------------------------------------------------


def note_loss(data: Participation, event: SumsLost | Strayed) -> Step[State, Participation]:
    """The open round will never end here."""
    if event.number <= data.over:
        return stay(data)
    return _lose(data, event.number)


def _lose(data: Participation, number: int) -> Step[State, Participation]:
    """Ask the peers for a model of this round or a later one; who asks already asks for that one.

    Where clients have models of their own there is none to ask for, and we leave.
    """
    if STRATEGIES[data.manifest.strategy].own_models:
        why = f"the sums of round {number} are lost, and with {data.manifest.strategy} no peer has our model"
        return _leave_run(data, why, Code.DISK_LOST)
    data = replace(data, lost=max(data.lost, number))
    if data.catching:
        return stay(data, Tell(data.catch_up_key, Lost(number=data.lost)))
    data = replace(data, catching=data.lost)
    return stay(data, SetUpCatchUp(data.catching), Tell(data.catch_up_key, Lost(number=data.lost)))


def catch_up(data: Participation, event: CaughtUp) -> Step[State, Participation]:
    """Go on from a peer's model; if more was lost meanwhile, ask for a later one."""
    data = replace(data, catching=0 if data.catching == event.number else data.catching)
    moved = event.voucher.round > data.over
    data, effects = _adopt(data, event) if moved else (data, ())
    too_many = _find_excess(data)
    if too_many:
        return _leave_run(data, too_many).first(*effects)
    if not data.may_begin and not data.catching:
        return _lose(data, data.lost).first(*effects)
    # The round after one that we came past by ourselves was begun then.
    onward = _begin_waiting(data) if moved else stay(data)
    return onward.first(*effects)


def catch_up_at_the_end(data: Participation, event: CaughtUp) -> Step[State, Participation]:
    """A peer's model that was being checked when the run ended."""
    if event.voucher.round <= data.over:
        return Step(State.LEAVING, data)
    data, effects = _adopt(data, event)
    return _take_in_the_rest(data).first(*effects)


def _adopt(data: Participation, event: CaughtUp) -> tuple[Participation, tuple[Effect, ...]]:
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
        # We have not decoded the scores of these rounds.
        trend=data.trend.interrupt(),
        may_end_early=False,
    )
    record = Record("caught-up", {"up_to": voucher.round, "model_hmac": voucher.model_hmac})
    return data, (*noted, AbandonRounds(voucher.round), record)


def vouch(data: Participation, event: SnapshotAsked) -> Step[State, Participation]:
    """Tell a peer that has lost sums which models we held, and send ours if it is to be ours."""
    ours = event.giver == data.me
    if event.after < 0:
        return _send_model(data, event.client, 0) if ours and data.me in heirs(data.manifest) else stay(data)
    if STRATEGIES[data.manifest.strategy].own_models:
        raise PeerError(RejectReason.UNEXPECTED, f"{event.client} asks for a model, and clients have their own")
    newer = tuple(voucher for voucher in data.vouchers if voucher.round > event.after)
    if not newer:
        return stay(data)
    word = Publish(event.client, Role.CLIENT, ModelVouched(vouchers=newer))
    return (_send_model(data, event.client, data.over) if ours else stay(data)).first(word)


def _send_model(data: Participation, client: PartyId, number: int) -> Step[State, Participation]:
    """Send a peer the model of a round: one at a time, once for each round, as often as the policy allows.

    It is counted before its first chunk leaves. A client that waits for a long snapshot asks again: that is no
    new one. Beyond the limit nothing is answered, and the client asks somebody else.
    """
    sent = data.sent.get(client, SentSnapshots())
    if sent.sending or number <= sent.number:
        return stay(data)
    check_allowance(client, sent.count, data.snapshots_per_peer)
    sent = SentSnapshots(count=sent.count + 1, number=number, sending=True)
    return stay(replace(data, sent={**data.sent, client: sent}), SendSnapshot(client, number))


def note_sent(data: Participation, event: SnapshotSent) -> Step[State, Participation]:
    """Note that a snapshot was sent, or that the model had moved on before anything of it left."""
    sent = data.sent[event.client]
    sent = replace(sent, sending=False, count=sent.count if event.left else sent.count - 1)
    return stay(replace(data, sent={**data.sent, event.client: sent}))


def send_again(data: Participation) -> tuple[Effect, ...]:
    """Send snapshots again that were being sent when this party died: its peers are given no second one."""
    return tuple(
        SendSnapshot(client, sent.number, again=True) for client, sent in data.sent.items() if sent.sending
    )


# What is counted, and how much is too much --------------------------------------------------------------


def _say_complete(data: Participation, number: int) -> str:
    return f"round {number} is ordered, and the manifest has {data.manifest.rounds}"


def _count_round(data: Participation, event: RoundOver) -> tuple[Participation, tuple[Effect, ...]]:
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
    manifest, trend = data.manifest, data.trend
    if event.released:
        trend = manifest.follow(trend, event.metrics, released=released)
    data = replace(
        data,
        over=event.number,
        released=released,
        vouchers=(*data.vouchers, voucher)[-VOUCHED_ROUNDS:],
        score_members=data.score_members or event.score_members,
        trend=trend,
        may_end_early=manifest.may_end_early(trend, event.metrics),
    )
    return data, noted


def _count(
    data: Participation, held: HeldModel, *, number: int, released: bool, exposed: bool, wasted: bool
) -> tuple[Participation, tuple[Effect, ...]]:
    """Count what the end of rounds tells against the present model, and against the run.

    Two sums from one model tell something of a client that is in the first alone: two unions around a void round,
    or the sums of a round that moved nothing and of the next. So only a larger step gives a model on which nothing
    was counted yet.
    """
    # Where nothing is learnt, a client's numbers do not depend on the model.
    repeats = STRATEGIES[data.manifest.strategy].repeats
    is_large = released and (repeats or not is_small(held.step, data.steps, data.manifest.kappa))
    if released and math.isfinite(held.step):
        data = replace(data, steps=(*data.steps, held.step))
    if is_large:
        noted = (NoteVoid(data.models, number),) if wasted else ()
        data = replace(data, models=(held.sha256,), wasted_on_model=held.voids)
        return replace(data, wasted=data.wasted + wasted), noted
    counted = exposed if released else wasted
    models = tuple(dict.fromkeys((*data.models, held.sha256)))
    on_model = max(data.wasted_on_model, held.voids) + counted
    data = replace(data, models=models, wasted_on_model=on_model, wasted=data.wasted + counted)
    return data, (NoteVoid(models, number if counted else None),) if on_model else ()


def is_small(step: float, earlier: Sequence[float], kappa: float) -> bool:
    """Return whether a step is below 1/kappa of the median of earlier ones; a first one, whether it is zero."""
    return step == 0 or (bool(earlier) and kappa * step < statistics.median_low(earlier))


def _leave_run(data: Participation, why: str, code: Code = Code.POLICY_VOID_ROUNDS) -> Step[State, Participation]:
    effects = (
        tell_coordinator(data.manifest, PartyFailed(code=code)),
        TellOwner(f"this trainer leaves the run: {why}"),
        SaveModel(),
        record_end("left"),
    )
    return Step(State.ENDED, data, effects)


def _find_excess(data: Participation) -> str:
    """Return the reason to leave the run; there is none once all of its rounds are done."""
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


def _round(data: Participation, number: int) -> Key:
    return Key("round", data.key.run, number)


# The end ------------------------------------------------------------------------------------------------


def end(data: Participation, event: Ended) -> Step[State, Participation]:
    """The run is over: keep the model, once we hold the one that the others hold."""
    data = replace(data, last=event.last_round)
    if event.outcome != "completed" or data.caught_up:
        endorse = _endorse(data) if event.outcome == "completed" else ()
        return Step(State.ENDED, data, (SaveModel(), *endorse, record_end(event.outcome)))
    if not data.may_begin:
        # The peers have left with the model that we asked them for.
        return _end_without_model(data)
    data = replace(data, leave_by_s=event.at_s + data.manifest.phase_timeout_s)
    return Step(State.LEAVING, data, (leave_in_time(data),))


def _endorse(data: Participation) -> tuple[Effect, ...]:
    """Sign what the manifest's rounds have made, and nothing that a coordinator calls completed before.

    That a target is reached, or that nothing improves, we believe our own sums of the scores. A model that others
    do not have is of no use to a successor.
    """
    if STRATEGIES[data.manifest.strategy].own_models:
        return ()
    return (EndorseModel(data.over),) if data.complete or data.may_end_early else ()


def set_up_last(data: Participation, event: RoundOrdered) -> Step[State, Participation]:
    """An order that was slower than the end of the run."""
    if event.attended > data.begun:
        return _leave_as_old(data, event)
    if event.number != data.ordered + 1:
        return Step(State.LEAVING, data)  # Delivered twice, or one before it is lost and nobody is there to ask.
    _check_number(data, event.number)
    data = replace(data, ordered=event.number)
    onward = _take_in_the_rest(data) if data.over == event.number - 1 else stay(data)
    return onward.first(SetUpRound(event.number))


def leave_in_time(data: Participation) -> Effect:
    """Wait for the last sums, and no longer than for any phase."""
    return SetTimer("leave", data.leave_by_s, WaitIsOver)


def finish(data: Participation, event: RoundOver) -> Step[State, Participation]:
    """Take in what is left of the completed run, then keep the model; the policy's limits still hold."""
    data, noted = _count_round(data, event)
    return _take_in_the_rest(data).first(*noted)


def _take_in_the_rest(data: Participation) -> Step[State, Participation]:
    too_many = _find_excess(data)
    if too_many:
        return _leave_run(data, too_many)
    if data.caught_up:
        return Step(State.ENDED, data, (SaveModel(), *_endorse(data), record_end("completed")))
    if data.over == data.ordered:
        # The order to go on was lost, or is late; once time is out, nothing else ends the wait for it.
        return _end_without_model(data) if data.out_of_time else stay(data)
    return _begin(data)


def give_up_waiting(data: Participation, event: WaitIsOver) -> Step[State, Participation]:
    """Wait for nobody any more. A round that we are busy with ourselves may still come to its end."""
    if data.begun <= data.over:
        return abandon(data, event)
    data = replace(data, out_of_time=True)
    return Step(State.LEAVING, data, _overtake(data))


def lose_the_last(data: Participation, event: SumsLost) -> Step[State, Participation]:
    """Give up once time is out: messages that were sent before the run ended have as long as any other."""
    return abandon(data, event) if data.out_of_time else Step(State.LEAVING, data)


def abandon(
    data: Participation, event: RoundBroken | WaitIsOver | SumsLost | Strayed | Failed
) -> Step[State, Participation]:
    """The last sums could not be taken in: there is no final model here, and none is written."""
    del event
    return _end_without_model(data)


def _end_without_model(data: Participation) -> Step[State, Participation]:
    return Step(State.ENDED, data, (record_end("failed"),))


def fail(data: Participation, event: Failed) -> Step[State, Participation]:
    """Something on this machine failed."""
    return Step(State.ENDED, data, report_failure(data.manifest, event))


TRANSITIONS: Table[State, Participation] = {
    State.JOINED: {
        RoundOrdered: To(set_up_round, State.JOINED, State.ENDED),
        RoundHeardOf: To(hear_of_round, State.JOINED),
        RoundOver: To(begin_next, State.JOINED, State.ENDED),
        RoundBroken: STAY,  # The coordinator was told, and decides.
        SumsLost: To(note_loss, State.JOINED, State.ENDED),
        Strayed: To(note_loss, State.JOINED, State.ENDED),
        CaughtUp: To(catch_up, State.JOINED, State.ENDED),
        SnapshotAsked: To(vouch, State.JOINED),
        SnapshotSent: To(note_sent, State.JOINED),
        KeysArrived: To(same_keys_again, State.JOINED),
        ContributionArrived: STAY,  # Delivered twice.
        PeerConfirmed: STAY,
        Proposed: STAY,
        Ended: To(end, State.LEAVING, State.ENDED),
        Failed: To(fail, State.ENDED),
    },
    State.LEAVING: {
        RoundOver: To(finish, State.LEAVING, State.ENDED),
        RoundBroken: To(abandon, State.ENDED),
        WaitIsOver: To(give_up_waiting, State.LEAVING, State.ENDED),
        Failed: To(abandon, State.ENDED),
        SnapshotAsked: To(vouch, State.LEAVING),
        SnapshotSent: To(note_sent, State.LEAVING),
        CaughtUp: To(catch_up_at_the_end, State.LEAVING, State.ENDED),
        SumsLost: To(lose_the_last, State.LEAVING, State.ENDED),
        Strayed: To(abandon, State.ENDED),  # The peers that could help have left.
        RoundOrdered: To(set_up_last, State.LEAVING, State.ENDED),
        RoundHeardOf: To(hear_of_round, State.LEAVING),
        KeysArrived: STAY,  # Delivered twice.
        ContributionArrived: STAY,
        PeerConfirmed: STAY,
        Proposed: STAY,
        Ended: STAY,
    },
    State.ENDED: {},
}


def resume(state: State, data: Participation) -> tuple[Effect, ...]:
    """Send snapshots again, and wait for the last sums as long as before."""
    if state is State.LEAVING:
        return (leave_in_time(data), *send_again(data))
    return send_again(data)


KIND = Kind(TRANSITIONS, State.JOINED, Participation, resume)
