"""A PostgreSQL server of our own: a free port, its own data folder, loopback only, any user, no service manager.

It syncs as a server in earnest does. PostgreSQL refuses to run as root; then another user runs it. It disappears
with the process that started it, however that ends, as a private RabbitMQ node does.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from support.lived import Lived
from support.private_node import _GUARD, _free_ports

_DEBIAN_PROGRAMS = Path("/usr/lib/postgresql")


def server_programs() -> Path | None:
    """Find the folder that holds an installed PostgreSQL's programs; Debian keeps them out of the PATH."""
    versions = sorted(_DEBIAN_PROGRAMS.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    found = versions[-1] if versions else shutil.which("initdb")
    return Path(found).resolve().parent if found else None


class PrivatePostgres(Lived):
    """Start, stop, kill and start again, on the same port and the same data; `close` removes everything."""

    def __init__(self) -> None:
        programs = server_programs()
        if programs is None:
            raise FileNotFoundError("no PostgreSQL server is installed")
        self._programs = programs
        self._user = _unprivileged_user()
        self.folder = Path(tempfile.mkdtemp(prefix="hubbub-postgres-"))
        self.password = secrets.token_hex(16)
        (self.port,) = _free_ports(1)
        self._server: subprocess.Popen[bytes] | None = None
        self._guard = subprocess.Popen(
            [sys.executable, "-c", _GUARD, str(self.folder)], stdin=subprocess.PIPE, start_new_session=True
        )

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """The same server behind another port."""
        return f"postgresql://hubbub:{self.password}@127.0.0.1:{port}/postgres"

    def set_up(self) -> None:
        self._lay_out()
        self.start()

    def start(self, timeout_s: float = 60) -> None:
        """Return when the server serves."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
        }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        self._server = self._spawn("postgres", "-D", str(self._data), *settings)
        self._tell_guard("+", self._server.pid)
        deadline = time.monotonic() + timeout_s
        while not self._serves():
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the private PostgreSQL did not start (in {timeout_s:g} s): {self._said()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the server as an operator would, whoever is connected."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End the server at once, without a word to anybody: when it starts again it recovers from its log."""
        self._end(signal.SIGQUIT)

    def execute(self, statement: str) -> None:
        """Do something as the operator."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)

    def close(self) -> None:
        """End what runs and remove the folder."""
        self.kill()
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            # Its input ends: it removes the folder.
            self._guard.stdin.close()
            self._guard.wait(30)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _lay_out(self) -> None:
        password_file = self.folder / "password"
        password_file.write_text(self.password)
        if self._user is not None:
            for path in (self.folder, password_file):
                shutil.chown(path, self._user)
        # What it does not sync here is its own first files, not what it is given later.
        done = self._spawn(
            *("initdb", "-D", str(self._data), "--no-sync", "--username=hubbub", "--encoding=UTF8", "--locale=C"),
            *("--auth=scram-sha-256", f"--pwfile={password_file}"),
        )
        if done.wait(120):
            raise RuntimeError(f"initdb failed: {self._said()}")

    def _serves(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _spawn(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "output.log").open("ab") as output:
            return subprocess.Popen(
                [str(self._programs / program), *arguments],
                env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                user=self._user,
                group=None if self._user is None else pwd.getpwnam(self._user).pw_gid,
                extra_groups=None if self._user is None else [],
                # Ctrl-C in the terminal is for the tests; they end the server themselves.
                start_new_session=True,
            )

    def _said(self) -> str:
        return (self.folder / "output.log").read_text(errors="replace")[-2000:]

    def _end(self, how: signal.Signals) -> None:
        if self._server is None:
            return
        self._server.send_signal(how)
        try:
            self._server.wait(30)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait(10)
        self._tell_guard("-", self._server.pid)
        self._server = None

    def _tell_guard(self, sign: str, pid: int) -> None:
        if self._guard.stdin is not None:
            self._guard.stdin.write(f"{sign}{pid}\n".encode())
            self._guard.stdin.flush()


def _unprivileged_user() -> str | None:
    """Who runs the server if we may not: PostgreSQL's own user if there is one, else nobody."""
    if os.geteuid() != 0:
        return None
    names = {user.pw_name for user in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
