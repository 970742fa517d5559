"""The trainer's shell: trains, deals shares, recombines sums, and keeps its model to itself."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from hubbub.crypto.secret import ClientSecret
from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import LocalError, PeerError, RejectReason
from hubbub.ids import PartyId, Role, RunId, SetId
from hubbub.machine.effects import Effect, Job, Key
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import RoundOpened
from hubbub.messages.runs import RunEnded, RunProposed
from hubbub.messages.shares import ShareChunk, declare
from hubbub.messages.sums import SumChunk, VoidNotice
from hubbub.messages.traffic import count_payload
from hubbub.protocol.layout import plan_chunks
from hubbub.runtime.clock import Clock
from hubbub.runtime.intake import check_sender
from hubbub.runtime.participant import Participant
from hubbub.runtime.post import Identity
from hubbub.runtime.runner import Fed, Live, Observer
from hubbub.runtime.spool import ChunkRef
from hubbub.strategies.base import ClientInput, Release
from hubbub.strategies.registry import find_phase, find_strategy
from hubbub.transport.base import Transport
from hubbub_trainer.dealing import deal_chunk, recombine_chunks
from hubbub_trainer.events import (
    Concluded,
    Decoded,
    Ended,
    Prepared,
    Proposed,
    RoundOrdered,
    SharesSent,
    SumArrived,
    Trained,
    VoidAnnounced,
)
from hubbub_trainer.intake import read_sum, read_void
from hubbub_trainer.learning.task import Score, Task
from hubbub_trainer.phases import enrolment
from hubbub_trainer.phases import round as rounds
from hubbub_trainer.phases.enrolment import Enrolment
from hubbub_trainer.phases.round import Round
from hubbub_trainer.workspace import OpenRound, Workspace, digest

log = logging.getLogger(__name__)

Progress = Callable[[PartyId, int, int, int], None]
"""Told, from the training thread: who, in which round, has done how many steps of how many."""


class TaskLoader(Protocol):
    """Finds the task that a manifest names, in this organisation's own installation."""

    def __call__(self, name: str) -> Task:
        """Load a task by name."""


class Stopping(LocalError):
    """The service is being stopped; training is given up."""


class Trainer(Participant):
    """One organisation's trainer."""

    def __init__(
        self,
        *,
        name: PartyId,
        transport: Transport,
        folder: Path,
        load_task: TaskLoader,
        demo_seed: int | None = None,
        training_slots: asyncio.Semaphore | None = None,
        progress: Progress = lambda *_: None,
        clock: Clock | None = None,
        observer: Observer = lambda _: None,
    ) -> None:
        super().__init__(
            identity=Identity(name, Role.CLIENT),
            transport=transport,
            folder=folder,
            clock=clock,
            observer=observer,
        )
        self._folder = folder
        self._load_task = load_task
        self._demo_seed = demo_seed
        self._slots = training_slots or asyncio.Semaphore(1)
        self._progress = progress
        self._stopping = threading.Event()
        self._spaces: dict[RunId, Workspace] = {}

    def close(self) -> None:
        """Let a training thread come to its end at its next report of progress."""
        self._stopping.set()

    # Messages to events ---------------------------------------------------------------------------------

    def receive(self, envelope: Envelope, *, size: int, now_s: float) -> Sequence[Fed]:
        """Check a message and make its event."""
        del now_s
        run = Key("run", envelope.run)
        body = envelope.body
        if isinstance(body, RunProposed):
            return self._receive_proposal(run, envelope, body, Proposed())
        if run in self._over:
            return self._ignore(envelope)
        data = self._joined(run, Enrolment)
        check_sender(data.manifest, envelope)
        match body:
            case RunEnded(outcome=outcome):
                return [(run, Ended(completed=outcome == "completed"))]
            case RoundOpened():
                return [(run, RoundOrdered(number=envelope.round))]
            case SumChunk():
                return self._to_round(envelope, read_sum(data.manifest, envelope, body, size))
            case VoidNotice():
                return self._to_round(envelope, read_void(data.manifest, envelope))
        raise PeerError(RejectReason.UNEXPECTED, f"a trainer takes no {envelope.kind}")

    def _invite(self, run: Key, manifest: Manifest, *, stale: bool) -> None:
        data = Enrolment(me=self.runner.identity.name, key=run, manifest=manifest, stale=stale)
        self.runner.add(run, enrolment.TRANSITIONS, enrolment.State.INVITED, data)

    def _to_round(self, envelope: Envelope, event: SumArrived | VoidAnnounced) -> Sequence[Fed]:
        key = Key("round", envelope.run, envelope.round)
        if key in self._over:
            return self._ignore(envelope)
        if key not in self.runner.machines:
            raise PeerError(RejectReason.TOO_EARLY, f"round {envelope.round} was not ordered yet")
        return [(key, event)]

    # Effects and jobs -----------------------------------------------------------------------------------

    async def perform(self, key: Key, effect: Effect, payload: bytes) -> None:
        """Set up rounds, spool sums, save the model."""
        match effect:
            case enrolment.RememberRun():
                await asyncio.to_thread(self._tombstones.add, key.run)
            case enrolment.SetUpRound():
                self._set_up_round(key, effect.number)
            case enrolment.SaveModel():
                await asyncio.to_thread(self._spaces[key.run].save_model)
            case rounds.SpoolSum():
                ref = ChunkRef(effect.aggregator, "sum", effect.index)
                await asyncio.to_thread(self._spool.write, _in_phase(key, effect.phase), ref, payload)
            case _:
                raise LocalError(f"a trainer has no effect {effect!r}")

    def _set_up_round(self, run: Key, number: int) -> None:
        key = Key("round", run.run, number)
        data = Round(
            me=self.runner.identity.name, key=key, run=run, manifest=self._joined(run, Enrolment).manifest
        )
        self.runner.add(key, rounds.TRANSITIONS, rounds.State.QUEUED, data)

    async def work(self, key: Key, job: Job) -> object:
        """Do what takes long."""
        match job:
            case enrolment.PrepareTask():
                return await asyncio.to_thread(self._prepare, self._joined(key, Enrolment).manifest)
            case rounds.Train():
                return await self._train(key)
            case rounds.SendShares():
                return await self._send_shares(key, job.phase)
            case rounds.DecodeSums():
                await asyncio.to_thread(self._decode, key, job)
                return Decoded()
            case rounds.Conclude():
                return await self._conclude(key, took_part=job.took_part)
        raise LocalError(f"a trainer has no job {job!r}")

    def _prepare(self, manifest: Manifest) -> Prepared:
        task = self._load_task(manifest.task)
        theta = task.initial_model(manifest.seed)
        index = manifest.clients.index(self.runner.identity.name)
        secret = (
            ClientSecret.from_os() if self._demo_seed is None else ClientSecret.for_demo(self._demo_seed, index)
        )
        self._spaces[manifest.run_id] = Workspace(
            folder=self._folder / "runs" / manifest.run_id,
            learner=task.learner(index=index, clients=len(manifest.clients), seed=manifest.seed),
            secret=secret,
            theta=theta,
            accumulator=np.zeros_like(theta),
        )
        return Prepared(parameters=task.count_parameters(), initial_model_sha256=digest(theta))

    async def _train(self, key: Key) -> Trained:
        began_s = time.monotonic()
        manifest = self._round(key).manifest
        space = self._spaces[key.run]
        async with self._slots:
            space.rounds[key.round] = await asyncio.to_thread(self._train_locally, key, manifest, space)
        return Trained(training_s=time.monotonic() - began_s)

    def _train_locally(self, key: Key, manifest: Manifest, space: Workspace) -> OpenRound:
        def report(done: int, steps: int) -> None:
            if self._stopping.is_set():
                raise Stopping("the trainer is being stopped")
            self._progress(self.runner.identity.name, key.round, done, steps)

        seed = space.secret.seed_for("batches", run=key.run, round_number=key.round)
        training = space.learner.train(
            space.theta, steps=manifest.local_steps, seed=seed, progress=report, memory=space.memory
        )
        mine = ClientInput(
            theta=space.theta,
            update=training.theta - space.theta,
            accumulator=space.accumulator,
            samples=space.learner.samples,
            stream=AesCtrStream(space.secret.key_for("strategy", run=key.run, round_number=key.round)),
        )
        client_round = find_strategy(manifest.strategy).begin(manifest.protocol_parameters, mine)
        return OpenRound(client_round, training.memory)

    async def _send_shares(self, key: Key, phase_name: str) -> SharesSent:
        data = self._round(key)
        client_round = self._spaces[key.run].rounds[key.round].client_round
        phase = find_phase(data.manifest.strategy, phase_name)
        servers = phase.aggregators(data.manifest.aggregators)
        vectors, values = client_round.vectors(phase_name), client_round.contribute(phase_name)
        set_id, stream = SetId(secrets.token_hex(16)), AesCtrStream.from_os()
        for index, chunk in enumerate(plan_chunks(vectors, data.manifest.chunk_bytes)):
            payloads = await asyncio.to_thread(deal_chunk, phase, chunk, vectors, values, len(servers), stream)
            body = ShareChunk(set_id=set_id, vectors=declare(vectors), weight=client_round.weight, index=index)
            for server, payload in zip(servers, payloads, strict=True):
                await self.runner.post.send(
                    key, to=server, role=Role.AGGREGATOR, body=body, phase=phase_name, payload=payload
                )
        return SharesSent(traffic=count_payload(vectors, "up", copies=len(servers)))

    def _decode(self, key: Key, job: rounds.DecodeSums) -> None:
        data = self._round(key)
        client_round = self._spaces[key.run].rounds[key.round].client_round
        phase = find_phase(data.manifest.strategy, job.phase)
        servers = phase.aggregators(data.manifest.aggregators)

        def read(server: int, index: int) -> bytes:
            return self._spool.read(_in_phase(key, job.phase), ChunkRef(servers[server], "sum", index))

        plan = plan_chunks(job.vectors, data.manifest.chunk_bytes)
        sums = recombine_chunks(phase, plan, job.vectors, len(servers), read)
        client_round.absorb(job.phase, Release(job.vectors, tuple(sums)), len(job.members))

    async def _conclude(self, key: Key, *, took_part: bool) -> Concluded:
        space = self._spaces[key.run]
        began_s = time.monotonic()
        async with self._slots:
            score = await asyncio.to_thread(self._move_on, key, space, took_part=took_part)
        return Concluded(score=score, evaluation_s=time.monotonic() - began_s)

    @staticmethod
    def _move_on(key: Key, space: Workspace, *, took_part: bool) -> Score:
        over = space.rounds.pop(key.round)
        conclusion = over.client_round.conclude(took_part=took_part)
        space.theta, space.accumulator, space.memory = conclusion.theta, conclusion.accumulator, over.memory
        space.note_round(key.round, conclusion.alone_share)
        return space.learner.evaluate(space.theta)

    def _round(self, key: Key) -> Round:
        data = self.runner.machines[key].data
        if not isinstance(data, Round):
            raise LocalError(f"{key} is not a round")
        return data

    def retire(self, key: Key, live: Live) -> None:
        """Forget what is over: the update of a void round too, and the memory that it would have left."""
        super().retire(key, live)
        if key.kind == "run":
            self._spaces.pop(key.run, None)
        else:
            self._spaces[key.run].rounds.pop(key.round, None)
            self._spool.drop_round(key)


def _in_phase(key: Key, phase: str) -> Key:
    return Key(key.kind, key.run, key.round, phase)
