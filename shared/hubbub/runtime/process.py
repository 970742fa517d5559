"""A service as a process of its own: settings, logs, broker, signals, and a clear last line if it cannot start."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hubbub.errors import ConfigurationError, HubbubError
from hubbub.ids import Role
from hubbub.runtime.settings import ServiceSettings, load_settings
from hubbub.runtime.telemetry import log_as_json
from hubbub.transport.base import Transport
from hubbub.transport.rabbitmq import RabbitMqTransport
from hubbub.transport.topology import topology_for

log = logging.getLogger(__name__)

S = TypeVar("S", bound=ServiceSettings)
Serve = Callable[[S, Transport, asyncio.Event], Awaitable[None]]
"""Runs a service over a transport until the event is set."""

EXIT_CONFIGURATION = 2
EXIT_FAILED = 1


def main(model: type[S], role: Role, serve: Serve[S]) -> int:
    """Run a service until it is told to stop; the exit code says how it went."""
    try:
        settings = load_settings(model)
        _make_folder(settings)
    except ConfigurationError as error:
        sys.stderr.write(f"{role.value}: {error}\n")
        return EXIT_CONFIGURATION
    log_as_json(settings.name, settings.log_level)
    try:
        asyncio.run(_serve(settings, role, serve))
    except HubbubError as error:
        log.error("%s cannot go on: %s", settings.name, error)  # noqa: TRY400  (The message is the whole story.)
        return EXIT_CONFIGURATION if isinstance(error, ConfigurationError) else EXIT_FAILED
    return 0


def _make_folder(settings: ServiceSettings) -> None:
    """Find out now, and not in the middle of a run, that the folder cannot be used."""
    try:
        settings.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = error.strerror
    else:
        problem = "" if os.access(settings.folder, os.W_OK | os.X_OK) else "Permission denied"
    if problem:
        variable = f"{settings.model_config.get('env_prefix', '')}FOLDER"
        raise ConfigurationError(
            f"{variable}: {settings.folder} cannot be used ({problem}); name a folder that this user may write to"
        )


async def _serve(settings: S, role: Role, serve: Serve[S]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    topology = topology_for(settings.name, role)
    url = settings.amqp_url.get_secret_value()
    async with RabbitMqTransport(url, topology, connection_name=f"hubbub {settings.name}") as transport:
        log.info("connected to the broker")
        await serve(settings, transport, stop)
    log.info("stopped")
