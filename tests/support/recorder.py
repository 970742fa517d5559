"""What a run puts on the broker, and what its parties keep to themselves: both written down, to be compared.

A `Recording` holds every message that was published, told by the parties' transports or cut out of the bytes that
a `WireTap` saw. A `Witness` looks over the parties' shoulders and knows everything that no message may tell.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from hubbub.crypto.key_derivation import GroupSecret
from hubbub.crypto.sealing import ChunkKey, SealingKey
from hubbub.ids import PartyId, SetId
from hubbub.parameters import Parameters
from hubbub.protocol import unions
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import Residues, residue_type
from hubbub.protocol.unions import Signs
from hubbub.strategies.base import ClientInput, ClientRound
from hubbub.strategies.secure import SecureRound, SecureStrategy
from hubbub.strategies.unions import SIGNS, BlockRound
from hubbub.strategies.verified import VerifiedRound
from hubbub.transport.base import Address, Transport
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import Topology
from hubbub.trust.seals import RunSeals, ShareKey, Stage
from hubbub_local.federation import Connect
from hubbub_trainer.events import GroupAgreed, SharesSent
from hubbub_trainer.phases.round import SendShares
from hubbub_trainer.round_jobs import RoundJobs
from hubbub_trainer.run_context import RunContext
from support.fault_proxy import FaultProxy
from support.wrapping import WrappedTransport

EVERYBODY = PartyId("everybody")
"""Whom a sum is for."""


# What crosses the broker --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Published:
    """One message, as the broker is given it."""

    address: Address
    frame: bytes = field(repr=False)


Recording = list[Published]


class RecordingTransport(WrappedTransport):
    """Another transport, with a copy of everything that is published over it."""

    def __init__(self, inner: Transport, recording: Recording) -> None:
        super().__init__(inner)
        self._recording = recording

    async def publish(self, address: Address, body: bytes) -> None:
        self._recording.append(Published(address, body))
        await super().publish(address, body)


def connect_recorded(recording: Recording, connect: Connect | None = None) -> Connect:
    """Connect every party as `connect` does, or in memory, and record what all of them publish."""
    broker = MemoryBroker()

    def connect_one(name: PartyId, topology: Topology) -> Transport:
        inner = connect(name, topology) if connect else MemoryTransport(broker, topology)
        return RecordingTransport(inner, recording)

    return connect_one


# What crosses the wire ----------------------------------------------------------------------------------


class WireTap(FaultProxy):
    """A proxy that keeps every byte, one stream for each direction of each connection."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.streams: list[bytearray] = []

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        stream = bytearray()
        self.streams.append(stream)
        try:
            while data := await source.read(2**16):
                stream += data
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(sink)
            sink.transport.abort()

    def read(self, method: int) -> Recording:
        """Cut the messages out of all streams: those that were published, or those that were delivered."""
        return [message for stream in self.streams for message in read_amqp(bytes(stream), method)]


PUBLISH, DELIVER = 40, 60
_BASIC = 60
_PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
_FRAME, _FRAME_END = struct.Struct(">BHI"), 1
_METHOD, _HEADER, _BODY = 1, 2, 3


def read_amqp(stream: bytes, method: int) -> Iterator[Published]:
    """Put the messages of one direction together: a method frame, a header with the size, the body in pieces."""
    addresses: dict[int, Address] = {}
    sizes: dict[int, int] = {}
    bodies: dict[int, bytearray] = {}
    for kind, channel, payload in _cut(stream.removeprefix(_PROTOCOL_HEADER)):
        if kind == _METHOD and struct.unpack_from(">HH", payload) == (_BASIC, method):
            addresses[channel] = _read_address(payload, method)
        elif kind == _HEADER and channel in addresses:
            sizes[channel], bodies[channel] = int.from_bytes(payload[4:12], "big"), bytearray()
        elif kind == _BODY and channel in addresses:
            bodies[channel] += payload
            if len(bodies[channel]) == sizes[channel]:
                yield Published(addresses.pop(channel), bytes(bodies[channel]))


def _cut(stream: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The frames: type, channel and payload; one that was cut off is left out."""
    at = 0
    while at + _FRAME.size <= len(stream):
        kind, channel, size = _FRAME.unpack_from(stream, at)
        at += _FRAME.size
        if at + size < len(stream):
            yield kind, channel, stream[at : at + size]
        at += size + _FRAME_END


def _read_address(payload: bytes, method: int) -> Address:
    # Before it: a reserved short; or the consumer's tag, the delivery's tag and a bit.
    at = 6 if method == PUBLISH else 4 + 1 + payload[4] + 9
    exchange, at = _read_short_string(payload, at)
    routing_key, _ = _read_short_string(payload, at)
    return Address(exchange, routing_key)


def _read_short_string(payload: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + payload[at]
    return payload[at + 1 : end].decode(), end


# What nobody else may know ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where in a run something sealed belongs."""

    round: int
    phase: str
    sender: PartyId
    recipient: PartyId
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Said:
    """What a client goes into a phase with."""

    vectors: tuple[Vector, ...]
    values: tuple[Residues, ...] = field(repr=False)

    @staticmethod
    def by(mine: ClientRound, phase: str) -> Said:
        """In wide residues, whatever the client computes with: a test may add them."""
        vectors, values = mine.vectors(phase), mine.contribute(phase)
        kinds = [residue_type(vector.modulus) for vector in vectors]
        return Said(vectors, tuple(each.astype(kind) for each, kind in zip(values, kinds, strict=True)))


def inner_of(mine: ClientRound) -> ClientRound:
    """The strategy's own round, without what verifies its sums."""
    return mine._inner if isinstance(mine, VerifiedRound) else mine


def chosen_by(mine: ClientRound) -> Signs:
    """The signs of what a client would send if it were for it alone; in blocks, those of its own blocks."""
    mine = inner_of(mine)
    if isinstance(mine, SecureRound):
        return mine._signs
    assert isinstance(mine, BlockRound)
    parameters = mine._parameters
    inside = unions.indices_in(np.flatnonzero(mine._marks), parameters.block, parameters.model_size)
    chosen = np.zeros(parameters.model_size, dtype=np.int8)
    chosen[inside] = unions.speak(mine._wanted, inside)
    return chosen


@dataclass(slots=True)
class Witness:
    """The plaintexts and keys of a run, as the parties' own code has them in hand."""

    inputs: list[ClientInput] = field(default_factory=list)
    signs: list[Signs] = field(default_factory=list)
    """What each of the inputs was compressed to."""
    factors: list[int] = field(default_factory=list)
    said: dict[tuple[PartyId, int, str], Said] = field(default_factory=dict)
    signs_of: dict[tuple[PartyId, int], Signs] = field(default_factory=dict)
    shares: dict[Place, bytes] = field(default_factory=dict)
    seeds: dict[Place, bytes] = field(default_factory=dict)
    """What shares follow from on the compact wire."""
    partials: dict[Place, bytes] = field(default_factory=dict)
    """Sums on their way to a combiner."""
    sums: dict[Place, bytes] = field(default_factory=dict)
    contributions: dict[Place, bytes] = field(default_factory=dict)
    run_keys: dict[PartyId, SealingKey] = field(default_factory=dict)
    secrets: dict[str, bytes] = field(default_factory=dict)
    """Keys of the group, of sums and of clients."""

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Look at everything that is compressed, dealt, sealed or derived from now on."""
        self._watch_clients(patch)
        self._watch_seals(patch)
        self._watch_compact_seals(patch)
        self._watch_group(patch)

    def _watch_clients(self, patch: pytest.MonkeyPatch) -> None:
        begin, send_shares = SecureStrategy.begin, RoundJobs.send_shares

        def begin_watched(strategy: SecureStrategy, parameters: Parameters, mine: ClientInput) -> ClientRound:
            begun = begin(strategy, parameters, mine)
            self.inputs.append(mine)
            self.signs.append(chosen_by(begun))
            return begun

        async def send_watched(jobs: RoundJobs, job: SendShares) -> SharesSent:
            name, key, phase = jobs.me, jobs.key, job.phase
            mine = jobs.run.open().rounds[key.round].client_round
            said = self.said[name, key.round, phase] = Said.by(mine, phase)
            self.signs_of[name, key.round] = chosen_by(mine)
            if phase == SIGNS.name:
                self.factors.append(int(said.values[1][0]))
            return await send_shares(jobs, job)

        patch.setattr(SecureStrategy, "begin", begin_watched)
        patch.setattr(RoundJobs, "send_shares", send_watched)

    def _watch_seals(self, patch: pytest.MonkeyPatch) -> None:
        make_share_key, seal_share, encrypt_sum = RunSeals.make_share_key, ShareKey.seal, RunSeals.encrypt_sum
        seal_contribution = RunSeals.seal_contribution

        def make_share_key_watched(
            seals: RunSeals, stage: Stage, to: PartyId, set_id: SetId, key: ChunkKey
        ) -> ShareKey:
            self._keep_key(seals)
            place = f"{seals._me} for {to}, round {stage.round}, {stage.phase}"
            self.secrets[f"share key of {place}"] = key.to_bytes()
            return make_share_key(seals, stage, to, set_id, key)

        def seal_share_watched(key: ShareKey, chunk: int, share: bytes) -> bytes:
            self.shares[Place(key.stage.round, key.stage.phase, key.sender, key.recipient, chunk)] = share
            return seal_share(key, chunk, share)

        def encrypt_sum_watched(seals: RunSeals, stage: Stage, key: ChunkKey, chunk: int, packed: bytes) -> bytes:
            self.sums[Place(stage.round, stage.phase, seals._me, EVERYBODY, chunk)] = packed
            self._keep_key(seals)
            self.secrets[f"sum key of {seals._me}, round {stage.round}, {stage.phase}"] = key.to_bytes()
            return encrypt_sum(seals, stage, key, chunk, packed)

        def seal_contribution_watched(seals: RunSeals, to: PartyId, contribution: bytes) -> bytes:
            self.contributions[Place(0, "", seals._me, to)] = contribution
            return seal_contribution(seals, to, contribution)

        patch.setattr(RunSeals, "make_share_key", make_share_key_watched)
        patch.setattr(ShareKey, "seal", seal_share_watched)
        patch.setattr(RunSeals, "encrypt_sum", encrypt_sum_watched)
        patch.setattr(RunSeals, "seal_contribution", seal_contribution_watched)

    def _watch_compact_seals(self, patch: pytest.MonkeyPatch) -> None:
        seal_seed, seal_partial, accept = RunSeals.seal_seed, RunSeals.seal_partial, RunSeals.accept

        def seal_seed_watched(seals: RunSeals, stage: Stage, to: PartyId, set_id: SetId, seed: bytes) -> bytes:
            self.seeds[Place(stage.round, stage.phase, seals._me, to)] = seed
            return seal_seed(seals, stage, to, set_id, seed)

        def seal_partial_watched(seals: RunSeals, stage: Stage, to: PartyId, chunk: int, packed: bytes) -> bytes:
            self.partials[Place(stage.round, stage.phase, seals._me, to, chunk)] = packed
            return seal_partial(seals, stage, to, chunk, packed)

        def accept_watched(seals: RunSeals, publics: Mapping[PartyId, bytes]) -> None:
            self._keep_key(seals)  # Who always combines seals nothing.
            accept(seals, publics)

        patch.setattr(RunSeals, "seal_seed", seal_seed_watched)
        patch.setattr(RunSeals, "seal_partial", seal_partial_watched)
        patch.setattr(RunSeals, "accept", accept_watched)

    def _keep_key(self, seals: RunSeals) -> None:
        """Copy a run's key, which its owner is going to erase."""
        self.run_keys[seals._me] = SealingKey.from_bytes(seals._kem, seals._key.to_bytes())

    def _watch_group(self, patch: pytest.MonkeyPatch) -> None:
        agree, key_for = RunContext.agree, GroupSecret.key_for

        def agree_watched(run: RunContext, job: object) -> GroupAgreed:
            agreed = agree(run, job)
            self.secrets[f"client secret of {run.me}"] = run.open().secret._key
            self.secrets[f"contribution of {run.me}"] = run.secrets.contribution()
            return agreed

        def key_for_watched(group: GroupSecret, purpose: str) -> bytes:
            derived = key_for(group, purpose)
            self.secrets[f"group secret, round {group.round}"] = bytes(group._chain)
            self.secrets[f"group key for {purpose}, round {group.round}"] = derived
            return derived

        patch.setattr(RunContext, "agree", agree_watched)
        patch.setattr(GroupSecret, "key_for", key_for_watched)

    def add_up(self, clients: Sequence[PartyId], number: int, phase: str) -> tuple[Residues, ...]:
        """The sums over these clients, from what they said."""
        said = [self.said[client, number, phase] for client in clients]
        return tuple(
            add_residues([each.values[place] for each in said], vector.modulus)
            for place, vector in enumerate(said[0].vectors)
        )


def add_residues(parts: Sequence[Residues], modulus: int) -> Residues:
    """Add mod m, the slow and plain way."""
    total = np.zeros(parts[0].size, dtype=np.uint64)
    for part in parts:
        total += part
    return total if modulus == 2**64 else (total % modulus).astype(np.uint32)
