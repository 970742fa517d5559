"""A RabbitMQ node of our own."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hubbub.transport.base import MAX_BODY_BYTES
from support.certificates import CertificateFiles
from support.private_server import PrivateServer, find_free_ports
from support.program import run_program

# Debian's scripts in /usr/sbin change to the user `rabbitmq` first; these are the ones behind them.
_DEBIAN_SCRIPTS = Path("/usr/lib/rabbitmq/bin")
# Erlang's schedulers spin for a while before they sleep, at the cost of whoever else has work to do.
_NO_BUSY_WAIT = "+sbwt none +sbwtdcpu none +sbwtdio none"


def server_scripts() -> Path | None:
    """Find the folder that holds an installed RabbitMQ's scripts."""
    if (_DEBIAN_SCRIPTS / "rabbitmq-server").exists():
        return _DEBIAN_SCRIPTS
    found = shutil.which("rabbitmq-server")
    return Path(found).resolve().parent if found else None


def answers_amqp(host: str, port: int) -> bool:
    """Say whether a broker really serves there, and not just listens."""
    try:
        with socket.create_connection((host, port), 1) as connection:
            connection.settimeout(5)
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            # A method frame: Connection.Start.
            return connection.recv(1) == b"\x01"
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class NodeTls:
    """A node's files for TLS; it takes only clients with a certificate of the same authority."""

    ca_file: Path
    server: CertificateFiles


class PrivateNode(PrivateServer):
    """A node that may be killed and started again."""

    def __init__(self, tls: NodeTls | None = None, *, seed: PrivateNode | None = None) -> None:
        """Lay out a node; one with a seed shares its cookie and port mapper, so that the two can be a cluster."""
        scripts = server_scripts()
        if scripts is None:
            raise FileNotFoundError("no rabbitmq-server is installed")
        super().__init__("rabbitmq")
        self._scripts = scripts
        self.port, self.tls_port, distribution_port, epmd_port = find_free_ports(4)
        self._epmd_port: int = epmd_port if seed is None else seed._epmd_port
        self._cookie: str = secrets.token_hex(16) if seed is None else seed._cookie
        self._has_epmd = seed is None
        self._tls = tls
        self.name = f"hubbub-{os.getpid()}-{self.port}@localhost"
        self._environment = self._lay_out(distribution_port)
        self._epmd: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def launch(self) -> None:
        if self._epmd is None and self._has_epmd:
            # A port mapper of our own: one that is shared would outlive us, or die with somebody else.
            command = [_epmd_program(), "-address", "127.0.0.1", "-port", str(self._epmd_port)]
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

    def _lay_out(self, distribution_port: int) -> dict[str, str]:
        """Write the node's files and name them all, so that it reads nothing under /etc and /var."""
        cookie = self.folder / ".erlang.cookie"
        cookie.write_text(self._cookie)
        cookie.chmod(0o400)
        (self.folder / "enabled_plugins").write_text("[].")
        self.configure("loopback_users = none", f"max_message_size = {MAX_BODY_BYTES}", *self._tls_lines())
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
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_CTL_DIST_PORT_MIN": "0",
            "RABBITMQ_CTL_DIST_PORT_MAX": "0",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} " + _NO_BUSY_WAIT,
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # Makes the start script become the Erlang process instead of its parent: signals then reach it.
            "RUNNING_UNDER_SYSTEMD": "true",
            **{variable: str(self.folder / name) for variable, name in files.items()},
        }

    def _tls_lines(self) -> list[str]:
        if self._tls is None:
            return []
        return [
            f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}",
            f"ssl_options.cacertfile = {self._tls.ca_file}",
            f"ssl_options.certfile = {self._tls.server.cert}",
            f"ssl_options.keyfile = {self._tls.server.key}",
            "ssl_options.verify = verify_peer",
            "ssl_options.fail_if_no_peer_cert = true",
        ]


def listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True


def _epmd_program() -> str:
    found = shutil.which("epmd") or next(map(str, Path("/usr/lib/erlang").glob("erts-*/bin/epmd")), None)
    if found is None:
        raise FileNotFoundError("Erlang's epmd was not found beside rabbitmq-server")
    return found
