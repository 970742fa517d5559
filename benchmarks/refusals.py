"""Rate at which an aggregator refuses bad messages: the cost of a flood to messages that wait behind it."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from benchmarks.steps import CLIENTS, SERVERS
from hubbub.errors import RejectReason
from hubbub.ids import PartyId, Role, RunId
from hubbub.messages.codec import encode
from hubbub.messages.envelope import Envelope
from hubbub.messages.rounds import VoidPhase
from hubbub.transport.base import Transport
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.rabbitmq import declare_topology
from hubbub.transport.topology import inbox, route, topology_for
from hubbub_aggregator.policy import AggregatorPolicy
from hubbub_aggregator.service import Aggregator
from hubbub_local.federation import Connect, make_parties

MESSAGES = 4_000
"""Nearly as many as an aggregator's inbox holds."""
PAYLOAD_BYTES = 1_000
PREFETCH = 8
"""Prefetch of an aggregator's inbox, whose messages may be chunks of many MiB."""
TARGET, SENDER = PartyId("aggregator-1"), PartyId("client-1")


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalRate:
    """Rate for one kind of bad message over one transport."""

    transport: str
    what: str
    messages: int
    seconds: float

    @property
    def per_s(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds


async def time_refusals(transports: Mapping[str, Connect | None], count: int = MESSAGES) -> list[RefusalRate]:
    """Time an aggregator on an inbox full of bad messages; None is the memory transport."""
    forged = Envelope(
        run=RunId("0" * 64),
        round=1,
        phase="",
        sender=SENDER,
        recipient=TARGET,
        body=VoidPhase(),
        payload=bytes(PAYLOAD_BYTES),
        signature=secrets.token_bytes(64),
    )
    directory = make_parties(clients=CLIENTS, servers=SERVERS).roster.directory()
    bad = {
        "no frame": (secrets.token_bytes(PAYLOAD_BYTES), RejectReason.MALFORMED),
        "false signature": (encode(forged, directory), RejectReason.BAD_SIGNATURE),
    }
    return [
        RefusalRate(transport=name, what=what, messages=count, seconds=await _time(connect, body, reason, count))
        for name, connect in transports.items()
        for what, (body, reason) in bad.items()
    ]


async def time_bare_consumer(url: str, count: int = MESSAGES) -> RefusalRate:
    """Time a bare aio-pika consumer that acknowledges as many messages of that size from such a queue."""
    topology, address = topology_for(TARGET, Role.AGGREGATOR), route(Role.CLIENT, Role.AGGREGATOR, TARGET)
    await declare_topology(url, topology)
    message = aio_pika.Message(bytes(PAYLOAD_BYTES), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    left, done = count, asyncio.Event()

    async def acknowledge(message: AbstractIncomingMessage) -> None:
        nonlocal left
        await message.ack()
        left -= 1
        if not left:
            done.set()

    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange(address.exchange, ensure=False)
        for _ in range(count // 100):
            await asyncio.gather(*(exchange.publish(message, address.routing_key) for _ in range(100)))
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.get_queue(inbox(TARGET))
        began_s = time.monotonic()
        await queue.consume(acknowledge)
        await done.wait()
        seconds = time.monotonic() - began_s
    return RefusalRate(transport="aio-pika alone", what="only read", messages=count, seconds=seconds)


async def _time(connect: Connect | None, body: bytes, reason: RejectReason, count: int) -> float:
    parties, broker = make_parties(clients=CLIENTS, servers=SERVERS), MemoryBroker()

    def open_transport(name: PartyId, role: Role) -> Transport:
        topology = topology_for(name, role)
        return connect(name, topology) if connect else MemoryTransport(broker, topology)

    with tempfile.TemporaryDirectory(prefix="hubbub-bench-") as folder:
        async with open_transport(TARGET, Role.AGGREGATOR) as ours, open_transport(SENDER, Role.CLIENT) as theirs:
            for _ in range(count // 100):
                address = route(Role.CLIENT, Role.AGGREGATOR, TARGET)
                await asyncio.gather(*(theirs.publish(address, body) for _ in range(100)))
            aggregator = Aggregator(
                identity=parties.identities[TARGET],
                roster=parties.roster,
                read_policy=partial(AggregatorPolicy.for_demo, parties.roster.digest),
                transport=ours,
                folder=Path(folder),
            )
            try:
                began_s = time.monotonic()
                await aggregator.runner.start(prefetch=PREFETCH)
                while aggregator.counters.rejections(reason) < count:  # noqa: ASYNC110  (Nobody announces them.)
                    await asyncio.sleep(0.01)
                return time.monotonic() - began_s
            finally:
                await aggregator.runner.stop()
                # Before the files are closed, so that no handler uses them.
                await ours.close()
                aggregator.close()
