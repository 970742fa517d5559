"""One phase of one round at one aggregator: collect share sets, be told a member set, release one sum, once.

    COLLECTING   chunks are spooled, acknowledged, opened and checked; a complete set earns a receipt
    SUMMING      the member set is frozen and journalled; the sum is computed and sent
    RELEASED, VOID   final, and so the journal has it
    FAILED       final: the disk failed us

A client has one set in a phase; a second one is refused. An order to close is obeyed only if it names enough
members of the cohort, shows every aggregator's signed receipt for one and the same set of each, all with one
transcript, and keeps the members that the round's first phase was released over. Any other order is refused and
the phase stays open. The journal entry is on disk before anything leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId, Role, SetId
from hubbub.machine.effects import CountRefusal, Effect, Failed, Job, Key, Persist, Publish, Record, Tell
from hubbub.machine.kind import Kind
from hubbub.machine.table import STAY, Step, Table, To
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import ClosePhase, OrderRefused, PhaseReleased, PhaseVoided, VoidPhase
from hubbub.messages.runs import PartyFailed
from hubbub.messages.shares import Receipt, SetRefused, ShareChunk, declare
from hubbub.messages.sums import VoidNotice
from hubbub.messages.traffic import count_arrivals
from hubbub.protocol.layout import Vector
from hubbub_aggregator.events import (
    ChunkArrived,
    ChunkBroken,
    ChunkChecked,
    CloseOrdered,
    PhaseEnded,
    SumSent,
    VoidOrdered,
)


class State(Enum):
    """Where the phase is at this aggregator."""

    COLLECTING = "collecting"
    SUMMING = "summing"
    RELEASED = "released"
    VOID = "void"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSet:
    """What arrived of a client's share set; the shares themselves are in the spool."""

    set_id: SetId
    vectors: tuple[Vector, ...]
    weight: int
    transcript: str
    chunks: int
    arrived: frozenset[int] = field(default_factory=frozenset)
    checked: frozenset[int] = field(default_factory=frozenset)
    spoilt: bool = False

    @property
    def complete(self) -> bool:
        """All chunks are there and well-formed."""
        return len(self.checked) == self.chunks and not self.spoilt


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """What this aggregator knows of the phase."""

    me: PartyId
    key: Key
    run: Key
    manifest: Manifest
    servers: tuple[PartyId, ...]
    required_members: frozenset[PartyId] = field(default_factory=frozenset)
    sets: Mapping[PartyId, ShareSet] = field(default_factory=dict)
    wire_bytes: Mapping[str, int] = field(default_factory=dict)
    members: tuple[PartyId, ...] = ()


@dataclass(frozen=True, slots=True)
class SpoolChunk(Persist):
    """Put the delivery's payload on disk."""

    client: PartyId
    set_id: SetId
    index: int


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
class GiveReceipt(Effect):
    """Sign a receipt and send it to the coordinator."""

    receipt: Receipt


@dataclass(frozen=True, slots=True)
class RecordRelease(Persist):
    """Journal the member set, for good, and the keys that the sum is sealed with."""

    members: tuple[PartyId, ...]


@dataclass(frozen=True, slots=True)
class RecordVoid(Persist):
    """Journal that there is no sum, for good."""


@dataclass(frozen=True, slots=True)
class SumAndRelease(Job):
    """Add the members' shares chunk by chunk and send each chunk of the sum to every client."""

    members: tuple[PartyId, ...]


# Collecting ---------------------------------------------------------------------------------------------


def collect(data: Accumulation, event: ChunkArrived) -> Step[State, Accumulation]:
    """Spool a chunk and have it checked; the same chunk again changes nothing, nor does one of a spoilt set."""
    known = data.sets.get(event.client)
    declared = (event.set_id, event.vectors, event.weight, event.transcript)
    if known and (known.set_id, known.vectors, known.weight, known.transcript) != declared:
        raise PeerError(RejectReason.SECOND_SET, f"{event.client} has sent another share set in this phase")
    share_set = known or ShareSet(
        set_id=event.set_id,
        vectors=event.vectors,
        weight=event.weight,
        transcript=event.transcript,
        chunks=event.chunks,
    )
    if share_set.spoilt or event.index in share_set.arrived:
        return Step(State.COLLECTING, data)
    share_set = replace(share_set, arrived=share_set.arrived | {event.index})
    totals = {name: data.wire_bytes.get(name, 0) + count for name, count in event.wire_bytes.items()}
    data = replace(_with_set(data, event.client, share_set), wire_bytes={**data.wire_bytes, **totals})
    effects = (
        SpoolChunk(event.client, event.set_id, event.index),
        CheckChunk(event.client, share_set, event.index),
    )
    return Step(State.COLLECTING, data, effects)


def confirm(data: Accumulation, event: ChunkChecked) -> Step[State, Accumulation]:
    """A chunk is good; a complete set earns its receipt."""
    share_set = data.sets[event.client]
    share_set = replace(share_set, checked=share_set.checked | {event.index})
    data = _with_set(data, event.client, share_set)
    if not share_set.complete:
        return Step(State.COLLECTING, data)
    receipt = _receipt(data.me, event.client, share_set)
    return Step(State.COLLECTING, data, (RecordSet(event.client, share_set.set_id), GiveReceipt(receipt)))


def _receipt(server: PartyId, client: PartyId, share_set: ShareSet) -> Receipt:
    return Receipt(
        aggregator=server,
        client=client,
        set_id=share_set.set_id,
        vectors=declare(share_set.vectors),
        transcript=share_set.transcript,
    )


def spoil(data: Accumulation, event: ChunkBroken) -> Step[State, Accumulation]:
    """A chunk is not what it claims to be: the set gets no receipt, the others are unharmed."""
    share_set = data.sets[event.client]
    if share_set.spoilt:
        return Step(State.COLLECTING, data)
    share_set = replace(share_set, spoilt=True)
    effects = (
        _report(data, SetRefused(client=event.client, set_id=share_set.set_id, reason=event.reason)),
        CountRefusal(event.reason, ShareChunk.kind, event.client, event.explanation),
    )
    # Its chunks stay in the spool until the phase is over: others of them may be being opened just now.
    return Step(State.COLLECTING, _with_set(data, event.client, share_set), effects)


def _with_set(data: Accumulation, client: PartyId, share_set: ShareSet) -> Accumulation:
    return replace(data, sets={**data.sets, client: share_set})


# Closing ------------------------------------------------------------------------------------------------


def close(data: Accumulation, event: CloseOrdered) -> Step[State, Accumulation]:
    """Check the order; if it holds, journal the member set and release."""
    try:
        _check_order(data, event)
    except PeerError as error:
        return Step(State.COLLECTING, data, _refuse_order(data, ClosePhase.kind, error.reason, str(error)))
    members = _in_manifest_order(data, event.members)
    transcript = data.sets[members[0]].transcript
    record = Record("released", {"members": list(members), "transcript": transcript})
    ended = PhaseEnded(round=data.key.round, phase=data.key.phase, members=frozenset(members))
    effects = (RecordRelease(members), record, Tell(data.run, ended), SumAndRelease(members))
    return Step(State.SUMMING, replace(data, members=members), effects)


def _in_manifest_order(data: Accumulation, members: tuple[PartyId, ...]) -> tuple[PartyId, ...]:
    """One member set has one spelling, in the journal and everywhere."""
    return tuple(client for client in data.manifest.clients if client in members)


def _check_order(data: Accumulation, event: CloseOrdered) -> None:
    members = frozenset(event.members)
    if len(members) != len(event.members) or not members <= set(data.manifest.clients):
        raise PeerError(RejectReason.NOT_IN_COHORT, "the members are not distinct clients of the cohort")
    if data.manifest.organisations_of(members) < data.manifest.min_clients:
        raise PeerError(
            RejectReason.TOO_FEW_MEMBERS,
            f"{len(members)} members are fewer than the manifest's {data.manifest.min_clients} organisations",
        )
    if data.required_members and members != data.required_members:
        raise PeerError(
            RejectReason.DIFFERENT_MEMBERS, "a round's phases are released over one and the same member set"
        )
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
    receipts = [receipt for receipt in event.receipts if receipt.client == member]
    if set(receipts) != {_receipt(server, member, ours) for server in data.servers}:
        raise PeerError(
            RejectReason.MISSING_RECEIPT,
            f"the order does not show every aggregator's receipt for the set of {member} that {data.me} holds",
        )
    return ours


def void(data: Accumulation, event: VoidOrdered) -> Step[State, Accumulation]:
    """End the phase without a sum, and tell everybody."""
    ended = PhaseEnded(round=data.key.round, phase=data.key.phase, members=frozenset())
    notice = VoidNotice(reason=event.reason)
    effects = (
        RecordVoid(),
        *(Publish(client, Role.CLIENT, notice) for client in data.manifest.clients),
        _report(data, PhaseVoided()),
        Record("void"),
        Tell(data.run, ended),
    )
    return Step(State.VOID, data, effects)


def refuse_close(data: Accumulation, event: CloseOrdered) -> Step[State, Accumulation]:
    """The same order again is old news; another one comes too late."""
    if frozenset(event.members) == frozenset(data.members):
        return Step(State.SUMMING, data)
    return _refuse_late(data, ClosePhase.kind)


def refuse_void(data: Accumulation, event: VoidOrdered) -> Step[State, Accumulation]:
    """Released is final."""
    del event
    return _refuse_late(data, VoidPhase.kind)


def _refuse_late(data: Accumulation, kind: str) -> Step[State, Accumulation]:
    explanation = f"{data.me} has released this phase over {', '.join(data.members)}"
    return Step(State.SUMMING, data, _refuse_order(data, kind, RejectReason.ALREADY_ENDED, explanation))


def _refuse_order(data: Accumulation, kind: str, reason: RejectReason, explanation: str) -> tuple[Effect, ...]:
    """An order that is not obeyed is answered, counted and recorded; the phase stays as it was."""
    return (
        _report(data, OrderRefused(reason=reason, explanation=explanation)),
        CountRefusal(reason, kind, data.manifest.coordinator, explanation),
    )


def report_release(data: Accumulation, event: SumSent) -> Step[State, Accumulation]:
    """The sum is out: say so, with what was counted."""
    arrived = count_arrivals(data.wire_bytes, "up")
    body = PhaseReleased(members=data.members, vectors=declare(event.vectors), traffic=(*arrived, *event.traffic))
    return Step(State.RELEASED, data, (_report(data, body),))


def fail(data: Accumulation, event: Failed) -> Step[State, Accumulation]:
    """Something on this machine failed: the run cannot go on with us."""
    return Step(State.FAILED, data, (_report(data, PartyFailed(reason=event.why)),))


def _report(
    data: Accumulation,
    body: SetRefused | PhaseReleased | PhaseVoided | OrderRefused | PartyFailed,
) -> Effect:
    return Publish(data.manifest.coordinator, Role.COORDINATOR, body)


TRANSITIONS: Table[State, Accumulation] = {
    State.COLLECTING: {
        ChunkArrived: To(collect, State.COLLECTING),
        ChunkChecked: To(confirm, State.COLLECTING),
        ChunkBroken: To(spoil, State.COLLECTING),
        CloseOrdered: To(close, State.COLLECTING, State.SUMMING),
        VoidOrdered: To(void, State.VOID),
        Failed: To(fail, State.FAILED),
    },
    State.SUMMING: {
        ChunkArrived: STAY,  # Late: the member set is frozen, the chunk is not even spooled.
        ChunkChecked: STAY,
        ChunkBroken: STAY,
        CloseOrdered: To(refuse_close, State.SUMMING),
        VoidOrdered: To(refuse_void, State.SUMMING),
        SumSent: To(report_release, State.RELEASED),
        Failed: To(fail, State.FAILED),
    },
    State.RELEASED: {},
    State.VOID: {},
    State.FAILED: {},
}


def resume(state: State, data: Accumulation) -> tuple[Effect, ...]:
    """Look again at chunks that were not looked at, or add and send again: the same sum under the same key."""
    if state is State.SUMMING:
        return (SumAndRelease(data.members),)
    return tuple(
        CheckChunk(client, share_set, index)
        for client, share_set in data.sets.items()
        for index in sorted(share_set.arrived - share_set.checked)
        if not share_set.spoilt
    )


KIND = Kind(TRANSITIONS, State.COLLECTING, Accumulation, resume)
