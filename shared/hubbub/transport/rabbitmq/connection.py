"""Connections to RabbitMQ: made at one of the broker's addresses, and made again when lost.

Traps of aio-pika that are met here:

- A peer that falls silent makes whatever waits raise `CancelledError` though nobody cancelled, and whatever waits
  for a write to leave a plain `Exception` without a word: `loss_as_connection_error` tells these from others.
- Only a class derived from its `Connection` can say how a stream is opened, which a proxy needs.
- Nobody is told that the broker has blocked a connection, and all goes on being sent: `Link.is_blocked` finds out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aio_pika
from aio_pika import exceptions as amqp
from aio_pika.abc import AbstractChannel, AbstractConnection, ConnectionParameter
from aiormq.connection import TransportFactory
from aiormq.exceptions import ChannelAccessRefused
from yarl import URL

from hubbub.errors import BrokerRefused, BrokerUnreachable
from hubbub.transport.access import Access, Entrance
from hubbub.transport.proxy import Streams

log = logging.getLogger(__name__)

# RuntimeError is among them because aio-pika's ChannelInvalidStateError is one; TimeoutError is an OSError.
LOST = amqp.CONNECTION_EXCEPTIONS
REQUEST_REFUSED = (ChannelAccessRefused, amqp.ChannelNotFoundEntity, amqp.ChannelPreconditionFailed)
ANSWER_S = 5.0
"""The time limit for what the broker can answer at once."""
LOOK_S = 0.2
"""The pause between two looks whether the broker, which has blocked us, takes messages again."""
# The same while nothing is sent.
_WATCH_S = 1.0
# A broker says no to a virtual host by closing the connection where aiormq expects another frame.
_LOGIN_REFUSED = (amqp.AuthenticationError, amqp.ProbableAuthenticationError, amqp.InvalidFrameError)
# It listened, and then would not talk.
_BROKEN_OFF = (ConnectionResetError, asyncio.IncompleteReadError)


@dataclass(frozen=True, slots=True)
class _Opener(TransportFactory):
    """Opens the stream of a connection as its entrance says: through the proxy, if there is one."""

    entrance: Entrance

    async def create(self, url: URL, **kwargs: Any) -> Streams:  # noqa: ARG002  (aiormq's signature.)
        try:
            return await self.entrance.open(self.entrance.context)
        except OSError as error:
            raise amqp.AMQPConnectionError(*error.args) from error


class _Connection(aio_pika.Connection):
    """Connection that takes a factory of streams, and passes it on to aiormq."""

    PARAMETERS = (
        *aio_pika.Connection.PARAMETERS,
        ConnectionParameter(name="transport_factory", parser=lambda given: given, is_kwarg=True),
    )


@dataclass(slots=True)
class Connector:
    """Makes connections, each of which has passed `check` if there is one, at the broker's addresses in turn."""

    access: Access
    connection_name: str
    heartbeat_s: int = 10
    timeout_s: float = 15.0
    interval_s: float = 1.0
    check: Callable[[str, AbstractChannel], Awaitable[None]] | None = None
    turn: int = 0
    reconnects: int = 0
    """The number of times that a connection of its making was replaced by another."""
    _told: BrokerUnreachable | None = field(default=None, init=False)
    """The last word of a proxy that found no way to the broker, or was away itself."""

    @property
    def entrance(self) -> Entrance:
        """The address whose turn it is."""
        return self.access.entrances[self.turn]

    def move_on(self) -> None:
        """Turn to the next address: this one failed us."""
        self.turn = (self.turn + 1) % len(self.access.entrances)

    async def connect(self) -> AbstractConnection:
        """Connect within the time limit; a broker that starts at the same time as we do is ordinary."""
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self.connect_at_last()
        except TimeoutError as error:
            if self._told is not None:
                raise self._told from error
            kind = " that the proxy is of the kind in its URL," if self.access.way else ""
            raise BrokerUnreachable(
                f"no RabbitMQ answers at {self.access.where}{self.access.way} (tried for {self.timeout_s:g} s)."
                f" Check that the broker runs, that host and port in its URL are right,{kind} and that no firewall"
                " is in between."
            ) from error

    async def connect_at_last(self) -> AbstractConnection:
        """Try the addresses in turn until one lets us in, or one refuses and no other lets us in."""
        while True:
            refusals: list[BrokerRefused] = []
            for _ in self.access.entrances:
                try:
                    return await self._connect_once(self.entrance)
                except BrokerRefused as error:
                    refusals.append(error)
                except BrokerUnreachable as error:
                    self._told = error
                    log.debug("no connection to %s: %s", self.entrance.where, error)
                except LOST as error:
                    # Silence is no news.
                    self._told = self._told if isinstance(error, TimeoutError) else None
                    log.debug("no connection to %s: %s", self.entrance.where, type(error).__name__)
                self.move_on()
            if refusals:
                raise refusals[0]
            await asyncio.sleep(self.interval_s)

    async def _connect_once(self, entrance: Entrance) -> AbstractConnection:
        connection = _Connection(
            entrance.url.update_query(heartbeat=self.heartbeat_s),
            transport_factory=_Opener(entrance),
            client_properties={"connection_name": self.connection_name},
        )
        try:
            with loss_as_connection_error():
                # One that says nothing must leave time for the others.
                async with asyncio.timeout(min(ANSWER_S, self.timeout_s / len(self.access.entrances))):
                    await self._log_in(entrance, connection)
                    channel = await open_channel(connection)
                    if self.check is not None:
                        await self.check(entrance.where, channel)
                    await channel.close()
        except BaseException:
            await give_up(connection.close)
            raise
        return connection

    async def _log_in(self, entrance: Entrance, connection: AbstractConnection) -> None:
        try:
            await connection.connect()
        except _LOGIN_REFUSED as error:
            raise BrokerRefused(
                f"{entrance.where} refuses user {self.access.user!r} ({type(error).__name__}). Check user,"
                " password and virtual host, and that the output of `hubbub roster broker-config` is loaded there."
            ) from error
        except amqp.AMQPConnectionError as error:
            trouble = entrance.describe(error)
            if trouble is None and isinstance(error.__cause__, _BROKEN_OFF):
                trouble = await entrance.find_tls_trouble()
            if trouble is None:
                raise
            raise BrokerRefused(f"there is no way in at {entrance.where}: {trouble}.") from error


class Link:
    """A connection that is replaced whenever it is lost."""

    def __init__(self, first: AbstractConnection, connector: Connector) -> None:
        self._current = first
        self._connector = connector
        self._told_blocked = False
        self._up = asyncio.Event()
        self._up.set()
        self._keeper = asyncio.create_task(self._keep(_loss_of_connection(first)), name="keep connected")

    @property
    def where(self) -> str:
        """The address of the broker, for messages."""
        return self._connector.entrance.where

    @property
    def is_up(self) -> bool:
        """True while there is a connection."""
        return self._up.is_set()

    @property
    def was_blocked(self) -> bool:
        """True if the broker had stopped listening to us when we last looked."""
        return self._told_blocked

    async def connection(self) -> AbstractConnection:
        """Wait for a connection and return it."""
        await self._up.wait()
        return self._current

    async def open_connection(self) -> AbstractConnection:
        """Wait for a connection over which the broker takes messages, and return it."""
        connection = await self.connection()
        while await self.is_blocked():
            await asyncio.sleep(LOOK_S)
            connection = await self.connection()
        return connection

    async def is_blocked(self) -> bool:
        """Say whether the broker has stopped listening to us, and log when that changes."""
        blocked = self._up.is_set() and await _is_blocked(self._current)
        if blocked and not self._told_blocked:
            log.warning(
                "the broker at %s has blocked us: it is short of memory or disk; sending waits", self.where
            )
        elif self._told_blocked and not blocked:
            log.warning("the broker at %s does not block us any more; sending goes on", self.where)
        self._told_blocked = blocked
        return blocked

    async def close(self) -> None:
        """Close the connection, and make no other."""
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        await give_up(self._current.close)

    async def _keep(self, lost: asyncio.Event) -> None:
        while True:
            await self._watch(lost)
            self._up.clear()
            log.warning("the connection to the broker at %s is lost; connecting again", self.where)
            await give_up(self._current.close)
            self._connector.move_on()
            self._current = await self._reconnect()
            lost = _loss_of_connection(self._current)
            self._connector.reconnects += 1
            self._up.set()
            log.warning("connected to the broker at %s again", self.where)

    async def _watch(self, lost: asyncio.Event) -> None:
        """Wait for the loss of the connection, and keep `was_blocked` up to date meanwhile."""
        while not lost.is_set():
            await self.is_blocked()
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_S):
                    await lost.wait()

    async def _reconnect(self) -> AbstractConnection:
        while True:
            await asyncio.sleep(self._connector.interval_s)
            try:
                return await self._connector.connect_at_last()
            except BrokerRefused as error:
                # Only an operator can change that, and may.
                log.warning("the broker does not take us back: %s", error)


async def _is_blocked(connection: AbstractConnection) -> bool:
    """Find out whether the broker has blocked a connection: aiormq makes those wait who ask if it is ready."""
    if connection.transport is None:
        return False
    try:
        async with asyncio.timeout(0):
            await connection.transport.connection.ready()
    except TimeoutError:
        return True
    return False


def _loss_of_connection(connection: AbstractConnection) -> asyncio.Event:
    lost = asyncio.Event()
    connection.close_callbacks.add(lambda *_: lost.set())
    # It may have been lost before we began to look.
    if connection.transport is None or connection.transport.connection.is_closed:
        lost.set()
    return lost


async def open_channel(connection: AbstractConnection) -> AbstractChannel:
    """Open a channel that confirms what is published, and raises for what is returned."""
    channel = connection.channel(publisher_confirms=True, on_return_raises=True)
    await channel.initialize()
    return channel


@asynccontextmanager
async def asking(access: Access, intent: str, timeout_s: float) -> AsyncIterator[None]:
    """Limit the time of what is asked of the broker inside, and turn its answer into our own errors."""
    try:
        with loss_as_connection_error():
            async with asyncio.timeout(timeout_s):
                yield
    except REQUEST_REFUSED as error:
        raise describe_refusal(access.where, access.user, intent, error) from error
    except LOST as error:
        raise BrokerUnreachable(f"{access.where} did not answer when asked to {intent}") from error


def describe_refusal(where: str, user: str, intent: str, error: Exception) -> BrokerRefused:
    """Make the error that says what the broker does not let us do, and what to check."""
    return BrokerRefused(
        f"{where} does not let {user!r} {intent}: {error}. Check the user's permissions: `hubbub"
        " roster broker-config` grants each party what its role needs. A queue that exists with other properties"
        " has to be deleted first."
    )


@contextmanager
def loss_as_connection_error() -> Iterator[None]:
    """Raise `ConnectionResetError` for a lost connection that aiormq does not name.

    It raises `CancelledError` though nobody cancelled, or an `Exception` of no class of its own.
    """
    task = asyncio.current_task()
    # Not compared with zero: a task may publish while it winds up after its own cancellation.
    before = task.cancelling() if task else 0
    try:
        yield
    except asyncio.CancelledError as error:
        if task and task.cancelling() > before:
            raise
        raise ConnectionResetError("the connection was given up") from error
    except Exception as error:
        if type(error) is Exception:
            raise ConnectionResetError("the connection was given up") from error
        raise


async def despite_loss(operation: Callable[[], Awaitable[object]]) -> None:
    """Tell the broker something that does not matter any more if the connection is gone."""
    with suppress(*LOST), loss_as_connection_error():
        await operation()


async def give_up(close: Callable[[], Awaitable[object]]) -> None:
    """Close a channel or connection, but do not wait long for an orderly end."""

    async def close_in_time() -> None:
        async with asyncio.timeout(ANSWER_S):
            await close()

    await despite_loss(close_in_time)
