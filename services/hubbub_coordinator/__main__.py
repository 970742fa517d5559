"""`python -m hubbub_coordinator`: the coordinator as a process; settings are HUBBUB_COORDINATOR_*."""

from hubbub.runtime import leave_when_told

if __name__ == "__main__":
    # Before the imports below, which take seconds on a busy machine.
    leave_when_told()

import asyncio
import logging
import sys
from pathlib import Path
from typing import Literal

from pydantic import SecretStr
from pydantic_settings import SettingsConfigDict

from hubbub.ids import Role
from hubbub.runtime.process import Party, main
from hubbub.runtime.settings import PinningSettings
from hubbub.runtime.web_server import listen
from hubbub.store import open_store
from hubbub_coordinator.api.access import read_tokens
from hubbub_coordinator.api.app import answering
from hubbub_coordinator.service import Coordinator

log = logging.getLogger(__name__)


class CoordinatorSettings(PinningSettings):
    """Settings of the coordinator: those of every party, its HTTP address, its tokens and its store."""

    model_config = SettingsConfigDict(env_prefix="HUBBUB_COORDINATOR_")

    host: str = "127.0.0.1"
    """Address of the HTTP interface. It does not speak TLS: others should reach it through a proxy that does."""
    port: int = 8750
    """0 takes any free port; the log says which."""
    store_url: SecretStr | None = None
    """The event store: postgresql://user:password@host/database; a file in the folder if not given."""
    after_void: Literal["fail", "pause"] = "fail"
    """Fail or pause a run that has more void rounds than its manifest allows."""
    read_token_file: Path
    """Holds the bearer token for reading the REST API."""
    change_token_file: Path
    """Holds the bearer token for starting, steering and ending runs."""


async def serve(settings: CoordinatorSettings, party: Party, stop: asyncio.Event) -> None:
    """Run the coordinator and its REST API until `stop` is set."""
    tokens = read_tokens(settings.read_token_file, settings.change_token_file)
    # Before anything else: a coordinator without a port must not take messages from its inbox.
    advice = "set HUBBUB_COORDINATOR_PORT to a free port"
    listener = listen(settings.host, settings.port, advice=advice)
    coordinator = Coordinator(
        identity=party.identity,
        roster=party.roster,
        transport=party.transport,
        folder=settings.folder,
        store=open_store(settings.store_url.get_secret_value()) if settings.store_url else None,
        pause_when_void=settings.after_void == "pause",
        new_state=settings.new_state,
    )
    try:
        await coordinator.start()
        async with answering(coordinator, tokens, listener):
            log.info("listening on http://%s:%d", settings.host, listener.getsockname()[1])
            await stop.wait()
    finally:
        await coordinator.runner.stop()
        coordinator.close()


def run() -> int:
    """Run the coordinator until it is told to stop, and return the exit code."""
    return main(CoordinatorSettings, Role.COORDINATOR, lambda settings: settings.roster_sha256, serve)


if __name__ == "__main__":
    sys.exit(run())
