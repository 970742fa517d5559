"""The topology at the broker: checked by every party, declared or deleted by an administrator.

A party may declare nothing. It checks that its exchanges and queues are there; what is missing has to be loaded by
an operator, from the definitions that `hubbub.transport.definitions` makes. `declare_topology` does the same for
those who have an administrator's login, as tests do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import aio_pika
from aio_pika import exceptions as amqp
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
from aiormq.exceptions import ChannelAccessRefused

from hubbub.errors import BrokerRefused
from hubbub.transport.access import Access, Login, Tls
from hubbub.transport.definitions import queue_arguments
from hubbub.transport.rabbitmq.connection import (
    ANSWER_S,
    REQUEST_REFUSED,
    Connector,
    asking,
    describe_refusal,
    give_up,
    open_channel,
)
from hubbub.transport.topology import Attempt, Deed, Topology

# Declaring or deleting the queues of a hundred parties.
_ADMINISTRATION_S = 60.0


async def check_topology(topology: Topology, user: str, where: str, channel: AbstractChannel) -> None:
    """Raise `BrokerRefused` if an exchange or a queue is missing; to look takes no rights at the broker."""
    what = ""
    try:
        for exchange in topology.exchanges:
            what = f"exchange {exchange!r}"
            await channel.get_exchange(exchange)
        for queue in topology.queues:
            what = f"queue {queue.name!r}"
            await channel.get_queue(queue.name)
    except amqp.ChannelNotFoundEntity as error:
        raise BrokerRefused(
            f"{where} has no {what}: load the output of `hubbub roster broker-config` into the"
            " broker, made from a roster that names this party"
        ) from error
    except REQUEST_REFUSED as error:
        raise describe_refusal(where, user, f"look at {what}", error) from error


async def declare_topology(url: str, topology: Topology) -> None:
    """Declare exchanges, queues and bindings; takes an administrator's login. Users are not made."""
    async with _administering(url, "declare its exchanges and queues") as channel:
        for exchange in topology.exchanges:
            await channel.declare_exchange(exchange, aio_pika.ExchangeType.DIRECT, durable=True)
        queues = {
            spec.name: await channel.declare_queue(spec.name, durable=True, arguments={**queue_arguments(spec)})
            for spec in topology.queues
        }
        for binding in topology.bindings:
            await queues[binding.queue].bind(binding.address.exchange, binding.address.routing_key)


async def remove_topology(url: str, topology: Topology) -> None:
    """Delete queues with all that is in them, and their dead-letter exchanges; what parties share stays."""
    async with _administering(url, "delete its exchanges and queues") as channel:
        for spec in topology.queues:
            await channel.queue_delete(spec.name)
            if spec.dead_letters is not None:
                await channel.exchange_delete(spec.dead_letters.exchange)


async def try_rights(
    url: str,
    attempts: Iterable[Attempt],
    *,
    login: Login | None = None,
    tls: Tls | None = None,
    proxy: str | None = None,
    timeout_s: float = 15,
) -> dict[Attempt, bool]:
    """Attempt each deed over a channel of its own, and say which of them the broker lets this user do."""
    access = Access(url, login, tls, proxy)
    connection = await Connector(access, "hubbub, trying rights", timeout_s=timeout_s).connect()
    try:
        return {attempt: await _is_allowed(access, connection, attempt) for attempt in attempts}
    finally:
        await give_up(connection.close)


async def _is_allowed(access: Access, connection: AbstractConnection, attempt: Attempt) -> bool:
    async with asking(access, str(attempt), ANSWER_S):
        channel = await open_channel(connection)
        try:
            await _try(channel, attempt)
        except ChannelAccessRefused:
            return False
        except (amqp.ChannelNotFoundEntity, amqp.ChannelPreconditionFailed):
            # Rights are looked at first.
            return True
        finally:
            await give_up(channel.close)
        return True


async def _try(channel: AbstractChannel, attempt: Attempt) -> None:
    """Do something that leaves nothing behind: what it would change is gone with the connection."""

    async def take(_message: AbstractIncomingMessage) -> None:
        pass

    match attempt.deed:
        case Deed.DECLARE:
            await channel.declare_queue(attempt.name, exclusive=True, auto_delete=True)
        case Deed.PUBLISH:
            # No queue takes a message without a key.
            exchange = await channel.get_exchange(attempt.name, ensure=False)
            await exchange.publish(aio_pika.Message(b""), routing_key="", mandatory=False)
        case Deed.CONSUME:
            queue = await channel.get_queue(attempt.name, ensure=False)
            # A priority that is no number is refused after the rights were looked at: nothing is ever delivered.
            await queue.consume(take, arguments={"x-priority": "none"})


@asynccontextmanager
async def _administering(url: str, intent: str) -> AsyncIterator[AbstractChannel]:
    access = Access(url)
    connection = await Connector(access, "hubbub administrator").connect()
    try:
        async with asking(access, intent, _ADMINISTRATION_S):
            yield await open_channel(connection)
    finally:
        await give_up(connection.close)
