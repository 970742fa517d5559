import asyncio

import pytest

from hubbub.errors import ConfigurationError, Unroutable
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Key
from hubbub.messages.codec import decode
from hubbub.messages.envelope import Envelope
from hubbub.messages.shares import ShareChunk
from hubbub.runtime.post import Identity, Post
from hubbub.transport.base import ACK, Delivery, Verdict
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import inbox, topology_for
from support.aio import aio
from support.builders import SET_ID, make_claims, make_manifest

MANIFEST = make_manifest()
CLIENT, AGGREGATOR = MANIFEST.clients[0], MANIFEST.aggregators[0]
KEY = Key("round", MANIFEST.run_id, 4, "signs")
CHUNK = ShareChunk(set_id=SET_ID, vectors=make_claims(MANIFEST), index=3)


@aio
async def test_a_message_arrives_in_an_envelope_that_says_everything() -> None:
    arrived: asyncio.Queue[Envelope] = asyncio.Queue()

    async def receive(delivery: Delivery) -> Verdict:
        arrived.put_nowait(decode(delivery.body))
        return ACK

    broker = MemoryBroker()
    async with (
        MemoryTransport(broker, topology_for(AGGREGATOR, Role.AGGREGATOR)) as theirs,
        MemoryTransport(broker, topology_for(CLIENT, Role.CLIENT)) as ours,
    ):
        await theirs.subscribe(inbox(AGGREGATOR), receive)
        post = Post(ours, Identity(CLIENT, Role.CLIENT))
        await post.send(KEY, to=AGGREGATOR, role=Role.AGGREGATOR, body=CHUNK, payload=b"share")
        await post.send(KEY, to=AGGREGATOR, role=Role.AGGREGATOR, body=CHUNK, phase="union")
        first, second = await arrived.get(), await arrived.get()

    assert (first.run, first.round, first.phase) == (MANIFEST.run_id, 4, "signs")
    assert (first.sender, first.recipient) == (CLIENT, AGGREGATOR)
    assert (first.body, first.payload) == (CHUNK, b"share")
    assert (second.phase, second.payload) == ("union", b"")
    assert first.message_id != second.message_id


@aio
async def test_a_party_that_has_no_inbox_is_reported() -> None:
    async with MemoryTransport(MemoryBroker(), topology_for(CLIENT, Role.CLIENT)) as ours:
        post = Post(ours, Identity(CLIENT, Role.CLIENT))

        with pytest.raises(Unroutable):
            await post.send(KEY, to=PartyId("aggregator-9"), role=Role.AGGREGATOR, body=CHUNK)


@aio
async def test_aggregators_have_no_way_to_send_to_each_other() -> None:
    async with MemoryTransport(MemoryBroker(), topology_for(AGGREGATOR, Role.AGGREGATOR)) as ours:
        post = Post(ours, Identity(AGGREGATOR, Role.AGGREGATOR))

        with pytest.raises(ConfigurationError, match="no messages go from aggregator to aggregator"):
            await post.send(KEY, to=MANIFEST.aggregators[1], role=Role.AGGREGATOR, body=CHUNK)
