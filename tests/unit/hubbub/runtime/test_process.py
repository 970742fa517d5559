import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic_settings import SettingsConfigDict

from hubbub.ids import PartyId, Role
from hubbub.runtime import process
from hubbub.runtime.process import EXIT_CONFIGURATION, EXIT_FAILED, main
from hubbub.runtime.settings import ServiceSettings
from hubbub.transport.base import ACK, Delivery, Transport, Verdict
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import Topology, inbox, route

PREFIX = "HUBBUB_STARTED_"


class StartedSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX)


async def never_reached(settings: StartedSettings, transport: Transport, stop: asyncio.Event) -> None:
    del settings, transport, stop
    raise AssertionError("there is no broker to serve over")


@pytest.fixture(autouse=True)
def settings_and_logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(f"{PREFIX}NAME", "client-1")
    monkeypatch.setenv(f"{PREFIX}FOLDER", str(tmp_path / "data"))
    loggers = [logging.getLogger(name) for name in (None, "aio_pika", "aiormq", "aiormq.connection")]
    handlers, levels = loggers[0].handlers[:], [logger.level for logger in loggers]
    yield
    loggers[0].handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def test_a_missing_setting_ends_the_start_with_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(StartedSettings, Role.CLIENT, never_reached) == EXIT_CONFIGURATION

    assert capfd.readouterr().err == "client: HUBBUB_STARTED_AMQP_URL: Field required\n"


def test_a_folder_that_cannot_be_made_ends_the_start_with_one_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(f"{PREFIX}AMQP_URL", "amqp://guest:open-sesame@localhost/")
    monkeypatch.setenv(f"{PREFIX}FOLDER", str(tmp_path / "file" / "data"))

    assert main(StartedSettings, Role.CLIENT, never_reached) == EXIT_CONFIGURATION

    (line,) = capfd.readouterr().err.splitlines()
    assert "HUBBUB_STARTED_FOLDER" in line


def pretend(monkeypatch: pytest.MonkeyPatch, make: Callable[[str, Topology], Transport]) -> None:
    """Put another transport in the place of the real one, which the integration tests try."""

    def connect(url: str, topology: Topology, *, connection_name: str) -> Transport:
        assert connection_name == "hubbub client-1"
        return make(url, topology)

    monkeypatch.setattr(process, "RabbitMqTransport", connect)
    monkeypatch.setenv(f"{PREFIX}AMQP_URL", "amqp://client-1:open-sesame@broker/")


def test_a_broker_that_is_not_there_ends_the_process_with_a_clear_line_and_no_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = MemoryBroker()
    stopped.stop()
    pretend(monkeypatch, lambda _, topology: MemoryTransport(stopped, topology))

    assert main(StartedSettings, Role.CLIENT, never_reached) == EXIT_FAILED

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (lines[-1]["level"], lines[-1]["party"]) == ("error", "client-1")
    assert lines[-1]["message"] == "client-1 cannot go on: the in-memory broker is stopped"
    assert "open-sesame" not in json.dumps(lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_service_and_closes_the_transport(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    seen: list[str] = []
    broker = MemoryBroker()

    def connect(url: str, topology: Topology) -> Transport:
        seen.append(url)
        return MemoryTransport(broker, topology)

    async def serve(settings: StartedSettings, transport: Transport, stop: asyncio.Event) -> None:
        handled = asyncio.Event()

        async def handle(_: Delivery) -> Verdict:
            handled.set()
            return ACK

        await transport.subscribe(inbox(settings.name), handle)
        await transport.publish(route(Role.COORDINATOR, Role.CLIENT, settings.name), b"hello")
        await handled.wait()
        os.kill(os.getpid(), number)
        await stop.wait()
        seen.append("stopped")

    pretend(monkeypatch, connect)

    assert main(StartedSettings, Role.CLIENT, serve) == 0
    assert seen == ["amqp://client-1:open-sesame@broker/", "stopped"]
    assert broker.waiting_in(inbox(PartyId("client-1"))) == 0
