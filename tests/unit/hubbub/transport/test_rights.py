"""What is tried at a broker: exactly what the generated permissions grant, and much of what they do not."""

import re

import pytest

from hubbub.ids import PartyId, Role
from hubbub.transport.topology import DEFAULT_EXCHANGE, Attempt, Deed, find_duties, find_taboos, permissions_for

ANNA, BERT = PartyId("anna"), PartyId("bert")


def is_granted(attempt: Attempt, role: Role) -> bool:
    permissions = permissions_for(ANNA, role)
    pattern = {
        Deed.DECLARE: permissions.configure,
        Deed.PUBLISH: permissions.write,
        Deed.CONSUME: permissions.read,
    }[attempt.deed]
    # RabbitMQ matches the default exchange under this name.
    return re.search(pattern, attempt.name or "amq.default") is not None


@pytest.mark.parametrize("role", Role)
def test_all_that_a_party_must_do_is_granted(role: Role) -> None:
    assert [str(attempt) for attempt in find_duties(ANNA, role) if not is_granted(attempt, role)] == []


@pytest.mark.parametrize("role", Role)
def test_nothing_that_it_must_not_do_is(role: Role) -> None:
    taboos = find_taboos(ANNA, role, [ANNA, BERT])

    assert [str(attempt) for attempt in taboos if is_granted(attempt, role)] == []
    assert Attempt(Deed.PUBLISH, DEFAULT_EXCHANGE) in taboos
    assert Attempt(Deed.CONSUME, "hubbub.inbox.bert") in taboos
    assert Attempt(Deed.CONSUME, "hubbub.orders.bert") in taboos
    assert Attempt(Deed.CONSUME, "hubbub.peers.bert") in taboos
    assert any(attempt.deed is Deed.DECLARE for attempt in taboos)


def test_the_default_exchange_is_called_by_its_name() -> None:
    assert str(Attempt(Deed.PUBLISH, DEFAULT_EXCHANGE)) == "publish to the default exchange"
    assert str(Attempt(Deed.CONSUME, "hubbub.dead.bert")) == "read queue hubbub.dead.bert"
