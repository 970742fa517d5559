"""The heavy work of an aggregator, on what lies in its spool: chunks are opened and checked, added and sent.

It decides nothing: whoever calls it has journalled what is to be released.
"""

from __future__ import annotations

import asyncio

from hubbub.ids import PartyId
from hubbub.machine.effects import Key
from hubbub.runtime.post import Post
from hubbub.runtime.spool import Spool
from hubbub.store.vault import Vault
from hubbub.strategies.wire import PhaseWire
from hubbub.trust.identity import Identity
from hubbub_aggregator.combining import Combining
from hubbub_aggregator.events import ChunkArrived, ChunkBroken, ChunkChecked, SumSent
from hubbub_aggregator.opening import Openings, SealOf
from hubbub_aggregator.phases.accumulation import Accumulation, CheckChunk
from hubbub_aggregator.releasing import Releasing

CHECKS_AT_ONCE = 2
"""Chunks that are opened at the same time: each takes memory for its elements."""


class Workbench:
    """Opens, checks, adds and sends."""

    def __init__(self, identity: Identity, spool: Spool, vault: Vault, post: Post, seal_of: SealOf) -> None:
        opened = Openings(spool, seal_of)
        self._opened = opened
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._releasing = Releasing(identity, vault, post, opened, seal_of)
        self._combining = Combining(identity, post, opened, seal_of)

    def look_into(self, key: Key, wire: PhaseWire[PartyId], event: ChunkArrived, payload: bytes) -> ChunkArrived:
        """Note that what arrived is good, if that can be told at once."""
        return self._opened.look_into(key, wire, event, payload)

    def forget(self, key: Key) -> None:
        """Forget what was opened of a phase that is over."""
        self._opened.forget(key)

    async def check(self, key: Key, wire: PhaseWire[PartyId], job: CheckChunk) -> ChunkChecked | ChunkBroken:
        """Open a spooled chunk and look at every value of it."""
        async with self._checks:
            return await asyncio.to_thread(self._opened.check, key, wire, job)

    async def release(self, key: Key, data: Accumulation) -> SumSent:
        """Add the members' shares and send the sum."""
        if data.combiner is None:
            return await self._releasing.release(key, data)
        return await self._combining.release(key, data)
