"""A coordinator that says what it likes, well signed, and the real parties that it tries to mislead."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TypeVar

from hubbub.crypto.key_derivation import CONTRIBUTION_BYTES, GroupSecret
from hubbub.crypto.sealing import SealingKey
from hubbub.errors import RejectReason
from hubbub.ids import PartyId, Role, SetId
from hubbub.machine.effects import Key
from hubbub.messages.envelope import Envelope, Message
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import ClosePhase, PhaseReleased, PhaseVoided, RoundApplied, RoundOpened, VoidPhase
from hubbub.messages.runs import (
    GroupConfirmed,
    GroupContribution,
    RunJoined,
    RunKey,
    RunKeys,
    RunProposed,
    RunReady,
    RunRefused,
)
from hubbub.messages.shares import SetReceived, ShareChunk, SignedReceipt, VectorClaim, declare
from hubbub.policy import ANY, NO_LIMIT
from hubbub.protocol.layout import pack_chunk, plan_chunks
from hubbub.protocol.ring import Residues
from hubbub.strategies.registry import find_strategy
from hubbub.transport.base import Transport
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.rabbitmq import RabbitMqTransport
from hubbub.transport.topology import Topology, dead_letter_queue, merge, received_from, topology_for
from hubbub.trust.audit import Entry, read_log
from hubbub.trust.seals import RunSeals, Stage
from hubbub_aggregator.policy import AggregatorPolicy
from hubbub_aggregator.service import Aggregator
from hubbub_local.federation import Connect, Parties
from hubbub_trainer.learning.task import Task
from hubbub_trainer.policy import Policy
from hubbub_trainer.service import Trainer
from support.broker import declared
from support.frames import decode, know_roster
from support.parties import parties_of
from support.recorder import Recording, connect_recorded
from support.sealed_shares import seal_share
from support.stand_in import StandIn

M = TypeVar("M", bound=Message)
Heard = list[tuple[Envelope, M]]


async def _hear(voice: StandIn, kind: type[M], count: int, **where: object) -> Heard[M]:
    """Wait until that many messages have come whose envelopes are as wanted, and give them all."""
    wanted = {name: value for name, value in where.items() if value is not None}
    least = count
    while True:
        heard = await voice.hear(kind, least)
        found = [each for each in heard if all(getattr(each[0], name) == wanted[name] for name in wanted)]
        if len(found) >= count:
            return found
        least = len(heard) + 1


class CorruptCoordinator:
    """It has the coordinator's identity key, so nothing that it says fails for want of a signature.

    Its methods do what an honest coordinator does, unless a test names other members, receipts or recipients.
    """

    def __init__(self, voice: StandIn, manifest: Manifest) -> None:
        self.voice = voice
        self.manifest = manifest

    @property
    def everybody(self) -> tuple[PartyId, ...]:
        return (*self.manifest.aggregators, *self.manifest.clients)

    @property
    def phases(self) -> tuple[str, ...]:
        return tuple(phase.name for phase in find_strategy(self.manifest.strategy).phases)

    async def tell(
        self,
        body: Message,
        to: Iterable[PartyId],
        *,
        number: int = 0,
        phase: str = "",
        manifest: Manifest | None = None,
    ) -> None:
        for name in to:
            role = Role.AGGREGATOR if name in self.manifest.aggregators else Role.CLIENT
            run = (manifest or self.manifest).run_id
            await self.voice.say(body, to=name, role=role, run=run, round_number=number, phase=phase)

    async def hear(
        self,
        kind: type[M],
        count: int = 1,
        *,
        number: int | None = None,
        phase: str | None = None,
        sender: PartyId | None = None,
        manifest: Manifest | None = None,
    ) -> Heard[M]:
        run = (manifest or self.manifest).run_id
        return await _hear(self.voice, kind, count, run=run, round=number, phase=phase, sender=sender)

    def said(self, kind: type[Message], *, number: int | None = None) -> int:
        """How many messages of a kind have come so far in this run."""
        heard = [each for each in self._heard() if isinstance(each.body, kind)]
        return len([each for each in heard if number in {None, each.round}])

    def _heard(self) -> list[Envelope]:
        return [each for each in self.voice.heard if each.run == self.manifest.run_id]

    # Before the first round -----------------------------------------------------------------------------

    async def propose(self, manifest: Manifest | None = None, to: Iterable[PartyId] | None = None) -> None:
        manifest = manifest or self.manifest
        await self.tell(RunProposed(manifest=manifest), to or self.everybody, manifest=manifest)

    async def gather_keys(
        self, manifest: Manifest | None = None, of: Sequence[PartyId] | None = None
    ) -> tuple[RunKey, ...]:
        """Propose a run, and give the keys of those who join."""
        asked = of or self.everybody
        await self.propose(manifest, asked)
        joined = await self.hear(RunJoined, len(asked), manifest=manifest)
        return tuple(body.run_key for _, body in joined)

    async def pass_on(self, keys: Iterable[RunKey], to: Iterable[PartyId] | None = None) -> None:
        await self.tell(RunKeys(keys=tuple(keys)), to or self.everybody)

    async def await_ready(self, parties: int | None = None) -> None:
        await self.hear(RunReady, parties or len(self.everybody))

    async def enrol(self) -> tuple[RunKey, ...]:
        keys = await self.gather_keys()
        await self.pass_on(keys)
        await self.await_ready()
        return keys

    async def sync(self, to: Iterable[PartyId], answer: type[RunJoined | RunRefused] = RunJoined) -> None:
        """Wait until these parties have taken all that they were told: they answer one thing after the other."""
        asked = tuple(to)
        # Twice: what a party writes down, it writes after its answer and before its next.
        for _ in range(2):
            another = self.manifest.model_copy(update={"nonce": secrets.token_hex(16)})
            await self.propose(another, asked)
            await self.hear(answer, len(asked), manifest=another)

    # Rounds ---------------------------------------------------------------------------------------------

    async def open_round(
        self, number: int, to: Iterable[PartyId] | None = None, *, attended: int | None = None
    ) -> None:
        """Order clients to train, each with the round that it last took part in unless a test names another."""
        for client in to or self.manifest.clients:
            last = self._find_attended(client) if attended is None else attended
            await self.tell(RoundOpened(attended=last), [client], number=number)

    def _find_attended(self, client: PartyId) -> int:
        """The last round of which every aggregator has signed for a set of this client."""
        signed: dict[tuple[int, str], set[PartyId]] = {}
        for each in self._heard():
            if isinstance(each.body, SetReceived) and client in each.body.receipt.receipt.set_of:
                signed.setdefault((each.round, each.phase), set()).add(each.sender)
        everybody = set(self.manifest.aggregators)
        return max((number for (number, _), senders in signed.items() if senders == everybody), default=0)

    async def gather_receipts(
        self, number: int, phase: str = "signs", members: Sequence[PartyId] | None = None
    ) -> tuple[SignedReceipt, ...]:
        """Every aggregator's receipts for the members' sets."""
        named = set(self.manifest.clients if members is None else members)
        wanted = len(self.manifest.aggregators)
        while True:
            heard = await self.hear(SetReceived, wanted, number=number, phase=phase)
            found = [body.receipt for _, body in heard if named & body.receipt.receipt.set_of.keys()]
            said = {(each.receipt.aggregator, client) for each in found for client in each.receipt.set_of}
            if said >= set(product(self.manifest.aggregators, named)):
                return tuple(found)
            wanted = len(heard) + 1

    async def close(
        self,
        number: int,
        members: Sequence[PartyId] | None = None,
        *,
        phase: str = "signs",
        receipts: Sequence[SignedReceipt] | None = None,
        to: Iterable[PartyId] | None = None,
    ) -> None:
        """Order a release over all clients or some, with the receipts that an honest order shows or others."""
        named = tuple(self.manifest.clients if members is None else members)
        shown = tuple(await self.gather_receipts(number, phase, named) if receipts is None else receipts)
        order = ClosePhase(members=named, receipts=shown)
        await self.tell(order, to or self.manifest.aggregators, number=number, phase=phase)

    async def void(self, number: int, phase: str = "signs", to: Iterable[PartyId] | None = None) -> None:
        order = VoidPhase()
        await self.tell(order, to or self.manifest.aggregators, number=number, phase=phase)

    async def release(self, number: int, members: Sequence[PartyId] | None = None, phase: str = "signs") -> None:
        """Close a phase as an honest coordinator does, and wait until all sums are out."""
        await self.close(number, members, phase=phase)
        await self.hear(PhaseReleased, len(self.manifest.aggregators), number=number, phase=phase)

    async def finish_round(self, number: int, members: Sequence[PartyId] | None = None) -> None:
        """Close what is open of a round, and wait for all clients that take part."""
        for phase in self.phases:
            if not self._is_released(number, phase):
                await self.release(number, members, phase)
        await self.hear(RoundApplied, len(members or self.manifest.clients), number=number)

    def _is_released(self, number: int, phase: str) -> bool:
        """Whether a release was reported; what is only ordered so far is ordered again, which is old news."""
        return any(
            isinstance(each.body, PhaseReleased) and (each.round, each.phase) == (number, phase)
            for each in self._heard()
        )

    async def play_round(self, number: int) -> None:
        await self.open_round(number)
        await self.finish_round(number)

    async def waste_round(self, number: int) -> None:
        """Have the union, then no sum."""
        await self.open_round(number)
        await self.release(number, phase="union")
        await self.gather_receipts(number)
        await self.void(number)
        await self.hear(PhaseVoided, len(self.manifest.aggregators), number=number)


class PlayedClient:
    """A client of the cohort that the coordinator has on its side: it joins like any other."""

    def __init__(self, voice: StandIn, manifest: Manifest, parties: Parties) -> None:
        self.name = voice.name
        self._voice = voice
        self._manifest = manifest
        self.seals = RunSeals(
            parties.identities[voice.name], manifest.run_id, SealingKey.generate(parties.roster.kem)
        )

    async def agree(self, keys: Iterable[RunKey]) -> None:
        """Deal a part of the group secret, open the others' and confirm what comes of them."""
        publics = {key.party: bytes.fromhex(key.public_key) for key in keys}
        self.seals.accept(publics)
        clients = self._manifest.clients
        others = [client for client in clients if client != self.name]
        parts = {self.name: secrets.token_bytes(CONTRIBUTION_BYTES)}
        for other in others:
            sealed = self.seals.seal_contribution(other, parts[self.name])
            await self._say(GroupContribution(), other, Role.CLIENT, payload=sealed)
        for envelope, _ in await self._voice.hear(GroupContribution, len(others)):
            parts[envelope.sender] = self.seals.open_contribution(envelope.sender, envelope.payload)
        group = GroupSecret.agree(
            [parts[client] for client in clients],
            run=self._manifest.run_id,
            run_keys=[publics[client] for client in clients],
        )
        for other in others:
            await self._say(GroupConfirmed(confirmation=group.confirmation()), other, Role.CLIENT)

    async def send_set(
        self, number: int, vectors: Sequence[VectorClaim], values: Sequence[Residues], transcript: str
    ) -> None:
        """The same values to every aggregator, sealed and signed as they should be."""
        set_id, declared_vectors = SetId(secrets.token_hex(16)), tuple(claim.vector for claim in vectors)
        for index, chunk in enumerate(plan_chunks(declared_vectors, self._manifest.chunk_bytes)):
            packed = pack_chunk(chunk, declared_vectors, [values[piece.vector][piece.elements] for piece in chunk])
            body = ShareChunk(set_id=set_id, vectors=declare(declared_vectors), transcript=transcript, index=index)
            for server in self._manifest.aggregators:
                stage = Stage(self._manifest.run_id, number, "signs")
                sealed = seal_share(self.seals, stage, server, set_id, index, packed)
                await self._say(body, server, Role.AGGREGATOR, number=number, phase="signs", payload=sealed)

    async def _say(
        self, body: Message, to: PartyId, role: Role, *, number: int = 0, phase: str = "", payload: bytes = b""
    ) -> None:
        await self._voice.say(
            body,
            to=to,
            role=role,
            run=self._manifest.run_id,
            round_number=number,
            phase=phase,
            payload=payload,
        )


# Everybody else -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the real parties are started with, and start again with."""

    parties: Parties
    folder: Path
    connect: Connect
    task: Task
    policy: Policy
    aggregator_policy: AggregatorPolicy
    broker: MemoryBroker | None
    recording: Recording
    demo_seed: int | None = None


@dataclass(slots=True, eq=False)
class Scene:
    """The coordinator, and the real aggregators and trainers around it."""

    coordinator: CorruptCoordinator
    surroundings: Surroundings
    services: dict[PartyId, Aggregator | Trainer] = field(default_factory=dict)
    played: dict[PartyId, StandIn] = field(default_factory=dict)
    _stacks: dict[PartyId, AsyncExitStack] = field(default_factory=dict)

    @property
    def manifest(self) -> Manifest:
        return self.coordinator.manifest

    def aggregator(self, name: PartyId) -> Aggregator:
        service = self.services[name]
        assert isinstance(service, Aggregator)
        return service

    async def start(self, name: PartyId, role: Role) -> None:
        here = self.surroundings
        stack = AsyncExitStack()
        transport = await stack.enter_async_context(here.connect(name, topology_for(name, role)))
        service = _build(here, name, role, transport)
        stack.callback(service.close)
        stack.push_async_callback(service.runner.stop)
        self.services[name], self._stacks[name] = service, stack
        await service.runner.start()

    async def stop(self, name: PartyId) -> None:
        await self._stacks.pop(name).aclose()

    async def restart(self, name: PartyId) -> None:
        """A new process with the old one's folder; what was in its memory is gone."""
        role = Role.AGGREGATOR if isinstance(self.services[name], Aggregator) else Role.CLIENT
        await self.stop(name)
        await self.start(name, role)

    async def close(self) -> None:
        for name in [*self._stacks]:
            await self.stop(name)

    # What came of it ------------------------------------------------------------------------------------

    def log_of(self, name: PartyId) -> tuple[Entry, ...]:
        return read_log(self.surroundings.folder / name / "audit.jsonl").entries

    def recorded(self, name: PartyId, kind: str) -> list[Mapping[str, object]]:
        return [entry.fields for entry in self.log_of(name) if entry.kind == kind]

    def refusals(self, name: PartyId) -> Counter[RejectReason]:
        """What a party has counted as refused; of each reason its audit log knows too."""
        counters = self.services[name].counters
        found = Counter({reason: counters.rejections(reason) for reason in RejectReason})
        told = {str(fields["reason"]) for fields in self.recorded(name, "refused")}
        assert {reason.value for reason in +found} <= told
        return +found

    def dead(self, name: PartyId) -> list[str]:
        assert self.surroundings.broker is not None, "dead letters are looked at in memory"
        return [letter.reason for letter in self.surroundings.broker.dead_letters(dead_letter_queue(name))]

    def late(self, name: PartyId, kind: str) -> float:
        registry = self.services[name].counters.registry
        return registry.get_sample_value("hubbub_messages_late_total", {"kind": kind}) or 0.0

    def sent(
        self, kind: type[Message], *, sender: PartyId | None = None, number: int | None = None
    ) -> list[Envelope]:
        """Everything of a kind that was ever given to the broker."""
        frames = [decode(each.frame) for each in self.surroundings.recording]
        return [
            envelope
            for envelope in frames
            if isinstance(envelope.body, kind)
            and sender in {None, envelope.sender}
            and number in {None, envelope.round}
        ]

    def state_of(self, name: PartyId, number: int) -> str:
        """Where a trainer is in a round."""
        live = self.services[name].runner.machines[Key("round", self.manifest.run_id, number)]
        return str(live.state.value)

    def models(self, name: PartyId) -> int:
        """How many rounds a trainer has applied."""
        path = self.surroundings.folder / name / "runs" / self.manifest.run_id / "rounds.jsonl"
        return len(path.read_text("utf-8").splitlines()) if path.exists() else 0


def _build(here: Surroundings, name: PartyId, role: Role, transport: Transport) -> Aggregator | Trainer:
    identity, roster, folder = here.parties.identities[name], here.parties.roster, here.folder / name
    if role is Role.AGGREGATOR:
        return Aggregator(
            identity=identity,
            roster=roster,
            read_policy=lambda: here.aggregator_policy,
            transport=transport,
            folder=folder,
        )
    return Trainer(
        identity=identity,
        roster=roster,
        read_policy=lambda: here.policy,
        transport=transport,
        folder=folder,
        load_task=lambda _: here.task,
        demo_seed=here.demo_seed,
    )


@asynccontextmanager
async def scene_of(
    manifest: Manifest,
    folder: Path,
    *,
    task: Task,
    url: str | None = None,
    parties: Parties | None = None,
    policy: Policy | None = None,
    aggregator_policy: AggregatorPolicy | None = None,
    played: Sequence[PartyId] = (),
    demo_seed: int | None = None,
) -> AsyncIterator[Scene]:
    """Everybody of the roster, in memory or at the broker of a URL; nothing is proposed yet."""
    everybody, recording = parties or parties_of(manifest), Recording()
    know_roster(everybody.roster)
    broker = None if url else MemoryBroker()
    async with AsyncExitStack() as stack:
        if url:
            topologies = [topology_for(party.name, party.role) for party in everybody.roster.parties]
            await stack.enter_async_context(declared(url, merge(topologies)))
        here = Surroundings(
            parties=everybody,
            folder=folder,
            connect=connect_recorded(recording, _connect(url, broker)),
            task=task,
            # What a data owner has without thinking about it, but for the approval of each manifest, and for runs
            # from one model: `sync` proposes another each time.
            policy=policy
            or Policy(roster_sha256=everybody.roster.digest, approve_tasks=(ANY,), max_runs_per_model=NO_LIMIT),
            aggregator_policy=aggregator_policy or AggregatorPolicy(roster_sha256=everybody.roster.digest),
            broker=broker,
            recording=recording,
            demo_seed=demo_seed,
        )
        voice = await _give_voice(stack, here, manifest.coordinator, Role.COORDINATOR)
        scene = Scene(CorruptCoordinator(voice, manifest), here)
        stack.push_async_callback(scene.close)
        for party in everybody.roster.parties:
            if party.name in played:
                scene.played[party.name] = await _give_voice(stack, here, party.name, party.role)
            elif party.role is not Role.COORDINATOR:
                await scene.start(party.name, party.role)
        yield scene


@asynccontextmanager
async def enrolled_scene(
    manifest: Manifest, folder: Path, *, task: Task, url: str | None = None
) -> AsyncIterator[Scene]:
    """The same, with everything done that comes before the first round."""
    async with scene_of(manifest, folder, task=task, url=url) as scene:
        await scene.coordinator.enrol()
        yield scene


def _connect(url: str | None, broker: MemoryBroker | None) -> Connect:
    def connect(name: PartyId, topology: Topology) -> Transport:
        if broker is not None:
            return MemoryTransport(broker, topology)
        return RabbitMqTransport(url or "", topology, connection_name=name)

    return connect


async def _give_voice(stack: AsyncExitStack, here: Surroundings, name: PartyId, role: Role) -> StandIn:
    transport = await stack.enter_async_context(here.connect(name, topology_for(name, role)))
    voice = StandIn(name, role, transport)
    for queue in received_from(name, role):
        await transport.subscribe(queue, voice.take)
    return voice
