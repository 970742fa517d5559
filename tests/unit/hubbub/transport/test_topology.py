import re
from dataclasses import replace
from itertools import product

import pytest

from hubbub.errors import ConfigurationError
from hubbub.ids import PartyId, Role
from hubbub.transport.base import Address
from hubbub.transport.topology import (
    CONTROL,
    DEFAULT_EXCHANGE,
    EXCHANGES,
    FLOWS,
    PARTIALS,
    PEERS,
    REPORTS,
    RESULTS,
    SHARES,
    Attempt,
    BindingSpec,
    Deed,
    Overflow,
    Topology,
    dead_letter_queue,
    find_duties,
    find_taboos,
    inbox,
    merge,
    peers_queue,
    permissions_for,
    received_from,
    route,
    topology_for,
)

ANNA, BERT = PartyId("anna"), PartyId("bert")
EMPTY = Topology(exchanges=(), queues=(), bindings=())


def test_each_flow_has_its_exchange_and_only_coordinators_never_talk_to_their_like() -> None:
    routes = {pair: route(*pair, ANNA) for pair in product(Role, Role) if pair in FLOWS}

    assert routes == {
        (Role.COORDINATOR, Role.CLIENT): Address(CONTROL, "anna"),
        (Role.COORDINATOR, Role.AGGREGATOR): Address(CONTROL, "anna"),
        (Role.CLIENT, Role.AGGREGATOR): Address(SHARES, "anna"),
        (Role.AGGREGATOR, Role.CLIENT): Address(RESULTS, "anna"),
        (Role.CLIENT, Role.COORDINATOR): Address(REPORTS, "anna"),
        (Role.AGGREGATOR, Role.COORDINATOR): Address(REPORTS, "anna"),
        (Role.CLIENT, Role.CLIENT): Address(PEERS, "anna"),
        (Role.AGGREGATOR, Role.AGGREGATOR): Address(PARTIALS, "anna"),
    }
    with pytest.raises(ConfigurationError, match="from coordinator to coordinator"):
        route(Role.COORDINATOR, Role.COORDINATOR, ANNA)


@pytest.mark.parametrize("role", Role)
def test_a_party_receives_exactly_the_flows_to_its_role_and_rejects_into_a_queue_of_its_own(role: Role) -> None:
    topology, queues = topology_for(ANNA, role), received_from(ANNA, role)

    bound = [binding.address for binding in topology.bindings if binding.queue in queues]
    assert set(bound) == {route(sender, to, ANNA) for sender, to in FLOWS if to is role}
    assert len(bound) == len(set(bound)), "no message may be put into two queues"
    assert not {spec.name for spec in topology.queues} & set(topology.exchanges)
    (dead,) = {topology.queue(name).dead_letters for name in queues}
    assert dead == Address("hubbub.rejected.anna", "anna")
    assert BindingSpec(dead, dead_letter_queue(ANNA)) in topology.bindings


@pytest.mark.parametrize(
    ("role", "queue", "source"),
    [
        (Role.AGGREGATOR, "hubbub.orders.anna", "hubbub.control"),
        (Role.CLIENT, "hubbub.peers.anna", "hubbub.peers"),
    ],
)
def test_orders_to_aggregators_and_messages_among_clients_have_queues_of_their_own(
    role: Role, queue: str, source: str
) -> None:
    bindings = topology_for(ANNA, role).bindings

    assert [binding.address for binding in bindings if binding.queue == queue] == [Address(source, ANNA)]
    assert {each.queue for each in bindings} == {queue, inbox(ANNA), dead_letter_queue(ANNA)}


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


@pytest.mark.parametrize("name", ["", "Anna", "anna.lab", "anna#", "*", ".*", "a" * 41])
def test_name_that_is_no_party_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot name a party"):
        topology_for(PartyId(name), Role.CLIENT)
    with pytest.raises(ConfigurationError, match="cannot name a party"):
        route(Role.CLIENT, Role.AGGREGATOR, PartyId(name))
    with pytest.raises(ConfigurationError, match="cannot name a party"):
        permissions_for(PartyId(name), Role.CLIENT)


def test_merging_keeps_shared_parts_once_and_refuses_contradictions() -> None:
    anna, bert = (topology_for(name, Role.CLIENT) for name in (ANNA, BERT))

    merged = merge([anna, bert, anna])

    assert merged.exchanges == (*EXCHANGES, "hubbub.rejected.anna", "hubbub.rejected.bert")
    assert [spec.name for spec in merged.queues] == [
        f"hubbub.{queue}.{name}" for name in ("anna", "bert") for queue in ("dead", "inbox", "peers")
    ]
    assert len(merged.bindings) == 8
    assert merge([]) == EMPTY
    with pytest.raises(ConfigurationError, match=r"hubbub\.inbox\.anna.*described twice"):
        merge([anna, topology_for(ANNA, Role.AGGREGATOR)])
    with pytest.raises(ConfigurationError, match="lacks"):
        replace(EMPTY, bindings=(BindingSpec(Address("x", "y"), "z"),))
    with pytest.raises(ConfigurationError, match=r"'nope'.*hubbub\.inbox\.anna"):
        anna.queue("nope")


# Rights -------------------------------------------------------------------------------------------------

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
    return near | set(topology.exchanges) | {spec.name for spec in topology.queues}


@pytest.mark.parametrize("role", Role)
def test_party_may_write_to_its_flows_and_read_its_queues_and_nothing_else(role: Role) -> None:
    names, granted = names_of_a_federation(), permissions_for(ANNA, role)
    write = {name for name in names if re.search(granted.write, name)}
    read = {name for name in names if re.search(granted.read, name)}

    assert write == {*WRITES[role], "hubbub.rejected.anna"}
    assert read == {*READS[role], "hubbub.dead.anna"}
    assert {name for name in names if re.search(granted.configure, name)} == {""}
    assert not write & read, "whoever may do both to an exchange and a queue may bind one to the other"


@pytest.mark.parametrize("role", Role)
def test_what_is_tried_at_a_broker_is_exactly_what_is_granted_and_much_of_what_is_not(role: Role) -> None:
    granted = permissions_for(ANNA, role)
    patterns = {Deed.DECLARE: granted.configure, Deed.PUBLISH: granted.write, Deed.CONSUME: granted.read}

    def is_granted(attempt: Attempt) -> bool:
        # RabbitMQ matches the default exchange under this name.
        return re.search(patterns[attempt.deed], attempt.name or "amq.default") is not None

    duties, taboos = find_duties(ANNA, role), find_taboos(ANNA, role, [ANNA, BERT])
    assert [str(attempt) for attempt in duties if not is_granted(attempt)] == []
    assert [str(attempt) for attempt in taboos if is_granted(attempt)] == []
    assert any(attempt.deed is Deed.DECLARE for attempt in taboos)
    assert {str(attempt) for attempt in taboos} >= {
        "publish to the default exchange",
        *(f"read queue hubbub.{queue}.bert" for queue in ("inbox", "orders", "peers", "dead")),
    }
    assert Attempt(Deed.PUBLISH, DEFAULT_EXCHANGE) in taboos
