"""Somebody who recorded a run on the compact wire, holds keys, and adds up what fits together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from hubbub.crypto.sealing import SealingKey
from hubbub.ids import PartyId
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import RandomStream
from hubbub.strategies.phase_plan import plan_phase
from hubbub.trust.seals import SealContext as StreamPlace
from hubbub.trust.seals import Stage, mask_stream, share_stream
from support import compact_words
from support.compact_words import Parts
from support.eavesdropper import BaseEavesdropper, Loot
from support.recorder import EVERYBODY, Place


class CompactEavesdropper(BaseEavesdropper):
    """Reads a recording with the run keys that it was given."""

    def __init__(self, frames: Iterable[bytes], run_keys: Sequence[SealingKey]) -> None:
        super().__init__(frames, run_keys=run_keys)
        self.vectors = {(number, phase): vectors for (_, number, phase), vectors in self.declared.items()}

    # Adding up ----------------------------------------------------------------------------------------------

    def read_shares(self, loot: Loot, client: PartyId, number: int, phase: str) -> dict[PartyId, Parts]:
        """A client's shares by aggregator: those that were opened, and those that follow from opened seeds."""
        vectors, stage = self.vectors[number, phase], Stage(self.manifest.run_id, number, phase)
        found: dict[PartyId, Parts] = {}
        for server in self.manifest.aggregators:
            place = Place(number, phase, client, server)
            if place in loot.seeds:
                stream = partial(share_stream, stage, loot.seeds[place], client, server)
                found[server] = self.expand(phase, vectors, stream)
            elif place in loot.shares:
                found[server] = self._put_together(place, loot.shares)
        return found

    def read_masked(self, number: int, phase: str) -> Parts:
        """The sum that everybody can read, and only clients can unmask."""
        sender = plan_phase(self.manifest, phase).combiner(number)
        return self._put_together(Place(number, phase, sender, EVERYBODY), self.masked)

    def read_partial(self, loot: Loot, server: PartyId, number: int, phase: str) -> Parts:
        combiner = plan_phase(self.manifest, phase).combiner(number)
        return self._put_together(Place(number, phase, server, combiner), loot.partials)

    def mask(self, mask_key: bytes, client: PartyId, number: int, phase: str) -> Parts:
        """What a client's input is masked with, to whoever has the group's key of the round."""
        stage = Stage(self.manifest.run_id, number, phase)
        return self.expand(phase, self.vectors[number, phase], partial(mask_stream, stage, mask_key, client))

    def expand(
        self, phase: str, vectors: Sequence[Vector], stream: Callable[[StreamPlace], RandomStream]
    ) -> Parts:
        return compact_words.expand(plan_phase(self.manifest, phase).plan(vectors), vectors, stream)

    def _put_together(self, home: Place, opened: Mapping[Place, bytes]) -> Parts:
        vectors = self.vectors[home.round, home.phase]
        plan = plan_phase(self.manifest, home.phase).plan(vectors)
        return compact_words.unpack(plan, vectors, lambda index: opened[replace(home, chunk=index)])

    def add(self, number: int, phase: str, parts: Sequence[Parts]) -> Parts:
        return compact_words.add(self.vectors[number, phase], parts)

    def subtract(self, number: int, phase: str, whole: Parts, part: Parts) -> Parts:
        return compact_words.subtract(self.vectors[number, phase], whole, part)
