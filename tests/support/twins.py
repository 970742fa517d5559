"""The two transports behind one set of knobs, so that one suite can turn them on both."""

from __future__ import annotations

import asyncio
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from itertools import count
from typing import Self
from urllib.parse import urlsplit

from hubbub.ids import PartyId, Role
from hubbub.transport.base import ACK, Address, DeadLetter, Delivery, Transport, Verdict
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.rabbitmq import RabbitMqTransport, declare_topology, remove_topology
from hubbub.transport.subscription import RetryPause
from hubbub.transport.topology import Overflow, Topology, inbox, route, topology_for
from support.broker import declared
from support.fault_proxy import FaultProxy
from support.patience import HANG_S

PAUSE = RetryPause(first_s=0.05, longest_s=0.2)


def new_party(kind: str = "party") -> PartyId:
    """A name that no other test on the same broker uses."""
    return PartyId(f"{kind}-{uuid.uuid4().hex[:12]}")


def limited(
    party: PartyId,
    *,
    delivery_limit: int = 100,
    max_length: int | None = None,
    max_bytes: int | None = None,
    overflow: Overflow = Overflow.REJECT_PUBLISH,
) -> Topology:
    """An aggregator's topology with other limits on its inbox."""
    topology = topology_for(party, Role.AGGREGATOR)
    queues = tuple(
        replace(spec, delivery_limit=delivery_limit, max_length=max_length, max_bytes=max_bytes, overflow=overflow)
        if spec.name == inbox(party)
        else spec
        for spec in topology.queues
    )
    return replace(topology, queues=queues)


class Twin(ABC):
    """A kind of broker, with its faults. Enter it inside the test's event loop."""

    @abstractmethod
    async def declare(self, topology: Topology) -> None:
        """Do what an operator does before a party comes."""

    @abstractmethod
    def transport(
        self, topology: Topology, connect_timeout_s: float = 10.0, publish_timeout_s: float = 20.0
    ) -> Transport: ...

    @abstractmethod
    def user_of(self, topology: Topology) -> str:
        """The user that the transport to a topology is at the broker."""

    @abstractmethod
    async def stop(self) -> None:
        """Begin an outage: connections are cut, nobody answers."""

    @abstractmethod
    async def start(self) -> None:
        """End an outage."""

    @abstractmethod
    async def dead_letters(self, topology: Topology, queue: str) -> list[DeadLetter]: ...

    async def cut(self) -> None:
        """Cut every connection once."""
        await self.stop()
        await self.start()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return


class MemoryTwin(Twin):
    def __init__(self) -> None:
        self.broker = MemoryBroker()

    async def declare(self, topology: Topology) -> None:
        self.broker.declare(topology)

    def transport(
        self,
        topology: Topology,
        connect_timeout_s: float = 10.0,  # noqa: ARG002  (nothing is tried twice in memory)
        publish_timeout_s: float = 20.0,
    ) -> Transport:
        return MemoryTransport(self.broker, topology, publish_timeout_s=publish_timeout_s, retry_pause=PAUSE)

    def user_of(self, topology: Topology) -> str:
        return next(spec.dead_letters.routing_key for spec in topology.queues if spec.dead_letters)

    async def stop(self) -> None:
        self.broker.stop()

    async def start(self) -> None:
        self.broker.start()

    async def dead_letters(self, topology: Topology, queue: str) -> list[DeadLetter]:  # noqa: ARG002
        return self.broker.dead_letters(queue)


class RabbitTwin(Twin):
    """RabbitMQ behind a proxy, so that faults do not touch other tests on the same broker."""

    def __init__(self, url: str) -> None:
        self._url = url
        parts = urlsplit(url)
        self.proxy = FaultProxy(parts.hostname or "127.0.0.1", parts.port or 5672)
        self._declared: dict[Topology, None] = {}

    async def declare(self, topology: Topology) -> None:
        if topology not in self._declared:
            # Not through the proxy: the operator is not part of the outage.
            await declare_topology(self._url, topology)
            self._declared[topology] = None

    def transport(
        self, topology: Topology, connect_timeout_s: float = 10.0, publish_timeout_s: float = 20.0
    ) -> Transport:
        parts = urlsplit(self._url)
        credentials = parts.netloc.rpartition("@")[0]
        through_proxy = parts._replace(netloc=f"{credentials}@127.0.0.1:{self.proxy.port}").geturl()
        return RabbitMqTransport(
            through_proxy,
            topology,
            heartbeat_s=1,
            connect_timeout_s=connect_timeout_s,
            publish_timeout_s=publish_timeout_s,
            reconnect_interval_s=0.1,
            retry_pause=PAUSE,
        )

    def user_of(self, topology: Topology) -> str:  # noqa: ARG002  (All tests log in as the administrator.)
        return urlsplit(self._url).username or ""

    async def stop(self) -> None:
        await self.proxy.refuse()

    async def start(self) -> None:
        await self.proxy.resume()

    async def dead_letters(self, topology: Topology, queue: str) -> list[DeadLetter]:
        async with RabbitMqTransport(self._url, topology) as reader:
            return await reader.dead_letters(queue)

    async def __aenter__(self) -> Self:
        await self.proxy.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.proxy.__aexit__(None, None, None)
        # The broker may be somebody's: leave nothing behind but the exchanges that all share.
        for topology in self._declared:
            await remove_topology(self._url, topology)


class Recorder:
    """A handler that writes down what it is given and answers from a script, then with ACK."""

    def __init__(self, *script: Verdict | Exception) -> None:
        self.deliveries: list[Delivery] = []
        self._script = list(script)
        self._arrived = asyncio.Condition()

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.deliveries]

    async def __call__(self, delivery: Delivery) -> Verdict:
        async with self._arrived:
            self.deliveries.append(delivery)
            self._arrived.notify_all()
        answer = self._script.pop(0) if self._script else ACK
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def wait_for(self, count: int) -> None:
        """Return when so many deliveries have arrived."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.deliveries) >= count)

    async def wait_for_all(self, bodies: set[bytes]) -> None:
        """Return when each of these has arrived, in any order and however often."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: bodies <= set(self.bodies))


def address_of(party: PartyId) -> Address:
    """The address of an aggregator's inbox, for clients."""
    return route(Role.CLIENT, Role.AGGREGATOR, party)


def open_transport(url: str, topology: Topology, *, publish_timeout_s: float = HANG_S) -> RabbitMqTransport:
    """A transport that is quick to notice faults."""
    return RabbitMqTransport(
        url,
        topology,
        heartbeat_s=1,
        connect_timeout_s=10,
        publish_timeout_s=publish_timeout_s,
        confirm_timeout_s=2,
        reconnect_interval_s=0.1,
        retry_pause=PAUSE,
    )


@asynccontextmanager
async def behind_proxy(url: str, topology: Topology) -> AsyncIterator[tuple[FaultProxy, str]]:
    """Have a topology at the broker, and a way there that can be disturbed."""
    parts = urlsplit(url)
    async with declared(url, topology), FaultProxy(parts.hostname or "", parts.port or 5672) as proxy:
        yield proxy, parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{proxy.port}").geturl()


class SteadyPublisher:
    """Publishes several series of messages to a party until it is told to stop; knows which were confirmed."""

    def __init__(self, transport: Transport, party: PartyId, series: int) -> None:
        self.confirmed: set[bytes] = set()
        self._stopped = False
        self._tasks = [asyncio.create_task(self._publish(transport, party, name)) for name in range(series)]

    async def _publish(self, transport: Transport, party: PartyId, name: int) -> None:
        for number in count():
            if self._stopped:
                return
            body = b"%d:%d" % (name, number)
            await transport.publish(address_of(party), body)
            self.confirmed.add(body)

    async def stop(self) -> None:
        self._stopped = True
        await asyncio.gather(*self._tasks)


class _Listener(logging.Handler):
    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self.heard = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self.heard.set()


@contextmanager
def listening_for(text: str) -> Iterator[asyncio.Event]:
    """Give an event that is set when the RabbitMQ transport logs a line with this in it."""
    listener, logger = _Listener(text), logging.getLogger("hubbub.transport.rabbitmq")
    level = logger.level
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)
    try:
        yield listener.heard
    finally:
        logger.setLevel(level)
        logger.removeHandler(listener)
