"""Somebody who recorded a run on the compact wire, holds keys, and adds up what fits together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

from hubbub.crypto.sealing import SealingKey
from hubbub.errors import PeerError
from hubbub.ids import PartyId
from hubbub.messages.codec import decode
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import MaskedChunk, PartialChunk
from hubbub.messages.runs import GroupContribution, RunProposed
from hubbub.messages.shares import DenseShareChunk, ShareSeed
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import RandomStream
from hubbub.strategies.phase_plan import plan_phase
from hubbub.trust.seals import (
    SealContext as StreamPlace,
)
from hubbub.trust.seals import (
    Stage,
    _contribution_info,
    _partial_info,
    _seed_info,
    _share_info,
    _share_key_info,
    mask_stream,
    share_stream,
)
from support import compact_words
from support.compact_words import Parts
from support.eavesdropper import SEALED_KEY_BYTES, Sealed, open_shares
from support.recorder import EVERYBODY, Place

Phase = tuple[int, str]
"""A round, and a phase of it."""


@dataclass(slots=True)
class CompactLoot:
    """What was opened."""

    shares: dict[Place, bytes] = field(default_factory=dict)
    share_keys: dict[Place, bytes] = field(default_factory=dict, compare=False)
    """Whoever has one has the shares too, and these are compared."""
    seeds: dict[Place, bytes] = field(default_factory=dict)
    partials: dict[Place, bytes] = field(default_factory=dict)
    contributions: dict[Place, bytes] = field(default_factory=dict)
    elsewhere: list[Place] = field(default_factory=list)
    """Where something opened with what is bound to another place."""

    def everything(self) -> Iterator[bytes]:
        for opened in (self.shares, self.seeds, self.partials, self.contributions):
            yield from opened.values()


class CompactEavesdropper:
    """Reads a recording with the run keys that it was given."""

    def __init__(self, frames: Iterable[bytes], run_keys: Sequence[SealingKey]) -> None:
        envelopes = [decode(frame) for frame in frames]
        self._run_keys = run_keys
        self.manifest: Manifest = next(
            each.body.manifest for each in envelopes if isinstance(each.body, RunProposed)
        )
        self.vectors: dict[Phase, tuple[Vector, ...]] = {}
        self.sealed = CompactSealed()
        self.masked: dict[Place, bytes] = {}
        """Readable to everybody."""
        for envelope in envelopes:
            self._read(envelope)

    def _read(self, envelope: Envelope) -> None:
        body, sender, to = envelope.body, envelope.sender, envelope.recipient
        number, phase = envelope.round, envelope.phase
        stage = Stage(envelope.run, number, phase)
        match body:
            case DenseShareChunk():
                self.vectors[number, phase] = tuple(claim.vector for claim in body.vectors)
                place = Place(number, phase, sender, to, body.index)
                self._keep("shares", place, envelope, _share_info(stage, sender, to, body.set_id, body.index))
                key_info = _share_key_info(stage, sender, to, body.set_id)
                self.sealed.share_keys[place] = Sealed(place, envelope.payload[:SEALED_KEY_BYTES], key_info)
            case ShareSeed():
                info = _seed_info(stage, sender, to, body.set_id)
                self._keep("seeds", Place(number, phase, sender, to), envelope, info)
            case PartialChunk():
                info = _partial_info(stage, sender, to, body.index)
                self._keep("partials", Place(number, phase, sender, to, body.index), envelope, info)
            case GroupContribution():
                info = _contribution_info(envelope.run, sender, to)
                self._keep("contributions", Place(0, "", sender, to), envelope, info)
            case MaskedChunk():
                place = Place(number, phase, sender, EVERYBODY, body.index)
                assert self.masked.setdefault(place, envelope.payload) == envelope.payload, "one sum to all"

    def _keep(self, kind: str, place: Place, envelope: Envelope, info: bytes) -> None:
        getattr(self.sealed, kind)[place] = Sealed(place, envelope.payload, info)

    # Opening ------------------------------------------------------------------------------------------------

    def open_all(self) -> CompactLoot:
        """Try every key on everything, first where it belongs and then at every other place."""
        loot = CompactLoot()
        for kind, sealed in self.sealed.by_kind():
            for place, each in sealed.items():
                for key in self._run_keys:
                    with suppress(PeerError):
                        getattr(loot, kind)[place] = key.open(each.ciphertext, each.info)
        loot.elsewhere += self._open_elsewhere()
        loot.elsewhere += open_shares(self.sealed.shares.values(), set(loot.share_keys.values()), loot.shares)
        return loot

    def _open_elsewhere(self) -> Iterator[Place]:
        everything = [each for _, sealed in self.sealed.by_kind() for each in sealed.values()]
        for one, other in product(everything, everything):
            for key in self._run_keys if one.info != other.info else ():
                with suppress(PeerError):
                    key.open(one.ciphertext, other.info)
                    yield one.place

    # Adding up ----------------------------------------------------------------------------------------------

    def read_shares(self, loot: CompactLoot, client: PartyId, number: int, phase: str) -> dict[PartyId, Parts]:
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

    def read_partial(self, loot: CompactLoot, server: PartyId, number: int, phase: str) -> Parts:
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


@dataclass(slots=True)
class CompactSealed:
    """What crossed the broker sealed, by where it belongs."""

    shares: dict[Place, Sealed] = field(default_factory=dict)
    """With the sealed key that comes first."""
    share_keys: dict[Place, Sealed] = field(default_factory=dict)
    seeds: dict[Place, Sealed] = field(default_factory=dict)
    partials: dict[Place, Sealed] = field(default_factory=dict)
    contributions: dict[Place, Sealed] = field(default_factory=dict)

    def by_kind(self) -> Iterator[tuple[str, dict[Place, Sealed]]]:
        """What is sealed to a run key; shares are not, but their keys."""
        for kind in ("share_keys", "seeds", "partials", "contributions"):
            yield kind, getattr(self, kind)
