"""`RabbitMqTransport`: one party's two connections to RabbitMQ.

One connection is to send over and one to receive over: a broker that is short of memory or disk stops listening to
whoever publishes, and would not hear the acknowledgements either. A `Link` replaces a connection that is lost, at
the next of the broker's addresses, and each `Subscription` its channel.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Self, TypeVar

from hubbub.errors import BrokerRefused, BrokerUnreachable, ConfigurationError, TransportError
from hubbub.transport.access import Access, Login, Tls
from hubbub.transport.base import Address, Condition, DeadLetter, Handler, Transport
from hubbub.transport.rabbitmq.admin import check_topology
from hubbub.transport.rabbitmq.connection import ANSWER_S, Connector, Link, asking, give_up, open_channel
from hubbub.transport.rabbitmq.consumer import Subscription
from hubbub.transport.rabbitmq.dead_letters import QUEUE_HEADER, REASON_HEADER, DeadLetters
from hubbub.transport.rabbitmq.publisher import Publisher
from hubbub.transport.subscription import RetryPause, Worker, check_outside, describe_occupied
from hubbub.transport.topology import Topology

log = logging.getLogger(__name__)

T = TypeVar("T")

# A broker looks once in a heartbeat, and twice in vain before it gives a connection up.
_HEARTBEATS_TO_NOTICE = 3


class RabbitMqTransport(Transport):
    """One party's connection to RabbitMQ."""

    def __init__(
        self,
        url: str,
        topology: Topology,
        *,
        connection_name: str = "hubbub",
        login: Login | None = None,
        tls: Tls | None = None,
        proxy: str | None = None,
        heartbeat_s: int = 10,
        connect_timeout_s: float = 15.0,
        publish_timeout_s: float = 60.0,
        confirm_timeout_s: float = 20.0,
        reconnect_interval_s: float = 1.0,
        retry_pause: RetryPause | None = None,
    ) -> None:
        self._access = Access(url, login, tls, proxy)
        self._topology = topology
        self._connection_name = connection_name
        self._sender, self._receiver = (
            Connector(
                self._access,
                f"{connection_name}, {what}",
                heartbeat_s,
                connect_timeout_s,
                reconnect_interval_s,
                partial(check_topology, topology, self._access.user),
            )
            for what in ("sending", "receiving")
        )
        self._eviction_s = _HEARTBEATS_TO_NOTICE * heartbeat_s + ANSWER_S
        self._connect_timeout_s = connect_timeout_s
        self._reconnect_interval_s = reconnect_interval_s
        self._retry_pause = retry_pause or RetryPause()
        self._sending: Link | None = None
        self._receiving: Link | None = None
        self._publisher = Publisher(
            self._access,
            lambda: _opened(self._sending),
            publish_timeout_s=publish_timeout_s,
            confirm_timeout_s=confirm_timeout_s,
        )
        self._dead_letters = DeadLetters(self._publisher.publish)
        self._subscriptions: list[Subscription] = []
        self._waiting: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"RabbitMqTransport({self._connection_name!r} at {self._access.where})"

    async def __aenter__(self) -> Self:
        try:
            self._receiving = Link(await self._receiver.connect(), self._receiver)
            self._sending = Link(await self._sender.connect(), self._sender)
        except BaseException:
            await self._disconnect()
            raise
        return self

    async def publish(self, address: Address, body: bytes) -> None:
        """Send, and send again after every loss or refusal, until the broker confirms or time is up."""
        await self._publisher.publish(address, body, {})

    async def subscribe(self, queue: str, handler: Handler, *, prefetch: int = 8) -> None:
        """Open a channel with a prefetch of its own and consume, as soon as nobody else does.

        Somebody else may be our own past, killed a moment ago: it is given the time in which a broker notices.
        """
        if prefetch < 1:
            raise ConfigurationError(f"prefetch must be at least 1, not {prefetch}")
        spec = self._topology.queue(queue)
        link = _opened(self._receiving)
        subscription = Subscription(
            link,
            spec,
            prefetch,
            Worker(queue, handler),
            self._dead_letters.put,
            self._retry_pause,
            self._reconnect_interval_s,
        )
        # Listed before it begins, so that closing ends it whatever happens.
        self._subscriptions.append(subscription)
        patience = asyncio.get_running_loop().time() + self._eviction_s
        while not await self._begin(subscription):
            log.info("%s is consumed by somebody else; waiting for that to end", queue)
            if asyncio.get_running_loop().time() > patience:
                raise BrokerRefused(describe_occupied(queue))
            await asyncio.sleep(self._reconnect_interval_s)

    def pause(self, queue: str) -> None:
        """Give up the channel, at which the broker takes back what is unsettled."""
        for subscription in self._subscriptions_to(queue):
            subscription.pause()

    def resume(self, queue: str) -> None:
        """Consume again, over a new channel."""
        for subscription in self._subscriptions_to(queue):
            subscription.flowing.set()

    def _subscriptions_to(self, queue: str) -> list[Subscription]:
        return [subscription for subscription in self._subscriptions if subscription.spec.name == queue]

    async def close(self) -> None:
        """Stop consuming, let handlers finish and tell their verdicts, then disconnect."""
        check_outside(subscription.worker for subscription in self._subscriptions)
        subscriptions, self._subscriptions = self._subscriptions, []
        try:
            await asyncio.gather(*(subscription.end() for subscription in subscriptions))
            await self._dead_letters.finish()
        finally:
            await self._dead_letters.stop()
            self._publisher.stop()
            await self._disconnect()

    @property
    def condition(self) -> Condition:
        """The state of links and subscriptions, as they know it."""
        return Condition(
            connected=all(link is not None and link.is_up for link in (self._sending, self._receiving)),
            blocked=self._sending is not None and self._sending.was_blocked,
            consuming=frozenset(each.spec.name for each in self._subscriptions if each.is_consuming),
            reconnects=self._sender.reconnects + self._receiver.reconnects,
            retries=self._publisher.retries,
            waiting=dict(self._waiting),
        )

    async def count_waiting(self, queue: str) -> int:
        """Look at the queue, which takes no rights, over a channel of its own: a no would close it."""
        name, link = self._topology.queue(queue).name, _opened(self._receiving)
        if not link.is_up:
            raise BrokerUnreachable(f"{link.where} is away")
        async with asking(self._access, f"look at queue {name!r}", ANSWER_S):
            channel = await open_channel(await link.connection())
            try:
                found = await channel.get_queue(name)
            finally:
                await give_up(channel.close)
        self._waiting[name] = found.declaration_result.message_count or 0
        return self._waiting[name]

    async def dead_letters(self, queue: str, limit: int = 100) -> list[DeadLetter]:
        """Look at the oldest dead letters without removing any."""
        return await self.summarise_dead_letters(queue, lambda letter: letter, limit)

    async def summarise_dead_letters(self, queue: str, read: Callable[[DeadLetter], T], limit: int) -> list[T]:
        """Look at the oldest dead letters and keep what `read` makes of each: the bodies may be many and large.

        Each answer of the broker may take as long as to connect.
        """
        found: list[T] = []
        asks = partial(asking, self._access, f"read queue {queue!r}", self._connect_timeout_s)
        async with asks():
            channel = await open_channel(await _opened(self._receiving).connection())
            source = await channel.get_queue(queue)
        try:
            while len(found) < limit:
                async with asks():
                    message = await source.get(fail=False)
                if message is None:
                    break
                name, reason = (str(message.headers.get(each, "")) for each in (QUEUE_HEADER, REASON_HEADER))
                found.append(read(DeadLetter(message.body, name, reason)))
        finally:
            # This returns what was fetched and not acknowledged.
            await give_up(channel.close)
        return found

    async def _begin(self, subscription: Subscription) -> bool:
        async with asking(self._access, f"read queue {subscription.spec.name!r}", self._connect_timeout_s):
            return await subscription.begin()

    async def _disconnect(self) -> None:
        links = [link for link in (self._sending, self._receiving) if link is not None]
        self._sending = self._receiving = None
        await asyncio.gather(*(link.close() for link in links))


def _opened(link: Link | None) -> Link:
    if link is None:
        raise TransportError("this transport is not open: enter it with `async with` before use")
    return link
