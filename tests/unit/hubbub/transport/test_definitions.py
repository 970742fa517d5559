"""The definitions as data; that a broker takes them is shown in `tests/integration/test_broker_permissions.py`."""

import json
from typing import Any

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


def read_back(vhost: str = "/") -> Any:
    return json.loads(json.dumps(make_definitions(USERS, vhost=vhost)))


def test_each_party_is_a_user_without_tags_and_with_its_rights() -> None:
    definitions = read_back()

    assert definitions["users"][0] == {
        "name": "anna",
        "password_hash": "hash of anna",
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": [],
    }
    assert [user["name"] for user in definitions["users"]] == ["anna", "ada", "cora"]
    for user, granted in zip(USERS, definitions["permissions"], strict=True):
        wanted = permissions_for(user.name, user.role)
        assert (granted["user"], granted["configure"]) == (user.name, "^$")
        assert (granted["write"], granted["read"]) == (wanted.write, wanted.read)


def test_everything_that_parties_look_for_is_declared() -> None:
    definitions = read_back()

    assert {each["name"] for each in definitions["exchanges"]} == {spec.name for spec in TOPOLOGY.exchanges}
    assert {each["name"]: each["arguments"] for each in definitions["queues"]} == {
        spec.name: queue_arguments(spec) for spec in TOPOLOGY.queues
    }
    assert {(each["source"], each["routing_key"], each["destination"]) for each in definitions["bindings"]} == {
        (spec.address.exchange, spec.address.routing_key, spec.queue) for spec in TOPOLOGY.bindings
    }
    assert all(each["durable"] for each in (*definitions["exchanges"], *definitions["queues"]))


def test_all_goes_into_one_virtual_host() -> None:
    definitions = read_back("hospitals")

    assert definitions["vhosts"] == [{"name": "hospitals"}]
    for kind in ("permissions", "exchanges", "queues", "bindings"):
        assert {each["vhost"] for each in definitions[kind]} == {"hospitals"}


def test_limits_become_arguments_of_a_replicated_queue() -> None:
    assert queue_arguments(TOPOLOGY.queue(inbox(ADA))) == {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1_000_000,
        "x-single-active-consumer": True,
        "x-max-length": 4096,
        "x-overflow": "reject-publish",
    }
    assert queue_arguments(TOPOLOGY.queue(inbox(ANNA))) == {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1_000_000,
        "x-single-active-consumer": True,
        "x-max-length": 20_000,
        "x-max-length-bytes": 8 * 2**30,
        "x-overflow": "drop-head",
    }
    # RabbitMQ lets nobody look into a queue of one consumer, so that this must not be one.
    assert queue_arguments(TOPOLOGY.queue(dead_letter_queue(ADA))) == {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1_000_000,
        "x-max-length": 1_000,
        "x-max-length-bytes": 2**30,
        "x-overflow": "drop-head",
    }


def test_two_parties_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"share a user.*anna"):
        make_definitions([*USERS, USERS[0]])


def test_the_brokers_default_user_is_no_party() -> None:
    with pytest.raises(ConfigurationError, match=r"'guest'.*deleted"):
        make_definitions([BrokerUser(PartyId("guest"), Role.CLIENT, "")])


def test_password_hash_is_not_printed() -> None:
    assert "hash" not in repr(USERS[0]).replace("password_hash", "")
