"""A whole run over memory, with all that its parties count and log."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hubbub.ids import PartyId, WireMode
from hubbub.messages.manifest import Manifest
from hubbub.protocol.layout import MIN_CHUNK_BYTES
from hubbub.run_options import RunOptions
from hubbub.runtime.telemetry import Counters, log_as_json
from hubbub_aggregator.service import Aggregator
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.service import Coordinator
from hubbub_local.federation import make_parties, start_federation
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import Task
from hubbub_trainer.planning import draw_up_manifest
from hubbub_trainer.service import Trainer
from support.patience import HANG_S

LIMIT_S = HANG_S
DEMO_SEED = 3

Line = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The remains of a run: its end, each party's metrics, and the log lines of all."""

    manifest: Manifest
    state: runs.State
    counters: dict[PartyId, Counters]
    lines: tuple[Line, ...]

    def value(self, party: str, name: str, **labels: str) -> float:
        """One party's value of a metric; 0 if there is none with these labels."""
        return self.counters[PartyId(party)].registry.get_sample_value(name, labels) or 0.0

    def total(self, name: str, parties: tuple[PartyId, ...] | None = None, **labels: str) -> float:
        """A metric added up over parties and over all labels that are not given."""
        wanted = self.counters if parties is None else parties
        return sum(
            sample.value
            for party in wanted
            for metric in self.counters[party].registry.collect()
            for sample in metric.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@contextmanager
def logging_as_json(party: str = "process", level: str = "debug") -> Iterator[io.StringIO]:
    """Log as a process does, into a text, and put everything back afterwards."""
    loggers = [logging.getLogger(name) for name in (None, "aio_pika", "aiormq", "aiormq.connection")]
    handlers, levels = loggers[0].handlers[:], [logger.level for logger in loggers]
    stream = io.StringIO()
    log_as_json(party, level, stream)
    try:
        yield stream
    finally:
        loggers[0].handlers[:] = handlers
        for logger, before in zip(loggers, levels, strict=True):
            logger.setLevel(before)


def load_synthetic(name: str) -> Task:
    """The one task of these runs."""
    del name
    return SyntheticTask()


def measure_run(
    folder: Path, *, strategy: str = "sec-union", clients: int = 3, rounds: int = 2, wire: WireMode = "compact"
) -> Measured:
    """Run to the end, in chunks so small that a share set has several."""
    parties = make_parties(clients=clients, servers=2)
    options = RunOptions(strategy=strategy, local_steps=2, rounds=rounds, seed=DEMO_SEED, wire=wire)
    drawn_up = draw_up_manifest(SyntheticTask(), options, roster=parties.roster)
    manifest = Manifest.model_validate(drawn_up.model_dump() | {"chunk_bytes": MIN_CHUNK_BYTES})

    async def run() -> tuple[runs.State, dict[PartyId, Counters]]:
        async with (
            asyncio.timeout(LIMIT_S),
            start_federation(
                manifest, parties=parties, folder=folder, load_task=load_synthetic, demo_seed=DEMO_SEED
            ) as federation,
        ):
            state, _ = await federation.run(manifest)
            services: tuple[Coordinator | Aggregator | Trainer, ...] = (
                federation.coordinator,
                *federation.aggregators,
                *federation.trainers,
            )
            return state, {service.runner.identity.name: service.counters for service in services}

    with logging_as_json() as stream:
        state, counters = asyncio.run(run())
    lines = tuple(json.loads(line) for line in stream.getvalue().splitlines())
    return Measured(manifest=manifest, state=state, counters=counters, lines=lines)
