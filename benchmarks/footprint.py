"""Memory of an aggregator's process during one phase.

The aggregators are started as an operator starts them and talk over RabbitMQ. All others are in this process
(`feeding`), which draws and seals a client's chunks when it sends them. So the size of an aggregator's process is
the aggregator's alone: its interpreter and libraries, and what grows with N and C.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median

from benchmarks.feeding import Crowd, draw_up_phase
from benchmarks.growth import Fit, fit_line, is_line
from benchmarks.processes import declare, started
from benchmarks.steps import CLIENTS, SERVERS
from hubbub.ids import PartyId
from hubbub.messages.manifest import Manifest
from hubbub.transport.base import ACK, Delivery, Transport, Verdict
from hubbub.transport.rabbitmq import RabbitMqTransport
from hubbub.transport.topology import inbox, topology_for
from hubbub_local.federation import Parties, make_parties

PATIENCE_S = 900.0
REPEATS = 3
"""Number of measurements whose median is taken: a process's size varies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FootprintPlan:
    """Sizes to measure, with two aggregators."""

    lengths: tuple[int, ...]
    """Values of N, with five clients."""
    parameters: int
    cohorts: tuple[int, ...]
    """Values of C, with so many elements."""
    crowd: tuple[int, int] | None
    """N and C of a phase that is compared with five clients of the same N; C is the largest cohort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Memory of the larger aggregator."""

    parameters: int
    clients: int
    idle_bytes: int
    """Size once it is connected."""
    peak_bytes: int
    """Peak until all clients have the sum."""

    @property
    def grown_bytes(self) -> int:
        """Growth due to N and C."""
        return max(0, self.peak_bytes - self.idle_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprints:
    """Measurements by N, by C, and of the largest cohort."""

    by_length: list[Footprint]
    by_cohort: list[Footprint]
    crowd: tuple[Footprint, Footprint] | None
    """With few clients and with the largest cohort."""

    @property
    def line(self) -> Fit | None:
        """Line of the peak over N."""
        if not is_line(self.by_length):
            return None
        lengths = [float(each.parameters) for each in self.by_length]
        return fit_line("memory", "N", "B", lengths, [float(each.peak_bytes) for each in self.by_length])


def measure_footprints(
    plan: FootprintPlan, amqp_url: str, say: Callable[[str], None], repeats: int = REPEATS
) -> Footprints:
    """Measure every phase several times, each with fresh aggregators."""
    found: dict[tuple[int, int], Footprint] = {}

    def measure(parameters: int, clients: int = CLIENTS) -> Footprint:
        if (parameters, clients) not in found:
            say(f"An aggregator's memory, N = {parameters:,}, C = {clients}")
            found[parameters, clients] = _middle(
                [measure_footprint(parameters, clients, amqp_url) for _ in range(repeats)]
            )
        return found[parameters, clients]

    return Footprints(
        by_length=[measure(length) for length in plan.lengths],
        by_cohort=[measure(plan.parameters, clients) for clients in plan.cohorts],
        crowd=(measure(plan.crowd[0]), measure(*plan.crowd)) if plan.crowd else None,
    )


def _middle(footprints: Sequence[Footprint]) -> Footprint:
    """Return the footprint with the median peak, of an odd number."""
    middle = median(each.peak_bytes for each in footprints)
    return next(each for each in footprints if each.peak_bytes == middle)


def measure_footprint(parameters: int, clients: int, amqp_url: str) -> Footprint:
    """Send a phase through two aggregators and return their memory."""
    parties = make_parties(clients=clients, servers=SERVERS)
    manifest = draw_up_phase(parties, parameters)
    declare(parties, amqp_url)
    with started(parties, manifest.aggregators, amqp_url) as processes:
        idle = processes.read_memory("VmRSS")
        asyncio.run(_feed(manifest, parties, amqp_url))
        peaks = processes.read_memory("VmHWM")
    largest = max(peaks, key=lambda name: peaks[name])
    return Footprint(parameters=parameters, clients=clients, idle_bytes=idle[largest], peak_bytes=peaks[largest])


async def _feed(manifest: Manifest, parties: Parties, amqp_url: str) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        transports: dict[PartyId, Transport] = {}
        for name in (manifest.coordinator, *manifest.clients):
            topology = topology_for(name, parties.identities[name].role)
            transport = RabbitMqTransport(amqp_url, topology, connection_name=name)
            transports[name] = await stack.enter_async_context(transport)
        crowd = Crowd(manifest, parties, transports)
        await crowd.subscribe()
        # One client checks what it receives; the others only take it, so that nothing stays at the broker.
        others = [_Taking(crowd.chunks) for _ in manifest.clients[1:]]
        for name, taking in zip(manifest.clients[1:], others, strict=True):
            await transports[name].subscribe(inbox(name), taking.take)
        await crowd.run()
        for taking in others:
            await taking.over.wait()


class _Taking:
    """Handler that takes so many chunks and drops them."""

    def __init__(self, chunks: int) -> None:
        self.over = asyncio.Event()
        self._missing = chunks

    async def take(self, delivery: Delivery) -> Verdict:
        del delivery
        self._missing -= 1
        if self._missing == 0:
            self.over.set()
        return ACK
