import re
from dataclasses import replace
from itertools import product

import pytest

from hubbub.errors import ConfigurationError
from hubbub.ids import PartyId, Role
from hubbub.transport.base import Address
from hubbub.transport.topology import (
    CONTROL,
    EXCHANGES,
    FLOWS,
    PARTIALS,
    PEERS,
    REPORTS,
    RESULTS,
    SHARES,
    BindingSpec,
    Overflow,
    Topology,
    dead_letter_exchange,
    dead_letter_queue,
    inbox,
    merge,
    peers_queue,
    permissions_for,
    received_from,
    route,
    topology_for,
)

ANNA = PartyId("anna")
EMPTY = Topology(exchanges=(), queues=(), bindings=())


@pytest.mark.parametrize(
    ("sender", "recipient", "exchange"),
    [
        (Role.COORDINATOR, Role.CLIENT, CONTROL),
        (Role.COORDINATOR, Role.AGGREGATOR, CONTROL),
        (Role.CLIENT, Role.AGGREGATOR, SHARES),
        (Role.AGGREGATOR, Role.CLIENT, RESULTS),
        (Role.CLIENT, Role.COORDINATOR, REPORTS),
        (Role.AGGREGATOR, Role.COORDINATOR, REPORTS),
        (Role.CLIENT, Role.CLIENT, PEERS),
        (Role.AGGREGATOR, Role.AGGREGATOR, PARTIALS),
    ],
)
def test_each_flow_has_its_exchange(sender: Role, recipient: Role, exchange: str) -> None:
    assert route(sender, recipient, ANNA) == Address(exchange, "anna")


@pytest.mark.parametrize("pair", [pair for pair in product(Role, Role) if pair not in FLOWS])
def test_flow_that_does_not_exist_is_refused(pair: tuple[Role, Role]) -> None:
    with pytest.raises(ConfigurationError, match=f"from {pair[0]} to {pair[1]}"):
        route(*pair, ANNA)


def test_only_coordinators_never_talk_to_their_like() -> None:
    assert {pair for pair in product(Role, Role) if pair not in FLOWS} == {(Role.COORDINATOR, Role.COORDINATOR)}


@pytest.mark.parametrize("role", Role)
def test_what_a_party_receives_from_is_bound_to_exactly_the_flows_to_its_role(role: Role) -> None:
    topology, queues = topology_for(ANNA, role), received_from(ANNA, role)

    bound = [binding.address for binding in topology.bindings if binding.queue in queues]

    assert set(bound) == {route(sender, to, ANNA) for sender, to in FLOWS if to is role}
    assert len(bound) == len(set(bound)), "no message may be put into two queues"


def test_orders_to_an_aggregator_do_not_wait_where_clients_can_send() -> None:
    topology = topology_for(ANNA, Role.AGGREGATOR)
    bound = {binding.address: binding.queue for binding in topology.bindings}

    assert bound[route(Role.COORDINATOR, Role.AGGREGATOR, ANNA)] == "hubbub.orders.anna"
    assert bound[route(Role.CLIENT, Role.AGGREGATOR, ANNA)] == inbox(ANNA)
    assert [address for address, queue in bound.items() if queue == "hubbub.orders.anna"] == [
        Address("hubbub.control", ANNA)
    ]


def test_what_clients_send_each_other_goes_into_a_queue_that_nothing_else_goes_into() -> None:
    topology = topology_for(ANNA, Role.CLIENT)
    bound = {binding.address: binding.queue for binding in topology.bindings}

    assert [address for address, queue in bound.items() if queue == "hubbub.peers.anna"] == [
        Address("hubbub.peers", ANNA)
    ]
    assert bound[route(Role.COORDINATOR, Role.CLIENT, ANNA)] == inbox(ANNA)
    assert bound[route(Role.AGGREGATOR, Role.CLIENT, ANNA)] == inbox(ANNA)


@pytest.mark.parametrize("role", Role)
def test_no_queue_has_the_name_of_an_exchange(role: Role) -> None:
    topology = topology_for(ANNA, role)

    assert not {spec.name for spec in topology.queues} & {spec.name for spec in topology.exchanges}


@pytest.mark.parametrize("role", Role)
def test_rejected_messages_have_somewhere_to_go(role: Role) -> None:
    topology = topology_for(ANNA, role)

    (dead,) = {topology.queue(name).dead_letters for name in received_from(ANNA, role)}

    assert dead == Address("hubbub.rejected.anna", "anna")
    assert BindingSpec(dead, dead_letter_queue(ANNA)) in topology.bindings


def test_limits_are_set_by_role() -> None:
    inboxes = {role: topology_for(ANNA, role).queue(inbox(ANNA)) for role in Role}

    assert {role: (spec.max_length, spec.max_bytes, spec.overflow) for role, spec in inboxes.items()} == {
        Role.CLIENT: (20_000, 8 * 2**30, Overflow.DROP_HEAD),
        Role.AGGREGATOR: (4_096, None, Overflow.REJECT_PUBLISH),
        Role.COORDINATOR: (100_000, None, Overflow.REJECT_PUBLISH),
    }
    assert {spec.delivery_limit for spec in inboxes.values()} == {100}
    peers = topology_for(ANNA, Role.CLIENT).queue(peers_queue(ANNA))
    assert (peers.max_length, peers.max_bytes, peers.overflow) == (20_000, 4 * 2**30, Overflow.DROP_HEAD)


@pytest.mark.parametrize("name", ["", "Anna", "anna.lab", "anna#", "*", "a" * 41])
def test_name_that_is_no_party_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot name a party"):
        topology_for(PartyId(name), Role.CLIENT)
    with pytest.raises(ConfigurationError, match="cannot name a party"):
        route(Role.CLIENT, Role.AGGREGATOR, PartyId(name))


def test_merging_keeps_shared_parts_once() -> None:
    parts = [topology_for(PartyId(name), Role.CLIENT) for name in ("anna", "bert")]

    merged = merge([*parts, parts[0]])

    assert [spec.name for spec in merged.exchanges] == [
        *(spec.name for spec in EXCHANGES),
        "hubbub.rejected.anna",
        "hubbub.rejected.bert",
    ]
    assert [spec.name for spec in merged.queues] == [
        "hubbub.dead.anna",
        "hubbub.inbox.anna",
        "hubbub.peers.anna",
        "hubbub.dead.bert",
        "hubbub.inbox.bert",
        "hubbub.peers.bert",
    ]
    assert len(merged.bindings) == 8
    assert merge([]) == EMPTY


def test_merging_parts_that_contradict_each_other_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"hubbub\.inbox\.anna.*described twice"):
        merge([topology_for(ANNA, Role.CLIENT), topology_for(ANNA, Role.AGGREGATOR)])


def test_binding_to_what_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="lacks"):
        replace(EMPTY, bindings=(BindingSpec(Address("x", "y"), "z"),))


def test_unknown_queue_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"'nope'.*hubbub\.inbox\.anna"):
        topology_for(ANNA, Role.CLIENT).queue("nope")


WRITES = {
    Role.CLIENT: {SHARES, REPORTS, PEERS},
    Role.AGGREGATOR: {RESULTS, REPORTS, PARTIALS},
    Role.COORDINATOR: {CONTROL},
}
READS = {
    Role.CLIENT: {"hubbub.inbox.anna", "hubbub.peers.anna"},
    Role.AGGREGATOR: {"hubbub.inbox.anna", "hubbub.orders.anna"},
    Role.COORDINATOR: {"hubbub.inbox.anna"},
}


def names_of_a_federation() -> set[str]:
    """Everything that there is to have rights on, with names that are nearly a party's own."""
    roles = {"anna": Role.AGGREGATOR, "anna-b": Role.AGGREGATOR, "bert": Role.CLIENT, "nanna": Role.CLIENT}
    topology = merge(topology_for(PartyId(name), role) for name, role in roles.items())
    # Of the party itself whatever a role could have.
    near = {queue for role in Role for queue in received_from(ANNA, role)}
    near |= {"", "amq.default", "amq.direct", "hubbub", "hubbubXinbox.anna", "hubbub.inbox.anna.x", "x" + SHARES}
    return near | {spec.name for spec in topology.exchanges} | {spec.name for spec in topology.queues}


@pytest.mark.parametrize("role", Role)
def test_party_may_write_to_its_flows_and_read_its_queues_and_nothing_else(role: Role) -> None:
    names, granted = names_of_a_federation(), permissions_for(ANNA, role)

    assert {name for name in names if re.search(granted.write, name)} == {*WRITES[role], "hubbub.rejected.anna"}
    assert {name for name in names if re.search(granted.read, name)} == {*READS[role], "hubbub.dead.anna"}
    assert {name for name in names if re.search(granted.configure, name)} == {""}


@pytest.mark.parametrize("role", Role)
def test_nothing_may_be_both_written_and_read(role: Role) -> None:
    # Whoever may do both to an exchange and a queue may bind one to the other.
    granted = permissions_for(ANNA, role)

    assert not [
        name
        for name in names_of_a_federation()
        if re.search(granted.write, name) and re.search(granted.read, name)
    ]


def test_permissions_are_those_of_a_named_party() -> None:
    assert (
        permissions_for(PartyId("anna-b"), Role.COORDINATOR).read
        == r"^(hubbub\.inbox\.anna\-b|hubbub\.dead\.anna\-b)$"
    )
    with pytest.raises(ConfigurationError, match="cannot name a party"):
        permissions_for(PartyId(".*"), Role.CLIENT)


def test_rejected_messages_have_an_exchange_for_each_party() -> None:
    assert dead_letter_exchange(ANNA) == "hubbub.rejected.anna"
    assert dead_letter_exchange(ANNA) not in {inbox(ANNA), dead_letter_queue(ANNA)}
