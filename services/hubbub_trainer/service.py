"""The trainer's shell: trains, deals shares, recombines sums, and keeps its model to itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from hubbub.errors import Code, ConfigurationError, LocalError, Objection, PeerError, RejectReason
from hubbub.ids import Role, RunId
from hubbub.machine.effects import Effect, Job, Key, Persist
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import MaskedChunk, SumChunk, VoidNotice
from hubbub.messages.runs import GroupContribution, RunKey, RunProposed
from hubbub.messages.shares import ResendSet
from hubbub.messages.snapshots import ModelVouched, SnapshotChunk
from hubbub.runtime.clock import Clock, SystemClock
from hubbub.runtime.message_checks import check_sender
from hubbub.runtime.participant import Participant
from hubbub.runtime.runner import KeyedEvent, Observer, RunningMachine
from hubbub.strategies.registry import STRATEGIES
from hubbub.transport.base import Transport
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster
from hubbub_trainer import snapshots, workspace, workspaces
from hubbub_trainer.events import (
    GroupAgreed,
    InitialModel,
    Prepared,
    Proposed,
    RoundHeardOf,
    SnapshotTaken,
    SumArrived,
    VoidAnnounced,
)
from hubbub_trainer.intake import (
    read_about_run,
    read_masked,
    read_resend,
    read_snapshot,
    read_sum,
    read_void,
    read_vouchers,
)
from hubbub_trainer.ledger import LEDGER_FILE, Ledger, explain_refusal
from hubbub_trainer.phases import admission, catchup, participation
from hubbub_trainer.phases import round as rounds
from hubbub_trainer.phases.admission import Admission
from hubbub_trainer.phases.catchup import CatchUp
from hubbub_trainer.phases.participation import Participation, VoidCaps
from hubbub_trainer.phases.round import ClientRound
from hubbub_trainer.policy import Policy
from hubbub_trainer.round_jobs import RoundJobs, Sleep, name_sum, place_of
from hubbub_trainer.run_secrets import find_set, get_or_create_contribution
from hubbub_trainer.snapshots import Handover
from hubbub_trainer.task_runner import Progress, TaskRunner
from hubbub_trainer.workspace import has_model
from hubbub_trainer.workspaces import TaskLoader, Workspaces

log = logging.getLogger(__name__)


class PolicyReader(Protocol):
    """Reads the data owner's policy as it stands now: it may be changed while the trainer runs."""

    def __call__(self) -> Policy:
        """The policy, or `ConfigurationError` if it cannot be read."""


class Trainer(Participant):
    """One organisation's trainer.

    In a run it has one machine at a time: the admission until all clients have agreed, then the participation.
    """

    run_kinds = frozenset({"admission", "run"})

    def __init__(
        self,
        *,
        identity: Identity,
        roster: Roster,
        read_policy: PolicyReader,
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
        self._spaces = Workspaces(
            me=identity.name,
            folder=folder / "runs",
            vault=self._vault,
            load_task=load_task,
            manifest_of=self._manifest_of,
            demo_seed=demo_seed,
        )
        self._tasks = TaskRunner(me=identity.name, progress=progress, clock=clock, registry=self.counters.registry)
        self._bench = RoundJobs(
            me=identity.name,
            spaces=self._spaces,
            spool=self._spool,
            vault=self._vault,
            ledger=self._ledger,
            post=self.runner.post,
            find_round=self._find_round,
            seal_of=self._seal_of,
            slots=training_slots or asyncio.Semaphore(1),
            tasks=self._tasks,
            sleep=sleep,
        )
        self._handover = Handover(
            spaces=self._spaces,
            spool=self._spool,
            vault=self._vault,
            post=self.runner.post,
            manifest_of=self._manifest_of,
            seal_of=self._seal_of,
        )

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
            case SumChunk():
                return self._to_round(envelope, read_sum(self.runner.roster, data.manifest, envelope, body, size))
            case MaskedChunk():
                return self._to_round(
                    envelope, read_masked(self.runner.roster, data.manifest, envelope, body, size)
                )
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
        )

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
        ours = find_set(self._vault, key, envelope.phase)
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
                self._spool.write(key, workspace.name_part(effect.client), payload)
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
            case admission.RememberRun():
                await asyncio.to_thread(self._remember_run, key.run)
            case admission.AcceptKeys():
                self._accept_keys(key.run, effect.publics)
            case admission.DealContribution():
                await self._deal_contribution(key)
            case admission.SetUpParticipation(data=data):
                await self.runner.set_up(data.key, data)
            case participation.SetUpRound():
                await self._set_up_round(key, effect.number)
            case participation.SetUpCatchUp():
                await self._set_up_catch_up(key, effect.number)
            case participation.AbandonRounds():
                self._abandon_rounds(key, effect.number)
            case participation.SaveModel() | participation.EndorseModel() | participation.ReportOldCopy():
                await asyncio.to_thread(self._wind_up, key, effect)
            case catchup.DropSnapshot():
                self._spool.drop(snapshots.place_of(key), effect.client)
            case _:
                raise LocalError(f"a trainer has no effect {effect!r}")

    def _wind_up(
        self, key: Key, effect: participation.SaveModel | participation.EndorseModel | participation.ReportOldCopy
    ) -> None:
        """Do what belongs to the end of a run."""
        match effect:
            case participation.SaveModel():
                self._save_model(key)
            case participation.EndorseModel(number=number):
                self._endorse_model(key, number)
            case participation.ReportOldCopy(evidence=evidence):
                self._report_old_copy(key, evidence)

    def _report_old_copy(self, key: Key, evidence: str) -> None:
        """Count the run against its model for ever: shares of it have left, and the copy may not say so."""
        log.error(
            "the folder of %s is an old copy: in run %s %s. Nothing more is sent in this run. Stop this trainer, "
            "and put its newest folder in place of the copy. If that is gone, see docs/running.md, "
            "'A party has lost its state'",
            *(self.runner.identity.name, key.run, evidence),
        )
        self.counters.lost()
        # A ledger that is older than the run does not know its model.
        with suppress(LocalError):
            self._ledger.count(key.run)

    def _save_model(self, key: Key) -> None:
        # After a crash at the very end there is nothing left to save it from: it was saved before.
        if has_model(self._spaces.folder_of(key.run)):
            manifest = self._manifest_of(key.run)
            self._spaces.open(key.run).save_model(run=key.run, task=manifest.task, seed=manifest.seed)

    def _endorse_model(self, key: Key, number: int) -> None:
        if not has_model(self._spaces.folder_of(key.run)):
            return  # As above: it was endorsed before.
        space, manifest = self._spaces.open(key.run), self._manifest_of(key.run)
        if space.group is None:
            return  # Likewise: it is erased when all is done, and a power cut may bring back files beside it.
        salt = workspaces.derive_salt(space.group_secret, number)
        workspaces.keep(space.folder, self.runner.identity, manifest, salt, space.theta)

    async def _deal_contribution(self, key: Key) -> None:
        seals, _ = self._seal_of(key)
        contribution = get_or_create_contribution(self._vault, key.run)
        for client in self._joined(key, Admission).peers:
            sealed = seals.seal_contribution(client, contribution)
            await self.runner.post.send(key, to=client, role=Role.CLIENT, body=GroupContribution(), payload=sealed)

    async def _set_up_round(self, run: Key, number: int) -> None:
        key = Key("round", run.run, number)
        data = ClientRound(me=self.runner.identity.name, key=key, run=run, manifest=self._manifest_of(run.run))
        await self.runner.set_up(key, data)

    async def _set_up_catch_up(self, run: Key, number: int) -> None:
        key, data = Key("catchup", run.run, number), self._data_of(run.run)
        ours = CatchUp(
            me=self.runner.identity.name,
            key=key,
            run=run,
            manifest=data.manifest,
            after=data.over if isinstance(data, Participation) else -1,
        )
        await self.runner.set_up(key, ours)

    def _abandon_rounds(self, run: Key, number: int) -> None:
        for key in [each for each in self.runner.machines if each.kind == "round" and each.run == run.run]:
            if key.round <= number:
                self._bench.close(key, self._manifest_of(key.run), has_verdict=True)
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
        """Do what takes long."""
        match job:
            case admission.PrepareTask():
                return await asyncio.to_thread(self._prepare, key)
            case admission.AgreeOnSecret():
                return await asyncio.to_thread(self._agree, key, self._manifest_of(key.run))
            case participation.SendSnapshot():
                return await self._handover.send(key, job)
            case catchup.TakeSnapshot():
                return await asyncio.to_thread(self._take_snapshot, key, job)
        return await self._bench.work(key, job)

    def _prepare(self, key: Key) -> Prepared:
        manifest = self._manifest_of(key.run)
        prepared = self._spaces.prepare(manifest)
        fits = prepared.initial_model_sha256 in {None, manifest.initial_model_sha256}
        return replace(prepared, initial=self._claim_model(key)) if fits else prepared

    def _take_snapshot(self, key: Key, job: catchup.TakeSnapshot) -> SnapshotTaken:
        self._handover.take(key, job)
        if job.voucher is None:
            return SnapshotTaken(initial=self._claim_model(Key("admission", key.run)))
        place, space = Key("round", key.run, job.voucher.round), self._spaces.open(key.run)
        return SnapshotTaken(held=self._bench.describe_held(place, space))

    def _claim_model(self, run: Key) -> InitialModel:
        """Look up in the ledger whether this run may begin from its model, and take note that it does."""
        data = self._joined(run, Admission)
        fingerprint = self._spaces.fingerprint(data.manifest)
        claim = self._ledger.claim(
            run.run,
            fingerprint,
            cohort=data.manifest.clients,
            predecessor=data.manifest.predecessor.run if data.manifest.predecessor else None,
            limit=data.runs_per_model,
        )
        if run not in self.runner.machines:
            self._ledger.give_up(run.run)  # It ended meanwhile, and nobody else would.
        return InitialModel(
            sha256=fingerprint.model if fingerprint else "",
            voids=claim.voids,
            objection=explain_refusal(claim, data.caps.per_model),
        )

    def _agree(self, key: Key, manifest: Manifest) -> GroupAgreed:
        seals, _ = self._seal_of(key)
        me = self.runner.identity.name
        agreed = workspace.agree(self._vault, self._spool, seals, me=me, run=key, manifest=manifest)
        if not self._joined(key, Admission).lacks_model:
            self._spaces.open(key.run).group = agreed
        return GroupAgreed(confirmation=agreed.confirmation())

    # What our machines know -----------------------------------------------------------------------------

    def _find_key(self, run: RunId) -> Key:
        """The machine that takes the messages about a run: its participation once there is, or was, one."""
        key = Key("run", run)
        return key if key in self.runner.machines or key in self._over else Key("admission", run)

    def _data_of(self, run: RunId) -> Admission | Participation:
        key = self._find_key(run)
        return self._joined(key, Admission) if key.kind == "admission" else self._joined(key, Participation)

    def _manifest_of(self, run: RunId) -> Manifest:
        return self._data_of(run).manifest

    def _find_round(self, key: Key) -> ClientRound:
        live = self.runner.machines.get(key)
        if live is None or not isinstance(live.data, ClientRound):
            raise LocalError(f"{key} is over, or is no round")
        return live.data

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
            self._bench.close(key, self._manifest_of(key.run), has_verdict=has_verdict)
        return super().retire(key, live)

    def _ends_run(self, key: Key, live: RunningMachine) -> bool:
        # What is admitted goes on: its secrets and files are the participation's.
        return super()._ends_run(key, live) and live.state is not admission.State.ADMITTED

    def _drop_files(self, run: Key) -> None:
        super()._drop_files(run)
        self._spaces.forget(run.run)


def _find_ordered(data: Admission | Participation) -> int:
    """The last round that was ordered."""
    return data.ordered if isinstance(data, Participation) else 0


def _find_void_caps(manifest: Manifest, policy: Policy) -> VoidCaps:
    if STRATEGIES[manifest.strategy].repeats:
        # A second union of the same numbers, without a member of the first, would show that member's indices.
        return VoidCaps(per_model=0, per_run=0)
    return VoidCaps(per_model=policy.max_void_rounds_per_model, per_run=policy.max_void_rounds_per_run)
