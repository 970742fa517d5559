"""A RabbitMQ node of our own."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hubbub_cli.rabbitmq_node import (
    NodePorts,
    answers_amqp,
    find_epmd,
    find_free_ports,
    find_scripts,
    lay_out_node,
)
from support.certificates import CertificateFiles
from support.private_server import PrivateServer
from support.program import run_program

_ASKS_CLIENTS = ("ssl_options.verify = verify_peer", "ssl_options.fail_if_no_peer_cert = true")


@dataclass(frozen=True, slots=True)
class NodeTls:
    """A node's files for TLS, and whether it takes only clients with a certificate of the same authority."""

    ca_file: Path
    server: CertificateFiles
    asks_clients: bool = True


class PrivateNode(PrivateServer):
    """A node that may be killed and started again."""

    def __init__(self, tls: NodeTls | None = None, *, seed: PrivateNode | None = None) -> None:
        """Lay out a node; one with a seed shares its cookie and port mapper, so that the two can be a cluster."""
        scripts, epmd = find_scripts(), find_epmd()
        if scripts is None or epmd is None:
            raise FileNotFoundError("no rabbitmq-server is installed")
        super().__init__("rabbitmq")
        self._scripts, self._epmd_program = scripts, epmd
        self.port, self.tls_port, distribution_port, epmd_port = find_free_ports(4)
        self._epmd_port: int = epmd_port if seed is None else seed._epmd_port
        self._cookie: str = secrets.token_hex(16) if seed is None else seed._cookie
        self._has_epmd = seed is None
        self._tls = tls
        self.name = f"hubbub-{os.getpid()}-{self.port}@localhost"
        ports = NodePorts(amqp=self.port, distribution=distribution_port, epmd=self._epmd_port)
        lines = ("loopback_users = none", *self._tls_lines())
        self._environment = lay_out_node(self.folder, self.name, ports, cookie=self._cookie, configuration=lines)
        self._epmd: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def launch(self) -> None:
        if self._epmd is None and self._has_epmd:
            # A port mapper of our own: one that is shared would outlive us, or die with somebody else.
            command = [self._epmd_program, "-address", "127.0.0.1", "-port", str(self._epmd_port)]
            self._epmd = self.spawn(command, self._environment)
        self._server = self.spawn([str(self._scripts / "rabbitmq-server")], self._environment)

    def serves(self) -> bool:
        if not answers_amqp("127.0.0.1", self.port):
            return False
        return self._tls is None or listens("127.0.0.1", self.tls_port)

    def configure(self, *lines: str) -> None:
        """Add lines to the node's configuration, which it reads when it starts."""
        with (self.folder / "rabbitmq.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    def settle(self) -> None:
        """Have on disk what queues there are: a node that is killed forgets those of its last half second.

        Its replicated queues are listed in tables that it saves now and then, whatever it has confirmed.
        """
        self.ctl("eval", "[ok = dets:sync(Table) || Table <- dets:all()], mnesia:sync_log().")

    @property
    def ctl_command(self) -> str:
        """The beginning of a shell's command line that runs rabbitmqctl on this node, from any folder."""
        environment = {**self._environment, "RUNNING_UNDER_SYSTEMD": ""}
        words = [f"{name}={value}" for name, value in environment.items()]
        return f'exec env {shlex.join(words)} {self._scripts / "rabbitmqctl"} -n {self.name} "$@"'

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl on this node."""
        environment = {k: v for k, v in self._environment.items() if k != "RUNNING_UNDER_SYSTEMD"}
        program = self._scripts / "rabbitmqctl"
        done = run_program(program, "-n", self.name, *arguments, env=environment, cwd=self.folder)
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {arguments[0]} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def close(self) -> None:
        self.kill()
        self.end(self._epmd, signal.SIGKILL)
        self._epmd = None
        super().close()

    def _tls_lines(self) -> list[str]:
        if self._tls is None:
            return []
        return [
            f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}",
            f"ssl_options.cacertfile = {self._tls.ca_file}",
            f"ssl_options.certfile = {self._tls.server.cert}",
            f"ssl_options.keyfile = {self._tls.server.key}",
            *(_ASKS_CLIENTS if self._tls.asks_clients else ()),
        ]


def listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True
