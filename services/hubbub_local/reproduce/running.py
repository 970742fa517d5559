"""Running all that a plan asks for, one run after the other, through the services and their protocol."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from hubbub.ids import PartyId
from hubbub.runtime.runner import Moment
from hubbub_coordinator.accounts import Account
from hubbub_coordinator.phases import round as rounds
from hubbub_local.demo import draw_up
from hubbub_local.experiment import run_to_target
from hubbub_local.reproduce.caching import CachedTask, TrainingCache
from hubbub_local.reproduce.measuring import BOOKKEEPING, Meter, Reading
from hubbub_local.reproduce.plan import Method, Plan, Settings
from hubbub_local.reproduce.progress import Ledger
from hubbub_local.reproduce.records import RunRecord, record_round
from hubbub_local.reproduce.showing import Show
from hubbub_trainer.learning.task import Task

CACHE_FOLDER = "cache"


def check_plan(plan: Plan, task: Task) -> None:
    """Refuse what no manifest can say, and data that are not there, before anything is begun."""
    for method in plan.methods:
        draw_up(plan.settings.demo_options(method, plan.seeds[0]), task)
    task.learner(index=0, clients=plan.settings.clients, seed=plan.seeds[0])


def run_all(plan: Plan, task: Task, ledger: Ledger, show: Show) -> None:
    """Do every run that is not finished; each is kept round by round."""
    cache = TrainingCache(ledger.folder / CACHE_FOLDER)
    for seed in plan.seeds:
        for method in plan.methods:
            finished = ledger.find_finished(method, seed)
            if finished is not None:
                show.skip(finished)
                continue
            show.begin(method, seed)
            # A loop for each: what a run leaves behind in one cannot slow the next down.
            run = _Run(plan.settings, method, seed, ledger, show)
            show.end(asyncio.run(run.go(task, cache)))
        # Other seeds have other models: nothing of this one is asked for again.
        cache.clear()


class _Run:
    """One run as it goes on, and what is known of it so far."""

    def __init__(self, settings: Settings, method: Method, seed: int, ledger: Ledger, show: Show) -> None:
        self._settings = settings
        self._options = settings.demo_options(method, seed)
        self._ledger = ledger
        self._show = show
        self._meter = Meter()
        self._before: Reading | None = None
        self._began_s = 0.0
        self._record = RunRecord(
            name=method.name,
            strategy=method.strategy,
            q=method.q,
            feedback=method.feedback,
            block=method.block,
            seed=seed,
        )

    async def go(self, task: Task, cache: TrainingCache) -> RunRecord:
        """Run to the target or to the last round."""
        self._meter.install(asyncio.get_running_loop())
        cached = CachedTask(
            task, data=self._settings.data, partition=self._settings.partition, cache=cache, meter=self._meter
        )
        outcome = await run_to_target(
            self._options,
            cached,
            self._settings.target,
            self._keep_round,
            observer=self._observe,
            progress=self._note_steps,
        )
        self._record = replace(
            self._record, finished=True, reached=outcome.reached, model_sha256=outcome.model_sha256
        )
        self._ledger.keep(self._record)
        return self._record

    def _observe(self, moment: Moment) -> None:
        """The clocks start with the first round: what it takes to join is not of any round."""
        if self._before is None and isinstance(moment.data, rounds.Round):
            self._before, self._began_s = self._meter.read(), time.monotonic()

    def _note_steps(self, client: PartyId, _round: int, done: int, steps: int) -> None:
        self._show.train(client, self._settings.clients, done, steps)

    def _keep_round(self, account: Account) -> None:
        now, now_s = self._meter.read(), time.monotonic()
        # It is the coordinator's task that tells us, but not the coordinator's work.
        with self._meter.timing(BOOKKEEPING):
            spent = now.since(self._before or now)
            finished = record_round(account, spent, now_s - self._began_s)
            self._before, self._began_s = now, now_s
            self._record = replace(self._record, by_round=(*self._record.by_round, finished))
            self._ledger.keep(self._record)
            self._show.finish_round(self._record)
