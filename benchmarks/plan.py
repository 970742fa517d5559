"""Plan of the benchmarks: the sizes that each part measures."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.deployed import ProcessesPlan
from benchmarks.footprint import FootprintPlan
from benchmarks.growth import GrowthPlan
from benchmarks.interface import Audience
from benchmarks.learning import TrainingPlan
from benchmarks.peers import measuring as peers
from benchmarks.rounds import Series
from benchmarks.sizes import SizesPlan
from hubbub.messages.manifest import CHUNK_BYTES

LENET = 61_706
ALEXNET = 1_756_426
LARGE = 25_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Arguments of each part; None leaves it out."""

    parameters: tuple[int, ...]
    compact: tuple[int, ...]
    threads: int
    """The length that an aggregator adds with one thread and with two."""
    chunk_sizes: tuple[int, ...]
    repeats: int
    series: Series
    sizes: SizesPlan | None
    processes: tuple[ProcessesPlan, ...]
    """These need RabbitMQ."""
    growth: GrowthPlan | None
    footprint: FootprintPlan | None
    """This needs RabbitMQ."""
    peers: peers.Plan | None
    training: TrainingPlan | None
    audience: Audience | None
    rabbitmq: bool


FULL = Plan(
    parameters=(LENET, ALEXNET),
    compact=(LENET, ALEXNET, LARGE),
    threads=LARGE,
    chunk_sizes=(2**15, 2**16, 2**17, 2**18, 2**19, CHUNK_BYTES),
    repeats=9,
    series=Series(runs=3, rounds_per_run=5),
    sizes=SizesPlan(rounds={LENET: 5, ALEXNET: 5, LARGE: 3}),
    processes=(ProcessesPlan(ALEXNET, 5), ProcessesPlan(LARGE, 3)),
    growth=GrowthPlan(
        lengths=(10**5, 10**6, 10**7, 10**8),
        cohorts=(5, 10, 25, 50, 100),
        servers=(2, 3, 4, 5),
        parameters=10**6,
    ),
    footprint=FootprintPlan(
        lengths=(10**5, 10**6, 10**7, 10**8), parameters=10**6, cohorts=(5, 25, 100), crowd=(10**7, 100)
    ),
    peers=peers.FULL,
    training=TrainingPlan(repeats=7, lenet_steps=100, alexnet_steps=5),
    audience=Audience(
        streams=500,
        requests_per_s=200,
        parameters=LENET,
        pairs=31,
        rounds_per_run=9,
        rounds_read=100,
        runs_listed=10_000,
        pages=21,
        restarted_after=(10, 100, 1_000),
    ),
    rabbitmq=True,
)
QUICK = Plan(
    parameters=(LENET, ALEXNET),
    compact=(LENET, ALEXNET),
    threads=10**7,
    chunk_sizes=(),
    repeats=7,
    series=Series(runs=1, rounds_per_run=3),
    sizes=None,
    processes=(),
    growth=GrowthPlan(lengths=(10**5, 10**6), cohorts=(), servers=(), parameters=10**5),
    footprint=None,
    peers=None,
    training=None,
    audience=None,
    rabbitmq=False,
)
