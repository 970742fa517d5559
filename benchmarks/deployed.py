"""Whole rounds of services that are processes of their own, over RabbitMQ: a coordinator, aggregators, trainers.

The processes are started as an operator starts them, with settings in the environment, and asked over the
coordinator's interface. What a process has spent and how large it has been is read from Linux.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import httpx

from benchmarks.peers.memory import read_memory
from benchmarks.steps import CLIENTS, RHO, SERVERS
from hubbub.errors import ProtocolError
from hubbub.ids import PartyId, Role, RunId
from hubbub.messages.manifest import Manifest
from hubbub.transport.rabbitmq import declare_topology
from hubbub.transport.topology import merge, topology_for
from hubbub.trust.identity import PRIVATE_SUFFIX, write_identity
from hubbub_coordinator.api.views import RoundView, RunView
from hubbub_local.parties import Parties, make_parties
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.planning import draw_up_manifest

MODULES: Mapping[Role, str] = MappingProxyType(
    {Role.COORDINATOR: "hubbub_coordinator", Role.AGGREGATOR: "hubbub_aggregator", Role.CLIENT: "hubbub_trainer"}
)
STRATEGY = "sec-union"
START_S, RUN_S, STOP_S = 180.0, 900.0, 30.0
_LOOK_AGAIN_S = 0.1
_CONNECTED, _LISTENING = "connected to the broker", "listening on "
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRounds:
    """Rounds of processes; times and sizes are medians over rounds and over the processes of a role."""

    parameters: int
    clients: int
    servers: int
    workers: int
    """Of each aggregator; 0 where it is one process."""
    strategy: str
    rounds: int
    protocol_s: float
    fastest_s: float
    slowest_s: float
    round_s: float
    """With the slowest trainer's training and evaluation."""
    payload_bytes: float
    wire_bytes: int
    aggregator_s: float
    """The processor's time of one aggregator in a round, with its workers'."""
    trainer_s: float
    """Of one trainer, with training and evaluation."""
    aggregator_bytes: int
    """The most that a process of one had in memory, its interpreter and libraries included."""
    trainer_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessesPlan:
    """What to run: the elements of a model, rounds after the first, and the workers of each aggregator."""

    parameters: int
    rounds: int
    workers: int = 0


def measure_processes(plan: ProcessesPlan, amqp_url: str) -> ProcessRounds:
    """Start everybody, run so many rounds and one before them that is left out, and end everybody."""
    parties = make_parties(clients=CLIENTS, servers=SERVERS)
    workers = {role: plan.workers if role is Role.AGGREGATOR else 0 for role in Role}
    topology = merge(
        topology_for(party.name, party.role, workers=workers[party.role]) for party in parties.roster.parties
    )
    asyncio.run(declare_topology(amqp_url, topology))
    manifest = draw_up_manifest(
        SyntheticTask(plan.parameters),
        roster=parties.roster,
        strategy=STRATEGY,
        rho=RHO,
        local_steps=1,
        rounds=plan.rounds + 1,
        seed=0,
    )
    with tempfile.TemporaryDirectory(prefix="hubbub-processes-") as folder:
        files = _PartyFiles(Path(folder), parties, amqp_url, plan.workers)
        with _started(files) as deployment:
            return _follow(deployment, manifest, plan.workers)


def _follow(deployment: _Deployment, manifest: Manifest, workers: int) -> ProcessRounds:
    deployment.submit(manifest)
    deployment.wait_for_rounds(manifest.run_id, 1)
    before_s = deployment.read_spent()
    deployment.wait_for_rounds(manifest.run_id, manifest.rounds)
    spent_s = {name: after_s - before_s[name] for name, after_s in deployment.read_spent().items()}
    sizes = deployment.read_sizes()
    views = [deployment.read_round(manifest.run_id, number) for number in range(2, manifest.rounds + 1)]
    protocol_s = [view.protocol_s or 0.0 for view in views]
    whole_s = [(view.ended_at_s or view.began_at_s) - view.began_at_s for view in views]
    costs = views[-1].cost.values()
    return ProcessRounds(
        parameters=manifest.parameters,
        clients=len(manifest.clients),
        servers=len(manifest.aggregators),
        workers=workers,
        strategy=manifest.strategy,
        rounds=len(views),
        protocol_s=statistics.median(protocol_s),
        fastest_s=min(protocol_s),
        slowest_s=max(protocol_s),
        round_s=statistics.median(whole_s),
        payload_bytes=sum(cost.payload_bits for cost in costs) / 8,
        wire_bytes=sum(cost.wire_bytes for cost in costs),
        aggregator_s=statistics.median(spent_s[name] for name in manifest.aggregators) / len(views),
        trainer_s=statistics.median(spent_s[name] for name in manifest.clients) / len(views),
        aggregator_bytes=max(sizes[name] for name in manifest.aggregators),
        trainer_bytes=max(sizes[name] for name in manifest.clients),
    )


class _PartyFiles:
    """What every party is given: its identity, the roster, a policy or tokens, and where the broker is."""

    def __init__(self, folder: Path, parties: Parties, amqp_url: str, workers: int) -> None:
        self.folder = folder
        self._workers = workers
        self.parties = parties
        self.tokens = {right: secrets.token_urlsafe(32) for right in ("read", "change")}
        self._amqp_url = amqp_url
        self._write()

    def _write(self) -> None:
        (self.folder / "roster.json").write_text(self.parties.roster.model_dump_json(), encoding="utf-8")
        limits = {"approve_tasks": ["*"], "min_clients": 2, "roster_sha256": self.parties.roster.digest}
        # JSON's strings, numbers and lists are TOML's too.
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
        }
        if role is Role.CLIENT:
            own = {"policy": self.folder / "policy.toml", "cache_folder": self.folder / "cache", "data": "digits"}
        else:
            own = {"roster_sha256": self.parties.roster.digest}
        if role is Role.AGGREGATOR:
            own |= {"workers": str(self._workers)}
        if role is Role.COORDINATOR:
            own |= {
                "port": "0",
                **{f"{right}_token_file": self.folder / f"{right}.token" for right in self.tokens},
            }
        prefix = MODULES[role].upper()
        return {f"{prefix}_{name.upper()}": str(value) for name, value in (common | own).items()}


@contextmanager
def _started(files: _PartyFiles) -> Iterator[_Deployment]:
    deployment = _Deployment(files)
    try:
        for name in files.parties.identities:
            deployment.start(name)
        deployment.wait_until_ready()
        yield deployment
    finally:
        deployment.end()


class _Deployment:
    """The processes, and a way to ask the coordinator."""

    def __init__(self, files: _PartyFiles) -> None:
        self._files = files
        self._processes: dict[PartyId, subprocess.Popen[bytes]] = {}
        # No proxy of the environment may come between.
        self._http = httpx.Client(timeout=30, trust_env=False)

    def start(self, name: PartyId) -> None:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("HUBBUB_")}
        module = MODULES[self._files.parties.identities[name].role]
        with self._log_of(name).open("wb") as output:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", module],
                env=inherited | self._files.settings_for(name),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait_until_ready(self) -> None:
        for name in self._processes:
            self._wait(lambda name=name: self._find_message(name, _CONNECTED) is not None, START_S)  # type: ignore[misc]
        self._wait(lambda: self._find_message(self._coordinator, _LISTENING) is not None, START_S)

    def end(self) -> None:
        """Ask all to end, as an operator does, and end those that do not."""
        self._http.close()
        for process in self._processes.values():
            process.terminate()
        limit_s = time.monotonic() + STOP_S
        for process in self._processes.values():
            try:
                process.wait(max(0.0, limit_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # Runs -----------------------------------------------------------------------------------------------

    def submit(self, manifest: Manifest) -> None:
        self._ask("POST", "/api/v1/runs", "change", manifest.model_dump(mode="json"))

    def wait_for_rounds(self, run: RunId, count: int) -> None:
        def released() -> bool:
            view = RunView.model_validate_json(self._ask("GET", f"/api/v1/runs/{run}", "read"))
            if view.state in {"failed", "cancelled"}:
                raise ProtocolError(f"the run {view.state}: {view.reason}")
            return view.rounds_released >= count

        self._wait(released, RUN_S)

    def read_round(self, run: RunId, number: int) -> RoundView:
        return RoundView.model_validate_json(self._ask("GET", f"/api/v1/runs/{run}/rounds/{number}", "read"))

    def _ask(self, method: str, path: str, right: str, body: object = None) -> bytes:
        url = (self._find_message(self._coordinator, _LISTENING) or "").removeprefix(_LISTENING)
        headers = {"Authorization": f"Bearer {self._files.tokens[right]}"}
        return self._http.request(method, f"{url}{path}", json=body, headers=headers).raise_for_status().content

    # Processes ------------------------------------------------------------------------------------------

    def read_spent(self) -> dict[PartyId, float]:
        """The processor's time of each party's processes so far."""
        return {name: sum(map(_read_spent, _family_of(each.pid))) for name, each in self._processes.items()}

    def read_sizes(self) -> dict[PartyId, int]:
        """The most that a process of each party has had in memory."""
        return {
            name: max(read_memory("VmHWM", pid) or 0 for pid in _family_of(process.pid))
            for name, process in self._processes.items()
        }

    @property
    def _coordinator(self) -> PartyId:
        return next(party.name for party in self._files.parties.roster.named(Role.COORDINATOR))

    def _log_of(self, name: PartyId) -> Path:
        return self._files.folder / f"{name}.log"

    def _find_message(self, name: PartyId, beginning: str) -> str | None:
        lines = self._log_of(name).read_text("utf-8", "replace").splitlines(keepends=True)
        whole = (json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n"))
        return next((str(each["message"]) for each in whole if str(each["message"]).startswith(beginning)), None)

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        limit_s = time.monotonic() + timeout_s
        while not condition():
            over = time.monotonic() > limit_s
            dead = [name for name, process in self._processes.items() if process.poll() is not None]
            if over or dead:
                told = "\n".join(f"{name}: {self._log_of(name).read_text('utf-8')[-500:]}" for name in dead)
                raise ProtocolError(f"the processes did not get on within {timeout_s:g} s: {told or 'all alive'}")
            time.sleep(_LOOK_AGAIN_S)


def _family_of(pid: int) -> list[int]:
    """A process and those that its threads have started."""
    children = [path.read_text("ascii").split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [pid, *(int(child) for each in children for child in each)]


def _read_spent(pid: int) -> float:
    # The name of a program, in brackets, may hold spaces; user and system time are the 12th and 13th after it.
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
