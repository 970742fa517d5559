"""Hubbub's rounds on the same vectors: all services in this process, over memory or RabbitMQ.

`sum` adds all N numbers as the peers do, and `secure-fedavg` takes their mean. `sec-union` is what Hubbub is for:
it sends the signs of each client's largest entries. `shared-mask` sends a few bits of each of a few entries.
`eastly-tss` and `eastly-he`, prior systems, send a random sign or zero for each entry, right on average.
Training (there is none here), compressing an update (top-k) and updating the model do not count.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TypedDict
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.contest import Contest, PeerCost, SumIsWrong, check_error
from benchmarks.peers.memory import MemoryWatch
from benchmarks.peers.metering import CountingTransport, Meter
from benchmarks.steps import RHO, SERVERS
from hubbub import __version__
from hubbub.ids import WireMode
from hubbub.messages.manifest import Manifest
from hubbub.parameters import Parameters
from hubbub.protocol import masks
from hubbub.protocol.compression import top_binary
from hubbub.protocol.metrics import Metric, Scores
from hubbub.run_options import RunOptions
from hubbub.strategies.base import Theta
from hubbub.strategies.registry import find_strategy
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.rabbitmq import RabbitMqTransport, declare_topology
from hubbub.transport.topology import merge, topology_for
from hubbub_local.attribution import AttributingLoop, Attribution
from hubbub_local.federation import Connect, Parties, make_parties, start_federation
from hubbub_trainer.learning.task import ProgressCallback, Training
from hubbub_trainer.planning import draw_up_manifest

STRATEGIES = ("sec-union", "shared-mask", "secure-fedavg", "sum", "bonawitz", "eastly-tss")
SLOW = "eastly-he"
"""A strategy that takes minutes a round."""
WIRE: WireMode = Manifest.model_fields["wire"].default
"""Wire mode of shares and sums: the manifests' default, unless `measure_hubbub` is given another."""
LARGEST = 0.5
"""Bound of an entry that is sent as it is, and of a client's factor otherwise."""
ROUNDS = 4
"""Rounds of a run; the first opens files and is left out."""

TRAINING = "benchmarks.peers.hubbub_rounds.VectorLearner.train"
_ASIDE = (
    "hubbub.strategies.unions.add_up",
    "hubbub.strategies.secure_fedavg.add_up",
    "hubbub.strategies.eastly.add_up",
    "hubbub.protocol.terngrad.ternarise",
    "hubbub.protocol.compression.top_binary",
    "hubbub.protocol.masks.quantise",
    "hubbub.strategies.unions.SignsRound.conclude",
    "hubbub.strategies.shared_mask.MaskRound.conclude",
    "hubbub.strategies.secure_fedavg.SecureFedAvgRound.conclude",
    "hubbub.strategies.sums.SumRound.conclude",
    "hubbub.strategies.eastly.TernaryRound.conclude",
    "hubbub_trainer.workspace.Workspace.learnt",
    "hubbub_trainer.workspace.Workspace.keep_update",
    "hubbub_trainer.workspace.Workspace.recall_update",
    "hubbub_trainer.workspace.Workspace.advance",
    "hubbub_trainer.workspace.Workspace.note_round",
    TRAINING,
)
"""Functions in which a trainer computes on its own model; none of them calls another."""


class VectorLearner:
    """Learner with a given update; it passes the model of each round to `see`."""

    samples = 1
    examples = 0

    def __init__(self, contest: Contest, place: int, see: Callable[[Theta], None]) -> None:
        self._contest = contest
        self._place = place
        self._see = see

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        del steps, seed, progress
        self._see(theta)
        return Training(theta + self._contest.update(self._place), memory)

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        del theta, memory
        return {}


class VectorTask:
    name = "vectors"

    def __init__(self, contest: Contest, metrics: tuple[Metric, ...] = ()) -> None:
        self.metrics = metrics
        self._contest = contest
        self._rounds = [0] * contest.clients
        self._after_first: Theta | None = None
        self._digests: set[bytes] = set()

    def count_parameters(self) -> int:
        return self._contest.parameters

    def initial_model(self, seed: int) -> Theta:
        del seed
        return np.zeros(self._contest.parameters, dtype=np.float32)

    def learner(self, *, index: int, clients: int, seed: int) -> VectorLearner:
        del clients, seed
        return VectorLearner(self._contest, index, partial(self._see, index))

    def after_first_round(self, *, own: bool) -> Theta:
        """Return the first client's model after the first round: that of all clients, unless each has its own."""
        if self._after_first is None or len(self._digests) != (self._contest.clients if own else 1):
            raise SumIsWrong(f"clients went on from {len(self._digests)} models")
        return self._after_first

    def _see(self, place: int, theta: Theta) -> None:
        """Keep one client's second model, and only a digest of the others': memory is measured."""
        self._rounds[place] += 1
        if self._rounds[place] != 2:
            return
        self._digests.add(hashlib.sha256(theta.tobytes()).digest())
        if place == 0:
            self._after_first = theta.copy()


def measure_hubbub(
    contest: Contest,
    strategy: str,
    *,
    wire: WireMode = WIRE,
    count: int = ROUNDS,
    amqp_url: str | None = None,
    verified: bool = True,
    metrics: tuple[Metric, ...] = (),
    aside: Sequence[str] = _ASIDE,
) -> PeerCost:
    """Run `count` rounds, over RabbitMQ if its URL is given, and return the medians of all but the first.

    Time in the functions `aside` does not count.
    """
    memory = MemoryWatch()
    task, parties = VectorTask(contest, metrics), make_parties(clients=contest.clients, servers=SERVERS)
    options = RunOptions(
        strategy=strategy,
        rho=None if strategy == "shared-mask" else RHO,
        local_steps=1,
        rounds=count,
        seed=0,
        wire=wire,
        alpha_max=LARGEST,
        verified=verified,
    )
    manifest = draw_up_manifest(task, options, roster=parties.roster)
    meter = Meter(frozenset(manifest.clients))
    with ExitStack() as stack:
        for name in aside:
            stack.enter_context(_put_aside(name, meter.attribution))
        runner = stack.enter_context(asyncio.Runner(loop_factory=partial(AttributingLoop, meter.attribution)))
        runner.run(_run(manifest, parties, task, meter, amqp_url))
    declared = find_strategy(strategy)
    error, allowed = _compare(contest, manifest, task.after_first_round(own=declared.own_models))
    share = f", ρ = {manifest.rho:g}" if declared.uses_rho else ""
    return PeerCost(
        system=f"Hubbub {strategy}",
        version=f"hubbub {__version__}",
        setting=f"wire {wire}, {SERVERS} aggregators" + share,
        parameters=contest.parameters,
        clients=contest.clients,
        **_summarise(manifest, meter),
        servers=SERVERS,
        memory_bytes=memory.grown_bytes(),
        largest_error=check_error(strategy, error, allowed),
        allowed_error=allowed,
        measured=contest.parameters,
    )


@contextmanager
def _put_aside(name: str, attribution: Attribution) -> Iterator[None]:
    original = patch(name).get_original()[0]

    def aside(*arguments: object, **named: object) -> object:
        with attribution.put_aside():
            return original(*arguments, **named)

    with patch(name, aside):
        yield


async def _run(manifest: Manifest, parties: Parties, task: VectorTask, meter: Meter, amqp_url: str | None) -> None:
    connect = await _open(parties, amqp_url)
    with tempfile.TemporaryDirectory(prefix="hubbub-bench-") as folder:
        async with start_federation(
            manifest,
            parties=parties,
            folder=Path(folder),
            load_task=lambda _: task,
            demo_seed=0,
            connect=lambda party, topology: CountingTransport(meter, party, connect(party, topology)),
            observer=meter.observe,
            trainer_observer=meter.stopwatch.observe,
        ) as federation:
            await federation.complete(manifest)


async def _open(parties: Parties, amqp_url: str | None) -> Connect:
    if amqp_url is None:
        broker = MemoryBroker()
        return lambda _, topology: MemoryTransport(broker, topology)
    await declare_topology(
        amqp_url, merge(topology_for(party.name, party.role) for party in parties.roster.parties)
    )
    return lambda party, topology: RabbitMqTransport(amqp_url, topology, connection_name=party)


class _Measured(TypedDict):
    up_bytes: int
    down_bytes: int
    others_bytes: int
    client_s: float
    server_s: float
    others_s: float
    wall_s: float
    payload_bytes: float
    wire_bytes: int


def _summarise(manifest: Manifest, meter: Meter) -> _Measured:
    pairs = list(pairwise(meter.readings))

    def spent(names: Sequence[str]) -> float:
        return median(
            sum(after.spent_s.get(name, 0.0) - before.spent_s.get(name, 0.0) for name in names) / len(names)
            for before, after in pairs
        )

    return _Measured(
        up_bytes=round(median(after.up_bytes - before.up_bytes for before, after in pairs)),
        down_bytes=round(median(after.down_bytes - before.down_bytes for before, after in pairs)),
        others_bytes=round(median(after.others_bytes - before.others_bytes for before, after in pairs)),
        client_s=spent(manifest.clients),
        server_s=spent(manifest.aggregators),
        others_s=spent([manifest.coordinator]),
        wall_s=median(meter.stopwatch.split(manifest.run_id, after.account).protocol_s for _, after in pairs),
        payload_bytes=median(after.payload_bytes for _, after in pairs),
        wire_bytes=round(median(after.wire_bytes for _, after in pairs)),
    )


def _compare(contest: Contest, manifest: Manifest, theta: Theta) -> tuple[float, float]:
    """Return the error of the model after the first round, which began with zeros, and the error allowed."""
    parameters = manifest.protocol_parameters
    match manifest.strategy:
        case "sum":
            total, unit = contest.add_up(), float(parameters.signed_fixed_point.unit)
            return float(np.abs(theta - total).max()), contest.clients * unit / 2 + _half_digit(total)
        case "secure-fedavg" | "bonawitz":
            mean, unit = contest.add_up() / contest.clients, float(parameters.mean_fixed_point.unit)
            return float(np.abs(theta - mean).max()), contest.clients * unit / 2 + _half_digit(mean)
        case "shared-mask":
            return _compare_levels(contest, parameters, theta)
        case "eastly-tss" | "eastly-he":
            return _compare_ternary(contest, theta)
        case _:
            return _compare_signs(contest, parameters, theta)


def _compare_signs(contest: Contest, parameters: Parameters, theta: Theta) -> tuple[float, float]:
    """Compare with (mean α)·(mean D)."""
    chosen, counts, alpha = np.zeros(contest.parameters), np.zeros(contest.parameters, dtype=np.int8), 0.0
    for place in range(contest.clients):
        compressed = top_binary(contest.update(place), parameters.kept)
        chosen += compressed.signs
        counts += compressed.signs != 0
        alpha += compressed.alpha / contest.clients
    expected = chosen * alpha / contest.clients
    error = np.abs(theta - expected)
    # SecUnion may lose an index that several clients chose, and then nothing is added there.
    error[counts > 1] = np.minimum(error, np.abs(theta))[counts > 1]
    return float(error.max()), _unit(parameters) + _half_digit(expected)


def _compare_levels(contest: Contest, parameters: Parameters, theta: Theta) -> tuple[float, float]:
    """Compare with (mean α)·(mean x/α) on V, where each client may be off by one level."""
    mask = np.flatnonzero(theta)  # Levels are odd and so are five of them: their sum is not zero.
    if mask.size != parameters.kept:
        raise SumIsWrong(f"{mask.size} coordinates moved where the mask has {parameters.kept}")
    wanted, alpha = np.zeros(mask.size), 0.0
    for place in range(contest.clients):
        change = contest.update(place)[mask]
        factor = masks.scale(change, parameters.bits)
        alpha += factor / contest.clients
        wanted += np.clip(change / factor, -1, 1) / contest.clients
    step = 2 / masks.top_level(parameters.bits)
    return float(np.abs(theta[mask] - alpha * wanted).max()), alpha * step + _unit(parameters)


def _compare_ternary(contest: Contest, theta: Theta) -> tuple[float, float]:
    """Compare the first client's model with its factor times a sum of signs that its members' entries can give."""
    updates = [contest.update(place) for place in range(contest.clients)]
    share = float(np.abs(updates[0]).max()) / contest.clients
    most = np.sum([each > 0 for each in updates], axis=0)
    least = -np.sum([each < 0 for each in updates], axis=0)
    expected = share * np.clip(np.rint(theta / share), least, most)
    return float(np.abs(theta - expected).max()), _half_digit(expected)


def _unit(parameters: Parameters) -> float:
    """Return the step between two factors in fixed point."""
    return 2.0**-parameters.fixed_point.fraction_bits


def _half_digit(values: NDArray[np.float64]) -> float:
    """Return the rounding error of float32 at the largest of these numbers."""
    return float(np.spacing(np.float32(np.abs(values).max())))
