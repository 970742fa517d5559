"""Aggregator service: checks messages, spools sealed chunks, journals verdicts and sends sums."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hubbub.errors import Code, ConfigurationError, LocalError, Objection, PeerError, RejectReason
from hubbub.ids import Role
from hubbub.machine.effects import AcceptKeys, Effect, Job, Key, Persist, RememberRun
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import ClosePhase, PartialChunk, VoidPhase
from hubbub.messages.runs import RunEnded, RunKey, RunKeys, RunProposed
from hubbub.messages.shares import Receipt, SetReceived, ShareChunk, ShareSeed, SignedReceipt
from hubbub.runtime.clock import Clock, SystemClock
from hubbub.runtime.event_log import Transition
from hubbub.runtime.message_checks import check_sender
from hubbub.runtime.participant import Participant
from hubbub.runtime.runner import KeyedEvent, Observer, RunningMachine
from hubbub.runtime.spool import ChunkRef
from hubbub.strategies.phase_plan import plan_phase
from hubbub.strategies.registry import find_strategy
from hubbub.transport.base import Transport
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster
from hubbub.trust.signed import check_run_keys, digest_run_keys, sign_receipt
from hubbub_aggregator import progress_log
from hubbub_aggregator.events import CloseOrdered, Ended, KeysArrived, Proposed, VoidOrdered
from hubbub_aggregator.intake import read_order, read_partial, read_share
from hubbub_aggregator.journal import Journal
from hubbub_aggregator.phase_jobs import PhaseJobs
from hubbub_aggregator.phases import accumulation, membership
from hubbub_aggregator.phases.accumulation import Accumulation
from hubbub_aggregator.phases.membership import Membership
from hubbub_aggregator.policy import AggregatorPolicy
from hubbub_aggregator.spooled_shares import ChunkDamaged

log = logging.getLogger(__name__)


class Aggregator(Participant):
    """Aggregator: holds one share of each update, which alone tells nothing about it."""

    def __init__(
        self,
        *,
        identity: Identity,
        roster: Roster,
        read_policy: Callable[[], AggregatorPolicy],
        transport: Transport,
        folder: Path,
        clock: Clock | None = None,
        observer: Observer = lambda _: None,
    ) -> None:
        """Set up an aggregator. The policy is read for every proposed run: its file may change in between."""
        self._clock = clock or SystemClock()
        super().__init__(
            identity=identity,
            roster=roster,
            transport=transport,
            folder=folder,
            kinds={"run": membership.KIND, "phase": accumulation.KIND},
            clock=self._clock,
            observer=observer,
        )
        self._read_policy = read_policy
        self.journal = Journal(self._file)
        self._receipts: dict[Key, set[SignedReceipt]] = {}
        """Receipts that this process has signed, by phase."""
        self._jobs = PhaseJobs(
            identity=identity,
            journal=self.journal,
            spool=self._spool,
            vault=self._vault,
            post=self.runner.post,
            seal_of=self._seal_of,
            clock=self._clock,
        )

    def describe(self, moment: Transition) -> str:
        """Describe progress for the operator's log."""
        return progress_log.describe(moment)

    # Messages to events ---------------------------------------------------------------------------------

    def receive(self, envelope: Envelope, *, size: int, now_s: float) -> Sequence[KeyedEvent]:
        """Check a message and make its event."""
        run = Key("run", envelope.run)
        body = envelope.body
        if isinstance(body, RunProposed):
            return self._receive_proposal(run, envelope, body, Proposed())
        if self._is_past(run, envelope):
            return self._ignore(envelope)
        data = self._joined(run, Membership)
        check_sender(data.manifest, envelope)
        match body:
            case RunEnded(outcome=outcome):
                return [(run, Ended(outcome=outcome))]
            case RunKeys():
                publics = check_run_keys(self.runner.roster, data.manifest, body)
                return [(run, KeysArrived(publics=publics, keys_sha256=digest_run_keys(run.run, publics)))]
        if not data.keys_sha256:
            raise PeerError(RejectReason.TOO_EARLY, f"{data.me} does not have everybody's run keys yet")
        match body:
            case ShareChunk() | ShareSeed():
                return self._receive_share(data, envelope, body, size=size, at_s=now_s)
            case PartialChunk():
                return self._receive_partial(data, envelope, body, size)
            case ClosePhase():
                ours = self._receipts.get(_phase_of(envelope), set())
                return self._receive_order(data, envelope, read_order(self.runner.roster, envelope, body, ours))
            case VoidPhase():
                return self._receive_order(data, envelope, VoidOrdered())
        raise PeerError(RejectReason.UNEXPECTED, f"an aggregator takes no {envelope.kind}")

    def _object(self, manifest: Manifest) -> tuple[Objection, ...]:
        try:
            policy = self._read_policy()
        except ConfigurationError as error:
            return (Objection(Code.POLICY_UNREADABLE, str(error)),)
        return policy.objections(manifest, roster=self.runner.roster, runs_before=len(self._tombstones))

    def _invite(
        self, run: Key, manifest: Manifest, *, objections: tuple[Objection, ...], run_key: RunKey | None
    ) -> None:
        me = self.runner.identity.name
        data = Membership(me=me, manifest=manifest, objections=objections, run_key=run_key)
        self.runner.add(run, data)

    def _receive_share(
        self, data: Membership, envelope: Envelope, body: ShareChunk | ShareSeed, *, size: int, at_s: float
    ) -> Sequence[KeyedEvent]:
        over = self._is_over(data, envelope)
        kem = self.runner.roster.kem
        event = read_share(data.me, data.manifest, kem, envelope, body, size=size, at_s=at_s)
        if over and not self._asked_again(envelope):
            return self._ignore(envelope)
        key, wire = self._open_phase(data, envelope), plan_phase(data.manifest, envelope.phase)
        return [(key, self._jobs.opened.look_into(key, wire, event, envelope.payload))]

    def _asked_again(self, envelope: Envelope) -> bool:
        """Return whether a share belongs to a set that was asked for again after the phase was closed."""
        live = self.runner.machines.get(_phase_of(envelope))
        return live is not None and isinstance(live.data, Accumulation) and envelope.sender in live.data.damaged

    def _receive_partial(
        self, data: Membership, envelope: Envelope, body: PartialChunk, size: int
    ) -> Sequence[KeyedEvent]:
        """Check a chunk of another aggregator's sum.

        It may come after we have closed the phase and moved on: the machine of the phase still waits for it.
        """
        over = self._is_over(data, envelope)
        event = read_partial(data.me, data.manifest, self.runner.roster, envelope, body, size)
        key = _phase_of(envelope)
        if over and key not in self.runner.machines:
            return self._ignore(envelope)
        return [(self._open_phase(data, envelope), event)]

    def _receive_order(
        self, data: Membership, envelope: Envelope, event: CloseOrdered | VoidOrdered
    ) -> Sequence[KeyedEvent]:
        key = _phase_of(envelope)
        if key in self.runner.machines:
            return [(key, event)]
        # A void ends the whole round, so it is for every aggregator, whatever phases it takes part in.
        at_hand = envelope.round >= data.round if data.adds_no_updates else envelope.round == data.round
        ends_round = isinstance(event, VoidOrdered) and at_hand
        if key in self._over or (self._is_order_over(data, envelope) and not ends_round):
            # The same order again is a duplicate; any other asks for a second verdict.
            members = event.members if isinstance(event, CloseOrdered) else ()
            named = [client for client in data.manifest.clients if client in members]
            self.journal.check(key, named, may_lose=plan_phase(data.manifest, key.phase).may_lose)
            return self._ignore(envelope)
        return [(self._open_phase(data, envelope), event)]

    def _is_order_over(self, data: Membership, envelope: Envelope) -> bool:
        """Return whether an order is about a phase that is over.

        One about a later phase shows that our state is old: a coordinator orders nothing of a phase before it has
        our verdict on the one before.
        """
        try:
            return self._is_over(data, envelope)
        except PeerError as error:
            if error.reason is RejectReason.TOO_EARLY:
                self._say_lost(Key("run", envelope.run), envelope.sender, Code.DISK_OLD)
            raise

    def _is_over(self, data: Membership, envelope: Envelope) -> bool:
        """Return whether the phase is over; refuse one that has not begun."""
        last = data.manifest.rounds + data.manifest.max_void_rounds
        if envelope.round > last:
            raise PeerError(RejectReason.OVER, f"round {envelope.round}: the manifest has at most {last} rounds")
        there = (envelope.round, plan_phase(data.manifest, envelope.phase).place)
        if data.adds_no_updates:
            return envelope.round < data.round
        current = data.phase_names[data.phase]
        here = (data.round, plan_phase(data.manifest, current).place)
        if there > here:
            raise PeerError(
                RejectReason.TOO_EARLY,
                f"this is of round {envelope.round}, phase {envelope.phase}; round {data.round}, phase {current} "
                "has no verdict yet",
            )
        return there < here

    def _open_phase(self, data: Membership, envelope: Envelope) -> Key:
        """Return the key of the open phase's machine; add the machine when the first message of it arrives."""
        key = _phase_of(envelope)
        if key not in self.runner.machines:
            wire = plan_phase(data.manifest, envelope.phase)
            start = Accumulation(
                me=self.runner.identity.name,
                key=key,
                run=Key("run", envelope.run),
                manifest=data.manifest,
                servers=wire.servers,
                combiner=wire.combiner(envelope.round) if wire.compact else None,
                required_members=data.members_for(envelope.phase),
            )
            self.runner.add(key, start)
        return key

    # Effects and jobs -----------------------------------------------------------------------------------

    def persist(self, key: Key, effect: Persist, payload: bytes) -> None:
        """Write to the spool or the journal."""
        match effect:
            case accumulation.RecordSet():
                self.journal.record_set(key, effect.client, effect.set_id)
            case accumulation.SpoolChunk():
                self._spool.write(key, ChunkRef(effect.sender, effect.set_id, effect.index), payload)
            case accumulation.DropSet():
                self._spool.drop(key, effect.client)
            case accumulation.RecordVerdict():
                data = self._accumulation(key)
                may_lose = plan_phase(data.manifest, key.phase).may_lose
                self.journal.record(key, effect.members, may_lose=may_lose)
                if effect.members and data.combiner is None:
                    self._jobs.fix_keys(key, data)
            case _:
                raise LocalError(f"an aggregator keeps no {effect!r}")

    async def perform(self, key: Key, effect: Effect) -> None:
        """Remember runs and their keys, and give receipts."""
        match effect:
            case RememberRun():
                await asyncio.to_thread(self._remember_run, key.run)
            case AcceptKeys():
                self._accept_keys(key.run, effect.publics)
            case accumulation.NoteDamage(client=client, what=what):
                log.warning("%s: %s is asked for its share set again; look whether the disk fails", what, client)
                self.counters.damaged.inc()
            case accumulation.GiveReceipt():
                await self._give_receipt(key, effect.receipt)
            case _:
                raise LocalError(f"an aggregator has no effect {effect!r}")

    async def _give_receipt(self, key: Key, receipt: Receipt) -> None:
        signed = sign_receipt(self.runner.identity, key.run, key.round, key.phase, receipt)
        self._receipts.setdefault(key, set()).add(signed)
        coordinator = self._accumulation(key).manifest.coordinator
        body = SetReceived(receipt=signed)
        await self.runner.post.send(key, to=coordinator, role=Role.COORDINATOR, body=body)

    async def work(self, key: Key, job: Job) -> object:
        """Check a chunk, or add and release; return `SetDamaged` if the disk has damaged a client's set."""
        data = self._accumulation(key)
        try:
            match job:
                case accumulation.CheckChunk():
                    return await self._jobs.check(key, plan_phase(data.manifest, key.phase), job)
                case accumulation.SumAndRelease():
                    return await self._jobs.release(key, data)
        except ChunkDamaged as damage:
            return damage.make_event(self._clock.now_s())
        raise LocalError(f"an aggregator has no job {job!r}")

    def _accumulation(self, key: Key) -> Accumulation:
        data = self.runner.machines[key].data
        if not isinstance(data, Accumulation):
            raise LocalError(f"{key} is not a phase")
        return data

    def retire(self, key: Key, live: RunningMachine) -> bool:
        """Drop the chunks of a phase that is over, and the keys of its sum."""
        if isinstance(live.data, Accumulation):
            self._drop_chunks(live.data, is_released=live.state is accumulation.State.RELEASED)
            self._jobs.drop_keys(key)
        return super().retire(key, live)

    def _drop_chunks(self, data: Accumulation, *, is_released: bool) -> None:
        """Drop the chunks of a phase, unless they are kept; with the strategy's last phase, also those."""
        phases = find_strategy(data.manifest.strategy).phases
        kept = {phase.name for phase in phases if phase.kept}
        is_needed = is_released and data.key.phase in {phase.name for phase in phases[:-1]}
        for name in {data.key.phase} - kept if is_needed else {data.key.phase} | kept:
            self._spool.drop(replace(data.key, phase=name))

    def _let_go(self, key: Key) -> None:
        """Drop opened seeds and keys, and the receipts that we signed."""
        self._jobs.opened.forget(key)
        self._receipts.pop(key, None)


def _phase_of(envelope: Envelope) -> Key:
    """Return the key of the machine that a message of a phase is for."""
    return Key("phase", envelope.run, envelope.round, envelope.phase)
