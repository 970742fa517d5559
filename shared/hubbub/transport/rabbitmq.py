"""RabbitMQ through aio-pika: the only module that knows either.

One connection per transport. On it one channel per exchange that is published to and one per subscription: the
broker reports an error by closing the channel it happened on, and only those who asked for the same thing
should feel it. `_Link` replaces a connection that is lost, and each `_Subscription` its channel.

This is not left to aio-pika's robust connection, because that restores one channel after the other and waits
for every answer without limit: one queue that cannot answer (it has no leader, say) would hold up all else.
Here every request has its time, and what is not answered is asked again on a new channel.

Traps of aio-pika and where they are met:

- A publish in flight when the connection is lost raises and is not sent again: `publish` does it.
- A peer that falls silent makes whatever waits raise `CancelledError` though nobody cancelled:
  `_cancellation_means_loss` tells the two apart.
- Callbacks are cancelled with their connection: ours only put the message into a `Worker`'s queue.
- What was fetched over a lost connection comes again: `_Taken.is_stale` keeps it from being handled twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

import aio_pika
from aio_pika import exceptions as amqp
from aio_pika.abc import (
    AbstractChannel,
    AbstractConnection,
    AbstractExchange,
    AbstractIncomingMessage,
    HeadersType,
)
from aio_pika.connection import make_url
from aiormq.exceptions import ChannelAccessRefused

from hubbub.errors import BrokerRefused, BrokerUnreachable, ConfigurationError, TransportError, Unroutable
from hubbub.transport.base import (
    Address,
    DeadLetter,
    Delivery,
    Handler,
    Outcome,
    Transport,
    Verdict,
    check_size,
)
from hubbub.transport.subscription import RetryPause, Worker, check_outside
from hubbub.transport.topology import QueueSpec, Topology

log = logging.getLogger(__name__)

REASON_HEADER = "hubbub-reason"
QUEUE_HEADER = "hubbub-queue"

# RuntimeError is among them because aio-pika's ChannelInvalidStateError is one; TimeoutError is an OSError.
_LOST = amqp.CONNECTION_EXCEPTIONS
# A broker says no to a virtual host by closing the connection where aiormq expects another frame.
_LOGIN_REFUSED = (amqp.AuthenticationError, amqp.ProbableAuthenticationError, amqp.InvalidFrameError)
_REQUEST_REFUSED = (ChannelAccessRefused, amqp.ChannelNotFoundEntity, amqp.ChannelPreconditionFailed)
# How long the broker may take to answer what it can answer at once.
_ANSWER_S = 5.0


class RabbitMqTransport(Transport):
    """One party's connection to RabbitMQ."""

    def __init__(
        self,
        url: str,
        topology: Topology,
        *,
        connection_name: str = "hubbub",
        heartbeat_s: int = 10,
        connect_timeout_s: float = 15.0,
        publish_timeout_s: float = 60.0,
        confirm_timeout_s: float = 20.0,
        reconnect_interval_s: float = 1.0,
        retry_pause: RetryPause | None = None,
    ) -> None:
        self._url = url
        self._host_and_port = _host_and_port(url)
        self._topology = topology
        self._connection_name = connection_name
        self._heartbeat_s = heartbeat_s
        self._connect_timeout_s = connect_timeout_s
        self._publish_timeout_s = publish_timeout_s
        self._confirm_timeout_s = confirm_timeout_s
        self._reconnect_interval_s = reconnect_interval_s
        self._retry_pause = retry_pause or RetryPause()
        self._link: _Link | None = None
        self._publishers = _Publishers()
        self._publishing: set[asyncio.Timeout] = set()
        self._subscriptions: list[_Subscription] = []

    def __repr__(self) -> str:
        # The URL holds a password.
        return f"RabbitMqTransport({self._connection_name!r} at {self._host_and_port})"

    async def __aenter__(self) -> Self:
        self._link = _Link(await self._connect(), self._connect_at_last, self._reconnect_interval_s)
        return self

    async def publish(self, address: Address, body: bytes) -> None:
        """Send, and send again after every loss or refusal, until the broker confirms or time is up."""
        await self._publish(address, body, {})

    async def subscribe(self, queue: str, handler: Handler, *, prefetch: int = 8) -> None:
        """Open a channel with a prefetch of its own and consume."""
        if prefetch < 1:
            raise ConfigurationError(f"prefetch must be at least 1, not {prefetch}")
        spec = self._topology.queue(queue)
        link = self._opened()
        subscription = _Subscription(self, link, spec, prefetch, Worker(queue, handler))
        # Listed before it begins, so that closing ends it whatever happens.
        self._subscriptions.append(subscription)
        async with self._asking(f"read queue {queue!r}"):
            await subscription.begin()

    async def close(self) -> None:
        """Stop consuming, let handlers finish and tell their verdicts, then disconnect."""
        check_outside(subscription.worker for subscription in self._subscriptions)
        subscriptions, self._subscriptions = self._subscriptions, []
        try:
            await asyncio.gather(*(subscription.end() for subscription in subscriptions))
        finally:
            link, self._link = self._link, None
            for limit in self._publishing:
                if not limit.expired():
                    limit.reschedule(asyncio.get_running_loop().time())
            if link is not None:
                await link.close()

    async def dead_letters(self, queue: str, limit: int = 100) -> list[DeadLetter]:
        """Look at the oldest dead letters without removing any."""
        found: list[DeadLetter] = []
        async with self._asking(f"read queue {queue!r}"):
            channel = await _open_channel(await self._opened().connection())
            source = await channel.get_queue(queue)
            while len(found) < limit and (message := await source.get(fail=False)) is not None:
                found.append(_dead_letter(message))
            # Closing returns what was fetched and not acknowledged.
            await channel.close()
        return found

    async def remove_queues(self) -> None:
        """Delete this topology's queues with all that is in them; the exchanges, which are shared, stay."""
        async with self._asking("delete its queues"):
            channel = await _open_channel(await self._opened().connection())
            for spec in self._topology.queues:
                await channel.queue_delete(spec.name)
            await channel.close()

    async def put_aside(self, spec: QueueSpec, body: bytes, reason: str) -> None:
        """Publish a rejected message, with its reason, to the dead letters of its queue."""
        if spec.dead_letters is not None:
            await self._publish(spec.dead_letters, body, {REASON_HEADER: reason, QUEUE_HEADER: spec.name})

    @property
    def retry_pause(self) -> RetryPause:
        """How long a message rests before it is delivered again."""
        return self._retry_pause

    @property
    def reconnect_interval_s(self) -> float:
        """How long to wait before something is asked of the broker again."""
        return self._reconnect_interval_s

    async def _connect(self) -> AbstractConnection:
        """Try for a while: a broker that starts at the same time as we do is ordinary."""
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                return await self._connect_at_last()
        except TimeoutError as error:
            raise BrokerUnreachable(
                f"no RabbitMQ answers at {self._host_and_port} (tried for {self._connect_timeout_s:g} s). Check"
                " that the broker runs, that host and port in its URL are right, and that no firewall is in"
                " between."
            ) from error
        except _LOGIN_REFUSED as error:
            raise BrokerRefused(
                f"{self._host_and_port} refuses the connection ({type(error).__name__}). Check user, password"
                " and virtual host in the broker's URL, and the user's permissions there."
            ) from error
        except _REQUEST_REFUSED as error:
            raise self._refused("declare its queues", error) from error

    async def _connect_at_last(self) -> AbstractConnection:
        """Try until the broker answers, be it with a refusal."""
        while True:
            try:
                return await self._connect_once()
            except (*_LOGIN_REFUSED, *_REQUEST_REFUSED):
                raise
            except _LOST as error:
                log.debug("no connection to %s: %s", self._host_and_port, type(error).__name__)
            await asyncio.sleep(self._reconnect_interval_s)

    async def _connect_once(self) -> AbstractConnection:
        connection = aio_pika.Connection(
            make_url(self._url, heartbeat=self._heartbeat_s),
            client_properties={"connection_name": self._connection_name},
        )
        try:
            with _cancellation_means_loss():
                async with asyncio.timeout(_ANSWER_S):
                    await connection.connect()
                    channel = await _open_channel(connection)
                    await _declare(channel, self._topology)
                    await channel.close()
        except BaseException:
            await _give_up(connection.close)
            raise
        return connection

    async def _publish(self, address: Address, body: bytes, headers: HeadersType) -> None:
        check_size(body)
        message = aio_pika.Message(body, headers=headers, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        failure: BaseException | None = None
        try:
            async with asyncio.timeout(self._publish_timeout_s) as limit:
                with self._listed(limit):
                    for pause_s in _pauses_s():
                        failure = await self._try_to_publish(address, message)
                        if failure is None:
                            return
                        await asyncio.sleep(pause_s)
        except TimeoutError:
            self._opened()
            raise TransportError(
                f"{self._host_and_port} did not confirm a message for {address.routing_key!r} within"
                f" {self._publish_timeout_s:g} s: the broker is away, or the recipient's queue is full"
            ) from failure

    async def _try_to_publish(self, address: Address, message: aio_pika.Message) -> Exception | None:
        """Publish once; return what went wrong if it is worth another try."""
        link = self._opened()
        try:
            with _cancellation_means_loss():
                connection = await link.connection()
                async with self._publishers.exchange(connection, address.exchange) as exchange:
                    await exchange.publish(message, address.routing_key, timeout=self._confirm_timeout_s)
        except (amqp.PublishError, amqp.ChannelNotFoundEntity) as error:
            raise Unroutable(
                f"no queue takes messages for {address.routing_key!r} at {address.exchange!r}"
            ) from error
        except ChannelAccessRefused as error:
            raise self._refused(f"publish to {address.exchange!r}", error) from error
        except _LOST as error:
            return error
        return None

    @contextmanager
    def _listed(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Let `close` end a publish that waits for a broker that is away."""
        self._publishing.add(limit)
        try:
            yield
        finally:
            self._publishing.discard(limit)

    def _opened(self) -> _Link:
        if self._link is None:
            raise TransportError("this transport is not open: enter it with `async with` before use")
        return self._link

    @asynccontextmanager
    async def _asking(self, intent: str) -> AsyncIterator[None]:
        """Bound what is asked of the broker in time, and say in our own errors what it answered."""
        try:
            with _cancellation_means_loss():
                async with asyncio.timeout(self._connect_timeout_s):
                    yield
        except _REQUEST_REFUSED as error:
            raise self._refused(intent, error) from error
        except _LOST as error:
            raise BrokerUnreachable(f"{self._host_and_port} did not answer when asked to {intent}") from error

    def _refused(self, intent: str, error: Exception) -> BrokerRefused:
        return BrokerRefused(
            f"{self._host_and_port} does not let {self._connection_name!r} {intent}: {error}. Check the"
            " user's permissions; a queue that exists with other properties has to be deleted first."
        )


class _Link:
    """The connection of the moment: a new one is made whenever it is lost."""

    def __init__(
        self, first: AbstractConnection, connect: Callable[[], Awaitable[AbstractConnection]], interval_s: float
    ) -> None:
        self._current = first
        self._connect = connect
        self._interval_s = interval_s
        self._up = asyncio.Event()
        self._up.set()
        self._keeper = asyncio.create_task(self._keep(_loss_of_connection(first)), name="keep connected")

    async def connection(self) -> AbstractConnection:
        """Wait until there is one."""
        await self._up.wait()
        return self._current

    async def close(self) -> None:
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        await _give_up(self._current.close)

    async def _keep(self, lost: asyncio.Event) -> None:
        while True:
            await lost.wait()
            self._up.clear()
            log.warning("the connection to the broker is lost; connecting again")
            await _give_up(self._current.close)
            self._current = await self._reconnect()
            lost = _loss_of_connection(self._current)
            self._up.set()
            log.warning("connected to the broker again")

    async def _reconnect(self) -> AbstractConnection:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                return await self._connect()
            except _LOST as error:
                # It answered with a refusal: only an operator can change that, and may.
                log.warning("the broker refuses to take us back: %s", type(error).__name__)


class _Publishers:
    """A channel for each exchange that is published to, opened when first needed."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[AbstractConnection, AbstractChannel]] = {}
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def exchange(self, connection: AbstractConnection, name: str) -> AsyncIterator[AbstractExchange]:
        """Give an exchange to publish to; a channel over which no answer comes is given up."""
        async with self._opening:
            owner, channel = self._open.get(name, (None, None))
            if channel is None or channel.is_closed or owner is not connection:
                async with asyncio.timeout(_ANSWER_S):
                    channel = await _open_channel(connection)
                self._open[name] = connection, channel
        try:
            yield await channel.get_exchange(name, ensure=False)
        except TimeoutError:
            if self._open.get(name) == (connection, channel):
                del self._open[name]
            await _give_up(channel.close)
            raise


@dataclass(slots=True, eq=False)
class _Subscription:
    transport: RabbitMqTransport
    link: _Link
    spec: QueueSpec
    prefetch: int
    worker: Worker[_Taken]
    channel: AbstractChannel | None = None
    consumer_tag: str = ""
    keeper: asyncio.Task[None] | None = None
    resting: set[asyncio.Task[None]] = field(default_factory=set)

    async def begin(self) -> None:
        lost = await self._consume()
        self.keeper = asyncio.create_task(self._keep(lost), name=f"keep consuming {self.spec.name}")

    async def end(self) -> None:
        if self.keeper is not None:
            self.keeper.cancel()
            await asyncio.gather(self.keeper, return_exceptions=True)
        try:
            await _despite_loss(self._cancel)
            await self.worker.stop()
        finally:
            for task in self.resting:
                task.cancel()

    async def _keep(self, lost: asyncio.Event) -> None:
        while True:
            await lost.wait()
            log.warning("the subscription to %s ended; subscribing again", self.spec.name)
            if self.channel is not None:
                await _give_up(self.channel.close)
            lost = await self._consume_again()

    async def _consume_again(self) -> asyncio.Event:
        while True:
            await asyncio.sleep(self.transport.reconnect_interval_s)
            try:
                with _cancellation_means_loss():
                    return await self._consume()
            except _LOST as error:
                log.debug("still not consuming %s: %s", self.spec.name, type(error).__name__)

    async def _consume(self) -> asyncio.Event:
        """Begin to consume over a new channel; return what is set when that ends."""
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
            self.consumer_tag = await queue.consume(self._receive)
        if channel.is_closed:
            lost.set()
        return lost

    def rest(self, taken: _Taken) -> None:
        """Return a message to the queue after a pause; until then it stays unsettled and uses up prefetch.

        RabbitMQ delivers what is returned at once, so returning at once would spin.
        """
        task = asyncio.create_task(taken.give_back(self.transport.retry_pause.after(taken.deliveries)))
        self.resting.add(task)
        task.add_done_callback(self.resting.discard)

    async def _receive(self, message: AbstractIncomingMessage) -> None:
        self.worker.put(_Taken(message, self))

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
        return Delivery(self.message.body, redelivered=bool(self.message.redelivered))

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
        if verdict.outcome is Outcome.RETRY:
            self.subscription.rest(self)
        elif verdict.outcome is Outcome.ACK or await self._put_aside(verdict.reason):
            await _despite_loss(self.message.ack)

    async def give_back(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        await _despite_loss(self.message.nack)

    async def _put_aside(self, reason: str) -> bool:
        if self.is_stale():
            return False
        spec = self.subscription.spec
        try:
            await self.subscription.transport.put_aside(spec, self.message.body, reason)
        except TransportError as error:
            log.warning("a message of %s is rejected (%s) but cannot be put aside: %s", spec.name, reason, error)
            self.subscription.rest(self)
            return False
        return True


def _host_and_port(url: str) -> str:
    """Say where a URL leads, for messages: without user and password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    else:
        host = host if parts.scheme in {"amqp", "amqps"} else None
    if host is None:
        # `from None` and no echo of the URL: it may hold a password.
        raise ConfigurationError("the broker's URL must look like amqp://user:password@host:5672/vhost") from None
    return f"{host}:{port or (5671 if url.startswith('amqps') else 5672)}"


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


async def _declare(channel: AbstractChannel, topology: Topology) -> None:
    for exchange in topology.exchanges:
        await channel.declare_exchange(exchange.name, aio_pika.ExchangeType.DIRECT, durable=True)
    queues = {
        spec.name: await channel.declare_queue(spec.name, durable=True, arguments=_arguments(spec))
        for spec in topology.queues
    }
    for binding in topology.bindings:
        await queues[binding.queue].bind(binding.address.exchange, binding.address.routing_key)


def _arguments(spec: QueueSpec) -> HeadersType:
    arguments: HeadersType = {"x-queue-type": "quorum", "x-delivery-limit": spec.delivery_limit}
    if spec.dead_letters is not None:
        arguments["x-dead-letter-exchange"] = spec.dead_letters.exchange
        arguments["x-dead-letter-routing-key"] = spec.dead_letters.routing_key
    if spec.max_length is not None:
        arguments["x-max-length"] = spec.max_length
        arguments["x-overflow"] = spec.overflow.value
    return arguments


def _dead_letter(message: AbstractIncomingMessage) -> DeadLetter:
    """Read our own headers, or RabbitMQ's if the broker itself put the message aside."""
    queue = message.headers.get(QUEUE_HEADER, message.headers.get("x-first-death-queue", ""))
    reason = message.headers.get(REASON_HEADER, message.headers.get("x-first-death-reason", ""))
    return DeadLetter(message.body, str(queue), str(reason))


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
