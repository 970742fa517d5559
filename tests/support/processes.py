"""Services as processes of their own: started with settings in the environment, followed over REST, killed and
started again, ended with SIGTERM, and quoted when a test fails."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Protocol, Self, TypeVar

import aio_pika
import httpx
from pydantic import BaseModel

from hubbub.ids import PartyId, Role, RunId
from hubbub.messages.manifest import Manifest
from hubbub.rest import RoundView, RunView
from hubbub.run_options import RunOptions
from hubbub.transport.base import DeadLetter
from hubbub.transport.rabbitmq import RabbitMqTransport, declare_topology, remove_topology
from hubbub.transport.topology import Topology, dead_letter_queue, merge, received_from, topology_for
from hubbub.trust.roster import Roster
from hubbub_coordinator.api.views import RunCost
from hubbub_coordinator.phases.run import OUTCOMES
from hubbub_local.federation import Parties
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.planning import draw_up_manifest
from support.failpoints import Failpoint, environment_for, read_hits
from support.fork_server import ForkedProcess, start_forked
from support.party_files import write_party_files, write_policy
from support.patience import HANG_S

V = TypeVar("V", bound=BaseModel)
T = TypeVar("T")

MODULES: Mapping[Role, str] = MappingProxyType(
    {
        Role.COORDINATOR: "hubbub_coordinator",
        Role.AGGREGATOR: "hubbub_aggregator",
        Role.CLIENT: "hubbub_trainer",
    }
)
_POLL_S = 0.05
_TAIL_LINES = 12
_TESTS = Path(__file__).parents[1]


def _has_content(path: Path) -> bool:
    """Whether a file is there and not empty; a spool's come and go."""
    with suppress(FileNotFoundError):
        return path.stat().st_size > 0
    return False


def prefix_of(role: Role) -> str:
    """What the environment variables of a service begin with."""
    return f"{MODULES[role].upper()}_"


def environment_of(role: Role, settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with exactly these settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HUBBUB_")}
    return {**inherited, **{f"{prefix_of(role)}{name.upper()}": value for name, value in settings.items()}}


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = HANG_S) -> None:
    """Look again and again, at another process's doings, until they are done or time is up."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(_POLL_S)


class CoordinatorAway(ConnectionError):
    """The coordinator does not answer: it is dead, or not up yet."""


def start_python(
    arguments: Sequence[str], environment: Mapping[str, str], output: Path
) -> subprocess.Popen[bytes]:
    """Start an interpreter that appends what it writes to a file."""
    with output.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


class ServiceProcess:
    """One life of a service, and the file that its log lines go to, after those of its former lives."""

    def __init__(
        self,
        role: Role,
        name: PartyId,
        folder: Path,
        settings: Mapping[str, str],
        failpoints: Sequence[Failpoint] = (),
        *,
        forked: bool = False,
    ) -> None:
        self.role = role
        self.name = name
        self.folder = folder / name
        self.hits_file = folder / f"{name}.hits_file"
        self._hits_before = len(read_hits(self.hits_file))
        self._log_file = folder / f"{name}.log"
        self._log_begins = self._log_file.stat().st_size if self._log_file.exists() else 0
        environment = environment_of(role, {"folder": str(self.folder), **settings})
        arguments = ["-m", MODULES[role]]
        if failpoints:
            arguments = ["-m", "support.failpoints", MODULES[role]]
            environment |= environment_for(failpoints, self.hits_file)
            environment["PYTHONPATH"] = os.pathsep.join([environment.get("PYTHONPATH", ""), str(_TESTS)])
        start = start_forked if forked else start_python
        self._process: subprocess.Popen[bytes] | ForkedProcess = start(arguments, environment, self._log_file)

    @property
    def was_killed_here(self) -> bool:
        """Whether a failpoint killed it."""
        killed = self._process.poll() == -signal.SIGKILL
        return killed and len(read_hits(self.hits_file)) > self._hits_before

    def read_memory(self) -> int:
        """How many bytes of it are in memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def go_on(self) -> None:
        """Let it go on after it was halted."""
        self._process.send_signal(signal.SIGCONT)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def lines(self) -> list[str]:
        """What it has written so far in this life, in whole lines."""
        with self._log_file.open("rb") as file:
            file.seek(self._log_begins)
            text = file.read().decode(errors="replace")
        return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def messages(self) -> list[str]:
        """The messages of its log lines so far."""
        return [str(json.loads(line)["message"]) for line in self.lines() if line.startswith("{")]

    def spooled(self) -> int:
        """How many chunks it has on its disk."""
        return sum(1 for path in (self.folder / "spool").rglob("*.*") if _has_content(path))

    def wait_for_spool(self, chunks: int) -> None:
        """Return when it has so many chunks on its disk."""
        wait_until(lambda: self.spooled() >= chunks, f"{self.name} spools {chunks} chunks")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the process still, so that what is sent to it waits."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.go_on()

    def wait_for_message(self, beginning: str) -> str:
        """The first log line that begins so."""

        def found() -> bool:
            if not self.running:
                raise ChildProcessError(f"{self.name} ended with code {self._process.returncode}\n{self.tail()}")
            return any(message.startswith(beginning) for message in self.messages())

        wait_until(found, f"{self.name} logs {beginning!r}")
        return next(message for message in self.messages() if message.startswith(beginning))

    def stop(self) -> int:
        """Ask it to end, as an operator does, and return its exit code."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        try:
            return self._process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"{self.name} did not end within {HANG_S:g} s\n{self.tail()}") from None

    def kill(self) -> None:
        if self.running:
            self._process.kill()
            self._process.wait(HANG_S)

    def tail(self) -> str:
        """The last lines of its log, for whoever reads a failure."""
        lines = self._log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([f"--- {self.name}: {len(lines)} lines, the last of them", *lines[-_TAIL_LINES:]])


def topology_of(roster: Roster) -> Topology:
    """What a broker must have for a whole federation."""
    return merge(topology_for(party.name, party.role) for party in roster.parties)


class PreparedBroker(Protocol):
    """A broker as a federation meets it: made ready for its roster, entered by its parties, left as it was."""

    def prepare(self, roster: Roster) -> None:
        """Do what an operator does before the parties come."""

    def settings_for(self, name: PartyId) -> dict[str, str]:
        """How a party gets in."""

    def clear(self, roster: Roster) -> None:
        """Remove what was prepared."""


class SharedBroker:
    """A broker at which everybody goes by the user in its URL, as tests do that are about something else."""

    def __init__(self, url: str) -> None:
        self._url = url

    def prepare(self, roster: Roster) -> None:
        asyncio.run(declare_topology(self._url, topology_of(roster)))

    def settings_for(self, name: PartyId) -> dict[str, str]:
        del name
        return {"amqp_url": self._url}

    def clear(self, roster: Roster) -> None:
        asyncio.run(remove_topology(self._url, topology_of(roster)))

    async def dead_letters(self, roster: Roster) -> dict[PartyId, list[DeadLetter]]:
        """What each party has put aside so far."""
        async with RabbitMqTransport(self._url, topology_of(roster)) as reader:
            return {
                party.name: await reader.dead_letters(dead_letter_queue(party.name)) for party in roster.parties
            }

    async def queue_lengths(self, roster: Roster) -> dict[PartyId, int]:
        """How much waits for each party."""
        lengths = dict.fromkeys((party.name for party in roster.parties), 0)
        connection = await aio_pika.connect(self._url)
        async with connection, connection.channel() as channel:
            for party in roster.parties:
                for name in received_from(party.name, party.role):
                    queue = await channel.declare_queue(name, passive=True)
                    lengths[party.name] += queue.declaration_result.message_count or 0
        return lengths

    async def lose_waiting(self, name: PartyId) -> int:
        """Lose all that waits for a party that is away, and say how much that was."""
        connection = await aio_pika.connect(self._url)
        async with connection, connection.channel() as channel:
            queues = [await channel.declare_queue(each, passive=True) for each in received_from(name, Role.CLIENT)]
            return sum([(await queue.purge()).message_count or 0 for queue in queues])


class ProcessFederation:
    """A coordinator, aggregators and trainers that nobody else on the broker knows the names of."""

    def __init__(
        self,
        broker: PreparedBroker,
        folder: Path,
        *,
        trainers: int,
        aggregators: int = 2,
        demo_seed: int | None = None,
        forked: bool = False,
    ) -> None:
        """Forked processes have their modules imported, and are there at once."""
        self._broker = broker
        self._forked = forked
        self._folder = folder
        self._demo_seed = demo_seed
        suffix = uuid.uuid4().hex[:8]
        self.coordinator_name = PartyId(f"coordinator-{suffix}")
        self.aggregator_names = [PartyId(f"aggregator-{i}-{suffix}") for i in range(1, aggregators + 1)]
        self.trainer_names = [PartyId(f"trainer-{i}-{suffix}") for i in range(1, trainers + 1)]
        self.roles: dict[PartyId, Role] = {
            self.coordinator_name: Role.COORDINATOR,
            **dict.fromkeys(self.aggregator_names, Role.AGGREGATOR),
            **dict.fromkeys(self.trainer_names, Role.CLIENT),
        }
        self._files = write_party_files(folder / "files", self.roles)
        self._failpoints: dict[PartyId, Sequence[Failpoint]] = {}
        self.services: dict[PartyId, ServiceProcess] = {}
        self.stopped: set[PartyId] = set()
        # No proxy of the environment may come between.
        self._http = httpx.Client(timeout=10, trust_env=False)

    @property
    def parties(self) -> Parties:
        """Everybody's identity, to start the same federation elsewhere or to speak in a party's name."""
        return self._files.parties

    @property
    def roster(self) -> Roster:
        return self._files.parties.roster

    @property
    def url(self) -> str:
        """Where the coordinator answers; after a restart it is another port."""
        heading = "listening on "
        messages = self.services[self.coordinator_name].messages()
        found = [message.removeprefix(heading) for message in messages if message.startswith(heading)]
        if not found:
            raise CoordinatorAway(f"{self.coordinator_name} does not listen yet")
        return found[-1]

    # Life and death -------------------------------------------------------------------------------------

    def allow(self, *strategies: str) -> None:
        """Have the data owners allow these strategies, before the federation is started."""
        for name in self.trainer_names:
            write_policy(self._files.policy(name), roster_sha256=self.roster.digest, strategies=strategies)

    def inject(self, name: PartyId, failpoints: Sequence[Failpoint]) -> None:
        """Give a party failpoints, before the federation is started."""
        self._failpoints[name] = failpoints

    def __enter__(self) -> Self:
        try:
            self._broker.prepare(self.roster)
            for name in self.roles:
                self._start(name)
            for service in self.services.values():
                service.wait_for_message("connected to the broker")
            self.services[self.coordinator_name].wait_for_message("listening on ")
        except BaseException:
            self._clean_up()
            raise
        return self

    def _start(self, name: PartyId) -> None:
        self.services[name] = ServiceProcess(
            self.roles[name],
            name,
            self._folder,
            self._settings(name),
            self._failpoints.get(name, ()),
            forked=self._forked,
        )

    def kill(self, name: PartyId) -> None:
        """End a party as a power failure would."""
        self.services[name].kill()

    def restart(self, name: PartyId) -> None:
        """Start a party again that is dead, and do not wait for it."""
        self._start(name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._stop_all()
            else:
                error.add_note(self.tails())
        finally:
            self._clean_up()

    def _settings(self, name: PartyId) -> dict[str, str]:
        role = self.roles[name]
        settings = {
            **self._files.settings_for(name),
            **self._broker.settings_for(name),
            "log_level": "info",
        }
        if role is Role.COORDINATOR:
            settings["port"] = "0"
        if role is Role.CLIENT:
            settings |= {"data": "digits", "cache_folder": str(self._folder / "cache")}
            if self._demo_seed is not None:
                settings["demo_seed"] = str(self._demo_seed)
        return settings

    def stop(self, name: PartyId) -> int:
        """End one party with SIGTERM and return its exit code."""
        self.stopped.add(name)
        return self.services[name].stop()

    def _stop_all(self) -> None:
        # One that was just started again does not listen to signals yet.
        self.wait_until_connected()
        codes = {name: self.stop(name) for name in self.roles if name not in self.stopped}
        assert set(codes.values()) <= {0}, f"exit codes {codes}\n{self.tails()}"

    def _clean_up(self) -> None:
        for service in self.services.values():
            service.kill()
        self._http.close()
        self._broker.clear(self.roster)

    def tails(self) -> str:
        return "\n".join(service.tail() for service in self.services.values())

    def check_alive(self) -> None:
        """Start those again that a failpoint killed; fail if one has ended otherwise and nobody stopped it."""
        dead = []
        for name, service in list(self.services.items()):
            if service.running or name in self.stopped:
                continue
            if service.was_killed_here:
                self._start(name)
            else:
                dead.append(name)
        assert not dead, f"{', '.join(dead)} ended by themselves\n{self.tails()}"

    def wait_until_connected(self) -> None:
        """Return when nobody is dead or on the way back."""
        for name in self.roles:
            if name not in self.stopped:
                self.check_alive()
                self.services[name].wait_for_message("connected to the broker")

    def pending(self) -> dict[PartyId, list[Failpoint]]:
        """Return the failpoints that each party has not hit yet."""
        ahead = {
            name: [
                failpoint for failpoint in failpoints if failpoint not in read_hits(self.services[name].hits_file)
            ]
            for name, failpoints in self._failpoints.items()
        }
        return {name: failpoints for name, failpoints in ahead.items() if failpoints}

    def wait_until_hit(self, name: PartyId, failpoint: Failpoint) -> None:
        """Return when a party has hit a failpoint."""

        def met() -> bool:
            self.check_alive()
            return failpoint in read_hits(self.services[name].hits_file)

        wait_until(met, f"{name} meets {failpoint}")

    # Runs -----------------------------------------------------------------------------------------------

    def draw_up(self, *, rounds: int, **changes: object) -> Manifest:
        """A run of two phases a round, on the smallest task."""
        options = RunOptions(strategy="sec-union", local_steps=5, rounds=rounds, seed=self._demo_seed or 0)
        manifest = draw_up_manifest(SyntheticTask(), options, roster=self.roster)
        return Manifest.model_validate(manifest.model_dump() | changes)

    def submit(self, manifest: Manifest) -> RunId:
        """Begin a run, and ask again if the coordinator died over it, as an operator would."""
        answer = self._insist(lambda: self._post("/api/v1/runs", manifest.model_dump(mode="json")))
        assert answer.status_code in {httpx.codes.CREATED, httpx.codes.CONFLICT}, answer.text
        assert self._insist(lambda: self.read_run(manifest.run_id)).run == manifest.run_id
        return manifest.run_id

    def order(self, run: RunId, what: str) -> None:
        """Have the operator say a word about a run: pause, resume or cancel."""
        self._insist(lambda: self._post(f"/api/v1/runs/{run}/{what}")).raise_for_status()

    def _insist(self, ask: Callable[[], T]) -> T:
        """Ask until there is a coordinator that answers."""
        answers: list[T] = []

        def attempt() -> bool:
            self.check_alive()
            try:
                answers.append(ask())
            except CoordinatorAway:
                return False
            return True

        wait_until(attempt, "the coordinator answers")
        return answers[0]

    def read_run(self, run: RunId) -> RunView:
        return self._get(f"/api/v1/runs/{run}", RunView)

    def read_cost(self, run: RunId) -> RunCost:
        return self._get(f"/api/v1/runs/{run}/cost", RunCost)

    def read_round(self, run: RunId, number: int) -> RoundView:
        return self._get(f"/api/v1/runs/{run}/rounds/{number}", RoundView)

    def wait_for(self, run: RunId, reached: Callable[[RunView], bool], timeout_s: float = HANG_S) -> RunView:
        """Follow a run until it is as wanted; a run that ends otherwise is a failure at once."""
        view = self._insist(lambda: self.read_run(run))

        def look() -> bool:
            nonlocal view
            view = self._insist(lambda: self.read_run(run))
            if not reached(view) and view.state in {outcome.value for outcome in OUTCOMES}:
                raise AssertionError(f"the run is {view.state}: {view.reason}")
            return reached(view)

        try:
            wait_until(look, f"run {run[:12]}", timeout_s)
        except TimeoutError as error:
            error.add_note(f"last seen {view.state} in round {view.round}, {self.pending()}")
            raise
        return view

    def wait_for_round(self, run: RunId, number: int) -> RunView:
        """Follow a run until so many rounds are released."""
        return self.wait_for(run, lambda view: view.rounds_released >= number)

    def finish(self, run: RunId, timeout_s: float = HANG_S) -> dict[PartyId, str]:
        """Follow a run to its end and return the digests that the trainers wrote to their own folders."""
        self.wait_for(run, lambda view: view.state == "completed", timeout_s)
        files = {name: self.services[name].folder / "runs" / run / "model.sha256" for name in self.trainer_names}

        # The trainers hear of the end after the coordinator has said it.
        def written() -> bool:
            self.check_alive()
            return all(file.exists() and file.read_text().endswith("\n") for file in files.values())

        wait_until(written, "the trainers write their digests")
        return {name: file.read_text(encoding="ascii").strip() for name, file in files.items()}

    def _get(self, path: str, view: type[V]) -> V:
        answer = self._ask("GET", path, self._files.tokens.read)
        answer.raise_for_status()
        return view.model_validate_json(answer.content)

    def _post(self, path: str, body: object = None) -> httpx.Response:
        return self._ask("POST", path, self._files.tokens.change, body)

    def _ask(self, method: str, path: str, token: str, body: object = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        try:
            return self._http.request(method, f"{self.url}{path}", json=body, headers=headers)
        except httpx.TransportError as error:
            raise CoordinatorAway(f"{self.coordinator_name} does not answer") from error
