"""A service that dies, inside this process, at a chosen instant: before or after it keeps or sends something.

From that instant on nothing of it reaches the disk or the broker, and what it was given is given back. Whatever it
did in between two of these instants, nobody has seen. A test that lets a party die at every instant in turn has
shown that there is none that it cannot come back from.

    fate = Fate(at=7)
    transport = MortalTransport(MemoryTransport(broker, topology), fate)
    service = Aggregator(transport=transport, ...)
    make_mortal(service, fate)
    ...
    await fate.met.wait()

`live_through` does the rest: it starts the service, and once more when it has died.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from hubbub.errors import StorageFailed
from hubbub.machine.effects import Key
from hubbub.store.base import Archive, Draft, EventStore
from hubbub.transport.base import Address, Transport
from support.frames import decode
from support.wrapping import WrappedStore, WrappedTransport


class Fate:
    """Counts the instants of a party's life, and ends it at one of them."""

    def __init__(self, at: int | None = None, counts: Callable[[str], bool] = lambda _: True) -> None:
        self.instants: list[str] = []
        """Those that count, by name: "before keeping ChunkArrived", "after sending sum-chunk"."""
        self.met = asyncio.Event()
        self._at = at
        self._counts = counts
        self._lock = threading.Lock()
        self._dead = False
        self._loop = asyncio.get_running_loop()

    def is_met_at(self, instant: str) -> bool:
        """Whether the party is dead at this instant; it stays so. Threads may ask, too."""
        with self._lock:
            if not self._dead and self._counts(instant):
                self.instants.append(instant)
                self._dead = len(self.instants) - 1 == self._at
                if self._dead:
                    self._loop.call_soon_threadsafe(self.met.set)
            return self._dead


class MortalTransport(WrappedTransport):
    """Another transport; nothing comes back from it to the dead."""

    def __init__(self, inner: Transport, fate: Fate) -> None:
        super().__init__(inner)
        self._fate = fate

    async def publish(self, address: Address, body: bytes) -> None:
        what = decode(body).kind
        await self._die_at(f"before sending {what}")
        await super().publish(address, body)
        await self._die_at(f"after sending {what}")

    async def _die_at(self, instant: str) -> None:
        if self._fate.is_met_at(instant):
            await asyncio.Event().wait()


class MortalStore(WrappedStore):
    """Another store, which the dead cannot write to; what they marked as done and did not write is lost."""

    def __init__(self, inner: EventStore, fate: Fate) -> None:
        super().__init__(inner)
        self._fate = fate
        self._finished: list[int] = []

    def append(self, drafts: Sequence[Draft]) -> int:
        what = drafts[-1].kind
        self._die_at(f"before keeping {what}")
        self._write_finished()
        number = self._inner.append(drafts)
        self._die_at(f"after keeping {what}")
        return number

    def _die_at(self, instant: str) -> None:
        if self._fate.is_met_at(instant):
            raise StorageFailed("the party is dead")

    def _write_finished(self) -> None:
        while self._finished:
            self._inner.mark_done(self._finished.pop())

    def mark_done(self, sequence: int) -> None:
        self._finished.append(sequence)

    def drop(self, keys: Iterable[Key]) -> None:
        self._die_at("before forgetting")
        self._inner.drop(keys)
        self._die_at("after forgetting")

    def archive(self, archive: Archive) -> int | None:
        self._die_at("before archiving")
        self._write_finished()
        dropped = self._inner.archive(archive)
        self._die_at("after archiving")
        return dropped


def make_mortal(service: Any, fate: Fate) -> None:
    """Let a service that has not started yet keep its events only as long as it lives."""
    service._store = service.runner.event_log.store = MortalStore(service._store, fate)


Start = Callable[[Fate], AbstractAsyncContextManager[object]]


async def live_through(start: Start, others: Coroutine[object, object, None], fate: Fate) -> None:
    """Let everybody else play their part, while the service dies once and is started again."""
    playing = asyncio.create_task(others)
    met = asyncio.create_task(fate.met.wait())
    try:
        async with start(fate):
            await asyncio.wait([playing, met], return_when=asyncio.FIRST_COMPLETED)
        if not playing.done():
            async with start(Fate()):
                await playing
        await playing
    finally:
        playing.cancel()
        met.cancel()
