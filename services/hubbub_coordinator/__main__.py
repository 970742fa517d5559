"""`python -m hubbub_coordinator`: the coordinator as a process; settings are HUBBUB_COORDINATOR_*."""

import asyncio
import logging
import socket
import sys

import uvicorn
from pydantic_settings import SettingsConfigDict

from hubbub.errors import ConfigurationError
from hubbub.ids import Role
from hubbub.runtime.process import main
from hubbub.runtime.settings import ServiceSettings
from hubbub.transport.base import Transport
from hubbub_coordinator.api.app import create_app
from hubbub_coordinator.service import Coordinator

log = logging.getLogger(__name__)

LAST_ANSWERS_S = 5
"""How long requests that are being answered may hold up the end: one may wait for a broker that is away."""


class CoordinatorSettings(ServiceSettings):
    """What the coordinator needs beyond the broker: where to answer."""

    model_config = SettingsConfigDict(env_prefix="HUBBUB_COORDINATOR_")

    host: str = "127.0.0.1"
    port: int = 8750
    """0 takes any free port; the log says which."""


async def serve(settings: CoordinatorSettings, transport: Transport, stop: asyncio.Event) -> None:
    """Coordinate and answer until told to stop."""
    # First of all: a coordinator that cannot answer must not take messages from its inbox.
    listener = _listen(settings.host, settings.port)
    coordinator = Coordinator(name=settings.name, transport=transport, folder=settings.folder)
    await coordinator.runner.start()
    config = uvicorn.Config(
        create_app(coordinator),
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=LAST_ANSWERS_S,
    )
    server = uvicorn.Server(config)
    # Signals are ours: the broker connection must be closed after the last answer.
    serving = asyncio.create_task(server._serve(sockets=[listener]))  # noqa: SLF001
    log.info("listening on http://%s:%d", settings.host, listener.getsockname()[1])
    try:
        await stop.wait()
    finally:
        server.should_exit = True
        await serving
        await coordinator.runner.stop()


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror}; set HUBBUB_COORDINATOR_PORT to a free port"
        ) from None


if __name__ == "__main__":
    sys.exit(main(CoordinatorSettings, Role.COORDINATOR, serve))
