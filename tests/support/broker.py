"""Find a RabbitMQ to test against, without ever using one that merely happens to listen.

In this order: the URL in HUBBUB_TEST_AMQP_URL; a container, where a Docker daemon answers; a private node of
an installed rabbitmq-server; the same after installing that package, on Debian as root.
"""

from __future__ import annotations

import gc
import os
import time
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hubbub.transport.rabbitmq import declare_topology, remove_topology
from hubbub.transport.topology import Topology
from hubbub_cli.rabbitmq_node import answers_amqp, find_scripts
from support import debian
from support.debian import UnavailableError
from support.patience import HANG_S
from support.private_node import PrivateNode

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

URL_VARIABLE = "HUBBUB_TEST_AMQP_URL"
IMAGE = "rabbitmq:3-management"
_AMQP_PORT = 5672
_DOCKER_ANSWER_S = 3

WHAT_TO_DO = f"""
Tests marked `broker` need a RabbitMQ. Any one of these will do:
  - install it:            apt-get install rabbitmq-server   (the tests start a private node of it)
  - run a Docker daemon:   the tests start a container of {IMAGE}
  - name one you have:     {URL_VARIABLE}=amqp://user:password@host:5672/vhost make test
To leave these tests out:  make test ARGS="-m 'not broker'"
"""


@asynccontextmanager
async def declared(url: str, topology: Topology) -> AsyncIterator[None]:
    """Have a topology at the broker for the length of a test."""
    await declare_topology(url, topology)
    try:
        yield
    finally:
        await remove_topology(url, topology)


class NoBrokerError(LookupError):
    """No way was open; the message says why not and what to do."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker for the length of a test session."""

    url: str
    close: Callable[[], None]


def find_broker(sources: Mapping[str, Callable[[], Broker]] | None = None) -> Broker:
    """Take the first that is there."""
    reasons = []
    for name, find in (SOURCES if sources is None else sources).items():
        try:
            return find()
        except UnavailableError as reason:
            reasons.append(f"  - {name}: {reason}")
    raise NoBrokerError("no RabbitMQ could be had:\n" + "\n".join(reasons) + "\n" + WHAT_TO_DO)


def from_environment() -> Broker:
    url = os.environ.get(URL_VARIABLE)
    if not url:
        raise UnavailableError(f"{URL_VARIABLE} is not set")
    return Broker(url, close=lambda: None)


def from_docker() -> Broker:
    with warnings.catch_warnings():
        # Deprecations and sockets left open by others; in our tests warnings are errors.
        warnings.simplefilter("ignore")
        container, problem = _start_container()
        gc.collect()
    if container is None:
        raise UnavailableError(problem)
    host, port = container.get_container_host_ip(), int(container.get_exposed_port(_AMQP_PORT))
    deadline = time.monotonic() + HANG_S
    while not answers_amqp(host, port):
        if time.monotonic() > deadline:
            container.stop()
            raise UnavailableError(f"a container of {IMAGE} did not serve within {HANG_S:g} s")
        time.sleep(0.2)
    return Broker(f"amqp://guest:guest@{host}:{port}/", close=container.stop)


def _start_container() -> tuple[DockerContainer | None, str]:
    """Start one, or say what is wrong: no daemon, no image, no permission."""
    # Read when testcontainers is imported. Its helper container cannot be pulled everywhere.
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    try:
        # Imported here because it is slow, and needed on this way only. Its RabbitMqContainer would need a
        # second AMQP client (pika) just to wait; we can wait ourselves.
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415
        from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415

        DockerClient(timeout=_DOCKER_ANSWER_S).client.ping()
        return DockerContainer(IMAGE).with_exposed_ports(_AMQP_PORT).start(), ""
    except Exception as error:  # noqa: BLE001  (whatever is wrong with Docker, there are other ways)
        return None, f"{type(error).__name__}: {str(error)[:200]}"


def from_installed_server() -> Broker:
    if find_scripts() is None:
        raise UnavailableError("rabbitmq-server is not installed")
    node = PrivateNode()
    try:
        node.start()
    except (RuntimeError, OSError) as error:
        node.close()
        raise UnavailableError(str(error)) from error
    except BaseException:
        node.close()
        raise
    return Broker(node.url, close=node.close)


def from_debian_package() -> Broker:
    install_server()
    return from_installed_server()


def install_server(policy: Path = Path("/usr/sbin/policy-rc.d")) -> None:
    """Install the package without letting it start a service."""
    forbid = not policy.exists() and os.geteuid() == 0
    if forbid:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        debian.install("rabbitmq-server")
    finally:
        if forbid:
            policy.unlink()


SOURCES: Mapping[str, Callable[[], Broker]] = {
    URL_VARIABLE: from_environment,
    "Docker": from_docker,
    "installed rabbitmq-server": from_installed_server,
    "Debian package": from_debian_package,
}
