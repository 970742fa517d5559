"""A private RabbitMQ node: all files in one folder, ports on this machine alone, no service manager, any user."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hubbub.transport.base import MAX_BODY_BYTES

# Debian's scripts in /usr/sbin change to the user `rabbitmq` first; these are the ones behind them.
_DEBIAN_SCRIPTS = Path("/usr/lib/rabbitmq/bin")
_ERLANG = Path("/usr/lib/erlang")
# Erlang's schedulers spin for a while before they sleep, at the cost of whoever else has work to do.
_NO_BUSY_WAIT = "+sbwt none +sbwtdcpu none +sbwtdio none"
_ANSWER_S = 5.0


def find_scripts() -> Path | None:
    """Find the folder that holds an installed RabbitMQ's scripts; None if there is none."""
    if (_DEBIAN_SCRIPTS / "rabbitmq-server").exists():
        return _DEBIAN_SCRIPTS
    found = shutil.which("rabbitmq-server")
    return Path(found).resolve().parent if found else None


def find_epmd() -> str | None:
    """Find Erlang's port mapper, by which nodes and tools find a node; None if there is none."""
    return shutil.which("epmd") or next(map(str, _ERLANG.glob("erts-*/bin/epmd")), None)


def answers_amqp(host: str, port: int) -> bool:
    """Return whether a broker really serves there, and not just listens."""
    try:
        with socket.create_connection((host, port), 1) as connection:
            connection.settimeout(_ANSWER_S)
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            # A method frame: Connection.Start.
            return connection.recv(1) == b"\x01"
    except OSError:
        return False


def find_free_ports(count: int) -> list[int]:
    """Find ports that nobody listens on; all are held until the last is found, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(server.getsockname()[1]) for server in sockets]
    for server in sockets:
        server.close()
    return ports


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts:
    """Ports of a node: for AMQP, for other nodes and tools, and of its port mapper."""

    amqp: int
    distribution: int
    epmd: int


def lay_out_node(
    folder: Path, name: str, ports: NodePorts, *, cookie: str, configuration: Sequence[str]
) -> dict[str, str]:
    """Write a node's files, unless its state is there already; return its environment.

    Everything is named, so that the node reads nothing under /etc and /var.
    """
    secret = folder / ".erlang.cookie"
    secret.unlink(missing_ok=True)
    secret.write_text(cookie, encoding="ascii")
    secret.chmod(0o400)
    (folder / "enabled_plugins").write_text("[].", encoding="ascii")
    lines = (f"max_message_size = {MAX_BODY_BYTES}", *configuration)
    (folder / "rabbitmq.conf").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = {
        "RABBITMQ_CONF_ENV_FILE": "no-environment.conf",
        "RABBITMQ_CONFIG_FILE": "rabbitmq.conf",
        "RABBITMQ_ADVANCED_CONFIG_FILE": "advanced.config",
        "RABBITMQ_MNESIA_BASE": "mnesia",
        "RABBITMQ_LOG_BASE": "log",
        "RABBITMQ_PID_FILE": "pid",
        "RABBITMQ_ENABLED_PLUGINS_FILE": "enabled_plugins",
        "RABBITMQ_FEATURE_FLAGS_FILE": "feature_flags",
        "RABBITMQ_GENERATED_CONFIG_DIR": "generated",
    }
    return {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": str(folder),
        "RABBITMQ_NODENAME": name,
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(ports.amqp),
        "RABBITMQ_DIST_PORT": str(ports.distribution),
        "RABBITMQ_CTL_DIST_PORT_MIN": "0",
        "RABBITMQ_CTL_DIST_PORT_MAX": "0",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} " + _NO_BUSY_WAIT,
        "ERL_EPMD_PORT": str(ports.epmd),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        # Makes the start script become the Erlang process instead of its parent: signals then reach it.
        "RUNNING_UNDER_SYSTEMD": "true",
        **{variable: str(folder / name) for variable, name in files.items()},
    }
