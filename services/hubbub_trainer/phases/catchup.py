"""Catching up: a client whose inbox has lost sums takes the model from a peer.

    ASKING     all peers are asked which models they held, and one of them for its own, in turns
    CHECKING   a whole snapshot is here, and enough organisations vouch for one and the same digest of it
    DONE       final: the model is ours, or nothing was lost after all

A snapshot is accepted if min_clients - 1 other organisations have signed its digest under the group's key of that
round: as many as it takes to release a sum. Our own accumulator is lost with the rounds that it belonged to, and
begins at zero.

A client that joins the successor of a run that it was not in gets the model that the run begins with in the same
way; that model is accepted if the manifest commits to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Effect, Failed, Job, Key, Persist, Publish, SetTimer, Tell
from hubbub.machine.table import STAY, Kind, Step, Table, To, stay
from hubbub.messages.manifest import Manifest
from hubbub.messages.snapshots import SnapshotRequested, Voucher, count_chunks
from hubbub_trainer.events import (
    AskDue,
    CaughtUp,
    Inherited,
    Lost,
    NeverMind,
    PeerVouched,
    SnapshotArrived,
    SnapshotTaken,
)

ASK_AGAIN_S = 10.0
AT_ONCE_S = 0.0
"""Time of a timer that fires at once."""


class State(Enum):
    """State of a client that catches up."""

    ASKING = "asking"
    CHECKING = "checking"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A peer's model after a round as it has arrived so far; the chunks themselves are in the spool."""

    number: int
    arrived: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class TakeSnapshot(Job):
    """Open a snapshot, check it against the voucher or the manifest's commitment, and make it our model."""

    client: PartyId
    voucher: Voucher | None = None


def heirs(manifest: Manifest) -> frozenset[PartyId]:
    """Return the clients that were in the predecessor run."""
    former = manifest.predecessor.cohort if manifest.predecessor else ()
    return frozenset(manifest.clients) & {member.name for member in former}


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """Data of a client that catches up."""

    me: PartyId
    key: Key
    run: Key
    manifest: Manifest
    after: int
    """The last round that we have taken in; -1 if we lack the model that the run begins with."""
    need: int = 0
    """The earliest round whose model will do."""
    attempt: int = 0
    snapshots: Mapping[PartyId, Snapshot] = field(default_factory=dict)
    """The newest snapshot of each peer."""
    vouchers: Mapping[PartyId, Mapping[int, Voucher]] = field(default_factory=dict)
    checking: TakeSnapshot | None = None
    idle: bool = False
    """The sums that seemed lost have come; only the snapshot that is being checked is still of use."""

    @property
    def inherits(self) -> bool:
        """Return whether we lack the model that the run begins with, which needs no vouchers."""
        return self.after < 0

    @property
    def peers(self) -> tuple[PartyId, ...]:
        """The clients that can help, those after us in the manifest first, so that not all ask the same one."""
        place = self.manifest.clients.index(self.me)
        others = (*self.manifest.clients[place + 1 :], *self.manifest.clients[:place])
        return tuple(client for client in others if client in heirs(self.manifest)) if self.inherits else others

    def find_good(self, giver: PartyId) -> TakeSnapshot | None:
        """Return a job for a peer's snapshot if it is complete, late enough, and vouched for by enough peers."""
        snapshot = self.snapshots.get(giver)
        if snapshot is None or snapshot.number < self.need:
            return None
        if len(snapshot.arrived) < count_chunks(self.manifest, snapshot.number):
            return None
        if self.inherits:
            return None if snapshot.number else TakeSnapshot(giver)
        voucher = self.vouchers.get(giver, {}).get(snapshot.number)
        if voucher is None or self._organisations_behind(voucher) < self.manifest.min_clients - 1:
            return None
        return TakeSnapshot(giver, voucher)

    def _organisations_behind(self, voucher: Voucher) -> int:
        mine = next(member.organisation for member in self.manifest.cohort if member.name == self.me)
        signed = {peer for peer, said in self.vouchers.items() if said.get(voucher.round) == voucher}
        return len({member.organisation for member in self.manifest.cohort if member.name in signed} - {mine})


@dataclass(frozen=True, slots=True)
class KeepSnapshot(Persist):
    """Spool the delivery's payload."""

    client: PartyId
    number: int
    index: int


@dataclass(frozen=True, slots=True)
class DropSnapshot(Effect):
    """Delete a peer's snapshot from the spool."""

    client: PartyId


def note_loss(data: CatchUp, event: Lost) -> Step[State, CatchUp]:
    """Note that sums are lost, or more of them than before, and ask the peers at once.

    A snapshot that is being checked may still do.
    """
    data = replace(data, need=max(data.need, event.number))
    return stay(data) if data.checking else stay(data, _ask_at_once())


def _ask_at_once() -> Effect:
    return SetTimer("ask", AT_ONCE_S, AskDue)


def ask(data: CatchUp, event: AskDue) -> Step[State, CatchUp]:
    """Ask all peers to vouch, and the next of them for its model."""
    giver = data.peers[data.attempt % len(data.peers)]
    body = SnapshotRequested(after=data.after, giver=giver)
    requests = tuple(Publish(peer, Role.CLIENT, body) for peer in data.peers)
    again = SetTimer("ask", event.at_s + ASK_AGAIN_S, AskDue)
    return Step(State.ASKING, replace(data, attempt=data.attempt + 1), (*requests, again))


def note_vouchers(data: CatchUp, event: PeerVouched) -> Step[State, CatchUp]:
    """Keep a peer's vouchers, the first for each round; check a snapshot if enough peers vouch for it now."""
    said = {**{voucher.round: voucher for voucher in event.vouchers}, **data.vouchers.get(event.client, {})}
    return _check_if_backed(replace(data, vouchers={**data.vouchers, event.client: said}))


def keep_chunk(data: CatchUp, event: SnapshotArrived) -> Step[State, CatchUp]:
    """Keep a chunk of a peer's newest snapshot, and check it if it is complete now; older ones are dropped.

    The snapshot that is being checked stays as it is. Others are kept for the case that it is refused.
    """
    snapshot = data.snapshots.get(event.client)
    if snapshot is None or snapshot.number < event.number:
        snapshot = Snapshot(number=event.number)
    is_checked = data.checking is not None and data.checking.client == event.client
    if is_checked or snapshot.number > event.number or event.index in snapshot.arrived:
        return stay(data)
    snapshot = replace(snapshot, arrived=snapshot.arrived | {event.index})
    data = replace(data, snapshots={**data.snapshots, event.client: snapshot})
    return _check_if_backed(data).first(KeepSnapshot(event.client, event.number, event.index))


def _check_if_backed(data: CatchUp) -> Step[State, CatchUp]:
    """Check a snapshot that is complete and vouched for, if there is one and none is being checked."""
    if data.checking is not None:
        return stay(data)
    good = next(filter(None, map(data.find_good, data.peers)), None)
    if good is None:
        return Step(State.ASKING, data)
    return Step(State.CHECKING, replace(data, checking=good), (good,))


def finish(data: CatchUp, event: SnapshotTaken) -> Step[State, CatchUp]:
    """Continue from this model; if more was lost meanwhile, the run asks again."""
    voucher = data.checking.voucher if data.checking else None
    if data.inherits and event.initial is not None:
        return Step(State.DONE, data, (Tell(data.run, Inherited(initial=event.initial)),))
    if voucher is not None and event.held is not None:
        caught_up = CaughtUp(number=data.key.round, voucher=voucher, held=event.held)
        return Step(State.DONE, data, (Tell(data.run, caught_up),))
    return Step(State.ASKING, replace(data, checking=None), (_ask_at_once(),))


def refuse(data: CatchUp, event: Failed) -> Step[State, CatchUp]:
    """Drop a snapshot that was not vouched for or could not be read, and ask another peer."""
    del event
    if data.checking is None:
        return Step(State.ASKING, data, (_ask_at_once(),))
    giver = data.checking.client
    others = {peer: snapshot for peer, snapshot in data.snapshots.items() if peer != giver}
    data = replace(data, checking=None, snapshots=others)
    if data.idle:
        return Step(State.DONE, data)
    onward = _check_if_backed(data).first(DropSnapshot(giver))
    return onward.then(_ask_at_once()) if onward.state is State.ASKING else onward


def stop(data: CatchUp, event: NeverMind) -> Step[State, CatchUp]:
    """Stop: nothing was lost after all."""
    del event
    return Step(State.DONE, data)


def stop_asking(data: CatchUp, event: NeverMind) -> Step[State, CatchUp]:
    """Stop asking: nothing was lost after all. The snapshot in hand is still a later model."""
    del event
    return stay(replace(data, idle=True))


TRANSITIONS: Table[State, CatchUp] = {
    State.ASKING: {
        Lost: To(note_loss, State.ASKING),
        AskDue: To(ask, State.ASKING),
        PeerVouched: To(note_vouchers, State.ASKING, State.CHECKING),
        SnapshotArrived: To(keep_chunk, State.ASKING, State.CHECKING),
        NeverMind: To(stop, State.DONE),
    },
    State.CHECKING: {
        SnapshotTaken: To(finish, State.DONE, State.ASKING),
        Failed: To(refuse, State.ASKING, State.CHECKING, State.DONE),
        PeerVouched: To(note_vouchers, State.CHECKING),
        SnapshotArrived: To(keep_chunk, State.CHECKING),
        Lost: To(note_loss, State.CHECKING),
        NeverMind: To(stop_asking, State.CHECKING),
        AskDue: STAY,
    },
    State.DONE: {},
}


def resume(state: State, data: CatchUp) -> tuple[Effect, ...]:
    """Resume after a restart: ask again, or check the snapshot again."""
    if state is State.CHECKING and data.checking is not None:
        return (data.checking,)
    return (_ask_at_once(),) if state is State.ASKING else ()


KIND = Kind(TRANSITIONS, State.ASKING, CatchUp, resume)
