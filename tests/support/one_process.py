"""The same run over memory, undisturbed: what runs over a broker must end with."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from hubbub.ids import PartyId
from hubbub.messages.manifest import Manifest
from hubbub_coordinator.phases import run as runs
from hubbub_local.federation import Parties, start_federation
from hubbub_trainer.learning.registry import load_task
from support.patience import HANG_S


def run_in_one_process(
    manifest: Manifest, parties: Parties, folder: Path, *, demo_seed: int
) -> dict[PartyId, str]:
    """Run a manifest to its end and return the trainers' digests."""
    loader = partial(load_task, data="digits", cache_folder=folder)

    async def run() -> dict[PartyId, str]:
        async with (
            asyncio.timeout(HANG_S),
            start_federation(
                manifest, parties=parties, folder=folder, load_task=loader, demo_seed=demo_seed
            ) as federation,
        ):
            state, data = await federation.run(manifest)
            assert state is runs.State.COMPLETED, data.reason
            return federation.model_digests(manifest)

    return asyncio.run(run())
