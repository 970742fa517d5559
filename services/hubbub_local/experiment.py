"""Running a strategy until the model is good enough, and what that took."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hubbub.errors import ProtocolError
from hubbub.runtime.runner import Moment
from hubbub_coordinator.accounts import Account, account
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_local.demo import DemoOptions, draw_up
from hubbub_local.federation import start_federation
from hubbub_trainer.learning.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What it took: rounds up to the first whose accuracy is at least the target."""

    strategy: str
    q: int
    feedback: str
    seed: int
    reached: bool
    accounts: tuple[Account, ...]

    @property
    def accuracy(self) -> float:
        """Of the last round."""
        return self.accounts[-1].accuracy

    @property
    def mean_union(self) -> float:
        """E|V|."""
        return sum(each.union_size for each in self.accounts) / len(self.accounts)

    @property
    def total_bits(self) -> int:
        """Payload of all rounds, all parties, both directions."""
        return sum(cost.payload_bits for each in self.accounts for cost in each.costs.values())

    @property
    def predicted_bits(self) -> int:
        """The same by the formulas."""
        return sum(cost.predicted_bits for each in self.accounts for cost in each.costs.values())


async def run_to_target(
    options: DemoOptions, task: Task, target: float, report: Callable[[Account], None] = lambda _: None
) -> Outcome:
    """Run until a round's accuracy reaches the target, or `options.rounds` are done."""
    manifest, parties = draw_up(options, task)
    accounts: list[Account] = []
    enough = asyncio.Event()

    def watch(moment: Moment) -> None:
        if isinstance(moment.data, rounds.Round) and moment.after is rounds.State.RELEASED and not enough.is_set():
            accounts.append(account(moment.data))
            report(accounts[-1])
            if accounts[-1].accuracy >= target:
                enough.set()

    with tempfile.TemporaryDirectory(prefix="hubbub-experiment-") as folder:
        async with start_federation(
            manifest,
            parties=parties,
            folder=Path(folder),
            load_task=lambda _: task,
            demo_seed=options.seed,
            observer=watch,
        ) as federation:
            running = asyncio.create_task(federation.run(manifest))
            waiting = asyncio.create_task(enough.wait())
            await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await federation.coordinator.cancel(manifest.run_id)
            state, run = await running
            waiting.cancel()
    if state is runs.State.FAILED:
        raise ProtocolError(f"{options.strategy} failed: {run.reason}")
    return Outcome(
        strategy=options.strategy,
        q=options.q,
        feedback=options.feedback,
        seed=options.seed,
        reached=enough.is_set(),
        accounts=tuple(accounts),
    )
