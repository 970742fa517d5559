"""`python -m hubbub_trainer`: a trainer as a process; settings are HUBBUB_TRAINER_*."""

import asyncio
import logging
import sys
from functools import partial
from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from hubbub.ids import Role
from hubbub.runtime.process import main
from hubbub.runtime.settings import ServiceSettings
from hubbub.transport.base import Transport
from hubbub_trainer.learning.datasets import default_cache_folder
from hubbub_trainer.learning.registry import load_task
from hubbub_trainer.service import Trainer

log = logging.getLogger(__name__)


class TrainerSettings(ServiceSettings):
    """What a trainer needs beyond the broker: its data."""

    model_config = SettingsConfigDict(env_prefix="HUBBUB_TRAINER_")

    data: str = "auto"
    """`mnist`, `digits`, a folder, or `auto`: MNIST, or digits where MNIST cannot be had."""
    cache_folder: Path = Field(default_factory=default_cache_folder)
    """Where data that was fetched is kept."""
    demo_seed: int | None = None
    """For demonstrations and tests only: makes what should be this client's secret follow from a number."""


async def serve(settings: TrainerSettings, transport: Transport, stop: asyncio.Event) -> None:
    """Train until told to stop."""
    if settings.demo_seed is not None:
        log.warning("HUBBUB_TRAINER_DEMO_SEED is set: this trainer keeps no secret. Never use it with real data.")
    trainer = Trainer(
        name=settings.name,
        transport=transport,
        folder=settings.folder,
        load_task=partial(load_task, data=settings.data, cache_folder=settings.cache_folder, announce=log.info),
        demo_seed=settings.demo_seed,
    )
    try:
        await trainer.runner.start()
        await stop.wait()
    finally:
        trainer.close()
        await trainer.runner.stop()


if __name__ == "__main__":
    sys.exit(main(TrainerSettings, Role.CLIENT, serve))
