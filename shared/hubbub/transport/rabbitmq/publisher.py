"""Publishing to RabbitMQ: each message is sent until the broker confirms it or its time is up.

There is a channel for each exchange that is published to. The broker reports an error by closing the channel it
happened on, and only those who asked for the same thing should feel it.

Traps of aio-pika that are met here:

- A publish in flight when the connection is lost raises and is not sent again: `Publisher.publish` does it.
- A channel may go on saying no when a queue has long found its new leader: `Outlets` takes another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aio_pika
from aio_pika import exceptions as amqp
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, HeadersType
from aiormq.exceptions import ChannelAccessRefused

from hubbub.errors import TransportError, Unroutable
from hubbub.transport.access import Access
from hubbub.transport.base import Address, check_size
from hubbub.transport.rabbitmq.connection import (
    ANSWER_S,
    LOOK_S,
    LOST,
    Link,
    describe_refusal,
    give_up,
    loss_as_connection_error,
    open_channel,
)


@dataclass(slots=True, eq=False)
class _Outlet:
    """A channel to publish over, and the number of those who wait for an answer over it."""

    connection: AbstractConnection
    channel: AbstractChannel
    users: int = 0
    retired: bool = False


class Outlets:
    """A channel for each exchange that is published to, opened when first needed."""

    def __init__(self) -> None:
        self._open: dict[str, _Outlet] = {}
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def exchange(self, connection: AbstractConnection, name: str) -> AsyncIterator[AbstractExchange]:
        """Give an exchange to publish to; a channel over which no answer comes, or a no, is used no longer.

        A channel that was opened while a queue had lost its leader may say no for ever, and one that is opened
        later does not. Whoever still waits for an answer over the old one may get it.
        """
        async with self._opening:
            outlet = self._open.get(name)
            if outlet is None or outlet.channel.is_closed or outlet.connection is not connection:
                outlet = self._open[name] = _Outlet(connection, await self._open_for(connection, name))
        outlet.users += 1
        try:
            yield await outlet.channel.get_exchange(name, ensure=False)
        except (TimeoutError, amqp.DeliveryError) as error:
            # A message that is returned as unroutable is an answer like any other.
            outlet.retired |= not isinstance(error, amqp.PublishError)
            if outlet.retired and self._open.get(name) is outlet:
                del self._open[name]
            raise
        finally:
            outlet.users -= 1
            if outlet.retired and not outlet.users:
                await give_up(outlet.channel.close)

    async def _open_for(self, connection: AbstractConnection, name: str) -> AbstractChannel:
        """Open a channel and find out, with an empty message that no queue takes, whether we may publish.

        A refusal closes the channel, and aiormq may still send over it what others had begun to publish; at
        that the broker closes the whole connection. So nobody else is let in before the answer is there.
        """
        async with asyncio.timeout(ANSWER_S):
            channel = await open_channel(connection)
            try:
                exchange = await channel.get_exchange(name, ensure=False)
                await exchange.publish(aio_pika.Message(b""), routing_key="", mandatory=False)
            except BaseException:
                await give_up(channel.close)
                raise
        return channel


class Publisher:
    """Publishes over the link that `find_link` gives, which raises if there is none."""

    def __init__(
        self, access: Access, find_link: Callable[[], Link], *, publish_timeout_s: float, confirm_timeout_s: float
    ) -> None:
        self.retries = 0
        """The number of times that a message was sent again."""
        self._access = access
        self._find_link = find_link
        self._publish_timeout_s = publish_timeout_s
        self._confirm_timeout_s = confirm_timeout_s
        self._outlets = Outlets()
        self._limits: set[asyncio.Timeout] = set()

    async def publish(self, address: Address, body: bytes, headers: HeadersType) -> None:
        """Send, and send again after every loss or refusal, until the broker confirms or time is up."""
        check_size(body)
        message = aio_pika.Message(
            body,
            headers=headers,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            # A broker takes no other name than the one that we logged in with.
            user_id=self._access.user,
        )
        failure: BaseException | None = None
        try:
            async with asyncio.timeout(self._publish_timeout_s) as limit:
                # So that `stop` can end it while the broker is away.
                self._limits.add(limit)
                pause_s = 0.05
                while (failure := await self._try_to_publish(address, message)) is not None:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, 1.0)
                    self.retries += 1
        except TimeoutError:
            self._find_link()  # Raises if this was ended by `stop`, as the transport was closed.
            raise TransportError(
                f"{self._access.where} did not confirm a message for {address.routing_key!r} within"
                f" {self._publish_timeout_s:g} s: the broker is away, or short of memory or disk, or the"
                " recipient's queue is full"
            ) from failure
        finally:
            self._limits.discard(limit)

    def stop(self) -> None:
        """End the time of all that is being published."""
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())

    async def _try_to_publish(self, address: Address, message: aio_pika.Message) -> Exception | None:
        """Publish once; return what went wrong if it is worth another try."""
        link = self._find_link()
        try:
            with loss_as_connection_error():
                connection = await link.open_connection()
                async with self._outlets.exchange(connection, address.exchange) as exchange:
                    await self._confirm(link, exchange.publish(message, address.routing_key))
        except (amqp.PublishError, amqp.ChannelNotFoundEntity) as error:
            raise Unroutable(
                f"no queue takes messages for {address.routing_key!r} at {address.exchange!r}"
            ) from error
        except ChannelAccessRefused as error:
            raise describe_refusal(
                link.where, self._access.user, f"publish to {address.exchange!r}", error
            ) from error
        except LOST as error:
            return error
        return None

    async def _confirm(self, link: Link, publishing: Coroutine[object, object, object]) -> None:
        """Wait for the confirmation, for which a broker that has blocked us is given all the time that is left.

        Giving up and sending again would only make it take the message twice when it listens again.
        """
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(publishing)
        patience = loop.time() + self._confirm_timeout_s
        try:
            while not (await asyncio.wait({task}, timeout=LOOK_S))[0]:
                if await link.is_blocked():
                    patience = loop.time() + self._confirm_timeout_s
                elif loop.time() > patience:
                    raise TimeoutError
            task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
