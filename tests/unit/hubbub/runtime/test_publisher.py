import asyncio
import gc
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from hubbub.errors import LocalError, PeerError, TransportError
from hubbub.ids import Role
from hubbub.machine.effects import Key
from hubbub.messages import codec
from hubbub.messages.shares import ShareChunk
from hubbub.runtime.publisher import Parcel, Post, authenticate, overlapping
from hubbub.transport.base import ACK, Delivery, Verdict
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import inbox, topology_for
from support.builders import SET_ID, TRANSCRIPT, make_claims, make_envelope, make_manifest
from support.frames import decode, encode, sign
from support.parties import identity_of, roster_of

MANIFEST = make_manifest()
CLIENT, AGGREGATOR = MANIFEST.clients[0], MANIFEST.aggregators[0]
KEY = Key("round", MANIFEST.run_id, 4, "signs")
CHUNK = ShareChunk(set_id=SET_ID, vectors=make_claims(MANIFEST), transcript=TRANSCRIPT, index=3)
ROSTER = roster_of(MANIFEST)


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
        post = Post(ours, identity_of(MANIFEST, CLIENT), ROSTER.directory())
        send = partial(post.send, KEY, to=AGGREGATOR, role=Role.AGGREGATOR)
        await send(body=CHUNK, payload=b"share")
        await send(body=CHUNK, phase="union")
        await send(body=CHUNK, payload=Parcel.of(b"digested"))
        frames = [await arrived.get() for _ in range(3)]
        first, second, third = (decode(frame) for frame in frames)

    for envelope, frame in zip((first, second, third), frames, strict=True):
        authenticate(ROSTER, envelope, frame)
    assert (first.run, first.round, first.phase) == (MANIFEST.run_id, 4, "signs")
    assert (first.sender, first.recipient) == (CLIENT, AGGREGATOR)
    assert (first.body, first.payload) == (CHUNK, b"share")
    assert (second.phase, second.payload) == ("union", b"")
    assert third.payload == b"digested"


def test_no_single_bit_of_a_frame_can_be_flipped() -> None:
    """Every bit of one frame; the runner is tried with bits of all kinds of frames."""
    envelope = make_envelope(CHUNK, sender=CLIENT, recipient=AGGREGATOR, manifest=MANIFEST, payload=b"share")
    frame = encode(sign(identity_of(MANIFEST, CLIENT), envelope))
    directory = ROSTER.directory(MANIFEST.run_id)
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PeerError):
            authenticate(ROSTER, codec.decode(bytes(damaged), directory), bytes(damaged))


class Gate:
    """Work that waits to be let through, and counts how many wait."""

    def __init__(self) -> None:
        self.waiting = 0
        self.done = 0
        self._open = asyncio.Event()

    def open(self) -> None:
        self._open.set()

    async def pass_through(self) -> None:
        self.waiting += 1
        await self._open.wait()
        self.waiting -= 1
        self.done += 1


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def begin(*calls: Callable[[], Awaitable[None]], at_once: int = 2) -> None:
    async with overlapping(at_once) as overlap:
        for call in calls:
            await overlap.begin(call)


async def test_caller_goes_on_while_what_it_began_is_under_way_and_no_more_than_so_many_are() -> None:
    gate = Gate()

    beginning = asyncio.create_task(begin(*[gate.pass_through] * 3))
    await settle()
    assert (gate.waiting, gate.done) == (2, 0)
    gate.open()
    await beginning

    assert gate.done == 3


async def test_failure_in_the_background_is_raised_as_itself_and_ends_the_rest() -> None:
    gate, unseen = Gate(), list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, what: unseen.append(what))

    async def fail() -> None:
        raise TransportError("the broker is gone")

    async def stumble() -> None:
        raise ZeroDivisionError

    for calls in ((gate.pass_through, fail), (gate.pass_through, fail, gate.pass_through), (fail, fail)):
        with pytest.raises(TransportError, match="the broker is gone"):
            await begin(*calls)
    with pytest.raises(ZeroDivisionError):
        await begin(gate.pass_through, stumble)
    gc.collect()

    assert gate.done == 0
    assert unseen == [], "no task is left with a failure that nobody saw"


async def test_failure_or_cancellation_of_the_caller_is_raised_as_itself_and_ends_the_rest() -> None:
    gate = Gate()

    async def fail_after_beginning() -> None:
        async with overlapping(2) as overlap:
            await overlap.begin(gate.pass_through)
            await settle()
            raise LocalError("nothing left to send")

    with pytest.raises(LocalError, match="nothing left"):
        await fail_after_beginning()
    beginning = asyncio.create_task(begin(gate.pass_through, gate.pass_through, at_once=1))
    await settle()
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning

    assert gate.done == 0
