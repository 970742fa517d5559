"""A round, as a client sees it.

    QUEUED       ordered, but the round before is not over
    TRAINING     E local steps, then compression
    SHARING      our share set of the current phase is dealt and sent
    WAITING      for the verdict of every aggregator of the phase
    DECODING     all sums are here over one member set; they are recombined and taken in
    CONCLUDING   the last phase is decoded; the model moves on
    SCORING      the model is evaluated on our data, if the round is scored
    CLOSING      the round is void; the model stays, and we note which it is
    APPLIED, VOID, STRAYED, FAILED   final

SHARING, WAITING and DECODING are passed once for each phase, and once more for the scores. By then the round is
applied and reported, and stays so whatever happens to the scores.

Sums and voids may arrive in any state: a slow client is left out while the others go on, and still takes in the
sums. It acts only on verdicts that all aggregators gave, or as many as
the phase needs: all released over the same members, or all void. A
release beside a void, or two member sets or transcripts, is a contradiction and ends the run. A phase with a
threshold may have fewer members than the one before: only they go on. A round that waits
for a verdict while later ones are ordered is overtaken: the verdict was lost, and the model comes from a peer. If
it waits for scores it just ends, since nothing depends on them.

A sum carries the transcript of the share sets in it: a keyed digest of the model and of all sums that they depend
on. If it differs from our own, whether we are a member or not, we were sent another model or other sums than the
members: the round has STRAYED. We decode, apply, score, send and report nothing more of it, since a score on a
model that somebody chose for us alone would tell them about our data. We continue only from a peer's model.

A sum that names us as a member in a phase for which we have sent nothing, signed by every aggregator, proves that
our state is an old copy: the run ends for us.

An aggregator whose disk has damaged our share set may ask for it again until the phase has its verdict. It gets
the same set, at most `MAX_RESENDS` times in a phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from hubbub.errors import Code, LocalError, PeerError, RejectReason
from hubbub.ids import PartyId
from hubbub.machine.effects import CountRefusal, Effect, Failed, Job, Key, Persist, Record, SetTimer, Tell
from hubbub.machine.table import Kind, Step, Table, To, stay
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import (
    MaskedChunk,
    RoundApplied,
    RoundDropped,
    RoundScored,
    ScoreClaim,
    SumChunk,
    VoidNotice,
)
from hubbub.messages.runs import PartyFailed
from hubbub.messages.shares import MAX_RESENDS, Traffic, count_arrivals
from hubbub.protocol.layout import Vector
from hubbub.strategies.phase_plan import PhasedRound, plan_phase
from hubbub.strategies.scores import SCORES
from hubbub_trainer.events import (
    Closed,
    Concluded,
    Decoded,
    Evaluated,
    Go,
    OtherTranscript,
    Overtaken,
    RestOverdue,
    RoundBroken,
    RoundOver,
    SetAskedFor,
    SharesResent,
    SharesSent,
    Strayed,
    SumArrived,
    SumsLost,
    Trained,
    VoidAnnounced,
)
from hubbub_trainer.phases.participation import ReportOldCopy, tell_coordinator

REST_WAIT_SHARE = 0.1
"""Time to wait for sums that are not needed, as a share of the phase timeout."""


class State(Enum):
    """State of this client in a round."""

    QUEUED = "queued"
    TRAINING = "training"
    SHARING = "sharing"
    WAITING = "waiting"
    DECODING = "decoding"
    CONCLUDING = "concluding"
    SCORING = "scoring"
    CLOSING = "closing"
    APPLIED = "applied"
    VOID = "void"
    STRAYED = "strayed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """One aggregator's sum as it has arrived so far; the chunks themselves are in the spool."""

    members: frozenset[PartyId]
    vectors: tuple[Vector, ...]
    transcript: str
    wrapped_key: bytes
    chunks: int
    arrived: frozenset[int] = field(default_factory=frozenset)

    @property
    def complete(self) -> bool:
        """Return whether all chunks are there."""
        return len(self.arrived) == self.chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRound(PhasedRound):
    """Data of a round at a client, without the vectors that it computes with."""

    manifest: Manifest
    me: PartyId
    key: Key
    run: Key
    place: int = 1
    """Number of this round among those that are released."""
    idle: bool = False
    """The round was closed without us before we began, so we do not train for it."""
    overtaken: bool = False
    """Later rounds were ordered: a verdict that is not here when we come to wait for it is lost."""
    score_members: frozenset[PartyId] = field(default_factory=frozenset)
    """The members that the run's scores are summed over; empty before the first time."""
    concluded: Concluded | None = None
    """The result of the round, once it is applied."""
    own_metrics: Mapping[str, float] = field(default_factory=dict, repr=False)
    """The model's metrics on our data, for our owner alone."""
    sums: Mapping[str, Mapping[PartyId, Sum]] = field(default_factory=dict)
    voids: Mapping[str, frozenset[PartyId]] = field(default_factory=dict)
    settle_at_s: Mapping[str, float] = field(default_factory=dict)
    """Phases of which as many sums are here as are needed, and the time at which no more are waited for."""
    settled: frozenset[str] = field(default_factory=frozenset)
    """Those of these phases whose time has come."""
    training_s: float = 0.0
    evaluation_s: float = 0.0
    sent: tuple[Traffic, ...] = ()
    received: Mapping[str, int] = field(default_factory=dict)
    told_sent: int = 0
    """Number of entries of `sent` that were reported."""
    told_received: Mapping[str, int] = field(default_factory=dict)
    """The part of `received` that was reported."""
    asked: Mapping[str, Mapping[PartyId, int]] = field(default_factory=dict)
    """Resend requests for our set so far, by phase and aggregator."""
    owed: frozenset[tuple[str, PartyId]] = field(default_factory=frozenset)
    """Phase and aggregator of the sets that we are resending now."""

    @property
    def decoded(self) -> tuple[str, ...]:
        """The phases before the current one, whose sums this client has taken in."""
        return tuple(phase.name for phase in self.phases[: self.phase])

    @property
    def released(self) -> bool:
        """Return whether the sums of the current phase are complete: all, or as many as it needs after a while."""
        plan = plan_phase(self.manifest, self.current.name)
        releasers = len(plan.releasers(self.key.round))
        return self.count_sums(plan.phase.name) >= (plan.quorum if plan.phase.name in self.settled else releasers)

    def count_sums(self, phase: str) -> int:
        """Count the aggregators whose sum of a phase is complete here."""
        return sum(one.complete for one in self.sums.get(phase, {}).values())

    @property
    def void(self) -> bool:
        """Return whether enough aggregators have announced that the current phase has no sum."""
        heard = self.voids.get(self.current.name, frozenset())
        return len(heard) >= plan_phase(self.manifest, self.current.name).void_quorum

    @property
    def members(self) -> frozenset[PartyId]:
        """The members that the round is released over; empty while no sum has arrived."""
        return self.members_of(self.phases[0].name)

    def members_of(self, phase: str) -> frozenset[PartyId]:
        """Return the members that a phase is released over; empty while no sum of it has arrived."""
        sums = self.sums.get(phase, {})
        return next(iter(sums.values())).members if sums else frozenset()


@dataclass(frozen=True, slots=True)
class Train(Job):
    """Train locally and compress the update; not at all if the round was closed without us."""

    idle: bool = False


@dataclass(frozen=True, slots=True)
class SendShares(Job):
    """Deal our values of a phase and send each aggregator its share."""

    phase: str


@dataclass(frozen=True, slots=True)
class ResendShares(Job):
    """Send one aggregator its share of a phase again, as it was."""

    phase: str
    aggregator: PartyId


@dataclass(frozen=True, slots=True)
class SpoolSum(Persist):
    """Spool the delivery's payload."""

    phase: str
    aggregator: PartyId
    index: int


@dataclass(frozen=True, slots=True)
class DecodeSums(Job):
    """Recombine the sums of a phase and take them in, if they were released over our own transcript."""

    phase: str


@dataclass(frozen=True, slots=True)
class Conclude(Job):
    """Apply the round to the model."""

    took_part: bool


@dataclass(frozen=True, slots=True)
class Evaluate(Job):
    """Score the model on our data, once."""


@dataclass(frozen=True, slots=True)
class CloseVoid(Job):
    """Note the model after a void round."""


# The client's own work ----------------------------------------------------------------------------------


def begin(data: ClientRound, event: Go) -> Step[State, ClientRound]:
    """Train, unless the round was closed without us: then nobody would use the update."""
    data = replace(
        data,
        place=event.place,
        is_scored=event.is_scored,
        score_members=event.score_members,
        idle=data.released,
    )
    return _find_old_copy(data) or Step(State.TRAINING, data, (Train(idle=data.idle),))


def share(data: ClientRound, event: Trained) -> Step[State, ClientRound]:
    """Send the update, unless the others have finished the phase without us."""
    data = replace(data, training_s=event.training_s)
    return _find_old_copy(data) or _decode_or_end(data) or _send(data)


def wait(data: ClientRound, event: SharesSent) -> Step[State, ClientRound]:
    """Wait for the verdict after our shares are sent; it may be here already."""
    data = replace(data, sent=data.sent + event.traffic)
    return _decode_or_end(data) or _wait(data)


def enter_next(data: ClientRound, event: Decoded) -> Step[State, ClientRound]:
    """Enter the next phase, if we are a member and it is still open; after the last, conclude."""
    named = data.members_of(data.current.name)
    members = [client for client in data.manifest.clients if client in named]
    fields = {"phase": data.current.name, "members": members, "transcript": event.transcript}
    onward = _end_scored(data, event.metrics) if data.scoring else _enter_next(data)
    return onward.first(Record("released", fields))


def _enter_next(data: ClientRound) -> Step[State, ClientRound]:
    if data.in_last_phase:
        return Step(State.CONCLUDING, data, (Conclude(data.me in data.members),))
    belongs = data.me in data.members_of(data.current.name)
    data = replace(data, phase=data.phase + 1)
    onward = _find_old_copy(data) or _decode_or_end(data)
    return onward or (_send(data) if belongs else _wait(data))


def stray(data: ClientRound, event: OtherTranscript) -> Step[State, ClientRound]:
    """Leave the round, so that the run asks the peers for their model."""
    del event
    phase = data.current.name
    why = f"{phase} was released over another transcript than ours: we were told other sums than the members were"
    releasers = plan_phase(data.manifest, phase).releasers(data.key.round)
    refusals = [
        CountRefusal(RejectReason.DIFFERENT_TRANSCRIPT, _kind_of_sum(data, phase), server, why)
        for server in releasers
    ]
    return Step(State.STRAYED, data, (*refusals, Tell(data.run, Strayed(number=data.key.round))))


def _wait(data: ClientRound) -> Step[State, ClientRound]:
    if data.scoring and data.overtaken:
        return _end_scored(data, {})  # We hold the model, and nothing else depends on the scores.
    lost = (Tell(data.run, SumsLost(number=data.key.round)),) if data.overtaken else ()
    return Step(State.WAITING, data, lost)


def report(data: ClientRound, event: Concluded) -> Step[State, ClientRound]:
    """Report the round before anything is evaluated; then score the model, if this round is scored."""
    body = RoundApplied(model_hmac=event.model_hmac, traffic=_traffic(data))
    effects = (Record("applied", {"model_hmac": event.model_hmac}), tell_coordinator(data.manifest, body))
    if not data.is_scored:
        return Step(State.APPLIED, data, (*effects, _over(data, event, released=True)))
    data = replace(data, concluded=event, told_sent=len(data.sent), told_received=data.received)
    return Step(State.SCORING, data, (*effects, Evaluate()))


def share_score(data: ClientRound, event: Evaluated) -> Step[State, ClientRound]:
    """Share our score, unless the others have finished without it or we are not among the scored members."""
    data = replace(data, phase=data.phase + 1, own_metrics=event.own, evaluation_s=event.evaluation_s)
    belongs = not data.score_members or data.me in data.score_members
    onward = _find_old_copy(data) or _decode_or_end(data)
    return onward or (_send(data) if belongs else _wait(data))


def _end_scored(data: ClientRound, metrics: Mapping[str, float]) -> Step[State, ClientRound]:
    """Report the summed scores, which are the same at all clients; none if there is no sum."""
    if data.concluded is None:
        raise LocalError("the round was not applied yet")
    claims = tuple(ScoreClaim(name=name, value=value) for name, value in metrics.items())
    body = RoundScored(scores=claims, traffic=_traffic(data))
    over = _over(data, data.concluded, released=True, metrics=metrics)
    return Step(State.APPLIED, data, (tell_coordinator(data.manifest, body), over))


def drop(data: ClientRound, event: Closed) -> Step[State, ClientRound]:
    """Acknowledge that the round is void."""
    body = RoundDropped(traffic=_traffic(data))
    record = Record("void", {"phase": data.current.name})
    over = _over(data, event, released=False)
    return Step(State.VOID, data, (record, tell_coordinator(data.manifest, body), over))


def _send(data: ClientRound) -> Step[State, ClientRound]:
    return Step(State.SHARING, data, (SendShares(data.current.name),))


def _decode_or_end(data: ClientRound) -> Step[State, ClientRound] | None:
    """Act on the current phase's verdict, if it is complete."""
    if data.void:
        return _end_scored(data, {}) if data.scoring else Step(State.CLOSING, data, (CloseVoid(),))
    if data.released:
        return Step(State.DECODING, data, (DecodeSums(data.current.name),))
    return None


def _find_old_copy(data: ClientRound) -> Step[State, ClientRound] | None:
    """Fail if the current phase, of which we have sent nothing yet, was released with a share of ours in it."""
    phase = data.current.name
    if not data.released or data.me not in data.members_of(phase):
        return None
    why = f"every aggregator says that a share of ours is in the sum of {phase} in round {data.key.round}"
    return _fail(data, Code.DISK_OLD).first(ReportOldCopy(f"{why}, and we sent none"))


def _traffic(data: ClientRound) -> tuple[Traffic, ...]:
    """Return the traffic since the last report."""
    new = {name: count - data.told_received.get(name, 0) for name, count in data.received.items()}
    arrived = {name: count for name, count in new.items() if count}
    return (*data.sent[data.told_sent :], *count_arrivals(arrived, "down"))


def _over(
    data: ClientRound, event: Concluded | Closed, *, released: bool, metrics: Mapping[str, float] | None = None
) -> Effect:
    over = RoundOver(
        number=data.key.round,
        released=released,
        model_hmac=event.model_hmac,
        held=event.held,
        exposed=data.me in data.members if released else data.phase > 0 and bool(data.sent),
        metrics=metrics or {},
        score_members=data.members_of(SCORES.name) if metrics else frozenset(),
    )
    return Tell(data.run, over)


def give_up_waiting(data: ClientRound, event: Overtaken) -> Step[State, ClientRound]:
    """Stop waiting for a verdict that will not come: aggregators end a round before the next is ordered."""
    del event
    return _wait(replace(data, overtaken=True))


def note_overtaken(data: ClientRound, event: Overtaken) -> Step[State, ClientRound]:
    """Note that later rounds were ordered while this client is busy: all sums may be here when it is done."""
    del event
    return stay(replace(data, overtaken=True))


# A set that an aggregator's disk has damaged ------------------------------------------------------------


def send_again(data: ClientRound, event: SetAskedFor) -> Step[State, ClientRound]:
    """Send the same set again in an open phase, up to `MAX_RESENDS` times."""
    if event.phase != data.current.name:
        return decline(data, event)
    so_far = data.asked.get(event.phase, {})
    times = so_far.get(event.aggregator, 0)
    if times >= MAX_RESENDS:
        raise PeerError(
            RejectReason.OVER_LIMIT, f"{event.aggregator} has asked for our set of {event.phase} {times} times"
        )
    data = replace(
        data,
        asked={**data.asked, event.phase: {**so_far, event.aggregator: times + 1}},
        owed=data.owed | {(event.phase, event.aggregator)},
    )
    return stay(data, ResendShares(event.phase, event.aggregator))


def decline(data: ClientRound, event: SetAskedFor) -> Step[State, ClientRound]:
    """Refuse to resend a set whose phase has its verdict: nobody needs it."""
    raise PeerError(RejectReason.OVER, f"{event.phase} in {data.key} has its verdict: the set is not sent again")


def note_resent(data: ClientRound, event: SharesResent) -> Step[State, ClientRound]:
    """Note that a set was resent."""
    return stay(replace(data, owed=data.owed - {(event.phase, event.aggregator)}))


# The aggregators' verdicts, in any state ----------------------------------------------------------------


def keep_verdict(data: ClientRound, event: SumArrived | VoidAnnounced) -> Step[State, ClientRound]:
    """Keep a chunk of a sum, or a void, until this client waits for it; a contradiction ends the run."""
    wrong = _contradiction(data, event)
    if wrong:
        return _contradict(data, event, wrong)
    if isinstance(event, VoidAnnounced):
        heard = data.voids.get(event.phase, frozenset()) | {event.aggregator}
        return stay(replace(data, voids={**data.voids, event.phase: heard}))
    sums = data.sums.get(event.phase, {})
    one = sums.get(event.aggregator) or Sum(
        members=event.members,
        vectors=event.vectors,
        transcript=event.transcript,
        wrapped_key=event.wrapped_key,
        chunks=event.chunks,
    )
    if event.index in one.arrived:
        return stay(data)
    one = replace(one, arrived=one.arrived | {event.index})
    totals = {name: data.received.get(name, 0) + count for name, count in event.wire_bytes.items()}
    data = replace(
        data,
        sums={**data.sums, event.phase: {**sums, event.aggregator: one}},
        received={**data.received, **totals},
    )
    return _wait_for_rest(data, event).first(SpoolSum(event.phase, event.aggregator, event.index))


def _wait_for_rest(data: ClientRound, event: SumArrived) -> Step[State, ClientRound]:
    """Once as many sums are here as are needed, wait for the others a while."""
    plan, here = plan_phase(data.manifest, event.phase), data.count_sums(event.phase)
    if event.phase in data.settle_at_s or not plan.quorum <= here < len(plan.releasers(data.key.round)):
        return stay(data)
    at_s = event.at_s + REST_WAIT_SHARE * data.manifest.phase_timeout_s
    return stay(replace(data, settle_at_s={**data.settle_at_s, event.phase: at_s}), _settle_at(at_s))


def _settle_at(at_s: float) -> Effect:
    return SetTimer("rest", at_s, RestOverdue)


def note_overdue(data: ClientRound, event: RestOverdue) -> Step[State, ClientRound]:
    """Wait no longer for sums that are not needed."""
    due = {phase for phase, at_s in data.settle_at_s.items() if at_s <= event.at_s}
    return stay(replace(data, settled=data.settled | due))


def settle(data: ClientRound, event: RestOverdue) -> Step[State, ClientRound]:
    """Decode with the sums that are here."""
    noted = note_overdue(data, event)
    return _decode_or_end(noted.data) or noted


def take_verdict(data: ClientRound, event: SumArrived | VoidAnnounced) -> Step[State, ClientRound]:
    """Keep a chunk of a sum, or a void; act on the verdict once all aggregators have given it."""
    kept = keep_verdict(data, event)
    onward = None if kept.state is State.FAILED else _decode_or_end(kept.data)
    return onward.first(*kept.effects) if onward else kept


def _contradiction(data: ClientRound, event: SumArrived | VoidAnnounced) -> str:
    """Describe the contradiction between an event and earlier verdicts; empty if there is none."""
    released = data.sums.get(event.phase, {})
    if isinstance(event, VoidAnnounced):
        return f"{event.aggregator} says void where {', '.join(released)} released" if released else ""
    if data.voids.get(event.phase):
        return f"{event.aggregator} released {event.phase} where another says void"
    if not _fits_members(data, event):
        return f"{event.aggregator} names other members than were named before"
    if any(one.vectors != event.vectors for one in released.values()):
        return f"{event.aggregator} declares other vectors than another aggregator did"
    if any(one.transcript != event.transcript for one in released.values()):
        return f"{event.aggregator} released {event.phase} over another transcript than was named before"
    mine = released.get(event.aggregator)
    if mine and mine.wrapped_key != event.wrapped_key:
        return f"{event.aggregator} released two sums of {event.phase}"
    return ""


def _fits_members(data: ClientRound, event: SumArrived) -> bool:
    """Say whether a phase can have these members beside those of the round's other phases, or other scores."""
    heard = {name: one.members for name, sums in data.sums.items() for one in sums.values()}
    if event.phase in heard and heard[event.phase] != event.members:
        return False
    if event.phase == SCORES.name:
        return not data.score_members or event.members == data.score_members
    plans = {name: plan_phase(data.manifest, name) for name in {event.phase, *heard} - {SCORES.name}}
    in_order = sorted(plans.values(), key=lambda plan: plan.place)
    named = [{**heard, event.phase: event.members}[plan.phase.name] for plan in in_order]
    steps = zip(in_order[1:], named[1:], named, strict=False)
    return all(plan.may_close(now, before) for plan, now, before in steps)


def _contradict(data: ClientRound, event: SumArrived | VoidAnnounced, wrong: str) -> Step[State, ClientRound]:
    """End the run because two aggregators contradict each other; count and record the second one's message."""
    kind = _kind_of_sum(data, event.phase) if isinstance(event, SumArrived) else VoidNotice.kind
    refusal = CountRefusal(RejectReason.CONTRADICTION, kind, event.aggregator, wrong)
    return _fail(data, Code.PROTOCOL_CONTRADICTION).then(refusal)


def _kind_of_sum(data: ClientRound, phase: str) -> str:
    return MaskedChunk.kind if plan_phase(data.manifest, phase).compact else SumChunk.kind


def fail(data: ClientRound, event: Failed) -> Step[State, ClientRound]:
    """Report a failure of a disk, a sum or the code: we cannot go on with the run."""
    return _fail(data, event.code)


def _fail(data: ClientRound, code: Code) -> Step[State, ClientRound]:
    broken = Tell(data.run, RoundBroken(number=data.key.round))
    return Step(State.FAILED, data, (tell_coordinator(data.manifest, PartyFailed(code=code)), broken))


_BROKEN: dict[type, To[State, ClientRound]] = {Failed: To(fail, State.FAILED)}


def _busy(state: State) -> dict[type, To[State, ClientRound]]:
    return {**_BROKEN, Overtaken: To(note_overtaken, state), RestOverdue: To(note_overdue, state)}


def _open(state: State) -> dict[type, To[State, ClientRound]]:
    """Return the transitions of a phase without a verdict."""
    return {SetAskedFor: To(send_again, state), SharesResent: To(note_resent, state)}


def _ended(state: State) -> dict[type, To[State, ClientRound]]:
    """Return the transitions of a phase with a verdict."""
    return {SetAskedFor: To(decline, state), SharesResent: To(note_resent, state)}


TRANSITIONS: Table[State, ClientRound] = {
    State.QUEUED: {
        Go: To(begin, State.TRAINING, State.FAILED),
        SumArrived: To(keep_verdict, State.QUEUED, State.FAILED),
        VoidAnnounced: To(keep_verdict, State.QUEUED, State.FAILED),
        **_busy(State.QUEUED),
    },
    State.TRAINING: {
        Trained: To(share, State.SHARING, State.DECODING, State.CLOSING, State.FAILED),
        SumArrived: To(keep_verdict, State.TRAINING, State.FAILED),
        VoidAnnounced: To(keep_verdict, State.TRAINING, State.FAILED),
        **_busy(State.TRAINING),
    },
    State.SHARING: {
        SharesSent: To(wait, State.WAITING, State.DECODING, State.CLOSING, State.APPLIED),
        SumArrived: To(keep_verdict, State.SHARING, State.FAILED),
        VoidAnnounced: To(keep_verdict, State.SHARING, State.FAILED),
        **_open(State.SHARING),
        **_busy(State.SHARING),
    },
    State.WAITING: {
        SumArrived: To(take_verdict, State.WAITING, State.DECODING, State.FAILED),
        VoidAnnounced: To(take_verdict, State.WAITING, State.CLOSING, State.APPLIED, State.FAILED),
        Overtaken: To(give_up_waiting, State.WAITING, State.APPLIED),
        RestOverdue: To(settle, State.WAITING, State.DECODING),
        **_open(State.WAITING),
        **_BROKEN,
    },
    State.DECODING: {
        Decoded: To(
            enter_next,
            *(State.SHARING, State.WAITING, State.DECODING),
            *(State.CONCLUDING, State.CLOSING, State.APPLIED, State.FAILED),
        ),
        OtherTranscript: To(stray, State.STRAYED),
        SumArrived: To(keep_verdict, State.DECODING, State.FAILED),
        VoidAnnounced: To(keep_verdict, State.DECODING, State.FAILED),
        **_ended(State.DECODING),
        **_busy(State.DECODING),
    },
    State.CONCLUDING: {
        Concluded: To(report, State.APPLIED, State.SCORING),
        SumArrived: To(keep_verdict, State.CONCLUDING, State.FAILED),  # A duplicate, or one of the scores.
        VoidAnnounced: To(keep_verdict, State.CONCLUDING, State.FAILED),
        **_ended(State.CONCLUDING),
        **_busy(State.CONCLUDING),
    },
    State.SCORING: {
        Evaluated: To(share_score, State.SHARING, State.WAITING, State.DECODING, State.APPLIED, State.FAILED),
        SumArrived: To(keep_verdict, State.SCORING, State.FAILED),
        VoidAnnounced: To(keep_verdict, State.SCORING, State.FAILED),
        **_ended(State.SCORING),
        **_busy(State.SCORING),
    },
    State.CLOSING: {
        Closed: To(drop, State.VOID),
        SumArrived: To(keep_verdict, State.CLOSING, State.FAILED),  # One beside a void is a contradiction.
        VoidAnnounced: To(keep_verdict, State.CLOSING, State.FAILED),  # A duplicate.
        **_ended(State.CLOSING),
        **_busy(State.CLOSING),
    },
    State.APPLIED: {},
    State.VOID: {},
    State.STRAYED: {},
    State.FAILED: {},
}


def resume(state: State, data: ClientRound) -> tuple[Effect, ...]:
    """Resume after a restart. Work that was done before the crash is on disk and not done again."""
    return (*_resume_work(state, data), *map(_settle_at, data.settle_at_s.values()))


def _resume_work(state: State, data: ClientRound) -> tuple[Effect, ...]:
    match state:
        case State.TRAINING:
            return (Train(idle=data.idle),)
        case State.SHARING:
            return (SendShares(data.current.name),)  # To all aggregators, also those that asked for a resend.
        case State.WAITING:
            return tuple(ResendShares(phase, server) for phase, server in sorted(data.owed))
        case State.DECODING:
            return (DecodeSums(data.current.name),)
        case State.CONCLUDING:
            return (Conclude(data.me in data.members),)
        case State.SCORING:
            return (Evaluate(),)
        case State.CLOSING:
            return (CloseVoid(),)
    return ()


KIND = Kind(TRANSITIONS, State.QUEUED, ClientRound, resume)
