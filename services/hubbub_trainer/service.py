"""The trainer's shell: trains, deals shares, recombines sums, and keeps its model to itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path

from hubbub.errors import Code, ConfigurationError, LocalError, Objection, PeerError, RejectReason
from hubbub.ids import Role, RunId
from hubbub.machine.effects import AcceptKeys, Effect, Job, Key, Persist, RememberRun
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import MaskedChunk, SumChunk, VoidNotice
from hubbub.messages.runs import GroupConfirmed, GroupContribution, RunKey, RunProposed
from hubbub.messages.shares import ResendSet
from hubbub.messages.snapshots import ModelVouched, SnapshotChunk
from hubbub.protocol import weights
from hubbub.runtime.clock import Clock, SystemClock
from hubbub.runtime.event_log import Transition
from hubbub.runtime.message_checks import check_sender
from hubbub.runtime.participant import Participant
from hubbub.runtime.runner import KeyedEvent, Observer, RunningMachine
from hubbub.strategies.registry import STRATEGIES
from hubbub.transport.base import Transport
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster
from hubbub_trainer import progress_log, snapshots
from hubbub_trainer.events import (
    Overtaken,
    Proposed,
    RoundHeardOf,
    SumArrived,
    VoidAnnounced,
)
from hubbub_trainer.intake import (
    read_about_run,
    read_resend,
    read_snapshot,
    read_sum,
    read_void,
    read_vouchers,
)
from hubbub_trainer.learning.task import require
from hubbub_trainer.ledger import LEDGER_FILE, Ledger
from hubbub_trainer.phases import admission, catchup, participation
from hubbub_trainer.phases import round as rounds
from hubbub_trainer.phases.admission import Admission
from hubbub_trainer.phases.catchup import CatchUp
from hubbub_trainer.phases.participation import Participation, VoidCaps
from hubbub_trainer.phases.round import ClientRound
from hubbub_trainer.policy import Policy
from hubbub_trainer.round_jobs import RoundJobs, name_sum, place_of
from hubbub_trainer.run_context import RunContext, TaskLoader, name_part
from hubbub_trainer.run_secrets import RunSecrets
from hubbub_trainer.task_runner import Progress, Sleep, TaskRunner
from hubbub_trainer.workspace import clean_up

log = logging.getLogger(__name__)


class Trainer(Participant):
    """One organisation's trainer.

    `read_policy` reads the data owner's policy as it stands now: it may be changed while the trainer runs. In a
    run the trainer has one machine at a time: the admission until all clients have agreed, then the participation.
    """

    run_kinds = frozenset({"admission", "run"})

    def __init__(
        self,
        *,
        identity: Identity,
        roster: Roster,
        read_policy: Callable[[], Policy],
        transport: Transport,
        folder: Path,
        load_task: TaskLoader,
        demo_seed: int | None = None,
        training_slots: asyncio.Semaphore | None = None,
        progress: Progress = lambda *_: None,
        clock: Clock | None = None,
        sleep: Sleep = asyncio.sleep,
        observer: Observer = lambda _: None,
    ) -> None:
        clock = clock or SystemClock()
        super().__init__(
            identity=identity,
            roster=roster,
            transport=transport,
            folder=folder,
            kinds={
                "admission": admission.KIND,
                "run": participation.KIND,
                "round": rounds.KIND,
                "catchup": catchup.KIND,
            },
            clock=clock,
            observer=observer,
        )
        self._ledger = Ledger(folder / LEDGER_FILE)
        self._read_policy = read_policy
        self._demo_seed = demo_seed
        self._folder = folder / "runs"
        self._load_task = load_task
        self._tasks = TaskRunner(
            me=identity.name,
            progress=progress,
            clock=clock,
            registry=self.counters.registry,
            slots=training_slots,
            sleep=sleep,
        )
        self._runs: dict[RunId, RunContext] = {}

    def context_of(self, run: RunId) -> RunContext:
        """Return the context of a run that we have joined, made when it is first needed."""
        if run not in self._runs:
            self._runs[run] = RunContext(
                manifest=self._data_of(run).manifest,
                keys=self._seals.get(run),
                secrets=RunSecrets(self._vault, run),
                runs_folder=self._folder,
                runner=self.runner,
                spool=self._spool,
                ledger=self._ledger,
                tasks=self._tasks,
                load_task=self._load_task,
                demo_seed=self._demo_seed,
            )
        return self._runs[run]

    def give_up_training(self) -> None:
        """Let a training thread come to its end at its next report of progress."""
        self._tasks.give_up()

    def count_task_failures(self) -> int:
        """Count failures of training and evaluation since this trainer was started."""
        return self._tasks.count_failures()

    def close(self) -> None:
        """Close what is open on disk; training is given up."""
        self.give_up_training()
        self._ledger.close()
        super().close()

    def describe(self, moment: Transition) -> str:
        """Describe progress for the data owner's log."""
        return progress_log.describe(moment)

    # Messages to events ---------------------------------------------------------------------------------

    def receive(self, envelope: Envelope, *, size: int, now_s: float) -> Sequence[KeyedEvent]:
        """Check a message and make its event."""
        run = self._find_key(envelope.run)
        body = envelope.body
        if isinstance(body, RunProposed):
            return self._receive_proposal(run, envelope, body, Proposed())
        if self._is_past(run, envelope):
            return self._ignore(envelope)
        data = self._data_of(envelope.run)
        check_sender(data.manifest, envelope)
        match body:
            case SumChunk() | MaskedChunk():
                roster = self.runner.roster
                return self._to_round(envelope, read_sum(roster, data.manifest, envelope, body, size, now_s))
            case VoidNotice():
                return self._to_round(envelope, read_void(data.manifest, envelope))
            case ResendSet():
                return self._receive_resend(data, envelope, body)
            case ModelVouched():
                return self._to_catch_up(envelope, data, read_vouchers(envelope, body))
            case SnapshotChunk():
                read = read_snapshot(data.manifest, self.runner.roster.kem, envelope, body)
                return self._to_catch_up(envelope, data, read)
        return [(run, read_about_run(self.runner.roster, data.manifest, envelope, now_s))]

    def _object(self, manifest: Manifest) -> tuple[Objection, ...]:
        try:
            policy = self._read_policy()
        except ConfigurationError as error:
            return (Objection(Code.POLICY_UNREADABLE, str(error)),)
        return policy.objections(
            manifest,
            roster=self.runner.roster,
            runs_before=len(self._tombstones),
            demo_seed=self._demo_seed is not None,
        ) or _object_to_lack(manifest)

    def _invite(
        self, run: Key, manifest: Manifest, *, objections: tuple[Objection, ...], run_key: RunKey | None
    ) -> None:
        data = Admission(
            me=self.runner.identity.name, key=run, manifest=manifest, objections=objections, run_key=run_key
        )
        if not objections:
            policy = self._read_policy()
            data = replace(
                data,
                caps=_find_void_caps(manifest, policy),
                snapshots_per_peer=policy.max_snapshots_per_peer,
                runs_per_model=policy.max_runs_per_model,
            )
        self.runner.add(run, data)

    def _to_round(self, envelope: Envelope, event: SumArrived | VoidAnnounced) -> Sequence[KeyedEvent]:
        key = Key("round", envelope.run, envelope.round)
        if key in self.runner.machines:
            return [(key, event)]
        ahead = key.round - _find_ordered(self._data_of(key.run))
        if ahead <= 0:
            return self._ignore(envelope)  # It is behind us, or its order was lost and a later one has come.
        if ahead == 1:
            return [(self._find_key(key.run), RoundHeardOf(number=key.round)), (key, event)]
        raise PeerError(RejectReason.TOO_EARLY, f"round {envelope.round} was not ordered yet")

    def _receive_resend(
        self, data: Admission | Participation, envelope: Envelope, body: ResendSet
    ) -> Sequence[KeyedEvent]:
        """A set is sent again only if it was sent, and its name is its own: nothing is drawn for a request."""
        event = read_resend(data.me, data.manifest, envelope)
        key = Key("round", envelope.run, envelope.round)
        if key not in self.runner.machines and envelope.round <= _find_ordered(data):
            raise PeerError(RejectReason.OVER, f"{key} is over: its share sets are forgotten")
        ours = self.context_of(key.run).secrets.find_set(key.round, envelope.phase)
        if ours is None:
            raise PeerError(RejectReason.TOO_EARLY, f"we have sent no share set of {envelope.phase} in {key}")
        if ours != body.set_id:
            raise PeerError(RejectReason.UNEXPECTED, f"{body.set_id} is not the set that we sent")
        return [(key, event)]

    def _to_catch_up(
        self, envelope: Envelope, data: Admission | Participation, event: object
    ) -> Sequence[KeyedEvent]:
        """Peers answer as often as they are asked: an answer may come when there is no question any more."""
        key = Key("catchup", envelope.run, data.catching if isinstance(data, Participation) else 0)
        return [(key, event)] if key in self.runner.machines else self._ignore(envelope)

    # Effects and jobs -----------------------------------------------------------------------------------

    def persist(self, key: Key, effect: Persist, payload: bytes) -> None:
        """Spool what arrives, and keep the ledger."""
        match effect:
            case admission.KeepContribution():
                self._spool.write(key, name_part(effect.client), payload)
            case admission.KeepSamples():
                self.context_of(key.run).keep_samples(effect.samples)
            case participation.NoteVoid():
                self._ledger.note_void(effect.models, run=key.run, number=effect.number)
            case rounds.SpoolSum():
                ref = name_sum(effect.aggregator, effect.index)
                self._spool.write(place_of(key, effect.phase), ref, payload)
            case catchup.KeepSnapshot():
                ref = snapshots.name_chunk(effect.client, effect.number, effect.index)
                self._spool.write(snapshots.place_of(key), ref, payload)
            case _:
                raise LocalError(f"a trainer keeps no {effect!r}")

    async def perform(self, key: Key, effect: Effect) -> None:
        """Set up rounds, save the model."""
        match effect:
            case AcceptKeys():
                self._accept_keys(key.run, effect.publics)
            case admission.DealContribution():
                await self._deal_contribution(key)
            case admission.ConfirmSecret():
                await self._confirm_secret(key, effect)
            case admission.SetUpParticipation(data=data):
                await self.runner.set_up(data.key, data)
            case participation.SetUpRound():
                await self._set_up_round(key, effect.number)
            case participation.SetUpCatchUp():
                await self._set_up_catch_up(key, effect.number)
            case participation.AbandonRounds():
                self._abandon_rounds(key, effect.number)
            case catchup.DropSnapshot():
                self._spool.drop(snapshots.place_of(key), effect.client)
            case _:
                await asyncio.to_thread(self._write_down, self.context_of(key.run), effect)

    def _write_down(self, run: RunContext, effect: Effect) -> None:
        """Perform an effect that is no more than a write to disk."""
        match effect:
            case RememberRun():
                self._remember_run(run.run)
            case participation.SaveModel():
                run.save_model()
            case participation.EndorseModel():
                run.endorse_model(effect.number)
            case participation.ReportOldCopy():
                self._report_old_copy(run.run, effect.evidence)
            case _:
                raise LocalError(f"a trainer has no effect {effect!r}")

    def _report_old_copy(self, run: RunId, evidence: str) -> None:
        """Count the run against its model for ever: shares of it have left, and the copy may not say so."""
        log.error(
            "the folder of %s is an old copy: in run %s %s. Nothing more is sent in this run. Stop this trainer, "
            "and put its newest folder in place of the copy. If that is gone, see docs/running.md, "
            "'A party has lost its state'",
            *(self.runner.identity.name, run, evidence),
        )
        self.counters.lost.inc()
        # A ledger that is older than the run does not know its model.
        with suppress(LocalError):
            self._ledger.count(run)

    async def _deal_contribution(self, key: Key) -> None:
        run = self.context_of(key.run)
        for client in self._joined(key, Admission).peers:
            sealed = run.seals.seal_contribution(client, run.contribution_for(client))
            await self.runner.post.send(key, to=client, role=Role.CLIENT, body=GroupContribution(), payload=sealed)

    async def _confirm_secret(self, key: Key, effect: admission.ConfirmSecret) -> None:
        body = GroupConfirmed(confirmation=effect.confirmation)
        samples = b"" if effect.samples is None else effect.samples.to_bytes(weights.SHARE_BYTES, "big")
        for client in self._joined(key, Admission).peers:
            await self.runner.post.send(key, to=client, role=Role.CLIENT, body=body, payload=samples)

    async def _set_up_round(self, run: Key, number: int) -> None:
        key, manifest = Key("round", run.run, number), self._data_of(run.run).manifest
        data = ClientRound(me=self.runner.identity.name, key=key, run=run, manifest=manifest)
        await self.runner.set_up(key, data)

    async def _set_up_catch_up(self, run: Key, number: int) -> None:
        key, data = Key("catchup", run.run, number), self._data_of(run.run)
        after = data.over if isinstance(data, Participation) else -1
        ours = CatchUp(me=self.runner.identity.name, key=key, run=run, manifest=data.manifest, after=after)
        await self.runner.set_up(key, ours)

    def _abandon_rounds(self, run: Key, number: int) -> None:
        for key in [each for each in self.runner.machines if each.kind == "round" and each.run == run.run]:
            if key.round <= number:
                RoundJobs(self.context_of(key.run), key).close(has_verdict=True)
                self._over.add(key)
                self.runner.forget(key)

    def restore(self, machines: Mapping[Key, RunningMachine]) -> None:
        """Bring back what belongs to a run; rounds that a peer's model has brought us past stay behind."""
        super().restore(machines)
        self._ledger.keep_only({key.run for key in machines})
        for key, live in list(machines.items()):
            if isinstance(live.data, Participation):
                self._abandon_rounds(key, live.data.over)

    async def work(self, key: Key, job: Job) -> object:
        """Run a job: a coroutine here, anything else in a thread."""
        run = self.context_of(key.run)
        one = RoundJobs(run, key)
        jobs: dict[type[Job], Callable[..., object]] = {
            admission.PrepareTask: run.prepare,
            admission.AgreeOnSecret: run.agree,
            participation.SendSnapshot: partial(snapshots.send_snapshot, run),
            catchup.TakeSnapshot: partial(snapshots.take_snapshot, run, key),
            rounds.Train: one.train,
            rounds.SendShares: one.send_shares,
            rounds.ResendShares: one.resend_shares,
            rounds.DecodeSums: one.decode,
            rounds.Conclude: one.conclude,
            rounds.Evaluate: one.evaluate,
            rounds.CloseVoid: one.close_void,
        }
        do = jobs.get(type(job))
        if do is None:
            raise LocalError(f"a trainer has no job {job!r}")
        try:
            return await do(job) if iscoroutinefunction(do) else await asyncio.to_thread(do, job)
        except LocalError:
            if key.kind == "round" and one.is_overtaken():
                return Overtaken()
            raise

    # What our machines know -----------------------------------------------------------------------------

    def _find_key(self, run: RunId) -> Key:
        """The machine that takes the messages about a run: its participation once there is, or was, one."""
        key = Key("run", run)
        return key if key in self.runner.machines or key in self._over else Key("admission", run)

    def _data_of(self, run: RunId) -> Admission | Participation:
        key = self._find_key(run)
        return self._joined(key, Admission) if key.kind == "admission" else self._joined(key, Participation)

    # What is over ---------------------------------------------------------------------------------------

    def retire(self, key: Key, live: RunningMachine) -> bool:
        """Forget what is over: the update of a void round too, and the memory that it would have left."""
        if self._ends_run(key, live):
            self._ledger.give_up(key.run)
        elif key.kind == "catchup":
            self._spool.drop(snapshots.place_of(key))
        elif key.kind == "round":
            # The keys of a round that has strayed are still needed, to check the model of a peer.
            has_verdict = live.state not in {rounds.State.FAILED, rounds.State.STRAYED}
            RoundJobs(self.context_of(key.run), key).close(has_verdict=has_verdict)
        return super().retire(key, live)

    def _ends_run(self, key: Key, live: RunningMachine) -> bool:
        # What is admitted goes on: its secrets and files are the participation's.
        return super()._ends_run(key, live) and live.state is not admission.State.ADMITTED

    def _drop_files(self, run: Key) -> None:
        super()._drop_files(run)
        context = self._runs.pop(run.run, None)
        if context is not None:
            context.close()
        clean_up(self._folder / run.run)


def _find_ordered(data: Admission | Participation) -> int:
    """The last round that was ordered."""
    return data.ordered if isinstance(data, Participation) else 0


def _object_to_lack(manifest: Manifest) -> tuple[Objection, ...]:
    """Object if a package that the strategy needs is not installed here."""
    strategy = STRATEGIES.get(manifest.strategy)
    try:
        if strategy and strategy.needs:
            module, extra = strategy.needs
            require(module, wanted_by=manifest.strategy, extra=extra)
    except ConfigurationError as error:
        return (Objection(Code.PROTOCOL_STRATEGY, str(error)),)
    return ()


def _find_void_caps(manifest: Manifest, policy: Policy) -> VoidCaps:
    if STRATEGIES[manifest.strategy].repeats:
        # A second union of the same numbers, without a member of the first, would show that member's indices.
        return VoidCaps(per_model=0, per_run=0)
    return VoidCaps(per_model=policy.max_void_rounds_per_model, per_run=policy.max_void_rounds_per_run)
