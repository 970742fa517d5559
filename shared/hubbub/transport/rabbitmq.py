"""RabbitMQ through aio-pika: the only module that knows either.

Two connections per transport, one to send over and one to receive over: a broker that is short of memory or disk
stops listening to whoever publishes, and would not hear the acknowledgements either. On the one a channel per
exchange that is published to, on the other one per subscription: the broker reports an error by closing the
channel it happened on, and only those who asked for the same thing should feel it. `_Link` replaces a connection
that is lost, at the next of the broker's addresses, and each `_Subscription` its channel.

A queue has one active consumer. The others wait at the broker until that one is gone, which is how a
subscription that was cut off comes back while the broker still believes in the lost connection. One that begins
does not wait there: it looks, for longer than a broker needs to notice a loss, and then says who is in the way.
Two that begin in the same instant may both find the queue free; one of them waits, and is given nothing.

Nothing is declared here: a party may not. It looks whether its exchanges and queues are there, and what is
missing has to be loaded by an operator, from the definitions that `hubbub.transport.definitions` makes.
`declare_topology` does the same for those who have an administrator's login, as tests do.

This is not left to aio-pika's robust connection, because that restores one channel after the other and waits
for every answer without limit: one queue that cannot answer (it has no leader, say) would hold up all else.
Here every request has its time, and what is not answered is asked again on a new channel.

Traps of aio-pika and where they are met:

- A publish in flight when the connection is lost raises and is not sent again: `publish` does it.
- A peer that falls silent makes whatever waits raise `CancelledError` though nobody cancelled:
  `_cancellation_means_loss` tells the two apart.
- Callbacks are cancelled with their connection: ours only put the message into a `Worker`'s queue.
- What was fetched over a lost connection comes again: `_Taken.is_stale` keeps it from being handled twice.
- A channel may go on saying no when a queue has long found its new leader: `_Publishers` takes another.
- A dead letter takes a confirmation, and would keep all behind it waiting: `_DeadLetters` sends many at a time.
- Nobody is told that the broker has blocked a connection, and all goes on being sent: `_is_blocked` finds out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Self, TypeVar

import aio_pika
from aio_pika import exceptions as amqp
from aio_pika.abc import (
    AbstractChannel,
    AbstractConnection,
    AbstractExchange,
    AbstractIncomingMessage,
    HeadersType,
)
from aiormq.exceptions import ChannelAccessRefused

from hubbub.errors import BrokerRefused, BrokerUnreachable, ConfigurationError, TransportError, Unroutable
from hubbub.transport.access import Access, Entrance, Login, Tls
from hubbub.transport.base import (
    ASIDE_MAX_BYTES,
    ASIDE_MAX_LENGTH,
    ASIDE_PER_S,
    DELIVERY_LIMIT_REASON,
    Address,
    Condition,
    DeadLetter,
    Delivery,
    Handler,
    Outcome,
    Transport,
    Verdict,
    check_size,
    is_oversized,
    reject,
)
from hubbub.transport.definitions import queue_arguments
from hubbub.transport.subscription import RetryPause, Worker, check_outside, describe_occupied
from hubbub.transport.token_bucket import TokenBucket
from hubbub.transport.topology import Attempt, Deed, QueueSpec, Topology

log = logging.getLogger(__name__)

T = TypeVar("T")

REASON_HEADER = "hubbub-reason"
QUEUE_HEADER = "hubbub-queue"

# RuntimeError is among them because aio-pika's ChannelInvalidStateError is one; TimeoutError is an OSError.
_LOST = amqp.CONNECTION_EXCEPTIONS
# A broker says no to a virtual host by closing the connection where aiormq expects another frame.
_LOGIN_REFUSED = (amqp.AuthenticationError, amqp.ProbableAuthenticationError, amqp.InvalidFrameError)
_REQUEST_REFUSED = (ChannelAccessRefused, amqp.ChannelNotFoundEntity, amqp.ChannelPreconditionFailed)
# It listened, and then would not talk.
_BROKEN_OFF = (ConnectionResetError, asyncio.IncompleteReadError)
# How long the broker may take to answer what it can answer at once.
_ANSWER_S = 5.0
# How often to look whether the broker, which has blocked us, takes messages again.
_LOOK_S = 0.2
# How often to look the same while nothing is sent.
_WATCH_S = 1.0
# A broker looks once in a heartbeat, and twice in vain before it gives a connection up.
_HEARTBEATS_TO_NOTICE = 3
# How many dead letters are on their way to the broker at a time.
_ASIDE_AT_ONCE = 64
# Declaring or deleting the queues of a hundred parties.
_ADMINISTRATION_S = 60.0


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
        heartbeat_s: int = 10,
        connect_timeout_s: float = 15.0,
        publish_timeout_s: float = 60.0,
        confirm_timeout_s: float = 20.0,
        reconnect_interval_s: float = 1.0,
        retry_pause: RetryPause | None = None,
    ) -> None:
        self._access = Access(url, login, tls)
        self._topology = topology
        self._connection_name = connection_name
        self._sender, self._receiver = (
            _Connector(
                self._access,
                f"{connection_name}, {what}",
                heartbeat_s,
                connect_timeout_s,
                reconnect_interval_s,
                self._check,
            )
            for what in ("sending", "receiving")
        )
        self._eviction_s = _HEARTBEATS_TO_NOTICE * heartbeat_s + _ANSWER_S
        self._connect_timeout_s = connect_timeout_s
        self._publish_timeout_s = publish_timeout_s
        self._confirm_timeout_s = confirm_timeout_s
        self._reconnect_interval_s = reconnect_interval_s
        self._retry_pause = retry_pause or RetryPause()
        self._sending: _Link | None = None
        self._receiving: _Link | None = None
        self._publishers = _Publishers()
        self.dead = _DeadLetters(self._publish)
        self._publishing: set[asyncio.Timeout] = set()
        self._subscriptions: list[_Subscription] = []
        self._retries = 0
        self._waiting: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"RabbitMqTransport({self._connection_name!r} at {self._access.where})"

    async def __aenter__(self) -> Self:
        try:
            self._receiving = _Link(await self._receiver.connect(), self._receiver)
            self._sending = _Link(await self._sender.connect(), self._sender)
        except BaseException:
            await self._disconnect()
            raise
        return self

    async def publish(self, address: Address, body: bytes) -> None:
        """Send, and send again after every loss or refusal, until the broker confirms or time is up."""
        await self._publish(address, body, {})

    async def subscribe(self, queue: str, handler: Handler, *, prefetch: int = 8) -> None:
        """Open a channel with a prefetch of its own and consume, as soon as nobody else does.

        Somebody else may be our own past, killed a moment ago: it is given the time in which a broker notices.
        """
        if prefetch < 1:
            raise ConfigurationError(f"prefetch must be at least 1, not {prefetch}")
        spec = self._topology.queue(queue)
        link = _opened(self._receiving)
        subscription = _Subscription(self, link, spec, prefetch, Worker(queue, handler))
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

    def _subscriptions_to(self, queue: str) -> list[_Subscription]:
        return [subscription for subscription in self._subscriptions if subscription.spec.name == queue]

    async def close(self) -> None:
        """Stop consuming, let handlers finish and tell their verdicts, then disconnect."""
        check_outside(subscription.worker for subscription in self._subscriptions)
        subscriptions, self._subscriptions = self._subscriptions, []
        try:
            await asyncio.gather(*(subscription.end() for subscription in subscriptions))
            await self.dead.finish()
        finally:
            await self.dead.stop()
            for limit in self._publishing:
                if not limit.expired():
                    limit.reschedule(asyncio.get_running_loop().time())
            await self._disconnect()

    @property
    def condition(self) -> Condition:
        """What the links and the subscriptions know."""
        return Condition(
            connected=all(link is not None and link.is_up for link in (self._sending, self._receiving)),
            blocked=self._sending is not None and self._sending.was_blocked,
            consuming=frozenset(each.spec.name for each in self._subscriptions if each.is_consuming),
            reconnects=self._sender.reconnects + self._receiver.reconnects,
            retries=self._retries,
            waiting=dict(self._waiting),
        )

    async def count_waiting(self, queue: str) -> int:
        """Look at the queue, which takes no rights, over a channel of its own: a no would close it."""
        name, link = self._topology.queue(queue).name, _opened(self._receiving)
        if not link.is_up:
            raise BrokerUnreachable(f"{link.where} is away")
        async with _asking(self._access, f"look at queue {name!r}", _ANSWER_S):
            channel = await _open_channel(await link.connection())
            try:
                found = await channel.get_queue(name)
            finally:
                await _give_up(channel.close)
        self._waiting[name] = found.declaration_result.message_count or 0
        return self._waiting[name]

    async def dead_letters(self, queue: str, limit: int = 100) -> list[DeadLetter]:
        """Look at the oldest dead letters without removing any."""
        return await self.summarise_dead_letters(queue, lambda letter: letter, limit)

    async def summarise_dead_letters(self, queue: str, read: Callable[[DeadLetter], T], limit: int) -> list[T]:
        """Look at the oldest dead letters and keep what `read` makes of each: the bodies may be many and large."""
        found: list[T] = []

        def asking() -> AbstractAsyncContextManager[None]:
            return _asking(self._access, f"read queue {queue!r}", self._connect_timeout_s)

        async with asking():
            channel = await _open_channel(await _opened(self._receiving).connection())
            source = await channel.get_queue(queue)
        try:
            while len(found) < limit:
                async with asking():
                    message = await source.get(fail=False)
                if message is None:
                    break
                found.append(read(_dead_letter(message)))
        finally:
            # This returns what was fetched and not acknowledged.
            await _give_up(channel.close)
        return found

    @property
    def retry_pause(self) -> RetryPause:
        """How long a message rests before it is delivered again."""
        return self._retry_pause

    @property
    def reconnect_interval_s(self) -> float:
        """How long to wait before something is asked of the broker again."""
        return self._reconnect_interval_s

    async def _begin(self, subscription: _Subscription) -> bool:
        async with _asking(self._access, f"read queue {subscription.spec.name!r}", self._connect_timeout_s):
            return await subscription.begin()

    async def _disconnect(self) -> None:
        links = [link for link in (self._sending, self._receiving) if link is not None]
        self._sending = self._receiving = None
        await asyncio.gather(*(link.close() for link in links))

    async def _check(self, where: str, channel: AbstractChannel) -> None:
        """Look whether all is there, which takes no rights at the broker."""
        what = ""
        try:
            for exchange in self._topology.exchanges:
                what = f"exchange {exchange.name!r}"
                await channel.get_exchange(exchange.name)
            for queue in self._topology.queues:
                what = f"queue {queue.name!r}"
                await channel.get_queue(queue.name)
        except amqp.ChannelNotFoundEntity as error:
            raise BrokerRefused(
                f"{where} has no {what}: load the output of `hubbub roster broker-config` into the"
                " broker, made from a roster that names this party"
            ) from error
        except _REQUEST_REFUSED as error:
            raise _refused(where, self._access.user, f"look at {what}", error) from error

    async def _publish(self, address: Address, body: bytes, headers: HeadersType) -> None:
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
                with self._listed(limit):
                    for pause_s in _pauses_s():
                        failure = await self._try_to_publish(address, message)
                        if failure is None:
                            return
                        await asyncio.sleep(pause_s)
                        self._retries += 1
        except TimeoutError:
            _opened(self._sending)
            raise TransportError(
                f"{self._access.where} did not confirm a message for {address.routing_key!r} within"
                f" {self._publish_timeout_s:g} s: the broker is away, or short of memory or disk, or the"
                " recipient's queue is full"
            ) from failure

    async def _try_to_publish(self, address: Address, message: aio_pika.Message) -> Exception | None:
        """Publish once; return what went wrong if it is worth another try."""
        link = _opened(self._sending)
        try:
            with _cancellation_means_loss():
                connection = await link.open_connection()
                async with self._publishers.exchange(connection, address.exchange) as exchange:
                    await self._confirm(link, exchange.publish(message, address.routing_key))
        except (amqp.PublishError, amqp.ChannelNotFoundEntity) as error:
            raise Unroutable(
                f"no queue takes messages for {address.routing_key!r} at {address.exchange!r}"
            ) from error
        except ChannelAccessRefused as error:
            raise _refused(link.where, self._access.user, f"publish to {address.exchange!r}", error) from error
        except _LOST as error:
            return error
        return None

    async def _confirm(self, link: _Link, publishing: Coroutine[object, object, object]) -> None:
        """Wait for the confirmation, for which a broker that has blocked us is given all the time that is left.

        Giving up and sending again would only make it take the message twice when it listens again.
        """
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(publishing)
        patience = loop.time() + self._confirm_timeout_s
        try:
            while not (await asyncio.wait({task}, timeout=_LOOK_S))[0]:
                if await link.is_blocked():
                    patience = loop.time() + self._confirm_timeout_s
                elif loop.time() > patience:
                    raise TimeoutError
            task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @contextmanager
    def _listed(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Let `close` end a publish that waits for a broker that is away."""
        self._publishing.add(limit)
        try:
            yield
        finally:
            self._publishing.discard(limit)


def _opened(link: _Link | None) -> _Link:
    if link is None:
        raise TransportError("this transport is not open: enter it with `async with` before use")
    return link


async def declare_topology(url: str, topology: Topology) -> None:
    """Do over AMQP what loading the definitions does, except for users; takes an administrator's login."""
    async with _administering(url, "declare its exchanges and queues") as channel:
        for exchange in topology.exchanges:
            await channel.declare_exchange(exchange.name, aio_pika.ExchangeType.DIRECT, durable=True)
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
    timeout_s: float = 15,
) -> dict[Attempt, bool]:
    """Try things at the broker, each over a channel of its own, and say which of them it lets this user do."""
    access = Access(url, login, tls)
    connection = await _Connector(access, "hubbub, trying rights", timeout_s=timeout_s).connect()
    try:
        return {attempt: await _is_allowed(access, connection, attempt) for attempt in attempts}
    finally:
        await _give_up(connection.close)


async def _is_allowed(access: Access, connection: AbstractConnection, attempt: Attempt) -> bool:
    async with _asking(access, str(attempt), _ANSWER_S):
        channel = await _open_channel(connection)
        try:
            await _try(channel, attempt)
        except ChannelAccessRefused:
            return False
        except (amqp.ChannelNotFoundEntity, amqp.ChannelPreconditionFailed):
            # Rights are looked at first.
            return True
        finally:
            await _give_up(channel.close)
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
    connection = await _Connector(access, "hubbub administrator").connect()
    try:
        async with _asking(access, intent, _ADMINISTRATION_S):
            yield await _open_channel(connection)
    finally:
        await _give_up(connection.close)


async def _ask_nothing(_where: str, _channel: AbstractChannel) -> None:
    """Take any broker that lets us in."""


@dataclass(slots=True)
class _Connector:
    """Makes connections, each of which has passed `check`, at the broker's addresses in turn."""

    access: Access
    connection_name: str
    heartbeat_s: int = 10
    timeout_s: float = 15.0
    interval_s: float = 1.0
    check: Callable[[str, AbstractChannel], Awaitable[None]] = _ask_nothing
    turn: int = 0
    reconnects: int = 0
    """How often a connection of its making was replaced by another."""

    @property
    def entrance(self) -> Entrance:
        """The address whose turn it is."""
        return self.access.entrances[self.turn]

    def move_on(self) -> None:
        """Let it be the next address's turn: this one failed us."""
        self.turn = (self.turn + 1) % len(self.access.entrances)

    async def connect(self) -> AbstractConnection:
        """Try for a while: a broker that starts at the same time as we do is ordinary."""
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self.connect_at_last()
        except TimeoutError as error:
            raise BrokerUnreachable(
                f"no RabbitMQ answers at {self.access.where} (tried for {self.timeout_s:g} s). Check that the"
                " broker runs, that host and port in its URL are right, and that no firewall is in between."
            ) from error

    async def connect_at_last(self) -> AbstractConnection:
        """Try until an address lets us in, or one refuses and no other lets us in."""
        while True:
            refusals: list[BrokerRefused] = []
            for _ in self.access.entrances:
                try:
                    return await self._connect_once(self.entrance)
                except BrokerRefused as error:
                    refusals.append(error)
                except _LOST as error:
                    log.debug("no connection to %s: %s", self.entrance.where, type(error).__name__)
                self.move_on()
            if refusals:
                raise refusals[0]
            await asyncio.sleep(self.interval_s)

    async def _connect_once(self, entrance: Entrance) -> AbstractConnection:
        connection = aio_pika.Connection(
            entrance.url.update_query(heartbeat=self.heartbeat_s),
            ssl_context=entrance.context,
            client_properties={"connection_name": self.connection_name},
        )
        try:
            with _cancellation_means_loss():
                # One that says nothing must leave time for the others.
                async with asyncio.timeout(min(_ANSWER_S, self.timeout_s / len(self.access.entrances))):
                    await self._log_in(entrance, connection)
                    channel = await _open_channel(connection)
                    await self.check(entrance.where, channel)
                    await channel.close()
        except BaseException:
            await _give_up(connection.close)
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


class _Link:
    """The connection of the moment: a new one is made whenever it is lost."""

    def __init__(self, first: AbstractConnection, connector: _Connector) -> None:
        self._current = first
        self._connector = connector
        self._told_blocked = False
        self._up = asyncio.Event()
        self._up.set()
        self._keeper = asyncio.create_task(self._keep(_loss_of_connection(first)), name="keep connected")

    @property
    def where(self) -> str:
        """Whom we talk to, for messages."""
        return self._connector.entrance.where

    @property
    def is_up(self) -> bool:
        """Whether there is a connection just now."""
        return self._up.is_set()

    @property
    def was_blocked(self) -> bool:
        """Whether the broker had stopped listening to us when we last looked."""
        return self._told_blocked

    async def connection(self) -> AbstractConnection:
        """Wait until there is one."""
        await self._up.wait()
        return self._current

    async def open_connection(self) -> AbstractConnection:
        """Wait until there is one over which the broker takes messages."""
        connection = await self.connection()
        while await self.is_blocked():
            await asyncio.sleep(_LOOK_S)
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
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        await _give_up(self._current.close)

    async def _keep(self, lost: asyncio.Event) -> None:
        while True:
            await self._watch(lost)
            self._up.clear()
            log.warning("the connection to the broker at %s is lost; connecting again", self.where)
            await _give_up(self._current.close)
            self._connector.move_on()
            self._current = await self._reconnect()
            lost = _loss_of_connection(self._current)
            self._connector.reconnects += 1
            self._up.set()
            log.warning("connected to the broker at %s again", self.where)

    async def _watch(self, lost: asyncio.Event) -> None:
        """Wait for the loss of the connection; see to it that `was_blocked` is true to what the broker says."""
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


@dataclass(slots=True, eq=False)
class _Outlet:
    connection: AbstractConnection
    channel: AbstractChannel
    users: int = 0
    retired: bool = False


class _Publishers:
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
                await _give_up(outlet.channel.close)

    async def _open_for(self, connection: AbstractConnection, name: str) -> AbstractChannel:
        """Open a channel and find out, with an empty message that no queue takes, whether we may publish.

        A refusal closes the channel, and aiormq may still send over it what others had begun to publish; at
        that the broker closes the whole connection. So nobody else is let in before the answer is there.
        """
        async with asyncio.timeout(_ANSWER_S):
            channel = await _open_channel(connection)
            try:
                exchange = await channel.get_exchange(name, ensure=False)
                await exchange.publish(aio_pika.Message(b""), routing_key="", mandatory=False)
            except BaseException:
                await _give_up(channel.close)
                raise
        return channel


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


class _DeadLetters:
    """Puts rejected messages aside, many at a time, while others are handled.

    They are acknowledged already. So the messages here are all that is lost if this process dies, and there is a
    limit to how many there may be; what is over it is dropped.
    """

    def __init__(self, publish: Callable[[Address, bytes, HeadersType], Awaitable[None]]) -> None:
        self._publish = publish
        self._waiting: deque[tuple[Address, bytes, HeadersType]] = deque()
        self._bytes = 0
        self._room = TokenBucket(ASIDE_MAX_LENGTH, ASIDE_PER_S)
        self._dropped = 0
        self._telling: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    def put(self, spec: QueueSpec, body: bytes, reason: str) -> None:
        """Send a rejected message, with its reason, to the dead letters of its queue, without waiting for it."""
        if spec.dead_letters is None:
            return
        if is_oversized(body):
            log.warning("a message of %s is rejected (%s) and dropped: %d bytes", spec.name, reason, len(body))
            return
        if not self._has_room(len(body)):
            self._drop()
            return
        self._waiting.append((spec.dead_letters, body, {REASON_HEADER: reason, QUEUE_HEADER: spec.name}))
        self._bytes += len(body)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send(), name="put aside")

    async def finish(self) -> None:
        """Wait, not for long, until all is put aside."""
        if self._sending is not None:
            await asyncio.wait({self._sending}, timeout=_ANSWER_S)

    async def stop(self) -> None:
        """Drop what is left."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        if self._telling is not None:
            self._telling.cancel()
            self._tell()

    def _has_room(self, size: int) -> bool:
        """Take room for one more, which comes back with time; a flood would have us do nothing else."""
        if len(self._waiting) >= ASIDE_MAX_LENGTH or self._bytes + size > ASIDE_MAX_BYTES:
            return False
        return self._room.take(1, asyncio.get_running_loop().time())

    def _drop(self) -> None:
        self._dropped += 1
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(1.0, self._tell)

    def _tell(self) -> None:
        log.warning("%d rejected messages were dropped: too many at a time to put aside", self._dropped)
        self._dropped, self._telling = 0, None

    async def _send(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_ASIDE_AT_ONCE, len(self._waiting)))]
            await asyncio.gather(*(self._send_one(*each) for each in batch))

    async def _send_one(self, address: Address, body: bytes, headers: HeadersType) -> None:
        try:
            await self._publish(address, body, headers)
        except TransportError as error:
            log.warning("a rejected message (%s) is dropped: %s", headers[REASON_HEADER], error)
        finally:
            self._bytes -= len(body)


@dataclass(slots=True, eq=False)
class _Subscription:
    transport: RabbitMqTransport
    link: _Link
    spec: QueueSpec
    prefetch: int
    worker: Worker[_Taken]
    channel: AbstractChannel | None = None
    consumer_tag: str = ""
    lost: asyncio.Event | None = None
    """Set when it has ended that we consume; None before we do."""
    flowing: asyncio.Event = field(default_factory=_set_event)
    """Not set during a pause."""
    keeper: asyncio.Task[None] | None = None
    beside: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def is_consuming(self) -> bool:
        """Whether the broker gives us what comes."""
        return self.lost is not None and not self.lost.is_set()

    async def begin(self) -> bool:
        """Consume if nobody else does."""
        self.lost = lost = await self._consume()
        if lost is None:
            return False
        self.keeper = asyncio.create_task(self._keep(lost), name=f"keep consuming {self.spec.name}")
        return True

    def pause(self) -> None:
        """Consume no more until it flows again."""
        self.flowing.clear()
        if self.lost is not None:
            self.lost.set()

    async def end(self) -> None:
        if self.keeper is not None:
            self.keeper.cancel()
            await asyncio.gather(self.keeper, return_exceptions=True)
        try:
            await _despite_loss(self._cancel)
            await self.worker.stop()
        finally:
            for task in self.beside:
                task.cancel()

    async def _keep(self, lost: asyncio.Event) -> None:
        while True:
            await lost.wait()
            if self.flowing.is_set():
                log.warning("the subscription to %s ended; subscribing again", self.spec.name)
            if self.channel is not None:
                await _give_up(self.channel.close)
            await self.flowing.wait()
            self.lost = lost = await self._consume_again()

    async def _consume_again(self) -> asyncio.Event:
        while True:
            await asyncio.sleep(self.transport.reconnect_interval_s)
            try:
                with _cancellation_means_loss():
                    lost = await self._consume(stand_by=True)
                    if lost is not None:
                        return lost
            except _LOST as error:
                log.debug("still not consuming %s: %s", self.spec.name, type(error).__name__)

    async def _consume(self, *, stand_by: bool = False) -> asyncio.Event | None:
        """Begin to consume over a new channel; return what is set when that ends.

        A queue that has a consumer is left alone, unless we stand by to follow it.
        """
        connection = await self.link.connection()
        lost = asyncio.Event()
        async with asyncio.timeout(_ANSWER_S):
            self.channel = channel = await _open_channel(connection)
            channel.close_callbacks.add(lambda *_: lost.set())
            # The broker ends a subscription without closing its channel when the queue is deleted.
            underlay = await channel.get_underlay_channel()
            underlay.on_consumer_cancel_callbacks.add(lambda _: lost.set())
            await channel.set_qos(prefetch_count=self.prefetch)
            queue = await channel.get_queue(self.spec.name)
            if queue.declaration_result.consumer_count:
                if not stand_by:
                    await channel.close()
                    return None
                log.warning("%s is still consumed over another connection; standing by", self.spec.name)
            self.consumer_tag = await queue.consume(self._receive)
        if channel.is_closed or not self.flowing.is_set():
            lost.set()
        return lost

    def rest(self, taken: _Taken) -> None:
        """Return a message to the queue after a pause; until then it stays unsettled and uses up prefetch.

        RabbitMQ delivers what is returned at once, so returning at once would spin.
        """
        self._run(taken.give_back(self.transport.retry_pause.after(taken.deliveries)))

    async def _receive(self, message: AbstractIncomingMessage) -> None:
        taken = _Taken(message, self)
        if taken.deliveries > self.spec.delivery_limit + 1:
            # Whoever took it never came to say anything: it may be what kills us.
            self._run(taken.settle(reject(DELIVERY_LIMIT_REASON)))
        else:
            self.worker.put(taken)

    def _run(self, work: Coroutine[object, object, None]) -> None:
        """Do something beside the worker, for as long as the subscription lasts."""
        task = asyncio.create_task(work)
        self.beside.add(task)
        task.add_done_callback(self.beside.discard)

    async def _cancel(self) -> None:
        if self.channel is not None and not self.channel.is_closed:
            async with asyncio.timeout(_ANSWER_S):
                underlay = await self.channel.get_underlay_channel()
                await underlay.basic_cancel(self.consumer_tag)


@dataclass(slots=True, eq=False)
class _Taken:
    message: AbstractIncomingMessage
    subscription: _Subscription

    @property
    def delivery(self) -> Delivery:
        message = self.message
        return Delivery(message.body, redelivered=bool(message.redelivered), user=message.user_id or "")

    @property
    def deliveries(self) -> int:
        earlier = self.message.headers.get("x-delivery-count", 0)
        return 1 + (earlier if isinstance(earlier, int) else 0)

    def is_stale(self) -> bool:
        try:
            return self.message.channel.is_closed
        except amqp.ChannelInvalidStateError:
            return True

    async def settle(self, verdict: Verdict) -> None:
        if verdict.outcome is Outcome.RETRY and self.deliveries > self.subscription.spec.delivery_limit:
            verdict = reject(DELIVERY_LIMIT_REASON)
        if verdict.outcome is Outcome.RETRY:
            self.subscription.rest(self)
            return
        if verdict.outcome is Outcome.REJECT and not self.is_stale():
            self.subscription.transport.dead.put(self.subscription.spec, self.message.body, verdict.reason)
        await _despite_loss(self.message.ack)

    async def give_back(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        await _despite_loss(self.message.nack)


@asynccontextmanager
async def _asking(access: Access, intent: str, timeout_s: float) -> AsyncIterator[None]:
    """Bound what is asked of the broker in time, and say in our own errors what it answered."""
    try:
        with _cancellation_means_loss():
            async with asyncio.timeout(timeout_s):
                yield
    except _REQUEST_REFUSED as error:
        raise _refused(access.where, access.user, intent, error) from error
    except _LOST as error:
        raise BrokerUnreachable(f"{access.where} did not answer when asked to {intent}") from error


def _refused(where: str, user: str, intent: str, error: Exception) -> BrokerRefused:
    return BrokerRefused(
        f"{where} does not let {user!r} {intent}: {error}. Check the user's permissions: `hubbub"
        " roster broker-config` grants each party what its role needs. A queue that exists with other properties"
        " has to be deleted first."
    )


def _pauses_s() -> Iterator[float]:
    """Pauses between attempts: short at first, a second at most."""
    pause_s = 0.05
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, 1.0)


async def _open_channel(connection: AbstractConnection) -> AbstractChannel:
    channel = connection.channel(publisher_confirms=True, on_return_raises=True)
    await channel.initialize()
    return channel


def _loss_of_connection(connection: AbstractConnection) -> asyncio.Event:
    lost = asyncio.Event()
    connection.close_callbacks.add(lambda *_: lost.set())
    # It may have been lost before we began to look.
    if connection.transport is None or connection.transport.connection.is_closed:
        lost.set()
    return lost


def _dead_letter(message: AbstractIncomingMessage) -> DeadLetter:
    headers = message.headers
    return DeadLetter(message.body, str(headers.get(QUEUE_HEADER, "")), str(headers.get(REASON_HEADER, "")))


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


@contextmanager
def _cancellation_means_loss() -> Iterator[None]:
    """Turn a `CancelledError` that nobody asked for into the loss of the connection that it stands for."""
    task = asyncio.current_task()
    # Not compared with zero: a task may publish while it winds up after its own cancellation.
    before = task.cancelling() if task else 0
    try:
        yield
    except asyncio.CancelledError as error:
        if task and task.cancelling() > before:
            raise
        raise ConnectionResetError("the connection was given up") from error


async def _despite_loss(operation: Callable[[], Awaitable[object]]) -> None:
    """Tell the broker something that does not matter any more if the connection is gone."""
    with suppress(*_LOST), _cancellation_means_loss():
        await operation()


async def _give_up(close: Callable[[], Awaitable[object]]) -> None:
    """Close a channel or connection, but do not wait long for an orderly end."""

    async def close_in_time() -> None:
        async with asyncio.timeout(_ANSWER_S):
            await close()

    await _despite_loss(close_in_time)
