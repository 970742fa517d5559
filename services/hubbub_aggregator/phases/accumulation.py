"""One phase of one round at one aggregator: collect share sets, be told a member set, release one sum, once.

    COLLECTING   chunks are spooled, acknowledged, opened and checked; complete sets earn receipts
    AWAITING     the member set is frozen and journalled; what we add is not all here: others' sums, where we
                 combine, or a share set that we have asked for again
    SUMMING      the member set is frozen and journalled; the sum is computed and sent
    RELEASED, VOID   final, and so the journal has it
    FAILED       final: the disk failed us

A client has one set in a phase; a second one is refused. A complete set is journalled at once. It gets its receipt
when no other set is awaited, or after a short wait: one receipt names all sets that were completed until then and
have the same vectors and transcript. An order to close is obeyed only if

- it names enough members of the cohort,
- it shows the signed receipts of every aggregator, or of as many as the phase needs, for the same set of each
  member, all with one transcript,
- its members are those of the round's first phase, or those of the phase before without some if the strategy has a
  threshold for that; for scores, they are those of the run's first scores.

Any other order is refused and the phase stays open. The journal entry is on disk before anything leaves.

On the compact wire all aggregators release by sending their sums to one of them, the combiner. It keeps the sums,
also those that come before its own order, and adds and sends when all are there. Sums over different members are a
contradiction and end the run. An order to void a phase that another aggregator has released is refused.

If the disk has damaged or lost a share set, the aggregator asks for it again and the client sends the same one.
Receipt, journal and member set stay as they are. The run ends if the set does not come within `phase_timeout_s`,
or is damaged after every resend. Another aggregator's sum is not asked for again: its sender does not keep it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from hubbub.errors import Code, PeerError, RejectReason, StorageDamaged
from hubbub.ids import PartyId, Role, SetId
from hubbub.machine.effects import (
    CancelTimer,
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
from hubbub.messages.rounds import (
    ClosePhase,
    OrderRefused,
    PartialChunk,
    PhaseReleased,
    PhaseVoided,
    VoidNotice,
    VoidPhase,
)
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
    count_arrivals,
    declare,
)
from hubbub.protocol.layout import Vector
from hubbub.strategies.phase_plan import plan_phase
from hubbub_aggregator.events import (
    AnswerOverdue,
    AskDue,
    ChunkArrived,
    ChunkBroken,
    ChunkChecked,
    CloseOrdered,
    PartialArrived,
    PhaseEnded,
    ReceiptsDue,
    SetDamaged,
    SumSent,
    VoidOrdered,
)

PARTIAL = "partial"
"""Stands in the spool for the set id of another aggregator's sum."""
RECEIPT_WAIT_S = 1.0
"""The longest time that a complete set waits for others to share a receipt with."""
RECEIPT_WAIT_SHARE = 0.1
"""The longest such wait as a share of the phase timeout."""


class State(Enum):
    """State of the phase at this aggregator."""

    COLLECTING = "collecting"
    AWAITING = "awaiting"
    SUMMING = "summing"
    RELEASED = "released"
    VOID = "void"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSet:
    """Share set of a client as it has arrived so far; the shares themselves are in the spool."""

    set_id: SetId
    vectors: tuple[Vector, ...]
    weight: int
    transcript: str
    chunks: int
    seed: bytes = field(default=b"", repr=False)
    """The sealed seed that expands to the whole set; empty if the set was sent in full."""
    arrived: frozenset[int] = field(default_factory=frozenset)
    checked: frozenset[int] = field(default_factory=frozenset)
    lost: frozenset[int] = field(default_factory=frozenset)
    """Chunks that arrived and are awaited again, because the disk has damaged one of the set."""
    asked: int = 0
    """Resend requests so far."""
    spoilt: bool = False

    @property
    def complete(self) -> bool:
        """Return whether all chunks are there and well-formed."""
        return len(self.checked) == self.chunks and not self.spoilt


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """Another aggregator's sum as it has arrived so far; the chunks themselves are in the spool."""

    members: tuple[PartyId, ...]
    vectors: tuple[Vector, ...]
    transcript: str
    signature: str
    chunks: int
    arrived: frozenset[int] = field(default_factory=frozenset)

    @property
    def complete(self) -> bool:
        """Return whether all chunks are there."""
        return len(self.arrived) == self.chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """Data of one phase at this aggregator."""

    me: PartyId
    key: Key
    run: Key
    manifest: Manifest
    servers: tuple[PartyId, ...]
    combiner: PartyId | None = None
    """The aggregator that adds up all sums; None on the paper's wire, where clients get every sum."""
    required_members: frozenset[PartyId] = field(default_factory=frozenset)
    sets: Mapping[PartyId, ShareSet] = field(default_factory=dict)
    receipted: frozenset[PartyId] = field(default_factory=frozenset)
    """Clients whose set has its receipt."""
    receipts_by_s: float = 0.0
    """Time at which complete sets get their receipts; 0 if none waits."""
    wire_bytes: Mapping[str, int] = field(default_factory=dict)
    members: tuple[PartyId, ...] = ()
    partials: Mapping[PartyId, Partial] = field(default_factory=dict)
    across: Mapping[str, int] = field(default_factory=dict)
    """Bytes received of other aggregators' sums."""
    answer_by_s: float = 0.0
    """Deadline for the share sets that we asked for again."""

    @property
    def combines(self) -> bool:
        """Return whether this aggregator is the combiner."""
        return self.combiner == self.me

    @property
    def missing(self) -> tuple[PartyId, ...]:
        """The aggregators whose sum we need and do not have completely."""
        others = [server for server in self.servers if server != self.me] if self.combines else []
        return tuple(each for each in others if each not in self.partials or not self.partials[each].complete)

    @property
    def awaits_sets(self) -> bool:
        """Return whether the set of a client that may become a member is neither complete nor refused."""
        settled = {client for client, each in self.sets.items() if each.complete or each.spoilt}
        return not settled >= (self.required_members or set(self.manifest.clients))

    @property
    def damaged(self) -> tuple[PartyId, ...]:
        """Members whose share set was complete when they became members, and has to come again."""
        return tuple(member for member in self.members if not self.sets[member].complete)

    def needs(self, client: PartyId) -> bool:
        """Return whether chunks of a client still count: any before the order, then those of damaged members."""
        return not self.members or client in self.damaged

    @property
    def awaited_again(self) -> tuple[PartyId, ...]:
        """The clients whose set was asked for again, is still needed, and has not come completely."""
        return tuple(
            client for client, each in self.sets.items() if each.lost and not each.spoilt and self.needs(client)
        )


@dataclass(frozen=True, slots=True)
class SpoolChunk(Persist):
    """Spool the delivery's payload: a chunk of a client's share set, or of another aggregator's sum."""

    sender: PartyId
    set_id: str
    index: int


@dataclass(frozen=True, slots=True)
class DropSet(Persist):
    """Delete a client's share set from the spool, so that it can be spooled again."""

    client: PartyId


@dataclass(frozen=True, slots=True)
class CheckChunk(Job):
    """Open a spooled chunk and check it."""

    client: PartyId
    share_set: ShareSet
    index: int


@dataclass(frozen=True, slots=True)
class RecordSet(Persist):
    """Journal the one set of a client that this phase accepts."""

    client: PartyId
    set_id: SetId


@dataclass(frozen=True, slots=True)
class NoteDamage(Effect):
    """Count a share set that the disk has damaged, and tell the operator which file it is."""

    client: PartyId
    what: str


@dataclass(frozen=True, slots=True)
class GiveReceipt(Effect):
    """Sign a receipt and send it to the coordinator."""

    receipt: Receipt


@dataclass(frozen=True, slots=True)
class RecordVerdict(Persist):
    """Journal for good the member set, and draw the keys that the sum is sealed with; no members mean void."""

    members: tuple[PartyId, ...] = ()


@dataclass(frozen=True, slots=True)
class SumAndRelease(Job):
    """Add the members' shares and, as the combiner, the other sums; send each chunk as soon as it is added."""

    members: tuple[PartyId, ...]


# Collecting, also what was asked for again --------------------------------------------------------------


def collect(data: Accumulation, event: ChunkArrived) -> Step[State, Accumulation]:
    """Spool a chunk and have it checked unless it was on arrival. A seed is not spooled: the event holds it.

    A duplicate changes nothing, nor does a chunk of a spoilt set, or one that is too late.
    """
    if not data.needs(event.client):
        return stay(data)
    known = data.sets.get(event.client)
    declared = (event.set_id, event.vectors, event.weight, event.transcript, bool(event.seed))
    if known and (known.set_id, known.vectors, known.weight, known.transcript, bool(known.seed)) != declared:
        raise PeerError(RejectReason.SECOND_SET, f"{event.client} has sent another share set in this phase")
    share_set = known or ShareSet(
        set_id=event.set_id,
        vectors=event.vectors,
        weight=event.weight,
        transcript=event.transcript,
        chunks=event.chunks,
        seed=event.seed,
    )
    is_new = event.index not in share_set.arrived
    if share_set.spoilt or not (is_new or event.index in share_set.lost):
        return stay(data)
    share_set = replace(share_set, arrived=share_set.arrived | {event.index}, lost=share_set.lost - {event.index})
    totals = _add_up(data.wire_bytes, event.wire_bytes if is_new else {})
    data = replace(_with_set(data, event.client, share_set), wire_bytes=totals)
    spool = () if event.seed else (SpoolChunk(event.client, event.set_id, event.index),)
    if event.checked:
        checked = ChunkChecked(client=event.client, index=event.index, at_s=event.at_s, asked=share_set.asked)
        return confirm(data, checked).first(*spool)
    return stay(data, *spool, CheckChunk(event.client, share_set, event.index))


def _add_up(so_far: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {**so_far, **{name: so_far.get(name, 0) + count for name, count in more.items()}}


def confirm(data: Accumulation, event: ChunkChecked) -> Step[State, Accumulation]:
    """Note that a chunk is good. A complete set is journalled for its receipt or, if it has one, is added."""
    share_set = data.sets[event.client]
    if not data.needs(event.client) or event.asked != share_set.asked:
        return stay(data)  # The chunk that was opened is no longer on disk.
    share_set = replace(share_set, checked=share_set.checked | {event.index})
    data = _with_set(data, event.client, share_set)
    if not share_set.complete or data.damaged:
        return stay(data)
    if data.members:
        return _sum_or_await(data).first(CancelTimer("answer"))
    return _give_or_await(data, event.at_s).first(RecordSet(event.client, share_set.set_id))


def _give_or_await(data: Accumulation, at_s: float) -> Step[State, Accumulation]:
    """Give receipts if no further set is awaited; otherwise wait a moment, so that they name several sets."""
    if not data.awaits_sets:
        return _give_receipts(data)
    if data.receipts_by_s:
        return stay(data)
    wait_s = min(RECEIPT_WAIT_S, RECEIPT_WAIT_SHARE * data.manifest.phase_timeout_s)
    data = replace(data, receipts_by_s=at_s + wait_s)
    return stay(data, _wait_for_sets(data))


def _wait_for_sets(data: Accumulation) -> Effect:
    return SetTimer("receipts", data.receipts_by_s, ReceiptsDue)


def give_due_receipts(data: Accumulation, event: ReceiptsDue) -> Step[State, Accumulation]:
    """Give receipts for all complete sets that have none."""
    del event
    return _give_receipts(data)


def _give_receipts(data: Accumulation) -> Step[State, Accumulation]:
    """Give one receipt for the new sets of each group with the same vectors and transcript."""
    groups: dict[tuple[tuple[Vector, ...], str], list[ReceivedSet]] = {}
    for client in data.manifest.clients:
        share_set = data.sets.get(client)
        if share_set and share_set.complete and client not in data.receipted:
            alike = groups.setdefault((share_set.vectors, share_set.transcript), [])
            alike.append(ReceivedSet(client=client, set_id=share_set.set_id))
    receipts = [
        Receipt(aggregator=data.me, sets=tuple(sets), vectors=declare(vectors), transcript=transcript)
        for (vectors, transcript), sets in groups.items()
    ]
    named = frozenset[PartyId]().union(*(receipt.set_of for receipt in receipts))
    cancel = [CancelTimer("receipts")] if data.receipts_by_s else []
    data = replace(data, receipted=data.receipted | named, receipts_by_s=0.0)
    return stay(data, *cancel, *map(GiveReceipt, receipts))


def spoil(data: Accumulation, event: ChunkBroken) -> Step[State, Accumulation]:
    """Refuse a set because one of its chunks is broken: it gets no receipt. Other sets are not affected.

    If it was asked for again after the order to close, give up.
    """
    share_set = data.sets[event.client]
    if not data.needs(event.client) or event.asked != share_set.asked:
        return stay(data)
    full = ShareChunk if data.combiner is None else DenseShareChunk
    kind = ShareSeed.kind if share_set.seed else full.kind
    refusal = CountRefusal(event.reason, kind, event.client, event.explanation)
    if data.members:
        why = f"{event.client} has sent a broken share set, asked for it again: begin another run"
        return _give_up(data, why).then(refusal)
    if share_set.spoilt or event.index in share_set.checked:
        return stay(data)
    report = _report(data, SetRefused(client=event.client, set_id=share_set.set_id, reason=event.reason))
    # Its chunks stay in the spool until the phase is over: a job may be opening another of them now.
    data = _with_set(data, event.client, replace(share_set, spoilt=True))
    onward = stay(data) if data.awaits_sets else _give_receipts(data)
    return onward.first(report, refusal)


def _with_set(data: Accumulation, client: PartyId, share_set: ShareSet) -> Accumulation:
    return replace(data, sets={**data.sets, client: share_set})


# Closing ------------------------------------------------------------------------------------------------


def close(data: Accumulation, event: CloseOrdered) -> Step[State, Accumulation]:
    """Check the order; if it holds, journal the member set and release."""
    try:
        _check_order(data, event)
    except PeerError as error:
        return _refuse_order(data, ClosePhase.kind, error.reason, str(error))
    # In manifest order, so that a member set has one form in the journal and everywhere.
    members = tuple(client for client in data.manifest.clients if client in event.members)
    transcript = data.sets[members[0]].transcript
    record = Record("released", {"members": list(members), "transcript": transcript})
    ended = PhaseEnded(round=data.key.round, phase=data.key.phase, members=frozenset(members))
    onward = _sum_or_await(replace(data, members=members))
    return onward.first(RecordVerdict(members), record, Tell(data.run, ended))


def _sum_or_await(data: Accumulation) -> Step[State, Accumulation]:
    """Add and send if all share sets and sums are here; otherwise wait for them."""
    one = data.sets[data.members[0]]
    ours = (data.members, one.vectors, one.transcript)
    odd = [name for name, partial in data.partials.items() if _claim(partial) != ours]
    if odd:
        why = f"{', '.join(odd)} released a sum of other members, vectors or transcript than {data.me} did"
        refusals = [CountRefusal(RejectReason.CONTRADICTION, PartialChunk.kind, name, why) for name in odd]
        return fail(data, Failed(why, Code.PROTOCOL_CONTRADICTION)).then(*refusals)
    if data.missing or data.damaged:
        return Step(State.AWAITING, data)
    return Step(State.SUMMING, data, (SumAndRelease(data.members),))


def _claim(partial: Partial | PartialArrived) -> tuple[object, ...]:
    return partial.members, partial.vectors, partial.transcript


def take_partial(data: Accumulation, event: PartialArrived) -> Step[State, Accumulation]:
    """Keep a chunk of another aggregator's sum; after our order to close, add and send when all are here."""
    partial = data.partials.get(event.aggregator) or Partial(
        members=event.members,
        vectors=event.vectors,
        transcript=event.transcript,
        signature=event.signature,
        chunks=event.chunks,
    )
    if _claim(partial) != _claim(event):
        raise PeerError(RejectReason.CONTRADICTION, f"{event.aggregator} has released another sum in this phase")
    if event.index in partial.arrived:
        return stay(data)
    partial = replace(partial, arrived=partial.arrived | {event.index})
    data = replace(
        data,
        partials={**data.partials, event.aggregator: partial},
        across=_add_up(data.across, event.wire_bytes),
    )
    onward = _sum_or_await(data) if data.members else stay(data)
    return onward.first(SpoolChunk(event.aggregator, PARTIAL, event.index))


def _check_order(data: Accumulation, event: CloseOrdered) -> None:
    members = frozenset(event.members)
    if len(members) != len(event.members) or not members <= set(data.manifest.clients):
        raise PeerError(RejectReason.NOT_IN_COHORT, "the members are not distinct clients of the cohort")
    if data.manifest.organisations_of(members) < data.manifest.min_clients:
        raise PeerError(
            RejectReason.TOO_FEW_MEMBERS,
            f"{len(members)} members are fewer than the manifest's {data.manifest.min_clients} organisations",
        )
    plan_phase(data.manifest, data.key.phase).check_members(members, data.required_members)
    sets = [_check_member(data, event, member) for member in members]
    if len({share_set.vectors for share_set in sets}) > 1:
        raise PeerError(RejectReason.WRONG_LENGTH, "the members' sets declare different vectors")
    if len({share_set.transcript for share_set in sets}) > 1:
        raise PeerError(
            RejectReason.DIFFERENT_TRANSCRIPT,
            "the members' sets come after different sums or models: somebody was told something else",
        )


def _check_member(data: Accumulation, event: CloseOrdered, member: PartyId) -> ShareSet:
    ours = data.sets.get(member)
    if ours is None or not ours.complete:
        raise PeerError(RejectReason.MISSING_RECEIPT, f"{data.me} holds no complete set of {member}")
    said = {
        (receipt.aggregator, receipt.set_of[member], receipt.vectors, receipt.transcript)
        for receipt in event.receipts
        if member in receipt.set_of
    }
    vectors, givers = declare(ours.vectors), {receipt[0] for receipt in said}
    needed = plan_phase(data.manifest, data.key.phase).quorum
    is_one = said == {(server, ours.set_id, vectors, ours.transcript) for server in givers}
    if not is_one or not givers <= set(data.servers) or len(givers) < needed:
        raise PeerError(
            RejectReason.MISSING_RECEIPT,
            f"the order does not show {needed} aggregators' receipts for the set of {member} that {data.me} holds",
        )
    return ours


def void(data: Accumulation, event: VoidOrdered) -> Step[State, Accumulation]:
    """End the phase without a sum and tell everybody; refuse if another aggregator has sent us its sum."""
    del event
    if data.partials:
        explanation = f"{', '.join(data.partials)} has released this phase already"
        return _refuse_order(data, VoidPhase.kind, RejectReason.CONTRADICTION, explanation)
    ended = PhaseEnded(round=data.key.round, phase=data.key.phase, members=frozenset())
    effects = (
        RecordVerdict(),
        *(Publish(client, Role.CLIENT, VoidNotice()) for client in data.manifest.clients),
        _report(data, PhaseVoided()),
        Record("void"),
        Tell(data.run, ended),
    )
    return Step(State.VOID, data, effects)


def refuse_late_order(data: Accumulation, event: CloseOrdered | VoidOrdered) -> Step[State, Accumulation]:
    """Refuse an order after a release, which is final; ignore the same order to close again."""
    members = event.members if isinstance(event, CloseOrdered) else ()
    if frozenset(members) == frozenset(data.members):
        return stay(data)
    explanation = f"{data.me} has released this phase over {', '.join(data.members)}"
    kind = ClosePhase.kind if isinstance(event, CloseOrdered) else VoidPhase.kind
    return _refuse_order(data, kind, RejectReason.ALREADY_ENDED, explanation)


def _refuse_order(
    data: Accumulation, kind: str, reason: RejectReason, explanation: str
) -> Step[State, Accumulation]:
    """Answer, count and record an order that is refused; the phase stays as it was."""
    refusal = CountRefusal(reason, kind, data.manifest.coordinator, explanation)
    return stay(data, _report(data, OrderRefused(reason=reason)), refusal)


def report_release(data: Accumulation, event: SumSent) -> Step[State, Accumulation]:
    """Report to the coordinator that the sum was sent, with the traffic."""
    arrived = (*count_arrivals(data.wire_bytes, "up"), *count_arrivals(data.across, "across"))
    body = PhaseReleased(members=data.members, vectors=declare(event.vectors), traffic=(*arrived, *event.traffic))
    return Step(State.RELEASED, data, (_report(data, body),))


def fail(data: Accumulation, event: Failed) -> Step[State, Accumulation]:
    """Report a failure of this machine: the run cannot go on with this aggregator."""
    return Step(State.FAILED, data, (_report(data, PartyFailed(code=event.code)),))


def _report(data: Accumulation, body: Sendable) -> Effect:
    return Publish(data.manifest.coordinator, Role.COORDINATOR, body)


# Asking again -------------------------------------------------------------------------------------------


def ask_again(data: Accumulation, event: SetDamaged) -> Step[State, Accumulation]:
    """Drop a set and ask for it again: other files may be damaged too, and the client sends the whole set.

    Damage to a set that has its receipt is found when it is added. The sum is then added again once the set is
    here, and comes out the same. Sets of clients that are no members are no longer needed.
    """
    share_set = data.sets[event.client]
    is_open = not (share_set.spoilt or event.index in share_set.checked)
    is_needed = event.client in data.members if data.members else is_open
    if not is_needed or event.asked != share_set.asked:
        return stay(data)
    if share_set.asked >= MAX_RESENDS:
        return _give_up(data, str(StorageDamaged(event.path, event.what)))
    share_set = replace(share_set, lost=share_set.arrived, checked=frozenset(), asked=share_set.asked + 1)
    data = _with_set(data, event.client, share_set)
    noted = NoteDamage(event.client, f"{event.path} {event.what}")
    effects = (DropSet(event.client), noted, _request(data, event.client))
    if not data.members:
        return stay(data, *effects)  # The coordinator's own timeout ends the phase.
    data = replace(data, answer_by_s=event.at_s + data.manifest.phase_timeout_s)
    return Step(State.AWAITING, data, (*effects, _wait_for_answer(data)))


def _request(data: Accumulation, client: PartyId) -> Effect:
    return Publish(client, Role.CLIENT, ResendSet(set_id=data.sets[client].set_id))


def _wait_for_answer(data: Accumulation) -> Effect:
    return SetTimer("answer", data.answer_by_s, AnswerOverdue)


def repeat_requests(data: Accumulation, event: AskDue) -> Step[State, Accumulation]:
    """Repeat, after a restart, the requests for sets that have not come."""
    del event
    return stay(data, *(_request(data, client) for client in data.awaited_again))


def stop_waiting(data: Accumulation, event: AnswerOverdue) -> Step[State, Accumulation]:
    """Give up because a client did not resend its set: it is silent, or no longer has the set."""
    del event
    if not data.damaged:
        return stay(data)
    silent = ", ".join(data.damaged)
    return _give_up(
        data, f"{silent} did not send again what the disk has damaged: replace the disk, and begin another run"
    )


def _give_up(data: Accumulation, sentence: str) -> Step[State, Accumulation]:
    return fail(data, Failed(sentence, Code.DISK_FAILED)).first(TellOwner(sentence))


TRANSITIONS: Table[State, Accumulation] = {
    State.COLLECTING: {
        ChunkArrived: To(collect, State.COLLECTING),
        ChunkChecked: To(confirm, State.COLLECTING),
        ChunkBroken: To(spoil, State.COLLECTING),
        ReceiptsDue: To(give_due_receipts, State.COLLECTING),
        SetDamaged: To(ask_again, State.COLLECTING, State.FAILED),
        AskDue: To(repeat_requests, State.COLLECTING),
        PartialArrived: To(take_partial, State.COLLECTING),
        CloseOrdered: To(close, State.COLLECTING, State.AWAITING, State.SUMMING, State.FAILED),
        VoidOrdered: To(void, State.VOID, State.COLLECTING),
        Failed: To(fail, State.FAILED),
    },
    State.AWAITING: {
        ChunkArrived: To(collect, State.AWAITING, State.SUMMING),
        ChunkChecked: To(confirm, State.AWAITING, State.SUMMING),
        ChunkBroken: To(spoil, State.AWAITING, State.FAILED),
        ReceiptsDue: STAY,  # Only of clients that are no members: the member set is frozen.
        SetDamaged: To(ask_again, State.AWAITING, State.FAILED),
        AskDue: To(repeat_requests, State.AWAITING),
        AnswerOverdue: To(stop_waiting, State.AWAITING, State.FAILED),
        PartialArrived: To(take_partial, State.AWAITING, State.SUMMING, State.FAILED),
        CloseOrdered: To(refuse_late_order, State.AWAITING),
        VoidOrdered: To(refuse_late_order, State.AWAITING),
        Failed: To(fail, State.FAILED),
    },
    State.SUMMING: {
        ChunkArrived: STAY,  # Late: the member set is frozen, the chunk is not even spooled.
        ChunkChecked: STAY,
        ChunkBroken: STAY,
        ReceiptsDue: STAY,
        SetDamaged: To(ask_again, State.SUMMING, State.AWAITING, State.FAILED),
        AskDue: STAY,
        AnswerOverdue: STAY,
        PartialArrived: STAY,  # Delivered again: all of them are here.
        CloseOrdered: To(refuse_late_order, State.SUMMING),
        VoidOrdered: To(refuse_late_order, State.SUMMING),
        SumSent: To(report_release, State.RELEASED),
        Failed: To(fail, State.FAILED),
    },
    State.RELEASED: {},
    State.VOID: {},
    State.FAILED: {},
}


def resume(state: State, data: Accumulation) -> tuple[Effect, ...]:
    """Resume after a restart: check unchecked chunks, set timers and ask for sets again, or add and send again.

    A sum that is sent again is the same, under the same key.
    """
    if state is State.SUMMING:
        return (SumAndRelease(data.members),)
    checks = tuple(
        CheckChunk(client, share_set, index)
        for client, share_set in data.sets.items()
        for index in sorted(share_set.arrived - share_set.lost - share_set.checked)
        if data.needs(client) and not share_set.spoilt
    )
    receipts = (_wait_for_sets(data),) if data.receipts_by_s and not data.members else ()
    ask = (SetTimer("ask", 0.0, AskDue),) if data.awaited_again else ()
    give_up = (_wait_for_answer(data),) if data.damaged else ()
    return (*checks, *receipts, *ask, *give_up)


KIND = Kind(TRANSITIONS, State.COLLECTING, Accumulation, resume)
