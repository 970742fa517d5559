"""The parts of the RabbitMQ transport that can be seen without a broker."""

import asyncio
from itertools import groupby

import pytest

from hubbub.errors import BrokerUnreachable, ConfigurationError, TransportError
from hubbub.ids import PartyId, Role
from hubbub.transport.access import Login
from hubbub.transport.base import Address
from hubbub.transport.rabbitmq import RabbitMqTransport, dead_letters
from hubbub.transport.rabbitmq.connection import loss_as_connection_error
from hubbub.transport.rabbitmq.dead_letters import DeadLetters
from hubbub.transport.topology import inbox, topology_for
from support.listening import listening

ANNA = PartyId("anna")
TOPOLOGY = topology_for(ANNA, Role.AGGREGATOR)


def test_password_is_never_printed() -> None:
    for transport in (
        RabbitMqTransport("amqp://anna:sesame@broker.example/vhost", TOPOLOGY),
        RabbitMqTransport("amqp://broker.example/vhost", TOPOLOGY, login=Login("anna", "sesame")),
    ):
        assert repr(transport) == "RabbitMqTransport('hubbub' at broker.example:5672)"


@pytest.mark.parametrize("url", ["", "sesame", "http://a:sesame@host/", "amqp://", "amqp://a:sesame@host:port/"])
def test_url_that_is_none_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match="amqp://user:password@host") as refusal:
        RabbitMqTransport(url, TOPOLOGY)

    assert "sesame" not in str(refusal.value)


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


async def test_an_exception_of_no_class_and_a_cancellation_that_nobody_asked_for_are_losses() -> None:
    """aiormq raises the first where a write waits that a lost connection does not take any more."""
    with pytest.raises(ConnectionError), loss_as_connection_error():
        raise Exception  # noqa: TRY002  (As aiormq does.)
    with pytest.raises(ZeroDivisionError), loss_as_connection_error():
        raise ZeroDivisionError
    seen: list[str] = []

    async def wind_up() -> None:
        try:
            with loss_as_connection_error():
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            with pytest.raises(ConnectionError), loss_as_connection_error():
                raise asyncio.CancelledError from None
            seen.append("loss")
            raise

    with pytest.raises(ConnectionError), loss_as_connection_error():
        raise asyncio.CancelledError
    task = asyncio.create_task(wind_up())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert seen == ["cancelled", "loss"]


# Dead letters -----------------------------------------------------------------------------------------------


class Broker:
    """Takes dead letters, none of them before so many are on their way; one of them it never takes."""

    def __init__(self, at_once: int = 1, unwanted: bytes = b"") -> None:
        self.taken: list[bytes] = []
        self._at_once, self._unwanted = at_once, unwanted
        self._begun = 0
        self._enough = asyncio.Event()

    async def publish(self, address: Address, body: bytes, headers: object) -> None:
        assert address == Address("hubbub.rejected.anna", ANNA)
        assert headers == {"hubbub-reason": "malformed", "hubbub-queue": "hubbub.inbox.anna"}
        self._begun += 1
        if self._begun == self._at_once:
            self._enough.set()
        await self._enough.wait()
        if body == self._unwanted:
            raise TransportError("the broker is away")
        self.taken.append(body)


async def put_aside(broker: Broker, bodies: list[bytes]) -> None:
    dead = DeadLetters(broker.publish)
    for body in bodies:
        dead.put(TOPOLOGY.queue(inbox(ANNA)), body, "malformed")
    await dead.finish()
    await dead.stop()


async def test_a_dead_letter_that_the_broker_does_not_take_is_dropped_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker, bodies = Broker(at_once=20, unwanted=b"1"), [b"%d" % number for number in range(20)]

    await put_aside(broker, bodies)

    assert set(broker.taken) == set(bodies) - {b"1"}
    assert "a rejected message (malformed) is dropped: the broker is away" in caplog.text


async def test_of_a_flood_a_part_is_put_aside_and_the_rest_is_counted_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dead_letters, "ASIDE_PER_S", 0)
    broker, bodies = Broker(), [b"%d" % number for number in range(1_500)]

    await put_aside(broker, bodies)

    assert broker.taken == bodies[:1_000]
    assert caplog.messages == ["500 rejected messages were dropped: too many at a time to put aside"]
    monkeypatch.setattr(dead_letters, "ASIDE_MAX_BYTES", 2_500)
    broker = Broker()
    await put_aside(broker, [bytes([number]) * 1_000 for number in range(5)])
    assert [body[0] for body in broker.taken] == [0, 1], "the limit is one of bytes too"
