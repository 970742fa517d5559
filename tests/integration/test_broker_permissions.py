"""Least privilege and TLS at a real broker that was told all it knows by `hubbub roster broker-config`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
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
from support.certificates import Authority, CertificateFiles
from support.doctor_scene import ADA, ALAN, ANNA, BERT, CORA, ROLES
from support.private_node import NodeTls, PrivateNode
from support.twins import PAUSE, Recorder

pytestmark = pytest.mark.broker


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
            topology or topology_for(party, ROLES[party]),
            login=login or self.login(party),
            reconnect_interval_s=0.1,
            retry_pause=PAUSE,
        )

    async def connect(self, party: PartyId) -> AbstractConnection:
        password = self.login(party).password
        return await aio_pika.connect(host="127.0.0.1", port=self.node.port, login=party, password=password)

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
def federation(rabbitmq_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    del rabbitmq_server
    folder = tmp_path_factory.mktemp("federation")
    authority, stranger = Authority(folder / "ours"), Authority(folder / "theirs")
    # Not for 127.0.0.1, by which it can be reached all the same.
    server, client = authority.certify_server("localhost"), authority.certify_client("ada")
    identities = {name: new_identity(name, role, f"lab-of-{name}") for name, role in ROLES.items()}
    with PrivateNode(NodeTls(authority.ca_file, server)) as node:
        node.ctl("import_definitions", str(write_definitions(identities, folder)))
        yield Federation(node, identities, authority, stranger, client)


# What a party may do ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sender", "recipient"), FLOWS, ids=lambda role: role.value)
async def test_each_flow_works_from_login_to_login(federation: Federation, sender: Role, recipient: Role) -> None:
    first = next(name for name, role in ROLES.items() if role is sender)
    last = next(name for name, role in reversed(ROLES.items()) if role is recipient)
    recorder, address = Recorder(), route(sender, recipient, last)
    [queue] = [each.queue for each in topology_for(last, recipient).bindings if each.address == address]

    async with federation.transport(first) as ours, federation.transport(last) as theirs:
        await theirs.subscribe(queue, recorder)
        await ours.publish(address, b"hello")
        await recorder.wait_for(1)

    assert recorder.bodies == [b"hello"]


@pytest.mark.parametrize(("party", "queue"), [(BERT, peers_queue(BERT)), (ALAN, inbox(ALAN)), (CORA, inbox(CORA))])
async def test_each_role_puts_aside_what_it_rejects_and_reads_it_and_asks_what_waits(
    federation: Federation, party: PartyId, queue: str
) -> None:
    recorder = Recorder(reject("malformed"))

    async with federation.transport(ANNA) as theirs, federation.transport(party) as ours:
        await ours.subscribe(queue, recorder)
        await theirs.publish(route(Role.CLIENT, ROLES[party], party), b"bad")
        await recorder.wait_for(1)
    async with federation.transport(party) as reader:
        dead = await reader.dead_letters(dead_letter_queue(party))
        waiting = await reader.count_waiting(inbox(party))

    assert [(letter.body, letter.queue, letter.reason) for letter in dead] == [(b"bad", queue, "malformed")]
    assert (waiting, reader.condition.waiting) == (0, {inbox(party): 0})


async def test_definitions_that_are_loaded_again_change_nothing(federation: Federation, tmp_path: Path) -> None:
    recorder = Recorder()
    async with federation.transport(ANNA) as sender:
        await sender.publish(route(Role.CLIENT, Role.AGGREGATOR, ALAN), b"waiting")

    definitions = write_definitions(federation.identities, tmp_path)
    await asyncio.to_thread(federation.node.ctl, "import_definitions", str(definitions))
    async with federation.transport(ALAN) as receiver:
        await receiver.subscribe(inbox(ALAN), recorder)
        await recorder.wait_for(1)

    assert recorder.bodies == [b"waiting"]


# What a party may not do --------------------------------------------------------------------------------

Operation = Callable[[AbstractChannel], Awaitable[object]]


async def ignore(_: AbstractIncomingMessage) -> None:
    return


def on(queue: str, verb: str, *arguments: object) -> Operation:
    """Do something with a queue, without asking first whether it is there."""

    async def operate(channel: AbstractChannel) -> None:
        await getattr(await channel.get_queue(queue, ensure=False), verb)(*arguments)

    return operate


async def chain_exchanges(channel: AbstractChannel) -> None:
    await (await channel.get_exchange("hubbub.shares", ensure=False)).bind("hubbub.results", BERT)


FORBIDDEN: dict[str, Operation] = {
    "consume another's queue": on(inbox(BERT), "consume", ignore),
    "get from another's queue": on(inbox(ADA), "get"),
    "read another's dead letters": on(dead_letter_queue(BERT), "get"),
    "purge another's queue": on(inbox(BERT), "purge"),
    "read what others send another": on(peers_queue(BERT), "consume", ignore),
    "declare a queue": lambda channel: channel.declare_queue("mine"),
    "declare a queue that the broker names": lambda channel: channel.declare_queue(exclusive=True),
    "declare its own queue again": lambda channel: channel.declare_queue(inbox(ANNA), durable=True),
    "declare an exchange": lambda channel: channel.declare_exchange("mine"),
    "delete its own queue": lambda channel: channel.queue_delete(inbox(ANNA)),
    "delete another's queue": lambda channel: channel.queue_delete(inbox(BERT)),
    "delete an exchange": lambda channel: channel.exchange_delete("hubbub.shares"),
    "bind its queue to another exchange": on(inbox(ANNA), "bind", "hubbub.results", BERT),
    "bind its queue to what others send": on(inbox(ANNA), "bind", "hubbub.shares", ADA),
    "bind its dead letters anew": on(dead_letter_queue(ANNA), "bind", dead_letter_exchange(ANNA), BERT),
    "unbind its queue": on(inbox(ANNA), "unbind", "hubbub.results", ANNA),
    "bind its inbox to what clients send": on(inbox(ANNA), "bind", "hubbub.peers", ANNA),
    "unbind what clients send": on(peers_queue(ANNA), "unbind", "hubbub.peers", ANNA),
    "unbind its dead letters": on(dead_letter_queue(ANNA), "unbind", dead_letter_exchange(ANNA), ANNA),
    "chain exchanges": chain_exchanges,
}


async def test_a_client_may_do_nothing_to_queues_and_exchanges_and_publish_in_nobody_s_name(
    federation: Federation, subtests: pytest.Subtests
) -> None:
    async with await federation.connect(ANNA) as connection:
        for name, operation in FORBIDDEN.items():
            with (
                subtests.test(name),
                pytest.raises(ChannelAccessRefused, match=r"ACCESS_REFUSED.*for user 'anna'"),
            ):
                await operation(await connection.channel())
        exchange = await (await connection.channel()).get_exchange("hubbub.peers", ensure=False)
        with pytest.raises(ChannelPreconditionFailed, match="user_id property set to 'bert'"):
            await exchange.publish(aio_pika.Message(b"", user_id=BERT), BERT)


async def test_who_published_is_told_and_nobody_where_a_message_does_not_say(federation: Federation) -> None:
    recorder = Recorder()

    async with (
        await federation.connect(ANNA) as connection,
        federation.transport(ANNA) as anna,
        federation.transport(BERT) as bert,
    ):
        await bert.subscribe(peers_queue(BERT), recorder)
        exchange = await (await connection.channel()).get_exchange("hubbub.peers", ensure=False)
        await exchange.publish(aio_pika.Message(b"raw"), BERT)
        await anna.publish(route(Role.CLIENT, Role.CLIENT, BERT), b"ours")
        await recorder.wait_for(2)

    assert {delivery.body: delivery.user for delivery in recorder.deliveries} == {b"raw": "", b"ours": ANNA}


def forbidden_addresses(party: PartyId, other: PartyId) -> set[Address]:
    """Every exchange that a role has no flow to, the broker's own ones, and another's dead letters."""
    allowed = {exchange for (sender, _), exchange in FLOWS.items() if sender is ROLES[party]}
    return {
        *(Address(exchange, BERT) for exchange in EXCHANGES if exchange not in allowed),
        Address("", inbox(other)),
        Address("amq.direct", inbox(other)),
        Address(dead_letter_exchange(other), other),
    }


@pytest.mark.parametrize(
    ("party", "other", "among_them"),
    [
        (ANNA, BERT, {"hubbub.results", "hubbub.control", "hubbub.rejected.bert"}),
        (ADA, ALAN, {"hubbub.shares", "hubbub.peers"}),
        (CORA, ANNA, {"hubbub.shares"}),
    ],
)
async def test_publishing_where_no_flow_goes_is_refused_at_once(
    federation: Federation, party: PartyId, other: PartyId, among_them: set[str]
) -> None:
    addresses = forbidden_addresses(party, other)

    assert among_them <= {address.exchange for address in addresses}
    async with federation.transport(party) as transport:
        for address in addresses:
            with pytest.raises(BrokerRefused, match=f"'{party}' publish to '{address.exchange}'.*ACCESS_REFUSED"):
                await transport.publish(address, b"forged")


async def test_subscribing_to_another_partys_queue_is_refused_and_named(federation: Federation) -> None:
    both = merge(topology_for(name, Role.CLIENT) for name in (ANNA, BERT))

    async with federation.transport(ANNA, both) as transport:
        with pytest.raises(BrokerRefused, match=r"'anna' read queue 'hubbub\.inbox\.bert'"):
            await transport.subscribe(inbox(BERT), Recorder())
        with pytest.raises(BrokerRefused, match=r"'anna' read queue 'hubbub\.dead\.bert'"):
            await transport.dead_letters(dead_letter_queue(BERT))


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
async def test_wrong_password_and_unknown_user_are_refused_at_once(federation: Federation, user: str) -> None:
    # Somebody's right password, so that it is not for its form that it is refused.
    login = Login(user, federation.login(BERT).password)

    with pytest.raises(BrokerRefused, match=rf"refuses user '{user}'.*password") as refusal:
        async with federation.transport(ANNA, login=login):
            pass

    assert login.password not in str(refusal.value)


# TLS ----------------------------------------------------------------------------------------------------


async def test_tls_with_client_certificate_carries_messages_also_after_a_cut(federation: Federation) -> None:
    tls = tls_of(federation.authority, federation.client)
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


def tls_of(authority: Authority, client: CertificateFiles | None) -> Tls:
    if client is None:
        return Tls(ca_file=authority.ca_file)
    return Tls(ca_file=authority.ca_file, cert_file=client.cert, key_file=client.key)


async def test_tls_that_cannot_be_trusted_is_refused_and_told_apart(
    federation: Federation, subtests: pytest.Subtests
) -> None:
    ours, theirs, client, node = federation.authority, federation.stranger, federation.client, federation.node
    name_missing = "does not verify: IP address mismatch, certificate is not valid for '127.0.0.1'"
    cases: dict[str, tuple[Tls, dict[str, Any]]] = {
        f"localhost:{node.tls_port}: the broker's certificate does not verify": (tls_of(theirs, client), {}),
        name_missing: (tls_of(ours, client), {"host": "127.0.0.1"}),
        "demands a client certificate": (tls_of(ours, None), {}),
        "our client certificate": (tls_of(ours, theirs.certify_client("ada")), {}),
        "write amqps://": (Tls(), {"scheme": "amqp", "host": "127.0.0.1"}),
        "does not speak TLS": (tls_of(ours, None), {"port": node.port}),
    }
    for said, (tls, where) in cases.items():
        with subtests.test(said):
            with pytest.raises(BrokerRefused) as refusal:
                async with federation.secure_transport(tls, **where):
                    pass

            assert said in str(refusal.value)
