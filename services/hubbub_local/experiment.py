"""Runs a strategy until a target metric is reached, and measures the cost."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hubbub.errors import ProtocolError
from hubbub.messages.manifest import Manifest
from hubbub.protocol.metrics import reaches
from hubbub.runtime.runner import Observer, Transition
from hubbub_coordinator.accounts import Account, account
from hubbub_coordinator.events import CancelRequested
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_local.demo import draw_up
from hubbub_local.federation import start_federation
from hubbub_local.options import DemoOptions
from hubbub_trainer.learning.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of an experiment: the rounds up to the first whose headline metric reaches the target."""

    reached: bool
    accounts: tuple[Account, ...]
    model_sha256: str
    """Digest of the model that all clients ended with."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the last round, by name."""
        return self.accounts[-1].metrics


async def run_to_target(
    options: DemoOptions,
    task: Task,
    report: Callable[[Account], None] = lambda _: None,
    *,
    observer: Observer = lambda _: None,
) -> Outcome:
    """Run until a round's headline metric reaches `options.target`, or `options.rounds` are done.

    A failing task raises: in a real run only its owner is told, but an experiment would give meaningless numbers.
    `report` gets every finished round, `observer` the coordinator's steps.
    """
    # The target is in the manifest, so that no round begins after it was reached.
    manifest, parties = draw_up(options, task)
    accounts: list[Account] = []

    def watch(moment: Transition) -> None:
        observer(moment)
        if not isinstance(moment.data, rounds.CoordinatorRound) or moment.after is not rounds.State.RELEASED:
            return
        if federation.count_task_failures():
            federation.coordinator.runner.feed_soon(moment.data.run, CancelRequested(at_s=moment.at_s))
        else:
            accounts.append(account(moment.data))
            report(accounts[-1])

    with tempfile.TemporaryDirectory(prefix="hubbub-experiment-") as folder:
        async with start_federation(
            manifest,
            parties=parties,
            folder=Path(folder),
            load_task=lambda _: task,
            demo_seed=options.seed,
            observer=watch,
        ) as federation:
            state, run = await federation.run(manifest)
            if federation.count_task_failures():
                raise ProtocolError(f"{manifest.strategy} failed: the task failed; the log says how")
            if state is not runs.State.COMPLETED:
                raise ProtocolError(f"{manifest.strategy} {state.value}: {run.reason}")
            digest = federation.model_digest(manifest)
    return Outcome(
        reached=_has_reached(manifest, accounts[-1]),
        accounts=tuple(accounts),
        model_sha256=digest,
    )


def _has_reached(manifest: Manifest, last: Account) -> bool:
    headline, target = manifest.headline, manifest.target
    if headline is None or target is None or headline.name not in last.metrics:
        return False
    return reaches(headline, last.metrics[headline.name], target)
