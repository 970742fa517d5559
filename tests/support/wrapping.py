"""Transports and stores around another one, for subclasses that do one thing differently."""

from collections.abc import Iterable, Sequence
from typing import Self

from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.store.base import Archive, Draft, Entry, EventStore, Note, Snapshot
from hubbub.transport.base import Address, Condition, Handler, Transport


class WrappedTransport(Transport):
    """Another transport."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def publish(self, address: Address, body: bytes) -> None:
        await self._inner.publish(address, body)

    async def subscribe(self, queue: str, handler: Handler, *, prefetch: int = 8) -> None:
        await self._inner.subscribe(queue, handler, prefetch=prefetch)

    def pause(self, queue: str) -> None:
        self._inner.pause(queue)

    def resume(self, queue: str) -> None:
        self._inner.resume(queue)

    @property
    def condition(self) -> Condition:
        return self._inner.condition

    async def count_waiting(self, queue: str) -> int:
        return await self._inner.count_waiting(queue)

    async def close(self) -> None:
        await self._inner.close()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self


class WrappedStore(EventStore):
    """Another store."""

    def __init__(self, inner: EventStore) -> None:
        self.place = inner.place
        self._inner = inner

    def append(self, drafts: Sequence[Draft]) -> int:
        return self._inner.append(drafts)

    def mark_done(self, sequence: int) -> None:
        self._inner.mark_done(sequence)

    def read(self) -> list[Entry]:
        return self._inner.read()

    def drop(self, keys: Iterable[Key]) -> None:
        self._inner.drop(keys)

    def drop_run(self, run: RunId) -> None:
        self._inner.drop_run(run)

    def archive(self, archive: Archive) -> int | None:
        return self._inner.archive(archive)

    def read_ongoing(self) -> list[Snapshot]:
        return self._inner.read_ongoing()

    def find_over(self, kind: str, run: RunId, first: int = 0, last: int = 0) -> list[Snapshot]:
        return self._inner.find_over(kind, run, first, last)

    def read_summaries(self, kind: str) -> list[Snapshot]:
        return self._inner.read_summaries(kind)

    def read_notes(self, most: int) -> list[Note]:
        return self._inner.read_notes(most)

    def close(self) -> None:
        self._inner.close()
