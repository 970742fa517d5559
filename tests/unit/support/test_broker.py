"""The order in which tests look for a broker, with fakes: no Docker, no RabbitMQ."""

import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from support import broker
from support.broker import SOURCES, Broker, NoBrokerError, Source, UnavailableError, find_broker
from support.private_node import answers_amqp


def there(url: str) -> Source:
    return Source(url, lambda: Broker(url, close=lambda: None))


def missing(name: str, asked: list[str] | None = None) -> Source:
    def find() -> Broker:
        if asked is not None:
            asked.append(name)
        raise UnavailableError(f"no {name} here")

    return Source(name, find)


def test_first_that_is_there_is_taken_and_later_ones_are_not_asked() -> None:
    asked: list[str] = []

    found = find_broker([missing("a", asked), there("amqp://b"), missing("c", asked)])

    assert found.url == "amqp://b"
    assert asked == ["a"]


def test_without_any_the_error_says_why_and_what_to_do() -> None:
    with pytest.raises(NoBrokerError) as failure:
        find_broker([missing("docker"), missing("server")])

    for part in ("docker: no docker here", "server: no server here", "apt-get install", "HUBBUB_TEST_AMQP_URL"):
        assert part in str(failure.value)


def test_order_is_environment_docker_installed_package() -> None:
    assert [source.find for source in SOURCES] == [
        broker.from_environment,
        broker.from_docker,
        broker.from_installed_server,
        broker.from_debian_package,
    ]


def test_environment_names_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBBUB_TEST_AMQP_URL", "amqp://named/")

    assert find_broker().url == "amqp://named/"


def test_nothing_is_assumed_on_the_usual_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HUBBUB_TEST_AMQP_URL", raising=False)
    monkeypatch.setattr(broker, "_start_container", lambda: (None, "no daemon"))
    monkeypatch.setattr(broker, "server_scripts", lambda: None)
    monkeypatch.setattr("shutil.which", lambda _: None)
    connected: list[object] = []
    monkeypatch.setattr("socket.create_connection", lambda *where: connected.append(where))

    with pytest.raises(NoBrokerError, match="no daemon"):
        find_broker()

    assert connected == []


class FakeContainer:
    def __init__(self) -> None:
        self.stopped = False

    def get_container_host_ip(self) -> str:
        return "127.0.0.1"

    def get_exposed_port(self, port: int) -> str:
        return str(port + 30_000)

    def stop(self) -> None:
        self.stopped = True


def test_container_is_used_when_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    container = FakeContainer()
    monkeypatch.setattr(broker, "_start_container", lambda: (container, ""))
    monkeypatch.setattr(broker, "answers_amqp", lambda _host, port: port == 35_672)

    found = broker.from_docker()
    found.close()

    assert found.url == "amqp://guest:guest@127.0.0.1:35672/"
    assert container.stopped


def test_container_that_never_serves_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    container = FakeContainer()
    monkeypatch.setattr(broker, "_start_container", lambda: (container, ""))
    monkeypatch.setattr(broker, "answers_amqp", lambda _host, _port: False)
    monkeypatch.setattr(broker, "_CONTAINER_START_S", 0)

    with pytest.raises(UnavailableError, match="did not serve"):
        broker.from_docker()

    assert container.stopped


def test_node_that_does_not_start_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    class BrokenNode:
        def start(self) -> None:
            raise RuntimeError("no memory")

        def close(self) -> None:
            closed.append(True)

    monkeypatch.setattr(broker, "server_scripts", lambda: Path("/somewhere"))
    monkeypatch.setattr(broker, "PrivateNode", BrokenNode)

    with pytest.raises(UnavailableError, match="no memory"):
        broker.from_installed_server()

    assert closed == [True]


@pytest.mark.parametrize(("user", "apt"), [(1000, "/usr/bin/apt-get"), (0, None)])
def test_nothing_is_installed_unless_root_on_debian(
    monkeypatch: pytest.MonkeyPatch, user: int, apt: str | None
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr("shutil.which", lambda _: apt)
    monkeypatch.setattr(broker, "install_server", lambda: pytest.fail("installed something"))

    with pytest.raises(UnavailableError, match="not root on Debian"):
        broker.from_debian_package()


def run_and_look(policy: Path, seen: list[tuple[str, bool]]) -> Callable[..., None]:
    def run(command: list[str], **_: object) -> None:
        seen.append((next(word for word in command if word in {"update", "install"}), policy.exists()))

    return run


def test_package_is_installed_without_starting_its_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    policy, seen = tmp_path / "policy-rc.d", list[tuple[str, bool]]()
    monkeypatch.setattr(subprocess, "run", run_and_look(policy, seen))

    broker.install_server(policy)

    assert seen == [("update", True), ("install", True)]
    assert not policy.exists()


def test_policy_that_an_operator_made_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("mine")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)

    broker.install_server(policy)

    assert policy.read_text() == "mine"


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
