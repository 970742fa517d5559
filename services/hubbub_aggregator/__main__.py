"""`python -m hubbub_aggregator`: an aggregator as a process; settings are HUBBUB_AGGREGATOR_*."""

import asyncio
import sys

from pydantic_settings import SettingsConfigDict

from hubbub.ids import Role
from hubbub.runtime.process import main
from hubbub.runtime.settings import ServiceSettings
from hubbub.transport.base import Transport
from hubbub_aggregator.service import Aggregator


class AggregatorSettings(ServiceSettings):
    """An aggregator has no settings of its own."""

    model_config = SettingsConfigDict(env_prefix="HUBBUB_AGGREGATOR_")


async def serve(settings: AggregatorSettings, transport: Transport, stop: asyncio.Event) -> None:
    """Aggregate until told to stop."""
    aggregator = Aggregator(name=settings.name, transport=transport, folder=settings.folder)
    try:
        await aggregator.runner.start()
        await stop.wait()
    finally:
        await aggregator.runner.stop()
        aggregator.close()


if __name__ == "__main__":
    sys.exit(main(AggregatorSettings, Role.AGGREGATOR, serve))
