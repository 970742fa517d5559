"""How much memory an aggregator takes, as a process of its own, while one phase goes through it.

The aggregators are started as an operator starts them and talk over RabbitMQ. All others are in this process
(`feeding`), which draws and seals a client's chunks when it sends them. So what Linux tells of an aggregator's
process is the aggregator's alone: its interpreter and libraries, and what N and C make it hold.
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
"""A process's size differs from time to time: medians of so many are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FootprintPlan:
    """Which sizes to go through, with two aggregators."""

    lengths: tuple[int, ...]
    """N, with five clients."""
    parameters: int
    cohorts: tuple[int, ...]
    """C, with so many elements."""
    crowd: tuple[int, int] | None
    """N and C of a phase that is compared with the same of five clients; C is as many as there ever are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The memory of the aggregator that took more of it."""

    parameters: int
    clients: int
    idle_bytes: int
    """Once it is connected."""
    peak_bytes: int
    """The most until everybody has the sum."""

    @property
    def grown_bytes(self) -> int:
        """What N and C made it take."""
        return max(0, self.peak_bytes - self.idle_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprints:
    """What was measured, by what grew."""

    by_length: list[Footprint]
    by_cohort: list[Footprint]
    crowd: tuple[Footprint, Footprint] | None
    """Of few clients and of as many as there ever are."""

    @property
    def line(self) -> Fit | None:
        """Over N."""
        if not is_line(self.by_length):
            return None
        lengths = [float(each.parameters) for each in self.by_length]
        return fit_line("memory", "N", "B", lengths, [float(each.peak_bytes) for each in self.by_length])


def measure_footprints(
    plan: FootprintPlan, amqp_url: str, say: Callable[[str], None], repeats: int = REPEATS
) -> Footprints:
    """Every phase several times, each through aggregators that were just started."""
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
    """The one whose peak is the median, of an odd number."""
    middle = median(each.peak_bytes for each in footprints)
    return next(each for each in footprints if each.peak_bytes == middle)


def measure_footprint(parameters: int, clients: int, amqp_url: str) -> Footprint:
    """Send a phase through two aggregators and say how large they were."""
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
        # One client looks at what it gets; the others take it, so that nothing stays at the broker.
        others = [_Taking(crowd.chunks) for _ in manifest.clients[1:]]
        for name, taking in zip(manifest.clients[1:], others, strict=True):
            await transports[name].subscribe(inbox(name), taking.take)
        await crowd.run()
        for taking in others:
            await taking.over.wait()


class _Taking:
    """Takes so many chunks and forgets them."""

    def __init__(self, chunks: int) -> None:
        self.over = asyncio.Event()
        self._missing = chunks

    async def take(self, delivery: Delivery) -> Verdict:
        del delivery
        self._missing -= 1
        if self._missing == 0:
            self.over.set()
        return ACK
