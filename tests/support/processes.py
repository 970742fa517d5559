"""Services as processes of their own: started with settings in the environment, followed over REST, ended with
SIGTERM, and quoted when a test fails."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self, TypeVar

import httpx
from pydantic import BaseModel

from hubbub.ids import PartyId, Role, RunId
from hubbub.messages.manifest import Manifest
from hubbub.transport.base import DeadLetter
from hubbub.transport.rabbitmq import RabbitMqTransport
from hubbub.transport.topology import Topology, dead_letter_queue, merge, topology_for
from hubbub_coordinator.api.views import RoundView, RunCost, RunView

V = TypeVar("V", bound=BaseModel)

MODULES: Mapping[Role, str] = MappingProxyType(
    {
        Role.COORDINATOR: "hubbub_coordinator",
        Role.AGGREGATOR: "hubbub_aggregator",
        Role.CLIENT: "hubbub_trainer",
    }
)
START_S = 60.0
"""Generous: eight interpreters start at once on a machine with two cores that does other things as well."""
STOP_S = 20.0
RUN_S = 90.0
_POLL_S = 0.05
_TAIL_LINES = 12


def prefix_of(role: Role) -> str:
    """What the environment variables of a service begin with."""
    return f"{MODULES[role].upper()}_"


def environment_of(role: Role, settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with exactly these settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HUBBUB_")}
    return {**inherited, **{f"{prefix_of(role)}{name.upper()}": value for name, value in settings.items()}}


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Look again and again, at another process's doings, until they are done or time is up."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(_POLL_S)


class ServiceProcess:
    """One service, and the file that its log lines go to."""

    def __init__(self, role: Role, name: PartyId, folder: Path, settings: Mapping[str, str]) -> None:
        self.role = role
        self.name = name
        self.folder = folder / name
        self._log_file = folder / f"{name}.log"
        environment = environment_of(role, {"name": name, "folder": str(self.folder), **settings})
        with self._log_file.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULES[role]],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def lines(self) -> list[str]:
        """What it has written so far, in whole lines."""
        text = self._log_file.read_text(encoding="utf-8", errors="replace")
        return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def messages(self) -> list[str]:
        """The messages of its log lines so far."""
        return [str(json.loads(line)["message"]) for line in self.lines() if line.startswith("{")]

    def spooled(self) -> int:
        """How many chunks it has on its disk."""
        return sum(1 for _ in (self.folder / "spool").rglob("*.chunk"))

    def wait_for_spool(self, chunks: int, timeout_s: float = RUN_S) -> None:
        """Return when it has so many chunks on its disk."""
        wait_until(lambda: self.spooled() >= chunks, f"{self.name} spools {chunks} chunks", timeout_s)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the process still, so that what is sent to it waits."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def wait_for_message(self, beginning: str, timeout_s: float = START_S) -> str:
        """The first log line that begins so."""

        def found() -> bool:
            if not self.running:
                raise ChildProcessError(f"{self.name} ended with code {self._process.returncode}\n{self.tail()}")
            return any(message.startswith(beginning) for message in self.messages())

        wait_until(found, f"{self.name} logs {beginning!r}", timeout_s)
        return next(message for message in self.messages() if message.startswith(beginning))

    def stop(self, timeout_s: float = STOP_S) -> int:
        """Ask it to end, as an operator does, and return its exit code."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float) -> int:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"{self.name} did not end within {timeout_s:g} s\n{self.tail()}") from None

    def kill(self) -> None:
        if self.running:
            self._process.kill()
            self._process.wait(10)

    def tail(self) -> str:
        """The last lines of its log, for whoever reads a failure."""
        lines = self._log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([f"--- {self.name}: {len(lines)} lines, the last of them", *lines[-_TAIL_LINES:]])


class ProcessFederation:
    """A coordinator, aggregators and trainers that nobody else on the broker knows the names of."""

    def __init__(
        self,
        amqp_url: str,
        folder: Path,
        *,
        trainers: int,
        aggregators: int = 2,
        demo_seed: int | None = None,
    ) -> None:
        self._url = amqp_url
        self._folder = folder
        self._demo_seed = demo_seed
        suffix = uuid.uuid4().hex[:8]
        self.coordinator_name = PartyId(f"coordinator-{suffix}")
        self.aggregator_names = [PartyId(f"aggregator-{i}-{suffix}") for i in range(1, aggregators + 1)]
        self.trainer_names = [PartyId(f"trainer-{i}-{suffix}") for i in range(1, trainers + 1)]
        self.parties: dict[PartyId, Role] = {
            self.coordinator_name: Role.COORDINATOR,
            **dict.fromkeys(self.aggregator_names, Role.AGGREGATOR),
            **dict.fromkeys(self.trainer_names, Role.CLIENT),
        }
        self.services: dict[PartyId, ServiceProcess] = {}
        self.stopped: set[PartyId] = set()
        self._http: httpx.Client | None = None

    # Life and death -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            for name, role in self.parties.items():
                self.services[name] = ServiceProcess(role, name, self._folder, self._settings(role))
            for service in self.services.values():
                service.wait_for_message("connected to the broker")
            line = self.services[self.coordinator_name].wait_for_message("listening on ")
            # No proxy of the environment may come between.
            self._http = httpx.Client(base_url=line.removeprefix("listening on "), timeout=10, trust_env=False)
        except BaseException:
            self._clean_up()
            raise
        return self

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

    def _settings(self, role: Role) -> dict[str, str]:
        settings = {"amqp_url": self._url, "log_level": "info"}
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
        codes = {name: self.stop(name) for name in self.parties if name not in self.stopped}
        assert set(codes.values()) <= {0}, f"exit codes {codes}\n{self.tails()}"

    def _clean_up(self) -> None:
        for service in self.services.values():
            service.kill()
        if self._http is not None:
            self._http.close()
        asyncio.run(self._remove_queues())

    async def _remove_queues(self) -> None:
        async with RabbitMqTransport(self._url, self.topology) as cleaner:
            await cleaner.remove_queues()

    def tails(self) -> str:
        return "\n".join(service.tail() for service in self.services.values())

    def check_alive(self) -> None:
        """Fail if a service has ended that nobody stopped."""
        dead = [
            name for name, service in self.services.items() if name not in self.stopped and not service.running
        ]
        assert not dead, f"{', '.join(dead)} ended by themselves\n{self.tails()}"

    # Runs -----------------------------------------------------------------------------------------------

    def submit(self, manifest: Manifest) -> RunId:
        answer = self._client().post("/api/v1/runs", json=manifest.model_dump(mode="json"))
        assert answer.status_code == httpx.codes.CREATED, answer.text
        assert RunView.model_validate_json(answer.content).run == manifest.run_id
        return manifest.run_id

    def read_run(self, run: RunId) -> RunView:
        return self._get(f"/api/v1/runs/{run}", RunView)

    def read_cost(self, run: RunId) -> RunCost:
        return self._get(f"/api/v1/runs/{run}/cost", RunCost)

    def read_round(self, run: RunId, number: int) -> RoundView:
        return self._get(f"/api/v1/runs/{run}/rounds/{number}", RoundView)

    def wait_for(self, run: RunId, reached: Callable[[RunView], bool], timeout_s: float = RUN_S) -> RunView:
        """Follow a run until it is as wanted; a run that ends otherwise is a failure at once."""
        view = self.read_run(run)

        def look() -> bool:
            nonlocal view
            self.check_alive()
            view = self.read_run(run)
            if not reached(view) and view.state not in {"enrolling", "running"}:
                raise AssertionError(f"the run is {view.state}: {view.reason}")
            return reached(view)

        wait_until(look, f"run {run[:12]}, last seen {view.state} in round {view.round}", timeout_s)
        return view

    def finish(self, run: RunId) -> dict[PartyId, str]:
        """Follow a run to its end and return the digests that the trainers wrote to their own folders."""
        self.wait_for(run, lambda view: view.state == "completed")
        files = {name: self.services[name].folder / "runs" / run / "model.sha256" for name in self.trainer_names}
        # The trainers hear of the end after the coordinator has said it.
        wait_until(
            lambda: all(file.exists() and file.read_text().endswith("\n") for file in files.values()),
            "the trainers write their digests",
            STOP_S,
        )
        return {name: file.read_text(encoding="ascii").strip() for name, file in files.items()}

    def _get(self, path: str, view: type[V]) -> V:
        answer = self._client().get(path)
        answer.raise_for_status()
        return view.model_validate_json(answer.content)

    def _client(self) -> httpx.Client:
        assert self._http is not None, "enter the federation first"
        return self._http

    # The broker -----------------------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        return merge(topology_for(name, role) for name, role in self.parties.items())

    async def dead_letters(self) -> dict[PartyId, list[DeadLetter]]:
        """What each party has put aside so far."""
        async with RabbitMqTransport(self._url, self.topology) as reader:
            return {name: await reader.dead_letters(dead_letter_queue(name)) for name in self.parties}
