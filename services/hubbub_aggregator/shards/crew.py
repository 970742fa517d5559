"""The workers of an aggregator, all together: who does which chunks, and whether all are there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from prometheus_client import Counter

from hubbub.errors import LocalError
from hubbub.ids import PartyId, RunId
from hubbub.machine.effects import Key
from hubbub.runtime.runner import Helpers
from hubbub.runtime.telemetry import Counters
from hubbub.transport.topology import share_out, slot_of, work_queues
from hubbub_aggregator.events import ChunkBroken, ChunkChecked, SumSent
from hubbub_aggregator.phases.accumulation import Accumulation, CheckChunk, ShareSet
from hubbub_aggregator.shards.hand import Hand, Head, Launch
from hubbub_aggregator.shards.words import Check, Checked, Release, Released
from hubbub_aggregator.workbench import ALL_SLOTS, goes_by_chunk


class Crew:
    """Keeps its workers there, and divides work among them by slots."""

    def __init__(self, party: PartyId, workers: int, launch: Launch) -> None:
        self.counters = Counters()
        restarts = Counter(
            "hubbub_worker_restarts",
            "Workers of this aggregator that died and were replaced, by worker.",
            ["worker"],
            registry=self.counters.registry,
        )
        self._hands = tuple(
            Hand(number, slots, launch, restarts.labels(str(number)).inc)
            for number, slots in enumerate(share_out(workers))
        )
        self.helpers = Helpers(self._find_problems, work_queues(party, workers))
        self._head: Head | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def _find_problems(self) -> tuple[str, ...]:
        return tuple(problem for hand in self._hands for problem in hand.find_problems())

    def report_to(self, head: Head) -> None:
        """Say whom the workers work for."""
        self._head = head

    def start(self) -> None:
        """Start all workers, and keep them there; what is asked of one before waits for it."""
        for hand in self._hands:
            self._begin(hand.keep(self._present()))

    async def stop(self) -> None:
        """End all workers, and wait until they are gone."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def dismiss(self, run: RunId) -> None:
        """Have all workers forget a run."""
        for hand in self._hands:
            self._begin(hand.dismiss(run))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The work -------------------------------------------------------------------------------------------

    async def check(self, key: Key, job: CheckChunk) -> ChunkChecked | ChunkBroken:
        """Have a chunk opened and looked at."""
        hand = next(hand for hand in self._hands if slot_of(job.index) in hand.slots)
        word = partial(Check, key=key, client=job.client, share_set=_shorten(job.share_set), index=job.index)
        reply = await hand.ask(self._present(), key.run, word)
        if not isinstance(reply, Checked):
            raise LocalError(f"a worker was asked to check and says {type(reply).__name__}")
        return reply.event

    async def release(self, key: Key, data: Accumulation) -> SumSent:
        """Have a sum added and sent: by all, each its slots, or as a whole by one where it takes whole vectors."""
        parts = [(hand, tuple(hand.slots)) for hand in self._hands]
        if not goes_by_chunk(key, data):
            parts = [(self._hands[0], tuple(ALL_SLOTS))]
        data = replace(data, sets={member: _shorten(data.sets[member]) for member in data.members})
        head = self._present()
        # All are waited for: what one of them could not do is begun again by all.
        replies = await asyncio.gather(
            *(hand.ask(head, key.run, partial(Release, key=key, data=data, slots=slots)) for hand, slots in parts),
            return_exceptions=True,
        )
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        first = replies[0]
        if not isinstance(first, Released):
            raise LocalError(f"a worker was asked to release and says {type(first).__name__}")
        return first.event

    def _present(self) -> Head:
        if self._head is None:
            raise LocalError("the workers work for nobody")
        return self._head


def _shorten(share_set: ShareSet) -> ShareSet:
    """Which chunks have come, which may be many, is no matter to whoever opens one."""
    return replace(share_set, arrived=frozenset(), checked=frozenset())
