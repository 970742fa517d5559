"""What lies sealed in an aggregator's spool: opened when it is checked, and again when it is added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hubbub.errors import PeerError
from hubbub.ids import PartyId, SetId
from hubbub.machine.effects import Key
from hubbub.runtime.spool import ChunkRef, Spool
from hubbub.strategies.wire import PhaseWire
from hubbub.trust.seals import RunSeals, Stage
from hubbub_aggregator.events import ChunkArrived, ChunkBroken, ChunkChecked
from hubbub_aggregator.phases.accumulation import CheckChunk, ShareSet
from hubbub_aggregator.summing import check_chunk

AT_ONCE_BYTES = 2**19
"""What is longer is opened in a thread: others wait for whoever looks at what arrives."""

SealOf = Callable[[Key], tuple[RunSeals, Stage]]


def name_partial(server: PartyId, index: int) -> ChunkRef:
    """What the spool calls a chunk of another aggregator's sum."""
    return ChunkRef(server, "partial", index)


class Openings:
    """Opens chunks, seeds and other aggregators' sums."""

    def __init__(self, spool: Spool, seal_of: SealOf) -> None:
        self._spool = spool
        self._seal_of = seal_of
        self._seeds: dict[Key, dict[PartyId, tuple[bytes, bytes]]] = {}
        """The last seed of each client, sealed and opened: it need not be opened again to be added."""

    def chunk(self, key: Key, client: PartyId, share_set: ShareSet, index: int) -> bytes:
        """A chunk of a client's share."""
        seals, stage = self._seal_of(key)
        sealed = self._spool.read(key, ChunkRef(client, share_set.set_id, index))
        return seals.open_share(stage, client, share_set.set_id, index, sealed)

    def seed(self, key: Key, client: PartyId, share_set: ShareSet) -> bytes:
        """The seed that a client's whole share follows from."""
        sealed, opened = self._seeds.get(key, {}).get(client, (b"", b""))
        return (
            opened if sealed == share_set.seed else self._open_seed(key, client, share_set.set_id, share_set.seed)
        )

    def _open_seed(self, key: Key, client: PartyId, set_id: SetId, sealed: bytes) -> bytes:
        seals, stage = self._seal_of(key)
        return seals.open_seed(stage, client, set_id, sealed)

    def forget(self, key: Key) -> None:
        """Forget the seeds of a phase that is over."""
        self._seeds.pop(key, None)

    def partial(self, key: Key, server: PartyId, index: int) -> bytes:
        """A chunk of another aggregator's sum."""
        seals, stage = self._seal_of(key)
        return seals.open_partial(stage, server, index, self._spool.read(key, name_partial(server, index)))

    def look_into(self, key: Key, wire: PhaseWire[PartyId], event: ChunkArrived, payload: bytes) -> ChunkArrived:
        """Note that what arrived is good, if that can be told at once; what is not is left to `check`.

        On the compact wire any words may be a share, so that to open one is to check it, and takes less time than
        its signature took. A long payload waits for its turn all the same.
        """
        try:
            if event.seed:
                opened = self._open_seed(key, event.client, event.set_id, event.seed)
                self._seeds.setdefault(key, {})[event.client] = event.seed, opened
            elif wire.compact and len(payload) <= AT_ONCE_BYTES:
                seals, stage = self._seal_of(key)
                share = seals.open_share(stage, event.client, event.set_id, event.index, payload)
                check_chunk(wire.plan(event.vectors)[event.index], event.vectors, share, wire.encoding)
            else:
                return event
        except PeerError:
            return event
        return replace(event, checked=True)

    def check(self, key: Key, wire: PhaseWire[PartyId], job: CheckChunk) -> ChunkChecked | ChunkBroken:
        """Look at what arrived of a share set: whether it opens, and every value of it is in its ring."""
        share_set = job.share_set
        try:
            if share_set.seeded:
                self.seed(key, job.client, share_set)
            else:
                share = self.chunk(key, job.client, share_set, job.index)
                check_chunk(wire.plan(share_set.vectors)[job.index], share_set.vectors, share, wire.encoding)
        except PeerError as error:
            return ChunkBroken(client=job.client, index=job.index, reason=error.reason, explanation=str(error))
        return ChunkChecked(client=job.client, index=job.index)
