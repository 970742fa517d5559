"""Real trainers among parties made by hand, from the proposal of a run to its sums."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hubbub.crypto.key_derivation import CONTRIBUTION_BYTES, GroupSecret
from hubbub.crypto.sealing import ChunkKey
from hubbub.errors import Code, ConfigurationError, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.messages.envelope import Envelope, Message
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import RoundApplied, RoundDropped, RoundOpened, SumChunk, VoidNotice
from hubbub.messages.runs import (
    GroupConfirmed,
    GroupContribution,
    PartyFailed,
    RunEnded,
    RunJoined,
    RunKey,
    RunKeys,
    RunProposed,
    RunReady,
    RunRefused,
)
from hubbub.messages.shares import ShareChunk, declare
from hubbub.messages.snapshots import ModelVouched, SnapshotChunk, SnapshotRequested, Voucher
from hubbub.protocol.aggregate import NO_HISTORY
from hubbub.protocol.layout import Vector, plan_chunks
from hubbub.runtime.runner import Observer
from hubbub.strategies.base import Phase, Theta
from hubbub.strategies.registry import find_strategy
from hubbub.strategies.scores import SCORES
from hubbub.transport.base import Transport
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import dead_letter_queue, peers_queue, topology_for
from hubbub.trust.audit import Entry, read_log
from hubbub.trust.seals import RunSeals, Stage
from hubbub_aggregator.spooled_shares import add_chunk
from hubbub_trainer import snapshots
from hubbub_trainer.learning.task import Task
from hubbub_trainer.policy import Policy
from hubbub_trainer.service import Trainer
from hubbub_trainer.task_runner import Sleep
from hubbub_trainer.workspace import Workspace, digest, model_hmac
from support.aio import until
from support.builders import SIGNATURE, make_manifest
from support.held_transport import StallingTransport
from support.parties import identity_of, parties_of, run_keys_of, seals_beside, sign_sum
from support.saboteur import DoomedStore, Saboteur
from support.sealed_shares import open_share
from support.stand_in import StandIn, stand_in

M = TypeVar("M", bound=Message)
Heard = list[tuple[Envelope, M]]
DEMO_SEED = 3


def find_phase(strategy: str, name: str) -> Phase:
    return next(phase for phase in (*find_strategy(strategy).phases, SCORES) if phase.name == name)


@dataclass(eq=False)
class Peers:
    """The keys of everybody in a run who is made by hand, and what makes the group secret."""

    manifest: Manifest
    real: tuple[RunKey, ...]
    seals: Mapping[PartyId, RunSeals]
    parts: dict[PartyId, bytes] = field(default_factory=dict)

    @property
    def run_keys(self) -> tuple[RunKey, ...]:
        return (*self.real, *run_keys_of(self.seals))

    def agree(self) -> GroupSecret:
        """The group secret as any of them has it."""
        publics = {key.party: bytes.fromhex(key.public_key) for key in self.run_keys}
        clients = self.manifest.clients
        return GroupSecret.agree(
            [self.parts[client] for client in clients],
            run=self.manifest.run_id,
            run_keys=[publics[client] for client in clients],
        )


Shift = Callable[[int, bytes], bytes]
"""Changes a chunk of a sum, as a lying aggregator does."""


MakeTrainer = Callable[[PartyId, Path, Transport], Trainer]
Wrap = Callable[[Transport], Transport]
"""Puts something between a trainer and its transport."""


class Scene:
    """The trainers under test, and everybody else.

    Clients made by hand have updates of zero, and so are all shares of them: an aggregator's sum is what it adds
    up of the real clients' shares.
    """

    def __init__(
        self, broker: MemoryBroker, manifest: Manifest, parties: Mapping[PartyId, StandIn], make: MakeTrainer
    ) -> None:
        self.broker = broker
        self.manifest = manifest
        self.parties = parties
        self._make = make
        self._transports: dict[PartyId, MemoryTransport] = {}
        self._threads = _new_threads()
        self.coordinator = parties[manifest.coordinator]
        self.aggregators = [parties[name] for name in manifest.aggregators]
        self.trainers: dict[PartyId, Trainer] = {}
        self.folders: dict[PartyId, Path] = {}
        self.observer: Observer = lambda _: None
        """Sees the steps of all real clients."""
        self.peers: Peers

    @property
    def real(self) -> tuple[PartyId, ...]:
        return tuple(self.trainers)

    @property
    def by_hand(self) -> tuple[PartyId, ...]:
        return tuple(client for client in self.manifest.clients if client not in self.trainers)

    @property
    def trainer(self) -> Trainer:
        """The first of them, or the only one."""
        return self.trainers[self.real[0]]

    # Starting and killing ---------------------------------------------------------------------------------

    async def start(
        self, client: PartyId, folder: Path, *, wrap: Wrap = lambda inner: inner, saboteur: Saboteur | None = None
    ) -> None:
        """Start a real client on what is in a folder."""
        transport = MemoryTransport(self.broker, topology_for(client, Role.CLIENT))
        self._transports[client] = await transport.__aenter__()
        self.folders[client] = folder
        self.trainers[client] = trainer = self._make(client, folder, wrap(transport))
        if saboteur is not None:
            trainer.runner.event_log.store = DoomedStore(trainer.runner.event_log.store, saboteur)
        await trainer.runner.start()

    async def stop(self, client: PartyId) -> None:
        trainer = self.trainers[client]
        await trainer.runner.stop()
        trainer.close()
        await self._transports[client].close()

    async def kill(self, client: PartyId | None = None, *, let_go: Callable[[], None] = lambda: None) -> Path:
        """Kill a real client where it stands, and give a copy of what was on its disk just then.

        What it writes when it is closed is not in there. `let_go` ends what holds its threads.
        """
        client = client or self.real[0]
        trainer = self.trainers[client]
        await trainer.runner.stop()
        trainer.give_up_training()
        let_go()
        threads, self._threads = self._threads, _new_threads()
        await asyncio.to_thread(threads.shutdown)
        image = self.folders[client].with_name(f"{client} {secrets.token_hex(4)}")
        shutil.copytree(self.folders[client], image)
        await self.stop(client)
        return image

    async def restart(
        self,
        client: PartyId | None = None,
        *,
        let_go: Callable[[], None] = lambda: None,
        wrap: Wrap = lambda inner: inner,
    ) -> None:
        """Kill a real client and start it again."""
        image = await self.kill(client, let_go=let_go)
        await self.start(client or self.real[0], image, wrap=wrap)

    async def restart_while_sending(self, sent: int) -> None:
        """Open a round; kill the first real client when so much of its share set has left, and start it again."""
        clogged: list[StallingTransport] = []

        def clog(inner: Transport) -> StallingTransport:
            clogged.append(StallingTransport(inner, sent))
            return clogged[0]

        await self.restart(wrap=clog)
        await self.open_round(1)
        await clogged[0].stuck.wait()
        await self.restart()

    def space_of(self, client: PartyId | None = None) -> Workspace:
        """A real client's workspace of the present run."""
        return self.trainers[client or self.real[0]].context_of(self.manifest.run_id).open()

    def dead(self) -> list[str]:
        return [letter.reason for letter in self.broker.dead_letters(dead_letter_queue(self.real[0]))]

    def count(self, reason: RejectReason) -> int:
        return self.trainer.counters.rejections(reason)

    async def read_log(self) -> list[Entry]:
        """The entries of this run in the first client's audit log."""
        await self.settle()
        entries = read_log(self.folders[self.real[0]] / "audit.jsonl").entries
        return [entry for entry in entries if entry.fields.get("run") == self.manifest.run_id]

    def run_folder(self, client: PartyId) -> Path:
        return self.folders[client] / "runs" / self.manifest.run_id

    def digests(self, client: PartyId | None = None) -> list[str]:
        path = self.run_folder(client or self.real[0]) / "rounds.jsonl"
        return path.read_text("utf-8").splitlines() if path.exists() else []

    # Saying and hearing ---------------------------------------------------------------------------------

    async def propose(self, manifest: Manifest | None = None) -> None:
        manifest = manifest or self.manifest
        await self.tell(RunProposed(manifest=manifest), manifest=manifest)

    async def tell(self, body: Message, round_number: int = 0, *, manifest: Manifest | None = None) -> None:
        """The coordinator speaks to all real clients."""
        run = (manifest or self.manifest).run_id
        for client in self.real:
            await self.coordinator.say(body, to=client, role=Role.CLIENT, run=run, round_number=round_number)

    async def say(
        self,
        party: StandIn,
        body: Message,
        *,
        to: PartyId | None = None,
        round_number: int = 1,
        phase: str = "signs",
        payload: bytes = b"",
        sender: PartyId | None = None,
        signer: PartyId | None = None,
    ) -> None:
        await party.say(
            body,
            to=to or self.real[0],
            role=Role.CLIENT,
            run=self.manifest.run_id,
            round_number=round_number,
            phase=phase,
            payload=payload,
            sender=sender,
            signer=signer,
        )

    async def end(self, outcome: str = "completed", *, last_round: int = 0) -> None:
        """The coordinator says that the run is over."""
        await self.tell(RunEnded.model_validate({"outcome": outcome, "reason": "", "last_round": last_round}))
        await self.settle()

    async def hear(
        self, party: StandIn, kind: type[M], *, number: int | None = None, phase: str | None = None, each: int = 1
    ) -> Heard[M]:
        """The real clients' messages of a kind in the present run, when each has sent that many."""
        return await self._hear(party, kind, each * len(self.real), number=number, phase=phase)

    async def _hear(
        self, party: StandIn, kind: type[M], wanted: int, *, number: int | None, phase: str | None
    ) -> Heard[M]:
        least = wanted
        while True:
            heard = await party.hear(kind, least, round_number=number)
            ours = [
                (envelope, body)
                for envelope, body in heard
                if envelope.run == self.manifest.run_id and phase in {None, envelope.phase}
            ]
            if len(ours) >= wanted:
                return ours
            least = len(heard) + 1

    def heard(self, party: StandIn, *kinds: type[M]) -> list[M]:
        """Messages of these kinds that a party has been sent so far."""
        return [envelope.body for envelope in party.heard if isinstance(envelope.body, kinds)]

    @property
    def failures(self) -> list[Code]:
        """The failures that the coordinator has been told of so far."""
        return [body.code for body in self.heard(self.coordinator, PartyFailed)]

    async def failure(self) -> Code:
        """The one failure that the coordinator is told of."""
        ((_, failure),) = await self.hear(self.coordinator, PartyFailed)
        await self.settle()
        return failure.code

    async def refusal(self, manifest: Manifest | None = None) -> Code:
        """Propose a run, and return what the coordinator is told of why the trainer does not take part."""
        self.manifest = manifest or self.manifest
        await self.propose()
        ((_, refused),) = await self.hear(self.coordinator, RunRefused)
        await self.settle()
        return refused.code

    async def settle(self) -> None:
        """Return when the real clients have done all that what they were sent before asks of them."""
        here, queues = self.manifest, [peers_queue(client) for client in self.real]
        # What clients send does not come in order with what the coordinator sends.
        await until(lambda: not any(self.broker.waiting_in(each) + self.broker.held_from(each) for each in queues))
        self.manifest = here.model_copy(update={"task": "none", "nonce": secrets.token_hex(16)})
        await self.propose()
        await self.hear(self.coordinator, RunRefused)
        self.manifest = here

    # Admission ------------------------------------------------------------------------------------------

    async def pledge(self, manifest: Manifest | None = None) -> None:
        """Propose a run, hear the real clients' keys, and make everybody else's."""
        self.manifest = manifest or self.manifest
        await self.propose()
        real = tuple({body.run_key for _, body in await self.hear(self.coordinator, RunJoined)})
        self.peers = Peers(self.manifest, real, seals_beside(self.manifest, *real))

    async def exchange(self) -> None:
        """Give everybody's keys to the real clients, take their parts of the group secret, deal the others'."""
        await self.tell(RunKeys(keys=self.peers.run_keys))
        for client in self.by_hand:
            for envelope, _ in await self.hear(self.parties[client], GroupContribution):
                part = self.peers.seals[client].open_contribution(envelope.sender, envelope.payload)
                assert self.peers.parts.setdefault(envelope.sender, part) == part, "the same part to everybody"
            self.peers.parts[client] = client.encode().ljust(CONTRIBUTION_BYTES, b"\0")
            for trainer in self.real:
                await self.deal(client, to=trainer)

    async def deal(self, client: PartyId, *, to: PartyId, part: bytes | None = None) -> None:
        sealed = self.peers.seals[client].seal_contribution(to, part or self.peers.parts[client])
        await self.say(self.parties[client], GroupContribution(), to=to, round_number=0, phase="", payload=sealed)

    async def confirm(self, client: PartyId, *, to: PartyId, confirmation: str) -> None:
        body = GroupConfirmed(confirmation=confirmation)
        await self.say(self.parties[client], body, to=to, round_number=0, phase="")

    async def join(self, manifest: Manifest | None = None) -> GroupSecret:
        """All of it, up to the first round; the group secret that everybody holds."""
        await self.pledge(manifest)
        await self.exchange()
        group = await self.confirm_all()
        await self.hear(self.coordinator, RunReady)
        return group

    async def confirm_all(self) -> GroupSecret:
        """Everybody confirms the same group secret; the others do so when they have heard the real clients."""
        group = self.peers.agree()
        for client in self.by_hand:
            said = await self.hear(self.parties[client], GroupConfirmed)
            assert {body.confirmation for _, body in said} == {group.confirmation()}
            for trainer in self.real:
                await self.confirm(client, to=trainer, confirmation=group.confirmation())
        return group

    # Rounds ---------------------------------------------------------------------------------------------

    async def open_round(self, number: int) -> None:
        await self.tell(RoundOpened(), number)

    def stage(self, number: int, phase: str) -> Stage:
        return Stage(self.manifest.run_id, number, phase)

    async def sealed_shares(
        self, aggregator: StandIn, number: int = 1, phase: str = "signs", *, client: PartyId | None = None
    ) -> Heard[ShareChunk]:
        """A client's whole share set at an aggregator, as it came first, in the order of its chunks."""
        wanted = 1
        while True:
            heard = await self._hear(aggregator, ShareChunk, wanted, number=number, phase=phase)
            own = [pair for pair in reversed(heard) if pair[0].sender == (client or self.real[0])]
            first = {body.index: (envelope, body) for envelope, body in own}
            if own and len(first) == self._count_chunks(own[0][1]):
                return [first[index] for index in sorted(first)]
            wanted = len(heard) + 1

    def _count_chunks(self, body: ShareChunk) -> int:
        return len(plan_chunks([claim.vector for claim in body.vectors], self.manifest.chunk_bytes))

    def sent_sets(self, aggregator: StandIn) -> dict[tuple[int, str, int], list[tuple[str, str, bytes]]]:
        """All chunks that the first client has sent so far: set id, transcript and plaintext of each copy."""
        seals = self.peers.seals[aggregator.name]
        found: dict[tuple[int, str, int], list[tuple[str, str, bytes]]] = {}
        for envelope in aggregator.heard:
            body = envelope.body
            if isinstance(body, ShareChunk) and envelope.sender == self.real[0]:
                stage = self.stage(envelope.round, envelope.phase)
                share = open_share(seals, stage, envelope.sender, body.set_id, body.index, envelope.payload)
                copies = found.setdefault((envelope.round, envelope.phase, body.index), [])
                copies.append((body.set_id, body.transcript, share))
        return found

    async def shares(
        self, aggregator: StandIn, number: int = 1, phase: str = "signs", *, client: PartyId | None = None
    ) -> list[tuple[ShareChunk, bytes]]:
        """The same, opened with the aggregator's key."""
        seals, stage = self.peers.seals[aggregator.name], self.stage(number, phase)
        return [
            (body, open_share(seals, stage, envelope.sender, body.set_id, body.index, envelope.payload))
            for envelope, body in await self.sealed_shares(aggregator, number, phase, client=client)
        ]

    async def add(self, aggregator: StandIn, number: int, phase: str) -> tuple[tuple[Vector, ...], list[bytes]]:
        """An aggregator's sum over the real clients, chunk by chunk."""
        sets = [await self.shares(aggregator, number, phase, client=client) for client in self.real]
        vectors = tuple(claim.vector for claim in sets[0][0][0].vectors)
        rule = find_phase(self.manifest.strategy, phase)
        return vectors, [
            add_chunk(rule, chunk, vectors, [partial(bytes, share) for _, share in of_all])
            for chunk, *of_all in zip(plan_chunks(vectors, self.manifest.chunk_bytes), *sets, strict=True)
        ]

    async def release(
        self,
        aggregator: StandIn,
        number: int = 1,
        members: Sequence[PartyId] | None = None,
        *,
        phase: str = "signs",
        to: Sequence[PartyId] | None = None,
        shift: Shift = lambda _, packed: packed,
        transcript: str = "",
    ) -> None:
        """Send an aggregator's sum, or what it makes of it, to real clients, by the first one's transcript."""
        vectors, chunks = await self.add(aggregator, number, phase)
        ((_, first), *_) = await self.sealed_shares(aggregator, number, phase)
        said = {
            "members": tuple(members or self.manifest.clients[: self.manifest.min_clients]),
            "vectors": declare(vectors),
            "transcript": transcript or first.transcript,
        }
        for client in to or self.real:
            release = Release(self, aggregator, client, number, phase)
            for index, packed in enumerate(chunks):
                await release.send(index, shift(index, packed), said)

    async def void(self, number: int = 1, phase: str = "signs") -> None:
        notice = VoidNotice()
        for aggregator in self.aggregators:
            for client in self.real:
                await self.say(aggregator, notice, to=client, round_number=number, phase=phase)

    # Snapshots ------------------------------------------------------------------------------------------

    async def vouch(
        self, number: int, model: Theta, *, released: int | None = None, by: Sequence[PartyId] | None = None
    ) -> None:
        """Clients made by hand say that this is the model after a round."""
        group = self.peers.agree()
        group.advance_to(number)
        voucher = Voucher(
            round=number,
            released=number if released is None else released,
            model_hmac=model_hmac(group, digest(model), NO_HISTORY),
        )
        for client in self.by_hand if by is None else by:
            await self.say(self.parties[client], ModelVouched(vouchers=(voucher,)), round_number=0, phase="")

    async def send_snapshot(
        self,
        client: PartyId,
        number: int,
        model: Theta,
        *,
        salt: Callable[[int], bytes] = lambda _: b"",
        chunks: slice = slice(None),
        sealed_for: int | None = None,
    ) -> None:
        """A client made by hand sends a model, each chunk after its salt, sealed for this or another round."""
        parts = list(enumerate(snapshots.cut(self.manifest, model, NO_HISTORY, number=number)))
        seals, place = self.peers.seals[client], number if sealed_for is None else sealed_for
        for index, part in parts[chunks]:
            sealed = seals.seal_snapshot(place, self.real[0], index, salt(index) + part)
            body = SnapshotChunk(index=index)
            await self.say(self.parties[client], body, round_number=number, phase="", payload=sealed)

    async def ask_for_model(self, client: PartyId, *, after: int, giver: PartyId | None = None) -> None:
        """A client made by hand asks for the first real client's model, or for another's."""
        body = SnapshotRequested(after=after, giver=giver or self.real[0])
        await self.say(self.parties[client], body, round_number=0, phase="")

    async def hand_over(self, client: PartyId, number: int, model: Theta) -> None:
        """All clients made by hand vouch for a model, and one of them sends it."""
        await self.vouch(number, model)
        await self.send_snapshot(client, number, model)

    async def play_good_round(self, number: int, *, members: Sequence[PartyId] | None = None) -> None:
        """A round that all of its phases are released of."""
        await self.open_round(number)
        for phase in find_strategy(self.manifest.strategy).phases:
            for aggregator in self.aggregators:
                await self.release(aggregator, number, members, phase=phase.name)
        await self.hear(self.coordinator, RoundApplied, number=number)

    async def play_good_rounds(self, *numbers: int) -> None:
        for number in numbers:
            await self.play_good_round(number)

    async def play_void_round(self, number: int) -> None:
        """A round whose last phase is void."""
        await self.open_round(number)
        *first, last = find_strategy(self.manifest.strategy).phases
        for phase in first:
            for aggregator in self.aggregators:
                await self.release(aggregator, number, phase=phase.name)
        for aggregator in self.aggregators:
            await self.sealed_shares(aggregator, number, last.name)
        await self.void(number, last.name)
        await self.hear(self.coordinator, RoundDropped, number=number)


@dataclass
class Release:
    """One release of an aggregator to one client, under a key that is wrapped for this client or another."""

    scene: Scene
    aggregator: StandIn
    to: PartyId
    number: int = 1
    phase: str = "signs"
    wrapped_for: PartyId | None = None

    def __post_init__(self) -> None:
        self._key = ChunkKey.fresh()
        self._seals = self.scene.peers.seals[self.aggregator.name]
        self._stage = self.scene.stage(self.number, self.phase)
        self._wrapped_key = self._seals.wrap_sum_key(self._stage, self.wrapped_for or self.to, self._key).hex()

    async def send(
        self,
        index: int,
        packed: bytes,
        said: Mapping[str, object],
        *,
        spoil: Callable[[bytes], bytes] = lambda payload: payload,
        signer: PartyId | None = None,
    ) -> None:
        """Sign and encrypt one chunk of the sum; `said` are the fields of its message."""
        place: dict[str, Any] = {"round_number": self.number, "phase": self.phase}
        manifest, server = self.scene.manifest, self.aggregator
        fields = {"signature": SIGNATURE, "wrapped_key": self._wrapped_key, "index": index, **said}
        unsigned = SumChunk.model_validate(fields)
        body = sign_sum(identity_of(manifest, server.name), manifest.run_id, unsigned, **place)
        payload = spoil(self._seals.encrypt_sum(self._stage, self._key, index, packed))
        await self.scene.say(server, body, to=self.to, payload=payload, signer=signer, **place)


def _new_threads() -> ThreadPoolExecutor:
    """All threads that are begun from now on."""
    threads = ThreadPoolExecutor()
    asyncio.get_running_loop().set_default_executor(threads)
    return threads


def draw_up(task: Task, clients: int = 3, /, **changes: object) -> Manifest:
    """A manifest for a task, of several small chunks a vector."""
    fields: dict[str, object] = {
        "parameters": task.count_parameters(),
        "task": task.name,
        "initial_model_sha256": digest(task.initial_model(7)),
        "rounds": 9,
        "chunk_bytes": 256,
        "min_clients": 2,
    }
    return make_manifest(clients=clients, servers=2, **{**fields, **changes})


@asynccontextmanager
async def scene_of(
    folder: Path,
    manifest: Manifest,
    *tasks: Task,
    joined: bool = False,
    real: int = 1,
    policy: Policy | None = None,
    demo_seed: int | None = DEMO_SEED,
    sleep: Sleep = asyncio.sleep,
    slots: asyncio.Semaphore | None = None,
) -> AsyncIterator[Scene]:
    """The first clients of a manifest are real. Unless they have joined, nothing is proposed yet."""
    broker, parties, known = MemoryBroker(), parties_of(manifest), {task.name: task for task in tasks}

    def load(name: str) -> Task:
        if name not in known:
            raise ConfigurationError(f"there is no task {name!r}")
        return known[name]

    def make(client: PartyId, folder: Path, transport: Transport) -> Trainer:
        return Trainer(
            identity=parties.identities[client],
            roster=parties.roster,
            read_policy=lambda: policy or Policy.for_demo(parties.roster.digest),
            transport=transport,
            folder=folder,
            load_task=load,
            demo_seed=demo_seed,
            sleep=sleep,
            training_slots=slots,
            observer=lambda moment: scene.observer(moment),  # noqa: PLW0108  # Tests set it later.
        )

    async with AsyncExitStack() as stack:
        stand_ins = {
            party.name: await stack.enter_async_context(stand_in(broker, party.name, party.role))
            for party in parties.roster.parties
            if party.name not in manifest.clients[:real]
        }
        scene = Scene(broker, manifest, stand_ins, make)
        for client in manifest.clients[:real]:
            stack.push_async_callback(scene.stop, client)
            await scene.start(client, folder / client)
        if joined:
            await scene.join()
        yield scene
