"""Fixtures for everybody: a broker, started when the first test asks for it."""

from collections.abc import Iterator

import pytest

from support.broker import NoBrokerError, find_broker
from support.private_node import PrivateNode, server_scripts


@pytest.fixture(scope="session")
def amqp_url() -> Iterator[str]:
    """A RabbitMQ that all tests of the session share: use party names that nobody else uses."""
    try:
        broker = find_broker()
    except NoBrokerError as error:
        pytest.fail(str(error), pytrace=False)
    try:
        yield broker.url
    finally:
        broker.close()


@pytest.fixture(scope="module")
def private_node(request: pytest.FixtureRequest) -> Iterator[PrivateNode]:
    """A RabbitMQ that a test may kill and restart."""
    if server_scripts() is None:
        # Fails with what to do if there is no broker at all; may install one.
        request.getfixturevalue("amqp_url")
    if server_scripts() is None:
        pytest.skip("killing a broker takes one of our own, and no rabbitmq-server is installed")
    with PrivateNode() as node:
        yield node
