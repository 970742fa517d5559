"""Services in separate processes over RabbitMQ, for benchmarks.

The processes are started as an operator starts them, with settings in the environment. Their CPU time and memory
are read from Linux's /proc.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from benchmarks.peers.memory import read_memory
from hubbub.errors import ProtocolError
from hubbub.ids import PartyId, Role
from hubbub.transport.rabbitmq import declare_topology
from hubbub.transport.topology import merge, topology_for
from hubbub.trust.identity import PRIVATE_SUFFIX, write_identity
from hubbub_local.federation import Parties

MODULES: Mapping[Role, str] = MappingProxyType(
    {Role.COORDINATOR: "hubbub_coordinator", Role.AGGREGATOR: "hubbub_aggregator", Role.CLIENT: "hubbub_trainer"}
)
START_S, STOP_S = 180.0, 30.0
_LOOK_AGAIN_S = 0.1
_CONNECTED = "connected to the broker"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def declare(parties: Parties, amqp_url: str) -> None:
    """Declare every party's queues at a broker."""
    topology = merge(topology_for(party.name, party.role) for party in parties.roster.parties)
    asyncio.run(declare_topology(amqp_url, topology))


@contextmanager
def started(parties: Parties, names: Iterable[PartyId], amqp_url: str) -> Iterator[Processes]:
    """Run these parties, each with files of its own, and wait until they are connected; stop them at the end."""
    with tempfile.TemporaryDirectory(prefix="hubbub-processes-") as folder:
        processes = Processes(PartyFiles(Path(folder), parties, amqp_url))
        try:
            for name in names:
                processes.start(name)
            processes.wait_until_connected()
            yield processes
        finally:
            processes.end()


class PartyFiles:
    """Files and settings of every party: identity, roster, a policy or tokens, and the broker's URL."""

    def __init__(self, folder: Path, parties: Parties, amqp_url: str) -> None:
        self.folder = folder
        self.parties = parties
        self.tokens = {right: secrets.token_urlsafe(32) for right in ("read", "change")}
        self._amqp_url = amqp_url
        self._write()

    def _write(self) -> None:
        (self.folder / "roster.json").write_text(self.parties.roster.model_dump_json(), encoding="utf-8")
        limits = {"approve_tasks": ["*"], "min_clients": 2, "roster_sha256": self.parties.roster.digest}
        # JSON's strings, numbers and lists are valid TOML.
        policy = "".join(f"{name} = {json.dumps(value)}\n" for name, value in limits.items())
        (self.folder / "policy.toml").write_text(policy, encoding="utf-8")
        for right, token in self.tokens.items():
            path = self.folder / f"{right}.token"
            path.touch(mode=0o600)
            path.write_text(f"{token}\n", encoding="ascii")
        for identity in self.parties.identities.values():
            write_identity(identity, self.folder)

    def settings_for(self, name: PartyId) -> dict[str, str]:
        role = self.parties.identities[name].role
        common = {
            "identity": self.folder / f"{name}{PRIVATE_SUFFIX}",
            "roster": self.folder / "roster.json",
            "folder": self.folder / name,
            "amqp_url": self._amqp_url,
            "log_level": "info",
            "new_state": "true",
        }
        if role is Role.CLIENT:
            own = {"policy": self.folder / "policy.toml", "cache_folder": self.folder / "cache", "data": "digits"}
        if role is Role.AGGREGATOR:
            own = {"policy": self.folder / "policy.toml"}
        if role is Role.COORDINATOR:
            own = {
                "roster_sha256": self.parties.roster.digest,
                "port": "0",
                **{f"{right}_token_file": self.folder / f"{right}.token" for right in self.tokens},
            }
        prefix = MODULES[role].upper()
        return {f"{prefix}_{name.upper()}": str(value) for name, value in (common | own).items()}


class Processes:
    """Running processes, with their CPU time and memory."""

    def __init__(self, files: PartyFiles) -> None:
        self.files = files
        self._processes: dict[PartyId, subprocess.Popen[bytes]] = {}

    def start(self, name: PartyId) -> None:
        """Start a party's service."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("HUBBUB_")}
        module = MODULES[self.files.parties.identities[name].role]
        with self._log_of(name).open("wb") as output:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", module],
                env=inherited | self.files.settings_for(name),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait_until_connected(self) -> None:
        """Wait until all started parties are connected."""
        for name in self._processes:
            self.wait_for_message(name, _CONNECTED)

    def wait_for_message(self, name: PartyId, beginning: str) -> str:
        """Wait for the message in a party's log that begins so, and return it."""
        self.wait(lambda: self._find_message(name, beginning) is not None, START_S)
        return self._find_message(name, beginning) or ""

    def wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Poll a condition; raise if a process dies, or after the timeout."""
        limit_s = time.monotonic() + timeout_s
        while not condition():
            over = time.monotonic() > limit_s
            dead = [name for name, process in self._processes.items() if process.poll() is not None]
            if over or dead:
                told = "\n".join(f"{name}: {self._log_of(name).read_text('utf-8')[-500:]}" for name in dead)
                raise ProtocolError(f"the processes did not get on within {timeout_s:g} s: {told or 'all alive'}")
            time.sleep(_LOOK_AGAIN_S)

    def end(self) -> None:
        """Terminate all processes, and kill those that do not stop."""
        for process in self._processes.values():
            process.terminate()
        limit_s = time.monotonic() + STOP_S
        for process in self._processes.values():
            try:
                process.wait(max(0.0, limit_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def read_spent(self) -> dict[PartyId, float]:
        """Return the CPU time of each party's processes so far."""
        return {name: sum(map(_read_spent, _family_of(each.pid))) for name, each in self._processes.items()}

    def read_memory(self, what: str) -> dict[PartyId, int]:
        """Return VmRSS or VmHWM of each party's largest process."""
        return {
            name: max(read_memory(what, pid) or 0 for pid in _family_of(process.pid))
            for name, process in self._processes.items()
        }

    def _log_of(self, name: PartyId) -> Path:
        return self.files.folder / f"{name}.log"

    def _find_message(self, name: PartyId, beginning: str) -> str | None:
        lines = self._log_of(name).read_text("utf-8", "replace").splitlines(keepends=True)
        whole = (json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n"))
        return next((str(each["message"]) for each in whole if str(each["message"]).startswith(beginning)), None)


def _family_of(pid: int) -> list[int]:
    """Return the ids of a process and its children."""
    children = [path.read_text("ascii").split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [pid, *(int(child) for each in children for child in each)]


def _read_spent(pid: int) -> float:
    # The program's name, in brackets, may contain spaces; user and system time are fields 12 and 13 after it.
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
