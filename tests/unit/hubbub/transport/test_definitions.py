"""The definitions as data; that a broker takes them is shown in `tests/integration/test_broker_permissions.py`."""

import json

import pytest

from hubbub.errors import ConfigurationError
from hubbub.ids import PartyId, Role
from hubbub.transport.definitions import BrokerUser, make_definitions, queue_arguments
from hubbub.transport.topology import dead_letter_queue, inbox, merge, permissions_for, topology_for

ANNA, ADA, CORA = PartyId("anna"), PartyId("ada"), PartyId("cora")
USERS = [
    BrokerUser(ANNA, Role.CLIENT, "hash of anna"),
    BrokerUser(ADA, Role.AGGREGATOR, "hash of ada"),
    BrokerUser(CORA, Role.COORDINATOR, "hash of cora"),
]
TOPOLOGY = merge(topology_for(user.name, user.role) for user in USERS)


def test_all_that_parties_need_is_declared_in_one_virtual_host_and_no_more() -> None:
    definitions = json.loads(json.dumps(make_definitions(USERS, vhost="hospitals")))

    assert definitions["vhosts"] == [{"name": "hospitals"}]
    for kind in ("permissions", "exchanges", "queues", "bindings"):
        assert {each["vhost"] for each in definitions[kind]} == {"hospitals"}
    assert [user["name"] for user in definitions["users"]] == ["anna", "ada", "cora"]
    assert definitions["users"][0] == {
        "name": "anna",
        "password_hash": "hash of anna",
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": [],
    }
    for user, granted in zip(USERS, definitions["permissions"], strict=True):
        wanted = permissions_for(user.name, user.role)
        assert (granted["user"], granted["configure"]) == (user.name, "^$")
        assert (granted["write"], granted["read"]) == (wanted.write, wanted.read)
    assert {each["name"] for each in definitions["exchanges"]} == set(TOPOLOGY.exchanges)
    assert {each["name"]: each["arguments"] for each in definitions["queues"]} == {
        spec.name: queue_arguments(spec) for spec in TOPOLOGY.queues
    }
    assert {(each["source"], each["routing_key"], each["destination"]) for each in definitions["bindings"]} == {
        (spec.address.exchange, spec.address.routing_key, spec.queue) for spec in TOPOLOGY.bindings
    }
    assert all(each["durable"] for each in (*definitions["exchanges"], *definitions["queues"]))


def test_limits_become_arguments_of_a_replicated_queue() -> None:
    replicated = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}
    one_consumer, dropping = {**replicated, "x-single-active-consumer": True}, {"x-overflow": "drop-head"}
    queues = (inbox(ADA), inbox(ANNA), dead_letter_queue(ADA))

    assert [queue_arguments(TOPOLOGY.queue(name)) for name in queues] == [
        {**one_consumer, "x-max-length": 4096, "x-overflow": "reject-publish"},
        {**one_consumer, **dropping, "x-max-length": 20_000, "x-max-length-bytes": 8 * 2**30},
        # RabbitMQ lets nobody look into a queue of one consumer, so that this must not be one.
        {**replicated, **dropping, "x-max-length": 1_000, "x-max-length-bytes": 2**30},
    ]


def test_two_parties_of_one_name_and_the_brokers_default_user_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"share a user.*anna"):
        make_definitions([*USERS, USERS[0]])
    with pytest.raises(ConfigurationError, match=r"'guest'.*deleted"):
        make_definitions([BrokerUser(PartyId("guest"), Role.CLIENT, "")])
    assert "hash" not in repr(USERS[0]).replace("password_hash", "")
