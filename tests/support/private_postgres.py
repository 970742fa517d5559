"""A PostgreSQL server of our own. It syncs as a real one does, and runs as another user if we are root."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
from pathlib import Path

import psycopg

from hubbub_cli.rabbitmq_node import find_free_ports
from support.patience import HANG_S
from support.private_server import PrivateServer

_DEBIAN_PROGRAMS = Path("/usr/lib/postgresql")


def server_programs() -> Path | None:
    """Find the folder that holds an installed PostgreSQL's programs; Debian keeps them out of the PATH."""
    versions = sorted(_DEBIAN_PROGRAMS.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    found = versions[-1] if versions else shutil.which("initdb")
    return Path(found).resolve().parent if found else None


class PrivatePostgres(PrivateServer):
    """A server that may be stopped or killed and started again."""

    def __init__(self) -> None:
        programs = server_programs()
        if programs is None:
            raise FileNotFoundError("no PostgreSQL server is installed")
        super().__init__("postgres")
        self._programs = programs
        self._user = _unprivileged_user()
        self.password = secrets.token_hex(16)
        (self.port,) = find_free_ports(1)

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """The same server behind another port."""
        return f"postgresql://hubbub:{self.password}@127.0.0.1:{port}/postgres"

    def launch(self) -> None:
        data = self.folder / "data"
        if not data.exists():
            self._lay_out(data)
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
        }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        self._server = self._run("postgres", "-D", str(data), *settings)

    def serves(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """End the server as an operator would, whoever is connected."""
        self.kill(signal.SIGINT)

    def kill(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """End the server at once, without a word to anybody: when it starts again it recovers from its log."""
        super().kill(how)

    def execute(self, statement: str) -> None:
        """Do something as the operator."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)

    def _lay_out(self, data: Path) -> None:
        password_file = self.folder / "password"
        password_file.write_text(self.password)
        if self._user is not None:
            for path in (self.folder, password_file):
                shutil.chown(path, self._user)
        # What it does not sync here is its own first files, not what it is given later.
        done = self._run(
            *("initdb", "-D", str(data), "--no-sync", "--username=hubbub", "--encoding=UTF8", "--locale=C"),
            *("--auth=scram-sha-256", f"--pwfile={password_file}"),
        )
        if done.wait(HANG_S):
            raise RuntimeError(f"initdb failed: {self.read_output()}")

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        group = None if self._user is None else pwd.getpwnam(self._user).pw_gid
        return self.spawn([str(self._programs / program), *arguments], environment, self._user, group)


def _unprivileged_user() -> str | None:
    """Who runs the server if we may not: PostgreSQL's own user if there is one, else nobody."""
    if os.geteuid() != 0:
        return None
    names = {user.pw_name for user in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
