"""A real coordinator among parties made by hand, which say whatever a test wants said."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx

from hubbub.ids import PartyId, Role
from hubbub.messages.envelope import Message
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import ClosePhase, PhaseReleased, RoundApplied, RoundOpened
from hubbub.messages.runs import RunEnded, RunJoined, RunKeys, RunProposed, RunReady
from hubbub.messages.shares import SetReceived, SignedReceipt
from hubbub.runtime.runner import Transition
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.subscription import RetryPause
from hubbub.transport.topology import dead_letter_queue, topology_for
from hubbub.trust.audit import read_log
from hubbub_coordinator.api.access import Tokens
from hubbub_coordinator.api.app import create_app
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.service import Coordinator
from support.builders import MODEL_HMAC, make_claims, make_manifest, make_receipt, make_run_key
from support.deaths import Fate, MortalTransport, make_mortal
from support.parties import identity_of, roster_of, sign_receipts
from support.stand_in import StandIn, stand_in

MANIFEST = make_manifest(min_clients=2, rounds=1)
ME = MANIFEST.coordinator
CLIENT, AGGREGATOR = MANIFEST.clients[0], MANIFEST.aggregators[0]
ANOTHER = make_manifest(seed=8)
PAUSE = RetryPause(first_s=0.01, longest_s=0.05)


class StillClock:
    """Stands still until a test moves it, so that what happens again happens at the same time."""

    def __init__(self) -> None:
        self.at_s = 1_000.0

    def now_s(self) -> float:
        return self.at_s

    def ahead_s(self) -> float:
        return 0.0

    def go_on_from(self, at_s: float) -> None:
        self.at_s = max(self.at_s, at_s)


class Scene:
    """The coordinator under test and everybody else."""

    def __init__(self, broker: MemoryBroker, parties: dict[PartyId, StandIn], folder: Path) -> None:
        self.broker = broker
        self.parties = parties
        self.folder = folder
        self.clock = StillClock()
        self.over = asyncio.Event()
        self.coordinator: Coordinator
        self._taken: list[object] = []
        self._moved = asyncio.Event()

    @asynccontextmanager
    async def start(
        self, fate: Fate | None = None, *, new_state: bool = False, as_process: bool = False
    ) -> AsyncIterator[Coordinator]:
        """A process on the folder, and its end; it ends as one does that dies.

        It takes messages at once, unless it is to begin `as_process` does.
        """
        fate = fate or Fate()
        topology = topology_for(ME, Role.COORDINATOR)
        inner = MemoryTransport(self.broker, topology, publish_timeout_s=0.05, retry_pause=PAUSE)
        async with MortalTransport(inner, fate) as transport:
            self.coordinator = Coordinator(
                identity=identity_of(MANIFEST, ME),
                roster=roster_of(MANIFEST),
                transport=transport,
                folder=self.folder,
                new_state=new_state,
                clock=self.clock,
                observer=self._observe,
            )
            make_mortal(self.coordinator, fate)
            try:
                await (self.coordinator.start() if as_process else self.coordinator.runner.start())
                yield self.coordinator
            finally:
                await self.coordinator.runner.stop()
                self.coordinator.close()

    def _observe(self, moment: Transition) -> None:
        self._taken.append(moment.event)
        self._moved.set()
        if moment.after in runs.OUTCOMES:
            self.over.set()

    async def has_taken(self, event: type, count: int) -> None:
        """Wait until its machines have taken that many events of a kind."""
        while sum(isinstance(each, event) for each in self._taken) < count:
            self._moved.clear()
            await self._moved.wait()

    async def bury(self, count: int = 1) -> list[str]:
        """Wait until that many messages were put aside, and say why they were."""
        while len(self.dead()) < count:
            await self.broker.change()
        return self.dead()

    def dead(self) -> list[str]:
        return [letter.reason for letter in self.broker.dead_letters(dead_letter_queue(ME))]

    def state(self) -> runs.State:
        return self.coordinator.find_run(MANIFEST.run_id)[0]

    def recorded(self) -> list[tuple[str, dict[str, object]]]:
        """The audit log, but for the manifest."""
        entries = read_log(self.folder / "audit.jsonl").entries
        return [
            (entry.kind, {name: entry.fields[name] for name in entry.fields if name not in UNTOLD})
            for entry in entries
        ]

    async def say(
        self,
        who: PartyId,
        body: Message,
        *,
        round_number: int = 0,
        sender: PartyId | None = None,
        signer: PartyId | None = None,
    ) -> None:
        await self.parties[who].say(
            body,
            to=ME,
            role=Role.COORDINATOR,
            run=MANIFEST.run_id,
            round_number=round_number,
            phase="signs" if round_number else "",
            sender=sender,
            signer=signer,
        )

    async def join(self) -> None:
        """Everybody joins, and is sent everybody's keys."""
        for name, party in self.parties.items():
            await party.hear(RunProposed)
            await self.say(name, RunJoined(run_key=make_run_key(MANIFEST, name)))
        for party in self.parties.values():
            await party.hear(RunKeys)

    async def get_ready(self) -> None:
        """Everybody joins and is ready, and clients are told to train."""
        await self.join()
        for name in self.parties:
            await self.say(name, RunReady())
        for client in MANIFEST.clients:
            await self.parties[client].hear(RoundOpened)

    async def open_round(self) -> None:
        await self.coordinator.submit(MANIFEST)
        await self.get_ready()

    async def deliver(self, clients: tuple[PartyId, ...] = MANIFEST.clients) -> None:
        """Aggregators have complete share sets of these clients."""
        for client in clients:
            for server in MANIFEST.aggregators:
                await self.say(server, SetReceived(receipt=signed_by(server, client)), round_number=1)

    async def release(self) -> None:
        """Aggregators obey the order to release, however often they hear it."""
        for server in MANIFEST.aggregators:
            order, *others = [body for _, body in await self.parties[server].hear(ClosePhase)]
            assert all(other == order for other in others)
            body = PhaseReleased(members=order.members, vectors=make_claims(MANIFEST), traffic=())
            await self.say(server, body, round_number=1)

    async def play_round(self) -> None:
        """The open round goes on to its end, and so does the run."""
        await self.deliver()
        await self.release()
        for client in MANIFEST.clients:
            await self.say(client, REPORT, round_number=1)
        for party in self.parties.values():
            await party.hear(RunEnded)

    async def finish(self) -> None:
        await self.play_round()
        await self.over.wait()


REPORT = RoundApplied(model_hmac=MODEL_HMAC, traffic=())
UNTOLD = {"manifest", "roster_sha256", "run", "format"}


def signed_by(
    server: PartyId,
    client: PartyId = CLIENT,
    *,
    manifest: Manifest = MANIFEST,
    round_number: int = 1,
    phase: str = "signs",
) -> SignedReceipt:
    """An aggregator's receipt for a client's set, of this phase unless told otherwise."""
    receipt = make_receipt(MANIFEST, aggregator=server, client=client)
    (signed,) = sign_receipts(manifest, [receipt], round_number=round_number, phase=phase)
    return signed


TOKENS = Tokens(read="r" * 32, change="c" * 32)


@asynccontextmanager
async def client_of(coordinator: Coordinator, token: str = TOKENS.change) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody who asks the coordinator's interface."""
    transport = httpx.ASGITransport(create_app(coordinator, TOKENS))
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    async with httpx.AsyncClient(transport=transport, base_url="http://coordinator", headers=headers) as client:
        yield client


@asynccontextmanager
async def scene_of(folder: Path) -> AsyncIterator[Scene]:
    """Everybody but the coordinator."""
    broker = MemoryBroker()
    async with AsyncExitStack() as stack:
        roles = {
            **dict.fromkeys(MANIFEST.aggregators, Role.AGGREGATOR),
            **dict.fromkeys(MANIFEST.clients, Role.CLIENT),
        }
        parties = {
            name: await stack.enter_async_context(stand_in(broker, name, role)) for name, role in roles.items()
        }
        yield Scene(broker, parties, folder)


@asynccontextmanager
async def running_scene(folder: Path) -> AsyncIterator[Scene]:
    async with scene_of(folder) as scene, scene.start():
        yield scene
