"""Least privilege and TLS at a real broker that was told all it knows by `hubbub roster broker-config`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aiormq.exceptions import ChannelAccessRefused, ChannelPreconditionFailed
from typer.testing import CliRunner

from hubbub.errors import BrokerRefused
from hubbub.ids import PartyId, Role
from hubbub.transport.access import Login, Tls
from hubbub.transport.base import Address, Delivery, Verdict, reject
from hubbub.transport.rabbitmq import RabbitMqTransport
from hubbub.transport.topology import (
    EXCHANGES,
    FLOWS,
    Topology,
    dead_letter_exchange,
    dead_letter_queue,
    inbox,
    merge,
    peers_queue,
    route,
    topology_for,
)
from hubbub.trust.identity import Identity, new_identity
from hubbub.trust.roster import build_roster
from hubbub_cli.main import app
from support.aio import aio
from support.certificates import Authority, CertificateFiles
from support.private_node import NodeTls, PrivateNode, server_scripts
from support.twins import PAUSE, Recorder

pytestmark = pytest.mark.broker

ANNA, BERT = PartyId("anna"), PartyId("bert")
ADA, ALAN = PartyId("ada"), PartyId("alan")
CORA = PartyId("cora")
PARTIES = {
    ANNA: Role.CLIENT,
    BERT: Role.CLIENT,
    ADA: Role.AGGREGATOR,
    ALAN: Role.AGGREGATOR,
    CORA: Role.COORDINATOR,
}
# A broker that refuses must do it at once, and not when some time is up.
PROMPTLY_S = 5.0


@dataclass(frozen=True)
class Federation:
    """The broker, and what the parties have to get in."""

    node: PrivateNode
    identities: Mapping[PartyId, Identity]
    authority: Authority
    stranger: Authority
    client: CertificateFiles

    def login(self, party: PartyId) -> Login:
        return Login(party, self.identities[party].broker_password)

    def transport(
        self, party: PartyId, topology: Topology | None = None, login: Login | None = None
    ) -> RabbitMqTransport:
        return RabbitMqTransport(
            f"amqp://127.0.0.1:{self.node.port}/",
            topology or topology_for(party, PARTIES[party]),
            login=login or self.login(party),
            reconnect_interval_s=0.1,
            retry_pause=PAUSE,
        )

    def secure_transport(
        self, tls: Tls, *, host: str = "localhost", scheme: str = "amqps", port: int | None = None
    ) -> RabbitMqTransport:
        return RabbitMqTransport(
            f"{scheme}://{host}:{port or self.node.tls_port}/",
            topology_for(ADA, Role.AGGREGATOR),
            login=self.login(ADA),
            tls=tls,
            reconnect_interval_s=0.1,
        )


def write_definitions(identities: Mapping[PartyId, Identity], folder: Path) -> Path:
    roster, definitions = folder / "roster.json", folder / "broker.json"
    roster.write_text(build_roster([each.public() for each in identities.values()]).model_dump_json())
    command = ["roster", "broker-config", str(roster), "--out", str(definitions)]
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    return definitions


@pytest.fixture(scope="module")
def federation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    if server_scripts() is None:
        # Installs one, or says what to do.
        request.getfixturevalue("private_node")
    folder = tmp_path_factory.mktemp("federation")
    authority, stranger = Authority(folder / "ours"), Authority(folder / "theirs")
    # Not for 127.0.0.1, by which it can be reached all the same.
    server, client = authority.certify_server("localhost"), authority.certify_client("ada")
    identities = {name: new_identity(name, role, f"lab-of-{name}") for name, role in PARTIES.items()}
    with PrivateNode(NodeTls(authority.ca_file, server)) as node:
        node.import_definitions(write_definitions(identities, folder))
        yield Federation(node, identities, authority, stranger, client)


# What a party may do ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sender", "recipient"), FLOWS, ids=lambda role: role.value)
@aio
async def test_each_flow_works_from_login_to_login(federation: Federation, sender: Role, recipient: Role) -> None:
    first = next(name for name, role in PARTIES.items() if role is sender)
    last = next(name for name, role in reversed(PARTIES.items()) if role is recipient)
    recorder, address = Recorder(), route(sender, recipient, last)
    [queue] = [each.queue for each in topology_for(last, recipient).bindings if each.address == address]

    async with federation.transport(first) as ours, federation.transport(last) as theirs:
        await theirs.subscribe(queue, recorder)
        await ours.publish(address, b"hello")
        await recorder.wait_for(1)

    assert recorder.bodies == [b"hello"]


@pytest.mark.parametrize(
    ("party", "sender", "queue"),
    [(BERT, ANNA, peers_queue(BERT)), (ALAN, ANNA, inbox(ALAN)), (CORA, ANNA, inbox(CORA))],
)
@aio
async def test_each_role_puts_aside_what_it_rejects_and_reads_it(
    federation: Federation, party: PartyId, sender: PartyId, queue: str
) -> None:
    recorder = Recorder(reject("malformed"))

    async with federation.transport(sender) as theirs, federation.transport(party) as ours:
        await ours.subscribe(queue, recorder)
        await theirs.publish(route(PARTIES[sender], PARTIES[party], party), b"bad")
        await recorder.wait_for(1)
    async with federation.transport(party) as reader:
        dead = await reader.dead_letters(dead_letter_queue(party))

    assert [(letter.body, letter.queue, letter.reason) for letter in dead] == [(b"bad", queue, "malformed")]


@pytest.mark.parametrize("party", [BERT, ADA, CORA])
@aio
async def test_each_role_may_ask_what_waits_in_its_inbox(federation: Federation, party: PartyId) -> None:
    async with federation.transport(party) as ours:
        assert await ours.count_waiting(inbox(party)) == 0
        assert ours.condition.waiting == {inbox(party): 0}


@aio
async def test_definitions_that_are_loaded_again_change_nothing(federation: Federation, tmp_path: Path) -> None:
    recorder = Recorder()
    async with federation.transport(ANNA) as sender:
        await sender.publish(route(Role.CLIENT, Role.AGGREGATOR, ALAN), b"waiting")

    definitions = write_definitions(federation.identities, tmp_path)
    await asyncio.to_thread(federation.node.import_definitions, definitions)
    async with federation.transport(ALAN) as receiver:
        await receiver.subscribe(inbox(ALAN), recorder)
        await recorder.wait_for(1)

    assert recorder.bodies == [b"waiting"]


# What a party may not do --------------------------------------------------------------------------------

Operation = Callable[[AbstractChannel], Awaitable[object]]


async def ignore(_: AbstractIncomingMessage) -> None:
    return


async def consume(channel: AbstractChannel, queue: str) -> None:
    await (await channel.get_queue(queue, ensure=False)).consume(ignore)


async def get(channel: AbstractChannel, queue: str) -> None:
    await (await channel.get_queue(queue, ensure=False)).get()


async def purge(channel: AbstractChannel, queue: str) -> None:
    await (await channel.get_queue(queue, ensure=False)).purge()


async def bind(channel: AbstractChannel, queue: str, exchange: str, key: str) -> None:
    await (await channel.get_queue(queue, ensure=False)).bind(exchange, key)


async def unbind(channel: AbstractChannel, queue: str, exchange: str) -> None:
    await (await channel.get_queue(queue, ensure=False)).unbind(exchange, ANNA)


async def chain(channel: AbstractChannel, destination: str, source: str) -> None:
    await (await channel.get_exchange(destination, ensure=False)).bind(source, BERT)


FORBIDDEN: dict[str, Operation] = {
    "consume another's queue": lambda channel: consume(channel, inbox(BERT)),
    "get from another's queue": lambda channel: get(channel, inbox(ADA)),
    "read another's dead letters": lambda channel: get(channel, dead_letter_queue(BERT)),
    "purge another's queue": lambda channel: purge(channel, inbox(BERT)),
    "read what others send another": lambda channel: consume(channel, peers_queue(BERT)),
    "declare a queue": lambda channel: channel.declare_queue("mine"),
    "declare a queue that the broker names": lambda channel: channel.declare_queue(exclusive=True),
    "declare its own queue again": lambda channel: channel.declare_queue(inbox(ANNA), durable=True),
    "declare an exchange": lambda channel: channel.declare_exchange("mine"),
    "delete its own queue": lambda channel: channel.queue_delete(inbox(ANNA)),
    "delete another's queue": lambda channel: channel.queue_delete(inbox(BERT)),
    "delete an exchange": lambda channel: channel.exchange_delete("hubbub.shares"),
    "bind its queue to another exchange": lambda channel: bind(channel, inbox(ANNA), "hubbub.results", BERT),
    "bind its queue to what others send": lambda channel: bind(channel, inbox(ANNA), "hubbub.shares", ADA),
    "bind its dead letters anew": lambda channel: bind(
        channel, dead_letter_queue(ANNA), dead_letter_exchange(ANNA), BERT
    ),
    "unbind its queue": lambda channel: unbind(channel, inbox(ANNA), "hubbub.results"),
    "bind its inbox to what clients send": lambda channel: bind(channel, inbox(ANNA), "hubbub.peers", ANNA),
    "unbind what clients send": lambda channel: unbind(channel, peers_queue(ANNA), "hubbub.peers"),
    "unbind its dead letters": lambda channel: unbind(
        channel, dead_letter_queue(ANNA), dead_letter_exchange(ANNA)
    ),
    "chain exchanges": lambda channel: chain(channel, "hubbub.shares", "hubbub.results"),
}


@pytest.mark.parametrize("operation", FORBIDDEN.values(), ids=FORBIDDEN.keys())
@aio
async def test_a_client_may_not(federation: Federation, operation: Operation) -> None:
    password = federation.login(ANNA).password
    connection = await aio_pika.connect(host="127.0.0.1", port=federation.node.port, login=ANNA, password=password)

    async with connection:
        with pytest.raises(ChannelAccessRefused, match=r"ACCESS_REFUSED.*for user 'anna'"):
            await operation(await connection.channel())


@aio
async def test_nobody_publishes_in_the_name_of_another(federation: Federation) -> None:
    password = federation.login(ANNA).password
    connection = await aio_pika.connect(host="127.0.0.1", port=federation.node.port, login=ANNA, password=password)

    async with connection:
        exchange = await (await connection.channel()).get_exchange("hubbub.peers", ensure=False)
        with pytest.raises(ChannelPreconditionFailed, match="user_id property set to 'bert'"):
            await exchange.publish(aio_pika.Message(b"", user_id=BERT), BERT)


@aio
async def test_who_published_is_told_and_nobody_where_a_message_does_not_say(federation: Federation) -> None:
    password, recorder = federation.login(ANNA).password, Recorder()
    connection = await aio_pika.connect(host="127.0.0.1", port=federation.node.port, login=ANNA, password=password)

    async with connection, federation.transport(ANNA) as anna, federation.transport(BERT) as bert:
        await bert.subscribe(peers_queue(BERT), recorder)
        exchange = await (await connection.channel()).get_exchange("hubbub.peers", ensure=False)
        await exchange.publish(aio_pika.Message(b"raw"), BERT)
        await anna.publish(route(Role.CLIENT, Role.CLIENT, BERT), b"ours")
        await recorder.wait_for(2)

    assert {delivery.body: delivery.user for delivery in recorder.deliveries} == {b"raw": "", b"ours": ANNA}


def forbidden_addresses() -> Iterator[tuple[PartyId, Address]]:
    """Every exchange that a role has no flow to, the broker's own ones, and another's dead letters."""
    for party, other in ((ANNA, BERT), (ADA, ALAN), (CORA, ANNA)):
        allowed = {exchange for (sender, _), exchange in FLOWS.items() if sender is PARTIES[party]}
        for exchange in EXCHANGES:
            if exchange.name not in allowed:
                yield party, Address(exchange.name, BERT)
        yield party, Address("", inbox(other))
        yield party, Address("amq.direct", inbox(other))
        yield party, Address(dead_letter_exchange(other), other)


@pytest.mark.parametrize(
    ("party", "address"),
    [
        pytest.param(*each, id=f"{each[0]} to {each[1].exchange or 'amq.default'}")
        for each in forbidden_addresses()
    ],
)
@aio
async def test_publishing_where_no_flow_goes_is_refused_at_once(
    federation: Federation, party: PartyId, address: Address
) -> None:
    async with federation.transport(party) as transport:
        with pytest.raises(BrokerRefused, match=f"'{party}' publish to '{address.exchange}'.*ACCESS_REFUSED"):
            async with asyncio.timeout(PROMPTLY_S):
                await transport.publish(address, b"forged")


def test_the_forbidden_addresses_are_those_of_the_rules() -> None:
    addresses = {(party, address.exchange) for party, address in forbidden_addresses()}

    assert addresses >= {
        (ANNA, "hubbub.results"),
        (ANNA, "hubbub.control"),
        (ADA, "hubbub.shares"),
        (ADA, "hubbub.peers"),
        (CORA, "hubbub.shares"),
        (ANNA, "hubbub.rejected.bert"),
    }


@aio
async def test_subscribing_to_another_partys_queue_is_refused_and_named(federation: Federation) -> None:
    both = merge(topology_for(name, Role.CLIENT) for name in (ANNA, BERT))

    async with federation.transport(ANNA, both) as transport:
        with pytest.raises(BrokerRefused, match=r"'anna' read queue 'hubbub\.inbox\.bert'"):
            await transport.subscribe(inbox(BERT), Recorder())
        with pytest.raises(BrokerRefused, match=r"'anna' read queue 'hubbub\.dead\.bert'"):
            await transport.dead_letters(dead_letter_queue(BERT))


@aio
async def test_refused_publish_does_not_disturb_what_else_goes_on(federation: Federation) -> None:
    holding, release, recorder = asyncio.Event(), asyncio.Event(), Recorder()

    async def hold(delivery: Delivery) -> Verdict:
        holding.set()
        await release.wait()
        return await recorder(delivery)

    async with federation.transport(ANNA) as transport:
        await transport.subscribe(peers_queue(ANNA), hold)
        await transport.publish(route(Role.CLIENT, Role.CLIENT, ANNA), b"held")
        await holding.wait()
        refused = [transport.publish(Address("hubbub.results", BERT), b"forged") for _ in range(5)]
        answers = await asyncio.gather(*refused, return_exceptions=True)
        await transport.publish(route(Role.CLIENT, Role.CLIENT, ANNA), b"after")
        release.set()
        await recorder.wait_for(2)

    assert {type(answer) for answer in answers} == {BrokerRefused}
    # Over the channel that it came over: nothing was delivered again.
    assert recorder.deliveries == [Delivery(b"held", redelivered=False), Delivery(b"after", redelivered=False)]


@pytest.mark.parametrize("user", [ANNA, "mallory"])
@aio
async def test_wrong_password_and_unknown_user_are_refused_at_once(federation: Federation, user: str) -> None:
    # Somebody's right password, so that it is not for its form that it is refused.
    login = Login(user, federation.login(BERT).password)

    with pytest.raises(BrokerRefused, match=rf"refuses user '{user}'.*password") as refusal:
        async with asyncio.timeout(PROMPTLY_S), federation.transport(ANNA, login=login):
            pass

    assert login.password not in str(refusal.value)


# TLS ----------------------------------------------------------------------------------------------------


@aio
async def test_tls_with_client_certificate_carries_messages_also_after_a_cut(federation: Federation) -> None:
    tls = Tls(
        ca_file=federation.authority.ca_file, cert_file=federation.client.cert, key_file=federation.client.key
    )
    body, recorder = bytes(range(256)) * 4096, Recorder()

    async with federation.secure_transport(tls) as ours, federation.transport(ANNA) as theirs:
        await ours.subscribe(inbox(ADA), recorder)
        await theirs.publish(route(Role.CLIENT, Role.AGGREGATOR, ADA), body)
        await recorder.wait_for(1)
        await asyncio.to_thread(federation.node.ctl, "close_all_connections", "maintenance")
        await ours.publish(route(Role.AGGREGATOR, Role.COORDINATOR, CORA), b"receipt")
        await theirs.publish(route(Role.CLIENT, Role.AGGREGATOR, ADA), b"after")
        await recorder.wait_for_all({body, b"after"})
    async with federation.transport(CORA) as coordinator:
        received = Recorder()
        await coordinator.subscribe(inbox(CORA), received)
        await received.wait_for_all({b"receipt"})


async def find_refusal(transport: RabbitMqTransport) -> str:
    with pytest.raises(BrokerRefused) as refusal:
        async with asyncio.timeout(PROMPTLY_S), transport:
            pass
    return str(refusal.value)


@aio
async def test_broker_certified_by_somebody_else_is_refused(federation: Federation) -> None:
    tls = Tls(
        ca_file=federation.stranger.ca_file, cert_file=federation.client.cert, key_file=federation.client.key
    )

    said = await find_refusal(federation.secure_transport(tls))

    assert f"localhost:{federation.node.tls_port}: the broker's certificate does not verify" in said


@aio
async def test_broker_under_a_name_that_its_certificate_lacks_is_refused(federation: Federation) -> None:
    tls = Tls(
        ca_file=federation.authority.ca_file, cert_file=federation.client.cert, key_file=federation.client.key
    )

    said = await find_refusal(federation.secure_transport(tls, host="127.0.0.1"))

    assert "does not verify: IP address mismatch, certificate is not valid for '127.0.0.1'" in said


@aio
async def test_client_without_certificate_is_told_that_the_broker_demands_one(federation: Federation) -> None:
    said = await find_refusal(federation.secure_transport(Tls(ca_file=federation.authority.ca_file)))

    assert "demands a client certificate" in said


@aio
async def test_client_certified_by_somebody_else_is_refused(federation: Federation) -> None:
    theirs = federation.stranger.certify_client("ada")
    tls = Tls(ca_file=federation.authority.ca_file, cert_file=theirs.cert, key_file=theirs.key)

    said = await find_refusal(federation.secure_transport(tls))

    assert "our client certificate" in said


@aio
async def test_plain_connection_to_the_port_for_tls_is_told_to_use_tls(federation: Federation) -> None:
    said = await find_refusal(federation.secure_transport(Tls(), scheme="amqp", host="127.0.0.1"))

    assert "write amqps://" in said


@aio
async def test_tls_to_the_plain_port_is_told_apart_from_a_bad_certificate(federation: Federation) -> None:
    tls = Tls(ca_file=federation.authority.ca_file)

    said = await find_refusal(federation.secure_transport(tls, port=federation.node.port))

    assert "does not speak TLS" in said
