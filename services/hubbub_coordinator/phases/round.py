"""A round, as the coordinator sees it.

    COLLECTING   clients train and send; aggregators report each complete share set with a receipt
    RELEASING    the phase is closed over a member set; every aggregator of the phase is to release its sum
    APPLYING     all sums are out; clients decode, apply and acknowledge
    VOIDING      the phase is ended without a sum; every aggregator is to confirm
    RELEASED, VOID, CONTRADICTED   final

COLLECTING and RELEASING are passed once for each phase of the strategy. The first phase closes over the clients
whose set is complete at all its aggregators: all of the cohort, or at the deadline the largest group that
declared the same vectors, if it has min_clients organisations. Every later phase closes over exactly those
members, because the difference between two sums over different sets belongs to somebody. If one of them is
missing then, the round is void. A release and a void of one phase contradict each other and end the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from hubbub.ids import PartyId, Role
from hubbub.machine.effects import CancelTimer, Effect, Failed, Key, Publish, SetTimer, Tell
from hubbub.machine.table import STAY, Step, Table, To
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import ClosePhase, RoundApplied, RoundOpened, VoidPhase
from hubbub.messages.shares import Receipt, VectorClaim
from hubbub.messages.traffic import Traffic
from hubbub.strategies.base import Phase
from hubbub.strategies.registry import find_strategy
from hubbub_coordinator.events import (
    Began,
    DeadlinePassed,
    OrderDeclined,
    ReceiptArrived,
    RoundEnded,
    RoundVerdict,
    SetSpoilt,
    SumReleased,
    UpdateApplied,
    UpdateDropped,
    VoidConfirmed,
)


class State(Enum):
    """Where a round is."""

    COLLECTING = "collecting"
    RELEASING = "releasing"
    APPLYING = "applying"
    VOIDING = "voiding"
    RELEASED = "released"
    VOID = "void"
    CONTRADICTED = "contradicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRecord:
    """What is known of one phase: receipts by client and aggregator, and who has ended it."""

    opened_at_s: float
    closed_at_s: float | None = None
    released_at_s: float | None = None
    receipts: Mapping[PartyId, Mapping[PartyId, Receipt]] = field(default_factory=dict)
    spoilt: Mapping[PartyId, str] = field(default_factory=dict)
    ended: frozenset[PartyId] = field(default_factory=frozenset)
    released: tuple[VectorClaim, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What the coordinator knows of a round."""

    run: Key
    number: int
    manifest: Manifest
    phase: int = 0
    records: tuple[PhaseRecord, ...] = ()
    members: frozenset[PartyId] = field(default_factory=frozenset)
    early: tuple[Receipt, ...] = ()
    """Receipts of the next phase that came before the last report on this one."""
    applied: Mapping[PartyId, RoundApplied] = field(default_factory=dict)
    traffic: tuple[tuple[PartyId, Traffic], ...] = ()
    began_at_s: float = 0.0
    ended_at_s: float | None = None
    reason: str = ""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The strategy's phases."""
        return find_strategy(self.manifest.strategy).phases

    @property
    def current(self) -> Phase:
        """The phase that the round is in."""
        return self.phases[self.phase]

    @property
    def record(self) -> PhaseRecord:
        """What is known of the current phase."""
        return self.records[self.phase]

    @property
    def aggregators(self) -> tuple[PartyId, ...]:
        """Who adds in the current phase."""
        return self.current.aggregators(self.manifest.aggregators)

    @property
    def awaited(self) -> frozenset[PartyId]:
        """Whose share sets count in the current phase: the members, once they are fixed; before, everybody's."""
        return self.members or frozenset(self.manifest.clients)

    def complete(self) -> frozenset[PartyId]:
        """The largest group, by organisations, of clients with one set at all aggregators and equal vectors."""
        groups: dict[object, set[PartyId]] = {}
        for client in self.awaited:
            receipts = self.record.receipts.get(client, {})
            sets = {receipt.set_id for receipt in receipts.values()}
            shapes = {receipt.vectors for receipt in receipts.values()}
            if receipts.keys() == set(self.aggregators) and len(sets) == len(shapes) == 1:
                groups.setdefault(next(iter(shapes)), set()).add(client)
        ranked = sorted(groups.values(), key=lambda each: (self._organisations(each), len(each), sorted(each)))
        return frozenset(ranked[-1]) if ranked else frozenset()

    def missing(self) -> tuple[PartyId, ...]:
        """Whose share set of the current phase is not complete yet, in manifest order."""
        missing = self.awaited - self.complete()
        return tuple(client for client in self.manifest.clients if client in missing)

    def _organisations(self, clients: set[PartyId]) -> int:
        return self.manifest.organisations_of(frozenset(clients))


def _with_record(data: Round, record: PhaseRecord) -> Round:
    return replace(data, records=(*data.records[: data.phase], record, *data.records[data.phase + 1 :]))


def _enter_phase(data: Round, phase: int, at_s: float) -> tuple[Round, Effect]:
    data = replace(data, phase=phase, records=(*data.records, PhaseRecord(opened_at_s=at_s)))
    return data, SetTimer("deadline", at_s + data.manifest.phase_timeout_s, DeadlinePassed)


def begin(data: Round, event: Began) -> Step[State, Round]:
    """Order every client to train."""
    data, timer = _enter_phase(replace(data, began_at_s=event.at_s), 0, event.at_s)
    orders = tuple(Publish(client, Role.CLIENT, RoundOpened()) for client in data.manifest.clients)
    return Step(State.COLLECTING, data, (timer, *orders))


def collect(data: Round, event: ReceiptArrived) -> Step[State, Round]:
    """Note a receipt; close the phase when nobody is missing."""
    if event.phase != data.current.name or event.receipt.aggregator not in data.aggregators:
        return Step(State.COLLECTING, data)  # Of the phase before, delivered late, or of no part in this one.
    data = _with_receipt(data, event.receipt)
    return Step(State.COLLECTING, data) if data.missing() else _close(data, event.at_s)


def _with_receipt(data: Round, receipt: Receipt) -> Round:
    record = data.record
    of_client = {**record.receipts.get(receipt.client, {}), receipt.aggregator: receipt}
    return _with_record(data, replace(record, receipts={**record.receipts, receipt.client: of_client}))


def keep_early_receipt(data: Round, event: ReceiptArrived) -> Step[State, Round]:
    """Keep a receipt of the next phase: clients go on when they have all sums, which we may hear of later."""
    ahead = [phase.name for phase in data.phases[data.phase + 1 :]]
    if event.phase in ahead[:1]:
        data = replace(data, early=(*data.early, event.receipt))
    return Step(State.RELEASING, data)  # Another one is late or repeated: the member set is closed.


def close_or_void(data: Round, event: DeadlinePassed) -> Step[State, Round]:
    """Time is up: go on with those who are there, if the rules allow it."""
    there, missing = data.complete(), ", ".join(data.missing())
    if data.members:
        return _void(data, f"{missing} did not deliver in {data.current.name}, and members cannot change")
    if data.manifest.organisations_of(there) < data.manifest.min_clients:
        return _void(data, f"{missing} did not deliver, and {len(there)} clients are too few")
    return _close(data, event.at_s)


def _close(data: Round, at_s: float) -> Step[State, Round]:
    members = data.complete()
    data = _with_record(replace(data, members=members), replace(data.record, closed_at_s=at_s))
    named = tuple(client for client in data.manifest.clients if client in members)
    receipts = tuple(data.record.receipts[client][server] for client in named for server in data.aggregators)
    order = ClosePhase(members=named, receipts=receipts)
    return Step(State.RELEASING, data, (_no_deadline(), *_order(data, order)))


def _void(data: Round, reason: str) -> Step[State, Round]:
    data = replace(data, reason=reason)
    return Step(State.VOIDING, data, (_no_deadline(), *_order(data, VoidPhase(reason=reason))))


def _order(data: Round, body: ClosePhase | VoidPhase) -> tuple[Effect, ...]:
    """One order to every aggregator of the phase; a void goes to all, for the phase ends the round."""
    to = data.manifest.aggregators if isinstance(body, VoidPhase) else data.aggregators
    return tuple(Publish(server, Role.AGGREGATOR, body, data.current.name) for server in to)


def _no_deadline() -> Effect:
    return CancelTimer("deadline")


def note_release(data: Round, event: SumReleased) -> Step[State, Round]:
    """Note a release; when all are out, the next phase or the clients' turn."""
    if event.phase != data.current.name or event.aggregator not in data.aggregators:
        return Step(State.RELEASING, data)
    if event.members != data.members:
        return _contradict(data, f"{event.aggregator} released a sum over other members", event.at_s)
    if data.record.released not in {(), event.vectors}:
        return _contradict(data, f"{event.aggregator} released other vectors than another did", event.at_s)
    if event.aggregator not in data.record.ended:
        data = replace(data, traffic=data.traffic + tuple((event.aggregator, row) for row in event.traffic))
    ended = data.record.ended | {event.aggregator}
    record = replace(data.record, ended=ended, released=event.vectors)
    data = _with_record(data, record)
    if record.ended != set(data.aggregators):
        return Step(State.RELEASING, data)
    data = _with_record(data, replace(record, released_at_s=event.at_s))
    if data.phase + 1 < len(data.phases):
        return _enter_next_phase(data, event.at_s)
    deadline = SetTimer("deadline", event.at_s + data.manifest.phase_timeout_s, DeadlinePassed)
    if data.applied.keys() == set(data.manifest.clients):
        return _finish(data, event.at_s)
    return Step(State.APPLYING, data, (deadline,))


def _enter_next_phase(data: Round, at_s: float) -> Step[State, Round]:
    data, timer = _enter_phase(data, data.phase + 1, at_s)
    for receipt in data.early:
        data = _with_receipt(data, receipt) if receipt.aggregator in data.aggregators else data
    data = replace(data, early=())
    return Step(State.COLLECTING, data, (timer,)) if data.missing() else _close(data, at_s)


def note_early_application(data: Round, event: UpdateApplied) -> Step[State, Round]:
    """A client heard from all aggregators before the last of them reported to us."""
    return Step(State.RELEASING, _note_applied(data, event))


def note_application(data: Round, event: UpdateApplied) -> Step[State, Round]:
    """Note a client's acknowledgement; the round is over when all have given it."""
    data = _note_applied(data, event)
    if data.applied.keys() != set(data.manifest.clients):
        return Step(State.APPLYING, data)
    return _finish(data, event.at_s)


def _note_applied(data: Round, event: UpdateApplied) -> Round:
    if event.client in data.applied:
        return data
    rows = tuple((event.client, row) for row in event.report.traffic)
    return replace(data, applied={**data.applied, event.client: event.report}, traffic=data.traffic + rows)


def stop_waiting(data: Round, event: DeadlinePassed) -> Step[State, Round]:
    """The sums are out, so the round counts; who has not acknowledged catches up."""
    return _finish(data, event.at_s)


def _finish(data: Round, at_s: float) -> Step[State, Round]:
    data = replace(data, ended_at_s=at_s)
    end = RoundEnded(at_s=at_s, number=data.number, verdict=RoundVerdict.RELEASED)
    return Step(State.RELEASED, data, (Tell(data.run, end),))


def note_void(data: Round, event: VoidConfirmed) -> Step[State, Round]:
    """Note that an aggregator ended the phase; the round is void when all have."""
    record = replace(data.record, ended=data.record.ended | {event.aggregator})
    data = _with_record(data, record)
    if record.ended != set(data.manifest.aggregators):
        return Step(State.VOIDING, data)
    data = replace(data, ended_at_s=event.at_s)
    end = RoundEnded(at_s=event.at_s, number=data.number, verdict=RoundVerdict.VOID, reason=data.reason)
    return Step(State.VOID, data, (Tell(data.run, end),))


def refuse_void(data: Round, event: VoidConfirmed) -> Step[State, Round]:
    """A void where a release was ordered."""
    return _contradict(data, f"{event.aggregator} ended {event.phase} as void, against its order", event.at_s)


def refuse_release(data: Round, event: SumReleased) -> Step[State, Round]:
    """A release where a void was ordered; that of the phase before may be delivered twice."""
    if event.phase != data.current.name:
        return Step(State.VOIDING, data)
    return _contradict(data, f"{event.aggregator} released {event.phase}, which was ordered void", event.at_s)


def decline(data: Round, event: OrderDeclined) -> Step[State, Round]:
    """An aggregator does not obey: somebody holds other facts than we do, so the run cannot go on."""
    reason = f"{event.aggregator} refused the order on {event.phase} ({event.reason}): {event.explanation}"
    return _contradict(data, reason, event.at_s)


def _contradict(data: Round, reason: str, at_s: float) -> Step[State, Round]:
    data = replace(data, reason=reason, ended_at_s=at_s)
    end = RoundEnded(at_s=at_s, number=data.number, verdict=RoundVerdict.CONTRADICTED, reason=reason)
    return Step(State.CONTRADICTED, data, (_no_deadline(), Tell(data.run, end)))


def break_off(data: Round, event: Failed) -> Step[State, Round]:
    """The coordinator itself could not do what it had to."""
    # The round may have failed to begin, and then there is no record yet.
    last_known_s = max((record.opened_at_s for record in data.records), default=data.began_at_s)
    return _contradict(data, f"the coordinator failed: {event.why}", last_known_s)


def note_spoilt(data: Round, event: SetSpoilt) -> Step[State, Round]:
    """Remember why a client's set will never be complete, for whoever looks at the status."""
    spoilt = {**data.record.spoilt, event.client: f"{event.aggregator} refused its shares: {event.reason}"}
    return Step(State.COLLECTING, _with_record(data, replace(data.record, spoilt=spoilt)))


TRANSITIONS: Table[State, Round] = {
    State.COLLECTING: {
        Began: To(begin, State.COLLECTING),
        ReceiptArrived: To(collect, State.COLLECTING, State.RELEASING),
        SetSpoilt: To(note_spoilt, State.COLLECTING),
        DeadlinePassed: To(close_or_void, State.RELEASING, State.VOIDING),
        SumReleased: STAY,  # Of the phase before, delivered twice.
        Failed: To(break_off, State.CONTRADICTED),
    },
    State.RELEASING: {
        SumReleased: To(
            note_release,
            *(State.RELEASING, State.COLLECTING, State.APPLYING, State.RELEASED, State.CONTRADICTED),
        ),
        UpdateApplied: To(note_early_application, State.RELEASING),
        VoidConfirmed: To(refuse_void, State.CONTRADICTED),
        OrderDeclined: To(decline, State.CONTRADICTED),
        ReceiptArrived: To(keep_early_receipt, State.RELEASING),
        SetSpoilt: STAY,
        DeadlinePassed: STAY,
        Failed: To(break_off, State.CONTRADICTED),
    },
    State.APPLYING: {
        UpdateApplied: To(note_application, State.APPLYING, State.RELEASED),
        DeadlinePassed: To(stop_waiting, State.RELEASED),
        ReceiptArrived: STAY,
        SetSpoilt: STAY,
        SumReleased: STAY,
        Failed: To(break_off, State.CONTRADICTED),
    },
    State.VOIDING: {
        VoidConfirmed: To(note_void, State.VOIDING, State.VOID),
        SumReleased: To(refuse_release, State.VOIDING, State.CONTRADICTED),
        OrderDeclined: To(decline, State.CONTRADICTED),
        UpdateDropped: STAY,
        ReceiptArrived: STAY,
        SetSpoilt: STAY,
        DeadlinePassed: STAY,
        Failed: To(break_off, State.CONTRADICTED),
    },
    State.RELEASED: {},
    State.VOID: {},
    State.CONTRADICTED: {},
}
