"""What of the RabbitMQ transport can be seen without a broker."""

import asyncio

import pytest

from hubbub.errors import ConfigurationError
from hubbub.ids import PartyId, Role
from hubbub.transport.rabbitmq import RabbitMqTransport, _arguments, _cancellation_means_loss
from hubbub.transport.topology import dead_letter_queue, inbox, topology_for
from support.aio import aio

ANNA = PartyId("anna")
TOPOLOGY = topology_for(ANNA, Role.AGGREGATOR)


def test_password_is_never_printed() -> None:
    transport = RabbitMqTransport("amqp://anna:sesame@broker.example/vhost", TOPOLOGY)

    assert repr(transport) == "RabbitMqTransport('hubbub' at broker.example:5672)"


def test_secure_scheme_has_another_port() -> None:
    assert "example:5671" in repr(RabbitMqTransport("amqps://anna:sesame@example/", TOPOLOGY))


@pytest.mark.parametrize("url", ["", "sesame", "http://a:sesame@host/", "amqp://", "amqp://a:sesame@host:port/"])
def test_url_that_is_none_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match="amqp://user:password@host") as refusal:
        RabbitMqTransport(url, TOPOLOGY)

    assert "sesame" not in str(refusal.value)


def test_limits_become_arguments_of_a_replicated_queue() -> None:
    assert _arguments(TOPOLOGY.queue(inbox(ANNA))) == {
        "x-queue-type": "quorum",
        "x-delivery-limit": 100,
        "x-dead-letter-exchange": "hubbub.dead",
        "x-dead-letter-routing-key": "anna",
        "x-max-length": 4096,
        "x-overflow": "reject-publish",
    }
    assert _arguments(TOPOLOGY.queue(dead_letter_queue(ANNA)))["x-overflow"] == "drop-head"


@aio
async def test_cancellation_that_nobody_asked_for_is_a_lost_connection() -> None:
    with pytest.raises(ConnectionError), _cancellation_means_loss():
        raise asyncio.CancelledError


@aio
async def test_cancellation_of_the_task_stays_one() -> None:
    async def wait() -> None:
        with _cancellation_means_loss():
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


@aio
async def test_loss_is_told_apart_also_while_a_cancelled_task_winds_up() -> None:
    seen: list[str] = []

    async def wind_up() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                with _cancellation_means_loss():
                    raise asyncio.CancelledError from None
            except ConnectionError:
                seen.append("loss")
            raise

    task = asyncio.create_task(wind_up())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert seen == ["loss"]
