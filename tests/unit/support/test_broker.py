"""The search for a broker to test against, with fakes: no Docker, no RabbitMQ."""

import socket
import subprocess
import threading
from pathlib import Path

import pytest

from hubbub_cli.rabbitmq_node import answers_amqp
from support import broker
from support.broker import Broker, NoBrokerError, find_broker
from support.debian import UnavailableError


def missing() -> Broker:
    raise UnavailableError("not here")


def test_the_first_that_is_there_is_taken() -> None:
    found = Broker("amqp://b", close=lambda: None)

    assert find_broker({"a": missing, "b": lambda: found, "c": lambda: pytest.fail("asked")}) is found


def test_nothing_is_assumed_on_the_usual_port_and_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HUBBUB_TEST_AMQP_URL", raising=False)
    monkeypatch.setattr(broker, "_start_container", lambda: (None, "no daemon"))
    monkeypatch.setattr(broker, "find_scripts", lambda: None)
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("socket.create_connection", lambda *_: pytest.fail("connected somewhere"))

    with pytest.raises(NoBrokerError) as failure:
        find_broker()

    for part in ("Docker: no daemon", "rabbitmq-server is not installed", "apt-get install", "not root on Debian"):
        assert part in str(failure.value)


@pytest.mark.parametrize("before", [None, "an operator's own"])
def test_the_package_is_installed_without_starting_its_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str | None
) -> None:
    policy, seen = tmp_path / "policy-rc.d", list[bool]()
    if before is not None:
        policy.write_text(before)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: seen.append(policy.exists()))

    broker.install_server(policy)

    assert seen == [True, True]
    assert (policy.read_text() if policy.exists() else None) == before


def test_port_that_merely_listens_is_no_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request")

        thread = threading.Thread(target=answer)
        thread.start()
        found = answers_amqp("127.0.0.1", server.getsockname()[1])
        thread.join()

    assert not found
