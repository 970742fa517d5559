import asyncio

import pytest

from hubbub.errors import PeerError
from hubbub.ids import Role
from hubbub.machine.effects import Key
from hubbub.messages.codec import decode, encode
from hubbub.messages.shares import ShareChunk
from hubbub.runtime.publisher import Parcel, Post, authenticate, sign
from hubbub.transport.base import ACK, Delivery, Verdict
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import inbox, topology_for
from support.aio import aio
from support.builders import SET_ID, TRANSCRIPT, make_claims, make_envelope, make_manifest
from support.parties import identity_of, roster_of

MANIFEST = make_manifest()
CLIENT, AGGREGATOR = MANIFEST.clients[0], MANIFEST.aggregators[0]
KEY = Key("round", MANIFEST.run_id, 4, "signs")
CHUNK = ShareChunk(set_id=SET_ID, vectors=make_claims(MANIFEST), transcript=TRANSCRIPT, index=3)
ROSTER = roster_of(MANIFEST)


@aio
async def test_a_message_arrives_in_a_signed_envelope_that_says_everything() -> None:
    arrived: asyncio.Queue[bytes] = asyncio.Queue()

    async def receive(delivery: Delivery) -> Verdict:
        arrived.put_nowait(delivery.body)
        return ACK

    broker = MemoryBroker()
    async with (
        MemoryTransport(broker, topology_for(AGGREGATOR, Role.AGGREGATOR)) as theirs,
        MemoryTransport(broker, topology_for(CLIENT, Role.CLIENT)) as ours,
    ):
        await theirs.subscribe(inbox(AGGREGATOR), receive)
        post = Post(ours, identity_of(MANIFEST, CLIENT))
        await post.send(KEY, to=AGGREGATOR, role=Role.AGGREGATOR, body=CHUNK, payload=b"share")
        await post.send(KEY, to=AGGREGATOR, role=Role.AGGREGATOR, body=CHUNK, phase="union")
        await post.send(KEY, to=AGGREGATOR, role=Role.AGGREGATOR, body=CHUNK, payload=Parcel.of(b"digested"))
        frames = [await arrived.get() for _ in range(3)]
        first, second, third = (decode(frame) for frame in frames)

    for envelope, frame in zip((first, second, third), frames, strict=True):
        authenticate(ROSTER, envelope, frame)
    assert (first.run, first.round, first.phase) == (MANIFEST.run_id, 4, "signs")
    assert (first.sender, first.recipient) == (CLIENT, AGGREGATOR)
    assert (first.body, first.payload) == (CHUNK, b"share")
    assert (second.phase, second.payload) == ("union", b"")
    assert third.payload == b"digested"
    assert first.message_id != second.message_id


def test_no_single_bit_of_a_frame_can_be_flipped() -> None:
    """Every bit of one frame; the runner is tried with bits of all kinds of frames."""
    envelope = make_envelope(CHUNK, sender=CLIENT, recipient=AGGREGATOR, manifest=MANIFEST, payload=b"share")
    frame = encode(sign(identity_of(MANIFEST, CLIENT), envelope))
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PeerError):
            authenticate(ROSTER, decode(bytes(damaged)), bytes(damaged))
