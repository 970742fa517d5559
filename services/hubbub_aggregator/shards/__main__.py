"""`python -m hubbub_aggregator.shards NUMBER HANDLE`: a worker, started by its aggregator and by nobody else."""

import asyncio
import signal
import socket
import sys
from collections.abc import Sequence

from hubbub.errors import ConfigurationError, HubbubError
from hubbub.ids import Role
from hubbub.runtime.process import EXIT_CONFIGURATION, EXIT_FAILED, find_ourselves, read_tls
from hubbub.runtime.settings import load_settings
from hubbub.runtime.telemetry import context, log_as_json
from hubbub.transport.access import Login
from hubbub.transport.rabbitmq import RabbitMqTransport
from hubbub.transport.topology import topology_for
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster
from hubbub_aggregator.policy import AggregatorPolicy
from hubbub_aggregator.settings import AggregatorSettings
from hubbub_aggregator.shards.link import Link
from hubbub_aggregator.shards.worker import Worker, log

USAGE = "a worker is started by its aggregator: set HUBBUB_AGGREGATOR_WORKERS, and run `hubbub aggregator`"


def main(arguments: Sequence[str]) -> int:
    """Work until the head is gone; the exit code says how it went."""
    try:
        number, end = _read_arguments(arguments)
        settings = load_settings(AggregatorSettings)
        identity, roster = find_ourselves(
            settings, Role.AGGREGATOR, AggregatorPolicy.read(settings.policy).roster_sha256
        )
    except ConfigurationError as error:
        sys.stderr.write(f"worker: {error}\n")
        return EXIT_CONFIGURATION
    log_as_json(identity.name, settings.log_level)
    with context(worker=str(number)):
        try:
            asyncio.run(_serve(number, end, settings, identity, roster))
        except HubbubError as error:
            log.error("worker %d cannot go on: %s", number, error)
            return EXIT_CONFIGURATION if isinstance(error, ConfigurationError) else EXIT_FAILED
        log.info("worker %d stopped", number)
    return 0


def _read_arguments(arguments: Sequence[str]) -> tuple[int, socket.socket]:
    try:
        number, handle = map(int, arguments)
        return number, socket.socket(fileno=handle)
    except (ValueError, OSError):
        raise ConfigurationError(USAGE) from None


async def _serve(
    number: int, end: socket.socket, settings: AggregatorSettings, identity: Identity, roster: Roster
) -> None:
    loop = asyncio.get_running_loop()
    link = await Link.over(end)
    # At a terminal all of us are told to stop at once: the head stops us in its own order.
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    transport = RabbitMqTransport(
        settings.amqp_url.get_secret_value(),
        topology_for(identity.name, identity.role, workers=settings.workers),
        connection_name=f"hubbub {identity.name}, worker {number}",
        login=Login(identity.name, identity.broker_password),
        tls=read_tls(settings),
    )
    async with transport:
        worker = Worker(
            number, identity=identity, roster=roster, transport=transport, folder=settings.folder, link=link
        )
        loop.add_signal_handler(signal.SIGTERM, link.close)
        await worker.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
