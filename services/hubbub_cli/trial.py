"""A trial federation as processes of this machine: settings, a broker, every party, a first run."""

from __future__ import annotations

import asyncio
import glob
import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hubbub.disk import replacing
from hubbub.errors import ConfigurationError, LocalError
from hubbub.ids import Role
from hubbub.messages.manifest import Manifest
from hubbub.rest import RunView
from hubbub.runtime.state_folder import TOMBSTONES
from hubbub.runtime.web_server import listen
from hubbub.trust.roster import PublicIdentity, Roster, read_roster
from hubbub_cli.background import Background
from hubbub_cli.client import Client, CoordinatorFailed, CoordinatorUnreachable, Endpoint, read, read_token
from hubbub_cli.federation_broker import PORT_MAPPER, start_broker
from hubbub_cli.federation_folder import (
    BROKER,
    CHANGE_TOKEN_FILE,
    IDENTITY_FILE,
    MANIFEST_FILE,
    OPERATOR,
    POLICY_FILE,
    PUBLIC,
    READ_TOKEN_FILE,
    ROSTER_FILE,
    read_federation,
)
from hubbub_cli.party_settings import Setting, explain_settings, settings_model
from hubbub_cli.run_lookup import RUNS
from hubbub_trainer.learning.registry import is_place, list_places, load_task

SETTINGS, STATE, LOGS, PROCESSES = "settings", "state", "logs", "processes"
"""Folders of the running federation, beside those that `federation new` made."""
DEFAULT_PORT = 8750
FIRST_RUN = "first-run"
"""Idempotency key: the federation's own manifest is submitted whenever it is started, and is one run."""
ENROLLING, FAILED = "enrolling", "failed"
_HOST = "127.0.0.1"
_LOOK_S = 0.1
_PACKAGES: Mapping[Role, str] = {
    Role.COORDINATOR: "hubbub_coordinator",
    Role.AGGREGATOR: "hubbub_aggregator",
    Role.CLIENT: "hubbub_trainer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Options of `federation up`; one that is None is what it was last time, or the default."""

    broker: str | None = None
    task: str | None = None
    data: str | None = None
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """A federation that `federation new` made, and its processes."""

    folder: Path
    roster: Roster
    manifest: Manifest

    @property
    def background(self) -> Background:
        """Processes of the federation: its parties, and its broker if that is its own."""
        return Background(self.folder / PROCESSES, self.folder / LOGS)

    @property
    def parties(self) -> list[str]:
        """Names of the parties."""
        return sorted((party.name for party in self.roster.parties), key=_by_number)

    @property
    def change_token(self) -> Path:
        """File with the token that begins and ends runs."""
        return self.folder / OPERATOR / CHANGE_TOKEN_FILE

    def find_running(self) -> dict[str, int]:
        """Return the processes that run, with their ids."""
        background = self.background
        found = {name: background.find_id(name) for name in (PORT_MAPPER, BROKER, *self.parties)}
        return {name: number for name, number in found.items() if number is not None}

    def read_settings(self, name: str) -> Mapping[str, object]:
        """Return the settings that a party was started with last; none if it never was."""
        try:
            return tomllib.loads(self._settings_of(name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigurationError(f"{self._settings_of(name)} cannot be read: {error}") from None

    @property
    def port(self) -> int:
        """Port of the coordinator, as it was started last."""
        port = self.read_settings(self.coordinator).get("port", DEFAULT_PORT)
        return port if isinstance(port, int) else DEFAULT_PORT

    @property
    def endpoint(self) -> Endpoint:
        """The coordinator, with the token that begins and ends runs."""
        return Endpoint(url=f"http://{_HOST}:{self.port}", token=read_token(self.change_token))

    @property
    def coordinator(self) -> str:
        """Name of the coordinator."""
        return self.manifest.coordinator

    def list_processes(self) -> list[str]:
        """List the processes: the parties, and the broker if it is the federation's own."""
        own = [BROKER] if (self.folder / STATE / BROKER).exists() else []
        return [*own, *self.parties]

    def state_of(self, name: str) -> Path:
        """Return the folder of a party's state."""
        return self.folder / STATE / name

    def _settings_of(self, name: str) -> Path:
        return self.folder / SETTINGS / f"{name}.toml"

    # Starting ---------------------------------------------------------------------------------------------

    def start(self, choices: Choices, tell: Callable[[str], None]) -> None:
        """Start broker and parties; what was started is ended again if not all of it can be."""
        if running := self.find_running():
            raise ConfigurationError(
                f"{', '.join(running)} of {self.folder} run already: see `hubbub federation status {self.folder}`,"
                f" or end them with `hubbub federation down {self.folder}`"
            )
        port = choices.port if choices.port is not None else self.port
        listen(_HOST, port, advice="name a free port with --port").close()
        task, data = self._choose_task(choices), self._deal_data(choices.data)
        try:
            self._make_folders()
            tell("starting the broker")
            url = choices.broker or self._find_given_broker()
            if url is None:
                url = start_broker(self.folder, self.folder / STATE / BROKER, self.background)
            tell("starting the parties")
            for party in self.roster.parties:
                own: dict[str, Setting] = {"amqp_url": url}
                if party.role is Role.COORDINATOR:
                    own |= {"port": port}
                elif party.role is Role.CLIENT:
                    own |= {"task": task, "data": data[party.name]}
                self._start_party(party, own)
        except BaseException:
            self.stop()
            raise

    def _make_folders(self) -> None:
        for name in (SETTINGS, STATE, LOGS, PROCESSES):
            try:
                (self.folder / name).mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise ConfigurationError(f"{self.folder / name} cannot be made: {error.strerror}") from None

    def _find_given_broker(self) -> str | None:
        """Return the URL that was given last time; None if the broker is the federation's own."""
        if (self.folder / STATE / BROKER).exists():
            return None
        url = self.read_settings(self.coordinator).get("amqp_url")
        return url if isinstance(url, str) else None

    def _choose_task(self, choices: Choices) -> str | None:
        first = self.roster.named(Role.CLIENT)[0].name
        given = choices.task or self.read_settings(first).get("task")
        if given:
            return ",".join(map(_find_file, list_places(str(given))))
        try:
            load_task(self.manifest.task)
        except ConfigurationError:
            raise ConfigurationError(
                f"the run trains your own task {self.manifest.task!r}: name its file with --task"
            ) from None
        return None

    def _deal_data(self, given: str | None) -> dict[str, str | None]:
        """Return each trainer's data: all have the same, or each one of the files that a pattern matches."""
        names = sorted((party.name for party in self.roster.named(Role.CLIENT)), key=_by_number)
        if given is None:
            earlier = {name: self.read_settings(name).get("data") for name in names}
            return {name: None if data is None else str(data) for name, data in earlier.items()}
        if not glob.has_magic(given):
            return dict.fromkeys(names, str(Path(given).resolve()) if Path(given).exists() else given)
        found = sorted((str(Path(each).resolve()) for each in glob.glob(given)), key=_by_number)  # noqa: PTH207  (It may be absolute.)
        if len(found) != len(names):
            raise ConfigurationError(
                f"--data {given} matches {len(found)} files, and there are {len(names)} trainers: each takes one"
            )
        return dict(zip(names, found, strict=True))

    def _start_party(self, party: PublicIdentity, own: Mapping[str, Setting]) -> None:
        files, file, state = self.folder / party.name, self._settings_of(party.name), self.state_of(party.name)
        values: dict[str, Setting] = {
            "identity": files / IDENTITY_FILE,
            "roster": self.folder / PUBLIC / ROSTER_FILE,
            "folder": state,
            **own,
        }
        if party.role is Role.COORDINATOR:
            values |= {
                "roster_sha256": self.roster.digest,
                "read_token_file": files / READ_TOKEN_FILE,
                "change_token_file": files / CHANGE_TOKEN_FILE,
            }
        else:
            values |= {"policy": files / POLICY_FILE}
        try:
            if not file.exists():
                # Its first start. Later a party whose state is gone must say so, and not begin anew.
                (state / TOMBSTONES).mkdir(parents=True, exist_ok=True)
            with replacing(file) as stream:
                stream.write(explain_settings(party.role, values).encode())
        except OSError as error:
            raise ConfigurationError(f"{error.filename or file} cannot be written: {error.strerror}") from None
        # Variables that somebody set for one party would reach all.
        prefixes = tuple(settings_model(role).variable("") for role in Role)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
        environment[settings_model(party.role).variable("config_file")] = str(file)
        self.background.start(party.name, [sys.executable, "-m", _PACKAGES[party.role]], environment)

    # Running ----------------------------------------------------------------------------------------------

    async def begin(self, client: Client, tell: Callable[[str], None]) -> RunView:
        """Begin the first run as soon as the coordinator is ready, and return once all have joined it."""
        while True:
            self._check_running()
            try:
                await client.get("/readyz")
                break
            except (CoordinatorUnreachable, CoordinatorFailed):
                await asyncio.sleep(_LOOK_S)
        content = (self.folder / PUBLIC / MANIFEST_FILE).read_bytes()
        answer, replayed = await client.post(RUNS, content, idempotency_key=FIRST_RUN)
        run = read(RunView, answer)
        while run.state == ENROLLING:
            self._check_running()
            tell(f"waiting for {', '.join(run.waiting_for)}" if run.waiting_for else "waiting for the parties")
            await asyncio.sleep(_LOOK_S)
            run = read(RunView, await client.get(f"{RUNS}/{run.run}"))
        if run.state == FAILED and not replayed:
            raise LocalError(
                f"the run has failed: {run.reason}. A run is begun once: make a federation in another folder, or"
                f" start this one again and submit another manifest"
            )
        return run

    def find_ended(self) -> list[str]:
        """Return the parties that do not run."""
        running = self.find_running()
        return [name for name in self.parties if name not in running]

    def _check_running(self) -> None:
        for name in self.find_ended():
            said = self.background.read_last_line(name)
            raise LocalError(f"{name} has ended: {said} (its log: {self.background.log_of(name)})")

    def stop(self) -> list[str]:
        """End all processes, the broker last; return those that had to be killed."""
        background = self.background
        try:
            return [*background.stop(self.parties), *background.stop([BROKER]), *background.stop([PORT_MAPPER])]
        except KeyboardInterrupt:
            return background.kill([*self.parties, BROKER, PORT_MAPPER])


def open_trial(folder: Path) -> Trial:
    """Read the federation in a folder, which `federation new` made."""
    folder = folder.resolve()
    file = folder / PUBLIC / ROSTER_FILE
    if not file.exists():
        raise ConfigurationError(
            f"there is no federation in {folder}: make one with `hubbub federation new {folder}`"
        )
    found = read_federation(folder, {party.name: party.role for party in read_roster(file).parties})
    if found is None:
        raise ConfigurationError(
            f"the federation in {folder} was not written to its end: run `hubbub federation new` again"
        )
    return Trial(folder, *found)


def _find_file(place: str) -> str:
    """Return the place of a task with its file, if it is in one, as an absolute path."""
    where, separator, name = place.partition(":")
    if not is_place(place):
        raise ConfigurationError(f"--task {place} is no file, such as hospital.py, and no module:Name")
    if not where.endswith(".py"):
        return place
    if not Path(where).is_file():
        raise ConfigurationError(f"--task {place}: there is no such file")
    return f"{Path(where).resolve()}{separator}{name}"


def _by_number(name: str) -> list[int | str]:
    """Sort key: hospital-10 comes after hospital-9."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
