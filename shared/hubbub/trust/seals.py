"""Seals: one party's keys in one run, and the context that each ciphertext is bound to.

Run, round, phase, chunk, sender, recipient and role are bound into the seal, so nothing beside the ciphertext can
be changed: a ciphertext that is moved to any other place does not open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hubbub.crypto.sealing import (
    CHUNK_KEY_BYTES,
    ChunkKey,
    Decrypted,
    Kem,
    Room,
    SealingKey,
    seal,
    seal_overhead,
)
from hubbub.crypto.signing import Part, bind
from hubbub.crypto.stream import AesCtrRows, AesCtrStream, derive_key
from hubbub.errors import LocalError
from hubbub.ids import PartyId, Role, RunId, SetId
from hubbub.messages.runs import RunKey
from hubbub.trust.identity import Identity
from hubbub.trust.signed import sign_run_key


def draw_run_key(kem: Kem) -> SealingKey:
    """Generate a private key for one run."""
    return SealingKey.generate(kem)


def read_run_key(kem: Kem, kept: bytes) -> SealingKey:
    """Read a private key that was stored for a restart."""
    return SealingKey.from_bytes(kem, kept)


@dataclass(frozen=True, slots=True)
class Stage:
    """Run, round and phase that a ciphertext is bound to."""

    run: RunId
    round: int
    phase: str

    def bind(self, label: str, *context: Part) -> bytes:
        """Encode a label, this stage and further context, as the `info` of a seal."""
        return bind(label, self.run, self.round, self.phase, *context)


class RunSeals:
    """Private key of a party for one run, and everybody's public keys. It is deleted with the run."""

    def __init__(self, identity: Identity, run: RunId, key: SealingKey) -> None:
        self._me = identity.name
        self._kem = key.kem
        self._run = run
        self._key = key
        self._publics: dict[PartyId, bytes] = {}
        self.claim: RunKey = sign_run_key(identity, run, key.kem, key.public)

    def __repr__(self) -> str:
        return f"<RunSeals of {self._me}>"

    def accept(self, publics: Mapping[PartyId, bytes]) -> None:
        """Set everybody's public keys; raise `LocalError` if others were set before."""
        if self._publics and self._publics != publics:
            raise LocalError("a run has one key of each party")
        self._publics = dict(publics)

    def public(self, party: PartyId) -> bytes:
        """Return a party's public key."""
        return self._publics[party]

    # Shares: a client to an aggregator ------------------------------------------------------------------

    def make_share_key(self, stage: Stage, to: PartyId, set_id: SetId, key: ChunkKey) -> ShareKey:
        """Seal a share set's key to the aggregator that the share is for."""
        sealed = seal(self._kem, self._publics[to], key.to_bytes(), _share_key_info(stage, self._me, to, set_id))
        return ShareKey(stage, self._me, to, set_id, key, sealed)

    def open_share_key(self, stage: Stage, sender: PartyId, set_id: SetId, payload: bytes) -> ShareKey:
        """Open the key that came with a chunk of a share."""
        sealed = payload[: seal_overhead(self._kem) + CHUNK_KEY_BYTES]
        key = ChunkKey.from_bytes(self._key.open(sealed, _share_key_info(stage, sender, self._me, set_id)))
        return ShareKey(stage, sender, self._me, set_id, key, sealed)

    def seal_seed(self, stage: Stage, to: PartyId, set_id: SetId, seed: bytes) -> bytes:
        """Seal the seed from which a whole share is derived."""
        return seal(self._kem, self._publics[to], seed, _seed_info(stage, self._me, to, set_id))

    def open_seed(self, stage: Stage, sender: PartyId, set_id: SetId, sealed: bytes) -> bytes:
        """Open a seed that was sealed to us."""
        return self._key.open(sealed, _seed_info(stage, sender, self._me, set_id))

    # Sums: an aggregator to the combiner ----------------------------------------------------------------

    def seal_partial(self, stage: Stage, to: PartyId, chunk: int, packed: bytes) -> bytes:
        """Seal one chunk of our sum to the combiner."""
        return seal(self._kem, self._publics[to], packed, _partial_info(stage, self._me, to, chunk))

    def open_partial(self, stage: Stage, sender: PartyId, chunk: int, sealed: bytes) -> bytes:
        """Open one chunk of another aggregator's sum."""
        return self._key.open(sealed, _partial_info(stage, sender, self._me, chunk))

    # Sums: an aggregator to all clients -----------------------------------------------------------------

    def wrap_sum_key(self, stage: Stage, to: PartyId, key: ChunkKey) -> bytes:
        """Seal a sum's key to one client."""
        return seal(self._kem, self._publics[to], key.to_bytes(), _sum_key_info(stage, self._me, to))

    def encrypt_sum(self, stage: Stage, key: ChunkKey, chunk: int, packed: bytes) -> bytes:
        """Encrypt one chunk of our sum, for all clients at once."""
        return key.encrypt(chunk, packed, _sum_info(stage, self._me, chunk))

    def unwrap_sum_key(self, stage: Stage, sender: PartyId, wrapped: bytes) -> ChunkKey:
        """Open the key of an aggregator's sum."""
        return ChunkKey.from_bytes(self._key.open(wrapped, _sum_key_info(stage, sender, self._me)))

    @staticmethod
    def decrypt_sum(stage: Stage, sender: PartyId, key: ChunkKey, chunk: int, sealed: bytes) -> Decrypted:
        """Open one chunk of an aggregator's sum."""
        return key.decrypt(chunk, sealed, _sum_info(stage, sender, chunk))

    # Contributions to the group secret: a client to a client --------------------------------------------

    def seal_contribution(self, to: PartyId, contribution: bytes) -> bytes:
        """Seal our part of the group secret to one client."""
        return seal(self._kem, self._publics[to], contribution, _contribution_info(self._run, self._me, to))

    def open_contribution(self, sender: PartyId, sealed: bytes) -> bytes:
        """Open another client's part of the group secret."""
        return self._key.open(sealed, _contribution_info(self._run, sender, self._me))

    # Snapshots of the model: a client to a client ------------------------------------------------------

    def seal_snapshot(self, number: int, to: PartyId, chunk: int, part: bytes) -> bytes:
        """Seal one chunk of the model that a round left."""
        return seal(self._kem, self._publics[to], part, _snapshot_info(self._run, number, self._me, to, chunk))

    def open_snapshot(self, number: int, sender: PartyId, chunk: int, sealed: bytes) -> bytes:
        """Open one chunk of another client's model."""
        return self._key.open(sealed, _snapshot_info(self._run, number, sender, self._me, chunk))


@dataclass(frozen=True, slots=True)
class ShareKey:
    """Key of one client's share set at one aggregator. Every chunk carries it, sealed."""

    stage: Stage
    sender: PartyId
    recipient: PartyId
    set_id: SetId
    key: ChunkKey
    sealed: bytes = field(repr=False)

    def seal(self, chunk: int, share: bytes) -> bytes:
        """Encrypt one chunk of the share, and prepend the sealed key; call it once per chunk."""
        return self.key.encrypt(chunk, share, self._info(chunk), head=self.sealed)

    def open(self, chunk: int, payload: bytes, room: Room = bytearray) -> Decrypted:
        """Decrypt one chunk of the share, into memory that `room` allocates."""
        return self.key.decrypt(chunk, memoryview(payload)[len(self.sealed) :], self._info(chunk), room)

    def opens(self, set_id: SetId, payload: bytes) -> bool:
        """Say whether a chunk of a set carries this key."""
        return set_id == self.set_id and payload.startswith(self.sealed)

    def _info(self, chunk: int) -> bytes:
        return _share_info(self.stage, self.sender, self.recipient, self.set_id, chunk)


def derive_share_key(stage: Stage, secret: bytes, server: PartyId) -> ChunkKey:
    """Derive the key of one aggregator's share from the secret that a client drew for the whole set."""
    return ChunkKey(derive_key(secret, "hubbub/1 share key", stage.run, stage.round, stage.phase, server))


def _share_key_info(stage: Stage, sender: PartyId, recipient: PartyId, set_id: SetId) -> bytes:
    return stage.bind("hubbub/1 share key", *_to_aggregator(sender, recipient), set_id)


def _share_info(stage: Stage, sender: PartyId, recipient: PartyId, set_id: SetId, chunk: int) -> bytes:
    return stage.bind("hubbub/1 share", *_to_aggregator(sender, recipient), set_id, chunk)


def _seed_info(stage: Stage, sender: PartyId, recipient: PartyId, set_id: SetId) -> bytes:
    return stage.bind("hubbub/1 share seed", *_to_aggregator(sender, recipient), set_id)


def _to_aggregator(sender: PartyId, recipient: PartyId) -> tuple[str, ...]:
    return (Role.CLIENT.value, sender, Role.AGGREGATOR.value, recipient)


def _partial_info(stage: Stage, sender: PartyId, recipient: PartyId, chunk: int) -> bytes:
    return stage.bind("hubbub/1 partial sum", Role.AGGREGATOR.value, sender, recipient, chunk)


def _sum_key_info(stage: Stage, sender: PartyId, recipient: PartyId) -> bytes:
    return stage.bind("hubbub/1 sum key", Role.AGGREGATOR.value, sender, Role.CLIENT.value, recipient)


def _sum_info(stage: Stage, sender: PartyId, chunk: int) -> bytes:
    return stage.bind("hubbub/1 sum", Role.AGGREGATOR.value, sender, chunk)


def _contribution_info(run: RunId, sender: PartyId, recipient: PartyId) -> bytes:
    return bind("hubbub/1 contribution", run, Role.CLIENT.value, sender, recipient)


def _snapshot_info(run: RunId, number: int, sender: PartyId, recipient: PartyId, chunk: int) -> bytes:
    return bind("hubbub/1 snapshot", run, number, Role.CLIENT.value, sender, recipient, chunk)


# Streams ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SealContext:
    """Context of a piece of a vector: the vector's name and ring, and the chunk that holds the piece."""

    vector: str
    modulus: int
    chunk: int

    @property
    def ring(self) -> int:
        """The modulus in 64 bits; 0 stands for 2^64."""
        return self.modulus % 2**64


def share_stream(stage: Stage, seed: bytes, client: PartyId, server: PartyId, place: SealContext) -> AesCtrStream:
    """Return the share of a piece, expanded from a seed: the same at the client and at its aggregator."""
    context = (stage.run, stage.round, stage.phase, client, server, place.vector, place.ring, place.chunk)
    return AesCtrStream.derived(seed, "hubbub/1 seeded share", *context)


def mask_stream(stage: Stage, group_key: bytes, client: PartyId, place: SealContext) -> AesCtrStream:
    """Return the mask of a piece of a client's input: the same at all clients, and unknown to anybody else."""
    context = (stage.run, stage.round, stage.phase, place.vector, place.ring, place.chunk, client)
    return AesCtrStream.derived(group_key, "hubbub/1 mask", *context)


@dataclass(frozen=True, slots=True)
class TagCoefficients:
    """Coefficients of all tags in a round: the same at all clients, and unknown to anybody else."""

    run: RunId
    round: int
    group_key: bytes = field(repr=False)

    def __call__(self, phase: str, vector: str) -> AesCtrRows:
        """Return the table of one vector's coefficients."""
        return AesCtrRows.derived(self.group_key, "hubbub/1 tags", self.run, self.round, phase, vector)


def derive_seed(stage: Stage, secret: bytes, server: PartyId) -> bytes:
    """Derive the seed of one aggregator's share from the secret that a client drew for the whole set."""
    return derive_key(secret, "hubbub/1 seed", stage.run, stage.round, stage.phase, server)
