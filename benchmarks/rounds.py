"""Times of whole rounds, with all services in this process, over several transports.

The protocol's seconds are those of the round less the slowest client's training and evaluation.
The task is `synthetic` with one local step: its result does not matter here.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.steps import CLIENTS, RHO, SERVERS
from hubbub.runtime.runner import Transition
from hubbub.transport.rabbitmq import RabbitMqTransport, declare_topology
from hubbub.transport.topology import merge, topology_for
from hubbub_coordinator.accounts import Account, account
from hubbub_coordinator.phases import round as rounds
from hubbub_local.demo import draw_up
from hubbub_local.demo_board import Durations, Stopwatch
from hubbub_local.federation import Connect, make_parties, start_federation
from hubbub_local.options import DemoOptions
from hubbub_trainer.learning.synthetic import SyntheticTask

Timed = tuple[Account, Durations]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Number of runs and rounds. The first round of each run opens connections and is left out."""

    runs: int
    rounds_per_run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimes:
    """Times of rounds of one size over one transport; medians over `rounds` rounds."""

    parameters: int
    transport: str
    rounds: int
    protocol_s: float
    fastest_s: float
    slowest_s: float
    training_s: float
    payload_bytes: float
    wire_bytes: int


async def connect_to_rabbitmq(url: str) -> Connect:
    """Declare the parties' topology, which none of them may do, and return a function that connects each."""
    roster = make_parties(clients=CLIENTS, servers=SERVERS).roster
    await declare_topology(url, merge(topology_for(party.name, party.role) for party in roster.parties))
    return lambda name, topology: RabbitMqTransport(url, topology, connection_name=name)


async def time_rounds(parameters: int, transports: dict[str, Connect | None], series: Series) -> list[RoundTimes]:
    """Run over each transport in turn, repeatedly; None is the memory transport."""
    accounts: dict[str, list[Timed]] = {name: [] for name in transports}
    for _ in range(series.runs):
        for name, connect in transports.items():
            accounts[name] += (await _run(parameters, series.rounds_per_run, connect))[1:]
    return [_summarise(parameters, name, finished) for name, finished in accounts.items()]


async def _run(parameters: int, count: int, connect: Connect | None) -> list[Timed]:
    task = SyntheticTask(parameters)
    options = DemoOptions(
        strategy="no-union", clients=CLIENTS, servers=SERVERS, rho=RHO, local_steps=1, rounds=count, seed=0
    )
    manifest, parties = draw_up(options, task)
    accounts: list[Account] = []
    stopwatch = Stopwatch()

    def note(moment: Transition) -> None:
        ended = moment.after is rounds.State.RELEASED and moment.before is not moment.after
        if ended and isinstance(moment.data, rounds.CoordinatorRound):
            accounts.append(account(moment.data))

    with tempfile.TemporaryDirectory(prefix="hubbub-bench-") as folder:
        async with start_federation(
            manifest,
            parties=parties,
            folder=Path(folder),
            load_task=lambda _: task,
            demo_seed=0,
            connect=connect,
            observer=note,
            trainer_observer=stopwatch.observe,
        ) as federation:
            await federation.complete(manifest)
    return [(each, stopwatch.split(manifest.run_id, each)) for each in accounts]


def _summarise(parameters: int, transport: str, rounds_timed: Sequence[Timed]) -> RoundTimes:
    times = [each for _, each in rounds_timed]
    protocol_s = [each.protocol_s for each in times]
    costs = rounds_timed[0][0].costs.values()
    return RoundTimes(
        parameters=parameters,
        transport=transport,
        rounds=len(times),
        protocol_s=statistics.median(protocol_s),
        fastest_s=min(protocol_s),
        slowest_s=max(protocol_s),
        training_s=statistics.median(each.training_s for each in times),
        payload_bytes=sum(cost.payload_bits for cost in costs) / 8,
        wire_bytes=sum(cost.wire_bytes for cost in costs),
    )
