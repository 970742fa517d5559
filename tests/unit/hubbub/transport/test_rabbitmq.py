"""What of the RabbitMQ transport can be seen without a broker."""

import asyncio
from itertools import groupby

import pytest

from hubbub.errors import BrokerUnreachable, ConfigurationError
from hubbub.ids import PartyId, Role
from hubbub.transport.access import Login
from hubbub.transport.rabbitmq import RabbitMqTransport, _cancellation_means_loss
from hubbub.transport.topology import topology_for
from support.aio import aio
from support.listening import listening

ANNA = PartyId("anna")
TOPOLOGY = topology_for(ANNA, Role.AGGREGATOR)


def test_password_is_never_printed() -> None:
    for transport in (
        RabbitMqTransport("amqp://anna:sesame@broker.example/vhost", TOPOLOGY),
        RabbitMqTransport("amqp://broker.example/vhost", TOPOLOGY, login=Login("anna", "sesame")),
    ):
        assert repr(transport) == "RabbitMqTransport('hubbub' at broker.example:5672)"


def test_secure_scheme_has_another_port() -> None:
    assert "example:5671" in repr(RabbitMqTransport("amqps://anna:sesame@example/", TOPOLOGY))


@pytest.mark.parametrize("url", ["", "sesame", "http://a:sesame@host/", "amqp://", "amqp://a:sesame@host:port/"])
def test_url_that_is_none_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match="amqp://user:password@host") as refusal:
        RabbitMqTransport(url, TOPOLOGY)

    assert "sesame" not in str(refusal.value)


@aio
async def test_first_connect_can_be_given_up_at_once() -> None:
    heard = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.set()
        await reader.read()
        writer.close()

    async with listening(say_nothing) as port:
        transport = RabbitMqTransport(f"amqp://anna:sesame@127.0.0.1:{port}/", TOPOLOGY, connect_timeout_s=60)
        entering = asyncio.create_task(transport.__aenter__())
        await heard.wait()
        entering.cancel()
        async with asyncio.timeout(1):
            with pytest.raises(asyncio.CancelledError):
                await entering


@aio
async def test_addresses_are_tried_in_turn_and_all_are_named_if_none_answers() -> None:
    tried: list[int] = []
    again = asyncio.Event()

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tried.append(writer.get_extra_info("sockname")[1])
        if len(tried) >= 5:
            again.set()
        writer.close()

    async with listening(hang_up) as first, listening(hang_up) as second:
        ports = [first, second]
        urls = ",".join(f"amqp://anna:sesame@127.0.0.1:{port}/" for port in ports)
        transport = RabbitMqTransport(urls, TOPOLOGY, connect_timeout_s=1, reconnect_interval_s=0.01)
        with pytest.raises(BrokerUnreachable, match=rf"127\.0\.0\.1:{first}, 127\.0\.0\.1:{second}") as failure:
            await transport.__aenter__()

    assert again.is_set()
    assert "sesame" not in str(failure.value)
    # A connection that is broken off is looked at twice, to find out whether TLS is why.
    in_turn = [port for port, _ in groupby(tried)]
    assert in_turn == [ports[number % 2] for number in range(len(in_turn))]


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
