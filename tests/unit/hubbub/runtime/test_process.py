import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from pydantic_settings import SettingsConfigDict

from hubbub.crypto.signing import SigningKey
from hubbub.errors import BrokerUnreachable
from hubbub.ids import PartyId, Role
from hubbub.runtime import process
from hubbub.runtime.process import EXIT_CONFIGURATION, EXIT_FAILED, Party, Serve, main
from hubbub.runtime.settings import PinningSettings, ProbedSettings, ServiceSettings
from hubbub.transport.access import Login, Tls
from hubbub.transport.base import ACK, Delivery, Transport, Verdict
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import Topology, inbox, received_from, route
from hubbub.trust.identity import Identity, write_identity
from support.builders import make_manifest
from support.measured_run import logging_as_json
from support.parties import identity_of, make_identity, roster_of
from support.patience import HANG_S

PREFIX = "HUBBUB_STARTED_"
MANIFEST = make_manifest()
ROSTER = roster_of(MANIFEST)
ME = identity_of(MANIFEST, MANIFEST.clients[0])


class StartedSettings(ProbedSettings, PinningSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX)


async def never_reached(settings: ServiceSettings, party: Party, stop: asyncio.Event) -> None:
    del settings, party, stop
    raise AssertionError("there is no broker to serve over")


async def do_nothing(settings: ServiceSettings, party: Party, stop: asyncio.Event) -> None:
    del settings, party, stop


def start(serve: Serve[StartedSettings] = never_reached) -> int:
    return main(StartedSettings, Role.CLIENT, lambda settings: settings.roster_sha256, serve)


@pytest.fixture(autouse=True)
def settings_and_logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    (tmp_path / "roster.json").write_bytes(ROSTER.canonical)
    for name, value in {
        "IDENTITY": write_identity(ME, tmp_path / "keys")[0],
        "ROSTER": tmp_path / "roster.json",
        "ROSTER_SHA256": ROSTER.digest,
        "FOLDER": tmp_path / "data",
        "NEW_STATE": "true",
    }.items():
        monkeypatch.setenv(f"{PREFIX}{name}", str(value))
    with logging_as_json():
        yield


def complaint(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The one line with which the start ends; the broker is not even asked."""
    monkeypatch.setenv(f"{PREFIX}AMQP_URL", "amqp://nobody:open-sesame@broker.invalid/")
    assert start() == EXIT_CONFIGURATION
    (line,) = capfd.readouterr().err.splitlines()
    for secret in ("open-sesame", ME.broker_password, ME.key.to_bytes().hex()):
        assert secret not in line
    return line


STRANGERS = {
    "a name that the roster does not have": make_identity("client-9", Role.CLIENT, "org-9"),
    "another key": Identity(ME.name, ME.role, ME.organisation, SigningKey.generate(), ME.broker_password),
    "another organisation": make_identity(ME.name, Role.CLIENT, "org-9"),
    "another password": Identity(ME.name, ME.role, ME.organisation, ME.key, "x" * 43),
}


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS)
def test_an_identity_that_is_not_the_rosters_ends_the_start(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stranger: Identity
) -> None:
    path, _ = write_identity(stranger, tmp_path)
    monkeypatch.setenv(f"{PREFIX}IDENTITY", str(path))

    line = complaint(capfd, monkeypatch)

    roster = tmp_path / "roster.json"
    assert line.startswith(f"client: {stranger.name} is not in {roster} with the key of {path}: ")
    assert "a roster must be built from the public file that belongs to it" in line


def test_what_is_wrong_with_settings_identity_or_roster_ends_the_start_with_one_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert start() == EXIT_CONFIGURATION
    assert capfd.readouterr().err == "client: HUBBUB_STARTED_AMQP_URL: Field required\n"
    readable, _ = write_identity(ME, tmp_path / "readable")
    readable.chmod(0o644)
    aggregators, _ = write_identity(identity_of(MANIFEST, MANIFEST.aggregators[0]), tmp_path)
    (tmp_path / "file").write_text("in the way")
    missing = "/no/such/file.json cannot be read: No such file or directory"
    for name, value, said in (
        ("FOLDER", tmp_path / "file" / "data", f"{PREFIX}FOLDER: {tmp_path / 'file' / 'data'} cannot be used"),
        ("IDENTITY", aggregators, f"{aggregators} is the identity of aggregator aggregator-1; this is client"),
        ("IDENTITY", readable, f"chmod 600 {readable}"),
        ("IDENTITY", "/no/such/file.json", missing),
        ("ROSTER", "/no/such/file.json", missing),
        ("ROSTER_SHA256", "ab" * 32, f"has the digest {ROSTER.digest}, but {'ab' * 32} is pinned"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(f"{PREFIX}{name}", str(value))
            assert said in complaint(capfd, patch)


def test_an_empty_folder_ends_the_start_unless_the_settings_say_that_it_is_right(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(f"{PREFIX}NEW_STATE")

    line = complaint(capfd, monkeypatch)

    assert line.startswith(f"client: {tmp_path / 'data'} holds no state of client-1. ")
    assert f"--new-state, or {PREFIX}NEW_STATE=true" in line


@pytest.mark.parametrize("name", ["state.sqlite", "audit.jsonl", "tombstones"])
def test_a_folder_with_some_state_is_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.delenv(f"{PREFIX}NEW_STATE")
    (tmp_path / "data" / name).mkdir(parents=True)
    pretend(monkeypatch, MemoryBroker())

    assert start(do_nothing) == 0


@dataclass(frozen=True)
class Connected:
    """With what the transport was made."""

    url: str
    connection_name: str
    login: Login
    tls: Tls
    proxy: str | None = None


def pretend(monkeypatch: pytest.MonkeyPatch, broker: MemoryBroker) -> list[Connected]:
    """Put another transport in the place of the real one, which the integration tests try."""
    made: list[Connected] = []

    def connect(
        url: str, topology: Topology, *, connection_name: str, login: Login, tls: Tls, proxy: str | None
    ) -> Transport:
        made.append(Connected(url, connection_name, login, tls, proxy))
        return MemoryTransport(broker, topology)

    monkeypatch.setattr(process, "RabbitMqTransport", connect)
    monkeypatch.setenv(f"{PREFIX}AMQP_URL", "amqp://client-1:open-sesame@broker/")
    return made


def test_a_broker_that_is_not_there_ends_the_process_with_a_clear_line_and_no_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = MemoryBroker()
    stopped.stop()
    pretend(monkeypatch, stopped)

    assert start() == EXIT_FAILED
    # The first start has made the state, so that the next needs no word.
    monkeypatch.delenv(f"{PREFIX}NEW_STATE")
    assert start() == EXIT_FAILED

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (lines[-1]["level"], lines[-1]["party"]) == ("error", "client-1")
    assert lines[-1]["message"] == "client-1 cannot go on: the in-memory broker is stopped"
    for secret in ("open-sesame", ME.broker_password):
        assert secret not in json.dumps(lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_service_and_transport(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    seen: list[Party] = []
    broker = MemoryBroker()

    async def serve(settings: StartedSettings, party: Party, stop: asyncio.Event) -> None:
        del settings
        handled = asyncio.Event()

        async def handle(_: Delivery) -> Verdict:
            handled.set()
            return ACK

        await party.transport.subscribe(inbox(party.identity.name), handle)
        await party.transport.publish(route(Role.COORDINATOR, Role.CLIENT, party.identity.name), b"hello")
        await handled.wait()
        os.kill(os.getpid(), number)
        await stop.wait()
        seen.append(party)

    pretend(monkeypatch, broker)

    assert start(serve) == 0
    assert [(party.identity.public(), party.roster) for party in seen] == [(ME.public(), ROSTER)]
    assert broker.waiting_in(inbox(PartyId("client-1"))) == 0


def test_the_broker_is_asked_as_this_identity_through_this_proxy_and_with_these_tls_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = pretend(monkeypatch, MemoryBroker())
    assert start(do_nothing) == 0
    for name in ("CA", "CERT", "KEY"):
        monkeypatch.setenv(f"{PREFIX}AMQP_{name}_FILE", f"/tls/{name}")
    monkeypatch.setenv(f"{PREFIX}PROXY", "http://anna:sesame@proxy:3128")
    assert start(do_nothing) == 0

    login = Login("client-1", ME.broker_password)
    plain = Connected("amqp://client-1:open-sesame@broker/", "hubbub client-1", login, Tls())
    tls = Tls(ca_file=Path("/tls/CA"), cert_file=Path("/tls/CERT"), key_file=Path("/tls/KEY"))
    assert made == [plain, replace(plain, tls=tls, proxy="http://anna:sesame@proxy:3128")]


# Health and metrics ------------------------------------------------------------------------------------------


def find_page(capsys: pytest.CaptureFixture[str]) -> str | None:
    lines = [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
    heading = "health and metrics at "
    return next((line.removeprefix(heading) for line in lines if line.startswith(heading)), None)


def test_probes_are_answered_where_the_settings_say_for_as_long_as_the_service_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[httpx.Response] = []
    pages: list[str] = []

    async def serve(settings: StartedSettings, party: Party, stop: asyncio.Event) -> None:
        del settings, party, stop
        page = find_page(capsys)
        assert page
        pages.append(page)
        async with httpx.AsyncClient(trust_env=False) as client:
            answers.extend([await client.get(f"{page}/healthz"), await client.get(f"{page}/readyz")])

    pretend(monkeypatch, MemoryBroker())
    monkeypatch.setenv(f"{PREFIX}METRICS_PORT", "0")

    assert start(serve) == 0
    # Nobody has said which runner is ours: alive, and not ready.
    assert [answer.status_code for answer in answers] == [200, 503]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{pages[0]}/healthz", trust_env=False)


def test_without_a_port_nobody_listens_and_one_that_cannot_be_ends_the_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, MemoryBroker())
    assert start(do_nothing) == 0
    assert find_page(capsys) is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for port, said in (
            (str(taken.getsockname()[1]), "set HUBBUB_STARTED_METRICS_PORT to a free port"),
            *((port, "client: HUBBUB_STARTED_METRICS_PORT: Input should be ") for port in ("-1", "65536", "http")),
        ):
            monkeypatch.setenv(f"{PREFIX}METRICS_PORT", port)
            assert start(never_reached) == EXIT_CONFIGURATION
            assert said in capsys.readouterr().err


def test_the_broker_is_asked_now_and_then_what_waits_in_each_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    looked_enough = asyncio.Event()
    broker = MemoryBroker()

    async def count(_: MemoryTransport, queue: str) -> int:
        counted.append(queue)
        if len(counted) == 1:
            # An outage is no reason to stop looking.
            raise BrokerUnreachable("nobody is there")
        if len(counted) > 2:
            looked_enough.set()
        return broker.waiting_in(queue)

    async def serve(settings: StartedSettings, party: Party, stop: asyncio.Event) -> None:
        del settings, party, stop
        async with asyncio.timeout(10):
            await looked_enough.wait()

    pretend(monkeypatch, broker)
    monkeypatch.setattr(process, "LOOK_S", 0.0)
    monkeypatch.setattr(MemoryTransport, "count_waiting", count)

    assert start(serve) == 0
    assert set(counted) == set(received_from(PartyId("client-1"), Role.CLIENT))


# While it is still being imported ---------------------------------------------------------------------------

SOURCES = Path(__file__).parents[4]
# What every service imports, and here never gets from.
STUCK = """
import signal, sys
sys.stdout.write("importing\\n")
sys.stdout.flush()
while True:
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("service", ["hubbub_coordinator", "hubbub_aggregator", "hubbub_trainer"])
def test_a_service_that_is_still_being_imported_ends_well_when_told(
    service: str, number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "pydantic_settings.py").write_text(STUCK)
    paths = [str(tmp_path), str(SOURCES / "shared"), str(SOURCES / "services")]
    process = subprocess.Popen(
        [sys.executable, "-m", service],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    with process:
        assert process.stdout
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        _, complaints = process.communicate(timeout=HANG_S)

    assert (process.returncode, complaints) == (0, "")
