"""Subscriptions to queues of RabbitMQ, each over a channel of its own that is replaced when it is lost.

A queue has one active consumer. The others wait at the broker until that one is gone, which is how a subscription
that was cut off comes back while the broker still believes in the lost connection. One that begins does not wait
there: it looks whether the queue is free, and the transport asks again until its patience ends. Two that begin in
the same instant may both find the queue free; one of them waits, and is given nothing.

Traps of aio-pika that are met here:

- Callbacks are cancelled with their connection: ours only put the message into a `Worker`'s queue.
- What was fetched over a lost connection comes again: `TakenMessage.is_stale` keeps it from being handled twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from aio_pika import exceptions as amqp
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from hubbub.transport.base import DELIVERY_LIMIT_REASON, Delivery, Outcome, Verdict, reject
from hubbub.transport.rabbitmq.connection import (
    ANSWER_S,
    LOST,
    Link,
    despite_loss,
    give_up,
    loss_as_connection_error,
    open_channel,
)
from hubbub.transport.subscription import RetryPause, Worker
from hubbub.transport.topology import QueueSpec

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Subscription:
    """One queue, consumed until `end`; rejected messages go to `put_aside`, with their reason."""

    link: Link
    spec: QueueSpec
    prefetch: int
    worker: Worker[TakenMessage]
    put_aside: Callable[[QueueSpec, bytes, str], None]
    retry_pause: RetryPause
    reconnect_interval_s: float
    channel: AbstractChannel | None = None
    consumer_tag: str = ""
    lost: asyncio.Event | None = None
    """Set when consuming has ended; None before it began."""
    flowing: asyncio.Event = field(default_factory=asyncio.Event)
    """Not set during a pause."""
    keeper: asyncio.Task[None] | None = None
    beside: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.flowing.set()

    @property
    def is_consuming(self) -> bool:
        """True while the broker delivers to us."""
        return self.lost is not None and not self.lost.is_set()

    async def begin(self) -> bool:
        """Consume if nobody else does."""
        self.lost = lost = await self._consume()
        if lost is None:
            return False
        self.keeper = asyncio.create_task(self._keep(lost), name=f"keep consuming {self.spec.name}")
        return True

    def pause(self) -> None:
        """Stop consuming until `flowing` is set again."""
        self.flowing.clear()
        if self.lost is not None:
            self.lost.set()

    async def end(self) -> None:
        """Stop consuming, and wait for the handler that is running."""
        if self.keeper is not None:
            self.keeper.cancel()
            await asyncio.gather(self.keeper, return_exceptions=True)
        try:
            await despite_loss(self._cancel)
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
                await give_up(self.channel.close)
            await self.flowing.wait()
            self.lost = lost = await self._consume_again()

    async def _consume_again(self) -> asyncio.Event:
        while True:
            await asyncio.sleep(self.reconnect_interval_s)
            try:
                with loss_as_connection_error():
                    lost = await self._consume(stand_by=True)
                    if lost is not None:
                        return lost
            except LOST as error:
                log.debug("still not consuming %s: %s", self.spec.name, type(error).__name__)

    async def _consume(self, *, stand_by: bool = False) -> asyncio.Event | None:
        """Begin to consume over a new channel; return an event that is set when that ends.

        A queue that has a consumer is left alone, unless we stand by to follow it.
        """
        connection = await self.link.connection()
        lost = asyncio.Event()
        async with asyncio.timeout(ANSWER_S):
            self.channel = channel = await open_channel(connection)
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

    def rest(self, taken: TakenMessage) -> None:
        """Return a message to the queue after a pause; until then it stays unsettled and uses up prefetch.

        RabbitMQ delivers what is returned at once, so returning at once would spin.
        """

        async def give_back() -> None:
            await asyncio.sleep(self.retry_pause.after(taken.deliveries))
            await despite_loss(taken.message.nack)

        self._run(give_back())

    async def _receive(self, message: AbstractIncomingMessage) -> None:
        taken = TakenMessage(message, self)
        if taken.deliveries > self.spec.delivery_limit + 1:
            # Whoever took it never came to say anything: it may be what kills us.
            self._run(taken.settle(reject(DELIVERY_LIMIT_REASON)))
        else:
            self.worker.put(taken)

    def _run(self, work: Coroutine[object, object, None]) -> None:
        """Run something beside the worker, for as long as the subscription lasts."""
        task = asyncio.create_task(work)
        self.beside.add(task)
        task.add_done_callback(self.beside.discard)

    async def _cancel(self) -> None:
        if self.channel is not None and not self.channel.is_closed:
            async with asyncio.timeout(ANSWER_S):
                underlay = await self.channel.get_underlay_channel()
                await underlay.basic_cancel(self.consumer_tag)


@dataclass(slots=True, eq=False)
class TakenMessage:
    """A message that was taken from the queue and is not settled yet."""

    message: AbstractIncomingMessage
    subscription: Subscription

    @property
    def delivery(self) -> Delivery:
        """The part of it that the handler gets to see."""
        message = self.message
        return Delivery(message.body, redelivered=bool(message.redelivered), user=message.user_id or "")

    @property
    def deliveries(self) -> int:
        """The number of times that it was delivered, this one included."""
        earlier = self.message.headers.get("x-delivery-count", 0)
        return 1 + (earlier if isinstance(earlier, int) else 0)

    def is_stale(self) -> bool:
        """Say whether its channel is gone, so that the broker will deliver it again."""
        try:
            return self.message.channel.is_closed
        except amqp.ChannelInvalidStateError:
            return True

    async def settle(self, verdict: Verdict) -> None:
        """Tell the broker the verdict; a loss of the connection meanwhile is not an error."""
        if verdict.outcome is Outcome.RETRY and self.deliveries > self.subscription.spec.delivery_limit:
            verdict = reject(DELIVERY_LIMIT_REASON)
        if verdict.outcome is Outcome.RETRY:
            self.subscription.rest(self)
            return
        if verdict.outcome is Outcome.REJECT and not self.is_stale():
            self.subscription.put_aside(self.subscription.spec, self.message.body, verdict.reason)
        await despite_loss(self.message.ack)
