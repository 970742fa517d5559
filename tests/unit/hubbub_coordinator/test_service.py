"""A real coordinator among parties made by hand: whom it believes, and what an outage leaves behind."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from hubbub.errors import RejectReason, TransportError
from hubbub.ids import PartyId, Role
from hubbub.messages.base import Message
from hubbub.messages.rounds import ClosePhase, PhaseReleased, RoundApplied, RoundOpened
from hubbub.messages.runs import PartyFailed, RunEnded, RunJoined, RunProposed, RunRefused
from hubbub.messages.shares import SetReceived
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import dead_letter_queue, topology_for
from hubbub_coordinator.api.app import create_app
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.service import Coordinator, UnknownRun
from support.aio import aio
from support.builders import make_claims, make_manifest, make_receipt
from support.stand_in import StandIn, stand_in

MANIFEST = make_manifest(clients=3, servers=2, rounds=1)
ME = MANIFEST.coordinator
CLIENT, AGGREGATOR = MANIFEST.clients[0], MANIFEST.aggregators[0]


class Scene:
    """The coordinator under test and everybody else."""

    def __init__(self, broker: MemoryBroker, coordinator: Coordinator, parties: dict[PartyId, StandIn]) -> None:
        self.broker = broker
        self.coordinator = coordinator
        self.parties = parties

    def dead(self) -> list[str]:
        return [letter.reason for letter in self.broker.dead_letters(dead_letter_queue(ME))]

    def state(self) -> runs.State:
        return self.coordinator.find_run(MANIFEST.run_id)[0]

    async def say(
        self, who: PartyId, body: Message, *, round_number: int = 0, sender: PartyId | None = None
    ) -> None:
        await self.parties[who].say(
            body,
            to=ME,
            role=Role.COORDINATOR,
            run=MANIFEST.run_id,
            round_number=round_number,
            phase="signs" if round_number else "",
            sender=sender,
        )

    async def open_round(self) -> None:
        await self.coordinator.submit(MANIFEST)
        for name, party in self.parties.items():
            await party.hear(RunProposed)
            await self.say(name, RunJoined())
        await self.parties[CLIENT].hear(RoundOpened)

    async def finish(self) -> None:
        for client in MANIFEST.clients:
            for server in MANIFEST.aggregators:
                body = SetReceived(receipt=make_receipt(MANIFEST, aggregator=server, client=client))
                await self.say(server, body, round_number=1)
        for server in MANIFEST.aggregators:
            ((_, order),) = await self.parties[server].hear(ClosePhase)
            await self.say(
                server,
                PhaseReleased(members=order.members, vectors=make_claims(MANIFEST), traffic=()),
                round_number=1,
            )
        for client in MANIFEST.clients:
            await self.say(client, REPORT, round_number=1)
        for party in self.parties.values():
            await party.hear(RunEnded)


REPORT = RoundApplied(correct=1, total=2, loss=0.1, training_s=0.0, evaluation_s=0.0, traffic=())


@asynccontextmanager
async def scene_of() -> AsyncIterator[Scene]:
    broker = MemoryBroker()
    async with AsyncExitStack() as stack:
        roles = {
            **dict.fromkeys(MANIFEST.aggregators, Role.AGGREGATOR),
            **dict.fromkeys(MANIFEST.clients, Role.CLIENT),
        }
        parties = {
            name: await stack.enter_async_context(stand_in(broker, name, role)) for name, role in roles.items()
        }
        transport = MemoryTransport(broker, topology_for(ME, Role.COORDINATOR), publish_timeout_s=0.05)
        await stack.enter_async_context(transport)
        folder = Path(stack.enter_context(TemporaryDirectory()))
        coordinator = Coordinator(name=ME, transport=transport, folder=folder)
        stack.push_async_callback(coordinator.runner.stop)
        await coordinator.runner.start()
        yield Scene(broker, coordinator, parties)


@aio
async def test_a_run_from_the_proposal_to_the_last_word() -> None:
    async with scene_of() as scene:
        await scene.open_round()
        await scene.finish()
        assert scene.state() is runs.State.COMPLETED
        assert scene.dead() == []


@aio
async def test_a_refusal_ends_the_run_with_the_reason() -> None:
    async with scene_of() as scene:
        await scene.coordinator.submit(MANIFEST)
        await scene.say(CLIENT, RunRefused(reason="no such task"))
        for party in scene.parties.values():
            ((_, ended),) = await party.hear(RunEnded)
            assert (ended.outcome, ended.reason) == ("failed", "client-1: refused to join: no such task")


Misdeed = Callable[[Scene], Awaitable[None]]


def misdeed(who: PartyId, body: Message, *, round_number: int = 1, sender: PartyId | None = None) -> Misdeed:
    return lambda scene: scene.say(who, body, round_number=round_number, sender=sender)


RECEIPT = make_receipt(MANIFEST, aggregator=MANIFEST.aggregators[1], client=CLIENT)


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        pytest.param(misdeed(AGGREGATOR, SetReceived(receipt=RECEIPT)), "wrong-sender", id="anothers-receipt"),
        pytest.param(misdeed(CLIENT, SetReceived(receipt=RECEIPT)), "wrong-sender", id="receipt-of-a-client"),
        pytest.param(misdeed(AGGREGATOR, REPORT), "wrong-sender", id="application-by-an-aggregator"),
        pytest.param(misdeed(CLIENT, RunJoined(), sender=PartyId("mallory")), "wrong-sender", id="stranger"),
        pytest.param(misdeed(CLIENT, REPORT), "unexpected", id="application-before-any-sum"),
        pytest.param(misdeed(CLIENT, REPORT, round_number=7), "too-early", id="future-round"),
        pytest.param(misdeed(AGGREGATOR, RoundOpened()), "wrong-recipient", id="our-own-kind-of-message"),
    ],
)
@aio
async def test_a_bad_message_is_put_aside_and_the_run_completes(do: Misdeed, reason: str) -> None:
    async with scene_of() as scene:
        await scene.open_round()
        await do(scene)
        await scene.finish()
        assert scene.dead() == [reason]
        assert scene.coordinator.counters.rejections(RejectReason(reason)) == 1
        assert scene.state() is runs.State.COMPLETED


@aio
async def test_a_message_of_an_unknown_run_is_put_aside() -> None:
    async with scene_of() as scene:
        await scene.say(CLIENT, RunJoined())
        while not scene.dead():  # It is taken before the run is submitted.
            await scene.broker.change()
        await scene.open_round()
        await scene.finish()
        assert scene.dead() == ["unknown-run"]


@aio
async def test_what_comes_after_the_end_changes_nothing() -> None:
    async with scene_of() as scene:
        await scene.open_round()
        await scene.finish()
        before = scene.coordinator.find_run(MANIFEST.run_id), scene.coordinator.find_rounds(MANIFEST.run_id)
        await scene.say(CLIENT, PartyFailed(reason="too late to matter"))
        await scene.say(CLIENT, REPORT, round_number=1)
        await scene.coordinator.submit(make_manifest(seed=8))
        await scene.parties[CLIENT].hear(RunProposed, 2)
        assert before == (
            scene.coordinator.find_run(MANIFEST.run_id),
            scene.coordinator.find_rounds(MANIFEST.run_id),
        )
        assert scene.dead() == []


@aio
async def test_a_run_that_could_not_be_proposed_has_not_begun() -> None:
    async with scene_of() as scene:
        scene.broker.stop()
        with pytest.raises(TransportError):
            await scene.coordinator.submit(MANIFEST)
        with pytest.raises(UnknownRun):
            scene.coordinator.find_run(MANIFEST.run_id)
        assert scene.coordinator.list_runs() == []
        scene.broker.start()
        await scene.open_round()
        await scene.finish()


@aio
async def test_an_outage_is_an_answer_of_the_interface_too() -> None:
    async with scene_of() as scene:
        scene.broker.stop()
        transport = httpx.ASGITransport(create_app(scene.coordinator))
        async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as client:
            answer = await client.post("/api/v1/runs", content=MANIFEST.model_dump_json())
        scene.broker.start()
        assert answer.status_code == 503
        assert "the broker did not take a message" in answer.json()["detail"]
