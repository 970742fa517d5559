"""`python -m hubbub_trainer`: a trainer as a process; settings are HUBBUB_TRAINER_*."""

from hubbub.runtime import leave_when_told

if __name__ == "__main__":
    # Before all that follows: importing it takes seconds on a busy machine.
    leave_when_told()

import asyncio
import logging
import sys
from functools import partial
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from hubbub.ids import Role
from hubbub.runtime.process import Party, main
from hubbub.runtime.settings import ProbedSettings
from hubbub_trainer.learning.datasets import default_cache_folder
from hubbub_trainer.learning.registry import Shelf, find_task, list_places, load_task, try_task
from hubbub_trainer.policy import Policy
from hubbub_trainer.service import Trainer
from hubbub_trainer.tracking import open_tracking

log = logging.getLogger(__name__)


class TrainerSettings(ProbedSettings):
    """Settings of a trainer beside those of every service: the data owner's policy, tasks and data."""

    model_config = SettingsConfigDict(env_prefix="HUBBUB_TRAINER_")

    policy: Path
    """The policy file: limits on the runs that this trainer takes part in. It pins the roster."""
    task: str | None = None
    """This organisation's own tasks: `package.module:Name` or a file, several separated by commas."""
    data: str = "auto"
    """`mnist`, `digits`, `cifar10`, a folder, or `auto`: CIFAR-10 for alexnet, otherwise MNIST, or digits if MNIST
    cannot be fetched. An organisation's own task interprets it as it likes."""
    cache_folder: Path = Field(default_factory=default_cache_folder)
    """The folder for fetched data."""
    demo_seed: int | None = None
    """For demonstrations and tests only: derives this client's secrets from a number. The policy must allow it."""
    track: SecretStr | None = None
    """Trackers for this client's measurements: `tensorboard:FOLDER`, `mlflow:URI`, or several, separated by
    commas."""


async def serve(settings: TrainerSettings, party: Party, stop: asyncio.Event) -> None:
    """Train until told to stop."""
    if settings.demo_seed is not None:
        log.warning("HUBBUB_TRAINER_DEMO_SEED is set: this trainer keeps no secret. Never use it with real data.")
    shelf = await asyncio.to_thread(_stock_shelf, settings)
    tracking = open_tracking(settings.track.get_secret_value() if settings.track else "")
    trainer = Trainer(
        identity=party.identity,
        roster=party.roster,
        read_policy=partial(Policy.read, settings.policy),
        transport=party.transport,
        folder=settings.folder,
        load_task=shelf,
        demo_seed=settings.demo_seed,
        observer=tracking.observe,
    )
    party.vitals.runner = trainer.runner
    try:
        await trainer.runner.start()
        await stop.wait()
    finally:
        trainer.give_up_training()
        await trainer.runner.stop()
        trainer.close()
        await asyncio.to_thread(tracking.close)


def _stock_shelf(settings: TrainerSettings) -> Shelf:
    """Load this trainer's tasks. Its owner's own tasks are tried now, and never on a proposal."""
    own = [find_task(place, data=settings.data) for place in list_places(settings.task or "")]
    for task in own:
        try_task(task)
    load = partial(load_task, data=settings.data, cache_folder=settings.cache_folder, announce=log.info)
    return Shelf(own, load)


def run() -> int:
    """Run a trainer until it is told to stop; the exit code says how it went."""
    return main(TrainerSettings, Role.CLIENT, lambda settings: Policy.read(settings.policy).roster_sha256, serve)


if __name__ == "__main__":
    sys.exit(run())
