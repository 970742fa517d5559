"""Broker of a trial federation: a private RabbitMQ node where one is installed, otherwise a container."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hubbub.errors import BrokerUnreachable, ConfigurationError
from hubbub.transport.base import MAX_BODY_BYTES
from hubbub_cli.background import LOOK_S, Background
from hubbub_cli.federation_folder import BROKER, COOKIE_FILE, DEFINITIONS_FILE, PUBLIC
from hubbub_cli.rabbitmq_node import (
    NodePorts,
    answers_amqp,
    find_epmd,
    find_free_ports,
    find_scripts,
    lay_out_node,
)

PORT_MAPPER = "broker-epmd"
"""Process of Erlang's port mapper, which a private node needs of its own: a shared one may end with others."""
IMAGE = "rabbitmq:3-management"
_HOST = "127.0.0.1"
_AMQP_PORT = 5672
_START_S = 120.0
_FETCH_AND_START_S = 900.0
_DOCKER_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Processes that make a broker, and the port at which it will serve."""

    kind: str
    port: int
    start_s: float
    """Time in which it has to serve."""
    environment: Mapping[str, str]
    commands: Mapping[str, Sequence[str]]


def start_broker(federation: Path, state: Path, background: Background) -> str:
    """Start a broker that knows the parties of the federation, wait until it serves, and return its URL."""
    state.mkdir(parents=True, exist_ok=True)
    plan = _plan_node(federation, state) or _plan_container(federation, state)
    if plan is None:
        raise ConfigurationError(
            "processes need a RabbitMQ: install it (apt-get install rabbitmq-server, or brew install rabbitmq),"
            " start Docker, or name one with --broker"
        )
    for name, command in plan.commands.items():
        background.start(name, command, plan.environment)
    deadline = time.monotonic() + plan.start_s
    while not answers_amqp(_HOST, plan.port):
        if background.find_id(BROKER) is None or time.monotonic() > deadline:
            said = background.read_last_line(BROKER)
            raise BrokerUnreachable(f"{plan.kind} did not start: {said} ({background.log_of(BROKER)})")
        time.sleep(LOOK_S)
    return f"amqp://{_HOST}:{plan.port}/"


def _plan_node(federation: Path, state: Path) -> _Plan | None:
    scripts, epmd = find_scripts(), find_epmd()
    if scripts is None or epmd is None:
        return None
    amqp, distribution, mapper = find_free_ports(3)
    environment = lay_out_node(
        state,
        "hubbub@localhost",
        NodePorts(amqp=amqp, distribution=distribution, epmd=mapper),
        cookie=(federation / BROKER / COOKIE_FILE).read_text(encoding="ascii"),
        configuration=[f"load_definitions = {federation / PUBLIC / DEFINITIONS_FILE}"],
    )
    commands = {
        PORT_MAPPER: (epmd, "-address", _HOST, "-port", str(mapper)),
        BROKER: (str(scripts / "rabbitmq-server"),),
    }
    return _Plan(kind="RabbitMQ", port=amqp, start_s=_START_S, environment=environment, commands=commands)


def _plan_container(federation: Path, state: Path) -> _Plan | None:
    """Plan a container that is removed when it ends; its state is in the federation's folder."""
    docker = shutil.which("docker")
    if docker is None or not _answers(docker):
        return None
    (port,) = find_free_ports(1)
    data, configuration, definitions = state / "data", state / "hubbub.conf", f"/etc/hubbub/{DEFINITIONS_FILE}"
    data.mkdir(exist_ok=True)
    lines = (f"load_definitions = {definitions}", f"max_message_size = {MAX_BODY_BYTES}")
    configuration.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    configuration.chmod(0o644)
    command = (
        *(docker, "run", "--rm", "--hostname", "broker", "--user", f"{os.getuid()}:{os.getgid()}"),
        *("--publish", f"{_HOST}:{port}:{_AMQP_PORT}", "--env", "RABBITMQ_LOGS=-", "--tmpfs", "/var/log/rabbitmq"),
        *("--volume", f"{configuration}:/etc/rabbitmq/conf.d/20-hubbub.conf:ro"),
        *("--volume", f"{federation / PUBLIC / DEFINITIONS_FILE}:{definitions}:ro"),
        *("--volume", f"{data}:/var/lib/rabbitmq", IMAGE),
    )
    kind = f"a container of {IMAGE}"
    commands = {BROKER: command}
    return _Plan(kind=kind, port=port, start_s=_FETCH_AND_START_S, environment=os.environ, commands=commands)


def _answers(docker: str) -> bool:
    try:
        done = subprocess.run([docker, "version"], capture_output=True, timeout=_DOCKER_ANSWER_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
