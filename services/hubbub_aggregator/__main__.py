"""`python -m hubbub_aggregator`: an aggregator as a process; settings are HUBBUB_AGGREGATOR_*."""

from hubbub.runtime import leave_when_told

if __name__ == "__main__":
    # Before all that follows: importing it takes seconds on a busy machine.
    leave_when_told()

import asyncio
import sys
from functools import partial
from pathlib import Path

from pydantic_settings import SettingsConfigDict

from hubbub.ids import Role
from hubbub.runtime.process import Party, main
from hubbub.runtime.settings import ProbedSettings
from hubbub_aggregator.policy import AggregatorPolicy
from hubbub_aggregator.service import Aggregator


class AggregatorSettings(ProbedSettings):
    """Settings of an aggregator beside those of every service: its operator's policy."""

    model_config = SettingsConfigDict(env_prefix="HUBBUB_AGGREGATOR_")

    policy: Path
    """The policy file: limits on the runs that this aggregator serves. It pins the roster."""


async def serve(settings: AggregatorSettings, party: Party, stop: asyncio.Event) -> None:
    """Aggregate until told to stop."""
    aggregator = Aggregator(
        identity=party.identity,
        roster=party.roster,
        read_policy=partial(AggregatorPolicy.read, settings.policy),
        transport=party.transport,
        folder=settings.folder,
    )
    party.vitals.runner = aggregator.runner
    try:
        await aggregator.runner.start()
        await stop.wait()
    finally:
        await aggregator.runner.stop()
        aggregator.close()


def _pin(settings: AggregatorSettings) -> str:
    return AggregatorPolicy.read(settings.policy).roster_sha256


def run() -> int:
    """Run an aggregator until it is told to stop; the exit code says how it went."""
    return main(AggregatorSettings, Role.AGGREGATOR, _pin, serve)


if __name__ == "__main__":
    sys.exit(run())
