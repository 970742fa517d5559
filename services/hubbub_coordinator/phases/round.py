"""A round, as the coordinator sees it.

    COLLECTING   clients train and send; aggregators report complete share sets with receipts
    RELEASING    the phase is closed over a member set; every aggregator of the phase is to release its sum
    APPLYING     all sums are out; clients decode, apply and acknowledge
    REPORTING    the sum of the scores is out; clients say what it comes to
    VOIDING      the phase is ended without a sum; every aggregator is to confirm
    RELEASED, VOID, CONTRADICTED   final

COLLECTING and RELEASING are passed once for each phase of the strategy. The first phase closes over the clients
whose set is complete at all its aggregators: all of the cohort, or at the deadline the largest group with one
transcript (whose sets come after the same sums and model), if it has min_clients organisations. Every later phase
closes over exactly those members, because the difference between two sums over different sets belongs to somebody.
If one of them is missing then, the round is void; a phase with a threshold closes over those that are left. A
release and a void of one phase contradict each other and end the run.

A released round may have a scores phase, which comes when the clients have applied the sum. It closes over the
members of the run's first one, or over whoever has applied if it is the first, and if one of them is missing it is
void. That voids nothing else. What clients of min_clients organisations report alike is the round's score.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId, Role, SetId
from hubbub.machine.effects import (
    CancelTimer,
    CountRefusal,
    Effect,
    Failed,
    Key,
    Publish,
    Record,
    SetTimer,
    Tell,
)
from hubbub.machine.table import STAY, Kind, Step, Table, To, stay
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import (
    ClosePhase,
    PhaseReleased,
    PhaseVoided,
    RoundApplied,
    RoundOpened,
    RoundScored,
    ScoreClaim,
    VoidPhase,
)
from hubbub.messages.shares import ShareChunk, SignedReceipt, Traffic, VectorClaim
from hubbub.strategies.phase_plan import PhasedRound, plan_phase
from hubbub.strategies.registry import find_strategy
from hubbub_coordinator.events import (
    Began,
    DeadlinePassed,
    Event,
    OrderDeclined,
    ReceiptArrived,
    RoundEnded,
    RoundVerdict,
    ScoresReported,
    SetSpoilt,
    SumReleased,
    UpdateApplied,
    UpdateDropped,
    VoidConfirmed,
)
from hubbub_coordinator.reasons import tell_declined

FEWEST_TO_DISAGREE = 2


class State(Enum):
    """States of a round."""

    COLLECTING = "collecting"
    RELEASING = "releasing"
    APPLYING = "applying"
    REPORTING = "reporting"
    VOIDING = "voiding"
    RELEASED = "released"
    VOID = "void"
    CONTRADICTED = "contradicted"


@dataclass(frozen=True, slots=True)
class HeldSet:
    """A client's share set at one aggregator: its id, and the receipt that names it."""

    set_id: SetId
    signed: SignedReceipt


HeldSets = Mapping[PartyId, Mapping[PartyId, HeldSet]]
"""Client to aggregator to the client's set there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRecord:
    """Record of one phase: the complete share sets, and the aggregators that have ended it."""

    opened_at_s: float
    closed_at_s: float | None = None
    released_at_s: float | None = None
    held: HeldSets = field(default_factory=dict)
    holders: Mapping[PartyId, tuple[PartyId, ...]] = field(default_factory=dict)
    """Client to the aggregators that hold its complete set; replaces `held` once nobody needs the receipts."""
    arrived: Mapping[PartyId, float] = field(default_factory=dict)
    """Client to the time when its set was complete everywhere; without those that were when the phase opened.

    Nothing is noted of scores, whose arrival says something of a client's test set.
    """
    spoilt: Mapping[PartyId, str] = field(default_factory=dict)
    ended: frozenset[PartyId] = field(default_factory=frozenset)
    overdue: bool = False
    """Its deadline has passed: releases that are not needed are not waited for."""
    released: tuple[VectorClaim, ...] = ()

    @property
    def delivered(self) -> dict[PartyId, list[PartyId]]:
        """Client to the aggregators that hold its complete share set."""
        holders: Mapping[PartyId, Iterable[PartyId]] = self.holders or self.held
        return {client: sorted(servers) for client, servers in holders.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRound(PhasedRound):
    """State data of a round at the coordinator."""

    manifest: Manifest
    run: Key
    number: int
    score_members: frozenset[PartyId] = field(default_factory=frozenset)
    """Clients over which the run's scores are summed; empty before the first scores phase."""
    attended: Mapping[PartyId, int] = field(default_factory=dict)
    """The last round before this one that each client certainly took part in."""
    records: tuple[PhaseRecord, ...] = ()
    members: frozenset[PartyId] = field(default_factory=frozenset)
    early: HeldSets = field(default_factory=dict)
    """Sets of the next phase whose receipts came before the last report on this one."""
    applied: Mapping[PartyId, RoundApplied] = field(default_factory=dict)
    reported: Mapping[PartyId, tuple[ScoreClaim, ...]] = field(default_factory=dict)
    """Metrics that each client computed from the sum of the scores."""
    traffic: tuple[tuple[PartyId, Traffic], ...] = ()
    began_at_s: float = 0.0
    ended_at_s: float | None = None
    reason: str = ""

    @property
    def record(self) -> PhaseRecord:
        """Record of the current phase."""
        return self.records[self.phase]

    def find_record(self, phase: str) -> PhaseRecord | None:
        """Return the record of a phase; None before it is opened."""
        found = (record for each, record in zip(self.phases, self.records, strict=False) if each.name == phase)
        return next(found, None)

    @property
    def union_size(self) -> int | None:
        """|V|: all, or what follows from the strategy's last phase; None before that has been released."""
        strategy = find_strategy(self.manifest.strategy)
        last = self.find_record(strategy.phases[-1].name)
        if last is None or not last.released:
            return None
        if strategy.support == "dense":
            return self.manifest.parameters
        return strategy.union_size([claim.vector for claim in last.released])

    @property
    def aggregators(self) -> tuple[PartyId, ...]:
        """Aggregators of the current phase."""
        return self.current.aggregators(self.manifest.aggregators)

    @property
    def quorum(self) -> int:
        """The number of them that is enough to release the current phase."""
        return self.current.quorum(len(self.aggregators))

    @property
    def relied_on(self) -> frozenset[PartyId]:
        """The aggregators that an order to close relies on: all, without those that are away and not needed."""
        there = {server for held in self.record.held.values() for server in held}
        return frozenset(there if self.quorum <= len(there) else self.aggregators)

    @property
    def awaited(self) -> frozenset[PartyId]:
        """Clients whose share sets count in the current phase: the members once fixed, all clients before.

        Only clients that have applied the round can score its model.
        """
        if self.scoring:
            return self.score_members or frozenset(self.applied)
        return self.members or frozenset(self.manifest.clients)

    @property
    def current_members(self) -> frozenset[PartyId]:
        """Members over which the current phase is closed, or has to be."""
        return self.score_members if self.scoring else self.members

    def complete(self) -> frozenset[PartyId]:
        """Return the largest group, by organisations, with one set at all aggregators and one transcript."""
        groups: dict[object, set[PartyId]] = {}
        for client in self.awaited:
            held = self.record.held.get(client, {})
            receipts = [each.signed.receipt for each in held.values()]
            kinds = {(receipt.vectors, receipt.transcript) for receipt in receipts}
            one_set = len({each.set_id for each in held.values()}) == 1
            if held.keys() >= self.relied_on and one_set and len(kinds) == 1:
                groups.setdefault(next(iter(kinds)), set()).add(client)
        ranked = sorted(groups.values(), key=lambda each: (self._organisations(each), len(each), sorted(each)))
        return frozenset(ranked[-1]) if ranked else frozenset()

    def delivered(self) -> frozenset[PartyId]:
        """Return the clients for which every aggregator has signed a receipt in this phase, whatever it says."""
        servers = set(self.aggregators)
        return frozenset(client for client, held in self.record.held.items() if held.keys() == servers)

    @property
    def present(self) -> frozenset[PartyId]:
        """Clients that certainly took part: every aggregator of a phase holds their set, or they reported.

        One aggregator's receipt is not enough: a false one would make a client take its state for an old copy.
        """
        holding = {
            client
            for phase, record in zip(self.phases, self.records, strict=False)
            for client, servers in record.delivered.items()
            if set(servers) == set(phase.aggregators(self.manifest.aggregators))
        }
        return frozenset(holding | self.applied.keys() | self.reported.keys())

    def missing(self) -> tuple[PartyId, ...]:
        """Return the clients whose share set of the current phase is not complete yet, in manifest order."""
        missing = self.awaited - self.complete()
        return tuple(client for client in self.manifest.clients if client in missing)

    def at_odds(self) -> tuple[PartyId, ...]:
        """Return the missing clients that have delivered a set which cannot be added to the others'."""
        delivered = self.delivered()
        return tuple(client for client in self.missing() if client in delivered)

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics that clients of at least min_clients organisations report alike.

        Empty if there is no such group, or if another group as large reports something else.
        """
        camps: dict[tuple[ScoreClaim, ...], set[PartyId]] = {}
        for client, claims in self.reported.items():
            camps.setdefault(claims, set()).add(client)
        sizes = {claims: self._organisations(camp) for claims, camp in camps.items() if claims}
        largest = max(sizes.values(), default=0)
        agreed = [claims for claims, size in sizes.items() if size == largest]
        if len(agreed) != 1 or largest < self.manifest.min_clients:
            return {}
        return {claim.name: claim.value for claim in agreed[0]}

    @property
    def payload_bits(self) -> int:
        """Payload that was reported so far."""
        return sum(row.payload_bits for _, row in self.traffic)

    @property
    def wire_bytes(self) -> int:
        """Bytes on the wire that were reported so far."""
        return sum(row.wire_bytes for _, row in self.traffic)

    def _organisations(self, clients: set[PartyId]) -> int:
        return self.manifest.organisations_of(frozenset(clients))


def _with_record(data: CoordinatorRound, record: PhaseRecord) -> CoordinatorRound:
    return replace(data, records=(*data.records[: data.phase], record, *data.records[data.phase + 1 :]))


def _enter_phase(data: CoordinatorRound, phase: int, at_s: float) -> tuple[CoordinatorRound, Effect]:
    data = replace(data, phase=phase, records=(*data.records, PhaseRecord(opened_at_s=at_s)))
    return data, SetTimer("deadline", at_s + data.manifest.phase_timeout_s, DeadlinePassed)


def begin(data: CoordinatorRound, event: Began) -> Step[State, CoordinatorRound]:
    """Order every client to train."""
    data, timer = _enter_phase(replace(data, began_at_s=event.at_s), 0, event.at_s)
    orders = tuple(
        Publish(client, Role.CLIENT, RoundOpened(attended=data.attended.get(client, 0)))
        for client in data.manifest.clients
    )
    return Step(State.COLLECTING, data, (timer, *orders))


def collect(data: CoordinatorRound, event: ReceiptArrived) -> Step[State, CoordinatorRound]:
    """Note a receipt, and close the phase when nobody is missing."""
    if event.phase != data.current.name or event.receipt.receipt.aggregator not in data.aggregators:
        return Step(State.COLLECTING, data)  # Of the phase before, delivered late, or of no part in this one.
    before = data.delivered()
    data = _with_record(data, replace(data.record, held=_add_receipt(data.record.held, event.receipt)))
    if not data.scoring:
        fresh = dict.fromkeys(sorted(data.delivered() - before), event.at_s)
        data = _with_record(data, replace(data.record, arrived={**data.record.arrived, **fresh}))
    return _close_if_all_delivered(data, event)


def _close_if_all_delivered(
    data: CoordinatorRound, event: Event, *effects: Effect
) -> Step[State, CoordinatorRound]:
    """Close the phase if all have delivered: each client has one set, so waiting cannot resolve a disagreement."""
    if data.awaited - data.delivered():
        return Step(State.COLLECTING, data, effects)
    return close_or_void(data, event)


def _add_receipt(known: HeldSets, signed: SignedReceipt) -> HeldSets:
    """Note the sets of a receipt. Raise `PeerError` if its aggregator gave another receipt for one of them.

    Aggregators would refuse an order that shows two receipts of one of them for different sets of a client.
    """
    server = signed.receipt.aggregator
    held = {
        client: {server: HeldSet(set_id, signed), **known.get(client, {})}
        for client, set_id in signed.receipt.set_of.items()
    }
    for client, sets in held.items():
        if sets[server].signed != signed:
            raise PeerError(RejectReason.CONTRADICTION, f"{server} gives a second receipt for the set of {client}")
    return {**known, **held}


def keep_early_receipt(data: CoordinatorRound, event: ReceiptArrived) -> Step[State, CoordinatorRound]:
    """Keep a receipt of the next phase: clients go on when they have all sums, maybe before we hear of them."""
    following = data.phases[data.phase + 1 : data.phase + 2]
    givers = [server for phase in following for server in phase.aggregators(data.manifest.aggregators)]
    if event.phase not in [phase.name for phase in following] or event.receipt.receipt.aggregator not in givers:
        return stay(data)  # Late or repeated: the member set is closed. Or of no part in the next phase.
    return stay(replace(data, early=_add_receipt(data.early, event.receipt)))


def close_or_void(data: CoordinatorRound, event: Event) -> Step[State, CoordinatorRound]:
    """Close the phase over the clients that delivered, or void it if the rules demand that.

    A refusal is counted for each client at odds: honest clients and servers never are.
    """
    refusals = [
        CountRefusal(
            _find_odds(data, client),
            ShareChunk.kind,
            client,
            f"{client} delivered what cannot be added to what the others did",
        )
        for client in data.at_odds()
    ]
    return _choose_end(data, event.at_s).then(*refusals)


def _find_odds(data: CoordinatorRound, client: PartyId) -> RejectReason:
    sets = {held.set_id for held in data.record.held[client].values()}
    return RejectReason.SECOND_SET if len(sets) > 1 else RejectReason.DIFFERENT_TRANSCRIPT


def _choose_end(data: CoordinatorRound, at_s: float) -> Step[State, CoordinatorRound]:
    there = data.complete()
    plan = plan_phase(data.manifest, data.current.name)
    if not plan.may_close(there, data.current_members):
        why = f"{len(there)} clients are too few" if plan.may_lose else "members cannot change"
        return _void(data, f"{_say_who_is_missing(data)} in {data.current.name}, and {why}", at_s)
    if data.manifest.organisations_of(there) < data.manifest.min_clients:
        return _void(data, f"{_say_who_is_missing(data)}, and {len(there)} clients are too few", at_s)
    return _close(data, at_s)


def _say_who_is_missing(data: CoordinatorRound) -> str:
    at_odds = ", ".join(data.at_odds())
    late = ", ".join(client for client in data.missing() if client not in data.at_odds())
    sentences = (
        f"{late} did not deliver" if late else "",
        f"{at_odds} delivered after other sums than the others" if at_odds else "",
    )
    return ", ".join(filter(None, sentences))


def _close(data: CoordinatorRound, at_s: float) -> Step[State, CoordinatorRound]:
    members = data.complete()
    data = replace(data, score_members=members) if data.scoring else replace(data, members=members)
    data = _with_record(data, replace(data.record, closed_at_s=at_s))
    named = tuple(client for client in data.manifest.clients if client in members)
    givers = [server for server in data.aggregators if server in data.relied_on]
    receipts = dict.fromkeys(data.record.held[client][server].signed for client in named for server in givers)
    order = ClosePhase(members=named, receipts=tuple(receipts))
    return Step(State.RELEASING, data, (_bound_release(data, at_s), *_order(data, order)))


def _bound_release(data: CoordinatorRound, at_s: float) -> Effect:
    """Set a deadline for releases if some of them are not needed; without those that are, nothing goes on."""
    if data.quorum == len(data.aggregators):
        return CancelTimer("deadline")
    return SetTimer("deadline", at_s + data.manifest.phase_timeout_s, DeadlinePassed)


def _void(data: CoordinatorRound, reason: str, at_s: float) -> Step[State, CoordinatorRound]:
    data = _with_record(replace(data, reason=reason), replace(data.record, closed_at_s=at_s))
    return Step(State.VOIDING, data, (CancelTimer("deadline"), *_order(data, VoidPhase())))


def _order(data: CoordinatorRound, body: ClosePhase | VoidPhase) -> tuple[Effect, ...]:
    """Send an order to every aggregator of the phase; a void goes to all aggregators, for it ends the round."""
    to = data.manifest.aggregators if isinstance(body, VoidPhase) else data.aggregators
    return tuple(Publish(server, Role.AGGREGATOR, body, data.current.name) for server in to)


def note_release(data: CoordinatorRound, event: SumReleased) -> Step[State, CoordinatorRound]:
    """Note a release; when all are out, open the next phase or let the clients apply the sum."""
    if event.phase != data.current.name or event.aggregator not in data.aggregators:
        return Step(State.RELEASING, data)
    if event.members != data.current_members:
        return _blame(data, event, f"{event.aggregator} released a sum over other members")
    if data.record.released not in {(), event.vectors}:
        return _blame(data, event, f"{event.aggregator} released other vectors than another did")
    if event.aggregator not in data.record.ended:
        data = replace(data, traffic=data.traffic + tuple((event.aggregator, row) for row in event.traffic))
    ended = data.record.ended | {event.aggregator}
    record = replace(data.record, ended=ended, released=event.vectors)
    return _go_on_if_released(_with_record(data, record), event)


def stop_waiting(data: CoordinatorRound, event: DeadlinePassed) -> Step[State, CoordinatorRound]:
    """Wait no longer for releases that are not needed."""
    if data.quorum == len(data.aggregators):
        return stay(data)
    return _go_on_if_released(_with_record(data, replace(data.record, overdue=True)), event)


def _go_on_if_released(data: CoordinatorRound, event: Event) -> Step[State, CoordinatorRound]:
    record = data.record
    if not record.ended >= data.relied_on and not (record.overdue and len(record.ended) >= data.quorum):
        return Step(State.RELEASING, data)
    members = [client for client in data.manifest.clients if client in data.current_members]
    transcript = next(iter(record.held[members[0]].values())).signed.receipt.transcript
    fields = {"phase": data.current.name, "members": members, "transcript": transcript}
    onward = _go_on(_with_record(data, replace(record, released_at_s=event.at_s)), event)
    return onward.then(Record("released", fields))


def _go_on(data: CoordinatorRound, event: Event) -> Step[State, CoordinatorRound]:
    deadline = SetTimer("deadline", event.at_s + data.manifest.phase_timeout_s, DeadlinePassed)
    if data.scoring:
        return _end_if_all_reported(data, event, deadline)
    if not data.in_last_phase:
        return _enter_next_phase(data, event)
    if data.applied.keys() == set(data.manifest.clients):
        return finish(data, event)
    return Step(State.APPLYING, data, (deadline,))


def _enter_next_phase(data: CoordinatorRound, event: Event) -> Step[State, CoordinatorRound]:
    data, timer = _enter_phase(data, data.phase + 1, event.at_s)
    data = replace(_with_record(data, replace(data.record, held=data.early)), early={})
    enough = data.manifest.organisations_of(data.awaited) >= data.manifest.min_clients
    if data.scoring and not (enough and data.awaited <= data.applied.keys()):
        # There is nobody to wait for.
        return _void(data, "somebody whose scores belong to the sum has not applied the round", event.at_s)
    return _close_if_all_delivered(data, event, timer)


def note_early_application(data: CoordinatorRound, event: UpdateApplied) -> Step[State, CoordinatorRound]:
    """Note a client that had all sums before the last aggregator reported to us."""
    return stay(_note_applied(data, event))


def note_application(data: CoordinatorRound, event: UpdateApplied) -> Step[State, CoordinatorRound]:
    """Note a client's acknowledgement; the round is over when all have given it.

    Only then are their models compared: before, nobody can say which client differs from the majority.
    """
    data = _note_applied(data, event)
    if data.applied.keys() != set(data.manifest.clients):
        return Step(State.APPLYING, data)
    return finish(data, event)


def note_late_application(data: CoordinatorRound, event: UpdateApplied) -> Step[State, CoordinatorRound]:
    """Note a client that applied the round after its deadline; it may still be in time to score."""
    if not data.scoring:
        raise PeerError(RejectReason.UNEXPECTED, f"{event.client} has applied a round that is not released")
    return stay(_note_applied(data, event))


def _find_other_models(data: CoordinatorRound) -> str:
    """Describe the clients whose model differs from the majority's, by keyed digests; empty if none does."""
    holders: dict[str, list[PartyId]] = {}
    for client in data.manifest.clients:
        if client in data.applied:
            holders.setdefault(data.applied[client].model_hmac, []).append(client)
    groups = sorted(holders.values(), key=len, reverse=True)
    if len(groups) < FEWEST_TO_DISAGREE:
        return ""
    if len(groups[0]) == len(groups[1]):
        return f"the clients hold different models: {' against '.join(', '.join(group) for group in groups)}"
    others = [client for group in groups[1:] for client in group]
    hold = "holds" if len(others) == 1 else "hold"
    return f"{', '.join(others)} {hold} another model than {', '.join(groups[0])}"


def _note_applied(data: CoordinatorRound, event: UpdateApplied) -> CoordinatorRound:
    if event.client in data.applied:
        return data
    rows = tuple((event.client, row) for row in event.report.traffic)
    return replace(data, applied={**data.applied, event.client: event.report}, traffic=data.traffic + rows)


def finish(data: CoordinatorRound, event: Event) -> Step[State, CoordinatorRound]:
    """End the round, or go on to its scores, when all have applied it or at the deadline.

    Its sums are out, so it counts; clients without an answer catch up later.
    """
    at_odds = _find_other_models(data)
    if at_odds:
        return _contradict(data, at_odds, event.at_s)
    return _enter_next_phase(data, event) if data.is_scored else _end(data, State.RELEASED, event.at_s)


def note_early_report(data: CoordinatorRound, event: ScoresReported) -> Step[State, CoordinatorRound]:
    """Note a client that had the sum of the scores before the last aggregator reported to us."""
    return stay(_note_report(data, event))


def note_report(data: CoordinatorRound, event: ScoresReported) -> Step[State, CoordinatorRound]:
    """Note the metrics of a client; the round is over when all have reported."""
    return _end_if_all_reported(_note_report(data, event), event)


def _end_if_all_reported(data: CoordinatorRound, event: Event, *effects: Effect) -> Step[State, CoordinatorRound]:
    # A client whose scores could not be added holds another model than the members, and will not report.
    left_out = data.delivered() - data.score_members
    if data.applied.keys() - left_out - data.reported.keys():
        return Step(State.REPORTING, data, effects)
    return release_with_scores(data, event)


def release_with_scores(data: CoordinatorRound, event: Event) -> Step[State, CoordinatorRound]:
    """End the round with the reports that have come; count a refusal for each that differs from the agreed one."""
    agreed = data.metrics
    dissent = [
        CountRefusal(
            RejectReason.CONTRADICTION, RoundScored.kind, client, f"{client} reports other scores than the others"
        )
        for client, claims in data.reported.items()
        if agreed and claims and {claim.name: claim.value for claim in claims} != agreed
    ]
    return _end(data, State.RELEASED, event.at_s).then(*dissent)


def _note_report(data: CoordinatorRound, event: ScoresReported) -> CoordinatorRound:
    if event.client in data.reported:
        return data
    rows = tuple((event.client, row) for row in event.traffic)
    return replace(data, reported={**data.reported, event.client: event.scores}, traffic=data.traffic + rows)


def _end(data: CoordinatorRound, state: State, at_s: float) -> Step[State, CoordinatorRound]:
    """End the round, and tell the run its verdict and totals."""
    data = replace(data, ended_at_s=at_s)
    end = RoundEnded(
        at_s=at_s,
        number=data.number,
        verdict=RoundVerdict(state.value),
        reason=data.reason,
        began_at_s=data.began_at_s,
        metrics=data.metrics,
        score_members=data.score_members,
        present=data.present,
        union_size=data.union_size,
        payload_bits=data.payload_bits,
        wire_bytes=data.wire_bytes,
    )
    return Step(state, data, (CancelTimer("deadline"), Tell(data.run, end)))


def note_void(data: CoordinatorRound, event: VoidConfirmed) -> Step[State, CoordinatorRound]:
    """Note that an aggregator ended the phase; the round is void when all have."""
    data = _with_record(data, replace(data.record, ended=data.record.ended | {event.aggregator}))
    if len(data.record.ended) < plan_phase(data.manifest, data.current.name).void_quorum:
        return Step(State.VOIDING, data)
    record = Record("void", {"phase": data.current.name})
    if data.scoring:
        return _end(replace(data, reason=""), State.RELEASED, event.at_s).first(record)
    return _end(data, State.VOID, event.at_s).first(record)


def refuse_void(data: CoordinatorRound, event: VoidConfirmed) -> Step[State, CoordinatorRound]:
    """End the run: an aggregator voided a phase that it was ordered to release."""
    return _blame(data, event, f"{event.aggregator} ended {event.phase} as void, against its order")


def refuse_release(data: CoordinatorRound, event: SumReleased) -> Step[State, CoordinatorRound]:
    """End the run if an aggregator released a phase that was ordered void.

    A release of an earlier phase may be delivered twice and changes nothing.
    """
    if event.phase != data.current.name:
        return Step(State.VOIDING, data)
    return _blame(data, event, f"{event.aggregator} released {event.phase}, which was ordered void")


def decline(data: CoordinatorRound, event: OrderDeclined) -> Step[State, CoordinatorRound]:
    """End the run: an aggregator declined an order, so somebody holds other facts than we do.

    One that the order did not rely on may have missed some of the sets.
    """
    if event.aggregator not in data.relied_on:
        return stay(data)
    return _contradict(data, tell_declined(event.aggregator, event.phase, event.reason), event.at_s)


def _blame(
    data: CoordinatorRound, event: SumReleased | VoidConfirmed, reason: str
) -> Step[State, CoordinatorRound]:
    """End the run because an aggregator contradicts its order or another aggregator; count a refusal for it."""
    kind = PhaseReleased.kind if isinstance(event, SumReleased) else PhaseVoided.kind
    refusal = CountRefusal(RejectReason.CONTRADICTION, kind, event.aggregator, reason)
    return _contradict(data, reason, event.at_s).then(refusal)


def _contradict(data: CoordinatorRound, reason: str, at_s: float) -> Step[State, CoordinatorRound]:
    return _end(replace(data, reason=reason), State.CONTRADICTED, at_s)


def break_off(data: CoordinatorRound, event: Failed) -> Step[State, CoordinatorRound]:
    """End the round because the coordinator itself failed."""
    # The round may have failed to begin, and then there is no record yet.
    last_known_s = max((record.opened_at_s for record in data.records), default=data.began_at_s)
    return _contradict(data, f"the coordinator failed: {event.why}", last_known_s)


def note_spoilt(data: CoordinatorRound, event: SetSpoilt) -> Step[State, CoordinatorRound]:
    """Record why a client's set will never be complete, for the status."""
    spoilt = {**data.record.spoilt, event.client: f"{event.aggregator} refused its shares: {event.reason}"}
    return Step(State.COLLECTING, _with_record(data, replace(data.record, spoilt=spoilt)))


_AFTER_RELEASING = (
    *(State.RELEASING, State.COLLECTING, State.APPLYING, State.REPORTING),
    *(State.VOIDING, State.RELEASED, State.CONTRADICTED),
)
_AFTER_APPLYING = (
    *(State.APPLYING, State.COLLECTING, State.RELEASING),
    *(State.VOIDING, State.RELEASED, State.CONTRADICTED),
)

TRANSITIONS: Table[State, CoordinatorRound] = {
    State.COLLECTING: {
        Began: To(begin, State.COLLECTING),
        ReceiptArrived: To(collect, State.COLLECTING, State.RELEASING, State.VOIDING),
        SetSpoilt: To(note_spoilt, State.COLLECTING),
        DeadlinePassed: To(close_or_void, State.RELEASING, State.VOIDING),
        SumReleased: STAY,  # Of the phase before, delivered twice.
        UpdateApplied: To(note_late_application, State.COLLECTING),
        Failed: To(break_off, State.CONTRADICTED),
    },
    State.RELEASING: {
        SumReleased: To(note_release, *_AFTER_RELEASING),
        UpdateApplied: To(note_early_application, State.RELEASING),
        ScoresReported: To(note_early_report, State.RELEASING),
        VoidConfirmed: To(refuse_void, State.CONTRADICTED),
        OrderDeclined: To(decline, State.RELEASING, State.CONTRADICTED),
        ReceiptArrived: To(keep_early_receipt, State.RELEASING),
        SetSpoilt: STAY,
        DeadlinePassed: To(stop_waiting, *_AFTER_RELEASING),
        Failed: To(break_off, State.CONTRADICTED),
    },
    State.APPLYING: {
        UpdateApplied: To(note_application, *_AFTER_APPLYING),
        DeadlinePassed: To(finish, *_AFTER_APPLYING),
        ReceiptArrived: To(keep_early_receipt, State.APPLYING),
        SetSpoilt: STAY,
        SumReleased: STAY,
        Failed: To(break_off, State.CONTRADICTED),
    },
    State.REPORTING: {
        ScoresReported: To(note_report, State.REPORTING, State.RELEASED),
        DeadlinePassed: To(release_with_scores, State.RELEASED),
        UpdateApplied: STAY,
        ReceiptArrived: STAY,
        SetSpoilt: STAY,
        SumReleased: STAY,
        Failed: To(break_off, State.CONTRADICTED),
    },
    State.VOIDING: {
        VoidConfirmed: To(note_void, State.VOIDING, State.VOID, State.RELEASED),
        UpdateApplied: STAY,
        ScoresReported: STAY,
        SumReleased: To(refuse_release, State.VOIDING, State.CONTRADICTED),
        OrderDeclined: To(decline, State.VOIDING, State.CONTRADICTED),
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


def resume(state: State, data: CoordinatorRound) -> tuple[Effect, ...]:
    """Set the round's deadline again after a restart."""
    if not data.records:
        return ()
    since_s = {
        State.COLLECTING: data.record.opened_at_s,
        State.RELEASING: None if data.quorum == len(data.aggregators) else data.record.closed_at_s,
        State.APPLYING: data.record.released_at_s,
        State.REPORTING: data.record.released_at_s,
    }.get(state)
    if since_s is None:
        return ()
    return (SetTimer("deadline", since_s + data.manifest.phase_timeout_s, DeadlinePassed),)


KIND = Kind(TRANSITIONS, State.COLLECTING, CoordinatorRound, resume)
