"""Meter of the bytes and CPU time of parties in one process, read at the end of every round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from hubbub.ids import PartyId
from hubbub.runtime.runner import Transition
from hubbub.runtime.telemetry import context
from hubbub.transport.base import Address, Condition, Handler, Transport
from hubbub_coordinator.accounts import Account, account
from hubbub_coordinator.phases import round as rounds
from hubbub_local.attribution import Attribution
from hubbub_local.demo_board import Stopwatch


@dataclass(frozen=True, slots=True)
class Reading:
    """Totals of time and bytes up to the end of a round, and that round's outcome."""

    spent_s: dict[str, float]
    up_bytes: int
    down_bytes: int
    others_bytes: int
    account: Account
    payload_bytes: float
    wire_bytes: int


@dataclass(slots=True)
class Meter:
    """Meter of published messages, read at the end of every round."""

    clients: frozenset[PartyId]
    attribution: Attribution = field(default_factory=Attribution)
    up_bytes: int = 0
    down_bytes: int = 0
    others_bytes: int = 0
    readings: list[Reading] = field(default_factory=list)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    def count(self, sender: PartyId, address: Address, size: int) -> None:
        if sender in self.clients:
            self.up_bytes += size
        elif address.routing_key in self.clients:
            self.down_bytes += size
        else:
            self.others_bytes += size

    def observe(self, moment: Transition) -> None:
        ended = moment.after is rounds.State.RELEASED and moment.before is not moment.after
        if ended and isinstance(moment.data, rounds.CoordinatorRound):
            whole = account(moment.data)
            reading = Reading(
                spent_s=self.attribution.read(),
                up_bytes=self.up_bytes,
                down_bytes=self.down_bytes,
                others_bytes=self.others_bytes,
                account=whole,
                payload_bytes=sum(cost.payload_bits for cost in whole.costs.values()) / 8,
                wire_bytes=sum(cost.wire_bytes for cost in whole.costs.values()),
            )
            self.readings.append(reading)


class CountingTransport(Transport):
    """Transport that wraps another, counts what a party publishes and attributes its time to the party."""

    def __init__(self, meter: Meter, party: PartyId, inner: Transport) -> None:
        self._meter = meter
        self._party = party
        self._inner = inner

    async def publish(self, address: Address, body: bytes) -> None:
        self._meter.count(self._party, address, len(body))
        await self._inner.publish(address, body)

    async def subscribe(self, queue: str, handler: Handler, *, prefetch: int = 8) -> None:
        await self._inner.subscribe(queue, handler, prefetch=prefetch)

    def pause(self, queue: str) -> None:
        self._inner.pause(queue)

    def resume(self, queue: str) -> None:
        self._inner.resume(queue)

    async def close(self) -> None:
        await self._inner.close()

    @property
    def condition(self) -> Condition:
        return self._inner.condition

    async def count_waiting(self, queue: str) -> int:
        return await self._inner.count_waiting(queue)

    async def __aenter__(self) -> Self:
        with context(party=self._party):
            await self._inner.__aenter__()
        return self
