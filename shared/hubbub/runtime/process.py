"""Service process: settings, logs, broker, signals, and a clear last line if it cannot start."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from prometheus_client import disable_created_metrics

from hubbub.errors import ConfigurationError, HubbubError, TransportError
from hubbub.ids import Role
from hubbub.runtime.health import Vitals, answering
from hubbub.runtime.settings import ProbedSettings, ServiceSettings, load_settings
from hubbub.runtime.state_folder import TOMBSTONES, is_empty, lock_folder
from hubbub.runtime.telemetry import log_to_error_stream
from hubbub.transport.access import Login, Tls
from hubbub.transport.base import Transport
from hubbub.transport.rabbitmq import RabbitMqTransport
from hubbub.transport.topology import received_from, topology_for
from hubbub.trust.identity import Identity, read_identity
from hubbub.trust.roster import Roster, read_roster

log = logging.getLogger(__name__)

S = TypeVar("S", bound=ServiceSettings)

LOOK_S = 15.0
"""Interval at which the broker is asked for queue lengths; metrics are collected about as often."""


@dataclass(frozen=True, slots=True)
class Party:
    """The party that this process is: its identity, roster, transport and health."""

    identity: Identity
    roster: Roster
    transport: Transport
    vitals: Vitals = field(default_factory=Vitals, repr=False)


Serve = Callable[[S, Party, asyncio.Event], Awaitable[None]]
"""Runs a service as a party until the event is set."""
Pin = Callable[[S], str]
"""Returns the roster digest that the settings pin."""

EXIT_CONFIGURATION = 2
EXIT_FAILED = 1


def main(model: type[S], role: Role, pin: Pin[S], serve: Serve[S]) -> int:
    """Run a service until it is told to stop; return the exit code."""
    try:
        settings = load_settings(model)
        identity, roster = _find_ourselves(settings, role, pin(settings))
        _make_folder(settings)
        _check_state(settings, identity)
        lock = lock_folder(settings.folder)
    except ConfigurationError as error:
        sys.stderr.write(f"{role.value}: {error}\n")
        return EXIT_CONFIGURATION
    log_to_error_stream(identity.name, settings.log_level)
    # Nobody reads the creation time of counters, and it would double the number of series.
    disable_created_metrics()  # type: ignore[no-untyped-call]  # The library has no types there.
    try:
        asyncio.run(_serve(settings, identity, roster, serve))
    except HubbubError as error:
        log.error("%s cannot go on: %s", identity.name, error)  # noqa: TRY400  (The message is the whole story.)
        return EXIT_CONFIGURATION if isinstance(error, ConfigurationError) else EXIT_FAILED
    finally:
        os.close(lock)
    return 0


def _find_ourselves(settings: ServiceSettings, role: Role, pinned: str) -> tuple[Identity, Roster]:
    """Read our identity and the pinned roster, which must contain it."""
    identity = read_identity(settings.identity)
    roster = read_roster(settings.roster, pinned=pinned)
    if identity.role is not role:
        raise ConfigurationError(
            f"{settings.identity} is the identity of {identity.role.value} {identity.name}; this is {role.value}"
        )
    if roster.find(identity.name) != identity.public():
        raise ConfigurationError(
            f"{identity.name} is not in {settings.roster} with the key of {settings.identity}: a roster must be "
            "built from the public file that belongs to it, and pinned again by all"
        )
    return identity, roster


def _make_folder(settings: ServiceSettings) -> None:
    """Create the folder; raise `ConfigurationError` now, not in the middle of a run, if it cannot be used."""
    try:
        settings.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = error.strerror
    else:
        problem = "" if os.access(settings.folder, os.W_OK | os.X_OK) else "Permission denied"
    if problem:
        raise ConfigurationError(
            f"{settings.variable('folder')}: {settings.folder} cannot be used ({problem}); name a folder that this"
            " user may write to"
        )


def _check_state(settings: ServiceSettings, identity: Identity) -> None:
    """Raise `ConfigurationError` on an empty folder without `new_state`: a party that lost all must not go on."""
    if settings.new_state:
        (settings.folder / TOMBSTONES).mkdir(exist_ok=True)
    if not is_empty(settings.folder):
        return
    raise ConfigurationError(
        f"{settings.folder} holds no state of {identity.name}. If this is its first start, say so: --new-state, "
        f"or {settings.variable('new_state')}=true. If it ran before, its state is lost, or the folder is the"
        " wrong one. As new it forgets the runs that it was in, which cannot go on, and all that it must never do"
        " twice"
    )


async def _serve(settings: S, identity: Identity, roster: Roster, serve: Serve[S]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    transport = RabbitMqTransport(
        settings.amqp_url.get_secret_value(),
        topology_for(identity.name, identity.role),
        connection_name=f"hubbub {identity.name}",
        login=Login(identity.name, identity.broker_password),
        tls=Tls(ca_file=settings.amqp_ca_file, cert_file=settings.amqp_cert_file, key_file=settings.amqp_key_file),
        proxy=settings.proxy.get_secret_value() if settings.proxy else None,
    )
    party = Party(identity, roster, transport)
    async with AsyncExitStack() as stack:
        # Before all else, so that a probe can tell what the party waits for.
        if isinstance(settings, ProbedSettings) and settings.metrics_port is not None:
            variable = settings.variable("metrics_port")
            health = answering(party.vitals, settings.metrics_host, settings.metrics_port, variable)
            await stack.enter_async_context(health)
        if await _connect(transport, stop):
            stack.push_async_callback(transport.close)
            log.info("connected to the broker")
            looking = asyncio.create_task(_look_at_queues(party), name="look at the queues")
            try:
                await serve(settings, party, stop)
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
    log.info("stopped")


async def _look_at_queues(party: Party) -> None:
    """Ask the broker regularly for the lengths of our queues, for the metrics."""
    while True:
        for queue in received_from(party.identity.name, party.identity.role):
            with suppress(TransportError):
                await party.transport.count_waiting(queue)
        await asyncio.sleep(LOOK_S)


async def _connect(transport: Transport, stop: asyncio.Event) -> bool:
    """Connect, unless we are told to stop first; return whether we are connected."""
    connecting = asyncio.ensure_future(transport.__aenter__())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({connecting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if connecting.done():
        await connecting
        return True
    connecting.cancel()
    await asyncio.gather(connecting, return_exceptions=True)
    return False
